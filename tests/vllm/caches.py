"""What keeps caches apart: models, adapters, salts, an engine's lives. vLLM's counters beside the picker's index."""

import threading
import time
from collections.abc import Callable

from picker.engines import recognise
from picker.engines.mapping import read
from tests.envoy.picker_process import wait_until
from tests.vllm.servers import MODEL, ask
from tests.vllm.stand import Seen, Stand

BOTH, ONE = "both", "one"
"""Adapters: served by both servers, by the first only."""
FIRST, SECOND = 0, 1


def hit(seen: Seen) -> bool:
    """vLLM found most of the prompt in its cache, said so in the answer too, and the picker expected it."""
    engine = seen.engine
    return (
        seen.answer.status == 200
        and engine.hits_tokens > engine.queries_tokens / 2
        and seen.cached_tokens == engine.hits_tokens
        and (seen.matched or 0) > 0.5
    )


def missed(seen: Seen) -> bool:
    """Nothing was cached, and nothing was expected."""
    return (
        seen.answer.status == 200
        and seen.engine.queries_tokens > 0
        and not seen.engine.hits_tokens
        and not seen.cached_tokens
        and not seen.matched
    )


def adapters(stand: Stand) -> None:
    """Requests for an adapter go where it is served, and its cache is its own."""
    topic = "adapters"
    before = stand.servers.all[SECOND].counts()
    asked = [stand.complete(stand.text(300), model=ONE) for _ in range(8)]
    statuses = [seen.answer.status for seen in asked]
    beside = stand.servers.all[SECOND].counts().since(before)
    stand.show(
        topic,
        "8 requests for an adapter that one server lists all go there",
        statuses == [200] * 8
        and {seen.address for seen in asked} == {stand.servers.addresses[FIRST]}
        and not beside.requests,
        f"statuses {sorted(set(statuses))}, {beside.requests:.0f} at the other server",
    )
    refused = stand.complete(stand.text(300), SECOND, model=ONE)
    stand.show(
        topic,
        "where only the other server is allowed, the picker refuses it by name",
        refused.answer.status == 503 and refused.answer.headers.get("x-picker-reason") == "model_not_served",
        f"status {refused.answer.status}, {refused.answer.headers.get('x-picker-reason')}",
    )
    prompt = stand.text()
    stand.complete(prompt, FIRST)
    again = stand.complete(prompt, FIRST)
    stand.show(topic, "a prompt said again to the base model is a hit", hit(again), again.told())
    for name in (BOTH, ONE):
        first = stand.complete(prompt, FIRST, model=name)
        stand.show(topic, f"the same prompt for the adapter `{name}` is none", missed(first), first.told())
        again = stand.complete(prompt, FIRST, model=name)
        stand.show(topic, f"said again for `{name}` it is", hit(again), again.told())
    _gauges(stand)


def _gauges(stand: Stand) -> None:
    """`vllm:lora_requests_info` while a request for an adapter runs."""
    server = stand.servers.all[FIRST]
    body = {"model": BOTH, "prompt": stand.text(100), "max_tokens": 400, "ignore_eos": True}
    thread = threading.Thread(target=ask, args=(f"{server.url}/v1/completions", body))
    thread.start()
    seen: list[frozenset[str]] = []
    slots: set[int | None] = set()
    busy = 0
    while thread.is_alive():
        page = server.page()
        engine = recognise(page)
        assert engine is not None
        sample = read(engine, page, uid="x", now=0.0).sample
        seen.append(sample.adapters_running or frozenset())
        slots.add(sample.adapters_max)
        busy += sample.running_requests == 1 and (sample.kv_cache_utilization or 0) > 0
        time.sleep(0.02)
    thread.join()
    stand.show(
        "pages",
        "running requests and KV cache utilization move while a request runs",
        busy > 0,
        f"in {busy} of {len(seen)} readings",
    )
    stand.show(
        "adapters",
        "the gauge shows the adapter while its request runs, and the number of slots",
        frozenset({BOTH}) in seen and slots == {2},
        f"running in {sum(BOTH in each for each in seen)} of {len(seen)} readings, slots {slots}",
    )


def salts(stand: Stand) -> None:
    """`cache_salt` in the body."""
    cases: dict[str, Callable[[str, str | None], Seen]] = {
        "completions": lambda prompt, salt: stand.complete(prompt, FIRST, **_salted(salt)),
        "chat": lambda prompt, salt: stand.ask(
            "/v1/chat/completions",
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": 4,
                **_salted(salt),
            },
            FIRST,
        ),
    }
    for api, send in cases.items():
        prompt = stand.text()
        send(prompt, "tenant-a")
        again = send(prompt, "tenant-a")
        stand.show("salts", f"{api}: the same prompt with the same salt is a hit", hit(again), again.told())
        for salt, words in (("tenant-b", "with another salt"), (None, "without a salt")):
            other = send(prompt, salt)
            stand.show("salts", f"{api}: {words} it is none", missed(other), other.told())


def _salted(salt: str | None) -> dict[str, object]:
    return {} if salt is None else {"cache_salt": salt}


def restart(stand: Stand, tell: Callable[[str], None]) -> None:
    """An engine that starts anew has lost its cache, and the picker knows; the other's entries stay."""
    topic = "restart"
    kept, lost = stand.text(), stand.text()
    for _ in range(2):
        here, there = stand.complete(kept, FIRST), stand.complete(lost, SECOND)
    stand.show(topic, "before it, both servers' prompts are hits", hit(here) and hit(there), there.told())
    blocks = stand.picker.metric("picker_index_blocks")
    server = stand.servers.all[SECOND]
    tell("restarting one of the servers")
    server.stop()
    server.start()
    server.wait_ready()
    wait_until(
        lambda: stand.picker.metric("picker_index_blocks") < blocks, "the restarted engine keeps its entries", 60
    )
    left = stand.picker.metric("picker_index_blocks")
    gone = stand.complete(lost, SECOND)
    stand.show(
        topic,
        "the engine that restarted has no entries left: what it held is neither a hit nor expected",
        missed(gone),
        f"{gone.told()}; index {blocks:.0f} blocks before, {left:.0f} after",
    )
    still = stand.complete(kept, FIRST)
    stand.show(topic, "the other one's stay", hit(still), still.told())


def emptied(stand: Stand) -> None:
    """The limit: a cache emptied without a restart shows in none of the engine's counters."""
    prompt = stand.text()
    for _ in range(2):
        seen = stand.complete(prompt, FIRST)
    before = stand.servers.all[FIRST].counts()
    stand.servers.all[FIRST].empty_cache()
    fell = stand.servers.all[FIRST].counts().since(before)
    again = stand.complete(prompt, FIRST)
    stand.show(
        "limits",
        "`/reset_prefix_cache` moves no counter, so the picker expects what was cached until it is said again",
        hit(seen) and not fell.queries_tokens and not again.engine.hits_tokens and (again.matched or 0) > 0.5,
        again.told(),
    )
