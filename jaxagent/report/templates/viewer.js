// One trajectory, turn by turn: what the policy was asked, what it wrote and called, what came back, how it was judged.

function showTrajectory(trajectory, row, shared) {
  const largest = largestOf(trajectory);
  const turns = trajectory.turns.map((turn, place) => turnBlock(trajectory, turn, place, largest));
  byId("detail").replaceChildren(
    detailHead(trajectory, row),
    judgementBlock(trajectory.judgement, "Judgement of the final files"),
    taskBlock(trajectory, shared),
    ...turns,
    finalFiles(trajectory),
  );
}

// Listed, but its text had no room in the file.
function showMissing(row) {
  byId("detail").replaceChildren(
    element("div", { class: "detail-head" },
      element("button", { type: "button", class: "back", on: { click: closeTrajectory } }, "\u2190 list"),
      element("h3", {}, row.id)),
    element("p", { class: "note" }, `${row.task} \u00b7 ${words(row.outcome)} \u00b7 ${words(row.stop)}`),
    element("p", { class: "note" }, "Its text is not in this report, which holds those of the newest trajectories; the run's store has it."));
}

function detailHead(trajectory, row) {
  const tokens = trajectory.turns.reduce((sum, turn) => sum + turn.tokens, 0);
  const versions = [...new Set(trajectory.turns.flatMap((turn) => turn.versions))].sort((a, b) => a - b);
  const facts = [
    ["task", trajectory.task], ["stage", trajectory.stage], ["trained in", row.update || (row.dropped ? "dropped" : "\u2013")],
    ["stop reason", words(trajectory.stop)], ["turns", trajectory.turns.length], ["sampled tokens", tokens],
    ["policy version", versions.map(versionName).join(", ") || "\u2013"], ["seconds", number(trajectory.seconds)],
    ["sample", trajectory.sample], ["seed", trajectory.seed],
  ];
  if (row.dropped) facts.push(["dropped", row.dropped]);
  return element("div", { class: "detail-head" },
    element("button", { type: "button", class: "back", on: { click: closeTrajectory } }, "\u2190 list"),
    element("h3", {}, trajectory.id),
    element("span", { class: "steps" },
      element("button", { type: "button", title: "previous in the list (k)", on: { click: () => stepTrajectory(-1) } }, "\u2191"),
      element("button", { type: "button", title: "next in the list (j)", on: { click: () => stepTrajectory(1) } }, "\u2193")),
    element("dl", { class: "facts" }, facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, String(value))))));
}

const versionName = (version) => (version < 0 ? "scripted" : String(version));

function taskBlock(trajectory, shared) {
  const code = Object.hasOwn(shared.tasks, trajectory.task) ? shared.tasks[trajectory.task] : undefined;
  const prompt = trajectory.prompt === null ? undefined : shared.prompts[trajectory.prompt];
  if (code === undefined && prompt === undefined) return element("p", { class: "note" }, "The task's code is not in this report.");
  const blocks = [];
  if (code !== undefined) blocks.push(foldout("Task: the code to replace", () => codeBlock(code, "python"), { open: true, className: "block" }));
  if (prompt !== undefined) {
    blocks.push(foldout("Prompt, whole", () => element("pre", { class: "code wrap" }, prompt), { open: code === undefined, className: "block" }));
  }
  return element("div", {}, blocks);
}

function turnBlock(trajectory, turn, place, largest) {
  const facts = [`${turn.tokens} tokens after ${turn.prompt_tokens}`];
  if (turn.versions.length) facts.push(`version ${turn.versions.map(versionName).join(", ")}`);
  if (turn.mean_logprob !== null && !turn.versions.every((version) => version < 0)) {
    facts.push(`mean log-prob ${number(turn.mean_logprob)}`);
  }
  if (turn.truncated) facts.push("cut off at the limit");
  const prose = proseOf(turn);
  const extra = turn.observations.slice(turn.calls.length);
  return element("section", { class: "turn" },
    element("h4", {}, `Turn ${place + 1}`, element("span", { class: "note" }, ` ${facts.join(" \u00b7 ")}`)),
    prose ? element("pre", { class: "prose" }, prose) : null,
    turn.calls.map((call, number) => callBlock(trajectory, call, turn.observations[number])),
    extra.map((text) => observationBlock(text)),
    turn.shaded ? foldout("Tokens as sampled", () => tokensBlock(turn, largest), { className: "raw shaded" }) : null,
    turn.calls.length && !turn.shaded ? foldout("Reply as sampled", () => element("pre", { class: "code wrap" }, turn.text), { className: "raw" }) : null,
    turn.judgement ? judgementBlock(turn.judgement, "Judgement in this turn") : null);
}

// The reply without the calls that are shown below it; a reply with a malformed call is shown as it is.
function proseOf(turn) {
  if (!turn.calls.length || turn.calls.some((call) => call.error !== null)) return turn.text.trim();
  const start = turn.text.indexOf("<tool_call>");
  return (start < 0 ? turn.text : turn.text.slice(0, start)).trim();
}

function callBlock(trajectory, call, observation) {
  const body = [];
  if (call.file !== null) body.push(fileBlock(trajectory.files[call.file]));
  for (const [name, value] of Object.entries(call.arguments)) {
    if (call.file !== null && ["old", "new", "edits", "replace_all"].includes(name)) continue;
    const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
    const language = name === "command" ? "shell" : languageOf(String(call.arguments.path || ""));
    body.push(element("div", { class: "argument" }, element("span", { class: "note" }, name), codeBlock(text, language)));
  }
  return element("div", { class: "call" },
    element("div", { class: "call-head" }, element("span", { class: "tool" }, call.name || "malformed call"),
      call.error === null ? null : element("span", { class: "error-text" }, call.error)),
    body, observation === undefined ? null : observationBlock(observation));
}

function observationBlock(text) {
  const failed = text.startsWith("error:");
  return element("div", { class: "observation" }, element("span", { class: "note" }, "observation"),
    element("pre", { class: failed ? "code wrap failed" : "code wrap" }, text || "(empty)"));
}

function judgementBlock(judgement, title) {
  const facts = [];
  if (judgement.candidate_ms !== null) facts.push(["candidate", `${number(judgement.candidate_ms)} ms`]);
  if (judgement.eager_ms !== null) facts.push(["torch eager", `${number(judgement.eager_ms)} ms`]);
  if (judgement.compile_ms !== null) facts.push(["torch.compile", `${number(judgement.compile_ms)} ms`]);
  if (judgement.candidate_ms && judgement.eager_ms !== null) facts.push(["over eager", times(judgement.eager_ms / judgement.candidate_ms)]);
  if (judgement.candidate_ms && judgement.compile_ms !== null) facts.push(["over compile", times(judgement.compile_ms / judgement.candidate_ms)]);
  const details = Object.keys(judgement.details || {}).length > 0;
  return element("div", { class: `judgement edge-${judgement.outcome}` },
    element("div", { class: "call-head" }, element("span", {}, title), outcomeBadge(judgement.outcome, judgement.reward)),
    element("pre", { class: "prose" }, judgement.message),
    facts.length ? element("dl", { class: "facts" }, facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value)))) : null,
    details ? foldout("Details", () => element("pre", { class: "code wrap" }, JSON.stringify(judgement.details, null, 1))) : null);
}

function finalFiles(trajectory) {
  const last = new Map();
  for (const file of trajectory.files) last.set(file.path, file);
  if (!last.size) return element("p", { class: "note" }, "No file was written with a tool.");
  return foldout("Files in the end, as tools wrote them", () => element("div", {}, [...last.values()].map((file) =>
    element("div", { class: "file" }, element("div", { class: "file-head" }, element("code", {}, file.path)),
      codeBlock(file.text, languageOf(file.path))))), { className: "block" });
}
