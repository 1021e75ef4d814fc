// What happens on the page as a whole: theme, choice of run, and which trajectory the address names (#t=ID).

const runs = [];
let list = null;

const store = {
  // A browser may refuse storage to files: then the choice lasts as long as the page.
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* see above */ } },
};

function setUpTheme() {
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (systemIsDark.matches ? "dark" : "light")) === "dark";
  const label = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };
  const known = store.get("jaxagent-theme");
  if (known === "light" || known === "dark") document.documentElement.dataset.theme = known;
  byId("theme").onclick = () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    store.set("jaxagent-theme", document.documentElement.dataset.theme);
    label();
    redrawCharts();
  };
  systemIsDark.addEventListener("change", () => { label(); redrawCharts(); });
  label();
}

async function loadRun(place) {
  runs[place] ||= await unpackJson(`run-${place}-data`);
  return runs[place];
}

const countRuns = () => document.querySelectorAll("#config .run").length;

async function chooseRun(place) {
  const run = await loadRun(place);
  for (const part of document.querySelectorAll(".run")) part.hidden = part.dataset.run !== String(place);
  showCharts("heldout-charts", run.heldout, null);
  byId("heldout-pictures").hidden = !run.heldout.length;
  showCharts("charts", run.charts, run.axis);
  byId("training-pictures").hidden = run.is_evaluation;
  await setUpMetric(run);
  if (list) list.close();
  list = new TrajectoryList(run, place, (row) => { location.hash = `t=${encodeURIComponent(row.id)}`; });
  byId("detail").replaceChildren(element("p", { class: "note" }, "Choose a trajectory."));
  byId("viewer").classList.remove("opened");
}

async function setUpMetric(run) {
  const all = await Promise.all([...Array(countRuns()).keys()].map(loadRun));
  const select = byId("metric");
  const names = Object.keys(run.metrics);
  const before = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name }, words(name))));
  select.value = [before, "mean_reward", names[0]].find((name) => names.includes(name)) || "";
  select.onchange = () => showMetric(run, all, select.value);
  if (names.length) showMetric(run, all, select.value);
}

async function openTrajectory(encodedId) {
  const row = list.find(decodeURIComponent(encodedId));
  if (!row) return;
  list.mark(row);
  if (row.chunk === null) showMissing(row);
  else {
    const [chunk, shared] = await Promise.all([list.chunks.get(row.chunk), list.chunks.shared()]);
    if (list.current !== row) return;
    showTrajectory(chunk[row.place], row, shared);
  }
  byId("viewer").classList.add("opened");
  const top = byId("detail").getBoundingClientRect().top;
  if (top < 0 || top > innerHeight / 2 || matchMedia("(max-width: 800px)").matches) byId("detail").scrollIntoView();
}

function closeTrajectory() {
  byId("viewer").classList.remove("opened");
  location.hash = "trajectories";
}

function stepTrajectory(step) {
  const row = list && list.neighbour(step);
  if (row) list.open(row);
}

function followAddress() {
  const match = location.hash.match(/^#t=(.+)$/);
  if (match && list) openTrajectory(match[1]).catch(showTrouble);
}

async function start() {
  setUpTheme();
  const picker = byId("run-picker");
  if (picker) picker.onchange = () => chooseRun(Number(picker.value)).catch(showTrouble);
  byId("filters").onsubmit = (event) => event.preventDefault();
  window.addEventListener("hashchange", followAddress);
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") stepTrajectory(1);
    if (event.key === "k") stepTrajectory(-1);
  });
  if (byId("comparison-data")) {
    const { charts, axis } = await unpackJson("comparison-data");
    showCharts("comparison-charts", charts, axis);
  }
  await chooseRun(0);
  followAddress();
  document.documentElement.dataset.ready = "yes";
}

start().catch(showTrouble);
