"""Every knob: typed, frozen, units in names, checked once.

One YAML file. An unknown key is an error that names the key and its nearest neighbour; a value
out of range is an error that names the path, the value's bound and what was given. The README's
reference is generated from the descriptions below (`picker check --reference`), so this file
is the only place where a knob is explained.

Everything is live (a changed file takes effect on the running process) except what
`RESTART_ONLY` names.
"""

import difflib
import re
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from picker.config_transport import TransportLimits

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(ge=0.0, le=1_000_000.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)]
"""RFC 9110, 5.1: a token."""


ROLE_LABEL = "llm-d.ai/role"
"""What a model server does where prefill and decode are split: llm-d's label."""


class ConfigError(ValueError):
    """What is wrong with a configuration, in words that name the key and the fix."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


class Weights(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each objective counts. Costs are in seconds, so 3:3:2 compares like with like."""

    prefix: Annotated[Weight, Meta(description="Seconds of prefill that a cached prefix saves. Above 0.")] = 3.0
    queue: Annotated[
        Weight, Meta(description="Seconds until prefill begins: what waits there already, and room in its KV cache.")
    ] = 3.0
    kv: Annotated[Weight, Meta(description="Seconds of decoding beside what runs there.")] = 2.0
    lora: Annotated[
        Weight, Meta(description="Seconds until a LoRA adapter is loaded. Counts for requests that name an adapter.")
    ] = 3.0
    gpu: Annotated[
        Weight,
        Meta(description="The request's own seconds, as far as the GPU is busy. Needs engine_metrics.gpu_url; 0: off."),
    ] = 0.0


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what one client or proxy can make the picker hold."""

    request_body_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**30, description="Largest request body that is read; beyond it the answer is 413.")
    ] = 16 * 1024 * 1024
    body_wait_seconds: Annotated[
        Seconds, Meta(description="How long a request's body may take to arrive; then the pick is made by load.")
    ] = 60.0
    decision_seconds: Annotated[
        Seconds,
        Meta(description="From the last request byte; a request that waited longer is picked by load, unparsed."),
    ] = 0.2
    index_bytes_max: Annotated[
        int, Meta(ge=2**20, le=2**40, description="Memory for the prefix index over all endpoints.")
    ] = 1024 * 1024 * 1024
    models_max: Annotated[
        int, Meta(ge=1, le=100_000, description="Models for which rates are learned; the least recently used go.")
    ] = 256
    response_ids_max: Annotated[
        int, Meta(ge=0, le=2**24, description="Stored responses and conversations whose server is remembered.")
    ] = 50_000
    response_ids_seconds: Annotated[Seconds, Meta(description="How long they are remembered after their last use.")] = (
        86_400.0
    )


class EndpointLabels(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which endpoints may be asked at all, by their labels."""

    match: Annotated[dict[str, str], Meta(description="Labels that an endpoint must have, with their values.")] = {}
    not_in: Annotated[
        dict[str, list[str]],
        Meta(description="Values that a label must not have. By default, servers that only prefill or encode are out."),
    ] = msgspec.field(default_factory=lambda: {ROLE_LABEL: ["prefill", "encode", "encode-prefill"]})
    header: Annotated[
        HeaderName | None,
        Meta(description="A request header that narrows them further: `label=value,label!=value`. null: none."),
    ] = None


class SessionAffinity(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one session go to the server that took the last one, as long as it is there."""

    header: Annotated[HeaderName | None, Meta(description="A request header whose value names the session.")] = None
    cookie: Annotated[
        HeaderName | None, Meta(description="A cookie whose value names it, where the header does not.")
    ] = None
    seconds: Annotated[Seconds, Meta(description="How long a session is remembered after its last request.")] = 3600.0
    sessions_max: Annotated[
        int, Meta(ge=1, le=2**24, description="Sessions remembered; the least recently used go.")
    ] = 50_000


class Debug(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For those who look into a decision."""

    explain_header: Annotated[
        bool, Meta(description="Answers carry x-picker-explain: endpoint, reason, matched share and cost.")
    ] = False


class Tracing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry spans, one a request. Needs the extra `tracing`."""

    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://")] | None,
        Meta(description="OTLP over gRPC, http://collector:4317; null: off."),
    ] = None
    sample_ratio: Annotated[
        Share, Meta(description="Share of requests traced where the client or proxy has not decided.")
    ] = 0.1


class Saturation(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an endpoint counts as full. Unknown is not full."""

    waiting_requests: Annotated[Count, Meta(description="Requests waiting in the engine, by its own gauge.")] = 5
    kv_cache_utilization: Annotated[Share, Meta(description="Share of the KV cache in use.")] = 0.8
    backlog_seconds: Annotated[Seconds, Meta(description="Prefill sent there and not yet done, by our books.")] = 10.0
    retry_after_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="What a shed request is told to wait (Retry-After).")
    ] = 1


class Ejection(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Endpoints that fail are passed over for a while, unless that would leave none."""

    failures: Annotated[
        int, Meta(ge=1, le=1000, description="Failures in a row (5xx, refused; never 4xx) that eject.")
    ] = 3
    seconds: Annotated[Seconds, Meta(description="First time aside; doubles with each ejection in a row.")] = 5.0
    seconds_max: Annotated[Seconds, Meta(description="Longest time aside.")] = 60.0


class Routing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the cost model (docs/routing.md). The defaults come from the simulator."""

    prefill_tokens_per_second: Annotated[
        float,
        Meta(
            gt=0,
            le=1e7,
            description="R: prefill rate of the engine that costs are seconds of; weighs waiting against decoding.",
        ),
    ] = 10_000.0
    kv_capacity_tokens: Annotated[
        int, Meta(ge=1000, le=2**40, description="C: KV cache assumed until the engine reports it.")
    ] = 400_000
    bytes_per_token: Annotated[
        float, Meta(ge=0.5, le=64, description="Assumed until a model's usage reports teach the real one.")
    ] = 4.0
    output_tokens: Annotated[float, Meta(ge=1, le=1e6, description="E: answer length assumed at first.")] = 250.0
    decode_step_seconds: Annotated[
        float, Meta(ge=0, le=10, description="t0: a decode step of an engine that does nothing else.")
    ] = 0.01
    decode_seconds_per_sequence: Annotated[
        float, Meta(ge=0, le=1, description="s: what one more sequence adds to a decode step.")
    ] = 5e-5
    decode_seconds_per_token: Annotated[
        float, Meta(ge=0, le=1, description="c: what one more context token adds to a decode step.")
    ] = 5.6e-8
    decode_disturbance: Annotated[
        float, Meta(ge=0, le=10, description="a: share of a long prefill that each request beside it loses.")
    ] = 0.2
    disturbance_seconds: Annotated[
        float, Meta(gt=0, le=60, description="T: from how long on a prefill disturbs fully; shorter ones do less.")
    ] = 3.0
    overflow_wait: Annotated[
        float, Meta(ge=0, le=10, description="g: weight of the wait for room in a full KV cache.")
    ] = 1.0
    affinity_break: Annotated[
        float,
        Meta(ge=0, le=1000, description="k: leave the cached endpoint when it costs k times the work saved more."),
    ] = 4.0
    shared_weight: Annotated[
        Share,
        Meta(description="Least weight of unmatched tokens that many prompts share (a copy is an investment); 1: off."),
    ] = 0.05
    explore_regret_seconds: Annotated[
        Seconds, Meta(description="Exploration takes another endpoint only if it costs at most this much more.")
    ] = 0.2
    index_oversize: Annotated[
        float, Meta(ge=0.1, le=10, description="Index capacity over the engine's KV capacity, per endpoint.")
    ] = 1.25
    adapter_load_seconds: Annotated[Seconds, Meta(description="Until a LoRA adapter is loaded that is not.")] = 0.5
    adapter_wait_seconds: Annotated[
        Seconds, Meta(description="The same where all adapter slots are in use, so that it must wait for one.")
    ] = 2.0
    learn: Annotated[
        bool, Meta(description="Learn which endpoints are slow, bytes per token and answer lengths online.")
    ] = True


class Tls(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates for the ext_proc port. Both or neither; neither means self-signed in memory."""

    certificate_file: Annotated[str | None, Meta(description="PEM chain; read again when it changes.")] = None
    key_file: Annotated[str | None, Meta(description="PEM key; read again when it changes.")] = None


class EngineMetrics(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engines' /metrics pages are read."""

    scheme: Annotated[Literal["http", "https"], Meta(description="Scheme of the metrics page.")] = "http"
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="Its port; null: the endpoint's own.")
    ] = None
    path: Annotated[str, Meta(pattern="^/", description="Its path.")] = "/metrics"
    bearer_token_file: Annotated[str | None, Meta(description="A file with a bearer token, read again on change.")] = (
        None
    )
    insecure_skip_verify: Annotated[bool, Meta(description="Accept any certificate when the scheme is https.")] = False
    engine: Annotated[
        Literal["vllm", "sglang", "trtllm", "triton", "llamacpp"] | None,
        Meta(description="Which engine; null: recognised by what the page shows."),
    ] = None
    interval_seconds: Annotated[float, Meta(ge=0.05, le=600, description="Time between two scrapes, jittered.")] = 1.0
    timeout_seconds: Annotated[float, Meta(ge=0.01, le=60, description="Longest scrape.")] = 1.0
    stale_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="Age from which a reading counts as unknown.")
    ] = 5.0
    concurrency_max: Annotated[int, Meta(ge=1, le=1024, description="Scrapes at the same time.")] = 32
    gpu_url: Annotated[
        Annotated[str, Meta(pattern="^http://")] | None,
        Meta(
            description="DCGM exporter of an endpoint's machine, http://{node}:9400/metrics; {host}, {name} and "
            "{namespace} are known too. null: not read."
        ),
    ] = None


class Drain(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens on SIGTERM."""

    accept_seconds: Annotated[
        Seconds, Meta(description="New streams still accepted after readiness turned NOT_SERVING.")
    ] = 10.0
    seconds: Annotated[Seconds, Meta(description="Then how long running streams may take.")] = 120.0


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration file."""

    weights: Annotated[Weights, Meta(description="The three objectives.")] = Weights()
    epsilon: Annotated[Share, Meta(description="Probability of exploring another endpoint, one draw a decision.")] = (
        0.01
    )
    threshold: Annotated[Share, Meta(description="Matched share of the prompt from which holders go first.")] = 0.8
    scoring: Annotated[
        Literal["cost", "normalized"],
        Meta(description="`cost`: seconds. `normalized`: weighted 0..1 scores over scraped gauges, to compare."),
    ] = "cost"
    destinations_max: Annotated[
        int,
        Meta(
            ge=1, le=16, description="Length of the fallback list. Above 1 only with override_host, not ORIGINAL_DST."
        ),
    ] = 1
    objectives: Annotated[
        dict[str, int], Meta(description="Priority by name of the x-gateway-inference-objective header; below 0 sheds.")
    ] = {}
    endpoint_labels: EndpointLabels = EndpointLabels()
    session_affinity: SessionAffinity = SessionAffinity()
    limits: Limits = Limits()
    saturation: Saturation = Saturation()
    ejection: Ejection = Ejection()
    routing: Routing = Routing()
    engine_metrics: EngineMetrics = EngineMetrics()
    tls: Tls = Tls()
    drain: Drain = Drain()
    transport: TransportLimits = TransportLimits()
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
    "limits.index_bytes_max",
    "engine_metrics.gpu_url",
    "tracing.otlp_endpoint",
    "tracing.sample_ratio",
    "transport",
)
"""Keys whose change needs a restart (the files themselves are read again when they change)."""


def load(text: str) -> Config:
    """Parse and check a configuration file. Raises `ConfigError`; an empty file is all defaults."""
    try:
        tree = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"not valid YAML: {_one_line(str(error))}") from None
    except ConfigError:
        raise
    except ValueError as error:  # a scalar that looks like a date or carries a tag, and is none
        raise ConfigError(f"not valid YAML: {_one_line(str(error))}; quote the text") from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"expected a table of keys, found {type(tree).__name__}")
    _check_keys(tree, Config, "")
    try:
        return msgspec.convert(tree, Config)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(_in_words(error)) from None


class _Loader(yaml.SafeLoader):
    """Safe, and strict where YAML readers are silent: a key given twice is an error, not a contest."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            own = node.start_mark.index <= key.start_mark.index < node.end_mark.index  # not merged in by `<<`
            if not (own and isinstance(key, yaml.ScalarNode)):
                continue
            mark = key.start_mark
            earlier = first.setdefault(key.value, mark)
            if earlier.index != mark.index:
                raise ConfigError(
                    f"line {mark.line + 1}: {key.value} is given twice (first in line {earlier.line + 1})"
                )
        return super().construct_mapping(node, deep)


def warnings(config: Config) -> tuple[str, ...]:
    """Settings that load but do not do what their author probably wants, each with the fix."""
    found = []
    weights = config.weights
    if weights.prefix > 10 * max(weights.queue, weights.kv):
        found.append(
            f"weights.prefix {weights.prefix:g} is over 10 times queue and kv: load hardly counts, "
            "hot prefixes will pile up; lower it, or raise queue"
        )
    if config.threshold < 0.1:
        found.append(f"threshold {config.threshold:g}: nearly any match counts as affinity; 0.8 is the default")
    if config.epsilon > 0.2:
        found.append(f"epsilon {config.epsilon:g}: more than one request in five goes away from its cache")
    if config.routing.index_oversize < 0.8:
        found.append(
            f"routing.index_oversize {config.routing.index_oversize:g}: an index smaller than the engine's cache "
            "forgets prefixes that are still there; oversize it when unsure"
        )
    if ROLE_LABEL not in config.endpoint_labels.not_in:
        found.append(
            f"endpoint_labels.not_in does not name {ROLE_LABEL}: servers that only prefill get ordinary requests; "
            "add it with the default's values, or with [] where that is meant"
        )
    if weights.gpu and config.engine_metrics.gpu_url is None:
        found.append("weights.gpu has no effect without engine_metrics.gpu_url: say where the exporters are")
    if weights.gpu and config.scoring == "normalized":
        found.append("weights.gpu has no effect with scoring: normalized; use cost, or leave the weight at 0")
    return tuple(found)


def changed_restart_only(old: Config, new: Config) -> tuple[str, ...]:
    """Which keys of `RESTART_ONLY` differ: the caller says that they wait for a restart."""
    return tuple(key for key in RESTART_ONLY if _at(old, key) != _at(new, key))


def reference() -> list[tuple[str, str, str]]:
    """Rows `(key, default, description)` for every knob, in file order. Source of the README's table."""
    rows: list[tuple[str, str, str]] = []
    _reference_rows(Config, Config(), "", rows)
    return rows


def reference_table() -> str:
    """The same as a Markdown table."""
    rows = [f"| `{key}` | `{default}` | {text} |" for key, default, text in reference()]
    return "\n".join(("| key | default | what it does |", "|---|---|---|", *rows))


def _reference_rows(section: type[Any], defaults: Any, prefix: str, rows: list[tuple[str, str, str]]) -> None:
    for name, hint in get_type_hints(section, include_extras=True).items():
        value = getattr(defaults, name)
        if isinstance(value, msgspec.Struct):
            _reference_rows(type(value), value, f"{prefix}{name}.", rows)
            continue
        rows.append((f"{prefix}{name}", msgspec.json.encode(value).decode(), _description(hint)))


def _description(hint: Any) -> str:
    if get_origin(hint) is not Annotated:
        return ""
    texts = [m.description for m in get_args(hint)[1:] if isinstance(m, Meta) and m.description]
    return texts[-1] if texts else ""


def _check_keys(tree: dict[Any, Any], section: type[Any], path: str) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    for key, value in tree.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.5)
            hint = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
            raise ConfigError(f"unknown key {path}{key}: {hint}")
        default = fields[key].default
        if isinstance(default, msgspec.Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{path}{key}: expected a table of keys, found {type(value).__name__}")
            _check_keys(value, type(default), f"{path}{key}.")


def _in_words(error: Exception) -> str:
    """msgspec says `Expected ... - at `$.weights.prefix``; put the key first."""
    text = _one_line(str(error))
    found = re.fullmatch(r"(.*?) - at `\$\.?(.*)`", text)
    return f"{found.group(2)}: {found.group(1)}" if found and found.group(2) else text


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
