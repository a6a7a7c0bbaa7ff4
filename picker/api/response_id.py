"""The ids of what a server stores, from the first bytes of an answer that tells them: only that server has it.

`{"id": "resp_..."` in JSON, `data: {"response": {"id": "resp_..."` in the first event of a stream:
in both the first `id` is the answer's own (recorded from vLLM 0.32; OpenAI's reference has the same
order). So it is of a file and of a batch. Two kinds of answers tell more: a batch names the files that it
wrote (`output_file_id`, `error_file_id`), and a list the files or batches of the server that was asked.
What does not show within the head of an answer is not looked for further.
"""

import re
from typing import Final

HEAD_BYTES_MAX: Final = 2048
MANY_HEAD_BYTES_MAX: Final = 64 * 1024
IDS_MAX: Final = 128
"""Of one answer."""

STORED: Final = ("responses", "conversations", "files", "batches", "uploads", "videos")
"""Names of paths where a POST makes something that its server stores."""
LISTED: Final = ("files", "batches", "videos")
"""Of these, what a server lists."""
_TELL_MORE: Final = ("batches", "uploads", "videos")

_VALUE: Final = rb'\s*:\s*"([A-Za-z0-9_.:-]{1,128})"'
_ID: Final = re.compile(rb'"id"' + _VALUE)
_ALL: Final = re.compile(rb'"(?:id|output_file_id|error_file_id)"' + _VALUE)
_LONGEST: Final = 256
"""More than a name, a colon and an id take: so much is read again with the next chunk."""

_NONE: Final[tuple[str, ...]] = ()


class ResponseIdReader:
    """Feed it the body's chunks until `done`."""

    __slots__ = ("_bytes_max", "_found", "_head", "_many", "_read", "done")

    def __init__(self, *, many: bool = False) -> None:
        """`many`: all ids of the answer's head, not only the first."""
        self._many = many
        self._bytes_max = MANY_HEAD_BYTES_MAX if many else HEAD_BYTES_MAX
        self._head = b""
        self._read = 0
        self._found = 0
        self.done = False

    def feed(self, chunk: bytes) -> tuple[str, ...]:
        """The ids that became complete, each once."""
        if self.done:
            return _NONE
        chunk = chunk[: self._bytes_max - self._read]
        self._read += len(chunk)
        self._head = self._head + chunk
        if not self._many:
            found = _ID.search(self._head)
            self.done = found is not None or self._read == self._bytes_max
            return _NONE if found is None else (found[1].decode(),)
        names: list[str] = []
        end = 0
        for each in _ALL.finditer(self._head):
            end = each.end()
            names.append(each[1].decode())
        self._head = self._head[max(end, len(self._head) - _LONGEST) :]
        self._found += len(names)
        self.done = self._read == self._bytes_max or self._found >= IDS_MAX
        return tuple(names[: IDS_MAX - self._found + len(names)])


def ids_told(path_name: str, method: str, held_id: str | None) -> ResponseIdReader | None:
    """What reads the ids in the answer to a request, or `None`: it tells none of what its server stores."""
    if path_name not in STORED:
        return None
    if held_id is None:
        return ResponseIdReader(many=path_name in LISTED) if method == "POST" or path_name in LISTED else None
    # Of an id's own answers a batch's tell more, an upload's the file that it became, a video's the one made of it;
    # a file's content is full of other ids.
    return ResponseIdReader(many=True) if path_name in _TELL_MORE and method in ("GET", "POST") else None
