"""The chart's Envoy where it buffers: what the picker does not read may be of any size, as with deploy/envoy."""

import pytest

from tests.deploy.standalone import bootstrap, envoy_for
from tests.deploy.values import Values
from tests.envoy.picker_process import PickerProcess
from tests.envoy.test_sample_configs import load
from tests.envoy.test_sample_uploads import (
    BUFFERED,
    assert_prompts_are_read,
    assert_uploads_arrive_whole,
    refusal_of_a_tunnel,
    unread_paths,
)
from tests.envoy.upstream import Upstream, fresh_id

pytestmark = pytest.mark.usefixtures("helm")

DUPLEX: Values = {"requestBodyMode": "FULL_DUPLEX_STREAMED", "responseBodyMode": "FULL_DUPLEX_STREAMED"}


def test_large_bodies_that_nobody_reads_pass_and_prompts_are_read() -> None:
    with (
        Upstream() as upstream,
        PickerProcess([upstream.address], insecure=False) as picker,
        envoy_for(picker) as envoy,
    ):
        rid = fresh_id()
        assert_uploads_arrive_whole(envoy, rid, upstream.recorded)
        assert_prompts_are_read(envoy, rid)


def test_the_paths_are_those_of_the_samples() -> None:
    """Which are held against the picker's table there."""
    ours = bootstrap({"standalone": {"enabled": True}})
    assert {unread_paths(load(sample)).pattern for sample in BUFFERED} == {unread_paths(ours).pattern}


@pytest.mark.parametrize("shape", [{}, DUPLEX], ids=["buffered", "duplex"])
def test_who_wants_a_tunnel_is_refused_at_once(shape: Values) -> None:
    with (
        Upstream() as upstream,
        PickerProcess([upstream.address], insecure=False) as picker,
        envoy_for(picker, **shape) as envoy,
    ):
        assert refusal_of_a_tunnel(envoy) in (403, 404)
