"""The words of a launched process to the launcher, and whether it is to run its program again."""

from __future__ import annotations

import contextlib
import json
import os
import threading

CHANNEL = "NAMEDMESH_CHANNEL"  # the pipe to the launcher, for its screen
abandoned = threading.Event()  # set while a program is left, to run again with other processes


def tell_launcher(**status: object) -> None:
    """Tell the launcher how far this process is, if there is one."""
    # What this process starts has the variable too, and another file of that number.
    number, _, inode = os.environ.get(CHANNEL, "").partition(":")
    with contextlib.suppress(OSError, ValueError):
        if os.fstat(int(number)).st_ino == int(inode):
            os.write(int(number), json.dumps(status).encode() + b"\n")
