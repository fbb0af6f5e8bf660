"""The command line: `namedmesh aot ARTIFACT --target tpu-v3:32x32`. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from namedmesh.aot.command_line import add_arguments, run_aot


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The command and its arguments; those of the process if not given.

    Returns:
        0 if all went well, 1 if something does not fit, 2 if something is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="namedmesh", description="Models in named dimensions on device meshes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    aot = commands.add_parser(
        "aot",
        help="compile artifacts for devices that are not here, and report what they take there",
    )
    add_arguments(aot)
    return run_aot(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
