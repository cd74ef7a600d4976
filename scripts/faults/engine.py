"""A stand-in for an engine: `python engine.py faults-engine FOLDER GRACE_S`. Standard library only.

It takes a lock of its own on each GPU of CUDA_VISIBLE_DEVICES for as long as it lives and writes down where another
engine has it already. SIGTERM ends it after GRACE_S, as a real engine takes a while.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType


def main(folder: Path, grace_s: float) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        time.sleep(grace_s)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    locks = []
    for gpu in filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        locks.append(os.open(folder / f"engine-on-gpu-{gpu}", os.O_RDWR | os.O_CREAT))
        try:
            fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with (folder / "shared.txt").open("a") as shared:
                shared.write(f"GPU {gpu} was given to engine {os.getpid()} while another one had it\n")
    print("ready", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[2]), float(sys.argv[3]))
