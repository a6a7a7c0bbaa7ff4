"""What clients meet when the store fails: every cell of the table in docs/high-availability.md, "When the store fails".

Three real pickers behind a real Envoy, a real store that is killed, frozen, wiped, filled, locked, and fed
garbage while requests run all the time. No request may fail, whatever becomes of the store.
"""

import asyncio
import contextlib
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from picker.lab.envoy import EnvoyProcess
from tests.envoy.picker_process import PickerProcess
from tests.printed import to_run
from tests.sharing import stage
from tests.sharing.redis_server import RedisServer, any_store, installed

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "high-availability.md").read_text()
PICKERS = 3


def documented() -> dict[str, dict[str, str]]:
    """The table: what happens -> column -> cell."""
    section = DOCUMENT.split("### When the store fails", 1)[1]
    rows = [line.strip("|").split("|") for line in section.split("\n#", 1)[0].splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


class World:
    """What runs, and requests all the time."""

    def __init__(self, store: RedisServer, pickers: list[PickerProcess], url: str, endpoints: list[str]) -> None:
        self.store = store
        self.pickers = pickers
        self.endpoints = endpoints
        self.statuses: list[int | str] = []
        self._url = f"{url}/v1/chat/completions"
        self._number = 0

    async def ask(self, http: aiohttp.ClientSession, text: str, pause: float = 0.0) -> str | None:
        """One request; who served it."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        try:
            async with http.post(self._url, json=body) as answer:
                await answer.read()
                self.statuses.append(answer.status)
                return answer.headers.get("x-served-by")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.statuses.append(type(error).__name__)
            return None

    async def traffic(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            while True:
                self._number += 1
                await self.ask(http, f"{self._number} " + "lorem ipsum dolor " * 150)
                await asyncio.sleep(0.02)

    async def knows_of_each_other(self) -> bool:
        """Whether a session that one picker placed is found again by the others: nine turns on one server."""
        self._number += 1
        text = f"session {self._number} " + "once upon a time " * 300
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            where = set()
            for _ in range(3 * PICKERS):
                where.add(await self.ask(http, text))
                await asyncio.sleep(0.25)
        return len(where) == 1

    def up(self) -> list[float]:
        return [picker.metric("picker_shared_up") for picker in self.pickers]

    def said(self, text: str) -> int:
        """How many pickers' logs have it."""
        return sum(text in picker.log() for picker in self.pickers)

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        await stage.settled(condition, what, seconds)


@contextlib.asynccontextmanager
async def world(*, flags: tuple[str, ...] = (), **settings: object) -> AsyncIterator[World]:
    with RedisServer(flags=flags) as store:
        async with stage.model_servers(3) as endpoints:
            config = stage.shared_config(store.url, **settings)
            async with stage.pickers(endpoints, config, PICKERS) as pickers:
                for picker in pickers:
                    await stage.settled(lambda p=picker: p.health("readiness") == "SERVING", "serving")
                envoy = await asyncio.to_thread(EnvoyProcess, stage.envoy_over([each.grpc_address for each in pickers]))
                made = World(store, pickers, f"http://127.0.0.1:{envoy.port}", endpoints)
                traffic = asyncio.create_task(made.traffic())
                try:
                    await made.until(lambda: made.up() == [1.0] * PICKERS, "the store in use")
                    await made.until(
                        lambda: all(each.metric("picker_shared_pickers") == PICKERS - 1 for each in pickers), "others"
                    )
                    yield made
                finally:
                    traffic.cancel()
                    await asyncio.gather(traffic, return_exceptions=True)
                    await asyncio.to_thread(envoy.stop)


async def kill(made: World) -> None:
    made.store.kill()


async def mend_kill(made: World) -> None:
    made.store.start()


async def freeze(made: World) -> None:
    made.store.freeze()


async def thaw(made: World) -> None:
    made.store.thaw()


async def wipe(made: World) -> None:
    for _ in range(5):
        made.store.client().flushall()
        await asyncio.sleep(0.2)


async def lock(made: World) -> None:
    client = made.store.client()
    client.config_set("requirepass", "secret")
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def unlock(made: World) -> None:
    made.store.client(password="secret").config_set("requirepass", "")


async def fill(made: World) -> None:
    made.store.client().config_set("maxmemory", "1")


async def empty(made: World) -> None:
    made.store.client().config_set("maxmemory", "0")


async def garbage(made: World) -> None:
    """Entries that are none, another version's, keys of another kind."""
    client: Any = made.store.client()
    (members,) = [key for key in client.scan_iter() if key.endswith(b":pickers")]
    prefix = members[: -len(b"pickers")]
    client.zadd(members, {"not-a-picker": 9e9, "f" * 16: 9e9, "0" * 16: 9e9, b"\xff\xfe": 9e9})
    client.set(prefix + b"stream:" + b"f" * 16, "a string in the place of a stream")
    for entry in (
        {"b": b"garbage"},
        {"x": b""},
        {"b": b"pks\x63" + bytes(60), "a": b"x"},
        {"b": b"pks\x63" + bytes(60)},
    ):
        client.xadd(prefix + b"stream:" + b"0" * 16, entry)
    for key in client.keys(prefix + b"stream:*"):
        if client.type(key) == b"stream":
            client.xadd(key, {"b": b"\x00" * 1000})


async def nothing(made: World) -> None:
    """It mends itself."""


CASES = {
    "killed, and started again empty": (kill, mend_kill, True),
    "frozen, and thawed": (freeze, thaw, True),
    "wiped (FLUSHALL)": (wipe, nothing, False),
    "locked (`NOAUTH`), and unlocked": (lock, unlock, True),
    "full (`maxmemory`), and emptied": (fill, empty, True),
    "garbage in its keys": (garbage, nothing, False),
}
LOCAL = "the shared state is not usable: deciding by local knowledge"


async def _suffer(name: str) -> dict[str, str]:
    """Do it, and say what was met in the words of the table."""
    harm, mend, is_away = CASES[name]
    async with world() as made:
        assert await made.knows_of_each_other()
        before = len(made.statuses)
        await harm(made)
        if is_away:
            await made.until(lambda: made.up() == [0.0] * PICKERS, "noticed")
        await asyncio.sleep(2.0)
        met = {"new requests meanwhile": _statuses(made.statuses[before:])}
        met["pickers"] = "local knowledge" if made.up() == [0.0] * PICKERS else "shared"
        assert all(picker.process.poll() is None for picker in made.pickers)
        met["log"] = "one line" if made.said(LOCAL) == PICKERS else "none"
        if name.startswith("garbage"):
            await made.until(lambda: made.said("what another picker tells is not usable") == PICKERS, "said so")
            met["log"] = "one line a kind"
            assert made.said("format version 99, and this picker speaks 1") == PICKERS
        for picker in made.pickers:
            assert len(re.findall(re.escape(LOCAL), picker.log())) <= 1
        mark = len(made.statuses)
        await mend(made)
        await made.until(lambda: made.up() == [1.0] * PICKERS, "usable again")
        for _ in range(10):
            if await made.knows_of_each_other():
                break
        else:
            raise AssertionError("after ten sessions still each for itself")
        met["afterwards"] = f"shared again; {_statuses(made.statuses[mark:])}"
        if is_away:
            assert made.said("the shared state is usable again") == PICKERS
        written = [picker.metric("picker_shared_snapshots_written_total") for picker in made.pickers]
        assert sum(written) <= 4 * PICKERS, "a storm of snapshots"
    return met


def _statuses(found: list[int | str]) -> str:
    return ", ".join(sorted({str(each) for each in found}))


@pytest.mark.parametrize("name", CASES)
def test_a_store_that_fails_is_met_as_documented(name: str) -> None:
    any_store()
    assert asyncio.run(_suffer(name)) == documented()[name]


def test_the_runbooks_look_at_the_store() -> None:
    """`STORE` is a host; this one has a port of its own."""
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed here")
    (line,) = to_run("docs/runbook.md", r"redis-cli ")
    with RedisServer() as store:
        words = shlex.split(line.text.replace("STORE", f"127.0.0.1 -p {store.port}"))
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "PONG"


def test_the_table_has_these_rows_alone() -> None:
    assert set(documented()) == set(CASES)


@pytest.mark.parametrize("binary", ["redis-server", "valkey-server"])
def test_each_store_that_is_installed_joins_pickers(binary: str) -> None:
    if binary not in installed():
        pytest.skip(f"{binary} is not installed here")

    async def run() -> None:
        with RedisServer(binary) as store:
            async with (
                stage.model_servers(2) as endpoints,
                stage.pickers(endpoints, stage.shared_config(store.url), 2) as pickers,
            ):
                for picker in pickers:
                    await stage.settled(lambda p=picker: p.metric("picker_shared_pickers") == 1, "the other one")
                    assert picker.metric("picker_shared_up") == 1

    asyncio.run(run())
