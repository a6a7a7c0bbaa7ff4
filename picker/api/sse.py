"""Server-sent events: framing as the HTML standard has it (lines end in CR, LF or CRLF)."""

from collections.abc import Iterator

_LINE_ENDS = (b"\r\n", b"\r")


def event_data(stream: bytes) -> Iterator[bytes]:
    """The data of each event, its `data` lines joined by LF. An unfinished last event counts too."""
    for end in _LINE_ENDS:
        stream = stream.replace(end, b"\n")
    data: list[bytes] = []
    for line in stream.split(b"\n"):
        if not line:
            if data:
                yield b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
    if data:
        yield b"\n".join(data)
