// Curves: figures come ready from the run's data; the theme, the stages behind them and laziness are added here.

let library = null;
const drawn = new Map(); // plot element -> function that draws it again

function loadLibrary() {
  library ||= (async () => {
    const script = document.createElement("script");
    script.textContent = await unpackText("library");
    document.head.append(script);
    if (!window.Plotly) throw new Error("the plotting library did not start");
    return window.Plotly;
  })();
  return library;
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    drawn.get(entry.target)().catch(showTrouble);
  }
}, { rootMargin: "400px" });

function drawWhenNear(plot, draw) {
  drawn.set(plot, draw);
  watcher.unobserve(plot);
  watcher.observe(plot);
}

function redrawCharts() {
  for (const [plot, draw] of drawn) if (plot.classList.contains("js-plotly-plot")) draw().catch(showTrouble);
}

async function plotFigure(plot, figure, axis) {
  const Plotly = await loadLibrary();
  const traces = axis && axis.steps.length ? [stepNames(axis), ...figure.data] : figure.data;
  const layout = themedLayout(figure.layout, plot.clientWidth);
  if (axis && axis.steps.length) {
    Object.assign(layout, stageBands(axis, plot.clientWidth));
    layout.xaxis.range = stepRange(axis);
  }
  await Plotly.react(plot, traces, layout, { responsive: true, displaylogo: false, displayModeBar: false });
  if (!plot.dataset.drawn) plot.on("plotly_click", openPoint);
  plot.dataset.drawn = "yes";
}

// Points that stand for a trajectory name it.
function openPoint(event) {
  const name = event.points[0] && event.points[0].customdata;
  if (name) location.hash = `t=${encodeURIComponent(name)}`;
}

function themedLayout(layout, width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"),
    automargin: true,
    spikethickness: 1, spikedash: "solid", spikecolor: colour("--quiet") };
  return {
    ...layout,
    height: 250,
    margin: { l: 44, r: 10, t: 20, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 11, color: colour("--text") },
    hovermode: layout.hovermode || "x unified",
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    legend: { orientation: "h", y: -0.16, yanchor: "top", x: 0, traceorder: "normal", font: { size: 10 } },
    dragmode: width < 500 ? false : "zoom",
    xaxis: { ...axis, zeroline: false, unifiedhovertitle: { text: " " }, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
    yaxis2: { overlaying: "y", visible: false, range: [0, 1], fixedrange: true },
  };
}

// All steps and a little room, so that what lies at the ends is whole.
function stepRange(axis) {
  const [first, last] = [axis.steps[0], axis.until || axis.steps[axis.steps.length - 1]];
  const room = Math.max(0.6, (last - first) * 0.015);
  return [first - room, last + room];
}

// An unseen trace whose hover text says which update of which stage a step was.
function stepNames(axis) {
  return { type: "scatter", mode: "markers", marker: { opacity: 0 }, x: axis.steps, y: axis.steps.map(() => 0.5),
    yaxis: "y2", text: axis.labels, hovertemplate: "<b>%{text}</b><extra></extra>", showlegend: false };
}

function stageBands(axis, width) {
  const [start, end] = stepRange(axis);
  const shapes = [];
  const annotations = [];
  for (const band of axis.bands) {
    const [x0, x1] = [band.first - 0.5, band.last + 0.5];
    shapes.push({ type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, layer: "below",
      fillcolor: band.color, opacity: 0.09, line: { width: 0 } });
    const text = fitted(band.stage, ((x1 - x0) / (end - start)) * (width - 54));
    if (text) {
      annotations.push({ text, xref: "x", yref: "paper", x: (x0 + x1) / 2, y: 1, yanchor: "bottom", showarrow: false,
        opacity: 0.75, font: { size: 10 } });
    }
  }
  return { shapes, annotations };
}

// A name cut to so many pixels; nothing where even a few letters have no room (the hover text has the whole).
function fitted(name, pixels) {
  const letters = Math.floor(pixels / 6.2);
  if (letters >= name.length) return name;
  return letters < 4 ? "" : `${name.slice(0, letters - 1)}\u2026`;
}

function chartCard(chart, axis) {
  const plot = element("div", { class: "plot" });
  drawWhenNear(plot, () => plotFigure(plot, chart.figure, chart.by_step ? axis : null));
  return element("article", { class: "chart" }, element("h3", {}, chart.title), plot,
    element("p", { class: "note" }, chart.note));
}

// Fills a grid; what was drawn in it before is forgotten.
function showCharts(id, charts, axis) {
  for (const plot of [...drawn.keys()]) if (byId(id).contains(plot)) { watcher.unobserve(plot); drawn.delete(plot); }
  byId(id).replaceChildren(...charts.map((chart) => chartCard(chart, axis)));
  if (!charts.length) byId(id).append(element("p", { class: "note" }, "No numbers yet."));
}

// One metric of the chosen run, or of all runs over each other.
function showMetric(run, runs, name) {
  const traces = runs.map((other, place) => ({ type: "scatter", mode: "lines+markers", marker: { size: 4 },
    line: { width: 1.6, color: other.axis.colors[place % other.axis.colors.length] },
    name: other.name.replaceAll("&", "&amp;").replaceAll("<", "&lt;"), ...brokenLine(other, name) }));
  const figure = { data: traces, layout: { showlegend: runs.length > 1, yaxis: {} } };
  const until = Math.max(...runs.flatMap((other) => other.axis.steps.slice(-1)));
  drawWhenNear(byId("metric-plot"), () => plotFigure(byId("metric-plot"), figure, { ...run.axis, until }));
}

// Interrupted between stages.
function brokenLine(run, name) {
  const values = run.metrics[name] || [];
  const lasts = new Set(run.axis.bands.map((band) => band.last));
  const x = run.axis.steps.flatMap((step) => (lasts.has(step) ? [step, null] : [step]));
  const y = run.axis.steps.flatMap((step, place) => (lasts.has(step) ? [values[place], null] : [values[place]]));
  return { x, y };
}
