"""Runs a program that the kernel kills when the thread that has started it ends.

``python with_parent.py PID PROGRAM ARGUMENT…``, where PID is the process that starts it. A process
that is killed without grace cannot end its children itself. This is a program of its own because
nothing but ``exec`` is safe between the fork and the program of a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks the kernel for the signal, and becomes the program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that has started this one has ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
