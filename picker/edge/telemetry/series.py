"""Accumulators that cost a fraction of a microsecond, and the page that they make.

A general metrics library takes a lock and a label lookup for each of a request's twenty
observations, and some 8 us a line to write the page. Here a child is a plain list that its
owner keeps, and its labels are rendered once. The page comes in parts so that the
event loop serves requests between them.

Invariants: labels are bounded in length, families in number (`CappedLabel`, `CHILDREN_MAX`); a part is at most
`PART_LINES` lines; what is written is valid in both formats, text 0.0.4 and OpenMetrics 1.0
(https://prometheus.io/docs/specs/om/open_metrics_spec/).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Final, Literal

from prometheus_client.utils import floatToGoString
from xxhash import xxh3_64_hexdigest

PART_LINES: Final = 128
"""Some two tenths of a millisecond's work."""
WAITING_MAX: Final = 128
"""Values of a histogram that wait for their buckets: 4 KB of memory."""

Kind = Literal["counter", "gauge", "histogram"]
Line = tuple[str, str, float]
"""Suffix of the name, rendered labels (without braces), value."""


LABEL_CHARS_MAX: Final = 256
CHILDREN_MAX: Final = 1024
"""Of one family of counters; what comes after is counted under `other`."""


def label_text(names: Sequence[str], values: Iterable[str]) -> str:
    """`a="x",b="y"`, escaped; empty where there are no labels. No value is longer than `LABEL_CHARS_MAX`."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    if len(value) > LABEL_CHARS_MAX:
        # Cut, and still different from others that begin alike: a page must not name a series twice.
        digest = xxh3_64_hexdigest(value.encode("utf-8", "surrogatepass"))
        value = f"{value[: LABEL_CHARS_MAX - 17]}~{digest}"
    if value.isprintable() and '"' not in value and "\\" not in value:
        return value
    # A lone surrogate (bad UTF-8 from a client) would make the page unwritable.
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Counters:
    """A counter by label values. `child(...)[0] += 1` on the hot path, or `add`."""

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> None:
        assert name.endswith("_total"), name
        self.name, self.help_text, self.labels = name, help_text, labels
        self.children: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self.child()

    def child(self, *values: str) -> list[float]:
        found = self.children.get(values)
        if found is None:
            if len(self.children) >= CHILDREN_MAX:
                values = (CappedLabel.OTHER,) * len(self.labels)
            found = self.children.setdefault(values, [0.0])
        return found

    def add(self, *values: str, by: float = 1.0) -> None:
        self.child(*values)[0] += by

    def parts(self, openmetrics: bool) -> Iterator[str]:
        lines: Iterator[Line] = (
            ("", label_text(self.labels, values), child[0]) for values, child in list(self.children.items())
        )
        return family(self.name, self.help_text, "counter", lines, openmetrics)


class Histogram:
    """Counts by bucket, and the sum: `[bucket 0, ..., bucket n, beyond, sum]`. One set of labels.

    Values wait until some have come together or somebody reads: sorted into their buckets at once,
    they cost a tenth of what each alone does.
    """

    __slots__ = ("_cells", "_waiting", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._cells: list[float] = [0] * (len(bounds) + 2)
        self._waiting: list[float] = []

    def observe(self, value: float) -> None:
        """`value` belongs to the first bucket whose bound is not below it (le)."""
        waiting = self._waiting
        waiting.append(value)
        if len(waiting) >= WAITING_MAX:
            self._settle()

    @property
    def cells(self) -> list[float]:
        """Its values, with everything that was observed."""
        if self._waiting:
            self._settle()
        return self._cells

    def _settle(self) -> None:
        cells, waiting = self._cells, self._waiting
        waiting.sort()
        below = 0
        for bucket, bound in enumerate(self.bounds):
            upto = bisect_right(waiting, bound, below)
            cells[bucket] += upto - below
            below = upto
        cells[-2] += len(waiting) - below
        cells[-1] += sum(waiting)
        waiting.clear()

    @property
    def empty(self) -> bool:
        return not any(self.cells)

    def lines(self, labels: str, bounds: Sequence[float] | None = None) -> Iterator[Line]:
        """`bounds`: show only these of the histogram's own, for a name with coarser buckets."""
        return lines_of([self], labels, bounds)


def lines_of(histograms: Sequence[Histogram], labels: str, bounds: Sequence[float] | None = None) -> Iterator[Line]:
    """Histograms of equal bounds as one: a name that does not tell apart what they are counted by."""
    # A copy: requests are counted while the page is written, and its lines must agree.
    cells = histograms[0].cells.copy()
    for other in histograms[1:]:
        cells = [ours + theirs for ours, theirs in zip(cells, other.cells, strict=True)]
    own = histograms[0].bounds
    shown = None if bounds is None else frozenset(bounds)
    comma = "," if labels else ""
    total = 0.0
    for bound, text, count in zip(own, _bound_texts(tuple(own)), cells, strict=False):
        total += count
        if shown is None or bound in shown:
            yield "_bucket", f'{labels}{comma}le="{text}"', total
    total += cells[-2]
    yield "_bucket", f'{labels}{comma}le="+Inf"', total
    yield "_count", labels, total
    yield "_sum", labels, cells[-1]


@lru_cache(maxsize=64)
def _bound_texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(floatToGoString(bound) for bound in bounds)  # type: ignore[no-untyped-call]


def family(name: str, help_text: str, kind: Kind, lines: Iterable[Line], openmetrics: bool) -> Iterator[str]:
    """HELP, TYPE and the lines, in parts."""
    base = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    out = [f"# HELP {base} {help_text}\n# TYPE {base} {kind}\n"]
    for suffix, labels, value in lines:
        number = repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
        out.append(f"{name}{suffix}{{{labels}}} {number}\n" if labels else f"{name}{suffix} {number}\n")
        if len(out) >= PART_LINES:
            yield "".join(out)
            out = []
    if out:
        yield "".join(out)


def nothing_listed(value: str) -> bool:
    """Nobody vouches for any value."""
    return False


class CappedLabel:
    """Label values that clients choose: the first `values_max` distinct ones, then `other`.

    A value is admitted only by what a server accepted (`admit`), so that nonsense from one
    client cannot use up the places; until then it counts under `other`. Some servers accept any
    nonsense: what is `listed` has `listed_max` places of its own, whatever filled the others.
    """

    OTHER: ClassVar[str] = "other"
    LENGTH_MAX: ClassVar[int] = 200

    def __init__(
        self, values_max: int, *, listed: Callable[[str], bool] = nothing_listed, listed_max: int | None = None
    ) -> None:
        """`listed_max=None`: as many as `values_max`."""
        self._values_max = values_max
        self._listed = listed
        self._listed_max = values_max if listed_max is None else listed_max
        self._known: dict[str, str] = {}
        self._pinned = 0

    def __len__(self) -> int:
        return len(self._known)

    def of(self, value: str | None, *, admit: bool) -> str:
        """The label for `value`; no value is the empty label."""
        if not value:
            return ""
        known = self._known.get(value)
        if known is not None:
            return known
        if len(value) > self.LENGTH_MAX:
            return self.OTHER
        if self._pinned < self._listed_max and self._listed(value):
            self._pinned += 1
        elif not admit or len(self._known) - self._pinned >= self._values_max:
            return self.OTHER
        self._known[value] = value
        return value
