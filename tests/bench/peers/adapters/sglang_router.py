"""SGLang's router. Of a vLLM it uses `/health` alone; its load is what it has in flight itself."""

from pathlib import Path

from tests.bench.peers.adapters.contract import Contestant
from tests.bench.peers.adapters.router_process import peer

PACKAGE = "sglang-router"


def contestant(name: str, *flags: str) -> Contestant:
    """It, with `flags`."""
    return peer(PACKAGE, _launch, name, flags)


def _launch(folder: Path) -> list[str]:
    return [str(folder / "python"), "-m", "sglang_router.launch_router"]
