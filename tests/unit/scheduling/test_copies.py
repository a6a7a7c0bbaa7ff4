"""Copies of shared prefixes: what they weigh, and that what is held together takes its room once."""

from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.director import Director
from picker.pool.specs import EndpointSpec
from picker.prefix.matches import SharedStretch
from picker.scheduling.columns import unmatched_tokens
from picker.scheduling.scheduler import copy_weights


def weigh(shared, **more):
    given = {"residence_seconds": 120.0, "fullness": 0.0, "floor": 0.1, "bytes_per_token": 4.0, "prompt_tokens": 1e6}
    return copy_weights(shared, **(given | more))


def test_a_token_weighs_one_over_one_plus_its_later_uses():
    """0.1 new continuations a second, 120 s, shared with two holders: 12 / 3 = 4 uses."""
    assert weigh([SharedStretch(8, 0.1, 2)]) == [(8 * 256.0, pytest.approx(1 / 5))]


def test_what_is_never_asked_for_again_weighs_in_full():
    assert weigh([SharedStretch(8, 0.0, 1)]) == [(2048.0, 1.0)]


def test_the_floor_and_the_fullness_hold():
    assert weigh([SharedStretch(1, 1000.0, 1)])[0][1] == 0.1
    assert weigh([SharedStretch(1, 1000.0, 1)], fullness=0.25)[0][1] == pytest.approx(0.1 + 0.9 * 0.25)
    assert weigh([SharedStretch(1, 1000.0, 1)], fullness=0.5)[0][1] == 1.0
    assert weigh([SharedStretch(1, 1000.0, 1)], fullness=1.0)[0][1] == 1.0


def test_each_stretch_counts_at_its_own_weight():
    # 1,000 tokens: 400 at 0.1, the next 400 at 0.5, the last 200 in full. Held: nothing, 500, all.
    found = [unmatched_tokens(held, 1000.0, [(400.0, 0.1), (800.0, 0.5)]) for held in (0.0, 500.0, 1000.0)]
    assert found == pytest.approx([40 + 200 + 200, 150 + 200, 0])


def test_a_preamble_held_together_takes_its_room_once():
    director = Director(Config(epsilon=0.0))
    director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="a", name="a")])
    preamble = Random(1).randbytes(8 * 1024)
    charges = []
    for number in range(5):
        prompt = preamble + Random(number + 10).randbytes(2 * 1024)
        request = InferenceRequest(api="completions", prompt=prompt, prompt_bytes=len(prompt))
        charges.append(director.decide(request, now=float(number), rng=Random(1)).booking)
    (endpoint,) = director.datastore.endpoints
    whole, own = 10 * 256.0, 2 * 256.0
    # Three continuations make a preamble shared; the fourth and fifth find it so.
    assert endpoint.context_tokens == 5 * whole
    assert endpoint.memory_tokens == 3 * whole + 2 * own
    for charge in charges:
        director.finish(charge, reached=True)
    assert (endpoint.context_tokens, endpoint.memory_tokens) == (0.0, 0.0)
