"""Envoys by configuration, started when first asked for and shared: each costs a tenth of a second."""

from typing import Self

import msgspec
import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, UpstreamProtocol
from tests.envoy.picker_process import PickerProcess
from tests.envoy.upstream import Upstream

FD = BodySendMode.FULL_DUPLEX_STREAMED
CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":8}'
MIB = 1024 * 1024


class Lab:
    """Two model servers, one picker that knows both, and as many Envoys as tests ask for."""

    def __init__(self) -> None:
        self.upstreams = (Upstream(), Upstream())
        self.picker = PickerProcess([upstream.address for upstream in self.upstreams], CONFIG)
        self._envoys: dict[EnvoyConfig, EnvoyProcess] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(upstream.address for upstream in self.upstreams)

    def config(self, **changes: object) -> EnvoyConfig:
        """In front of this lab's picker. The client's destination header reaches the picker, so
        that it is the picker which must overwrite it."""
        config = EnvoyConfig(
            picker_address=self.picker.grpc_address,
            upstream_protocol=UpstreamProtocol.DOWNSTREAM,
            strip_destination=False,
            subset_header="x-subset",
            buffer_bytes_max=32 * MIB,
        )
        # Let the picker show that it needs no body, except where Envoy would wait for one.
        changes.setdefault("websocket_headers_only", changes.get("request_body") is BodySendMode.BUFFERED)
        if changes.get("balancing") is Balancing.OVERRIDE_HOST:
            changes.setdefault("endpoints", self.addresses)
        return msgspec.structs.replace(config, **changes)

    def envoy(self, config: EnvoyConfig) -> EnvoyProcess:
        if config not in self._envoys:
            self._envoys[config] = EnvoyProcess(config)
        return self._envoys[config]

    def config_of(self, envoy: EnvoyProcess) -> EnvoyConfig:
        """What this Envoy was started with."""
        return next(config for config, started in self._envoys.items() if started is envoy)

    def upstream_of(self, request_id: str) -> Upstream:
        """The model server that got it."""
        found = [upstream for upstream in self.upstreams if upstream.saw(request_id)]
        assert len(found) == 1, f"request {request_id} arrived at {len(found)} model servers"
        return found[0]

    def close(self) -> None:
        for envoy in self._envoys.values():
            envoy.stop()
        self.picker.close()
        for upstream in self.upstreams:
            upstream.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CONFIG = """\
objectives: {batch: -1}
ejection: {failures: 1000}
"""
"""Tests that fail on purpose share this picker: no endpoint may be put aside for it."""


def mode_params(request_bodies: tuple[BodySendMode, ...], response_bodies: tuple[BodySendMode, ...]) -> list[object]:
    """Every pair of body modes with both kinds of balancing, as parameters with readable names."""
    short = {FD: "duplex"}
    return [
        pytest.param(
            (request_body, response_body, balancing),
            id="-".join((short.get(request_body, request_body), short.get(response_body, response_body), balancing)),
        )
        for request_body in request_bodies
        for response_body in response_bodies
        for balancing in (Balancing.ORIGINAL_DST, Balancing.OVERRIDE_HOST)
    ]
