"""The ledger of memory: its sums, and who gives way when it is full."""

from random import Random

import pytest

from picker.budget import STREAM_BYTES, UNANSWERED_BYTES, Budget, HolderFor

OPEN = STREAM_BYTES + UNANSWERED_BYTES


class Upload:
    """A body that grows, and what becomes of it."""

    def __init__(self, budget: Budget, name: str = "") -> None:
        self.holder = HolderFor(self.give_way)
        self.budget = budget
        self.name = name
        self.gone = False

    def grow(self, size: int) -> None:
        self.budget.bodies += size
        self.budget.take(self.holder, size)

    def shrink(self, size: int) -> None:
        self.budget.bodies -= size
        self.budget.give(self.holder, size)

    @property
    def held_bytes(self) -> int:
        return self.holder.held_bytes

    def give_way(self) -> None:
        assert not self.gone
        self.gone = True
        self.shrink(self.held_bytes)


def test_the_largest_goes_first_where_all_came_at_once() -> None:
    budget = Budget(1_000_000)
    small = [Upload(budget) for _ in range(50)]
    for each in small:
        each.grow(2_000)
    hog = Upload(budget)
    hog.grow(600_000)
    late = Upload(budget)
    late.grow(400_000)
    assert hog.gone and not late.gone
    assert not any(each.gone for each in small)
    assert budget.used == 500_000
    budget.check()


def test_the_slowest_goes_first_where_all_are_of_a_size() -> None:
    budget = Budget(1_000_000)
    uploads = []
    for second in range(30):
        budget.now = float(second)
        uploads.append(Upload(budget))
        uploads[-1].grow(100_000)
    assert [each.gone for each in uploads] == [True] * 20 + [False] * 10


def test_a_large_body_that_just_came_outlives_small_ones_that_have_waited_long() -> None:
    """What counts is bytes times seconds: many small holders are a hog too."""
    budget = Budget(1_000_000)
    trickles = [Upload(budget) for _ in range(240)]
    for each in trickles:
        each.grow(4_000)
    budget.now = 10.0
    honest = Upload(budget)
    honest.grow(400_000)
    assert not honest.gone
    while not honest.gone and budget.used > budget.bytes_max:
        honest.grow(1)  # each step asks a bounded number of them
    assert not honest.gone
    assert budget.used <= budget.bytes_max


def test_a_small_request_never_gives_way_for_a_large_one() -> None:
    budget = Budget(1_000_000)
    hog = Upload(budget)
    hog.grow(900_000)
    budget.now = 0.05
    for number in range(10_000):
        budget.now += 0.001
        request = Upload(budget, str(number))
        request.grow(3_000)
        assert not request.gone
        request.shrink(3_000)
    assert not hog.gone


def test_one_alone_that_is_too_large_ends_itself() -> None:
    budget = Budget(1_000_000)
    hog = Upload(budget)
    for _ in range(11):
        if not hog.gone:
            hog.grow(100_000)
    assert hog.gone
    assert budget.used == 0


def test_a_call_gives_way_for_being_open_until_it_has_an_answer() -> None:
    budget = Budget(10 * OPEN)
    answered, waits = Upload(budget), Upload(budget)
    budget.begin(answered.holder)
    budget.answered(answered.holder)
    budget.begin(waits.holder)
    budget.now = 1.0
    others = [Upload(budget) for _ in range(9)]
    for other in others:
        other.budget.begin(other.holder)
    assert not answered.gone
    assert (answered.held_bytes, answered.holder.shelf) == (0, -1)
    assert budget.streams == budget.used + budget_bodies_taken(waits)


def budget_bodies_taken(upload: Upload) -> int:
    """`give_way` above books what it lets go under bodies."""
    return OPEN if upload.gone else 0


@pytest.mark.parametrize("answered", [True, False])
def test_an_open_call_counts_until_it_is_over(answered: bool) -> None:
    budget = Budget(1_000_000)
    call = Upload(budget)
    budget.begin(call.holder)
    assert budget.used == budget.streams == OPEN
    if answered:
        budget.answered(call.holder)
        assert budget.used == budget.streams == STREAM_BYTES
    budget.end(call.holder, answered)
    assert budget.used == budget.streams == 0
    budget.check()


def test_sums_and_shelves_hold_whatever_comes() -> None:
    rng = Random(1)
    budget = Budget(3_000_000)
    uploads: list[Upload] = []
    for _ in range(20_000):
        budget.now += rng.random() / 100
        if not uploads or rng.random() < 0.2:
            uploads.append(Upload(budget))
        each = rng.choice(uploads)
        if rng.random() < 0.6:
            each.grow(rng.choice((1, 500, 20_000, 300_000)))
        elif each.held_bytes:
            each.shrink(rng.randint(1, each.held_bytes))
        uploads = [upload for upload in uploads if not upload.gone]
        assert budget.used == sum(upload.held_bytes for upload in uploads)
        assert budget.used <= budget.bytes_max + 300_000  # a step at a time
    budget.check()
    assert budget.gave_way_total > 100
