"""Many languages into English: python -m examples.m4 COMMAND.

Commands are train, evaluate, translate, serve, saved_model and export.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

from examples.m4 import flags as m4_flags
from examples.m4.settings import Settings, preset
from examples.m4.streams import open_output, read_lines
from namedmesh.errors.errors import NamedMeshError, did_you_mean

if TYPE_CHECKING:
    from examples.m4.input.identification import Guess
    from examples.m4.translation import Translation

HYPERPARAMETERS = m4_flags.define_flags()
flags.adopt_module_key_flags(m4_flags)  # so that --help lists them


def resolve_settings() -> Settings:
    """Resolve the settings: those of an existing run or of the preset, changed by flags."""
    from examples.m4.run import Run

    changes = m4_flags.read_changes(HYPERPARAMETERS)
    run = Run(flags.FLAGS.run)
    if run.started and not flags.FLAGS["preset"].present:
        return run.settings.but(**changes)
    return preset(flags.FLAGS.preset).but(**changes)


def start_run() -> tuple[Any, Settings]:
    """Start the run, or continue with it; one that has its data needs no --data."""
    from examples.m4.run import Run

    run = Run(flags.FLAGS.run)
    new_data = flags.FLAGS["data"].present or not run.started
    return run, run.start(resolve_settings(), flags.FLAGS.data if new_data else "")


def train() -> None:
    """Train a run, or continue to; in several processes if it was launched so."""
    from examples.m4.run import Run
    from namedmesh.runtime import start_processes

    processes = start_processes()
    if processes.count > 1 and not Run(flags.FLAGS.run).started:
        raise NamedMeshError(
            f"{flags.FLAGS.run} is not a run yet, and several processes cannot make its data",
            fix="make it first, with the same flags: python -m examples.m4 export",
        )
    run, settings = start_run()
    from examples.m4 import training
    from examples.m4.plots import draw

    say = print if processes.first else lambda text: None
    row = training.train(run, settings, say, profile=flags.FLAGS.profile)
    if not processes.first:
        return
    loss = f"; loss {row['loss']:.3f}" if "loss" in row else ""
    print(f"trained {row['step']:,.0f} steps{loss}")
    for path in draw(run):
        print(f"plot: {path}")


def evaluate() -> None:
    """Score a run's translations of its test sets, and draw the plots."""
    from examples.m4 import evaluation, scores
    from examples.m4.plots import draw
    from examples.m4.run import Run

    run, options = Run(flags.FLAGS.run), flags.FLAGS
    settings = run.fit_settings(resolve_settings())
    baselines = scores.read_baselines(options.baselines)
    result = evaluation.evaluate(
        run,
        settings,
        sets=options.sets,
        sentences=options.sentences,
        checkpoint=options.checkpoint,
    )
    evaluation.measure_routing(run, settings, checkpoint=options.checkpoint)
    comparable = scores.select_comparable(baselines, result)
    print(scores.format_samples(result))
    print(scores.format_scores(result, comparable))
    for path in draw(run, comparable):
        print(f"plot: {path}")


def translate() -> None:
    """Translate a file or standard input; at a terminal, line by line."""
    from examples.m4.run import Run
    from examples.m4.translation import Translator

    run = Run(flags.FLAGS.run)
    settings = run.fit_settings(resolve_settings())
    translator = Translator.open(
        run, settings, flags.FLAGS.checkpoint, lambda text: print(text, file=sys.stderr)
    )
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    with open_output(flags.FLAGS.output) as out:
        if flags.FLAGS.input == "-" and sys.stdin.isatty():
            print(
                "type a sentence in any of the run's languages; an empty line or ctrl-D ends",
                file=sys.stderr,
            )
            for line in iter(lambda: sys.stdin.readline().strip(), ""):
                translation = translator.translate([line])[0]
                guesses = translator.languages.guess(line)
                print(describe(translation, guesses), file=out, flush=True)
            return
        for translation in translator.translate(read_lines(flags.FLAGS.input)):
            if flags.FLAGS.details:
                guesses = translator.languages.guess(translation.source)
                record = translation.to_record(guesses)
                print(json.dumps(record, ensure_ascii=False), file=out)
            else:
                print(translation.text, file=out)


def describe(translation: Translation, languages: Sequence[Guess]) -> str:
    """Format a translation for a person: languages, scores and alternatives."""
    guesses = ", ".join(f"{code} {share:.0%}" for code, share in languages)
    lines = [f"  {score:6.2f}  {text}" for text, score in translation.translations]
    return "\n".join([f"  language: {guesses or 'unknown'}", *lines])


def serve() -> None:
    """Serve translations over HTTP, with a page, until told to stop."""
    from examples.m4.run import Run
    from examples.m4.serving.server import serve as serve_run

    run = Run(flags.FLAGS.run)
    options = flags.FLAGS
    serve_run(
        run,
        run.fit_settings(resolve_settings()),
        host=options.host,
        port=options.port,
        which=options.checkpoint,
        names=options.names,
        say=lambda text: print(text, flush=True),
    )


def saved_model() -> None:
    """Write a run as a SavedModel, for TensorFlow Serving."""
    from examples.m4.run import Run
    from examples.m4.serving.saved_model import write_run

    run = Run(flags.FLAGS.run)
    folder = write_run(run, run.fit_settings(resolve_settings()), flags.FLAGS.checkpoint)
    print(f"wrote {folder}; TensorFlow Serving takes --model_base_path={folder.parent.absolute()}")


def export() -> None:
    """Write data and lowered programs into a run's folder, for a host without TensorFlow."""
    run, settings = start_run()
    names = ("train", "evaluate", "translate", *(("choices",) if settings.model.experts else ()))
    for name in names:
        print(f"{name}: {run.artifact(name, settings)}")
    run.save_settings(settings)
    needed = (
        "jax, tensorstore, rich, safetensors, sentencepiece, sacrebleu, starlette, uvicorn "
        "and absl-py"
    )
    print(f"copy {run.folder}, examples/ and namedmesh/ to a host with {needed}, and run there")
    print(f"  python -m examples.m4 train --run {run.folder.name}")


COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "translate": translate,
    "serve": serve,
    "saved_model": saved_model,
    "export": export,
}


def main(arguments: list[str]) -> None:
    """Run one command; mistakes of the user are reported without a traceback."""
    logging.set_verbosity(logging.WARNING)
    command = arguments[1] if len(arguments) > 1 else ""
    try:
        if command not in COMMANDS:
            problem = f"{command!r} is not a command" if command else "expected a command"
            raise NamedMeshError(problem, fix=did_you_mean(command, COMMANDS))
        if len(arguments) > 2:
            raise NamedMeshError(
                f"unexpected argument {arguments[2]!r}", fix="give one command, and flags"
            )
        COMMANDS[command]()
    except NamedMeshError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    app.run(main)
