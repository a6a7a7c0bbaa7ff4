"""`make tools`: everything that tests run and pip does not install, before pytest starts.

Says what it makes, for which tests, and how far it is; what is there already is skipped. What cannot be
had here (no Go, no network) is named with the reason, and does not stop the rest: its tests are skipped.
With `--all-or-fail` it does: a hosted run that quietly tested less would be worse than a red one.
"""

import argparse
import fcntl
import shutil
import sys
from pathlib import Path

from tests.conformance.tools import GO_CLIENT, H2SPEC
from tests.deploy.crds import GATEWAY_API
from tests.deploy.tools import HELM_AND_KUBECTL
from tests.kube.binaries import ETCD, KUBE_APISERVER
from tests.telemetry.prometheus import PROMETHEUS
from tests.tools.progress import Progress
from tests.tools.tool import Missing, Tool

TOOLS = (HELM_AND_KUBECTL, PROMETHEUS, H2SPEC, GO_CLIENT, GATEWAY_API, ETCD, KUBE_APISERVER)
INSTALLED = {"curl": "curl", "h2load": "nghttp2-client", "nghttp": "nghttp2-client"}
"""Programs that only the system's package manager brings, and Debian's package of each."""


def bring(tool: Tool) -> bool:
    """Whether it is here in the end."""
    progress = Progress(tool.name)
    try:
        if tool.is_elsewhere() or tool.is_made():
            progress.say("here")
            return True
        progress.say(f"for {tool.needed_for}: {tool.takes}")
        tool.bring(progress)
    except Missing as missing:
        progress.say(f"NOT HERE, so {tool.needed_for} will be skipped: {missing}")
        return False
    progress.say(f"made in {progress.seconds:.0f} s")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="make tools", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all-or-fail", action="store_true", help="exit with 1 where one cannot be had")
    wanted = parser.parse_args()
    print("Tools for the tests:", flush=True)
    with (Path(__file__).parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits for the first
        here = [bring(tool) for tool in TOOLS]
    for program, package in INSTALLED.items():
        if shutil.which(program) is None:
            here.append(False)
            Progress(program).say(f"NOT HERE, so its tests will be skipped (Debian: apt-get install {package})")
    return 0 if all(here) or not wanted.all_or_fail else 1


if __name__ == "__main__":
    sys.exit(main())
