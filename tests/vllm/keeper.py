"""Runs a command in a process group of its own until standard input ends, then ends the whole group.

`python keeper.py COMMAND...`. vLLM's engine and worker processes outlive an API server that is killed without a
word, and so would hold memory for ever. A pipe's end tells the keeper that whoever started it is gone,
however that came about. It exits with the command's code.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 15.0


def end(child: "subprocess.Popen[bytes]") -> None:
    """In order, then by force, engine and workers included."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main() -> int:
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the pipe alone says when
        signal.signal(ignored, signal.SIG_IGN)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, restore_signals=True)

    def follow() -> None:
        while os.read(0, 4096):
            pass
        end(child)

    threading.Thread(target=follow, daemon=True).start()
    code = child.wait()
    end(child)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
