"""Kills process groups whose launcher is gone. Run as a script, with their ids on standard input.

A launcher that is killed cannot clean up after itself. Its guard, in a session of its own, reads
`+ID` and `-ID` lines for groups that begin and end; at the end of input, which comes when the
launcher ends in whatever way, it kills the groups that are left.
"""

import os
import signal
import sys


def guard_groups() -> None:
    """Read groups until the launcher is gone, then kills those that are left."""
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
