// The page of a running picker. It follows GET /live (server-sent events) and asks beside it; docs/telemetry.md has
// the contract. Each part of the page has a module of its own.

import { askForToken, headers } from "./asking.js";
import { showHistory } from "./charts.js";
import { showDecisions } from "./decisions.js";
import { showEndpoints } from "./endpoints.js";
import { $, bytes, put, shown, state, whole } from "./words.js";
import { showSliders } from "./what_if.js";

const DECISIONS_KEPT = 300;
const SILENCE_MS = 6000;
const HIDDEN_MS = 20000;

function status(name, words) {
  $("status").dataset.state = name;
  put($("status"), words);
  document.body.classList.toggle("lost", name === "off");
}

function notice(words) {
  $("notice").hidden = !words;
  put($("notice"), words ?? "");
}

// A page that nobody looks at asks for nothing.
let following = null, hiding = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => following?.abort(), HIDDEN_MS);
});

async function follow() {
  let wait = 500;
  for (;;) {
    const stop = following = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), SILENCE_MS);
    let told = false;
    try {
      const response = await fetch("live", { headers: headers(), signal: stop.signal, cache: "no-store" });
      if (response.status === 401) {
        clearTimeout(watchdog);
        await askForToken();
        continue;
      }
      if (response.status === 404) notice("This picker's page is switched off (debug.page: false).");
      else if (!response.ok) notice((await response.json().catch(() => ({})))?.error ?? `The picker answered ${response.status}.`);
      else {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          rest += value;
          const events = rest.split("\n\n");
          rest = events.pop();
          for (const each of events) {
            try { heard(each); } catch (error) { console.error(error); }
          }
          if (events.length) {
            clearTimeout(watchdog);
            watchdog = setTimeout(() => stop.abort(), SILENCE_MS);
            if (!told) { told = true; notice(null); wait = 500; }
          }
        }
      }
    } catch {
      // The connection ended, or nobody listens: it is tried again.
    } finally {
      clearTimeout(watchdog);
      following = null;
    }
    if (document.hidden) {
      status("paused", "Asleep");
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      wait = 500;
      continue;
    }
    status("off", state.hello ? "Reconnecting" : "No answer yet");
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
    wait = Math.min(8000, wait * 2);
  }
}

function heard(text) {
  const [first, second] = text.split("\n", 2);
  if (!first.startsWith("event: ") || !second?.startsWith("data: ")) return;
  const data = JSON.parse(second.slice(6));
  switch (first.slice(7)) {
    case "hello": return heardHello(data);
    case "members": return heardMembers(data);
    case "tick": return heardTick(data);
  }
}

function heardHello(hello) {
  if (state.hello && state.hello.instance !== hello.instance) {
    state.decisions = [];
    state.members = [];
    state.columns = state.tick = null;
  }
  state.hello = hello;
  state.history = hello.history;
  const known = new Set(state.decisions.map((each) => each.number));
  state.decisions = [...hello.decisions.filter((each) => !known.has(each.number)), ...state.decisions].slice(0, DECISIONS_KEPT);
  heardConfig(hello.config);
  put($("pool"), shown(hello.pool));
  document.title = `${shown(hello.pool)} · inference-picker`;
  put($("version"), `inference-picker ${hello.version}, ${hello.build}`);
  showHistory();
  showDecisions(true);
}

function heardConfig(config) {
  state.config = config;
  showSliders();
}

// Columns follow the order of a list, so both change at once: with the next tick that is shown.
let toldMembers = null;

function heardMembers({ generation, endpoints }) {
  state.generation = generation;
  toldMembers = endpoints;
}

function takeMembers(endpoints) {
  state.members = endpoints.map(([name, address]) => [shown(name), shown(address)]);
  state.searchable = state.members.map(([name, address]) => `${name}\n${address}`.toLowerCase());
  const order = endpoints.map((_, at) => at);
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  order.sort((a, b) => compare(state.members[a][0], state.members[b][0]) || compare(state.members[a][1], state.members[b][1]));
  state.byName = new Int32Array(order.length);
  order.forEach((at, place) => { state.byName[at] = place; });
}

function heardTick(tick) {
  if (tick.generation !== state.generation) return;
  if (tick.config) heardConfig(tick.config);
  if (tick.buckets) state.history = [...state.history, ...tick.buckets].slice(-state.hello.buckets_max);
  state.decisions = [...tick.decisions, ...state.decisions].slice(0, DECISIONS_KEPT);
  state.tick = tick;
  if (state.paused) status("paused", "Paused");
  else {
    showTick();
    if (tick.buckets) showHistory();
  }
  if (tick.decisions.length) showDecisions(false);
}

function showTick() {
  if (toldMembers) takeMembers(toldMembers);
  toldMembers = null;
  state.columns = state.tick.columns;
  status("live", "Live");
  showFacts();
  showEndpoints();
}

$("pause").onclick = () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  put($("pause"), state.paused ? "Go on" : "Pause");
  if (state.paused) status("paused", "Paused");
  else {
    if (state.tick?.generation === state.generation) showTick();
    if (state.hello) { showHistory(); showDecisions(true); }
  }
};

function showFacts() {
  const { tick, columns } = state;
  const aside = columns.ejected.reduce((sum, each, at) => sum + (each || columns.closed[at] ? 1 : 0), 0);
  put($("fact-endpoints"), `${whole(state.members.length)}${aside ? ` (${whole(aside)} aside)` : ""}${tick.synced ? "" : " · not synced"}`);
  put($("fact-in-flight"), whole(tick.in_flight));
  put($("fact-decided"), `${whole(tick.decided)}/s`);
  put($("fact-index"), `${bytes(tick.index_bytes)} of ${bytes(tick.index_bytes_max)}`);
}

follow();
