"""The configuration: what is wrong is said in words that name the key, its neighbour and the bound."""

import msgspec
import pytest
import yaml

from picker import config
from picker.config import Config, ConfigError, load


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weigths: {prefix: 1}", ["unknown key weigths", "did you mean weights?"]),
        ("weights: {prefixx: 1}", ["unknown key weights.prefixx", "weights.prefix?"]),
        ("limits: {request_body_max: 5}", ["limits.request_body_max", "limits.request_body_bytes_max?"]),
        ("prefx_wait: 1", ["unknown key prefx_wait", "known here:", "weights"]),
        ("weights: {zzz: 1}", ["weights.zzz", "known here: gpu, kv, lora, prefix, queue"]),
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
        ("epsilon: !!python/object/apply:os.getcwd []", ["not valid YAML"]),
        ("\x00", ["not valid YAML"]),
        ("[" * 5000, ["not valid YAML"]),
        ("epsilon: 0.1\nthreshold: 0.5\nepsilon: 0.5", ["line 3", "epsilon is given twice", "line 1"]),
        ("weights: {queue: 1, queue: 2}", ["queue is given twice"]),
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
    ],
)
def test_settings_that_load_but_hurt_are_warned_about(text, words):
    (warning,) = config.warnings(load(text))
    assert words in warning
    assert config.warnings(Config()) == ()


def test_the_reference_has_every_knob_with_its_default_and_reads_back_to_the_same():
    rows = config.reference()
    tree: dict = {}
    for key, default, description in rows:
        assert description, f"{key} has no description"
        *path, name = key.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[name] = msgspec.json.decode(default)
    assert load(yaml.safe_dump(tree)) == Config()
    assert {"epsilon", "weights.prefix", "limits.models_max", "tls.key_file"} <= {row[0] for row in rows}


def test_what_waits_for_a_restart_is_named():
    old = Config()
    new = load("tls: {certificate_file: a, key_file: b}\nepsilon: 0.5")
    assert config.changed_restart_only(old, new) == ("tls.certificate_file", "tls.key_file")
    assert config.changed_restart_only(old, old) == ()
