"""The id of a stored response or conversation, from the first bytes of the answer that made it.

`{"id": "resp_..."` in JSON, `data: {"response": {"id": "resp_..."` in the first event of a stream:
in both the first `id` is the answer's own (recorded from vLLM 0.32; OpenAI's reference has the same
order). What does not show within `HEAD_BYTES_MAX` is not looked for further.
"""

import re

HEAD_BYTES_MAX = 2048

_ID = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9_.:-]{1,128})"')


class ResponseIdReader:
    """Feed it the body's chunks until `done`."""

    __slots__ = ("_head", "done")

    def __init__(self) -> None:
        self._head = b""
        self.done = False

    def feed(self, chunk: bytes) -> str | None:
        """The id, when it is complete; at most once."""
        if self.done:
            return None
        self._head = (self._head + chunk[:HEAD_BYTES_MAX])[:HEAD_BYTES_MAX]
        found = _ID.search(self._head)
        self.done = found is not None or len(self._head) == HEAD_BYTES_MAX
        return found[1].decode() if found else None
