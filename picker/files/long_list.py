"""The items of a list of thousands in YAML or JSON, one after the other.

Whoever reads it in a thread beside an event loop takes the interpreter for as long as one call lasts: to decode 3 MB
of JSON, or to drop the nodes of as much YAML, is one call of 30 to 90 ms. Here no call is of more than one item.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from picker.config import refuse_long_numbers


# libyaml's where the package was built with it: a tenth of the time.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A class of our own, as it is changed."""


refuse_long_numbers(_Loader)


def items_of(text: str, key: str) -> Iterator[Any]:
    """Of the list under `key`, or of a document that is the list, as plain Python values.

    Raises `ValueError`, in words, where the text is none.
    """
    found = _in_json(text, key) if text.lstrip()[:1] in ("{", "[") else None
    if found is None:
        yield from _in_yaml(text, key)
        return
    for raw in found:
        yield msgspec.json.decode(raw)


def _in_json(text: str, key: str) -> list[msgspec.Raw] | None:
    """`None`: it is no JSON of that shape. YAML's own flow style begins like it."""
    try:
        document = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        return document if isinstance(document, list) else msgspec.json.decode(document[key], type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, KeyError):
        return None


def _in_yaml(text: str, key: str) -> Iterator[Any]:
    nodes: list[yaml.Node] = []
    try:
        loader = _Loader(text)
        try:
            nodes = _item_nodes(loader, loader.get_single_node(), key)
            nodes.reverse()
            while nodes:
                yield loader.construct_document(nodes.pop())
        finally:
            while nodes:
                nodes.pop()
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def _item_nodes(loader: Any, node: yaml.Node | None, key: str) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        named = [value for name, value in node.value if name.value == key]
        if not named:
            raise ValueError(f"it has no `{key}:`")
        node = named[-1]
    if not isinstance(node, yaml.SequenceNode):
        raise ValueError(f"`{key}:` is not a list")
    nodes: list[yaml.Node] = node.value
    return nodes
