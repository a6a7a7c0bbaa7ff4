// What if the weights were others: sliders, and what the picker says of the decisions that it keeps.

import { ask } from "./asking.js";
import { openDecision } from "./decisions.js";
import { $, UNKNOWN, make, percent, put, seconds, shown, state, whole } from "./words.js";

const SLIDERS = [
  { key: "prefix", label: "prefix", least: 0.5, most: 10, step: 0.5, weight: true },
  { key: "queue", label: "queue", least: 0, most: 10, step: 0.5, weight: true },
  { key: "kv", label: "kv", least: 0, most: 10, step: 0.5, weight: true },
  { key: "eviction", label: "eviction", least: 0, most: 10, step: 0.5, weight: true },
  { key: "lora", label: "lora", least: 0, most: 10, step: 0.5, weight: true },
  { key: "gpu", label: "gpu", least: 0, most: 10, step: 0.5, weight: true },
  { key: "threshold", label: "threshold", least: 0, most: 1, step: 0.05 },
  { key: "affinity_break", label: "affinity_break", least: 0, most: 20, step: 0.5 },
];
const chosen = {};
let replaying = 0, replayTimer = 0;

const current = (slider) => (slider.weight ? state.config.weights[slider.key] : state.config[slider.key]);
const short = (value) => String(Number(value.toFixed(3)));

for (const slider of SLIDERS) {
  slider.input = make("input", { type: "range", id: `slider-${slider.key}`, min: slider.least, max: slider.most, step: "any" });
  slider.output = make("output", { for: `slider-${slider.key}` }, UNKNOWN);
  slider.box = make("div", { class: "slider" }, make("label", { for: `slider-${slider.key}` }, slider.label), slider.input, slider.output);
  slider.input.oninput = () => {
    const value = Number((Math.round(Number(slider.input.value) / slider.step) * slider.step).toFixed(4));
    const now = current(slider);
    if (Math.abs(value - now) < slider.step / 2) delete chosen[slider.key];
    else chosen[slider.key] = value;
    showSliders(slider);
    clearTimeout(replayTimer);
    replayTimer = setTimeout(replay, 250);
  };
  slider.input.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 }[event.key];
    if (!step) return;
    event.preventDefault();
    const value = (chosen[slider.key] ?? current(slider)) + step * slider.step;
    slider.input.value = String(Math.min(Number(slider.input.max), Math.max(slider.least, value)));
    slider.input.oninput();
  };
  $("sliders").append(slider.box);
}

export function showSliders(moving = null) {
  for (const slider of SLIDERS) {
    const now = current(slider), value = chosen[slider.key] ?? now;
    slider.input.max = String(Math.max(slider.most, now * 1.5));
    if (slider !== moving) slider.input.value = String(value);
    slider.input.setAttribute("aria-valuetext", short(value));
    put(slider.output, slider.key in chosen ? `${short(now)} → ${short(value)}` : short(value));
    slider.box.classList.toggle("changed", slider.key in chosen);
  }
  const weights = SLIDERS.filter((slider) => slider.weight && slider.key in chosen).map((slider) => `  ${slider.key}: ${short(chosen[slider.key])}`);
  const lines = weights.length ? ["weights:", ...weights] : [];
  if ("threshold" in chosen) lines.push(`threshold: ${short(chosen.threshold)}`);
  if ("affinity_break" in chosen) lines.push("routing:", `  affinity_break: ${short(chosen.affinity_break)}`);
  const yaml = lines.length ? lines.join("\n") : "{}";
  $("yaml").value = yaml;
  $("yaml").rows = Math.max(3, lines.length);
}

$("what-if-reset").onclick = () => {
  for (const key of Object.keys(chosen)) delete chosen[key];
  showSliders();
  replay();
};

$("copy").onclick = async () => {
  const field = $("yaml");
  try {
    await navigator.clipboard.writeText(`${field.value}\n`);
  } catch {
    field.select();
    document.execCommand("copy");
  }
  put($("copy"), "Copied");
  setTimeout(() => put($("copy"), "Copy the YAML"), 1600);
};

async function replay() {
  const number = (replaying += 1);
  const proposal = { weights: {} };
  for (const slider of SLIDERS) {
    if (!(slider.key in chosen)) continue;
    if (slider.weight) proposal.weights[slider.key] = chosen[slider.key];
    else proposal[slider.key] = chosen[slider.key];
  }
  try {
    const found = await ask("live/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(proposal) });
    if (number === replaying) showReplay(found);
  } catch (error) {
    if (number === replaying) put($("what-if-line"), `It cannot be told: ${error.message}.`);
  }
}

const signed = (value, text) => `${value > 0 ? "+" : "−"}${text(Math.abs(value))}`;
const relative = (before, after) => (before ? signed((after - before) / before, (change) => percent(change, 1)) : "new");
const points = (before, after) => signed(after - before, (change) => `${(100 * change).toFixed(1)} pts`);

/** Words, key, how it is written, how its change is, and whether more is better (1), worse (-1) or neither. */
const OUTCOMES = [
  ["Time to first token, mean", "ttft_seconds", seconds, relative, -1],
  ["Whole request, mean", "total_seconds", seconds, relative, -1],
  ["Prompt tokens held", "hit_share", (value) => percent(value, 1), points, 1],
  ["The busiest endpoint's share", "busiest_share", (value) => percent(value, 1), points, -1],
  ["Endpoints that were picked", "endpoints", whole, (before, after) => signed(after - before, whole), 0],
];

function showReplay(found) {
  const line = $("what-if-line");
  if (!found.decisions) { line.replaceChildren("No decision is kept that could be made again."); $("what-if-table").hidden = true; return; }
  const back = state.tick && found.oldest_at ? Math.max(1, state.tick.now - found.oldest_at) : null;
  line.replaceChildren("Of ", make("strong", {}, whole(found.decisions)), ` kept decisions${back ? ` (the last ${back < 90 ? `${back.toFixed(0)} s` : seconds(Math.max(120, back))})` : ""} `, make("strong", {}, `${whole(found.moved)} (${percent(found.moved / found.decisions)})`), " would go elsewhere",
    found.bound ? `; ${whole(found.bound)} more are bound to a session.` : ".");
  $("what-if-table").hidden = false;
  $("what-if-rows").replaceChildren(...OUTCOMES.map(([words, key, text, difference, good]) => {
    const before = found.before[key], after = found.after[key];
    const same = before === null || after === null || Math.abs(after - before) <= 0.0005 * Math.abs(before);
    const tone = same || !good ? "muted" : Math.sign(after - before) === good ? "better" : "worse";
    return make("tr", {}, make("th", { scope: "row" }, words), make("td", {}, text(before)), make("td", {}, text(after)),
      make("td", { class: tone }, same ? "same" : difference(before, after)));
  }));
  $("what-if-moved").hidden = !found.examples.length;
  $("what-if-examples").replaceChildren(...found.examples.map((each) => {
    const button = make("button", { type: "button" }, `${each.request_id ? shown(each.request_id) : `decision ${each.number}`}: ${shown(each.from)} → ${shown(each.to)}, ${seconds(each.seconds_before)} → ${seconds(each.seconds_after)}`);
    button.onclick = () => openDecision(each.number);
    return make("li", {}, button);
  }));
}
