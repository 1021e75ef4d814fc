// One version of a file: whole, or its difference from the version before (opcodes come from Python's difflib).

const CONTEXT_LINES = 3;

function fileBlock(file) {
  const language = languageOf(file.path);
  const changed = file.before !== null && file.opcodes.length > 0;
  const body = element("div", {});
  const show = (asDiff) => body.replaceChildren(asDiff ? diffBlock(file, language) : codeBlock(file.text, language));
  const head = element("div", { class: "file-head" }, element("code", {}, file.path), changeNote(file));
  if (changed) head.append(switcher(show));
  show(changed);
  return element("div", { class: "file" }, head, body);
}

function changeNote(file) {
  if (file.before === null) return element("span", { class: "note" }, "first version");
  let added = 0;
  let removed = 0;
  for (const [tag, i1, i2, j1, j2] of file.opcodes) {
    if (tag === "equal") continue;
    removed += i2 - i1;
    added += j2 - j1;
  }
  if (!added && !removed) return element("span", { class: "note" }, file.opcodes.length ? "unchanged" : "rewritten");
  return element("span", {}, element("span", { class: "plus" }, `+${added}`), " ",
    element("span", { class: "minus" }, `\u2212${removed}`));
}

function switcher(show) {
  const make = (label, asDiff) => element("button", { type: "button", class: asDiff ? "chosen" : "", on: { click: (event) => {
    for (const other of event.target.parentNode.children) other.classList.toggle("chosen", other === event.target);
    show(asDiff);
  } } }, label);
  return element("span", { class: "switch" }, make("diff", true), make("whole", false));
}

function diffBlock(file, language) {
  const before = coloured(file.before, language);
  const after = coloured(file.text, language);
  const block = element("pre", { class: "code diff" });
  file.opcodes.forEach(([tag, i1, i2, j1, j2], place) => {
    if (tag === "equal") block.append(...equalLines(after, j1, j2, place === 0, place === file.opcodes.length - 1));
    else {
      for (let i = i1; i < i2; i++) block.append(diffLine("removed", "\u2212", before[i]));
      for (let j = j1; j < j2; j++) block.append(diffLine("added", "+", after[j]));
    }
  });
  return block;
}

function diffLine(kind, sign, line) {
  return element("span", { class: `line ${kind}` }, element("span", { class: "sign" }, sign), pieces(line || []), "\n");
}

// Equal lines far from any change fold into one that brings them back.
function equalLines(lines, start, end, isFirst, isLast) {
  const all = lines.slice(start, end).map((line) => diffLine("", " ", line));
  const head = isFirst ? 0 : CONTEXT_LINES;
  const tail = isLast ? 0 : CONTEXT_LINES;
  if (all.length <= head + tail + 2) return all;
  const hidden = all.slice(head, all.length - tail);
  const fold = element("button", { type: "button", class: "fold", on: { click: () => fold.replaceWith(...hidden) } },
    `${hidden.length} equal lines`);
  return [...all.slice(0, head), fold, ...(tail ? all.slice(-tail) : [])];
}
