"""What is not known counts as the mean of what is: an endpoint that says nothing is neither drawn to nor starved."""

from collections import Counter
from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Routing
from picker.director import Director
from picker.engines import read, recognise
from picker.outcomes import Usage
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.blocks import block_hashes, chain_seed

NAMES = ("a", "b", "c", "d")
BUSY = b"""\
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
"""


def make(names=NAMES, **routing) -> Director:
    director = Director(Config(routing=Routing(**routing)))
    director.replace_endpoints(EndpointSpec(address=f"10.0.0.{n}:80", uid=uid, name=uid) for n, uid in enumerate(names))
    return director


def tell(director, uid, now, page=BUSY):
    """As the scraper does: a page that no engine wrote is no reading."""
    engine = recognise(page)
    if engine is not None:
        director.record_sample(read(engine, page, uid=uid, now=now).sample)


def ask(director, number, now, rng):
    prompt = Random(number).randbytes(8192)
    request = InferenceRequest(api="completions", model="m", prompt=prompt, prompt_bytes=len(prompt))
    decision = director.decide(request, now=now, rng=rng)
    director.datastore.check()
    director.loads.check(director.datastore.snapshot(now))
    return decision


def spread(director, requests=40, *, page=None, start=0.0, seed=1):
    """Unique prompts one after the other, three engines that report as in BUSY and a fourth with `page`."""
    counts, rng = Counter(), Random(seed)
    for number in range(requests):
        now = start + number / 4
        for uid in NAMES[:3]:
            tell(director, uid, now)
        if page is not None:
            tell(director, "d", now, page)
        decision = ask(director, int(start) * 100 + number, now, rng)
        counts[decision.endpoint_name] += 1
        director.finish(decision.booking, reached=True, usage=Usage(input_tokens=2048, output_tokens=16))
    return counts


SILENT = {
    "missing": None,
    "empty": b"",
    "half a line": BUSY[: BUSY.index(b"kv_cache_usage_perc") + 8],
    "cut within a number": BUSY[: -len(b"2\n")],
    "another program's": b"go_goroutines 9\nprocess_resident_memory_bytes 1e8\n",
    "a gauge nobody knows": BUSY.replace(b"kv_cache_usage_perc", b"kv_cache_fill"),
    **{word: BUSY.replace(b" 0.2", b" " + word.encode()) for word in ("NaN", "-1", "+Inf", "1e300", "wide")},
}


@pytest.mark.parametrize("what", SILENT)
def test_who_reports_nothing_gets_some_and_at_most_half(what):
    counts = spread(make(), page=SILENT[what])
    assert 3 <= counts["d"] <= 20, counts


def test_what_waits_there_of_others_is_the_mean_too():
    """Three engines where ten of somebody else's wait; the fourth does not say."""
    waiting = BUSY.replace(b'waiting{engine="0"} 0.0', b'waiting{engine="0"} 10.0')
    director = make()
    for uid in NAMES[:3]:
        tell(director, uid, 0.0, waiting)
    tell(director, "d", 0.0, BUSY.replace(b"num_requests_waiting", b"num_requests_queued"))
    assert director.datastore.snapshot(0.0).foreign_requests.tolist() == [10, 10, 10, 10]


def test_a_cache_of_unknown_size_is_as_large_as_the_others():
    director = make()
    for uid, capacity in (("a", 60_000), ("b", 100_000)):
        director.record_sample(EngineSample(uid=uid, taken_at_seconds=0.0, engine="vllm", kv_capacity_tokens=capacity))
    assert director.datastore.snapshot(0.0).capacity_tokens.tolist() == [60_000, 100_000, 80_000, 80_000]
    assert [director.datastore.capacity_tokens(slot) for slot in (0, 3)] == [60_000, 80_000]
    blocks = int(80_000 * 4 / 1024)
    for number in range(blocks // 100 + 3):  # its share of the index is that of 80,000 tokens
        director.index.record(block_hashes(chain_seed(str(number), None), [bytes(100 * 1024)]), 3, number)
    assert blocks - 100 <= director.index.blocks_held[3] <= blocks
    assert make().datastore.snapshot(0.0).capacity_tokens.tolist() == [400_000] * 4, "nobody's is known: the configured"


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ((100_000, 100_000, 100_000), 20_000),
        ((100_000, 100_000, 400_000), 20_000),  # not 80,000, which would be a fifth of a cache that may be idle
        ((400_000, 400_000, 40_000), 8_000),  # not 80,000, which do not even fit
    ],
)
def test_the_mean_is_in_tokens_or_as_a_share_whichever_is_less(capacities, expected):
    director = make(NAMES[:3])
    for uid, capacity, share in zip(NAMES, capacities, (0.1, 0.3, None), strict=False):
        director.record_sample(
            EngineSample(
                uid=uid, taken_at_seconds=0.0, engine="vllm", kv_capacity_tokens=capacity, kv_cache_utilization=share
            )
        )
    assert director.datastore.snapshot(0.0).reported_context_tokens[2] == pytest.approx(expected)


def test_to_fall_silent_makes_nobody_attractive():
    """`d` is the fullest when its page stops answering, with four of ours in flight that do not end."""
    director = make()
    there = director.datastore.find("d")
    ours = [director.ledger.charge(there, prefill_tokens=0, context_tokens=100, now=0.0) for _ in range(4)]
    full = BUSY.replace(b" 0.2", b" 0.9")
    tell(director, "d", 0.0, full)
    assert spread(director, start=10.0)["d"] == 0, "as before it fell silent"
    assert director.datastore.snapshot(20.0).reported_context_tokens[3] == pytest.approx(0.9 * 400_000)
    director.ledger.release(ours.pop())
    assert director.datastore.snapshot(21.0).reported_context_tokens[3] == pytest.approx(0.75 * 0.9 * 400_000)
    for charge in ours:
        director.ledger.release(charge)
    assert 3 <= spread(director, start=30.0)["d"] <= 20, "nothing of what it reported is there any more"


def test_a_request_that_moved_there_after_the_reading_is_not_one_of_those_it_was_about():
    director, rng = make(("a", "b")), Random(1)
    decision = ask(director, 1, 0.0, rng)
    there = director.datastore.find("b" if decision.endpoint_name == "a" else "a")
    tell(director, there.spec.uid, 0.0)
    director.served_by(decision.booking, there.spec.address, 1.0)
    assert (there.in_flight_requests, there.requests_since_reading) == (1, 0)
    director.finish(decision.booking, reached=True)
    director.datastore.check()


def test_a_newcomer_is_as_fast_as_the_others_until_it_shows():
    director = make(NAMES[:2])
    for _ in range(200):
        director.rates.observe_prefill(0, 10_000, 2.0, now=0.0)
        director.rates.observe_prefill(1, 10_000, 4.0, now=0.0)
    specs = [endpoint.spec for endpoint in director.datastore.endpoints]
    director.replace_endpoints([*specs, EndpointSpec(address="10.0.0.9:80", uid="n", name="n")])
    new = director.datastore.find("n")
    assert director.rates.rate_inverse[new.slot] == pytest.approx(3e-4, rel=0.01)
    director.replace_endpoints([specs[0], new.spec])
    director.replace_endpoints([specs[0], new.spec, EndpointSpec(address="10.0.0.8:80", uid="o", name="o")])
    assert director.rates.rate_inverse[director.datastore.find("o").slot] == pytest.approx(2e-4, rel=0.01), (
        "one that left says nothing any more"
    )


def test_slots_for_adapters_are_as_free_as_where_it_is_known():
    director = make()
    adapters = frozenset({"sql", "math", "law"})
    for uid, running in (("a", {"math"}), ("b", {"law"}), ("c", set())):
        director.record_sample(
            EngineSample(
                uid=uid,
                taken_at_seconds=0.0,
                engine="vllm",
                models=adapters,
                adapters=adapters,
                adapters_running=frozenset(running),
                adapters_max=1,
            )
        )
    tell(director, "d", 0.0)
    loaded, full = director.adapters.masks("sql", director.datastore.snapshot(0.0))
    assert not loaded.any() and full.tolist() == pytest.approx([1.0, 1.0, 0.0, 2 / 3])
    director.adapters.check()
