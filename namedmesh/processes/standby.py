"""A process that waits to take the place of one that fails: Python and jax are imported already.

The launcher starts it with the words of its command, and sends it one line, the environment of its
place, when it is wanted. The input ends when the launcher does."""

import importlib
import json
import os
import runpy
import sys

WAIT = "from namedmesh.processes.standby import wait_and_run; wait_and_run()"  # of Python -c
USAGE = "python SCRIPT, python -m MODULE or python -c CODE"


def split_command(command: list[str]) -> list[str]:
    """Return the words of a Python command after `python` and -u; empty for other commands."""
    words = [word for word in command[1:2] if word != "-u"] + command[2:]
    is_python = os.path.basename(command[0]).startswith("python")
    plain = bool(words) and (words[0] in ("-m", "-c") or not words[0].startswith("-"))
    return words if is_python and plain else []


def wait_and_run() -> None:
    """Import what takes seconds, wait for the line, and run the program in this process."""
    for name in ("namedmesh.runtime", "namedmesh.training"):  # by name: they are above this room
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return
    os.environ.update(json.loads(line))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    kind, *rest = split_command(["python", *sys.argv[1:]])
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [kind, *rest], os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")
