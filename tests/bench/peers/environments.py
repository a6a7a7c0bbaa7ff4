"""An environment of its own for each peer, under `.venv-peers/NAME`: made once, made again when the pin changes.

Peers are programs to us, never imported: what they need must not meet what we need. An
environment is complete when its mark holds the pin; anything else is made anew. Bounded in time.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_SECONDS_MAX = 300.0


class InstallError(RuntimeError):
    """An environment could not be made; one line says why."""


def pins(text: str) -> dict[str, str]:
    """`{name: version}` of a requirements file. Raises `ValueError` that names a line that is no pin."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, equals, version = (part.strip() for part in line.partition("=="))
        if not (name and equals and version):
            raise ValueError(f"{line!r} is no pin: write NAME==VERSION")
        found[name] = version
    return found


def ensure(name: str, tell: Callable[[str], None], folder: Path | None = None) -> Path:
    """The `bin` folder of the environment of `name`, made if need be. Raises `InstallError`."""
    pin = f"{name}=={pinned(name)}"
    home = (folder or FOLDER) / name
    mark = home / "installed"
    if mark.is_file() and mark.read_text() == pin:
        return home / "bin"
    tell(f"installing {pin} into {home.relative_to(ROOT) if home.is_relative_to(ROOT) else home}")
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run(pin, [sys.executable, "-m", "venv", str(home)])
    _run(pin, [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", pin])
    mark.write_text(pin)
    return home / "bin"


def _run(pin: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{pin} was not installed within {INSTALL_SECONDS_MAX:g} s") from None
    except OSError as error:
        raise InstallError(f"{pin} cannot be installed: {error}") from None
    if done.returncode:
        words = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise InstallError(f"{pin} cannot be installed: {words[-1] if words else 'pip ended without a word'}")


def pinned(name: str) -> str:
    """The version that `name` is installed in."""
    return pins(REQUIREMENTS.read_text())[name]
