"""Attacks by files: those that others write while the picker runs, and those that it writes where there is no room."""

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from tests.attack.raw import CHAT, Raw
from tests.attack.stage import Stage

ENDPOINTS = 4_000
SETTLE_SECONDS = 1.8
"""Longer than the picker takes for a file: it looks each second, and twice."""
FILE_BYTES_MAX = 200_000
"""Of each file that a picker may write on the disk that is full."""


def many_endpoints(_: Sequence[str], count: int = ENDPOINTS) -> str:
    """YAML with names and labels; nobody answers at these addresses."""
    lines = [
        f"- {{address: 127.1.{number // 200}.{1 + number % 200}, port: 9, name: pod-{number}, "
        "labels: {app: vllm, zone: a, tier: gold}}\n"
        for number in range(count)
    ]
    return "endpoints:\n" + "".join(lines)


def few_endpoints(addresses: Sequence[str]) -> str:
    return "endpoints:\n" + "".join(f"- {address}\n" for address in addresses)


def a_long_endpoints_file_changes(stage: Stage) -> None:
    """One entry more each time, as YAML and as JSON; what is new must count in the end."""
    path = stage.folder / "endpoints.yaml"
    for more in (1, 2, 3):
        text = many_endpoints((), ENDPOINTS + more)
        if more == 2:
            entries = [f"127.1.{number // 200}.{1 + number % 200}:9" for number in range(ENDPOINTS + more)]
            text = json.dumps({"endpoints": entries})
        (stage.folder / "new").write_text(text)
        (stage.folder / "new").replace(path)
        deadline = time.monotonic() + 20
        while ready_endpoints(stage) != ENDPOINTS + more and time.monotonic() < deadline:
            time.sleep(0.3)
        found = ready_endpoints(stage)
        stage.require(found == ENDPOINTS + more, f"{found} endpoints, not {ENDPOINTS + more}")


def ready_endpoints(stage: Stage) -> int:
    found = re.search(rb"\npicker_ready_endpoints (\d+)", stage.get("/metrics"))
    return int(found[1]) if found else -1


def bad_endpoints_files(stage: Stage) -> None:
    """Half of it, nothing, no file, a folder, links to nowhere, a pipe, other languages: the last good list stays."""
    path = stage.folder / "endpoints.yaml"
    good = path.read_bytes()
    expected = len(stage.endpoints)
    contents = {
        "half": good[: good.index(b"- ", good.index(b"- ") + 1)],
        "nothing": b"",
        "an empty list": b"endpoints: []\n",
        "null": b"endpoints:\n",
        "not UTF-8": b"\xff\xfe" + good,
        "an alias of itself": b"- &a [*a]\n",
        "other keys": b"x: y\n",
        "too deep": b"[" * 1_000_000,
        "too deep in blocks": b"".join(b" " * depth + b"a:\n" for depth in range(1_800)),
        "too long": b"endpoints: [" + b"x," * 3_000_000,
        "tags": b"endpoints: !!python/object/apply:os.abort []\n",
        "no numbers": b"endpoints: [!!int '', !!bool x, !!timestamp x]\n",
        "aliases of aliases": aliases_of_aliases(),
    }
    for what, content in contents.items():
        path.write_bytes(content)
        time.sleep(SETTLE_SECONDS)
        stage.require(ready_endpoints(stage) == expected, f"an endpoints file with {what} counts")
    for what in ("none", "a folder", "a link to nowhere", "a link to itself", "a pipe", "a pipe that was written"):
        with suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if what == "a folder":
            path.mkdir()
        elif what == "a link to nowhere":
            path.symlink_to("nowhere")
        elif what == "a link to itself":
            path.symlink_to(path.name)
        elif what.startswith("a pipe"):
            os.mkfifo(path)
            if what.endswith("written"):
                os.close(os.open(path, os.O_RDWR))
        time.sleep(SETTLE_SECONDS)
        stage.require(ready_endpoints(stage) == expected, f"where the endpoints file is {what} endpoints are gone")
    path.unlink()
    path.write_bytes(good.splitlines(keepends=True)[0] + good.splitlines(keepends=True)[1])
    time.sleep(2 * SETTLE_SECONDS)
    stage.require(ready_endpoints(stage) == 1, "a good endpoints file after bad ones is not taken")


def aliases_of_aliases(merge: bool = True) -> bytes:
    """Nine times nine times nine ... entries, if it were written out."""
    lines = ["a0: &a0 {x: 1}\n"]
    for depth in range(1, 12):
        nine = ", ".join([f"*a{depth - 1}"] * 9)
        lines.append(f"a{depth}: &a{depth} {{<<: [{nine}]}}\n" if merge else f"a{depth}: &a{depth} [{nine}]\n")
    return "".join(lines).encode()


def bad_configuration_files(stage: Stage) -> None:
    """The last good configuration stays, and a good one counts again."""
    path = stage.folder / "config.yaml"
    good = path.read_bytes()
    long_text = b"# " + b"x" * 78 + b"\n"
    for content in (
        b"",
        b"\xff\xfe",
        b"[" * 500_000,
        b"epsilon: " + b"1:" * 400_000 + b"1\n",
        b"epsilon: " + b"1:" * 2_000 + b"1.0\n",
        b"epsilon: !!float ''\n",
        b"epsilon: !!timestamp x\n",
        b"epsilon: 0x" + b"f" * 900_000 + b"\n",
        aliases_of_aliases(),
        b"objectives: {" + b", ".join(b"o%d: %d" % (number, number % 9) for number in range(50_000)) + b"}\n",
        good + long_text * 12_000,
        good + long_text * 20_000,
    ):
        path.write_bytes(content)
        time.sleep(SETTLE_SECONDS)
    path.unlink()
    os.mkfifo(path)
    time.sleep(SETTLE_SECONDS)
    path.unlink()
    path.write_bytes(good + b"epsilon: 0.25\n")
    deadline = time.monotonic() + 30
    while "configuration reloaded" not in stage.log()[-4_000:] and time.monotonic() < deadline:
        time.sleep(0.3)
    stage.require(stage.picker.poll() is None, "the picker ended")


def a_recording_without_room(stage: Stage) -> None:
    """No file may grow beyond 200 KB: what is lost is counted and said, and what is there can be read."""
    limit = f"--fsize={FILE_BYTES_MAX}:{FILE_BYTES_MAX}"
    subprocess.run(["prlimit", f"--pid={stage.picker.pid}", limit], check=True, timeout=10)
    with Raw(stage.port) as made:
        for number in range(1_600):
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": str(number) * 4_000}]})
            made.ask(CHAT, body.encode())
    time.sleep(3)
    page = stage.get("/metrics")
    for kind, name, words in (("recording", "traffic", "recording"), ("usage", "usage", "usage file")):
        lost = re.search(rb"\npicker_%b_lost_total (\d+)" % kind.encode(), page)
        stage.require(lost is not None and int(lost[1]) > 0, f"lost lines of the {words} are not counted")
        stage.require(f"the {words} loses requests" in stage.log(), f"nobody hears that the {words} loses lines")
        content = (stage.folder / f"{name}.jsonl").read_bytes()
        stage.require(
            content.endswith(b"\n") and len(content) > FILE_BYTES_MAX // 2, f"the {words} ends in half a line"
        )
        for line in content.splitlines():
            json.loads(line)
