"""Every registered filter: a mask of the pool's width that names only endpoints that are there, or nothing."""

import re

import numpy as np
import pytest

from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.pool.labels import parse_selector
from picker.pool.specs import EndpointSpec, EngineSample
from picker.scheduling.filters import FILTERS
from picker.scheduling.filters.query import Query

EACH = pytest.mark.parametrize("each", FILTERS, ids=lambda each: each.word)


def store(count, gaps=()):
    """A pool of `count` slots, some of them empty, where odd endpoints are gold and serve `sql`."""
    made = Datastore(InflightLedger(), stale_seconds=5, default_capacity_tokens=1000)
    specs = [
        EndpointSpec(
            address=f"10.0.{n // 250}.{n % 250}:80", uid=str(n), name=str(n), labels={"tier": "gold"} if n % 2 else {}
        )
        for n in range(count)
    ]
    made.replace(specs)
    made.replace([spec for n, spec in enumerate(specs) if n not in gaps])
    for endpoint in made.endpoints:
        models = {"m", "sql"} if int(endpoint.spec.uid) % 2 else {"m"}
        made.record(EngineSample(uid=endpoint.spec.uid, taken_at_seconds=0, engine="vllm", models=frozenset(models)))
    return made


def query(made, **more):
    return Query(**{"model": None, "subset": None, "selectors": (), "models": made.models, **more})


@EACH
@pytest.mark.parametrize(("count", "gaps"), [(1, ()), (5, (0, 2)), (300, (7, 290))])
def test_a_filter_selects_among_those_that_are_there(each, count, gaps):
    made = store(count, gaps)
    snapshot = made.snapshot(0.0)
    gold = parse_selector("tier=gold")
    mask = each.mask(snapshot, query(made, model="sql", subset=["10.0.0.1:80", "10.0.0.0"], selectors=(gold,)))
    if mask is not None:
        assert mask.shape == (snapshot.width,) and mask.dtype == np.bool_
        assert not (mask & ~snapshot.ready_mask).any()
        again = each.mask(snapshot, query(made, model="sql", subset=["10.0.0.1:80", "10.0.0.0"], selectors=(gold,)))
        assert (again == mask).all()


@EACH
def test_a_filter_that_is_not_asked_says_nothing(each):
    made = store(5)
    assert each.mask(made.snapshot(0.0), query(made)) is None


@EACH
def test_a_filter_has_words_for_whom_it_refuses(each):
    assert re.fullmatch(r"[a-z_]+", each.word) and each.message and "\n" not in each.message
    assert len({other.word for other in FILTERS}) == len(FILTERS)
