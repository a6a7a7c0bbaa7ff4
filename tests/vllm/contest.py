"""The same requests to the same vLLM servers, through Envoy round robin and through Envoy with the picker, in turn.

Before each run the servers forget all prefixes, and the picker is a new process: nobody begins with what
another run left. Figures come from three places that must agree: vLLM's own counters, the usage in the
answers as the client read it, and the picker's telemetry. What the picker predicted stands beside them.
"""

import asyncio
from collections.abc import Callable

import msgspec

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, build
from picker.lab.load_client import LoadClient
from picker.outcomes import Reason
from picker.sim.prompts import Session
from picker.sim.statistics import Sample, Summary, summarize
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.vllm.servers import ASK_SECONDS_MAX, Counts, Servers

ROUND_ROBIN, PICKER = "round robin", "picker"
ORDER = (ROUND_ROBIN, PICKER, PICKER, ROUND_ROBIN)
"""There and back, so that what drifts with time weighs on both alike."""
UPSTREAM_IDLE_SECONDS = 4
CONFIG = """\
debug: {explain_header: true}
limits: {decision_seconds: 5}
"""
"""Defaults, but for the header that the checks read, and for patience: on two cores that also compute
models a request may wait long, and one that is sent on unread would be missing in the books that are compared."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, once. Tokens are prompt tokens; hit rates are shares of them."""

    policy: str
    summary: Summary
    engine: Counts
    """All servers together, by their own counters."""
    requests_by_server: tuple[int, ...]
    hits_by_server: tuple[float, ...]
    """Hit rate of each."""
    client_prompt_tokens: int
    client_cached_tokens: int
    first_error: str | None
    predicted_tokens: float | None = None
    """What the picker expected to be cached, of the requests whose answers said how it was."""
    observed_tokens: float | None = None
    observed_of_tokens: float | None = None
    decisions: dict[str, int] = {}
    """Picks by reason."""

    @property
    def hit_rate(self) -> float:
        """By vLLM's counters."""
        return self.engine.hits_tokens / self.engine.queries_tokens if self.engine.queries_tokens else 0.0

    @property
    def predicted_rate(self) -> float | None:
        """By the picker, before the requests were sent."""
        if self.predicted_tokens is None or not self.observed_of_tokens:
            return None
        return self.predicted_tokens / self.observed_of_tokens


def picker_in_front(servers: Servers, config: str = CONFIG) -> PickerProcess:
    """A new picker that has read every server. The caller closes it."""
    picker = PickerProcess(servers.addresses, config)
    try:
        wait_until(lambda: picker.metric("picker_unread_endpoints") == 0, "servers are still unread", 30.0)
    except BaseException:
        picker.close()
        raise
    return picker


def through_picker(picker: PickerProcess) -> EnvoyProcess:
    """Envoy in front of it; answers pass the picker too, so that it reads usage. `x-subset` narrows by hand."""
    return _envoy(
        EnvoyConfig(
            balancing=Balancing.ORIGINAL_DST,
            picker_address=picker.grpc_address,
            response_body=BodySendMode.FULL_DUPLEX_STREAMED,
            subset_header="x-subset",
        )
    )


def _envoy(config: EnvoyConfig) -> EnvoyProcess:
    """One that lets go of idle connections before vLLM does.

    vLLM closes a connection after 5 idle seconds (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`). Where its event loop is held
    up just then, a request may have arrived on it, and is answered 503 by Envoy for the connection that went.
    """
    bootstrap = build(config)
    (pods,) = (each for each in bootstrap["static_resources"]["clusters"] if each["name"] == "pods")
    for options in pods["typed_extension_protocol_options"].values():
        options["common_http_protocol_options"] = {"idle_timeout": f"{UPSTREAM_IDLE_SECONDS}s"}
    return EnvoyProcess(bootstrap)


def contest(servers: Servers, asked: list[Session], advance: Callable[[str, Run | None], None]) -> list[Run]:
    """All runs of `ORDER`. `advance` hears of each request's end, and of each run's with the run."""
    runs = []
    for policy in ORDER:
        run = _round_robin(servers, asked, advance) if policy == ROUND_ROBIN else _picked(servers, asked, advance)
        advance(policy, run)
        runs.append(run)
    return runs


def _round_robin(servers: Servers, asked: list[Session], advance: Callable[[str, Run | None], None]) -> Run:
    config = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=servers.addresses)
    with _envoy(config) as envoy:
        return _run(ROUND_ROBIN, servers, envoy.url, asked, advance)


def _picked(servers: Servers, asked: list[Session], advance: Callable[[str, Run | None], None]) -> Run:
    with picker_in_front(servers) as picker, through_picker(picker) as envoy:
        run = _run(PICKER, servers, envoy.url, asked, advance)
        picker.wait_idle()
        return msgspec.structs.replace(
            run,
            predicted_tokens=picker.metric("picker_predicted_hit_tokens_total"),
            observed_tokens=picker.metric("picker_observed_hit_tokens_total"),
            observed_of_tokens=picker.metric("picker_hit_prompt_tokens_total"),
            decisions={
                reason: count
                for reason in Reason
                if (count := round(picker.metric("picker_decisions_total", reason=reason)))
            },
        )


def _run(
    policy: str, servers: Servers, url: str, asked: list[Session], advance: Callable[[str, Run | None], None]
) -> Run:
    servers.empty_caches()
    return play(policy, servers, url, asked, advance)


def play(
    policy: str, servers: Servers, url: str, asked: list[Session], advance: Callable[[str, Run | None], None]
) -> Run:
    """The requests, over caches as they are."""
    before = servers.counts()
    client = LoadClient(url, request_seconds_max=ASK_SECONDS_MAX, on_sample=lambda _: advance(policy, None))
    duration = asyncio.run(client.run(asked))
    each = [after.since(earlier) for earlier, after in zip(before, servers.counts(), strict=True)]
    samples: list[Sample] = client.samples
    return Run(
        policy=policy,
        summary=summarize(samples, (), duration),
        engine=Counts.total(each),
        requests_by_server=tuple(round(one.requests) for one in each),
        hits_by_server=tuple(one.hits_tokens / one.queries_tokens if one.queries_tokens else 0.0 for one in each),
        client_prompt_tokens=sum(sample.prompt_tokens or 0 for sample in samples),
        client_cached_tokens=sum(sample.cached_tokens or 0 for sample in samples),
        first_error=next((sample.error for sample in samples if sample.error is not None), None),
    )
