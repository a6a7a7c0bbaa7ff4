"""What README.md and deploy/envoy/README.md print for an Envoy of one's own: typed, a request is served by the pick."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from picker import recording
from picker.lab.envoy import EnvoyProcess
from tests.envoy.clients import post
from tests.envoy.lab import BODY, CHAT, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.test_sample_configs import FOLDER, localized, port_of
from tests.printed import ROOT, Command, to_run

REQUESTS = 220
"""`picker tune` wants 100 in each half."""
PAIRS = [
    (*to_run("README.md", r"\.venv/bin/picker serve "), *to_run("README.md", r"\.venv/bin/envoy ")),
    (*to_run("deploy/envoy/README.md", r"picker serve "), *to_run("deploy/envoy/README.md", r"envoy ")),
]


@pytest.mark.parametrize(("serve", "envoy"), PAIRS, ids=["README", "deploy/envoy"])
def test_the_picker_and_the_envoy_of_a_page_go_together(lab: Lab, rid: str, serve: Command, envoy: Command) -> None:
    """Both with the flags as printed; addresses and ports are this test's, in the same places."""
    _, verb, *flags = shlex.split(serve.text.removesuffix("&"))
    assert verb == "serve"
    printed = flags[flags.index("--endpoints") + 1].split(",")
    flags[flags.index("--endpoints") + 1] = ",".join(lab.addresses)
    program, option, file = shlex.split(envoy.text)
    sample = Path(file).relative_to("deploy/envoy").name
    for address in printed:
        host, _, port = address.rpartition(":")
        assert f"address: {host}, port_value: {port}" in (FOLDER / sample).read_text(), "the page and its file disagree"
    binary = Path(sys.executable).parent / Path(program).name
    subprocess.run([binary, option, FOLDER / sample, "--mode", "validate"], check=True, timeout=60)
    with (
        PickerProcess(flags=flags, insecure=False) as picker,
        EnvoyProcess(localized(sample, lab, port_of(picker))) as started,
    ):
        healthy = "cluster.picker.membership_healthy"
        wait_until(lambda: started.stats(healthy)[healthy] == 1, "Envoy does not reach the picker")
        assert post(started.port, f"{CHAT}?id={rid}", BODY).status == 200
        wait_until(lambda: picker.metric("picker_decisions_total") == 1, "the picker was not asked")
        assert lab.upstream_of(rid)


def test_a_recording_is_tuned_on(lab: Lab, tmp_path: Path) -> None:
    """The README's last pair of commands: `serve --record FILE`, then `tune --trace FILE`."""
    (serve,) = to_run("README.md", r"picker serve --record ")
    (tune,) = to_run("README.md", r"picker tune ")
    _, _, *flags = shlex.split(serve.text)
    assert flags.pop() == "...", "the reader's own flags"
    flags[1] = str(tmp_path / flags[1])
    with PickerProcess(lab.addresses, flags=flags, insecure=False) as picker:
        with EnvoyProcess(localized("buffered-override-host.yaml", lab, port_of(picker))) as envoy:
            for number in range(REQUESTS):
                body = BODY.replace(b"hello", b"%d hello " % (number % 7) * 300)
                assert post(envoy.port, f"{CHAT}?id=tuned-{number}", body).status == 200
            wait_until(lambda: picker.ended() == REQUESTS, "requests still run")
        picker.terminate()
        assert picker.process.wait(20) == 0
    assert len(list(recording.read(Path(flags[1])))) == REQUESTS
    few = f"--requests {REQUESTS} --rate 20 --replicas 2 --trials 2 --quiet".split()  # so few load nobody
    shown = [sys.executable, "-m", "picker", *shlex.split(tune.text)[1:], *few]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(shown, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and "proof on runs that the search never saw" in done.stdout, done.stdout + done.stderr
