"""Finding an EndpointPickerConfig in a text, and reading its parts with errors that name the place."""

import math
from typing import Any

import msgspec
import yaml

from picker.config import MISSPOKEN_YAML

KIND = "EndpointPickerConfig"
API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")


class ConversionError(ValueError):
    """Why a document cannot be converted, in words that name the place and the fix."""


class Plugin(msgspec.Struct):
    """One entry of `plugins`. Parameters are taken out as they are read, so that the rest can be named."""

    name: str
    type: str
    parameters: dict[str, Any]
    used: bool = False


class FoundConfig(msgspec.Struct):
    """An EndpointPickerConfig, and the key of the ConfigMap that held it."""

    document: dict[str, Any]
    key: str | None = None


def find_document(text: str, key: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """The document asked for, out of a file or a ConfigMap, and the keys of those passed over.

    A ConfigMap of the peer's chart holds several, of which its picker reads one (`--config-file`). Without `key` it
    is the first in the file's order. Raises `ConversionError`.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise ConversionError(f"not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConversionError("nested too deeply to be a configuration") from None
    except MISSPOKEN_YAML:
        raise ConversionError("not valid YAML: a value is not what its tag or its look says; quote it") from None
    found = [inner for document in documents for inner in _candidates(document)]
    if not found:
        kinds = ", ".join(str(d.get("kind", "no kind")) if isinstance(d, dict) else type(d).__name__ for d in documents)
        raise ConversionError(f"no {KIND} in it, nor a ConfigMap that holds one (found: {kinds or 'nothing'})")
    keys = [each.key for each in found if each.key is not None]
    if key is not None:
        chosen = [each for each in found if each.key == key]
        if not chosen:
            held = f"its keys: {', '.join(keys)}" if keys else "it is no ConfigMap, so leave --key out"
            raise ConversionError(f"no {KIND} under the key {key!r}; {held}")
        found = chosen + [each for each in found if each.key not in (key, None)]
    elif len(found) > len(keys) and len(found) > 1:
        raise ConversionError(f"{len(found)} documents of kind {KIND}: give one at a time")
    if len([each for each in found if each.key == found[0].key]) > 1:
        raise ConversionError(f"several ConfigMaps have the key {found[0].key!r}: give one at a time")
    version = found[0].document.get("apiVersion")
    if version not in API_VERSIONS:
        raise ConversionError(f"apiVersion {version!r} is not known; known: {', '.join(API_VERSIONS)}")
    return found[0].document, [each.key for each in found[1:] if each.key is not None]


def _candidates(document: Any) -> list[FoundConfig]:
    """The document itself, or what a ConfigMap holds, in its order. `kubectl get -o yaml` of several is a List."""
    if not isinstance(document, dict):
        return []
    if document.get("kind") == KIND:
        return [FoundConfig(document)]
    if document.get("kind") in ("List", "ConfigMapList"):
        items = document.get("items")
        return [inner for item in items for inner in _candidates(item)] if isinstance(items, list) else []
    if document.get("kind") != "ConfigMap":
        return []
    found = []
    data = document.get("data")
    for key, value in data.items() if isinstance(data, dict) else ():
        try:
            inner = yaml.safe_load(value) if isinstance(value, str) else None
        except (yaml.YAMLError, RecursionError, *MISSPOKEN_YAML):
            continue
        if isinstance(inner, dict) and inner.get("kind") == KIND:
            found.append(FoundConfig(inner, str(key)))
    return found


def read_plugins(document: dict[str, Any]) -> dict[str, Plugin]:
    """`plugins` by name, which is the type where none is given."""
    plugins: dict[str, Plugin] = {}
    for position, entry in enumerate(list_at(document, "plugins")):
        kind = entry.get("type") if isinstance(entry, dict) else None
        if not isinstance(kind, str):
            raise ConversionError(f"plugins[{position}]: expected a table with type")
        name = str(entry.get("name") or kind)
        if name in plugins:
            raise ConversionError(f"plugins[{position}]: the name {name!r} is taken; names must be unique")
        parameters = entry.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise ConversionError(f"plugins[{position}] ({name}): parameters must be a table")
        plugins[name] = Plugin(name, kind, dict(parameters))
    return plugins


def list_at(table: Any, key: str) -> list[Any]:
    """The list at a key, empty where there is none."""
    value = table.get(key) if isinstance(table, dict) else None
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConversionError(f"{key}: expected a list, found {type(value).__name__}")
    return value


def table_at(table: dict[str, Any], key: str) -> dict[str, Any]:
    """The table at a key, empty where there is none."""
    value = table.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConversionError(f"{key}: expected a table, found {type(value).__name__}")
    return value


def number(value: Any, default: float, place: str) -> float:
    """A finite number, the default for null."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConversionError(f"{place}: expected a number, found {value!r}")
    return float(value)


def plain(value: float) -> int | float:
    """`3.0` is written `3`."""
    return int(value) if value.is_integer() else value
