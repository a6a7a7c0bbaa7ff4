// The last 15 minutes as small charts, and the reasons of the last five.

import { $, REASONS, UNKNOWN, clockTime, draw, make, percent, put, rate, seconds, state } from "./words.js";

const per = (name) => (bucket) => bucket[name] / bucket.seconds;
const of = (name) => (bucket) => bucket[name];

const CHARTS = [
  { title: "Requests a second", traces: [{ words: "ended", tone: "accent", value: per("requests"), area: true }], text: rate },
  {
    title: "Hit rate", top: 1, text: percent,
    traces: [
      { words: "observed", tone: "accent", value: of("hit_observed") },
      { words: "expected", tone: "warn", value: of("hit_expected"), dashed: true },
    ],
  },
  {
    title: "Time to first token", text: seconds,
    traces: [
      { words: "p50", tone: "accent", value: of("ttft_p50_seconds") },
      { words: "p95", tone: "warn", value: of("ttft_p95_seconds") },
    ],
  },
  { title: "Pool saturation", atLeast: 1, text: percent, traces: [{ words: "1 is full", tone: "accent", value: of("saturation"), area: true }] },
  {
    title: "Refused, failed a second", text: rate,
    traces: [
      { words: "shed", tone: "warn", value: per("shed"), area: true },
      { words: "failed", tone: "bad", value: per("failed") },
    ],
  },
];

const WIDTH = 180;
const SPANS = [24, 60, 180];  // in buckets: a young picker's charts need not be empty

const HEIGHT = 52;
const charts = CHARTS.map(makeChart);
let crosshair = null;

function makeChart(spec) {
  const value = make("div", { class: "value" }, UNKNOWN);
  const scale = make("span", { class: "scale", "aria-hidden": "true" });
  const traces = spec.traces.map((trace) => ({
    ...trace,
    area: trace.area ? draw("path", { class: `area t-${trace.tone}` }) : null,
    line: draw("path", { class: `trace t-${trace.tone}${trace.dashed ? " dashed" : ""}` }),
    label: make("span", {}, make("i", { class: `t-${trace.tone}${trace.dashed ? " dashed" : ""}` }), ""),
  }));
  const cross = draw("line", { class: "cross", y1: 0, y2: HEIGHT, visibility: "hidden" });
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    draw("path", { class: "base", d: `M0 ${HEIGHT}H${WIDTH}` }),
    ...traces.flatMap((trace) => (trace.area ? [trace.area, trace.line] : [trace.line])), cross);
  const since = make("span", { class: "since", title: "What the chart shows" });
  const legend = make("div", { class: "legend" }, ...traces.map((trace) => trace.label));
  const plot = make("div", { class: "plot" }, scale, svg);
  $("charts").append(make("div", { class: "chart" }, make("h2", {}, spec.title, since), value, plot, legend));
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    crosshair = (event.clientX - box.left) / box.width;
    showHistory();
  });
  plot.addEventListener("pointerleave", () => { crosshair = null; showHistory(); });
  return { spec, value, scale, since, traces, cross, svg };
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= value * 1.02) ?? 10 * power;
}

function path(values, top, offset) {
  let line = "", open = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) { open = false; return; }
    const x = offset + at, y = HEIGHT - Math.min(1, value / top) * (HEIGHT - 2);
    line += `${open ? "L" : "M"}${x} ${y.toFixed(2)}`;
    const next = values[at + 1];
    if (!open && (next === null || next === undefined)) line += `l0.01 0`;  // a single value is a dot
    open = true;
  });
  return line;
}

function filled(values, top, offset) {
  let line = "", from = -1;
  for (let at = 0; at <= values.length; at += 1) {
    const known = at < values.length && values[at] !== null && values[at] !== undefined;
    if (known && from < 0) from = at;
    if (!known && from >= 0) {
      line += `M${offset + from} ${HEIGHT}`;
      for (let each = from; each < at; each += 1) line += `L${offset + each} ${(HEIGHT - Math.min(1, values[each] / top) * (HEIGHT - 2)).toFixed(2)}`;
      line += `L${offset + at - 1} ${HEIGHT}Z`;
      from = -1;
    }
  }
  return line;
}

export function showHistory() {
  const buckets = state.history;
  const span = SPANS.find((each) => each >= buckets.length) ?? WIDTH;
  const offset = span - buckets.length;
  const at = crosshair === null ? buckets.length - 1 : Math.min(buckets.length - 1, Math.round(crosshair * (span - 1)) - offset);
  const picked = buckets[at] ?? null;
  const minutes = (span * (state.hello?.bucket_seconds ?? 5)) / 60;
  for (const { spec, value, scale, since, traces, cross, svg } of charts) {
    svg.setAttribute("viewBox", `0 0 ${span - 1} ${HEIGHT}`);
    svg.firstChild.setAttribute("d", `M0 ${HEIGHT}H${span - 1}`);
    put(since, `${minutes} min`);
    const columns = traces.map((trace) => buckets.map(trace.value));
    const most = Math.max(0, ...columns.flat().filter((each) => each !== null && each !== undefined));
    const top = spec.top ?? Math.max(spec.atLeast ?? 0, nice(most));
    put(scale, most || spec.top ? spec.text(top) : "");
    traces.forEach((trace, number) => {
      const quiet = !spec.top && columns[number].every((each) => !each);  // a line along the bottom says nothing
      trace.line.setAttribute("d", quiet ? "" : path(columns[number], top, offset));
      if (trace.area) trace.area.setAttribute("d", quiet ? "" : filled(columns[number], top, offset));
      const now = picked ? spec.text(trace.value(picked)) : UNKNOWN;
      put(trace.label.lastChild, number || crosshair !== null || traces.length > 1 ? `${trace.words} ${traces.length > 1 ? now : ""}` : trace.words);
    });
    const first = picked ? spec.text(traces[0].value(picked)) : UNKNOWN;
    if (value.firstChild.nodeValue !== first) value.firstChild.nodeValue = first;
    const when = crosshair !== null && picked ? clockTime(picked.at) : "";
    if (value.childNodes.length < 2) value.append(make("small"));
    put(value.lastChild, when);
    cross.setAttribute("visibility", crosshair === null || !picked ? "hidden" : "visible");
    cross.setAttribute("x1", offset + at);
    cross.setAttribute("x2", offset + at);
    svg.setAttribute("aria-label", `${spec.title}, ${traces.map((trace) => `${trace.words} ${picked ? spec.text(trace.value(picked)) : "unknown"}`).join(", ")}`);
  }
  showMix();
}

function showMix() {
  const recent = state.history.slice(-60);
  const counts = {};
  for (const bucket of recent) for (const [reason, count] of Object.entries(bucket.reasons)) counts[reason] = (counts[reason] ?? 0) + count;
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const known = Object.keys(REASONS).filter((reason) => counts[reason]);
  const stack = make("div", { class: "stack", "aria-hidden": "true" });
  const legend = make("div", { class: "legend" });
  for (const reason of known) {
    const part = make("span", { class: `r-${reason}` });
    part.style.flexGrow = counts[reason];
    stack.append(part);
    legend.append(make("span", {}, make("i", { class: `r-${reason}` }), `${REASONS[reason]} ${percent(counts[reason] / total)}`));
  }
  $("mix").replaceChildren(...(total ? [stack, legend] : []));
}
