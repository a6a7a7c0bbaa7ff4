"""The file's JSON Schema takes what `load` takes, and refuses what it refuses; the reference has every key."""

import json

import msgspec
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from picker import cli, config
from picker.config import Config
from picker.config.schema import DIALECT, GROUPS, reference, reference_markdown, schema

GOOD = [
    "{}",
    "weights: {prefix: 3, queue: 5, kv: 2}",
    "engine_metrics: {port: null, engine: sglang, gpu_url: 'http://{node}:9400/metrics'}",
    "objectives: {batch: -1, chat: 10}",
    "objectives: {batch: -1, chat: {priority: null, ttft_seconds: 0.5, tpot_seconds: 0.05}}",
    "targets: {ttft_seconds: 2}",
    "endpoint_labels: {match: {tier: gold}, not_in: {llm-d.ai/role: []}, header: x-labels}",
    "tracing: {otlp_endpoint: 'https://collector:4317'}",
]
BAD = [
    "weights: {quue: 5}",
    "wieghts: {}",
    "epsilon: 1.5",
    "epsilon: '0.1'",
    "scoring: fast",
    "objectives: {batch: low}",
    "objectives: {batch: {ttft: 1}}",
    "objectives: {batch: {tpot_seconds: 0}}",
    "limits: {models_max: 0}",
    "transport: {keepalive_seconds: 0}",
    "engine_metrics: {path: metrics}",
    "session_affinity: {header: 'two words'}",
    "weights: null",
    "weights: 3",
    "endpoint_labels: {not_in: {role: decode}}",
]


@pytest.mark.parametrize("validator", [Draft7Validator, Draft202012Validator])
@pytest.mark.parametrize("text", GOOD + BAD)
def test_the_schema_agrees_with_load(text, validator):
    validator.check_schema(schema())
    takes = validator(schema()).is_valid(yaml.safe_load(text))
    assert takes is (text in GOOD)
    if takes:
        config.load(text)
    else:
        with pytest.raises(config.ConfigError):
            config.load(text)


def test_it_stands_on_its_own_inside_another_schema():
    text = json.dumps(schema())
    assert "$ref" not in text and "$schema" not in text and "$defs" not in text


def test_the_defaults_of_the_schema_are_the_configuration():
    def defaults(own):
        return {
            name: defaults(each) if "properties" in each else each["default"]
            for name, each in own["properties"].items()
        }

    assert config.load(yaml.safe_dump(defaults(schema()))) == Config()


def test_the_reference_has_every_key_with_its_default_and_reads_back_to_the_same():
    tree: dict = {}
    for key in reference():
        assert key.text, f"{key.name} has no description"
        *path, name = key.name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[name] = msgspec.json.decode(key.default)
    assert config.load(yaml.safe_dump(tree)) == Config()
    assert {"epsilon", "weights.prefix", "limits.models_max", "tls.key_file"} <= {key.name for key in reference()}


def test_every_section_stands_in_one_group():
    listed = [section for sections in GROUPS.values() for section in sections]
    assert sorted(listed) == sorted({key.name.partition(".")[0] if "." in key.name else "" for key in reference()})
    shown = reference_markdown()
    assert [key.name for key in reference() if shown.count(f"| `{key.name}` |") != 1] == []


def test_bounds_are_said_in_words():
    allowed = {key.name: key.allowed for key in reference()}
    assert allowed["destinations_max"] == "1 to 16, whole"
    assert allowed["routing.disturbance_seconds"] == "above 0, at most 60"
    assert allowed["transport.keepalive_seconds"] == "above 0"
    assert allowed["engine_metrics.port"] == "1 to 65,535, whole or null"
    assert allowed["tracing.otlp_endpoint"] == "text that begins with `http://` or `https://` or null"


def test_the_command_prints_both(capsys):
    assert cli.main(["check", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"$schema": DIALECT, **schema()}
    assert cli.main(["check", "--reference"]) == 0
    assert "| `epsilon` | `0.01` |" in capsys.readouterr().out
