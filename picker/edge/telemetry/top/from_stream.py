"""Readings from the stream of the live page (`GET /live`): one a second, made once for all who look."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from picker.edge.telemetry.explain import AskError, opened
from picker.edge.telemetry.moments import moment_text
from picker.edge.telemetry.top.reading import DecisionReading, EndpointReading, PoolReading, TopReading

BUCKETS = 12
"""Of five seconds each: the last minute."""
DECISIONS = 20
LINE_BYTES_MAX = 16 * 1024 * 1024
_SERVED = ("requests", "shed")


class NoStreamError(Exception):
    """This picker has none: it is older, or `debug.page` is off."""


def stream_readings(address: str, token: str | None) -> Iterator[TopReading]:
    """Until the stream ends. Raises `AskError`, `NoStreamError`."""
    try:
        with opened(address, "/live", token) as response:
            if response.headers.get_content_type() != "text/event-stream":
                raise NoStreamError
            yield from readings(events(iter(lambda: response.readline(LINE_BYTES_MAX), b"")))
    except AskError as error:
        if error.status == 404:
            raise NoStreamError from None
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AskError(f"the stream of {address} broke off: {error or type(error).__name__}") from None


def events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Server-sent events, of which each has one line of JSON."""
    name = ""
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            yield name, msgspec.json.decode(value)


def readings(told: Iterable[tuple[str, Any]]) -> Iterator[TopReading]:
    """A frame for each `tick`. Fields that a newer picker adds are passed over."""
    hello: dict[str, Any] = {}
    members: list[list[str]] = []
    buckets: deque[dict[str, Any]] = deque(maxlen=BUCKETS)
    decisions: deque[DecisionReading] = deque(maxlen=DECISIONS)
    for name, data in told:
        if name == "hello":
            hello = data
            buckets.clear()
            buckets.extend(data["history"])
            decisions.clear()
            decisions.extend(_decision(each) for each in data["decisions"][:DECISIONS])
        elif name == "members":
            members = data["endpoints"]
        elif name == "tick":
            buckets.extend(data.get("buckets", ()))
            decisions.extendleft(_decision(each) for each in reversed(data["decisions"]))
            endpoints = _endpoints(members, data["columns"])
            yield TopReading(
                source="/live",
                version=f"{hello.get('version', '?')} {hello.get('build', '')}".strip(),
                pool=_pool(buckets, data, endpoints),
                endpoints=endpoints,
                decisions=list(decisions),
            )


def _pool(
    buckets: Sequence[Mapping[str, Any]], tick: Mapping[str, Any], endpoints: list[EndpointReading]
) -> PoolReading:
    seconds = sum(each["seconds"] for each in buckets)
    requests, shed = (sum(each[name] for each in buckets) for name in _SERVED)
    return PoolReading(
        requests_per_second=requests / seconds if seconds else None,
        shed_per_second=shed / seconds if seconds else None,
        hit_share=_last(buckets, "hit_observed"),
        expected_hit_share=_last(buckets, "hit_expected"),
        ttft_p50_seconds=_last(buckets, "ttft_p50_seconds"),
        ttft_p95_seconds=_last(buckets, "ttft_p95_seconds"),
        in_flight=tick.get("in_flight"),
        saturation=tick.get("saturation"),
        ejected=sum(each.is_ejected for each in endpoints),
    )


def _last(buckets: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The newest that is known, of the last minute."""
    return next((each[name] for each in reversed(buckets) if each.get(name) is not None), None)


def _endpoints(members: list[list[str]], columns: Mapping[str, list[Any]]) -> list[EndpointReading]:
    def column(name: str) -> list[Any]:
        found = columns.get(name, [])
        return found if len(found) == len(members) else [None] * len(members)

    known = zip(
        members,
        *(column(name) for name in ("in_flight", "running", "waiting", "backlog_seconds", "kv", "hit_observed")),
        *(column(name) for name in ("slowness", "ejected", "closed", "age_seconds")),
        strict=True,
    )
    return [
        EndpointReading(
            name=name,
            address=address,
            in_flight=in_flight,
            running=running,
            waiting=waiting,
            backlog_seconds=backlog,
            kv_share=kv,
            hit_share=hit,
            slowness=slowness,
            is_ejected=bool(ejected),
            is_closed=bool(closed),
            age_seconds=age,
        )
        for (name, address, *_), in_flight, running, waiting, backlog, kv, hit, slowness, ejected, closed, age in known
    ]


def _decision(told: Mapping[str, Any]) -> DecisionReading:
    return DecisionReading(
        at=moment_text(told["at"]) if told.get("at") is not None else moment_text(time.time()),
        request_id=told.get("request_id"),
        model=told.get("model"),
        endpoint=told.get("endpoint") or "",
        reason=told.get("reason") or "",
        matched_share=told.get("matched_share"),
        predicted_ttft_seconds=told.get("predicted_ttft_seconds"),
    )
