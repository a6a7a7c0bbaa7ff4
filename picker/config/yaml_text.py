"""YAML that others write, at a cost that its length bounds.

YAML 1.1 reads `1:30:00` as a number of base 60, and PyYAML multiplies it out: a file of a megabyte keeps a processor
busy for a minute. And what looks like a number or a date and is none ends in whatever error its reader runs into.
"""

from typing import Any

import yaml

NUMBER_CHARS_MAX = 64
MISSPOKEN_YAML = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError)
"""What PyYAML raises, one or another, at a scalar that looks like a date or a number, or carries a tag, and is none."""


def refuse_long_numbers(loader: Any) -> None:
    """Of a loader class, which is changed: numbers longer than `NUMBER_CHARS_MAX` raise `yaml.YAMLError`."""
    for kind in ("int", "float"):
        tag = f"tag:yaml.org,2002:{kind}"
        loader.add_constructor(tag, _bounded(loader.yaml_constructors[tag]))


def _bounded(construct: Any) -> Any:
    def number(loader: Any, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > NUMBER_CHARS_MAX:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of {len(node.value):,} characters", node.start_mark
            )
        return construct(loader, node)

    return number
