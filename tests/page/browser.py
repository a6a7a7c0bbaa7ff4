"""A real Chromium, spoken to over the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/).

One process, started once; each test opens a page in a browser context of its own, with its own storage. What a
page logs as an error, throws, is refused by its policy or cannot load is kept in `problems`.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from picker.lab.child import dying_with_us

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "Chromium: install it (Debian: chromium), or name it in PICKER_CHROMIUM"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--no-proxy-server"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0", "about:blank"),
)
WAIT_SECONDS_MAX = 20.0
KEYS = {"Enter": ("\r", 13), "Tab": ("\t", 9), "Escape": ("", 27), "ArrowRight": ("", 39), "ArrowDown": ("", 40),
        " ": (" ", 32), "End": ("", 35), "Home": ("", 36)}  # fmt: skip


def chromium() -> str | None:
    """The program; `None`: there is none."""
    named = os.environ.get("PICKER_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class PageError(AssertionError):
    """The page threw."""


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.problems: list[str] = []
        self._browser = browser
        self._session = session

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self._browser.call(method, session=self._session, **parameters)

    async def begin(self, width: int, height: int, dark: bool, scale: float) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.resize(width, height, scale)
        scheme = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    async def until(self, script: str, what: str = "") -> Any:
        """The value of the expression once it is true."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            value = None
            with contextlib.suppress(PageError):
                value = await self.run(script)
            if value or value == {}:  # an element, by value
                return value
            if time.monotonic() > deadline:
                seen = await self.run(
                    "(document.querySelector('dialog[open]') ?? document.body).innerText.slice(0, 900)"
                )
                raise AssertionError(f"never so: {what or script}\n{self.problems}\n{seen}")
            await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of it; pointed at first, as what is pointed at stays where it is."""
        middle = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return b.width ? [b.x + b.width / 2, b.y + b.height / 2] : null; })()"
        )
        for _ in range(2):
            await self.move(*await self.until(middle, f"{selector} can be clicked"))
        x, y = await self.until(middle)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def move(self, x: float, y: float) -> None:
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def press(self, *keys: str) -> None:
        for key in keys:
            text, code = KEYS[key]
            named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
            await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, words: str) -> None:
        await self.call("Input.insertText", text=words)

    async def set(self, selector: str, value: str) -> None:
        """The value of a field, as a hand would change it."""
        await self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            "for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true})); })()"
        )

    async def slide(self, name: str, value: float) -> None:
        """A slider of "What if"."""
        await self.set(f"#slider-{name}", str(value))

    async def paste(self) -> None:
        """What was copied, into the field that has the focus."""
        key = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": 86, "modifiers": 2, "commands": ["paste"]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **key)

    async def screenshot(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        """An event of this tab."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each)) for each in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")


class Browser:
    """The process and its one websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        await self._socket.send_str(json.dumps(message))
        return await asyncio.wait_for(future, 60)

    async def listen(self) -> None:
        """Until the browser is gone."""
        async for raw in self._socket:
            message = json.loads(raw.data)
            future = self._waiting.pop(message.get("id", 0), None)
            if future is not None and not future.done():
                if "error" in message:
                    future.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    future.set_result(message["result"])
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].heard(message["method"], message["params"])

    @contextlib.asynccontextmanager
    async def page(
        self, width: int = 1440, height: int = 1000, *, dark: bool = False, scale: float = 1.0
    ) -> AsyncIterator[Page]:
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        try:
            target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
            attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
            await page.begin(width, height, dark, scale)
            yield page
        finally:
            await self.call("Target.disposeBrowserContext", browserContextId=context)


@contextlib.asynccontextmanager
async def browser(program: str) -> AsyncIterator[Browser]:
    """A Chromium with an empty profile, ended with the block."""
    with tempfile.TemporaryDirectory(prefix="picker-chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *dying_with_us([program, f"--user-data-dir={profile}", *FLAGS]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        drain: asyncio.Task[Any] | None = None
        try:
            assert process.stderr is not None
            address = await asyncio.wait_for(_address(process.stderr), 30)
            drain = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
                running = Browser(socket)
                listening = asyncio.create_task(running.listen())
                yield running
                listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if drain is not None:
                drain.cancel()


async def _address(stderr: asyncio.StreamReader) -> str:
    seen = b""
    while line := await stderr.readline():
        seen += line
        found = re.match(rb"DevTools listening on (ws://\S+)", line)
        if found:
            return found[1].decode()
    raise AssertionError(f"Chromium did not start: {seen.decode(errors='replace')}")
