"""Reads the configuration file, and says what is wrong with it.

An unknown key is an error that names the key and the closest known one. A value out of range is an
error that names the key, the bound and what was given. What loads but can hardly be meant is a warning.
"""

import difflib
import re
from itertools import chain
from typing import Any

import msgspec
import yaml

from picker.config import checks
from picker.config.config import RESTART_ONLY, ROLE_LABEL, Config
from picker.config.config_objectives import Objective
from picker.config.yaml_text import MISSPOKEN_YAML, refuse_long_numbers


class ConfigError(ValueError):
    """What is wrong with a configuration, in words that name the key and the fix."""


def load(text: str) -> Config:
    """Parse and check a configuration file. Raises `ConfigError`; an empty file is all defaults."""
    try:
        tree = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"not valid YAML: {_one_line(str(error))}") from None
    except ConfigError:
        raise
    except MISSPOKEN_YAML as error:
        why = str(error) if isinstance(error, ValueError) else "a value is not what its tag or its look says"
        raise ConfigError(f"not valid YAML: {_one_line(why)}; quote the text") from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"expected a table of keys, found {type(tree).__name__}")
    _check_keys(tree, Config, "")
    try:
        config = msgspec.convert(tree, Config)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(_in_words(error)) from None
    wrong = next(chain(checks.values(tree), checks.impossible(config)), None)
    if wrong is not None:
        raise ConfigError(wrong)
    return config


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


refuse_long_numbers(_Loader)


def warnings(config: Config) -> tuple[str, ...]:
    """Settings that load but do not do what their author probably wants, each with the fix."""
    found = list(checks.doubtful(config))
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
            "forgets prefixes that are still there; leave it at 1"
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
        elif key == "objectives" and not path and isinstance(value, dict):
            for name, each in value.items():
                if isinstance(each, dict):
                    _check_keys(each, Objective, f"objectives.{name}.")


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
