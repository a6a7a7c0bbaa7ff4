"""Child processes that cannot outlive us.

A parent that ends in order stops its children itself. This is for the other case: killed without
a word, out of memory, a debugger quit. Linux alone offers it; elsewhere the command is unchanged.
"""

import os
import sys

_EXEC = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, linux/prctl.h
if os.getppid() == int(sys.argv[1]):  # else the parent died before we asked
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(command: list[str]) -> list[str]:
    """`command`, started so that the kernel kills it when the thread that started it ends.

    The process keeps its pid: a short Python asks the kernel, then becomes the command. Not
    `preexec_fn`, which runs Python in a fork of a process with threads and may deadlock there.
    """
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), *command]
