"""What the pod of `helm test` runs, against the real picker and the chart's Envoy."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import bootstrap, on_this_machine
from tests.deploy.test_render import plain
from tests.deploy.tools import CHART, only
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream

pytestmark = pytest.mark.usefixtures("helm")


@pytest.fixture
def picker() -> Iterator[PickerProcess]:
    with Upstream() as upstream, PickerProcess([upstream.address], insecure=False) as started:
        yield started


def asks(*urls: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """The script, with as much patience."""
    text = (CHART / "files" / "test.py").read_text().replace("+ 60", f"+ {seconds}")
    return subprocess.run([sys.executable, "-c", text, *urls], capture_output=True, text=True, timeout=100, check=False)


def test_what_the_pod_asks() -> None:
    """The script of files/, and addresses in the cluster: the picker's, and that of an Envoy where there is one."""
    script = (CHART / "files" / "test.py").read_text()
    alone = only(plain(), "Pod")["spec"]["containers"][0]
    assert alone["command"] == ["/opt/picker/bin/python", "-c"]
    assert alone["args"] == [script, "http://demo-picker.models.svc.cluster.local:9090/readyz"]
    with_envoy = only(plain(standalone={"enabled": True, "service": {"port": 8080}}), "Pod")["spec"]["containers"][0]
    assert with_envoy["args"][2:] == ["http://demo-picker-envoy.models.svc.cluster.local:8080/v1/models"]


def test_it_succeeds_where_a_request_is_routed(picker: PickerProcess) -> None:
    with EnvoyProcess(on_this_machine(bootstrap({"standalone": {"enabled": True}}), picker.grpc_address)) as envoy:
        done = asks(f"http://{picker.metrics_address}/readyz", f"{envoy.url}/v1/models")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("good ") == 2


def test_it_fails_and_says_why(picker: PickerProcess) -> None:
    with EnvoyProcess(on_this_machine(bootstrap({"standalone": {"enabled": True}}), picker.grpc_address)) as envoy:
        picker.kill()
        wait_until(lambda: asks(f"{envoy.url}/v1/models", seconds=0).returncode == 1, "it goes on to succeed", 30)
        done = asks(f"{envoy.url}/v1/models", seconds=0)
    assert "FAILED" in done.stderr and "503" in done.stderr
