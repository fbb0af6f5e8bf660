"""The command line: python -m examples.m4 train | evaluate | translate | export, with --help for every flag."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

from absl import app, flags, logging

from examples.m4.settings import PRESETS, Settings, preset
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.layers import CHOICES, Config

COMMANDS = ("train", "evaluate", "translate", "export")

flags.DEFINE_string("run", "runs/m4", "the folder of the run")
flags.DEFINE_string(
    "data",
    "catalogs",
    "catalogs (fetched), synthetic (made), a directory of TSV files, or another run, for its data",
)
flags.DEFINE_enum("preset", "small", sorted(PRESETS), "settings to begin with")
flags.DEFINE_list("sets", [], "test sets to evaluate; all unless said")
flags.DEFINE_integer("sentences", 100, "sentences of each test file to evaluate", lower_bound=1)
flags.DEFINE_string(
    "checkpoint",
    "newest",
    "what to evaluate or translate with: newest, best (on dev data), or a step",
)
flags.DEFINE_list("baselines", [], "folders of evaluated runs of single languages, for delta BLEU")
flags.DEFINE_string("input", "-", "the file to translate, a sentence a line; - is standard input")
flags.DEFINE_string("output", "-", "where translations go; - is standard output")

KINDS = {
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "bool": flags.DEFINE_boolean,
    "str": flags.DEFINE_string,
}


def _hyperparameters() -> list[str]:
    """A flag for every setting, by default what the preset says."""
    names = []
    for owner in (Settings, Config):
        for one in dataclasses.fields(owner):
            if one.name in ("preset", "model") and owner is Settings:
                continue
            kind, text = str(one.type).split(" ")[0], "a setting; the preset's unless said"
            if one.name in CHOICES and owner is Config:
                flags.DEFINE_enum(one.name, None, CHOICES[one.name], text)
            else:
                KINDS[kind](one.name, None, text)
            names.append(one.name)
    return names


HYPERPARAMETERS = _hyperparameters()


def resolved() -> Settings:
    """The settings that flags say: those of an existing run or of the preset, with some changed."""
    from examples.m4.run import Run

    given = {
        name: flags.FLAGS[name].value
        for name in HYPERPARAMETERS
        if flags.FLAGS[name].value is not None
    }
    run = Run(flags.FLAGS.run)
    base = (
        run.settings
        if run.started and not flags.FLAGS["preset"].present
        else preset(flags.FLAGS.preset)
    )
    return base.but(**given)


def given_data(run: Any) -> str:
    """What --data says; nothing for a run that has its data, unless the flag is there."""
    return flags.FLAGS.data if flags.FLAGS["data"].present or not run.started else ""


def train() -> None:
    """Trains a run, or goes on with it."""
    from examples.m4.plots import draw
    from examples.m4.run import Run

    run = Run(flags.FLAGS.run)
    settings = run.start(resolved(), given_data(run))
    from examples.m4.training import train as training

    last = training(run, settings)
    print(
        f"trained {last['step']:,.0f} steps"
        + (f"; loss {last['loss']:.3f}" if "loss" in last else "")
    )
    for path in draw(run):
        print(f"plot: {path}")


def evaluate() -> None:
    """Scores a run's translations of its test sets, and draws the plots."""
    from examples.m4 import evaluation
    from examples.m4.plots import draw
    from examples.m4.run import Run

    run, given = Run(flags.FLAGS.run), flags.FLAGS
    settings = run.fitted(resolved())
    others = evaluation.baselines(given.baselines)
    result = evaluation.evaluate(
        run, settings, sets=given.sets, sentences=given.sentences, checkpoint=given.checkpoint
    )
    evaluation.routing(run, settings, checkpoint=given.checkpoint)
    known = evaluation.comparable(others, result)
    print(evaluation.samples(result))
    print(evaluation.table(result, known))
    for path in draw(run, known):
        print(f"plot: {path}")


def translate() -> None:
    """Translates a file or standard input; typed at a terminal, line by line."""
    from examples.m4.run import Run
    from examples.m4.translation import Translator

    run = Run(flags.FLAGS.run)
    settings = run.fitted(resolved())
    translator = Translator.open(
        run, settings, flags.FLAGS.checkpoint, lambda text: print(text, file=sys.stderr)
    )
    source, output = flags.FLAGS.input, flags.FLAGS.output
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    with written(output) as out:
        if source == "-" and sys.stdin.isatty():
            print(
                "type a sentence in any of the run's languages; an empty line or ctrl-D ends",
                file=sys.stderr,
            )
            for line in iter(lambda: sys.stdin.readline().strip(), ""):
                print(translator.translate([line])[0], file=out, flush=True)
            return
        try:
            with (
                open(source, encoding="utf-8", errors="replace")
                if source != "-"
                else sys.stdin as file
            ):
                lines = [line.rstrip("\n") for line in file]
        except OSError as error:
            raise NamedMeshError(
                f"cannot read {source!r}: {error.strerror}", fix="check --input"
            ) from None
        for line in translator.translate(lines):
            print(line, file=out)


def written(path: str) -> Any:
    """A file to write to, or standard output."""
    try:
        return (
            open(path, "w", encoding="utf-8") if path != "-" else contextlib.nullcontext(sys.stdout)
        )
    except OSError as error:
        raise NamedMeshError(
            f"cannot write {path!r}: {error.strerror}", fix="check --output"
        ) from None


def export() -> None:
    """Writes data and lowered programs into a run's folder, so that a host without TensorFlow can do the rest."""
    from examples.m4.run import Run

    run = Run(flags.FLAGS.run)
    settings = run.start(resolved(), given_data(run))
    for name in ("train", "evaluate", "translate"):
        print(f"{name}: {run.artifact(name, settings)}")
    run.keep(settings)
    needed = "jax, orbax, sentencepiece, sacrebleu and absl-py"
    print(f"copy {run.folder}, examples/ and namedmesh/ to a host with {needed}, and there run")
    print(f"  python -m examples.m4 train --run {run.folder.name}")


def main(arguments: list[str]) -> None:
    """Runs one command; what a user can mend is said without a traceback."""
    logging.set_verbosity(logging.WARNING)
    command = arguments[1] if len(arguments) > 1 else ""
    try:
        if command not in COMMANDS or len(arguments) > 2:
            wrong = command if command not in COMMANDS else arguments[2]
            raise NamedMeshError(
                f"{wrong!r} is no command" if wrong else "a command is due",
                fix=did_you_mean(wrong, COMMANDS),
            )
        handlers: dict[str, Any] = {
            "train": train,
            "evaluate": evaluate,
            "translate": translate,
            "export": export,
        }
        handlers[command]()
    except NamedMeshError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    app.run(main)
