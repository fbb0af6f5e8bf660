"""The command line: `namedmesh plan`, `cost`, `diff`, `search`, `report`, `aot`, `doctor`, ...

The module of a command is imported when it is asked for: planning needs neither TensorFlow nor jax.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.version import __version__

# A command NAME is `add_NAME_arguments`, `NAME_EXAMPLES` and `run_NAME` of its module.
COMMANDS = {
    "plan": ("planning_commands", "print the shardings of a program and what it communicates"),
    "cost": ("planning_commands", "print what a step of a program takes on a target"),
    "diff": ("planning_commands", "compare two plans, and fail where one costs too much"),
    "report": ("planning_commands", "write a plan, or two side by side, as one HTML page"),
    "search": ("search_command", "find the fastest meshes and layouts for a program"),
    "inspect": ("inspect_command", "print what the compiler made of a step of JAX, by line"),
    "aot": ("aot_command", "compile artifacts for devices that are not here, and report on them"),
    "calibrate": ("calibrate_command", "measure this machine's devices for namedmesh cost"),
    "replay": ("replay_command", "run a recorded step again and find the op that went wrong"),
    "launch": ("main", "start processes of a program on this machine"),
    "doctor": ("doctor", "print what this machine can do, and what is missing"),
    "completion": ("main", "print what makes a shell complete these commands"),
}
INTERRUPTED = 130  # the status of what Ctrl-C ends, as in a shell
FILES = ("OUT", "A", "B", "ARTIFACT", "PROGRAM")  # arguments that shells complete as files
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
COMPLETION_EXAMPLES = """\
examples:
  for bash and zsh, in the current shell
    eval "$(namedmesh completion bash)"
    eval "$(namedmesh completion zsh)"
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: one message with the fix, and no usage before it."""

    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.words = args or ()
        return super().parse_known_args(args, namespace)

    def explain_option(self, word: str) -> NamedMeshError:
        """Describe an argument that the command does not have."""
        options = [one for action in self._actions for one in action.option_strings]
        fix = did_you_mean(word.partition("=")[0], [one for one in options if one[:2] == "--"])
        return NamedMeshError(f"{self.prog} has no argument {word}", fix=fix)

    def error(self, message: str) -> NoReturn:
        advice = [f"{self.prog} --help prints the options, with examples"]
        choice = re.match(r"argument .*: invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            advice.insert(0, did_you_mean(choice[1], re.findall(r"'(.+?)'", choice[2])))
            message = f"there is no {choice[1]!r}"
        missing = message.partition("the following arguments are required: ")[2].split(", ")
        words = self.words if missing[0] else ()
        for word in itertools.takewhile(lambda word: word != "--", words):
            known = [one.startswith(word.partition("=")[0]) for one in self._option_string_actions]
            if word[:2] == "--" and not any(known):
                raise self.explain_option(word)  # a misspelled one may be what is missing
        for action in self._actions:
            name = "/".join(action.option_strings) or action.metavar
            if name in missing and action.help:
                advice.insert(-1, f"add {name}: {action.help}")
        raise NamedMeshError(f"{self.prog}: {message}", fix="; ".join(advice))


def make_parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Make the parser of the command line, with the arguments of some commands."""
    parser = _Parser(
        prog="namedmesh",
        description="Models in named dimensions on device meshes.",
        epilog="namedmesh COMMAND --help prints a command's options and examples",
    )
    parser.add_argument("--version", action="version", version=f"namedmesh {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, purpose) in COMMANDS.items():
        if name not in names:
            commands.add_parser(name, help=purpose)
            continue
        code = importlib.import_module(f"namedmesh.cli.{module}")
        one = commands.add_parser(
            name,
            help=purpose,
            description=f"{purpose[:1].upper()}{purpose[1:]}.",
            epilog=getattr(code, f"{name.upper()}_EXAMPLES"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        getattr(code, f"add_{name}_arguments")(one)
        one.set_defaults(run=getattr(code, f"run_{name}"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; without one, print help."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in ([], ["help"]):
        make_parser([]).print_help()
        return 0
    if words[0] == "help":
        words = [*words[1:], "--help"]
    asked = next((word for word in words if not word.startswith("-")), "")
    try:
        parser = make_parser([asked])
        parsed, unknown = parser.parse_known_args(words)
        if unknown:
            choices = next(one.choices for one in parser._actions if isinstance(one.choices, dict))
            raise choices[asked].explain_option(unknown[0])
        return parsed.run(parsed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except NamedMeshError as error:
        print(f"error: {format_error(error)}", file=sys.stderr)
        return 2


def format_error(error: NamedMeshError) -> str:
    """Format an error without the line it was raised for, unless that is the user's own."""
    source = error.source
    inside = source.file.endswith(("/bin/namedmesh", "__main__.py", "/argparse.py"))
    place = [f"  at {source}: {source.code}"] if source.code and not inside else []
    details = [f"  {detail}" for detail in error.details]
    return "\n".join([error.problem, *details, *place, f"  fix: {error.fix}"])


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh launch`."""
    parser.usage = "namedmesh launch -n PROCESSES [options] -- COMMAND"
    add = parser.add_argument
    add("-n", "--processes", type=int, required=True, help="how many processes to start")
    add("--devices", type=int, help="virtual CPU devices of each (default: the program's)")
    restarts = "how often to start all of them again when one fails (default: 0)"
    add("--restarts", type=int, default=0, help=restarts)
    grace = "how long the others may take to stop when one fails; then SIGTERM, and as much "
    grace += "later SIGKILL (default: 30)"
    add("--grace", type=float, default=30.0, metavar="SECONDS", help=grace)
    spares = "keep a process that waits, with Python and jax imported, and takes the place of one "
    spares += "that fails; the others go on in the same Python, for each of --restarts"
    add("--spares", action="store_true", help=spares)
    least = "go on without those that fail, as fewer processes, while there are so many"
    add("--least", type=int, default=0, metavar="PROCESSES", help=least)
    command = "the program of each process"
    add("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=command)


def run_launch(arguments: argparse.Namespace) -> int:
    """Run the processes until they have ended."""
    from namedmesh.processes.launcher import Launch, launch_processes

    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    options = (arguments.processes, arguments.devices, arguments.restarts)
    return launch_processes(
        Launch(words, *options, arguments.grace, arguments.spares, arguments.least)
    )


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    try:
        import shtab  # pyright: ignore[reportMissingImports]
    except ImportError:
        fix = "pip install 'namedmesh[completion]'"
        raise NamedMeshError("completion needs shtab", fix=fix) from None
    parser = make_parser()
    choices = [one.choices for one in parser._actions if isinstance(one.choices, dict)]
    for command in choices[0].values():
        for action in command._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE
    print(shtab.complete(parser, shell=arguments.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
