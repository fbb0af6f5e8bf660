"""The command `namedmesh launch`: some processes of one program on this machine."""

from __future__ import annotations

import argparse

from namedmesh.processes.launcher import Launch, launch_processes

LAUNCH_EXAMPLES = """\
examples:
  four processes with two virtual CPU devices each
    namedmesh launch -n 4 --devices 2 -- python train.py --steps 1000
  started again from the last checkpoint, at most three times
    namedmesh launch -n 4 --restarts 3 -- python train.py

The program calls namedmesh.runtime.start_processes() before it uses jax.

exit status: 0 if all processes end with 0, else that of the first to fail after the last restart;
128 and its number if a signal ended it; 2 if something is wrong with the command itself
"""


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.usage = "namedmesh launch -n PROCESSES [options] -- COMMAND"
    parser.add_argument(
        "-n", "--processes", type=int, required=True, help="how many processes to start"
    )
    parser.add_argument(
        "--devices", type=int, help="virtual CPU devices of each process (default: the program's)"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="how often to start all of them again when one fails (default: 0)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long the others may take to stop when one fails; then SIGTERM, and as much "
        "later SIGKILL (default: 30)",
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program of each process"
    )


def run_launch(arguments: argparse.Namespace) -> int:
    """Run the processes until they have ended."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    launch = Launch(
        words, arguments.processes, arguments.devices, arguments.restarts, arguments.grace
    )
    return launch_processes(launch)
