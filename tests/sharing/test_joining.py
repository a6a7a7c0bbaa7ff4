"""Pickers that join, take over and come back are warm; what they tell passes TLS, passwords, and no other pool."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from picker.lab.envoy import EnvoyProcess
from tests.envoy.picker_process import PickerProcess
from tests.ports import free_ports
from tests.sharing import stage
from tests.sharing.redis_server import RedisServer, any_store
from tests.sharing.stage import converse

SESSIONS = 24


@contextlib.asynccontextmanager
async def envoy(pickers: Sequence[PickerProcess]) -> AsyncIterator[str]:
    started = await asyncio.to_thread(EnvoyProcess, stage.envoy_over([each.grpc_address for each in pickers]))
    try:
        yield f"http://127.0.0.1:{started.port}"
    finally:
        await asyncio.to_thread(started.stop)


async def serving(picker: PickerProcess) -> None:
    await stage.settled(lambda: picker.health("readiness") == "SERVING", f"serving: {picker.log()[-500:]}")


def decisions(picker: PickerProcess, count: int = 5) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"http://{picker.metrics_address}/debug/decisions?count={count}", timeout=10) as page:
        found: list[dict[str, object]] = json.load(page)["decisions"]
    return found


def test_who_joins_knows_what_the_others_know_before_it_serves() -> None:
    """Twenty-four sessions at one picker; a second joins and gets them all at once, alone."""

    async def run() -> None:
        with RedisServer() as store:
            async with (
                stage.model_servers(4) as endpoints,
                stage.pickers(endpoints, stage.shared_config(store.url), 1) as (first,),
            ):
                await serving(first)
                async with envoy([first]) as url:
                    before, _ = await converse(url, range(SESSIONS))
                assert len(set(before)) == len(endpoints)
                with PickerProcess(endpoints, stage.shared_config(store.url)) as second:
                    await serving(second)
                    assert "took over what another picker knows" in second.log()
                    assert second.metric("picker_shared_snapshots_read_total") == 1
                    assert second.metric("picker_index_blocks") == first.metric("picker_index_blocks") > 0
                    first.kill()
                    async with envoy([second]) as url:
                        after, hit_rate = await converse(url, range(SESSIONS), request_id="told")
                        assert after == before and hit_rate > 0.9
                    told = decisions(second)
                    assert all("what it holds is known from another picker" in str(each) for each in told)

    any_store()
    asyncio.run(run())


def test_a_picker_alone_or_without_its_store_serves_all_the_same() -> None:
    async def run() -> None:
        with RedisServer() as store:
            async with stage.model_servers(1) as endpoints:
                with PickerProcess(endpoints, stage.shared_config(store.url, warm_start_seconds=30)) as alone:
                    await serving(alone)  # nobody to wait for: long before its time
                    assert alone.metric("picker_shared_pickers") == 0
                store.kill()
                began = time.monotonic()
                with PickerProcess(endpoints, stage.shared_config(store.url, warm_start_seconds=3)) as without:
                    assert without.health("readiness") == "NOT_SERVING"
                    await serving(without)
                    assert time.monotonic() - began >= 3
                    assert without.metric("picker_shared_up") == 0

    any_store()
    asyncio.run(run())


def test_two_pools_on_one_store_never_mix() -> None:
    async def run() -> None:
        with RedisServer() as store:
            async with stage.model_servers(2) as endpoints:
                with (
                    PickerProcess(endpoints, stage.shared_config(store.url, name="a/pool")) as one,
                    PickerProcess(endpoints, stage.shared_config(store.url, name="b/pool")) as other,
                ):
                    await serving(one)
                    await serving(other)
                    async with envoy([one]) as url:
                        await converse(url, range(4))
                    await asyncio.sleep(2.5)
                    assert one.metric("picker_shared_records_sent_total", kind="chains") == 4
                    assert other.metric("picker_shared_pickers") == 0 == other.metric("picker_index_blocks")

    any_store()
    asyncio.run(run())


def _certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_tls_and_a_password_that_is_rotated(tmp_path: Path) -> None:
    """Over rediss:// with a user of an ACL; the password changes at the store, then in the file."""
    any_store()
    assert ssl.OPENSSL_VERSION
    certificate, key = _certificate(tmp_path)
    secret = tmp_path / "password"
    secret.write_text("first\n")
    flags = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))

    async def run() -> None:
        with RedisServer() as probe:  # a free port for TLS
            tls_port = probe.port
        with RedisServer(flags=(*flags, "--tls-port", str(tls_port), "--tls-auth-clients", "no")) as store:
            admin = store.client()
            rights = (
                "+@read",
                "+@write",
                "+@stream",
                "+@sortedset",
                "+time",
                "+ping",
                "+client",
                "~picker:{default}:*",
            )
            admin.execute_command("ACL", "SETUSER", "picker", "on", ">first", *rights)
            config = stage.shared_config(
                f"rediss://picker@127.0.0.1:{tls_port}/0", password_file=str(secret), ca_file=str(certificate)
            )
            async with stage.model_servers(1) as endpoints, stage.pickers(endpoints, config, 2) as pickers:
                for picker in pickers:
                    await serving(picker)
                    await stage.settled(lambda p=picker: p.metric("picker_shared_pickers") == 1, picker.log())
                admin.execute_command("ACL", "SETUSER", "picker", "resetpass", ">second")
                admin.execute_command("CLIENT", "KILL", "USER", "picker")
                await stage.settled(lambda: pickers[0].metric("picker_shared_up") == 0, "locked out")
                secret.write_text("second\n")
                await stage.settled(lambda: all(p.metric("picker_shared_up") == 1 for p in pickers), "let in", 30.0)
                assert "first" not in pickers[0].log() and "second" not in pickers[0].log()

    asyncio.run(run())


def test_a_state_file_keeps_what_is_known_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state"
    config = msgspec.json.encode(
        {"epsilon": 0, "shared_state": {"state_file": str(path)}, "drain": {"accept_seconds": 0, "seconds": 1}}
    ).decode()

    async def run() -> None:
        async with stage.model_servers(4) as endpoints:
            with PickerProcess(endpoints, config) as first:
                await serving(first)
                async with envoy([first]) as url:
                    before, _ = await converse(url, range(SESSIONS))
                blocks = first.metric("picker_index_blocks")
                first.terminate()
                assert await asyncio.to_thread(first.process.wait, 20) == 0
            assert path.stat().st_mode & 0o077 == 0
            with PickerProcess(endpoints, config) as second:
                await serving(second)
                assert second.metric("picker_index_blocks") == blocks > 0
                async with envoy([second]) as url:
                    after, hit_rate = await converse(url, range(SESSIONS))
                assert after == before and hit_rate > 0.9
            data = bytearray(path.read_bytes())
            data[20 + 3] = 99  # the version of the first chunk
            path.write_bytes(data)
            with PickerProcess(endpoints, config) as third:
                await serving(third)
                assert "format version 99, and this picker speaks 1" in third.log()
                assert third.metric("picker_index_blocks") == 0

    asyncio.run(run())


def test_sentinels_are_asked_for_the_master() -> None:
    """redis+sentinel://: a real sentinel, a real store."""
    binary = any_store()

    async def run() -> None:
        with RedisServer(binary) as store, RedisServer(binary) as probe:
            port = probe.port
            probe.kill()
            path = Path(probe._folder.name) / "sentinel.conf"
            path.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor models 127.0.0.1 {store.port} 1\n")
            process = await asyncio.to_thread(
                subprocess.Popen,
                [binary, str(path), "--sentinel"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                config = stage.shared_config(f"redis+sentinel://127.0.0.1:{port}/models")
                async with stage.model_servers(1) as endpoints, stage.pickers(endpoints, config, 2) as pickers:
                    for picker in pickers:
                        await serving(picker)
                        await stage.settled(lambda p=picker: p.metric("picker_shared_pickers") == 1, picker.log(), 20.0)
            finally:
                process.kill()
                process.wait()

    asyncio.run(run())


def test_a_cluster_keeps_a_pools_keys_on_one_node() -> None:
    """redis+cluster://: one node with all slots, which refuses commands over several of them."""
    binary = any_store()

    async def run() -> None:
        # By itself the port of the cluster's bus is 10,000 above, where clients' connections have theirs.
        bus = str(free_ports(1)[0])
        with RedisServer(binary, flags=("--cluster-enabled", "yes", "--cluster-port", bus)) as store:
            admin = store.client()
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await stage.settled(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"), "a cluster")
            config = stage.shared_config(f"redis+cluster://127.0.0.1:{store.port}")
            async with stage.model_servers(1) as endpoints, stage.pickers(endpoints, config, 2) as pickers:
                for picker in pickers:
                    await serving(picker)
                    await stage.settled(lambda p=picker: p.metric("picker_shared_pickers") == 1, picker.log(), 20.0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"url": "http://store"}, "shared_state.url"),
        ({"url": "redis://user:password@store"}, "has a password in it: put it in a file"),
        ({"url": "redis://store", "username_file": "/x"}, "needs shared_state.password_file"),
        ({"url": "redis+sentinel://store:26379"}, "name the service that the sentinels watch"),
        ({"url": "redis://store/zero"}, "'zero' is not the number of a database"),
        ({"urls": "redis://store"}, "did you mean shared_state.url?"),
    ],
)
def test_what_is_wrong_with_the_settings_is_said(section: dict[str, str], said: str) -> None:
    from picker import config
    from picker.edge.sharing.store import Store

    with pytest.raises(config.ConfigError) as caught:
        Store(config.load(msgspec.json.encode({"shared_state": section}).decode()).shared_state)
    assert said in str(caught.value)
