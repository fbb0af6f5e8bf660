"""A script that kills process groups whose launcher is gone.

A launcher that is killed cannot clean up. Its guard reads `+ID` and `-ID` lines for groups that
begin and end. The input ends when the launcher does; then it kills the groups that are left."""

import os
import signal
import sys


def guard_groups() -> None:
    """Read groups until the launcher is gone, then kill those that are left."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    guard_groups()
