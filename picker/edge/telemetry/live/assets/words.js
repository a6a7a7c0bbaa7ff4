// Words, numbers and elements. Whatever others named (endpoints, models, requests) becomes text nodes only, never markup.

const SVG = "http://www.w3.org/2000/svg";
export const UNKNOWN = "–";

export const REASONS = {
  affinity: "holds the prefix", load: "cheapest", break: "prefix not worth the wait", explore: "exploration",
  sticky: "session lives there", headers: "no prompt to match",
};
export const SCORERS = {
  prefix: "prefill", queue: "waiting", kv: "decoding", lora: "adapter", eviction: "eviction", gpu: "busy GPU",
};

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(element, name, on) {
  if (element.classList.contains(name) !== on) element.classList.toggle(name, on);
}

// What would move a cursor, turn text around or show nothing is shown as its code.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;
export const shown = (text) => String(text).replace(UNSEEN, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);

const numbers = new Intl.NumberFormat("en-US");
export const whole = (value) => (value === null || value === undefined ? UNKNOWN : numbers.format(Math.round(value)));
export const percent = (value, digits = 0) => (value === null || value === undefined ? UNKNOWN : `${(100 * value).toFixed(digits)} %`);

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 0.1) return `${(value * 1000).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 10) return `${value.toFixed(2)} s`;
  if (size < 120) return `${value.toFixed(1)} s`;
  if (size < 7200) return `${(value / 60).toFixed(0)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at && value < 10 ? value.toFixed(1) : value.toFixed(0)} ${units[at]}`;
}

export const clockTime = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

export function rate(value) {
  if (value === null) return UNKNOWN;
  return value >= 100 ? whole(value) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

// What is known of the picker; who follows the stream (page.js) writes it, and others read it.
export const state = {
  hello: null, config: null, generation: -1, members: [], searchable: [], columns: null, tick: null, history: [],
  decisions: [], unseenDecisions: 0, paused: false,
};
