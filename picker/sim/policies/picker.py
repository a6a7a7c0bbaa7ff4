"""Ours: the production director with its books and index, driven as an exchange drives it.

Streams send their headers at once, as vLLM does; the first body chunk is the first token. Answers
that are not streamed send headers and body together, at the end.
"""

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.decision import Picked
from picker.director import Director
from picker.outcomes import Usage
from picker.pool.specs import EndpointSpec, EngineSample
from picker.sim.block_cache import BlockCache
from picker.sim.policies.policy import Gauges, Setting, Ticket
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN
from picker.sim.scripts import SimRequest


class PickerPolicy:
    """One picker process."""

    def __init__(self, setting: Setting, config: Config | None = None) -> None:
        self.director = Director(config or setting.config)
        self.scrape_seconds: float | None = self.director.config.engine_metrics.interval_seconds
        self._rng = setting.rng
        self._first_chunk_visible = setting.first_chunk_visible
        self._specs: dict[int, EndpointSpec] = {}
        self._replicas: dict[str, int] = {}
        self.director.replace_endpoints(())

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """As a source tells it: the whole set."""
        address = f"10.0.{replica >> 8}.{replica & 255}:8000"
        self._specs[replica] = EndpointSpec(address=address, uid=str(replica), name=f"replica-{replica}")
        self._replicas[address] = replica
        self.director.replace_endpoints(self._specs.values())

    def leave(self, replica: int, now: float) -> None:
        """Likewise."""
        del self._replicas[self._specs.pop(replica).address]
        self.director.replace_endpoints(self._specs.values())

    def scraped(self, replica: int, gauges: Gauges) -> None:
        """As the scraper tells it."""
        self.director.record_sample(
            EngineSample(
                uid=str(replica),
                taken_at_seconds=gauges.taken_at_seconds,
                engine="vllm",
                waiting_requests=gauges.waiting_requests,
                running_requests=gauges.running_requests,
                kv_cache_utilization=gauges.kv_cache_utilization,
                kv_capacity_tokens=gauges.kv_capacity_tokens,
                block_size_tokens=BLOCK_TOKENS,
                prompt_tokens_total=gauges.prompt_tokens_total,
            )
        )

    def pick(self, request: SimRequest, now: float) -> Ticket | None:
        """The director's decision."""
        decision = self.director.decide(
            InferenceRequest(
                api="chat_completions",
                model=request.model,
                prompt_bytes=request.prompt_tokens * BYTES_PER_TOKEN,
                block_hashes=request.block_hashes,
                stream=request.streaming,
            ),
            now=now,
            rng=self._rng,
            first_chunk_visible=self._first_chunk_visible,
        )
        if not isinstance(decision, Picked):
            return None
        return Ticket(self._replicas[decision.addresses[0]], decision.charge)

    def answered(self, ticket: Ticket, status: int, now: float) -> None:
        """Response headers."""
        self.director.answered(ticket.state, status, now)
        if status != 200:
            self.director.not_streamed(ticket.state)

    def first_token(self, ticket: Ticket, request: SimRequest, now: float) -> None:
        """Seen only where response bodies pass us."""
        if self._first_chunk_visible:
            self.director.first_token(ticket.state, now)

    def finished(self, ticket: Ticket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """The exchange's end. Usage is read from bodies."""
        self.director.finish(ticket.state, reached=True, usage=usage if self._first_chunk_visible else None)

    def check(self) -> None:
        """The books and the index."""
        self.director.datastore.check()
        self.director.index.check()
