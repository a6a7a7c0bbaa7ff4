// The endpoints: a table that draws only the rows in sight, so that thousands of them cost what a screenful does.

import { $, UNKNOWN, make, mark, percent, put, seconds, state, whole } from "./words.js";

const ROW_PIXELS = 30;
const HEAD_PIXELS = 30;

const COLUMNS = [
  { key: "name", label: "Endpoint" },
  { key: "in_flight", label: "In flight", title: "Requests that this picker sent there and that are not over", text: whole },
  { key: "running", label: "Running", title: "Requests that the engine reports as running", text: whole, scale: "most" },
  { key: "waiting", label: "Waiting", title: "Requests that the engine reports as waiting", text: whole },
  { key: "backlog_seconds", label: "Backlog", title: "Seconds of prefill that are to be done before a new request's", text: seconds, scale: "most", floor: 1 },
  { key: "kv", label: "KV cache", title: "Share of the KV cache in use", text: percent, scale: 1, high: 0.95 },
  { key: "hit", label: "Hit rate", title: "Share of prompt tokens found in its cache lately; the mark is what was expected", text: percent, scale: 1 },
  { key: "slowness", label: "Slowness", title: "How many times as long as in the rest of the pool everything takes there", text: (value) => (value === null ? UNKNOWN : `${value.toFixed(value < 9.95 ? 2 : 0)}×`), high: 1.5 },
  { key: "age_seconds", label: "Age", title: "How long ago its engine's metrics were read", text: (value) => (value === null ? "never" : seconds(value)) },
];
const order = { key: "name", descending: false };
const filter = { text: "", which: "all" };
const rows = [];
let view = [];

for (const column of COLUMNS) {
  const button = make("button", { type: "button", title: column.title }, column.label);
  button.onclick = () => {
    if (order.key === column.key) order.descending = !order.descending;
    else { order.key = column.key; order.descending = column.key !== "name"; }
    showOrder();
    showEndpoints();
  };
  $("endpoints-head").append(make("div", { role: "columnheader", "data-column": column.key }, button));
}

function showOrder() {
  for (const head of $("endpoints-head").children) {
    if (head.dataset.column === order.key) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}
showOrder();

$("endpoints-filter").oninput = (event) => { filter.text = event.target.value.trim().toLowerCase(); showEndpoints(); };
$("endpoints-which").onchange = (event) => { filter.which = event.target.value; showEndpoints(); };
$("endpoints").onscroll = () => requestAnimationFrame(showRows);
new ResizeObserver(() => showRows()).observe($("endpoints"));

// One stop for the Tab key; the arrows go from row to row.
$("endpoints").onkeydown = (event) => {
  const focused = rows.findIndex((row) => row.name === document.activeElement);
  if (event.target !== $("endpoints") && focused < 0) return;
  const first = Math.ceil($("endpoints").scrollTop / ROW_PIXELS);
  const place = focused < 0 ? first - 1 : rows[focused].place;
  const page = Math.floor(($("endpoints").clientHeight - HEAD_PIXELS) / ROW_PIXELS) - 1;
  const next = { ArrowDown: place + 1, ArrowUp: place - 1, PageDown: place + page, PageUp: place - page, Home: 0, End: view.length - 1 }[event.key];
  if (next === undefined || !view.length) return;
  event.preventDefault();
  focusRow(Math.min(view.length - 1, Math.max(0, next)));
};

function focusRow(place) {
  const table = $("endpoints");
  const top = place * ROW_PIXELS, room = table.clientHeight - HEAD_PIXELS;
  if (top < table.scrollTop) table.scrollTop = top;
  else if (top + ROW_PIXELS > table.scrollTop + room) table.scrollTop = top + ROW_PIXELS - room;
  showRows();
  rows.find((row) => row.place === place && !row.element.hidden)?.name.focus({ preventScroll: true });
}

function valueOf(key, at) {
  const { columns } = state;
  if (key === "hit") return columns.hit_observed[at] ?? columns.hit_expected[at];
  return columns[key][at];
}

function stale(at) {
  const age = state.columns.age_seconds[at];
  return age === null || age > state.config.stale_seconds;
}

function wanted(at) {
  const { columns } = state;
  if (filter.text && !state.searchable[at].includes(filter.text)) return false;
  switch (filter.which) {
    case "aside": return columns.ejected[at] === 1 || columns.closed[at] === 1;
    case "stale": return stale(at);
    case "busy": return columns.backlog_seconds[at] > 0;
    default: return true;
  }
}

export function showEndpoints() {
  if (!state.columns) return;
  const { members, columns, byName } = state;
  view = [];
  for (let at = 0; at < members.length; at += 1) if (wanted(at)) view.push(at);
  const sign = order.descending ? -1 : 1;
  if (order.key === "name") view.sort((a, b) => sign * (byName[a] - byName[b]));
  else {
    const values = members.map((_, at) => valueOf(order.key, at));
    view.sort((a, b) => {
      const x = values[a], y = values[b];
      if (x === null || y === null) return (x === null) - (y === null) || byName[a] - byName[b];
      return sign * (x - y) || byName[a] - byName[b];
    });
  }
  for (const column of COLUMNS) if (column.scale === "most") column.most = columns[column.key].reduce((most, each) => Math.max(most, each ?? 0), column.floor ?? 1);
  const all = members.length;
  put($("endpoints-count"), view.length === all ? whole(all) : `${whole(view.length)} of ${whole(all)}`);
  $("endpoints-body").style.height = `${view.length * ROW_PIXELS}px`;
  $("endpoints").setAttribute("aria-rowcount", String(view.length + 1));
  const empty = view.length === 0;
  $("endpoints-empty").hidden = !empty;
  $("endpoints").hidden = empty && all === 0;
  if (empty) put($("endpoints-empty"), all ? "No endpoint matches." : "No endpoint yet: the source lists none that is ready.");
  showRows();
}

function makeRow() {
  const name = make("button", { type: "button", class: "name", tabindex: "-1" });
  const address = make("span", { class: "address" });
  const badge = make("span", { class: "badge", hidden: true });
  const cells = COLUMNS.map((column) => {
    const cell = make("div", { role: "cell", class: "cell", "data-column": column.key });
    if (column.key === "name") { cell.append(name, address, badge); return { cell }; }
    const text = document.createTextNode("");
    cell.append(text);
    if (!column.scale) return { cell, text };
    const bar = make("i"), tick = make("b", { hidden: true });
    cell.append(make("span", { class: "meter", "aria-hidden": "true" }, bar, tick));
    return { cell, text, bar, tick };
  });
  const element = make("div", { role: "row", class: "row" }, ...cells.map((each) => each.cell));
  const row = { element, name, address, badge, cells, place: -1 };
  name.onclick = () => { const field = $("decisions-filter"); field.value = name.textContent; field.dispatchEvent(new Event("input")); field.focus(); };
  $("endpoints-body").append(element);
  return row;
}

function showRows() {
  const body = $("endpoints");
  if (!state.columns) return;
  const first = Math.max(0, Math.floor(body.scrollTop / ROW_PIXELS) - 4);
  const count = Math.min(view.length - first, Math.ceil(body.clientHeight / ROW_PIXELS) + 9);
  while (rows.length < count) rows.push(makeRow());
  rows.forEach((row, number) => {
    const used = number < count;
    if (row.element.hidden === used) row.element.hidden = !used;
    if (used) fillRow(row, first + number, view[first + number]);
  });
}

function fillRow(row, place, at) {
  const { columns, members } = state;
  row.place = place;
  const top = `${place * ROW_PIXELS}px`;
  if (row.element.style.top !== top) { row.element.style.top = top; row.element.setAttribute("aria-rowindex", String(place + 2)); }
  const [name, address] = members[at];
  if (row.name.textContent !== name) { row.name.textContent = name; row.name.title = `${name}\nShow the decisions that went there`; }
  put(row.address, name === address ? "" : address);
  const words = columns.ejected[at] ? "ejected" : columns.closed[at] ? "closed" : stale(at) ? (columns.age_seconds[at] === null ? "never read" : "stale") : "";
  if (row.badge.hidden === Boolean(words)) row.badge.hidden = !words;
  put(row.badge, words);
  mark(row.badge, "bad", words === "ejected" || words === "closed");
  COLUMNS.forEach((column, number) => {
    if (!number) return;
    const { cell, text, bar, tick } = row.cells[number];
    const value = valueOf(column.key, at);
    const written = column.text(value);
    if (text.nodeValue !== written) text.nodeValue = written;
    mark(cell, "unknown", value === null);
    mark(cell, "high", column.high !== undefined && value !== null && value >= column.high);
    if (!bar) return;
    const most = column.scale === "most" ? column.most : column.scale;
    const part = `scaleX(${Math.min(1, (value ?? 0) / most).toFixed(3)})`;
    if (bar.style.transform !== part) bar.style.transform = part;
    if (column.key === "hit") {
      const expected = columns.hit_expected[at];
      tick.hidden = expected === null;
      if (expected !== null) tick.style.left = `${(Math.min(1, expected) * 98).toFixed(1)}%`;
    }
  });
}
