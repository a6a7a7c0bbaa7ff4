"""docs/clients.md names every path, label, refusal and knob that it is about."""

import re
from pathlib import Path

import msgspec
import yaml

from picker import config
from picker.api.paths import TABLE
from picker.config.schema import reference
from picker.scheduling.filters import FILTERS

TEXT = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_path_and_its_label_is_there():
    for row in TABLE:
        shape = re.sub(r"\{(\w+)\+?\}", lambda found: found[1].upper(), row.shape.removeprefix("^"))
        assert shape in QUOTED, shape
        assert row.name in QUOTED, row.name


def test_every_refusal_is_there():
    assert {each.word for each in FILTERS} | {"invalid_header"} <= QUOTED


def test_the_knobs_exist_and_their_defaults_are_true():
    rows = {key.name: msgspec.json.decode(key.default) for key in reference()}
    table = re.findall(r"^\| ((?:`[a-z_.]+`,? ?)+) \| (.*) \|$", TEXT[TEXT.index("## Knobs") :], re.MULTILINE)
    named = [key for keys, _ in table for key in re.findall(r"`([a-z_.]+)`", keys)]
    assert set(named) <= set(rows)
    for section in ("endpoint_labels", "session_affinity", "debug", "tracing"):
        assert {key for key in rows if key.startswith(f"{section}.")} <= set(named)
    for keys, defaults in table:
        for key, shown in zip(re.findall(r"`([a-z_.]+)`", keys), defaults.split(", "), strict=True):
            if key != "endpoint_labels.not_in":
                assert yaml.safe_load(shown.strip("`")) == rows[key], key


def test_its_examples_load_without_a_warning():
    examples = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        assert config.warnings(config.load(example)) == ()
