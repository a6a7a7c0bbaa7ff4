"""Ours: the production director with its books and index, driven as an exchange drives it.

Streams send their headers at once, as vLLM does; the first body chunk is the first token. Answers
that are not streamed send headers and body together, at the end.
"""

from collections.abc import Callable

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.decision import Picked
from picker.director import Director
from picker.outcomes import Usage
from picker.pool.specs import EndpointSpec, EngineSample
from picker.residency.residency import Residency
from picker.residency.wire import Event
from picker.sim.block_cache import BlockCache
from picker.sim.policies.policy import Gauges, PolicyTicket, Setting
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
        self._sessions: dict[object, str] = {}
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
                prefix_queries_total=gauges.prefix_queries_total,
                prefix_hits_total=gauges.prefix_hits_total,
            )
        )

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
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
        if decision.booking.session_id is not None:
            self._sessions[request.number] = decision.booking.session_id
        return PolicyTicket(self._replicas[decision.addresses[0]], decision.booking)

    # KV events, where the fleet publishes them

    def listen(self, replica: int) -> None:
        """Its engine's events will come."""
        if self.director.residency is None:
            self.director.listen(Residency(self.director.index))
        self._residency(replica, lambda residency, slot: residency.heard(slot))

    def session_of(self, number: object) -> str | None:
        """What a request is called to its engine."""
        return self._sessions.get(number)

    def heard(self, replica: int, event: Event) -> None:
        """An event arrived."""
        self._residency(replica, lambda residency, slot: residency.apply(slot, [event]))

    def missed(self, replica: int) -> None:
        """One was lost, and that shows by the next one's number."""
        self._residency(replica, lambda residency, slot: residency.missed(slot))

    def _residency(self, replica: int, tell: Callable[[Residency, int], None]) -> None:
        endpoint = self.director.datastore.find(str(replica))
        if self.director.residency is not None and endpoint is not None:
            tell(self.director.residency, endpoint.slot)

    def answered(self, ticket: PolicyTicket, status: int, now: float) -> None:
        """Response headers."""
        self.director.answered(ticket.state, status, now)
        if status != 200:
            self.director.not_streamed(ticket.state)

    def first_token(self, ticket: PolicyTicket, request: SimRequest, now: float) -> None:
        """Seen only where response bodies pass us."""
        if self._first_chunk_visible:
            self.director.first_token(ticket.state, now)

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """The exchange's end. Usage is read from bodies."""
        if usage is not None:
            self.director.ended_well(ticket.state, now)
        self.director.finish(ticket.state, reached=True, usage=usage if self._first_chunk_visible else None)

    def check(self) -> None:
        """The books and the index."""
        self.director.datastore.check()
        self.director.index.check()
