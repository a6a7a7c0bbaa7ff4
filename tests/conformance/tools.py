"""h2spec and a client of grpc-go: built from Go modules by `make tools`."""

import hashlib
from pathlib import Path

from tests.tools.go import build
from tests.tools.progress import Progress
from tests.tools.tool import Tool

HERE = Path(__file__).parent
BIN = HERE / "bin"
H2SPEC_MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"


def _h2spec(folder: Path, progress: Progress) -> None:
    build(progress, ["install", "-v", H2SPEC_MODULE], cwd=folder, GOBIN=str(folder))


def _go_client(folder: Path, progress: Progress) -> None:
    build(progress, ["build", "-v", "-o", str(folder / "goclient"), "."], cwd=HERE / "goclient")


def _sources() -> str:
    """Of the client, go.sum among them."""
    return "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((HERE / "goclient").iterdir()))


H2SPEC = Tool(
    name="h2spec",
    needed_for="HTTP/2 conformance",
    folder=BIN,
    files=("h2spec",),
    recipe=H2SPEC_MODULE,
    takes="built with Go, some 20 s",
    make=_h2spec,
)
GO_CLIENT = Tool(
    name="grpc-go client",
    needed_for="grpc-go against both transports",
    folder=BIN,
    files=("goclient",),
    recipe=_sources(),
    takes="built with Go, some 30 s",
    make=_go_client,
)
