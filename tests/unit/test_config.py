"""The configuration: what is wrong is said in words that name the key, its neighbour and the bound."""

import pytest

from picker import config
from picker.config import Config, ConfigError, load


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weigths: {prefix: 1}", ["unknown key weigths", "did you mean weights?"]),
        ("weights: {prefixx: 1}", ["unknown key weights.prefixx", "weights.prefix?"]),
        ("limits: {request_body_max: 5}", ["limits.request_body_max", "limits.request_body_bytes_max?"]),
        ("prefx_wait: 1", ["unknown key prefx_wait", "known here:", "weights"]),
        ("weights: {zzz: 1}", ["weights.zzz", "known here: eviction, gpu, kv, lora, prefix, queue"]),
        ("1: 2", ["unknown key 1"]),
        ("weights: 5", ["weights", "table", "int"]),
        ("weights:", ["weights", "table"]),
        ("weights: {prefix: 0}", ["weights.prefix", "above 0"]),
        ("weights: {prefix: -1}", ["weights.prefix", ">= 0"]),
        ("weights: {queue: .nan}", ["weights.queue"]),
        ("weights: {queue: .inf}", ["weights.queue", "<= 1000000"]),
        ("epsilon: 1.1", ["epsilon", "<= 1.0"]),
        ("epsilon: -0.1", ["epsilon", ">= 0.0"]),
        ("epsilon: true", ["epsilon", "float", "bool"]),
        ("epsilon: '0.5'", ["epsilon", "float", "str"]),
        ("threshold: .nan", ["threshold"]),
        ("routing: {prefill_tokens_per_second: 0}", ["routing.prefill_tokens_per_second", "> 0"]),
        ("routing: {prefill_tokens_per_second: .nan}", ["routing.prefill_tokens_per_second"]),
        ("scoring: fast", ["scoring", "fast"]),
        ("destinations_max: 0", ["destinations_max", ">= 1"]),
        ("objectives: {a: 1.5}", ["objectives", "int", "float"]),
        ("objectives: {1: 2}", ["objectives", "str"]),
        ("objectives: {chat: {ttft: 1}}", ["objectives.chat.ttft", "did you mean objectives.chat.ttft_seconds?"]),
        ("objectives: {chat: {ttft_seconds: 0}}", ["ttft_seconds", "> 0"]),
        ("objectives: {chat: {priority: 2147483648}}", ["objectives.chat", "32 bits"]),
        ("targets: {tpot_seconds: -1}", ["targets.tpot_seconds", "> 0"]),
        ("engine_metrics: {path: metrics}", ["engine_metrics.path", "^/"]),
        ("engine_metrics: {port: 70000}", ["engine_metrics.port", "65535"]),
        ("tls: {certificate_file: a}", ["tls", "both", "key_file"]),
        ("ejection: {seconds: 10, seconds_max: 5}", ["ejection.seconds_max", "below"]),
        ("limits: {request_body_bytes_max: 2000.5}", ["limits.request_body_bytes_max", "int"]),
        ("saturation: {retry_after_seconds: 0}", ["saturation.retry_after_seconds", ">= 1"]),
        ("- epsilon", ["table of keys", "list"]),
        ("epsilon 0.5", ["table of keys", "str"]),
        ("epsilon: [", ["not valid YAML", "line 1"]),
        ("epsilon: 2024-13-01", ["not valid YAML", "quote"]),
        ("epsilon: !!int x", ["not valid YAML"]),
        ("epsilon: !!int ''", ["not valid YAML", "quote"]),
        ("epsilon: !!float ''", ["not valid YAML", "quote"]),
        ("epsilon: !!bool x", ["not valid YAML", "quote"]),
        ("epsilon: !!timestamp x", ["not valid YAML", "quote"]),
        ("epsilon: " + "1:" * 20 + "1.0e", ["epsilon", "float"]),
        ("epsilon: " + "1:" * 400_000 + "1", ["not valid YAML", "800,001 characters"]),
        ("epsilon: " + "1:" * 400_000 + "1.0", ["not valid YAML", "characters"]),
        ("epsilon: !!python/object/apply:os.getcwd []", ["not valid YAML"]),
        ("\x00", ["not valid YAML"]),
        ("[" * 5000, ["not valid YAML"]),
        ("epsilon: 0.1\nthreshold: 0.5\nepsilon: 0.5", ["line 3", "epsilon is given twice", "line 1"]),
        ("weights: {queue: 1, queue: 2}", ["queue is given twice"]),
        ('engine_metrics: {path: "/metrics\\r\\nX: y"}', ["engine_metrics.path", "control characters"]),
        ('engine_metrics: {path: "/a b"}', ["engine_metrics.path", "percent-encoded"]),
        ("engine_metrics: {path: /métrique}", ["engine_metrics.path", "percent-encoded"]),
        ('session_affinity: {header: "x-session\\n"}', ["session_affinity.header", "control characters"]),
        ('endpoint_labels: {match: {tier: "a\\u001b[31m"}}', ["endpoint_labels.match.tier", "control characters"]),
        ('objectives: {"a\\r\\nb": 1}', ["objectives", "control characters"]),
        ("engine_metrics: {gpu_url: 'http://{nod}:9400/'}", ["gpu_url", "{nod}", "{node}"]),
        ("engine_metrics: {gpu_url: 'http://{node}:99999/'}", ["gpu_url", "1..65535"]),
        ("tracing: {otlp_endpoint: 'http://collector:0'}", ["tracing.otlp_endpoint", "1..65535"]),
        ("engine_metrics: {tls: {key_file: a}}", ["engine_metrics.tls", "both", "certificate_file"]),
        ("engine_metrics: {tls: {ca_fil: a}}", ["engine_metrics.tls.ca_fil", "ca_file"]),
        ('objectives: {"\\ud800": 1}', ["objectives", "half a character"]),
        ("proxy_metadata: {keys: {tokens: a}}", ["proxy_metadata", "keys", "'tokens'", "total_tokens"]),
        ("proxy_metadata: {keys: {reason: a, tenant: a}}", ["proxy_metadata", "reason and tenant", "'a'"]),
        ("proxy_metadata: {keys: {reason: ''}}", ["proxy_metadata", "reason", "empty"]),
        ("proxy_metadata: {namespace: envoy.lb}", ["proxy_metadata.namespace", "destination"]),
        ("tenants: {header: Authorization}", ["tenants.header", "secret", "x-tenant"]),
        ("tenants: {names: ['']}", ["tenants.names"]),
        ("usage_file: ''", ["usage_file"]),
        ("objectives: {batch: 2147483648}", ["objectives.batch", "32 bits"]),
        ("objectives: {batch: 99999999999999999999}", ["objectives"]),
        ("transport: {connections_max: 1000000000000000000}", ["transport.connections_max", "most is"]),
        ("transport: {keepalive_seconds: .inf}", ["transport.keepalive_seconds", "not a number"]),
        ("transport: {keepalive_seconds: .nan}", ["transport.keepalive_seconds"]),
        ("transport: {keepalive_seconds: 1.0e+9}", ["transport.keepalive_seconds", "a year"]),
        ("transport: {handshake_seconds: 1.0e-6}", ["transport.handshake_seconds", "least is 0.01"]),
        ("transport: {message_bytes_max: 1000}", ["transport.message_bytes_max", "least is 65536"]),
        ("transport: {header_list_bytes_max: 10}", ["transport.header_list_bytes_max", "least is"]),
        ("transport: {buffered_bytes_max: 1}", ["transport.buffered_bytes_max", "least is"]),
    ],
)
def test_an_error_names_the_key_and_what_would_be_right(text, words):
    with pytest.raises(ConfigError) as refused:
        load(text)
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "---\n", "null"])
def test_an_empty_file_is_all_defaults(text):
    assert load(text) == Config()


def test_the_defaults_are_those_that_are_promised():
    default = Config()
    weights = default.weights
    assert (weights.prefix, weights.queue, weights.kv) == (3, 3, 2)
    assert (default.epsilon, default.threshold, default.scoring, default.destinations_max) == (0.01, 0.8, "cost", 1)
    assert (default.limits.request_body_bytes_max, default.limits.body_wait_seconds) == (16 * 2**20, 60)
    assert default.limits.decision_seconds == 0.2
    full = default.saturation
    assert (full.waiting_requests, full.kv_cache_utilization, full.backlog_seconds) == (5, 0.8, 10)
    assert (default.ejection.failures, default.ejection.seconds, default.ejection.seconds_max) == (3, 5, 60)
    assert (default.drain.accept_seconds, default.drain.seconds) == (10, 120)
    routing = default.routing
    assert (routing.prefill_tokens_per_second, routing.kv_capacity_tokens, routing.output_tokens) == (1e4, 4e5, 250)
    assert (routing.decode_seconds_per_sequence, routing.decode_seconds_per_token) == (5e-5, 5.6e-8)
    assert (routing.decode_disturbance, routing.disturbance_seconds, routing.affinity_break) == (0.2, 3, 4)
    assert (routing.decode_step_seconds, routing.overflow_wait, routing.shared_weight) == (0.01, 1, 0.05)
    assert (routing.explore_regret_seconds, routing.bytes_per_token) == (0.2, 4)


def test_whole_numbers_do_where_fractions_are_asked():
    assert load("epsilon: 1\nweights: {prefix: 3, queue: 5, kv: 2}").weights.queue == 5.0


def test_merged_keys_are_no_duplicates():
    """YAML's `<<` exists to be overridden."""
    merged = load("weights: {<<: {prefix: 2, queue: 4}, queue: 7}")
    assert (merged.weights.prefix, merged.weights.queue, merged.weights.kv) == (2, 7, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weights: {prefix: 100}", "weights.prefix 100"),
        ("threshold: 0.05", "threshold 0.05"),
        ("epsilon: 0.5", "epsilon 0.5"),
        ("routing: {index_oversize: 0.5}", "index_oversize 0.5"),
        ("engine_metrics: {interval_seconds: 15}", "interval_seconds 15 against engine_metrics.stale_seconds 5"),
        ("engine_metrics: {stale_seconds: 0.5}", "interval_seconds 1 against engine_metrics.stale_seconds 0.5"),
        ("engine_metrics: {interval_seconds: 5}", "make stale_seconds three intervals"),
        ("engine_metrics: {timeout_seconds: 30}", "timeout_seconds 30 is above engine_metrics.stale_seconds 5"),
        ("engine_metrics: {insecure_skip_verify: true, tls: {ca_file: a}}", "ca_file has no effect"),
        ("engine_metrics: {insecure_skip_verify: true, bearer_token_file: a}", "gets the token"),
        ("transport: {message_bytes_max: 1048576}", "below limits.request_body_bytes_max"),
        ("limits: {decision_seconds: 0}", "limits.decision_seconds 0"),
        ("limits: {body_wait_seconds: 0.1}", "limits.body_wait_seconds 0.1"),
        ("transport: {send_queue_bytes_max: 1048576}", "twice transport.connection_window_bytes"),
    ],
)
def test_settings_that_load_but_hurt_are_warned_about(text, words):
    (warning,) = config.warnings(load(text))
    assert words in warning
    assert config.warnings(Config()) == ()


def test_what_waits_for_a_restart_is_named():
    old = Config()
    new = load("tls: {certificate_file: a, key_file: b}\nepsilon: 0.5")
    assert config.changed_restart_only(old, new) == ("tls.certificate_file", "tls.key_file")
    assert config.changed_restart_only(old, old) == ()
