"""What is counted of the messages in which KV events come, over all engines."""


class Heard:
    """Counters. Who reads the messages raises them."""

    __slots__ = ("batches_total", "gaps_total", "lag_seconds", "malformed_total", "replayed_total", "skipped_total")

    def __init__(self) -> None:
        self.batches_total = 0
        self.gaps_total = 0
        self.replayed_total = 0
        self.malformed_total = 0
        self.skipped_total = 0
        self.lag_seconds: float | None = None
        """From an engine's clock to ours, at the last batch: it shows queues, and clocks that differ."""
