"""How Envoy ends its streams is no attack: it resets them, and a guard against rapid resets must not see it."""

import pytest

from picker.lab.envoy import BodySendMode, EnvoyProcess
from tests.envoy.clients import post
from tests.envoy.lab import BODY, CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess
from tests.envoy.upstream import fresh_id

CONFIG = "transport: {resets_max: 5, resets_per_second: 1}"


@pytest.mark.parametrize("response_body", [BodySendMode.NONE, FD], ids=["responses left alone", "responses echoed"])
def test_ended_streams_are_no_rapid_reset(lab: Lab, response_body: BodySendMode) -> None:
    with (
        PickerProcess(lab.addresses, CONFIG) as picker,
        EnvoyProcess(lab.config(picker_address=picker.grpc_address, response_body=response_body)) as envoy,
    ):
        for _ in range(40):
            assert post(envoy.port, f"{CHAT}?id={fresh_id()}", BODY).status == 200
        assert not any(envoy.stats("cluster.picker.upstream_cx_destroy").values())
        assert sum(envoy.stats("streams_failed").values()) == 0
