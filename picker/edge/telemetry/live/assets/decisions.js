// The last decisions; one of them opened, with every candidate; and where something lives.

import { ask } from "./asking.js";
import { $, REASONS, SCORERS, UNKNOWN, clockTime, make, percent, put, seconds, shown, state, whole } from "./words.js";

const DECISIONS_SHOWN = 80;

const decisionsFilter = { text: "" };
let newestShown = 0;

$("decisions-filter").oninput = (event) => { decisionsFilter.text = event.target.value.trim().toLowerCase(); showDecisions(true); };
$("decisions-fresh").onclick = () => { showDecisions(true); $("decisions").scrollTop = 0; };

function decisionMatches(decision) {
  if (!decisionsFilter.text) return true;
  return [decision.endpoint, decision.model, decision.request_id, decision.reason].some((each) => each && shown(each).toLowerCase().includes(decisionsFilter.text));
}

// One stop for the Tab key; the arrows go from one to the next.
$("decisions").onkeydown = (event) => {
  const items = [...$("decisions").children];
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8, Home: 0, End: items.length - 1 }[event.key];
  if (next === undefined || !items.length) return;
  event.preventDefault();
  items[Math.min(items.length - 1, Math.max(0, next))].firstElementChild.focus();
};

let touchedAt = 0;
$("decisions").addEventListener("pointerdown", () => { touchedAt = Date.now(); });

/** What is being pointed at or read must not move away: new ones wait until asked for. */
function decisionsHeld() {
  const list = $("decisions");
  return state.paused || list.matches(":hover") || list.contains(document.activeElement) || list.scrollTop > 4 || Date.now() - touchedAt < 1000;
}

export function showDecisions(now) {
  const list = $("decisions");
  const found = state.decisions.filter(decisionMatches);
  const fresh = found.filter((each) => each.number > newestShown).length;
  if (!now && decisionsHeld() && list.childElementCount) {
    $("decisions-fresh").hidden = fresh === 0;
    put($("decisions-fresh"), `${whole(fresh)} new`);
    return;
  }
  $("decisions-fresh").hidden = true;
  newestShown = state.decisions[0]?.number ?? 0;
  const instance = state.hello.instance;
  const wanted = new Map(found.slice(0, DECISIONS_SHOWN).map((each) => [`${instance}/${each.number}`, each]));
  for (const item of [...list.children]) if (!wanted.has(item.dataset.number)) item.remove();
  let next = list.firstElementChild;  // what stays is not touched: it may have the focus
  for (const [number, each] of wanted) {
    if (next?.dataset.number === number) next = next.nextElementSibling;
    else list.insertBefore(decisionItem(each, number), next);
  }
  $("decisions-empty").hidden = found.length > 0;
  put($("decisions-empty"), state.decisions.length ? "No decision matches." : "No decision yet. They appear here as requests arrive.");
}

setInterval(() => { if (!$("decisions-fresh").hidden && !decisionsHeld()) showDecisions(true); }, 1000);

function decisionItem(decision, number) {
  const about = [decision.model ? shown(decision.model) : "no model", decision.request_id ? shown(decision.request_id) : "no id"].join(" · ");
  const button = make("button", { type: "button", tabindex: "-1", class: `r-${decision.reason in REASONS ? decision.reason : "headers"}` },
    make("span", { class: "when" }, clockTime(decision.at)),
    make("span", { class: "to" }, shown(decision.endpoint)),
    make("span", { class: "ttft" }, decision.predicted_ttft_seconds === null ? "" : `≈ ${seconds(decision.predicted_ttft_seconds)}`),
    make("span", { class: "why" }, decision.reason),
    make("span", { class: "about", title: about }, about),
    make("span", { class: "held" }, decision.matched_share === null ? "" : `${whole(decision.prompt_tokens)} tok, ${percent(decision.matched_share)} held`));
  button.onclick = () => openDecision(decision.number);
  return make("li", { "data-number": number }, button);
}

// One decision ----------------------------------------------------------------------------------------------------

const ROWS_FIRST = 40;
let opened = 0;

export async function openDecision(number) {
  opened = number;
  const dialog = $("decision"), body = $("decision-body");
  put($("decision-title"), "Decision");
  body.replaceChildren(make("p", { class: "muted" }, "Asking the picker…"));
  if (!dialog.open) dialog.showModal();
  try {
    const [found] = (await ask(`debug/decisions?number=${number}&endpoints=all`)).decisions;
    if (opened !== number) return;
    if (found) showDecision(found);
    else body.replaceChildren(make("p", {}, "It is not kept any more: newer decisions took its place."));
  } catch (error) {
    if (opened === number) body.replaceChildren(make("p", {}, `It cannot be shown: ${error.message}.`));
  }
}

$("decision-close").onclick = () => $("decision").close();
$("decision").addEventListener("click", (event) => { if (event.target === $("decision")) $("decision").close(); });
$("decision").addEventListener("close", () => { opened = 0; });

function sentence(found) {
  const pick = found.endpoints.find((each) => each.picked) ?? found.endpoints[0];
  const other = found.endpoints.filter((each) => !each.picked).sort((a, b) => a.cost_seconds - b.cost_seconds)[0];
  const parts = [make("strong", {}, make("bdi", {}, shown(pick.name))), ` was picked: ${found.summary}.`];
  if (found.prompt_blocks) parts.push(` It holds ${percent(pick.matched_share)} of the ${whole(found.prompt_tokens)} prompt tokens, at a cost of ${seconds(pick.cost_seconds)}`);
  else parts.push(` Its cost was ${seconds(pick.cost_seconds)}`);
  if (other) parts.push(`; the cheapest other, `, make("bdi", {}, shown(other.name)), `, was at ${seconds(other.cost_seconds)}.`);
  else parts.push(`; no other endpoint stood for the choice.`);
  return make("p", { class: "sentence" }, ...parts);
}

function fact(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function showDecision(found) {
  put($("decision-title"), found.request_id ? `Request ${shown(found.request_id)}` : `Decision ${found.number}`);
  const names = Object.keys(found.weights).filter((name) => found.endpoints.some((each) => each.seconds[name] * found.weights[name] > 0));
  const most = Math.max(1e-9, ...found.endpoints.map((each) => each.cost_seconds).filter(Number.isFinite));
  const table = make("table", { class: "costs" }, make("caption", { class: "visually-hidden" }, "The cost of every candidate, by what it is made of"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Endpoint"), make("th", { scope: "col", class: "bars" }, "Cost, weighted seconds"),
      make("th", { scope: "col", class: "num" }, "Cost"), make("th", { scope: "col", class: "num" }, "Holds"),
      ...names.map((name) => make("th", { scope: "col", class: "num scorer" }, SCORERS[name] ?? shown(name))))));
  const body = make("tbody");
  table.append(body);
  const add = (rowsToAdd) => body.append(...rowsToAdd.map((each) => costRow(each, names, found.weights, most)));
  add(found.endpoints.slice(0, ROWS_FIRST));
  const rest = found.endpoints.slice(ROWS_FIRST);
  const more = make("button", { type: "button" }, `Show the other ${whole(rest.length)}`);
  more.onclick = () => { const last = body.lastElementChild; more.remove(); add(rest); last.scrollIntoView({ block: "nearest" }); };
  const holders = make("div", { class: "found-prefix" });
  const where = make("button", { type: "button" }, "Where is its prefix now?");
  where.onclick = async () => {
    try { holders.replaceChildren(...holderNodes(await ask(`live/where?number=${found.number}`))); where.hidden = true; }
    catch (error) { holders.replaceChildren(make("p", {}, `It cannot be told: ${error.message}.`)); }
  };
  $("decision-body").replaceChildren(
    sentence(found),
    make("dl", { class: "details" }, fact("Model", found.model ? shown(found.model) : UNKNOWN), fact("Reason", found.reason),
      fact("Prompt", found.prompt_tokens ? `${whole(found.prompt_tokens)} tokens, ${whole(found.prompt_blocks)} blocks` : "not read"),
      fact("Time to first token", `${seconds(found.predicted_ttft_seconds)} expected, ${found.ttft_seconds === null ? (found.outcome ? "not seen" : "not yet") : seconds(found.ttft_seconds)}`),
      fact("Outcome", found.outcome ?? "in flight"), fact("Priority", String(found.priority)),
      ...(found.tenant ? [fact("Tenant", shown(found.tenant))] : []),
      ...(found.served && found.served !== found.addresses[0] ? [fact("Served by", shown(found.served))] : [])),
    make("div", { class: "scorers" }, ...names.map((name) => make("span", {}, make("i", { class: `swatch t-${name in SCORERS ? name : "gpu"}` }), `${SCORERS[name] ?? shown(name)} ×${Number(found.weights[name].toFixed(2))}`))),
    table,
    ...(rest.length ? [more] : []),
    ...(found.candidates > found.endpoints.length ? [make("p", { class: "muted" }, `${whole(found.candidates)} endpoints stood for the choice; ${whole(found.endpoints.length)} are shown.`)] : []),
    ...(found.prompt_blocks ? [where, holders] : []));
  $("decision-body").scrollTop = 0;
}

function costRow(each, names, weights, most) {
  const stack = make("div", { class: "stack", "aria-hidden": "true" });
  const parts = names.map((name) => Math.max(0, each.seconds[name] * weights[name]));
  const sum = parts.reduce((total, part) => total + part, 0);
  names.forEach((name, at) => {
    const part = make("span", { class: `t-${name in SCORERS ? name : "gpu"}` });
    part.style.flexGrow = sum ? parts[at] / sum : 0;
    stack.append(part);
  });
  stack.style.width = `${(100 * Math.min(1, sum / most)).toFixed(2)}%`;
  const words = shown(each.why);
  return make("tr", { class: each.picked ? "picked" : null, title: words },
    make("th", { scope: "row", title: `${shown(each.name)} ${shown(each.address)}` }, each.picked ? `▸ ${shown(each.name)}` : shown(each.name)),
    make("td", { class: "bars" }, stack), make("td", { class: "num" }, seconds(each.cost_seconds)),
    make("td", { class: "num" }, percent(each.matched_share)),
    ...names.map((name) => make("td", { class: "num scorer" }, seconds(each.seconds[name]))));
}

// Where -----------------------------------------------------------------------------------------------------------

const KINDS = { session: "The session", response: "The stored response", conversation: "The conversation" };

$("where").onsubmit = async (event) => {
  event.preventDefault();
  const name = $("where-name").value.trim();
  if (!name) return;
  try {
    const found = await ask(`live/where?${new URLSearchParams({ name })}`);
    const nodes = found.homes.map((home) => make("p", {}, `${KINDS[home.kind]} lives at `, make("strong", {}, make("bdi", {}, shown(home.endpoint))), ` (${shown(home.address)}).`));
    if (found.prefix) nodes.push(...holderNodes(found));
    if (!nodes.length) nodes.push(make("p", {}, `Nothing is known by this name.${found.sessions ? "" : " Sessions are not followed (session_affinity names no header or cookie)."}`));
    $("where-found").replaceChildren(...nodes);
  } catch (error) {
    $("where-found").replaceChildren(make("p", {}, `It cannot be told: ${error.message}.`));
  }
};

function holderNodes({ prefix }) {
  if (!prefix || !prefix.holders.length) return [make("p", {}, prefix && prefix.blocks ? "No endpoint holds anything of this prompt now." : "This prompt is shorter than one block: nothing of it is followed.")];
  const list = make("ul", { class: "holders" });
  for (const each of prefix.holders) {
    const bar = make("span", { class: "t-prefix" }), rest = make("span");
    bar.style.flexGrow = each.share;
    rest.style.flexGrow = 1 - each.share;
    rest.style.background = "none";
    const confirmed = each.confirmed_share === null ? "" : `, ${percent(each.confirmed_share)} confirmed`;
    list.append(make("li", {}, make("span", { class: "n", title: shown(each.address) }, shown(each.endpoint)), make("span", { class: "stack", "aria-hidden": "true" }, bar, rest), make("span", { class: "p" }, `${percent(each.share)}${confirmed}`)));
  }
  const hidden = prefix.holders_total - prefix.holders.length;
  return [make("p", {}, `${whole(prefix.holders_total)} ${prefix.holders_total === 1 ? "endpoint holds" : "endpoints hold"} some of its ${whole(prefix.blocks)} blocks now${hidden ? `; the ${prefix.holders.length} that hold most` : ""}:`), list];
}
