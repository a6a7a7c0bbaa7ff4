"""Work of seconds beside an event loop that must not notice: long YAML, say.

A thread alone is not enough. It keeps the interpreter for 5 ms at a time, and what it makes by the hundred thousand
sets off collections that stop every thread for as long as they take (0.2 s for a list of 4,000 endpoints). So
within `unnoticed` the interpreter changes hands ten times as often, and nothing is collected: what is made there and
dropped again goes by its reference counts. For work of bounded size only, one at a time.
"""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TURN_SECONDS: Final = 0.0005

_one_at_a_time: Final = threading.Lock()


@contextmanager
def unnoticed() -> Iterator[None]:
    """Around work in a thread. As it was before, afterwards."""
    with _one_at_a_time:
        before, collects = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(TURN_SECONDS)
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
            sys.setswitchinterval(before)
