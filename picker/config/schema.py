"""The configuration file, described: as a JSON Schema for machines, as tables for people.

    schema()                a JSON Schema of the file (`picker check --schema`): the chart's, an editor's
    reference()             a row for every key, in file order
    reference_markdown()    the tables of docs/configuration.md (`picker check --reference`)

All of it is read from the structs of `picker.config`: descriptions, bounds and defaults from the
fields, what a section is for and when to touch it from its docstring. Nothing is written twice.
"""

import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple, get_type_hints

import msgspec

from picker.config.config import HEADER_NAME, RESTART_ONLY, Config
from picker.config.config_objectives import Objective

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""Of the schema as a document of its own."""

COLUMNS = 100
"""Of prose in Markdown."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Where requests go": ("", "weights", "endpoint_labels", "session_affinity", "routing"),
    "When something is full or fails": ("limits", "saturation", "ejection", "drain"),
    "What the picker talks to": ("engine_metrics", "kv_events", "shared_state", "tls", "transport"),
    "Who used what": ("tenants", "proxy_metadata"),
    "Looking into it": ("targets", "tracing", "debug"),
}
"""Sections of the file by what brings a reader to them; `""` holds the keys that are in no section.
A section inside a section follows it, and is not listed."""


class Key(NamedTuple):
    """One key of the file."""

    name: str
    """With its section: `limits.index_bytes_max`."""
    default: str
    """As JSON, which is YAML too."""
    allowed: str
    """Which values it takes, in words."""
    text: str
    restart: bool
    """A change waits for the next start."""


def schema() -> dict[str, Any]:
    """A JSON Schema of the configuration file (draft 7 and later read it the same).

    It holds no `$ref` and names no dialect, so it can be put into another schema as it is. It knows
    keys, types, bounds and words. What needs two keys at once (`tls` with both files, say), and that
    `weights.prefix` must not be 0, `load` alone checks.
    """
    whole = msgspec.json.schema(Config)
    return _inlined(whole["$ref"], whole["$defs"], Config())


def reference() -> list[Key]:
    """Every key, in file order."""
    return list(_keys(Config, Config(), schema(), ""))


def reference_markdown() -> str:
    """Every group with its sections: what each is for, when to touch it, and a table of its keys."""
    by_section: dict[str, list[Key]] = {}
    for key in reference():
        by_section.setdefault(key.name.rpartition(".")[0], []).append(key)
    parts = []
    for title, listed in GROUPS.items():
        parts.append(f"## {title}")
        for section in listed:
            inner = [each for each in by_section if section and each.startswith(f"{section}.")]
            for each in (section, *inner):
                parts.append(f"### `{each}`" if each else "### Keys without a section")
                parts += [_purpose(each, by_section[each]), _table(by_section[each])]
    return "\n\n".join(parts)


def _inlined(ref: str, definitions: Mapping[str, Any], defaults: msgspec.Struct) -> dict[str, Any]:
    """A definition with those that it names put in their places. A section's default is that of its keys."""
    found = dict(definitions[ref.rpartition("/")[2]])
    for noise in ("title", "required"):
        found.pop(noise, None)
    found["description"] = found["description"].replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
    found["properties"] = {
        name: _inlined(each["$ref"], definitions, getattr(defaults, name))
        if "$ref" in each
        else {**_resolved(each, definitions), "default": msgspec.to_builtins(getattr(defaults, name))}
        for name, each in found["properties"].items()
    }
    return found


def _resolved(own: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A table by name may hold sections: they are put in their places too."""
    by_name = own.get("additionalProperties")
    if not isinstance(by_name, dict) or "anyOf" not in by_name:
        return own
    each = [_inlined(one["$ref"], definitions, Objective()) if "$ref" in one else one for one in by_name["anyOf"]]
    return {**own, "additionalProperties": {"anyOf": each}}


def _keys(section: type[Any], defaults: Any, described: Mapping[str, Any], prefix: str) -> Iterable[Key]:
    for name in get_type_hints(section):
        value, own = getattr(defaults, name), described["properties"][name]
        full = f"{prefix}{name}"
        if isinstance(value, msgspec.Struct):
            yield from _keys(type(value), value, own, f"{full}.")
            continue
        restart = any(full == each or full.startswith(f"{each}.") for each in RESTART_ONLY)
        default = msgspec.json.encode(value).decode()
        yield Key(full, default, _allowed(own), own.get("description", ""), restart)


def _allowed(own: Mapping[str, Any]) -> str:
    """`{"type": "integer", "minimum": 1}` -> `1 or more, whole`."""
    if "anyOf" in own:
        return " or ".join(_allowed(each) for each in own["anyOf"])
    if "enum" in own:
        return ", ".join("null" if each is None else f"`{each}`" for each in sorted(own["enum"], key=str))
    match own.get("type"):
        case "integer":
            return f"{_bounds(own)}, whole"
        case "number":
            return _bounds(own)
        case "boolean":
            return "`true`, `false`"
        case "null":
            return "null"
        case "string":
            return _TEXTS.get(own.get("pattern"), "text")
        case "object":
            return f"{_plural(own['additionalProperties'])} by name"
        case "array":
            return f"list of {_plural(own['items'])}"
    raise AssertionError(own)


_TEXTS: Mapping[str | None, str] = {
    None: "text",
    "^/": "text that begins with `/`",
    "^http://": "text that begins with `http://`",
    "^https?://": "text that begins with `http://` or `https://`",
    HEADER_NAME: "name",
}
"""By their pattern."""


def _bounds(own: Mapping[str, Any]) -> str:
    most = own.get("maximum")
    if "exclusiveMinimum" in own:
        above = f"above {_number(own['exclusiveMinimum'])}"
        return above if most is None else f"{above}, at most {_number(most)}"
    least = own.get("minimum", 0)
    return f"{_number(least)} or more" if most is None else f"{_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _plural(own: Mapping[str, Any]) -> str:
    if "anyOf" in own:
        return " or ".join(_plural(each) for each in own["anyOf"])
    return {"string": "texts", "object": "tables", "integer": "whole numbers", "array": "lists of texts"}[own["type"]]


def _purpose(section: str, keys: list[Key]) -> str:
    """A section's docstring, as paragraphs."""
    described = reduce(getattr, section.split(".") if section else (), Config())
    paragraphs = inspect.cleandoc(described.__doc__ or "").split("\n\n")
    if all(key.restart for key in keys):
        paragraphs.append("A change of any of these keys waits for the next start.")
    return "\n\n".join(textwrap.fill(" ".join(each.split()), COLUMNS, break_on_hyphens=False) for each in paragraphs)


def _table(keys: list[Key]) -> str:
    marked = any(not key.restart for key in keys)
    rows = [
        f"| `{key.name}` | `{key.default}` | {key.allowed} | {key.text}"
        f"{' Waits for the next start.' if marked and key.restart else ''} |"
        for key in keys
    ]
    return "\n".join(("| key | default | allowed | what it does |", "|---|---|---|---|", *rows))
