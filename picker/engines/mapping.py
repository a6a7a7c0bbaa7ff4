"""Reads an engine's page as its description says: the single interpreter of all engines.

An engine is data (`Engine`): for each field of `EngineSample` the readings to try, best first.
The first that the page knows is taken; a field that no reading knows is `None`. So a gauge
that was renamed is one more reading, and a new engine is one more constant.

    MetricValue       a figure that stands as a series' value
    LabelValue  a figure that stands in a label of an info series
    Product     e.g. blocks times tokens a block
    Ratio       e.g. used blocks over all blocks
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from picker.engines.excerpt import Stems, excerpt, stems_of
from picker.engines.exposition import Series, find
from picker.pool.specs import EngineSample

Reduction = Literal["sum", "largest"]

COUNT_MAX = 1e12
"""Beyond it a count is nonsense: no engine holds a million million tokens."""

ADAPTERS_MAX = 4096
"""Of one engine; each name is a key wherever adapters are looked up."""

TOLD_BYTES_MAX = 64 * 1024
"""An excerpt that is longer is not kept to be compared with the next; a vLLM's has 3 KB."""

SHARE_SLACK = 1.1
"""A share may exceed 1 by rounding or overlap and then means 1; beyond this it is nonsense."""


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a series, reduced to one figure.

    `where`: only series whose labels have these values (an absent label is the empty string).
    `copies`: labels that tell several reports of one figure (tensor-parallel ranks); series that
    differ only in them count once, with the largest.
    """

    name: bytes
    reduce: Reduction = "sum"
    where: tuple[tuple[str, str], ...] = ()
    copies: tuple[str, ...] = ()


class LabelValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number in a label of an info series. `"None"` and other words are unknown."""

    name: bytes
    label: str
    reduce: Reduction = "sum"
    copies: tuple[str, ...] = ()


class Product(msgspec.Struct, frozen=True):
    """Left times right, known if both are."""

    left: "MetricValue | LabelValue"
    right: "MetricValue | LabelValue"


class Ratio(msgspec.Struct, frozen=True):
    """Left over right, known if both are and right is not 0."""

    left: MetricValue
    right: MetricValue


Reading = MetricValue | LabelValue | Product | Ratio


class Lora(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters in the labels of an info series whose value is a time: the newest series holds.

    Label sets of the past stay in the page. An adapter can stand in running and waiting at once.
    """

    name: bytes
    running_label: str
    waiting_label: str
    max_label: str
    loaded_name: bytes | None = None
    """A series for each adapter that is loaded, with or without requests. Its value is 1; 0: it no longer is."""
    loaded_label: str = ""
    """Of that series: the adapter's name."""
    loaded_where: tuple[str, tuple[str, ...]] = ("", ())
    """Of that series: a label, and its values that mean a slot on the GPU; an absent label means it too."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of model server is read.

    `marks`: name prefixes, any of which gives the engine away. `expected`: fields that this
    engine documents, so that their absence is worth telling an operator. `port`: of the metrics
    page, `None` where it is the endpoint's own.
    """

    name: str
    marks: tuple[bytes, ...]
    expected: tuple[str, ...]
    readings: Mapping[str, tuple[Reading, ...]]
    lora: Lora | None = None
    path: str = "/metrics"
    port: int | None = None


class EngineRead(msgspec.Struct, frozen=True):
    """What a page said, and which expected fields it did not (to be told once)."""

    sample: EngineSample
    missing: tuple[str, ...]


COUNTS = ("waiting_requests", "running_requests", "kv_capacity_tokens", "block_size_tokens", "adapters_max")
SHARES = ("kv_cache_utilization",)
FIGURES = ("started_at_seconds", "prompt_tokens_total", "prefix_queries_total", "prefix_hits_total")


def read(engine: Engine, page: bytes, *, uid: str, now: float) -> EngineRead:
    """Interpret `page` as `engine`'s. `now`: seconds on the picker's monotonic clock. Never raises."""
    memo: dict[bytes, list[Series]] = {}
    readings = engine.readings
    counts = {field: _count(_first(readings.get(field, ()), page, memo)) for field in COUNTS}
    shares = {field: _share(_first(readings.get(field, ()), page, memo)) for field in SHARES}
    figures = {field: _first(readings.get(field, ()), page, memo) for field in FIGURES}
    running: frozenset[str] | None = None
    waiting: frozenset[str] | None = None
    if engine.lora is not None:
        running, waiting, slots = _adapters(engine.lora, page)
        counts["adapters_max"] = slots if slots is not None else counts["adapters_max"]
    sample = EngineSample(
        uid=uid,
        taken_at_seconds=now,
        engine=engine.name,
        adapters_running=running,
        adapters_waiting=waiting,
        adapters_loaded=_loaded(engine.lora, page) if engine.lora is not None else None,
        waiting_requests=counts["waiting_requests"],
        running_requests=counts["running_requests"],
        kv_cache_utilization=shares["kv_cache_utilization"],
        # A capacity of nothing is a configuration that is not known yet.
        kv_capacity_tokens=counts["kv_capacity_tokens"] or None,
        block_size_tokens=counts["block_size_tokens"] or None,
        adapters_max=counts["adapters_max"],
        started_at_seconds=figures["started_at_seconds"],
        prompt_tokens_total=figures["prompt_tokens_total"],
        prefix_queries_total=figures["prefix_queries_total"],
        prefix_hits_total=figures["prefix_hits_total"],
    )
    return EngineRead(sample, tuple(field for field in engine.expected if getattr(sample, field) is None))


class PageReader:
    """Reads one endpoint's pages, one after the other, each as `read` would."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._engine: Engine | None = None
        self._stems: Stems = ()
        self._told: bytes | None = None
        """`None`: it is not kept."""
        self._result: EngineRead | None = None

    def read(self, engine: Engine, page: bytes, *, now: float) -> EngineRead:
        """Where the page tells what the last one did, as an idle engine's does, it is not interpreted again."""
        if engine is not self._engine:
            self._engine, self._result = engine, None
            self._stems = stems_of(_all_names(engine))
        told = excerpt(page, self._stems)
        result = self._result
        if result is None or told != self._told:
            result = read(engine, told, uid=self._uid, now=now)
            self._told = told if len(told) <= TOLD_BYTES_MAX else None
        else:
            result = EngineRead(msgspec.structs.replace(result.sample, taken_at_seconds=now), result.missing)
        self._result = result
        return result


def _all_names(engine: Engine) -> set[bytes]:
    found = {name for readings in engine.readings.values() for reading in readings for name in _names(reading)}
    if engine.lora is not None:
        found.add(engine.lora.name)
        if engine.lora.loaded_name is not None:
            found.add(engine.lora.loaded_name)
    return found


def _names(reading: Reading) -> tuple[bytes, ...]:
    if isinstance(reading, MetricValue | LabelValue):
        return (reading.name,)
    return (reading.left.name, reading.right.name)


def names(engine: Engine, field: str) -> tuple[str, ...]:
    """The series that `field` is looked for in, for a message that says what is missing."""
    found: list[str] = []
    for reading in engine.readings.get(field, ()):
        found += [name.decode() for name in _names(reading) if name.decode() not in found]
    return tuple(found)


def _first(readings: Iterable[Reading], page: bytes, memo: dict[bytes, list[Series]]) -> float | None:
    for reading in readings:
        figure = _evaluate(reading, page, memo)
        if figure is not None:
            return figure
    return None


def _evaluate(reading: Reading, page: bytes, memo: dict[bytes, list[Series]]) -> float | None:
    match reading:
        case MetricValue(name=name, where=where):
            series = _series(page, name, memo)
            if where:
                series = [one for one in series if all(one.labels.get(key, "") == wanted for key, wanted in where)]
            return _reduce([(one.labels, one.value) for one in series], reading.reduce, reading.copies)
        case LabelValue(name=name, label=label):
            figures = [(one.labels, _whole(one.labels.get(label))) for one in _series(page, name, memo)]
            return _reduce(figures, reading.reduce, reading.copies)
        case Product(left=left, right=right):
            a, b = _evaluate(left, page, memo), _evaluate(right, page, memo)
            return a * b if a is not None and b is not None else None
        case Ratio(left=left, right=right):
            a, b = _evaluate(left, page, memo), _evaluate(right, page, memo)
            return a / b if a is not None and b else None


def _series(page: bytes, name: bytes, memo: dict[bytes, list[Series]]) -> list[Series]:
    found = memo.get(name)
    if found is None:
        found = memo[name] = find(page, name)
    return found


def _reduce(
    figures: list[tuple[Mapping[str, str], float | None]], how: Reduction, copies: tuple[str, ...]
) -> float | None:
    """A sum with an unknown part is unknown (it would understate); the largest of those known is a figure."""
    if copies and len(figures) > 1:
        groups: dict[tuple[tuple[str, str], ...], list[float | None]] = {}
        for labels, value in figures:
            key = tuple(sorted(item for item in labels.items() if item[0] not in copies))
            groups.setdefault(key, []).append(value)
        values = [_largest(group) for group in groups.values()]
    else:
        values = [value for _, value in figures]
    if how == "largest":
        return _largest(values)
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total if values else None


def _largest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _count(value: float | None) -> int | None:
    return round(value) if value is not None and value <= COUNT_MAX else None


def _share(value: float | None) -> float | None:
    return min(value, 1.0) if value is not None and value <= SHARE_SLACK else None


def _whole(text: str | None) -> float | None:
    # Longer than this is no block count, and `int` of a hostile label would be slow.
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 15 else None


def _adapters(lora: Lora, page: bytes) -> tuple[frozenset[str] | None, frozenset[str] | None, int | None]:
    known = [one for one in find(page, lora.name) if one.value is not None]
    if not known:
        return None, None, None
    newest = max(known, key=lambda one: one.value or 0.0).labels
    slots = _whole(newest.get(lora.max_label))
    return (
        _listed(newest.get(lora.running_label)),
        _listed(newest.get(lora.waiting_label)),
        None if slots is None else int(slots),
    )


def _loaded(lora: Lora, page: bytes) -> frozenset[str] | None:
    """`None`: the engine does not tell. One that tells of none has the family's HELP on its page and no series."""
    if lora.loaded_name is None:
        return None
    found = find(page, lora.loaded_name)
    if not found:
        return frozenset() if b"# TYPE " + lora.loaded_name + b" " in page else None
    label, slots = lora.loaded_where
    names = (
        one.labels.get(lora.loaded_label)
        for one in found
        if one.value and (not label or one.labels.get(label, "") in ("", *slots))
    )
    return frozenset([name for name in names if name][:ADAPTERS_MAX])


def _listed(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    return frozenset(name for part in text.split(",") if (name := part.strip()))
