"""What long work beside the loop changes, and that it is changed back."""

import gc
import sys
import threading

import pytest

from picker.files.background import TURN_SECONDS, unnoticed


def test_within_nothing_is_collected_and_turns_are_short_and_afterwards_all_is_as_before() -> None:
    before = sys.getswitchinterval()
    assert gc.isenabled()
    with pytest.raises(KeyError), unnoticed():
        assert not gc.isenabled()
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        raise KeyError
    assert gc.isenabled()
    assert sys.getswitchinterval() == before


def test_one_at_a_time_so_that_nobody_changes_it_back_to_what_another_set() -> None:
    before = sys.getswitchinterval()

    def work() -> None:
        for _ in range(50):
            with unnoticed():
                assert not gc.isenabled()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
    assert sys.getswitchinterval() == before
