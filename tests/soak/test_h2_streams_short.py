"""The soak's short form: 40,000 streams leave nothing behind."""

import pytest

from tests.soak.h2_streams import soak


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_streams_leave_nothing_behind(loop: str) -> None:
    early, late = soak(40_000, loop=loop)
    # 1 MiB of noise; at 100 bytes a stream a leak would be 3.6 MB.
    assert late - early < 1_024
