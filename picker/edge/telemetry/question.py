"""What can be asked of the last decisions: a request, an endpoint, a tenant, a time. All of it has to hold."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from picker.edge.telemetry.decisions import DecisionRing, KeptDecision
from picker.edge.telemetry.moments import MomentError, moment, moment_text
from picker.extproc.exchange import NAME_CHARS_MAX

COUNT: Final = 20
COUNT_MAX: Final = 100_000
NUMBER_DIGITS_MAX: Final = 18
PARAMETERS: Final = ("request_id", "number", "endpoint", "tenant", "from", "to", "since", "count", "endpoints")
_SHOWN_CHARS_MAX = 64


class QuestionError(ValueError):
    """It cannot be asked so; the text says what to write."""


class DecisionQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """`None` asks for nothing. `since` and `until`: seconds since the epoch, both included."""

    request_id: str | None = None
    number: int | None = None
    """Of the decision, as it is shown."""
    endpoint: str | None = None
    """A name or an address."""
    tenant: str | None = None
    since: float | None = None
    until: float | None = None
    count: int = COUNT
    every_endpoint: bool = False
    """Show all that stood for the choice (`endpoints=all`)."""

    def fits(self, kept: KeptDecision) -> bool:
        """Whether it is one that was asked for."""
        record = kept.record
        if self.number is not None and kept.number != self.number:
            return False
        if self.request_id is not None and record.request_id != self.request_id:
            return False
        if self.tenant is not None and record.tenant != self.tenant:
            return False
        if self.since is not None and kept.decided_at < self.since:
            return False
        if self.until is not None and kept.decided_at > self.until:
            return False
        return self.endpoint is None or self.endpoint in _places(kept)

    def searched(self) -> dict[str, Any]:
        """What was asked for, in the words of the parameters; times as they were understood."""
        said = {
            "request_id": self.request_id,
            "number": self.number,
            "endpoint": self.endpoint,
            "tenant": self.tenant,
            "from": None if self.since is None else moment_text(self.since),
            "to": None if self.until is None else moment_text(self.until),
        }
        return {name: value for name, value in said.items() if value is not None}


class FoundDecisions(msgspec.Struct, frozen=True):
    """`decisions`: at most `count`, the newest first, of the `matched` ones among the `kept`."""

    decisions: list[KeptDecision]
    matched: int
    kept: int
    oldest: float | None
    """How far back the ring reaches, in seconds since the epoch. `None`: it is empty."""


def question(parameters: Iterable[tuple[str, str]], now: float) -> DecisionQuestion:
    """Read a query string's pairs. `now`: seconds since the epoch. Raises `QuestionError`."""
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in PARAMETERS:
            raise QuestionError(f"unknown parameter {name[:_SHOWN_CHARS_MAX]!r}: there are {', '.join(PARAMETERS)}")
        if name in given:
            raise QuestionError(f"{name} is given twice")
        if not value:
            raise QuestionError(f"{name} is empty: leave it out, or give it a value")
        given[name] = value
    if "since" in given and "from" in given:
        raise QuestionError("give one of since and from: they mean the same")
    since = _moment(given, "since" if "since" in given else "from", now)
    until = _moment(given, "to", now)
    if since is not None and until is not None and since > until:
        raise QuestionError(f"from ({moment_text(since)}) is later than to ({moment_text(until)})")
    if given.get("endpoints", "all") != "all":
        raise QuestionError(
            f"endpoints: {given['endpoints'][:_SHOWN_CHARS_MAX]!r} is not all: leave it out, or say all"
        )
    return DecisionQuestion(
        request_id=_name(given, "request_id"),
        number=_number(given),
        every_endpoint="endpoints" in given,
        endpoint=given.get("endpoint"),
        tenant=_name(given, "tenant"),
        since=since,
        until=until,
        count=_count(given),
    )


def find(ring: DecisionRing, asked: DecisionQuestion) -> FoundDecisions:
    """Look through the whole ring: some hundred comparisons."""
    kept = ring.newest()
    fitting = [each for each in kept if asked.fits(each)]
    return FoundDecisions(
        decisions=fitting[: asked.count],
        matched=len(fitting),
        kept=len(kept),
        oldest=kept[-1].decided_at if kept else None,
    )


def nothing_found(answer: Mapping[str, Any]) -> str:
    """A sentence about an answer without decisions: what was searched, and how far back. Not escaped."""
    if not answer.get("kept"):
        return "no decision is kept: the picker has made none since it started"
    searched = " and ".join(f"{name} {value}" for name, value in answer["searched"].items())
    return (
        f"none of the last {answer['kept']} decisions has {searched or 'what was asked'}; "
        f"the oldest that is kept was made at {answer['oldest']}"
    )


def _places(kept: KeptDecision) -> tuple[str | None, ...]:
    """Names and addresses of who was picked and of who served."""
    picked, record = kept.picked, kept.record
    return (
        picked.addresses[0],
        picked.endpoint_name,
        record.address,
        record.endpoint_name,
        record.served_address,
    )


def _name(given: Mapping[str, str], name: str) -> str | None:
    """As records keep it: cut to their length."""
    value = given.get(name)
    return None if value is None else value[:NAME_CHARS_MAX]


def _moment(given: Mapping[str, str], name: str, now: float) -> float | None:
    if name not in given:
        return None
    try:
        return moment(given[name], now)
    except MomentError as error:
        raise QuestionError(f"{name}: {error}") from None


def _number(given: Mapping[str, str]) -> int | None:
    text = given.get("number")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise QuestionError(f"number: {text[:_SHOWN_CHARS_MAX]!r} is no number of a decision")
    return int(text)


def _count(given: Mapping[str, str]) -> int:
    text = given.get("count")
    if text is None:
        return COUNT
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 6 and 1 <= int(text) <= COUNT_MAX):
        raise QuestionError(f"count: {text[:_SHOWN_CHARS_MAX]!r} is no number from 1 to {COUNT_MAX}")
    return int(text)
