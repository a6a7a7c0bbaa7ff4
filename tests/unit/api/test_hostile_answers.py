"""Answers made to hurt: what an engine, or whoever plays a proxy, sends is looked at at a bounded cost.

Cost is counted, not timed: bytes allocated at the peak, and events that were looked at.
"""

import tracemalloc

import pytest

from picker.api.answers import CHUNK_BYTES_MAX, LINES_MAX, AnswerReader, Framing
from picker.api.json_answer import ESCAPES_MAX

MIB = 1024 * 1024
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7}}\n\n'
CONTENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


def reader(framing=Framing.EVENTS) -> AnswerReader:
    return AnswerReader(framing, understood=True, count_events=True)


@pytest.mark.parametrize("piece", [b"\n", b"\r", b"data:\n", b"data:{}\n\n", b"data:x\n\n", b"x"])
@pytest.mark.parametrize("framing", [Framing.EVENTS, Framing.LINES])
@pytest.mark.parametrize("size", [CHUNK_BYTES_MAX, 16 * MIB])
def test_a_chunk_of_crumbs_is_not_taken_apart(framing, piece, size):
    """Lines as objects would take eight times the chunk and more."""
    chunk = piece * (size // len(piece))
    made = reader(framing)
    tracemalloc.start()
    made.feed(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MIB + len(chunk) * (size == CHUNK_BYTES_MAX) * 2


@pytest.mark.parametrize("times", [LINES_MAX, CHUNK_BYTES_MAX])
def test_of_too_many_events_the_first_and_the_last_are_looked_at(times):
    """So a long burst still tells when it began and what it counted."""
    made = reader()
    assert made.feed(CONTENT * times + COUNTS)
    assert made.content_events < LINES_MAX
    usage = made.usage()
    assert usage is not None and (usage.input_tokens, usage.output_tokens) == (11, 7)
    assert made.feed(CONTENT) is False


def test_what_is_not_looked_at_counts_as_content():
    """Nobody can say that it was none, and the answer goes on."""
    made = reader()
    assert made.feed(b": ping\n\n" * LINES_MAX)
    assert made.started and made.content_events == 0


def test_events_of_a_usual_chunk_are_all_looked_at():
    made = reader()
    made.feed(CONTENT * (LINES_MAX // 2))
    assert made.content_events == LINES_MAX // 2


def test_an_event_of_empty_lines_is_not_kept_for_ever():
    made = reader()
    tracemalloc.start()
    for _ in range(2_000):
        made.feed(b"data:\n" * 1_000)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < MIB
    made.feed(b"\n" + COUNTS)
    usage = made.usage()
    assert usage is not None and usage.output_tokens == 7


@pytest.mark.parametrize("escapes", [1_000, ESCAPES_MAX + 1])
def test_a_whole_answer_of_escapes_is_left_alone(escapes):
    made = reader(Framing.WHOLE)
    text = b'\\"' * escapes + b"x" * (2 * MIB)
    made.feed(b'{"text":"%b","usage":{"prompt_tokens":11,"completion_tokens":7}}' % text)
    usage = made.usage()
    assert (usage is None) == (escapes > ESCAPES_MAX)
