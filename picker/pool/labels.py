"""Selecting endpoints by their labels: what configuration and a request's header ask.

The header is written as Kubernetes writes equality selectors: `tier=gold,zone!=b`. A label that is
missing fails `=` and passes `!=`. Texts from clients are bounded (`TEXT_CHARS_MAX`,
`REQUIREMENTS_MAX`), and a selector is known by its text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

TEXT_CHARS_MAX = 1024
REQUIREMENTS_MAX = 16

_LABEL = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""Kubernetes: labels and selectors, syntax and character set."""


class Requirement(NamedTuple):
    """`wanted`: the label has one of `values`; else it has none of them, or is missing."""

    label: str
    values: frozenset[str]
    wanted: bool


class Selector(NamedTuple):
    """All requirements must hold. Equal texts are equal selectors."""

    text: str
    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an endpoint with these labels is selected."""
        return all((labels.get(label) in values) is wanted for label, values, wanted in self.requirements)


class InvalidSelector(ValueError):
    """What is wrong with a selector, in words for the client who sent it."""


def selector(match: Mapping[str, str], not_in: Mapping[str, Iterable[str]]) -> Selector | None:
    """The selector of a configuration; `None` where it asks for nothing."""
    requirements = [Requirement(label, frozenset((value,)), True) for label, value in match.items()]
    requirements += [
        Requirement(label, refused, False) for label, values in not_in.items() if (refused := frozenset(values))
    ]
    return Selector(f"configured {requirements!r}", tuple(requirements)) if requirements else None


def parse_selector(text: str) -> Selector | None:
    """A header's selector; `None` where it is empty. Raises `InvalidSelector`."""
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidSelector(f"it is longer than {TEXT_CHARS_MAX} characters")
    requirements = []
    for number, part in enumerate(text.split(","), 1):
        part = part.strip()
        if not part:
            continue
        label, sign, value = part.partition("=")
        wanted = not label.endswith("!")
        label, value = label.removesuffix("!").strip(), value.removeprefix("=").strip()
        if not sign:
            raise InvalidSelector(f"entry {number} has no '='; write label=value or label!=value, separated by commas")
        if not _LABEL.fullmatch(label):
            raise InvalidSelector(f"entry {number}: what stands before '=' is not a label's name")
        if not _VALUE.fullmatch(value):
            raise InvalidSelector(f"entry {number}: what stands after '=' is not a label's value")
        requirements.append(Requirement(label, frozenset((value,)), wanted))
    if len(requirements) > REQUIREMENTS_MAX:
        raise InvalidSelector(f"it has more than {REQUIREMENTS_MAX} entries")
    return Selector(text, tuple(requirements)) if requirements else None
