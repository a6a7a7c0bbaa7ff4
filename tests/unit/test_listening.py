"""File descriptors: the limit raised, a reserve kept, and ports that go on when there are no more.

In a process of its own, whose limit can be had: RLIMIT_NOFILE is of the whole process.
"""

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import asyncio, contextlib, os, resource, socket
from picker.listening import KEPT_FILES, SPARE_FILES, Files, Listener, bind

def take_all():
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    return taken

def client(port):
    made = socket.socket()
    made.setblocking(False)
    return made

class Greets(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
"""


def in_a_process(script: str, soft: int, hard: int) -> str:
    limits = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    found = subprocess.run(
        [sys.executable, "-c", limits + PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = "print(Files().limit, resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert in_a_process(script, 256, 900).split("\n")[0] == "900 (900, 900)"


@pytest.mark.parametrize(("keep", "served"), [(0, "hello"), ("KEPT_FILES", "hello"), ("SPARE_FILES", "")])
def test_a_port_serves_from_the_reserve_when_there_are_no_files_left(keep: object, served: str) -> None:
    script = f"""
    told = []
    files = Files(lambda port, limit: told.append((port, limit)))

    async def main():
        listener = Listener(bind("127.0.0.1", 0, 10), Greets, print, files=files, keep={keep})
        port = listener.sockets[0].getsockname()[1]
        made = client(port)
        loop = asyncio.get_running_loop()
        taken = take_all()
        with contextlib.suppress(BlockingIOError):
            made.connect(("127.0.0.1", port))
        try:
            said = await asyncio.wait_for(loop.sock_recv(made, 100), 0.5)
        except TimeoutError:
            said = b""
        for each in taken:
            os.close(each)
        print(said.decode(), told == [] or told[0] == (f"port {{port}}", 300), len(told) > 0)
        if not said:  # with files again, it is served within the pause
            print((await asyncio.wait_for(loop.sock_recv(made, 100), 5)).decode())
        made.close()
        listener.close()

    asyncio.run(main())
    files.close()
    """
    said = in_a_process(script, 300, 300).split("\n")
    assert said[0] == f"{served} True {served == ''}"
    if not served:
        assert said[1] == "hello"


def test_the_reserve_comes_back_as_files_do() -> None:
    script = """
    files = Files()
    taken = take_all()
    lent = 0
    while files.lend(KEPT_FILES):
        lent += 1
    files.refill()
    print(lent == SPARE_FILES - KEPT_FILES, files.lend(KEPT_FILES))
    taken += take_all()
    for each in taken:
        os.close(each)
    files.refill()
    print(files.lend(SPARE_FILES - 1))
    """
    assert in_a_process(script, 300, 300).split() == ["True", "True", "True"]
