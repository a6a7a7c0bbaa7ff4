"""The rule as docs/routing.md states it, in plain Python: one endpoint at a time, no numpy, no bitmasks.

Nothing here is taken from the code under test; where the rule draws at random, every outcome that
it permits is listed.
"""

from dataclasses import dataclass, field

R, A, T, G, K_BREAK, T0, S, C = 10_000.0, 0.2, 3.0, 1.0, 4.0, 0.01, 5e-5, 5.6e-8
TINY = 1e-9


@dataclass
class One:
    """An endpoint as the rule sees it."""

    name: str
    slowness: float = 1.0
    Q: float = 0.0
    foreign: float | None = 0.0
    """Fresh and known, or None."""
    d: int = 0
    capacity: float | None = 400_000.0
    """Known, or None."""
    context: float = 0.0
    """Prompt tokens of our own requests in flight."""
    utilization: float | None = None
    """Fresh and known, or None."""
    matched_blocks: int = 0
    stands: bool = True
    last: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Silent: the share of the requests in flight at its last reading that still are, its utilisation, its foreign."""


@dataclass
class Rule:
    """Constants and the request."""

    prompt_bytes: int
    blocks: int
    bytes_per_token: float = 4.0
    expected_output: float = 250.0
    """Of this request."""
    mean_output: float = 250.0
    """Of the model's requests."""
    mean_uncached: float = 512.0
    weights: tuple[float, float, float] = (3.0, 3.0, 2.0)
    threshold: float = 0.8
    regret: float = 0.2
    endpoints: list[One] = field(default_factory=list)

    @property
    def p(self) -> float:
        return self.prompt_bytes / self.bytes_per_token

    def m(self, one: One) -> float:
        return min(self.p, one.matched_blocks * 1024 / self.bytes_per_token)

    def share(self, one: One) -> float:
        return one.matched_blocks / self.blocks if self.blocks else 0.0

    def capacity(self, one: One) -> float:
        known = [each.capacity for each in self.endpoints if each.capacity is not None]
        return one.capacity if one.capacity is not None else sum(known) / len(known) if known else 400_000.0

    def reported(self, one: One) -> float:
        """Unknown counts as the mean of the known, in tokens or as a share, whichever is less."""
        if one.utilization is not None:
            return one.utilization * self.capacity(one)
        known = [each for each in self.endpoints if each.utilization is not None]
        still, utilization, _ = one.last
        remembered = still * utilization * self.capacity(one)
        if not known:
            return remembered
        share = sum(each.utilization for each in known) / len(known)
        tokens = sum(each.utilization * self.capacity(each) for each in known) / len(known)
        return max(remembered, min(tokens, share * self.capacity(one)))

    def foreign(self, one: One) -> float:
        if one.foreign is not None:
            return one.foreign
        known = [each.foreign for each in self.endpoints if each.foreign is not None]
        still, _, foreign = one.last
        return max(still * foreign, sum(known) / len(known) if known else 0.0)

    def seconds(self, one: One) -> dict[str, float]:
        u = self.p - self.m(one)
        capacity = self.capacity(one)
        k = max(one.context, self.reported(one))
        e = self.expected_output
        mean = self.mean_output
        over = max(0.0, k + one.d * mean / 2 + self.p - capacity)
        if k + self.p > capacity:  # somebody has to end first
            over += capacity / (one.d + 1)
        step = S * (one.d + 1) + C * (k + self.p)
        x = u / R
        turnover = mean * (T0 + step)
        nominal = {
            "prefix": x * (1 + A * one.d * min(1, x / T)),
            "queue": (one.Q + self.foreign(one) * self.mean_uncached) / R + G * over / capacity * turnover,
            "kv": e * step,
        }
        return {name: one.slowness * value for name, value in nominal.items()}

    def cost(self, one: One) -> float:
        part = self.seconds(one)
        wp, wq, wk = self.weights
        return (wp * part["prefix"] + wq * part["queue"] + wk * part["kv"]) / wp

    def least(self, candidates: list[One]) -> list[One]:
        """All that a random tie-break may choose."""
        lowest = min(self.cost(one) for one in candidates)
        limit = lowest + max(0.001, 0.02 * lowest)
        return [one for one in candidates if self.cost(one) <= limit + TINY]

    def hot(self, candidates: list[One]) -> list[One]:
        above = [one for one in candidates if one.matched_blocks and self.share(one) >= self.threshold]
        if above:
            return above
        longest = max(self.m(one) for one in candidates)
        if longest < 256:
            return []
        return [one for one in candidates if self.m(one) >= 0.8 * longest - TINY]

    def picks(self) -> set[tuple[str, str]]:
        """Every `(name, reason)` that may come out without exploration."""
        candidates = [one for one in self.endpoints if one.stands]
        hot = self.hot(candidates)
        found = set()
        for best in self.least(candidates):
            if not hot:
                found.add((best.name, "load"))
                continue
            for home in self.least(hot):
                more = self.cost(home) - self.cost(best)
                worth = K_BREAK * max(0.0, self.m(home) - self.m(best)) / R * home.slowness
                if more <= worth + TINY:
                    found.add((home.name, "affinity"))
                if more > worth - TINY:
                    found.add((best.name, "break"))
        return found

    def explored(self) -> set[tuple[str, str]]:
        """The same where the draw says explore."""
        candidates = [one for one in self.endpoints if one.stands]
        by_name = {one.name: one for one in candidates}
        found = set()
        for name, reason in self.picks():
            others = [one for one in candidates if one.name != name]
            for other in self.least(others) if others else []:
                regret = self.cost(other) - self.cost(by_name[name])
                if regret <= self.regret + TINY:
                    found.add((other.name, "explore"))
                if regret > self.regret - TINY:
                    found.add((name, reason))
            if not others:
                found.add((name, reason))
        return found
