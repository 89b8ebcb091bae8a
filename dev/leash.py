"""Run a module as `python -m` does, and interrupt it when whoever started it is gone.

`python -m dev.leash FD SECONDS MODULE [ARGUMENT ...]`: FD is the reading end of a pipe that nobody ever writes into.
The kernel closes the other end when its owner dies, also by SIGKILL, on every system alike; then this process gets a
SIGINT, and ends what it started in its own way. What is left of its session after so many seconds is ended as
dev/processes.py does it.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
import threading
import time

from dev.processes import HARDER, send, session


def _watch(leash: int, over: int, patience: float) -> None:
    """Wait for either end: `over` means that the module has ended by itself, and the owner sees to what is left."""
    if leash not in select.select([leash, over], [], [])[0]:
        return
    me = os.getpid()
    os.kill(me, signal.SIGINT)
    for number in HARDER:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if session(me) == [me] and select.select([over], [], [], 0)[0]:
                return
            time.sleep(0.1)
        send(number, [pid for pid in session(me) if pid != me])
    os.kill(me, signal.SIGKILL)


def main() -> None:
    leash, patience, module = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    sys.argv = [module, *sys.argv[4:]]
    over, tell = os.pipe()
    # No daemon thread: it may have to outlast the module.
    threading.Thread(target=_watch, args=(leash, over, patience), name="leash").start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        os.close(tell)


if __name__ == "__main__":
    main()
