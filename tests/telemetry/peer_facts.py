"""The facts of peer_metrics.yaml and peer_queries.yaml, as values."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent


class PeerMetric(NamedTuple):
    """What the llm-d router's source says of one metric. `absent`: why the picker does not emit it."""

    name: str
    type: str
    labels: frozenset[str]
    bounds: tuple[float, ...] | None
    absent: str | None


def _metrics(section: str) -> dict[str, PeerMetric]:
    facts: dict[str, Any] = yaml.safe_load((HERE / "peer_metrics.yaml").read_text())
    found = {}
    for name, row in facts[section].items():
        given = row["labels"] if isinstance(row["labels"], list) else [row["labels"]]
        labels = {label for each in given for label in facts["labels"].get(each, [each])}
        bounds = tuple(map(float, facts["bounds"][row["bounds"]])) if "bounds" in row else None
        absent = row.get("absent")
        assert absent is None or absent in facts["reasons"], name
        found[name] = PeerMetric(name, row["type"], frozenset(labels), bounds, absent)
    return found


NEWER = _metrics("metrics")
OLDER = _metrics("older")
EMITTED = {name: metric for name, metric in {**NEWER, **OLDER}.items() if metric.absent is None}


class PeerPanel(NamedTuple):
    """A panel, alert or trigger of theirs. `empty`: why it shows nothing of the picker."""

    origin: str
    shows: str
    reads: tuple[str, ...]
    by: tuple[str, ...]
    selects: dict[str, str | None]
    empty: str | None

    def queries(self, seconds: int) -> list[str]:
        """One for each metric that it reads, over the last `seconds`."""
        return [self._query({**NEWER, **OLDER}[name], seconds) for name in self.reads]

    def _query(self, metric: PeerMetric, seconds: int) -> str:
        given = ((label, f'="{value}"' if value else '=~".+"') for label, value in self.selects.items())
        chosen = "{" + ",".join(label + match for label, match in given) + "}"
        if metric.type == "histogram":
            groups = ",".join(("le", *self.by))
            return f"histogram_quantile(0.9, sum by ({groups}) (rate({metric.name}_bucket{chosen}[{seconds}s])))"
        series = metric.name + chosen
        if metric.type == "counter":
            series = f"rate({series}[{seconds}s])"
        return f"sum by ({','.join(self.by)}) ({series})"


def _panels() -> list[PeerPanel]:
    sources: list[dict[str, Any]] = yaml.safe_load((HERE / "peer_queries.yaml").read_text())
    found = []
    for source in sources:
        for row in source["panels"]:
            assert row.keys() <= {"shows", "reads", "by", "selects", "empty", "fires"}, row
            reads, by = tuple(row.get("reads", ())), tuple(row.get("by", ()))
            found.append(PeerPanel(source["from"], row["shows"], reads, by, row.get("selects", {}), row.get("empty")))
    return found


REASONS: dict[str, str] = yaml.safe_load((HERE / "peer_metrics.yaml").read_text())["reasons"]
PANELS = _panels()
TARGET_LABELS = {"namespace": "models", "pod": "picker-0", "service": "picker"}
"""What a scrape in a cluster adds."""
