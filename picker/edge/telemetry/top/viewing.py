"""The loop of `picker top`: read, draw, and try again where a picker is away for a while."""

import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live as LiveDisplay

from picker.edge.telemetry.explain import AskError
from picker.edge.telemetry.top.from_metrics import MetricsReader
from picker.edge.telemetry.top.from_stream import NoStreamError, stream_readings
from picker.edge.telemetry.top.reading import TopReading
from picker.edge.telemetry.top.screen import frame

RETRY_SECONDS = 1.0


def view(
    address: str,
    token: str | None,
    *,
    interval_seconds: float = 1.0,
    order: str = "load",
    once: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until Ctrl-C; one frame where `once` is set, or where nobody sees a second one. Raises `AskError` at first."""
    console = console or Console(markup=False, highlight=False, emoji=False)
    frames = readings(address, token, interval_seconds, sleep)
    first = _next(frames)
    if once or not console.is_terminal:
        reading = _next(frames)  # rates are differences of two
        height = max(len(reading.endpoints), 1) + 20
        console.print(frame(reading, address=address, width=console.width, height=height, order=order))
        return

    def shown(reading: TopReading, note: str = "") -> None:
        width, height = console.size
        drawn = frame(reading, address=address, width=width, height=height, order=order, note=note)
        display.update(drawn, refresh=True)

    with LiveDisplay(console=console, screen=True, auto_refresh=False) as display:
        reading = first
        try:
            shown(reading)
            while True:
                try:
                    reading = _next(frames)
                    shown(reading)
                except AskError as error:
                    shown(reading, str(error))
                    sleep(RETRY_SECONDS)
                    frames = readings(address, token, interval_seconds, sleep)
        except KeyboardInterrupt:
            return


def _next(frames: Iterator[TopReading]) -> TopReading:
    try:
        return next(frames)
    except StopIteration:
        raise AskError("the picker closed the stream") from None


def readings(
    address: str, token: str | None, interval_seconds: float, sleep: Callable[[float], None]
) -> Iterator[TopReading]:
    """From the stream if there is one, else from the pages. Ends where a stream does. Raises `AskError`."""
    try:
        due = 0.0
        for reading in stream_readings(address, token):
            if time.monotonic() >= due:
                due = time.monotonic() + interval_seconds - 0.1  # the stream's own second is no exact one
                yield reading
        return
    except NoStreamError:
        pass
    reader = MetricsReader(address, token)
    while True:
        yield reader.read()
        sleep(interval_seconds)
