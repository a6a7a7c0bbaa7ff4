"""Shepherd Model Gateway. It knows a vLLM when it sees one and reads its `/metrics`, every 10 s by default."""

from pathlib import Path

from tests.bench.peers.adapters.contract import Contestant
from tests.bench.peers.adapters.router_process import peer

PACKAGE = "smg"


def contestant(name: str, *flags: str) -> Contestant:
    """It, with `flags`."""
    return peer(PACKAGE, _launch, name, flags)


def _launch(folder: Path) -> list[str]:
    return [str(folder / "smg"), "launch"]
