"""The command line: `namedmesh plan`, `cost`, `diff`, `search`, `report`, `aot`, `launch`, ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError
from namedmesh.version import __version__

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
    from namedmesh.processes.launcher import Launch, launch_processes

    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    launch = Launch(
        words, arguments.processes, arguments.devices, arguments.restarts, arguments.grace
    )
    return launch_processes(launch)


Add = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]
SHELLS = ("bash", "zsh", "fish")
INTERRUPTED = 130  # the status of what Ctrl-C ends, as in a shell
FILES = ("OUT", "A", "B", "ARTIFACT", "PROGRAM")  # arguments that shells complete as files


@dataclass(frozen=True)
class Command:
    """One command: what it is for, and where its arguments, its examples and its code are."""

    help: str
    load: Callable[[], tuple[Add, str, Run]]


def _load_plan() -> tuple[Add, str, Run]:
    from namedmesh.cli.planning_commands import PLAN_EXAMPLES, add_plan_arguments, run_plan

    return add_plan_arguments, PLAN_EXAMPLES, run_plan


def _load_diff() -> tuple[Add, str, Run]:
    from namedmesh.cli.planning_commands import DIFF_EXAMPLES, add_diff_arguments, run_diff

    return add_diff_arguments, DIFF_EXAMPLES, run_diff


def _load_cost() -> tuple[Add, str, Run]:
    from namedmesh.cli.planning_commands import COST_EXAMPLES, add_cost_arguments, run_cost

    return add_cost_arguments, COST_EXAMPLES, run_cost


def _load_report() -> tuple[Add, str, Run]:
    from namedmesh.cli.planning_commands import (
        REPORT_EXAMPLES,
        add_report_arguments,
        run_report,
    )

    return add_report_arguments, REPORT_EXAMPLES, run_report


def _load_search() -> tuple[Add, str, Run]:
    from namedmesh.cli.search_command import SEARCH_EXAMPLES, add_search_arguments, run_search

    return add_search_arguments, SEARCH_EXAMPLES, run_search


def _load_aot() -> tuple[Add, str, Run]:
    from namedmesh.cli.aot_command import AOT_EXAMPLES, add_arguments, run_aot

    return add_arguments, AOT_EXAMPLES, run_aot


def _load_launch() -> tuple[Add, str, Run]:
    return add_launch_arguments, LAUNCH_EXAMPLES, run_launch


def _load_completion() -> tuple[Add, str, Run]:
    return _add_completion_arguments, COMPLETION_EXAMPLES, _run_completion


COMMANDS = {
    "plan": Command("print where a program's tensors lie and what it communicates", _load_plan),
    "cost": Command("print what a step of a program takes on a target", _load_cost),
    "diff": Command("compare two plans, and fail where one costs too much", _load_diff),
    "report": Command("write a plan, or two side by side, as one HTML page", _load_report),
    "search": Command("find the fastest meshes and layouts for a program", _load_search),
    "aot": Command(
        "compile artifacts for devices that are not here, and report what they take there",
        _load_aot,
    ),
    "launch": Command("start processes of a program on this machine", _load_launch),
    "completion": Command("print what makes a shell complete these commands", _load_completion),
}
COMPLETION_EXAMPLES = """\
examples:
  for bash and zsh, in the current shell
    eval "$(namedmesh completion bash)"
    eval "$(namedmesh completion zsh)"
"""


def make_parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="namedmesh", description="Models in named dimensions on device meshes."
    )
    parser.add_argument("--version", action="version", version=f"namedmesh {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if name not in names:
            commands.add_parser(name, help=command.help)
            continue
        add, examples, run = command.load()
        one = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[:1].upper()}{command.help[1:]}.",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(one)
        one.set_defaults(run=run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    words = sys.argv[1:] if arguments is None else arguments
    asked = next((word for word in words if not word.startswith("-")), "")
    parsed = make_parser([asked]).parse_args(words)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except NamedMeshError as error:
        print(_format_problem(error), file=sys.stderr)
        return 2


def _format_problem(error: NamedMeshError) -> str:
    """Format an error without the line it was raised for, unless that is the user's own."""
    source = error.source
    inside = source.file.endswith(("/namedmesh/command.py", "/bin/namedmesh", "__main__.py"))
    place = [f"  at {source}: {source.code}"] if source.code and not inside else []
    details = [f"  {detail}" for detail in error.details]
    return "\n".join([f"error: {error.problem}", *details, *place, f"  fix: {error.fix}"])


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def _run_completion(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    try:
        import shtab  # pyright: ignore[reportMissingImports]
    except ImportError:
        print(
            "error: completion needs shtab\n  fix: pip install 'namedmesh[completion]'",
            file=sys.stderr,
        )
        return 2
    parser = make_parser()
    for one in _find_parsers(parser):
        for action in one._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=arguments.shell))
    return 0


def _find_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of the commands."""
    choices = (one.choices for one in parser._actions)
    return [one for each in choices if isinstance(each, dict) for one in each.values()]


if __name__ == "__main__":
    sys.exit(main())
