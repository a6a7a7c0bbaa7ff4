"""The page as people meet it: a real Chromium before a real picker, Envoy and simulated model servers."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from picker.config import Config
from picker.config.reading import load
from tests.page.browser import Page

LIVE = "document.querySelector('#status').dataset.state === 'live'"
AXE = Path(__file__).parent / "axe" / "axe.min.js"
NAMES = """[...document.querySelectorAll('#endpoints-body .row:not([hidden])')]
    .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((row) => row.querySelector('.name').textContent)"""
AGES = "[...document.querySelectorAll('[data-column=age_seconds].cell')].map((each) => each.textContent).join()"
ROWS = """[...document.querySelectorAll('.costs tbody tr')]
    .map((row) => [row.className, row.cells[0].textContent, row.cells[2].textContent])"""
FOCUSED = """(() => { const e = document.activeElement;
    return e.id || e.closest('[data-column]')?.dataset.column || e.closest('[id]')?.id; })()"""
OBSERVED = "{subtree: true, characterData: true, childList: true}"
ALL = ["absent-0", "absent-1", "llama-8b-0-0", "llama-8b-0-1", "llama-8b-0-2", "llama-8b-0-3"]


async def opened(page: Page, url: str) -> None:
    await page.open(url)
    await page.until(LIVE, "the page is live")
    await page.until("document.querySelectorAll('#endpoints-body .row').length > 0")


def sorted_by(key: str) -> str:
    return f"document.querySelector('[data-column={key}]').getAttribute('aria-sort')"


async def axe(page: Page) -> list[str]:
    """What axe-core finds, at every level of WCAG 2.2 A and AA and its best practices."""
    await page.run(await asyncio.to_thread(AXE.read_text, "utf-8") + "\n;1")
    found = await page.run("axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.stringify(r.violations))")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in json.loads(found)
    ]


def test_it_loads_and_is_live(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            assert await page.run("document.title") == "default · inference-picker"
            assert (await page.text("#fact-endpoints")).startswith("6")
            assert await page.run(NAMES) == ALL
            await page.until("document.querySelectorAll('#decisions li').length > 3")
            await page.until("document.querySelector('.chart .value').textContent !== '–'", "a bucket was counted")
            await page.until("document.querySelectorAll('.chart path.trace')[0].getAttribute('d').length > 10")
            assert "interpreted" in await page.text("#version") or "compiled" in await page.text("#version")
            assert page.problems == []

    run(scenario())


def test_it_loads_nothing_from_elsewhere(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            loaded = await page.run("performance.getEntriesByType('resource').map((each) => each.name)")
            assert len(loaded) >= 9 and all(name.startswith(world.url) for name in loaded), loaded

    run(scenario())


def test_it_shows_what_changes_and_stands_still_when_told(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            seen = await page.run(AGES)
            await page.until(f"({AGES}) !== {json.dumps(seen)}", "ages go on")
            await page.click("#pause")
            assert await page.text("#status") == "Paused"
            await page.run(
                "window.changes = 0; new MutationObserver(() => { window.changes += 1; })"
                f".observe(document.querySelector('#endpoints-body'), {OBSERVED}); 1"
            )
            await asyncio.sleep(2.5)
            assert await page.run("window.changes") == 0
            await page.click("#pause")
            await page.until("window.changes > 0 && " + LIVE)

    run(scenario())


def test_endpoints_are_sorted_and_filtered(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            await page.click("[data-column=name] button")
            assert await page.run(sorted_by("name")) == "descending"
            assert await page.run(NAMES) == ALL[::-1]
            await page.click("[data-column=running] button")
            assert await page.run(sorted_by("running")) == "descending" and await page.run(sorted_by("name")) is None
            # Unknown is last, whichever way.
            assert set((await page.run(NAMES))[-2:]) == {"absent-0", "absent-1"}
            await page.click("[data-column=running] button")
            assert await page.run(sorted_by("running")) == "ascending"
            assert set((await page.run(NAMES))[-2:]) == {"absent-0", "absent-1"}
            await page.click("#endpoints-filter")
            await page.type("8b-0-2")
            await page.until(f"({NAMES}).join() === 'llama-8b-0-2'")
            assert await page.text("#endpoints-count") == "1 of 6"
            await page.type("nobody")
            await page.until("!document.querySelector('#endpoints-empty').hidden")
            await page.set("#endpoints-filter", "")
            await page.set("#endpoints-which", "stale")
            await page.until(f"({NAMES}).sort().join() === 'absent-0,absent-1'", "those that were never read")
            assert "never read" in await page.text("#endpoints-body") or "closed" in await page.text("#endpoints-body")

    run(scenario())


def test_a_decision_is_opened_with_every_candidate(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            await page.until("document.querySelectorAll('#decisions li').length > 3")
            await page.click("#decisions button")
            await page.until("document.querySelector('.costs tbody tr')")
            rows = await page.run(ROWS)
            assert len(rows) == 6 or len(rows) == 4  # those that refuse connections may be passed over
            assert [row[0] for row in rows].count("picked") == 1 and rows[0][0] == "picked"
            words = await page.text(".sentence")
            assert re.match(rf"{re.escape(rows[0][1].removeprefix('▸ '))} was picked: .*\. It", words), words
            widths = await page.run(
                "[...document.querySelectorAll('.costs .stack')].map((each) => each.getBoundingClientRect().width)"
            )
            assert max(widths) > 50 and all(width > 0 for width in widths)
            await page.click(".drawer-body > button:last-of-type")
            await page.until("document.querySelector('.drawer .holders li, .found-prefix p')")
            await page.press("Escape")
            await page.until("!document.querySelector('#decision').open")
            assert page.problems == []

    run(scenario())


def test_where_a_request_lives(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            about = await page.until("document.querySelector('#decisions .about')?.textContent")
            await page.click("#where-name")
            await page.type(about.split(" · ")[1])
            await page.press("Enter")
            await page.until("document.querySelector('#where-found .holders li, #where-found p:not(.muted)')")
            assert "Nothing is known" not in await page.text("#where-found")
            await page.run("document.querySelector('#where-name').value = '<b>nobody</b>'; 1")
            await page.click("#where button")
            await page.until("document.querySelector('#where-found').innerText.includes('Nothing is known')")

    run(scenario())


def test_what_if_and_its_yaml_is_a_configuration(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            await page.until("document.querySelectorAll('#decisions li').length > 3")
            await page.slide("queue", 9)
            await page.slide("threshold", 0.3)
            await page.slide("affinity_break", 0)
            await page.until("!document.querySelector('#what-if-table').hidden")
            line = await page.text("#what-if-line")
            assert re.match(
                r"Of [\d,]+ kept decisions \(the last \d+ (s|min)\) [\d,]+ \(\d+ %\) would go elsewhere", line
            ), line
            assert (
                len(await page.run("[...document.querySelectorAll('#what-if-rows tr')].map((row) => row.innerText)"))
                == 5
            )
            written = await page.run("document.querySelector('#yaml').value")
            assert yaml.safe_load(written) == {
                "weights": {"queue": 9}, "threshold": 0.3, "routing": {"affinity_break": 0}
            }  # fmt: skip
            config = load(written)
            assert (config.weights.queue, config.threshold, config.weights.kv) == (9.0, 0.3, Config().weights.kv)
            await page.click("#copy")
            await page.until("document.querySelector('#copy').textContent === 'Copied'")
            await page.run("document.querySelector('#where-name').focus(); 1")
            await page.paste()
            assert await page.run("document.querySelector('#where-name').value") == " ".join(written.split("\n"))
            await page.click("#what-if-reset")
            await page.until("document.querySelector('#yaml').value === '{}'")
            await page.until("document.querySelector('#what-if-line').innerText.includes(' 0 (0 %)')")
            assert page.problems == []

    run(scenario())


def test_all_of_it_by_keyboard(world, run):
    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            await page.until("document.querySelectorAll('#decisions li').length > 3")
            await page.press("Tab")
            assert await page.run("document.activeElement.className") == "skip"
            seen: list[str] = []
            for _ in range(60):
                await page.press("Tab")
                at = await page.run(FOCUSED)
                outline = await page.run("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"{at} does not show its focus"
                seen.append(at)
                if at == "where-name":
                    break
            for wanted in (
                "pause",
                "endpoints-which",
                "endpoints-filter",
                "kv",
                "endpoints",
                "decisions",
                "slider-queue",
                "copy",
                "where-name",
            ):
                assert wanted in seen, f"{wanted} cannot be reached: {list(dict.fromkeys(seen))}"
            await page.run("document.querySelector('[data-column=kv] button').focus(); 1")
            await page.press("Enter")
            assert await page.run(sorted_by("kv")) == "descending"
            await page.run("document.querySelector('#slider-kv').focus(); 1")
            await page.press("ArrowRight")
            assert await page.text("#slider-kv ~ output") == "2 → 2.5"
            await page.run("document.querySelector('#endpoints').focus(); 1")
            await page.press("ArrowDown", "ArrowDown")
            assert await page.run("document.activeElement.closest('[role=row]').ariaRowIndex") == "3"
            name = await page.run("document.activeElement.textContent")
            await page.press("Enter")
            assert await page.run("document.querySelector('#decisions-filter').value") == name
            await page.set("#decisions-filter", "")
            await page.run("document.querySelector('#decisions').focus(); 1")
            await page.press("ArrowDown", "ArrowDown", "Enter")
            await page.until("document.querySelector('.costs')")
            assert await page.run("document.querySelector('#decision').contains(document.activeElement)")
            await page.press("Escape")
            await page.until(
                "document.querySelector('#decisions').contains(document.activeElement)", "focus comes back"
            )

    run(scenario())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390], ids=["wide", "narrow"])
def test_accessible_as_axe_core_sees_it(world, run, dark, width):
    async def scenario():
        async with world.chrome.page(width, 1000, dark=dark) as page:
            await opened(page, world.url)
            await page.until("document.querySelectorAll('#decisions li').length > 3")
            await page.slide("queue", 9)
            await page.until("!document.querySelector('#what-if-table').hidden")
            assert await axe(page) == []
            await page.click("#decisions button")
            await page.until("document.querySelector('.costs')")
            assert await axe(page) == []
            wider = await page.run("document.documentElement.scrollWidth > window.innerWidth")
            assert not wider, "the page scrolls sideways"
            assert page.problems == []

    run(scenario())


def test_text_is_announced_only_where_something_happened(world, run):
    """Live regions: the status, what a question came to, alerts. Never a number that changes by the second."""

    async def scenario():
        async with world.chrome.page() as page:
            await opened(page, world.url)
            await page.run("window.said = 0; const o = new MutationObserver((all) => { window.said += all.length; });"
                           "for (const e of document.querySelectorAll('[role=status], [role=alert], [aria-live]'))"
                           "o.observe(e, {subtree: true, characterData: true, childList: true}); 1")  # fmt: skip
            await asyncio.sleep(3)
            assert await page.run("window.said") == 0

    run(scenario())
