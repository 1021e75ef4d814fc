// The tokens of a reply, shaded by one of the numbers that are known of each: log-prob, ratio, advantage, value.

const SHADES = {
  logprob: { label: "log-prob (dark: unlikely)", strength: (value) => Math.min(-value / 4, 1), signed: false, digits: 3 },
  ratio: { label: "ratio (red below 1, green above)", strength: (value) => clamp(Math.log(value) / 0.25), signed: true, digits: 4 },
  advantage: { label: "advantage (red below 0, green above)", signed: true, digits: 3 },
  value: { label: "critic's value (red below 0, green above)", signed: true, digits: 3 },
};
let chosenShade = "logprob";

const clamp = (value) => Math.max(-1, Math.min(1, value));

// Advantages and values are shaded against the largest of the trajectory.
function shadeStrength(name, value, largest) {
  const { strength } = SHADES[name];
  return strength ? strength(value) : clamp(value / (largest[name] || 1));
}

function largestOf(trajectory) {
  const largest = {};
  for (const { shaded } of trajectory.turns) {
    for (const name of Object.keys(SHADES)) {
      for (const value of (shaded && shaded[name]) || []) largest[name] = Math.max(largest[name] || 0, Math.abs(value));
    }
  }
  return largest;
}

function tokensBlock(turn, largest) {
  const names = Object.keys(SHADES).filter((name) => turn.shaded[name]);
  const block = element("pre", { class: "code wrap tokens" });
  const paint = (name) => block.replaceChildren(...turn.shaded.texts.map((text, place) => tokenSpan(turn.shaded, place, text, name, names, largest)));
  const select = element("select", { class: "shade", on: { change: (event) => { chosenShade = event.target.value; paint(chosenShade); } } },
    names.map((name) => element("option", { value: name, selected: name === chosenShade }, SHADES[name].label)));
  select.setAttribute("aria-label", "shade tokens by");
  paint(names.includes(chosenShade) ? chosenShade : "logprob");
  const left = turn.tokens - turn.shaded.texts.length;
  return element("div", {}, element("label", { class: "field" }, "shaded by ", select), block,
    left > 0 ? element("p", { class: "note" }, `${left} more tokens are not in this report.`) : null);
}

function tokenSpan(shaded, place, text, name, names, largest) {
  const value = shaded[name][place];
  const node = element("span", { class: "token", title: tokenTitle(shaded, place, names) }, text);
  if (value === null || value === undefined) return node;
  const strength = shadeStrength(name, value, largest);
  const colour = SHADES[name].signed ? (strength < 0 ? "--shade-minus" : "--shade-plus") : "--shade-unlikely";
  node.style.backgroundColor = `color-mix(in srgb, var(${colour}) ${Math.round(Math.abs(strength) * 75)}%, transparent)`;
  return node;
}

function tokenTitle(shaded, place, names) {
  const parts = names.map((name) => `${name} ${number(shaded[name][place], SHADES[name].digits)}`);
  if (shaded.logprob[place] !== null) parts.push(`probability ${number(Math.exp(shaded.logprob[place]))}`);
  return parts.join("\n");
}
