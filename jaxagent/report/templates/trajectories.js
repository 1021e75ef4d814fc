// The list of trajectories: filters over the index, text search over the chunks, rows a page at a time.

const ROWS_A_PAGE = 100;
const CHUNKS_KEPT = 12;

const FILTERS = [
  { field: "stage", label: "stage" },
  { field: "task", label: "task" },
  { field: "outcome", label: "outcome" },
  { field: "reward", label: "reward" },
  { field: "stop", label: "stop reason" },
];

class Chunks {
  constructor(run) { this.run = run; this.kept = new Map(); }

  // Texts that many trajectories have in common.
  shared() { return (this.sharedTexts ||= unpackJson(`run-${this.run}-shared`)); }

  async get(place) {
    const known = this.kept.get(place);
    this.kept.delete(place);
    const chunk = known || unpackJson(`run-${this.run}-chunk-${place}`);
    this.kept.set(place, chunk);
    if (this.kept.size > CHUNKS_KEPT) this.kept.delete(this.kept.keys().next().value);
    return chunk;
  }
}

function matchesFilters(row, chosen) {
  return FILTERS.every(({ field }) => !(field in chosen) || String(row[field]) === chosen[field]);
}

function searchText(trajectory, tasks) {
  const code = Object.hasOwn(tasks, trajectory.task) ? tasks[trajectory.task] : "";
  const parts = [trajectory.id, trajectory.task, code, trajectory.judgement.message];
  for (const turn of trajectory.turns) {
    parts.push(turn.text, ...turn.observations);
    if (turn.judgement) parts.push(turn.judgement.message);
  }
  return parts.join("\n").toLowerCase();
}

// Rows that hold the text (the task's code counts), chunk by chunk; gives up when `isStale` says that something else is asked for by now.
async function searchRows(rows, text, chunks, isStale, onProgress) {
  const { tasks } = await chunks.shared();
  const wanted = text.toLowerCase();
  const places = [...new Set(rows.map((row) => row.chunk))].filter((place) => place !== null);
  const found = new Set();
  for (const [done, place] of places.entries()) {
    onProgress(`Searching, ${done} of ${places.length} parts`);
    const chunk = await chunks.get(place);
    if (isStale()) return null;
    for (const row of rows) if (row.chunk === place && searchText(chunk[row.place], tasks).includes(wanted)) found.add(row);
  }
  return rows.filter((row) => found.has(row));
}

class TrajectoryList {
  constructor(run, number, open) {
    this.index = run.index;
    this.chunks = new Chunks(number);
    this.open = open;
    this.chosen = {};
    this.text = "";
    this.request = 0;
    this.current = null;
    this.showSelects();
    byId("search").value = "";
    byId("search").oninput = (event) => { this.text = event.target.value.trim(); this.later(); };
    byId("more").onclick = () => this.showMore();
    this.update();
  }

  // Ends a search that is under way: another run is shown from now on.
  close() {
    clearTimeout(this.timer);
    this.request++;
  }

  showSelects() {
    byId("selects").replaceChildren(...FILTERS.map(({ field, label }) => {
      const values = [...new Set(this.index.map((row) => String(row[field])))];
      if (field === "stage") values.reverse(); // the index is newest first, stages are named in the order in which they ran
      else values.sort();
      const options = [element("option", { value: "" }, `any ${label}`),
        ...values.map((value) => element("option", { value }, field === "reward" && value === "null" ? "not timed" : words(value)))];
      const select = element("select", { name: field, title: label, on: { change: (event) => {
        if (event.target.selectedIndex) this.chosen[field] = event.target.value;
        else delete this.chosen[field];
        this.update();
      } } }, options);
      select.setAttribute("aria-label", label);
      return select;
    }));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), 200);
  }

  async update() {
    const request = ++this.request;
    const isStale = () => request !== this.request;
    let rows = this.index.filter((row) => matchesFilters(row, this.chosen));
    try {
      if (this.text) rows = await searchRows(rows, this.text, this.chunks, isStale, (line) => { byId("found").textContent = line; });
    } catch (error) { showTrouble(error); return; }
    if (isStale()) return;
    this.rows = rows;
    this.numShown = 0;
    byId("list").replaceChildren();
    byId("found").textContent = `${rows.length} of ${this.index.length}`;
    this.showMore();
  }

  showMore() {
    const rows = this.rows.slice(this.numShown, this.numShown + ROWS_A_PAGE);
    byId("list").append(...rows.map((row) => this.item(row)));
    this.numShown += rows.length;
    byId("more").hidden = this.numShown >= this.rows.length;
  }

  item(row) {
    const button = element("button", { type: "button", class: "row", on: { click: () => this.open(row) } },
      element("span", { class: "row-head" }, element("span", { class: "row-id" }, row.id), outcomeBadge(row.outcome, row.reward)),
      element("span", { class: "note" }, `${row.task} \u00b7 ${row.turns} turn${row.turns === 1 ? "" : "s"} \u00b7 ` +
        `${words(row.stop)}${row.speedup === null ? "" : ` \u00b7 ${times(row.speedup)}`}`));
    button.dataset.id = row.id;
    if (row === this.current) button.setAttribute("aria-current", "true");
    return element("li", {}, button);
  }

  mark(row) {
    this.current = row;
    for (const button of byId("list").querySelectorAll("button.row")) {
      if (button.dataset.id === row.id) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }

  find(id) { return this.index.find((row) => row.id === id); }

  // The row before or after the current one among those that the filters leave.
  neighbour(step) {
    const place = this.rows.indexOf(this.current);
    return place < 0 ? this.rows[0] : this.rows[place + step];
  }
}

function outcomeBadge(outcome, reward) {
  const value = reward === null ? "" : ` ${number(reward)}`;
  return element("span", { class: `badge o-${outcome}` }, `${words(outcome)}${value}`);
}
