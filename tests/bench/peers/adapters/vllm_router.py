"""vLLM's router. By default it looks for servers that are not up yet every 30 s: here every second."""

from pathlib import Path

from tests.bench.peers.adapters.contract import Contestant
from tests.bench.peers.adapters.router_process import peer

PACKAGE = "vllm-router"


def contestant(name: str, *flags: str) -> Contestant:
    """It, with `flags`."""
    return peer(PACKAGE, _launch, name, flags)


def _launch(folder: Path) -> list[str]:
    return [str(folder / "vllm-router"), "--worker-startup-check-interval", "1"]
