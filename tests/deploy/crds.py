"""Gateway API's CRDs, from its Go module: pinned by version and hash, read from Go's module cache."""

import functools
import json
import shutil
import subprocess
from pathlib import Path

from tests.deploy.tools import Missing

MODULE = "sigs.k8s.io/gateway-api@v1.6.3"
MODULE_SUM = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="
NAMES = ("gatewayclasses", "gateways", "httproutes")


@functools.cache
def gateway_api() -> tuple[Path, ...]:
    """The files that define what the chart and the examples use. Raises `Missing`."""
    if shutil.which("go") is None:
        raise Missing(f"Gateway API's CRDs need Go (`go mod download {MODULE}`)")
    done = subprocess.run(
        ["go", "mod", "download", "-json", MODULE], capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )
    if done.returncode:
        raise Missing(f"Gateway API's CRDs: `go mod download {MODULE}` failed: {(done.stderr or done.stdout)[-200:]}")
    answer = json.loads(done.stdout)
    assert answer["Sum"] == MODULE_SUM, f"{MODULE} is not what was pinned: {answer['Sum']}"
    folder = Path(answer["Dir"], "config", "crd", "standard")
    return tuple(folder / f"gateway.networking.k8s.io_{name}.yaml" for name in NAMES)
