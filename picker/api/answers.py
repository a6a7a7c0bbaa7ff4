"""What an answer tells as its bytes pass: when content begins, how much of it there is, its counts, an error.

    EVENTS    server-sent events: chats, completions, Responses, Anthropic, most engines' own streams
    LINES     a JSON object a line (Ollama)
    WHOLE     one JSON object
    OPAQUE    anything else: its first byte is all that is seen

A chunk costs little: events are decoded until the first that carries content; after it only those that may hold
counts are kept, and contents are counted by a pattern. What is found depends on the bytes alone, never on where
chunks begin. Memory: the unfinished line up to `LINE_BYTES_MAX`, a whole answer up to `WHOLE_BYTES_MAX`; what is
longer is followed by its brackets (`json_answer.py`).

Time is bounded too. Of a chunk that is longer than proxies make them, or of more lines than engines write into one,
only the beginning and the end are looked at: what lies between counts as content that began, and nothing else.
"""

import re
from enum import IntEnum
from typing import Final

from picker.api.content import NOTHING_YET, carries_content, error_status
from picker.api.json_answer import TopMembers
from picker.api.usage import MARKS, NAMES, WITHIN, Counts, counts, merged, neutral
from picker.outcomes import Usage

LINE_BYTES_MAX: Final = 64 * 1024
WHOLE_BYTES_MAX: Final = 64 * 1024
CHUNK_BYTES_MAX: Final = 1024 * 1024
"""What an Envoy reads ahead by default, and so the most that one message holds of an answer that streams."""
LINES_MAX: Final = 4096
"""Of one chunk; engines write some 200 bytes a line. Each costs up to two microseconds."""
DATA_LINES_MAX: Final = 1024
"""Of one event; an empty one takes memory too."""
_END_BYTES: Final = 16 * 1024
"""Of what is not looked at, its end: the counts stand there."""

_CONTENT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|partial_json|arguments|delta|response|text_output)"\s*:\s*"(?!")'
    rb'|"(?:tool_calls|token_ids|output_ids|tokens)"\s*:\s*\[\s*[^\]\s]|"token"\s*:\s*\{'
)
"""Of an event behind the first one with content: a member that speaks. Quotes inside strings are escaped, so no
text of the answer looks like one."""
_CHAT: Final = b'"content":"'
_CHAT_EMPTY: Final = b'"content":""'
_SPACED: Final = b'"content": "'
_SPACED_EMPTY: Final = b'"content": ""'
"""The same at once, for the most frequent event of all."""
_D: Final = 0x64
_COLON: Final = 0x3A
_OPEN_BRACE: Final = 0x7B
_BRACE: Final = 0x7D
_LF: Final = 0x0A
_TOKENS: Final = MARKS[0]
_EVAL_COUNT: Final = MARKS[1]
_EVALUATED: Final = MARKS[2]
_TOKEN_COUNT: Final = MARKS[3]
_ERROR: Final = b'error"'
_TYPE: Final = b"type"
_OF_A_LONG_EVENT: Final = NAMES | {_TYPE}
_BOM_DATA: Final = b"\xef\xbb\xbfdata:"


class Framing(IntEnum):
    """How an answer's bytes make events."""

    EVENTS = 0
    LINES = 1
    WHOLE = 2
    OPAQUE = 3


_EVENTS: Final = Framing.EVENTS
_WHOLE: Final = Framing.WHOLE
_OPAQUE: Final = Framing.OPAQUE


def framing_of(content_type: str, streaming: bool) -> Framing:
    """Of an answer with this content type to a request that asked for a stream, or did not."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return Framing.EVENTS
    if kind in ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"):
        return Framing.LINES
    if kind == "application/json" or not streaming:
        return Framing.WHOLE
    return Framing.OPAQUE


class AnswerReader:
    """Feed it a response body chunk by chunk, ask it at the end."""

    __slots__ = (
        "_after_cr",
        "_carry",
        "_count_events",
        "_data",
        "_first",
        "_framing",
        "_last",
        "_members",
        "_skipped",
        "_understood",
        "_whole",
        "_whole_bytes",
        "content_events",
        "failure",
        "started",
    )

    def __init__(self, framing: Framing, *, understood: bool, count_events: bool) -> None:
        """`understood`: the API is one whose events we know; of others any event counts as content.
        `count_events`: no usage was asked for, so contents are counted."""
        self._framing = framing
        self._understood = understood
        self._count_events = count_events
        self.started = False
        """Generated content was seen."""
        self.content_events = 0
        """Events that carried some, where they are counted."""
        self.failure: int | None = None
        """The answer says that the request failed: with the HTTP status that it would have had."""
        self._after_cr = False
        """The last chunk ended in CR; an LF that the next one begins with belongs to it."""
        self._carry = b""
        self._data: list[bytes] = []
        """Of an event whose end is not here yet: an event may have several lines of data."""
        self._skipped: TopMembers | None = None
        """Of a line that is too long to keep."""
        self._first: bytes | None = None
        self._last: bytes | None = None
        """The first and the last event that may hold counts."""
        self._whole: list[bytes] = []
        self._whole_bytes = 0
        self._members: TopMembers | None = None

    def feed(self, chunk: bytes) -> bool:
        """One body chunk, as it passes. True once: generated content began in it."""
        framing = self._framing
        if framing is _WHOLE:
            self._feed_whole(chunk)
            return False
        if framing is _OPAQUE:
            began = not self.started
            self.started = True
            return began
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
                if not chunk:
                    return False
        if self.started and not self._carry and self._is_one_event(chunk):
            self._read_one(chunk)
            return False
        if len(chunk) > CHUNK_BYTES_MAX:
            began = self.feed(chunk[:LINE_BYTES_MAX])
            return self._pass_over(chunk) or began
        if self._carry:
            chunk = self._carry + chunk
            self._carry = b""
        if b"\r" in chunk and framing is _EVENTS:  # lines end in CR, LF or CRLF
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = chunk.rfind(b"\n") + 1
        if end == len(chunk):
            return self._read_lines(chunk)
        began = self._read_lines(chunk[:end]) if end else False
        self._keep_rest(chunk[end:])
        return began

    def usage(self) -> Usage | None:
        """What the answer counted; `None` where it counted nothing."""
        if self._framing is _WHOLE:
            return neutral(self._whole_counts())
        rest, self._carry = self._carry, b""  # an unfinished last event counts too
        if rest or self._data or self._skipped is not None:
            self._read_lines(rest + b"\n\n")
        last = None if self._last is None else counts(self._last)
        if last is None or last.input_tokens is None or last.cache_read_input_tokens is not None:
            last = merged(None if self._first is None else counts(self._first), last)
        return neutral(last)

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether a chunk is one whole event, as engines write them: nearly every chunk of a long answer is."""
        if self._framing is not _EVENTS or self._data or self._skipped is not None:
            return False
        size = len(chunk)
        # Its ends byte by byte, which costs less than two calls.
        if size < 12 or chunk[0] != _D or chunk[4] != _COLON or chunk[6] != _OPEN_BRACE or chunk[size - 3] != _BRACE:
            return False
        return chunk[size - 1] == _LF and chunk.find(b"\n") == size - 2

    def _read_one(self, chunk: bytes) -> None:
        """A chunk that is one event, after the first content."""
        if _TOKENS in chunk or _EVAL_COUNT in chunk or _EVALUATED in chunk or _TOKEN_COUNT in chunk or _ERROR in chunk:
            self._read_event(chunk[6:-2])
        elif self._count_events:
            speaks = _CHAT in chunk and _CHAT_EMPTY not in chunk
            speaks = speaks or (_SPACED in chunk and _SPACED_EMPTY not in chunk)
            self.content_events += speaks or _CONTENT.search(chunk) is not None

    def _read_lines(self, lines: bytes) -> bool:
        """Whole lines. True if content began in them."""
        if self._skipped is not None:
            end = lines.find(b"\n") + 1
            if self._end_skipped(lines[:end]):
                self._read_lines(lines[end:])
                return True
            lines = lines[end:]
        told = False
        for mark in MARKS:
            if mark in lines:
                told = True
                break
        if self.started and not (told or self._count_events or self._data or b'"error"' in lines):
            if not lines.endswith(b"\n\n") and self._framing is _EVENTS:
                self._read_events(lines[:-1].split(b"\n", LINES_MAX))
            return False
        each = lines[:-1].split(b"\n", LINES_MAX)
        rest = each.pop() if len(each) > LINES_MAX else b""
        if self._framing is _EVENTS:
            began = self._read_events(each)
        else:
            began = True in [self._read_event(line) for line in each if len(line) > 1]
        if rest:
            return self._pass_over(rest + b"\n") or began
        return began

    def _pass_over(self, rest: bytes) -> bool:
        """More than is looked at: all but the lines that begin and end in its end. True if content began in it."""
        began = not self.started
        self.started = True
        self._carry = b""
        self._data.clear()
        self._skipped = None
        if len(rest) > _END_BYTES:
            rest = rest[-_END_BYTES:]
            begin = rest.find(b"\n") + 1
            rest = rest[begin:] if begin else b""
        if rest:
            self.feed(rest)
        return began

    def _read_events(self, lines: list[bytes]) -> bool:
        """Lines of server-sent events (HTML standard, 9.2.6): an empty one ends an event."""
        began = False
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                event = data[0] if len(data) == 1 else b"\n".join(data)
                data.clear()
                if self._read_event(event):
                    began = True
            elif line.startswith(_BOM_DATA):
                data.append(line[len(_BOM_DATA) :].removeprefix(b" "))
        if len(data) > 1 and (len(data) > DATA_LINES_MAX or sum(map(len, data)) > LINE_BYTES_MAX):
            data.clear()
        return began

    def _read_event(self, data: bytes) -> bool:
        for mark in MARKS:
            if mark in data:
                if self._first is None:
                    self._first = data
                if counts(data) is not None:
                    self._last = data
                break
        if self.failure is None and b'error"' in data:
            self.failure = error_status(data)
        if self.started:
            if self._count_events and _CONTENT.search(data) is not None:
                self.content_events += 1
            return False
        speaks = carries_content(data)
        if speaks is None:
            speaks = not self._understood and data != b"[DONE]"
        if speaks:
            self.started = True
            self.content_events += 1
        return speaks

    def _keep_rest(self, rest: bytes) -> None:
        """A line that is not finished."""
        if self._skipped is not None:
            self._skipped.feed(rest)
        elif len(rest) <= LINE_BYTES_MAX:
            self._carry = rest
        else:
            self._skipped = TopMembers(_OF_A_LONG_EVENT, WITHIN)
            self._skipped.feed(rest[rest.find(b"{") :])

    def _end_skipped(self, rest: bytes) -> bool:
        """The end of a line that was too long to keep. True if content began in it."""
        members, self._skipped = self._skipped, None
        if members is None:
            return False
        members.feed(rest)
        kind = members.found.pop(_TYPE, b"").strip()
        if members.found:
            self._last = members.document()
            if self._first is None:
                self._first = self._last
        if self.started or kind in NOTHING_YET:
            return False
        self.started = True  # a whole call in one event
        self.content_events += 1
        return True

    def _feed_whole(self, chunk: bytes) -> None:
        if self._members is not None:
            self._members.feed(chunk)
            return
        self._whole.append(chunk)
        self._whole_bytes += len(chunk)
        if self._whole_bytes > WHOLE_BYTES_MAX:
            self._members = TopMembers(NAMES, WITHIN)
            self._members.feed(b"".join(self._whole))
            self._whole.clear()
        elif len(self._whole) > 128:  # crumbs weigh more than they hold
            self._whole = [b"".join(self._whole)]

    def _whole_counts(self) -> Counts | None:
        document = b"".join(self._whole) if self._members is None else self._members.document()
        if b'"error"' in document:
            self.failure = error_status(document)
        return counts(document)
