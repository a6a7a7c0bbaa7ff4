"""Every knob: typed, frozen, units in names, checked once.

docs/configuration.md is generated from the descriptions below, and from the docstrings of the
sections, which say what a section is for and then, in two sentences, when to touch it
(`schema.py`). So a knob is explained here and nowhere else.

Everything is live (a changed file takes effect on the running process) except what
`RESTART_ONLY` names.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from picker.config.config_kv_events import KV_EVENTS_RESTART_ONLY, KvEvents
from picker.config.config_objectives import Objective, Targets
from picker.config.config_sharing import SharedState
from picker.config.config_transport import TransportLimits
from picker.config.config_usage import ProxyMetadata, Tenants

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(ge=0.0, le=1_000_000.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
"""RFC 9110, 5.1: a token."""
HeaderName = Annotated[str, Meta(pattern=HEADER_NAME, max_length=128)]


ROLE_LABEL = "llm-d.ai/role"
"""What a model server does where prefill and decode are split: llm-d's label."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


class Weights(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each objective counts. Costs are in seconds, so 3:3:2 compares like with like.

    Raise `queue` to 5 where a few prompts draw most of the traffic: work then lies more evenly, at the
    same hit rate or a little less. Try any change on your own traffic first, with `picker simulate`
    or `picker tune`.
    """

    prefix: Annotated[Weight, Meta(description="Seconds of prefill that a cached prefix saves. Above 0.")] = 3.0
    queue: Annotated[
        Weight,
        Meta(
            description=(
                "Seconds until the prefill begins: what waits there already, and the wait for room in the KV cache."
            )
        ),
    ] = 3.0
    kv: Annotated[Weight, Meta(description="Seconds of decoding, beside what runs there.")] = 2.0
    lora: Annotated[
        Weight, Meta(description="Seconds until a LoRA adapter is loaded. It counts for requests that name an adapter.")
    ] = 3.0
    eviction: Annotated[
        Weight,
        Meta(
            description=(
                "Seconds of prefill that the request's new blocks push out of a full cache, while other endpoints "
                "have room. 0: off."
            )
        ),
    ] = 1.5
    gpu: Annotated[
        Weight,
        Meta(
            description=(
                "The request's own seconds, times the share of time that the GPU is busy. Needs "
                "engine_metrics.gpu_url. 0: off."
            )
        ),
    ] = 0.0


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what one client or proxy can make the picker hold.

    Raise `request_body_bytes_max` where honest requests are answered 413, and the proxy's own limit
    with it. Raise `index_bytes_max` where `picker_index_bytes` stands at its maximum, and the
    container's memory limit with it.
    """

    request_body_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**30, description="Largest request body that is read. A larger one is answered 413.")
    ] = 16 * 1024 * 1024
    body_wait_seconds: Annotated[
        Seconds, Meta(description="How long a request's body may take to arrive. After that the pick is made by load.")
    ] = 60.0
    decision_seconds: Annotated[
        Seconds,
        Meta(
            description=(
                "How long a request may wait for its decision after its last byte. After that its body is not "
                "read, and the pick is made by load."
            )
        ),
    ] = 0.2
    memory_bytes_max: Annotated[
        Annotated[int, Meta(ge=2**25, le=2**44)] | None,
        Meta(
            description="Bytes for the prefix index and for all that is held for clients. Beyond it, the largest and "
            "slowest request ends. null: four fifths of the container's limit, less 128 MiB for the process."
        ),
    ] = None
    index_bytes_max: Annotated[
        int,
        Meta(
            ge=2**20,
            le=2**40,
            description="Bytes of `memory_bytes_max` that the prefix index may take; never more than half.",
        ),
    ] = 1024 * 1024 * 1024
    models_max: Annotated[
        int,
        Meta(
            ge=1, le=100_000, description="Models for which rates are learned. The least recently used are forgotten."
        ),
    ] = 256
    response_ids_max: Annotated[
        int, Meta(ge=0, le=2**24, description="Stored responses and conversations whose server is remembered.")
    ] = 50_000
    response_ids_seconds: Annotated[Seconds, Meta(description="How long they are remembered after their last use.")] = (
        86_400.0
    )


class EndpointLabels(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which endpoints may be asked at all, by their labels.

    Touch it where one pool holds servers of several kinds: roles, zones, sizes of machine. Your own
    `not_in` replaces the default, so write the role in it too.
    """

    match: Annotated[dict[str, str], Meta(description="Labels that an endpoint must have, with their values.")] = {}
    not_in: Annotated[
        dict[str, list[str]],
        Meta(
            description="Values that a label must not have. The default leaves out servers that only prefill or encode."
        ),
    ] = msgspec.field(default_factory=lambda: {ROLE_LABEL: ["prefill", "encode", "encode-prefill"]})
    header: Annotated[
        HeaderName | None,
        Meta(description="A request header that narrows the choice further: `label=value,label!=value`. null: none."),
    ] = None


class SessionAffinity(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one session go to the server that took the last one, as long as it is there.

    Name a header or cookie where servers keep state that the others do not have. Caches do not need
    it: a conversation's next turn finds its prefix by itself.
    """

    header: Annotated[HeaderName | None, Meta(description="A request header whose value names the session.")] = None
    cookie: Annotated[
        HeaderName | None, Meta(description="A cookie whose value names the session, where no header does.")
    ] = None
    seconds: Annotated[Seconds, Meta(description="How long a session is remembered after its last request.")] = 3600.0
    sessions_max: Annotated[
        int, Meta(ge=1, le=2**24, description="Sessions remembered. The least recently used are forgotten.")
    ] = 50_000


class Debug(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Help with looking into decisions.

    Switch `explain_header` on where you try things out, to see in every answer why it came from where it
    did. Leave it off where clients must not learn your servers' addresses.
    """

    explain_header: Annotated[
        bool, Meta(description="Answers carry a header `x-picker-explain`: endpoint, reason, matched share and cost.")
    ] = False
    page: Annotated[
        bool, Meta(description="`GET /` on the metrics port is a page that shows the pool and its decisions, live.")
    ] = True


class Tracing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry spans, one a request. Needs the extra `tracing`.

    Name the endpoint where you collect traces already. Lower the ratio where spans are lost, or cost
    more than they tell.
    """

    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://")] | None,
        Meta(description="OTLP over gRPC, for example `http://collector:4317`. null: off."),
    ] = None
    sample_ratio: Annotated[
        Share, Meta(description="Share of requests traced, where neither client nor proxy has decided.")
    ] = 0.1


class Saturation(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an endpoint counts as full: as soon as one of the first three is reached. Unknown is not full.

    Touch it only if you send requests of negative priority (`objectives`), because only these are
    refused, and only while every endpoint is full. Lower the marks to keep more room for the others.
    """

    waiting_requests: Annotated[
        Count, Meta(description="Full from so many requests waiting in the engine, by its own gauge.")
    ] = 5
    kv_cache_utilization: Annotated[Share, Meta(description="Full from this share of the KV cache in use.")] = 0.8
    backlog_seconds: Annotated[
        Seconds, Meta(description="Full from so much prefill sent there and not yet done, by the picker's own books.")
    ] = 10.0
    retry_after_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="How long a refused request is told to wait (Retry-After).")
    ] = 1


class Ejection(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Endpoints that fail are passed over for a while, unless that would leave none.

    Lower `failures` where the pool is large and a failed request is dear. Raise `seconds` where your
    servers take longer than that to come back.
    """

    failures: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description=(
                "So many failures in a row eject an endpoint. A failure is a 5xx, a refused connection, or a request "
                "given up long after an answer was due, or a 200 that says it failed; never a 4xx."
            ),
        ),
    ] = 3
    seconds: Annotated[
        Seconds,
        Meta(description="How long the first ejection lasts. Each one in a row lasts twice as long as the one before."),
    ] = 5.0
    seconds_max: Annotated[Seconds, Meta(description="How long an ejection lasts at most.")] = 60.0
    share_max: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="Share of the endpoints that may be ejected at a time. One always may."),
    ] = 0.5


class Routing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the cost model. The defaults come from the simulator; docs/routing.md has the formulas.

    Set `decode_disturbance` to 0.05 or 0.1 where people wait for long prompts, and
    `kv_capacity_tokens` where your engine does not report its KV cache. Leave the others alone: half
    and twice of most of them measure the same.
    """

    prefill_tokens_per_second: Annotated[
        float,
        Meta(
            gt=0,
            le=1e7,
            description=(
                "R: the prefill rate that turns tokens into seconds. A lower one gives waiting more weight beside "
                "decoding."
            ),
        ),
    ] = 10_000.0
    kv_capacity_tokens: Annotated[
        int, Meta(ge=1000, le=2**40, description="C: the KV cache assumed until the engine reports its own.")
    ] = 400_000
    bytes_per_token: Annotated[
        float,
        Meta(
            ge=0.5,
            le=64,
            description="Bytes of text in a token, assumed until a model's usage reports teach the real number.",
        ),
    ] = 4.0
    output_tokens: Annotated[float, Meta(ge=1, le=1e6, description="E: the answer length assumed at first.")] = 250.0
    decode_step_seconds: Annotated[
        float, Meta(ge=0, le=10, description="t0: how long a decode step of an otherwise idle engine takes.")
    ] = 0.01
    decode_seconds_per_sequence: Annotated[
        float, Meta(ge=0, le=1, description="s: what one more sequence adds to a decode step.")
    ] = 5e-5
    decode_seconds_per_token: Annotated[
        float, Meta(ge=0, le=1, description="c: what one more context token adds to a decode step.")
    ] = 5.6e-8
    decode_disturbance: Annotated[
        float, Meta(ge=0, le=10, description="a: the share of a long prefill that each request beside it loses.")
    ] = 0.2
    disturbance_seconds: Annotated[
        float, Meta(gt=0, le=60, description="T: a prefill of this length or more disturbs fully, a shorter one less.")
    ] = 3.0
    overflow_wait: Annotated[
        float, Meta(ge=0, le=10, description="g: the weight of the wait for room in a full KV cache.")
    ] = 1.0
    affinity_break: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description=(
                "k: leave an endpoint that holds the prompt when it costs more than another by k times the "
                "prefill it saves."
            ),
        ),
    ] = 4.0
    shared_weight: Annotated[
        Share,
        Meta(
            description=(
                "The least weight of unmatched tokens that many prompts share, because a new copy will serve "
                "later ones. 1: off."
            )
        ),
    ] = 0.05
    explore_regret_seconds: Annotated[
        Seconds, Meta(description="Exploration takes another endpoint only if that costs at most so much more.")
    ] = 0.2
    index_oversize: Annotated[
        float,
        Meta(ge=0.1, le=10, description="An endpoint's share of the prefix index, as a multiple of its KV cache."),
    ] = 0.95
    index_adapts: Annotated[
        bool, Meta(description="Let that share follow, from 0.5 to 2 times, what the engine reports as cached.")
    ] = True
    adapter_load_seconds: Annotated[Seconds, Meta(description="How long loading a LoRA adapter takes.")] = 0.5
    adapter_wait_seconds: Annotated[
        Seconds, Meta(description="The same where all adapter slots are in use, so that it must wait for one first.")
    ] = 2.0
    learn: Annotated[
        bool,
        Meta(
            description=(
                "Learn from answers which endpoints are slow, how many bytes a token has and how long answers are."
            )
        ),
    ] = True


class Tls(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates for the ext_proc port. Give both files or neither.

    Set them where your proxy checks the picker's certificate. Without them the picker makes a
    self-signed one in memory at each start, which is enough for a proxy that does not check.
    """

    certificate_file: Annotated[
        str | None, Meta(description="A file with the certificate chain (PEM). It is read again when it changes.")
    ] = None
    key_file: Annotated[
        str | None, Meta(description="A file with the private key (PEM). It is read again when it changes.")
    ] = None


class EngineMetricsTls(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates for reading metrics pages over https. All files are read again when they change.

    Set `ca_file` where an authority of your own signs the servers' certificates, and `server_name` where
    these carry a name instead of addresses. Set the other two where servers ask for a client certificate.
    """

    ca_file: Annotated[
        str | None,
        Meta(
            description="A file with the authorities (PEM) that sign the servers' certificates. null: the public ones."
        ),
    ] = None
    certificate_file: Annotated[
        str | None, Meta(description="A file with the chain (PEM) of a client certificate. Needs key_file.")
    ] = None
    key_file: Annotated[str | None, Meta(description="A file with its private key (PEM), unencrypted.")] = None
    server_name: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)] | None,
        Meta(description="The name in the servers' certificates. null: the address that is asked."),
    ] = None


class EngineMetrics(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engines' metrics pages are read.

    Touch it where the pages are on another port or path, behind TLS or behind a token. Raise
    `interval_seconds` in pools of thousands, to save CPU and network.
    """

    scheme: Annotated[Literal["http", "https"], Meta(description="Scheme of the metrics pages.")] = "http"
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="Port of the metrics pages. null: the endpoint's own."),
    ] = None
    path: Annotated[str, Meta(pattern="^/", description="Path of the metrics pages.")] = "/metrics"
    bearer_token_file: Annotated[
        str | None, Meta(description="A file with a bearer token. It is read again when it changes.")
    ] = None
    insecure_skip_verify: Annotated[bool, Meta(description="Accept any certificate, where the scheme is https.")] = (
        False
    )
    tls: EngineMetricsTls = EngineMetricsTls()
    engine: Annotated[
        Literal["vllm", "sglang", "trtllm", "triton", "llamacpp"] | None,
        Meta(description="Which engine it is. null: recognised by what the page shows."),
    ] = None
    interval_seconds: Annotated[
        float, Meta(ge=0.05, le=600, description="Time between two reads of a page, plus or minus a tenth.")
    ] = 1.0
    idle_interval_seconds: Annotated[
        float,
        Meta(
            ge=0.05,
            le=600,
            description="The same at most, in a pool of hundreds, while an endpoint has no requests of the pickers and "
            "its last page told of none: idle endpoints together are read 250 times a second. No more than 0.6 of "
            "stale_seconds counts.",
        ),
    ] = 3.0
    timeout_seconds: Annotated[float, Meta(ge=0.01, le=60, description="How long a read may take.")] = 1.0
    stale_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="A reading older than this counts as unknown.")
    ] = 5.0
    concurrency_max: Annotated[int, Meta(ge=1, le=1024, description="Reads at the same time.")] = 32
    gpu_url: Annotated[
        Annotated[str, Meta(pattern="^http://")] | None,
        Meta(
            description="The DCGM exporter of an endpoint's machine, for example `http://{node}:9400/metrics`. "
            "`{host}`, `{name}` and `{namespace}` can be used too. null: not read."
        ),
    ] = None


class Drain(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens on SIGTERM: readiness turns NOT_SERVING at once, then these times run, then the process ends.

    Raise `seconds` where answers take longer than two minutes, or they are cut. Raise `accept_seconds`
    where your proxy takes longer than ten seconds to notice that the picker is leaving.
    """

    accept_seconds: Annotated[Seconds, Meta(description="How long new streams are still accepted.")] = 10.0
    seconds: Annotated[Seconds, Meta(description="How long running streams may still take after that.")] = 120.0


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration file. Its keys without a section decide how the rule picks.

    Set `objectives` where some traffic may be refused under load, and `destinations_max` where Envoy
    shall have endpoints to fall back to. Leave the others alone, unless a simulation of your traffic
    says otherwise.
    """

    weights: Annotated[Weights, Meta(description="How much each objective counts.")] = Weights()
    epsilon: Annotated[
        Share, Meta(description="How often another endpoint than the best is tried, as a share of decisions.")
    ] = 0.01
    threshold: Annotated[
        Share, Meta(description="Endpoints that hold this share of the prompt, or more, go first.")
    ] = 0.8
    scoring: Annotated[
        Literal["cost", "normalized"],
        Meta(
            description=(
                "`cost`: seconds. `normalized`: weighted scores from 0 to 1 over scraped gauges, as other pickers "
                "have, to compare."
            )
        ),
    ] = "cost"
    destinations_max: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description=(
                "How many endpoints Envoy is given, the pick first. Above 1 only with override_host, not with "
                "ORIGINAL_DST."
            ),
        ),
    ] = 1
    objectives: Annotated[
        dict[str, int | Objective],
        Meta(
            description=(
                "By name, as the header `x-gateway-inference-objective` names them: a priority (below 0: may be "
                "refused), or a table with any of `priority`, `ttft_seconds` and `tpot_seconds`, the last two in place "
                "of those of `targets`."
            )
        ),
    ] = {}
    targets: Targets = Targets()
    usage_file: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description=(
                "A file that gets one JSON line for each request: who, what model, how many tokens; no content. "
                "At 256 MiB it becomes `FILE.1`."
            )
        ),
    ] = None
    endpoint_labels: EndpointLabels = EndpointLabels()
    session_affinity: SessionAffinity = SessionAffinity()
    limits: Limits = Limits()
    saturation: Saturation = Saturation()
    ejection: Ejection = Ejection()
    routing: Routing = Routing()
    engine_metrics: EngineMetrics = EngineMetrics()
    kv_events: KvEvents = KvEvents()
    tls: Tls = Tls()
    drain: Drain = Drain()
    transport: TransportLimits = TransportLimits()
    shared_state: SharedState = SharedState()
    tenants: Tenants = Tenants()
    proxy_metadata: ProxyMetadata = ProxyMetadata()
    tracing: Tracing = Tracing()
    debug: Debug = Debug()

    def __post_init__(self) -> None:
        if self.weights.prefix <= 0:
            raise ValueError("weights.prefix must be above 0: costs are expressed in seconds of prefill")
        if (self.tls.certificate_file is None) != (self.tls.key_file is None):
            raise ValueError("tls needs both certificate_file and key_file, or neither")
        if self.ejection.seconds_max < self.ejection.seconds:
            raise ValueError("ejection.seconds_max is below ejection.seconds")


RESTART_ONLY = (
    "tls.certificate_file",
    "tls.key_file",
    "limits.memory_bytes_max",
    "limits.index_bytes_max",
    "engine_metrics.gpu_url",
    *KV_EVENTS_RESTART_ONLY,
    "tracing.otlp_endpoint",
    "tracing.sample_ratio",
    "transport",
    "shared_state",
    "usage_file",
    "tenants.tenants_max",
)
"""Keys whose change needs a restart (the files themselves are read again when they change)."""
