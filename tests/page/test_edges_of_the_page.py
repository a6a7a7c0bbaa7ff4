"""The page where it is hard: a thousand endpoints, hostile names, a picker that restarts, a token, a switch."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from picker.lab.children import Child
from tests.page.guarded import guarded_port
from tests.page.test_page import LIVE, NAMES, opened

HOSTILE = [
    '<img src=x onerror="window.hacked = 1">',
    "\u202egnp.exe\u202c rtl",
    "\x1b[31mred\x1b[0m \x07",
    "x" * 3000,
    "'\"><script>window.hacked = 1</script>",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "دجاج 12 ،قطة",
    " ",
]


TICK = """fetch('live').then(async (response) => {
    const reader = response.body.getReader(), text = new TextDecoder();
    for (let all = ''; !all.includes('event: tick');) all += text.decode((await reader.read()).value, {stream: true});
    await reader.cancel();
    return 1;
})"""
"""Another viewer's first tick: the page has had one too."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def picker(folder: Path, names: list[str], config: str = "", port: int = 0):
    """A picker whose endpoints are at addresses where nothing listens."""
    entries = [{"name": name, "address": f"127.1.{n >> 8}.{n & 255}:1"} for n, name in enumerate(names)]
    (folder / "endpoints.json").write_text(json.dumps({"endpoints": entries}))
    (folder / "config.yaml").write_text(config)
    flags = ("--insecure", "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--log-level", "error")
    files = ("--endpoints-file", str(folder / "endpoints.json"), "--config", str(folder / "config.yaml"))
    async with Child("the picker", "picker", "serve", *flags, "--metrics-port", str(port), *files) as child:
        yield dict(part.split("=", 1) for part in child.ready.split())["metrics"]


def test_a_thousand_endpoints(chrome, run, tmp_path):
    async def scenario():
        names = [f"pod-{n}" for n in range(1000)]
        async with picker(tmp_path, names, "engine_metrics: {interval_seconds: 60}") as address, chrome.page() as page:
            await opened(page, f"http://{address}/")
            assert await page.text("#endpoints-count") == "1,000"
            drawn = await page.run("document.querySelectorAll('#endpoints-body .row').length")
            assert drawn < 60, "only what is in sight is drawn"
            assert await page.run("document.querySelector('#endpoints').ariaRowCount") == "1001"
            shown = await page.run(NAMES)
            assert shown[:3] == ["pod-0", "pod-1", "pod-2"]  # numbers in names count as numbers
            await page.run("const e = document.querySelector('#endpoints'); e.scrollTop = e.scrollHeight; 1")
            await page.until(f"({NAMES}).at(-1) === 'pod-999'")
            assert await page.run("document.querySelector('#endpoints-body .row:not([hidden])').isConnected")
            await page.run("document.querySelector('#endpoints').focus(); 1")
            await page.press("Home")
            await page.until(f"({NAMES})[0] === 'pod-0' && document.activeElement.textContent === 'pod-0'")
            await page.press("End")
            await page.until("document.activeElement.textContent === 'pod-999'")
            await page.click("#endpoints-filter")
            await page.type("pod-77")
            await page.until("document.querySelector('#endpoints-count').textContent === '11 of 1,000'")
            assert page.problems == []

    run(scenario())


def test_names_are_words_and_nothing_else(chrome, run, tmp_path):
    async def scenario():
        async with picker(tmp_path, HOSTILE) as address, chrome.page() as page:
            await opened(page, f"http://{address}/")
            assert await page.run("document.querySelectorAll('#endpoints-body .row:not([hidden])').length") == len(
                HOSTILE
            )
            await asyncio.sleep(1.5)
            assert await page.run("window.hacked") is None
            assert (
                await page.run("document.querySelectorAll('#endpoints-body img, #endpoints-body script').length") == 0
            )
            shown = await page.run(NAMES)
            assert HOSTILE[0] in shown and HOSTILE[4] in shown
            assert "\\u202egnp.exe\\u202c rtl" in shown
            assert any(name.startswith("\\u001b[31mred\\u001b[0m") for name in shown)
            heights = await page.run(
                "[...document.querySelectorAll('#endpoints-body .row:not([hidden])')].map((e) => e.offsetHeight)"
            )
            assert set(heights) == {30}
            assert not await page.run("document.documentElement.scrollWidth > window.innerWidth")
            assert page.problems == []

    run(scenario())


def test_it_comes_back_with_the_picker(chrome, run, tmp_path):
    async def scenario():
        port = free_port()
        async with chrome.page() as page, AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncExitStack())
            await first.enter_async_context(picker(tmp_path, ["before-0", "before-1"], port=port))
            await opened(page, f"http://127.0.0.1:{port}/")
            assert await page.run(NAMES) == ["before-0", "before-1"]
            await page.type("")
            await first.aclose()
            await page.until("document.querySelector('#status').dataset.state === 'off'")
            assert await page.text("#status") == "Reconnecting"
            await stack.enter_async_context(picker(tmp_path, ["after-0"], port=port))
            await page.until(f"{LIVE} && ({NAMES}).join() === 'after-0'", "it follows the new one")
            # A browser logs each connection that is refused by itself; the page must add nothing.
            assert [each for each in page.problems if "ERR_" not in each] == []

    run(scenario())


def test_what_stands_still_stays_whole_whatever_becomes_of_the_pool(chrome, run, tmp_path):
    async def scenario():
        port = free_port()
        async with chrome.page() as page, AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncExitStack())
            await first.enter_async_context(picker(tmp_path, ["old-0", "old-1", "old-2"], port=port))
            await opened(page, f"http://127.0.0.1:{port}/")
            await page.click("#pause")
            kept = {"endpoints": [{"name": "new-0", "address": "127.1.9.9:1"}]}
            (tmp_path / "endpoints.json").write_text(json.dumps(kept))
            await page.until("fetch('metrics').then((r) => r.text()).then((t) => t.includes('new-0'))", "it was read")
            await page.run(TICK)
            await page.run(TICK)
            await page.click("#endpoints-filter")
            await page.type("old")
            assert await page.run(NAMES) == ["old-0", "old-1", "old-2"]
            await page.run("const e = document.querySelector('#endpoints-filter'); e.value = '';"
                           " e.dispatchEvent(new Event('input')); 1")  # fmt: skip
            await page.click("#pause")
            await page.until(f"{LIVE} && ({NAMES}).join() === 'new-0'")
            await page.click("#pause")
            await first.aclose()
            await page.until("document.querySelector('#status').dataset.state === 'off'")
            await stack.enter_async_context(picker(tmp_path, ["after-0"], port=port))
            await page.until("document.querySelector('#status').textContent === 'Paused'", "it is there again")
            await page.click("#pause")
            await page.until(f"{LIVE} && ({NAMES}).join() === 'after-0'")
            assert [each for each in page.problems if "ERR_" not in each] == []

    run(scenario())


def test_a_page_that_is_off_says_so(chrome, run, tmp_path):
    async def scenario():
        async with picker(tmp_path, ["a"]) as address, chrome.page() as page:
            await opened(page, f"http://{address}/")
            (tmp_path / "config.yaml").write_text("debug: {page: false}")
            await page.until("document.querySelector('#notice').innerText.includes('switched off')")
            (tmp_path / "config.yaml").write_text("debug: {page: true}")
            await page.until(f"{LIVE} && document.querySelector('#notice').hidden")

    run(scenario())


@pytest.fixture
def guarded(run):
    """The metrics port asking for a token, as with `--metrics-auth`: the review is the only thing that is not real."""
    stack = AsyncExitStack()
    yield run(stack.enter_async_context(guarded_port()))
    run(stack.aclose())


def test_a_token_is_asked_for_and_kept_in_the_tab(chrome, run, guarded):
    async def scenario():
        async with chrome.page() as page:
            await page.open(f"http://{guarded}/")
            await page.until("document.querySelector('#token').open")
            await page.run("document.querySelector('#token-value').focus(); 1")
            await page.type("wrong")
            await page.press("Enter")
            await page.until("document.querySelector('#token-refused').innerText.includes('refused')")
            await page.run("document.querySelector('#token-value').focus(); 1")
            await page.type("right")
            await page.press("Enter")
            await page.until(LIVE)
            assert not await page.run("document.querySelector('#token').open")
            await page.open(f"http://{guarded}/")
            await page.until(LIVE, "the tab remembers it")
            assert await page.run("localStorage.length") == 0 and await page.run("document.cookie") == ""
            assert "right" not in await page.run("location.href + document.body.innerHTML")

    run(scenario())
