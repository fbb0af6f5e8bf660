"""The experiment as a command: python -m examples.m4.experiment [prepare | run | report].

Without a command all three are done: data and lowered programs of every model are made (which needs
TensorFlow), models are trained and evaluated one after the other, and tables and figures written to
the folder of --out. What is done is not done again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
from typing import Any

from absl import app, flags, logging

from examples.m4 import flags as m4_flags
from examples.m4.experiment.cells import Experiment
from examples.m4.experiment.grid import BILINGUAL_TRIES, Cell, make_grid
from examples.m4.settings import Settings, preset
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.training import read_metrics

COMMANDS = ("prepare", "run", "report")
HYPERPARAMETERS = m4_flags.define_flags()
flags.DEFINE_string("out", "runs/experiment", "the folder of the experiment")
flags.DEFINE_list("grid_experts", ["4", "16", "64"], "numbers of experts to compare")
flags.DEFINE_list("depths", ["1"], "depths to compare, as multiples of the number of layers")
flags.DEFINE_list(
    "bilingual",
    [],
    "codes of languages that get bilingual baselines, one after the other; all trains those of all "
    "languages at once",
)
flags.DEFINE_integer("bilingual_rows", 0, "rows of a baseline's batch; 0 for those of the others")
flags.DEFINE_integer(
    "bilingual_steps", 0, "steps of each try of a baseline; 0 for those of the others"
)
flags.DEFINE_integer("bilingual_vocabulary", 8000, "pieces of the baselines' vocabularies, at most")
flags.DEFINE_multi_enum(
    "bilingual_tries", [*BILINGUAL_TRIES], [*BILINGUAL_TRIES], "which tries of a baseline are made"
)
flags.DEFINE_list("seeds", ["0"], "seeds of the models; the baselines have the first")
flags.DEFINE_integer("bootstrap", 1000, "samples of the paired bootstrap", lower_bound=2)
flags.adopt_module_key_flags(m4_flags)


def resolve_grid() -> tuple[Settings, list[Cell]]:
    """Resolve the common settings and the cells from the flags."""
    options = flags.FLAGS
    changes = m4_flags.read_changes(HYPERPARAMETERS)
    settings = preset(options.preset).but(**changes)
    cells = make_grid(
        settings,
        experts=_integers("grid_experts"),
        depths=_integers("depths"),
        bilingual=options.bilingual,
        bilingual_steps=options.bilingual_steps,
        bilingual_vocabulary=options.bilingual_vocabulary,
        bilingual_rows=options.bilingual_rows,
        bilingual_tries=options.bilingual_tries,
        seeds=_integers("seeds"),
    )
    return settings, cells


def _integers(name: str) -> list[int]:
    """Return the integers of a flag."""
    try:
        return [int(text) for text in flags.FLAGS[name].value or ()]
    except ValueError as error:
        raise NamedMeshError(f"--{name}: {error}", fix="give integers, with commas") from None


def report(experiment: Experiment, cells: list[Cell]) -> dict[str, Any]:
    """Write table.json, report.json and the figures of the cells that are done."""
    from examples.m4.experiment.figures import compare_with_baselines, draw_figures, list_deltas
    from examples.m4.experiment.significance import compare, compare_in_language
    from examples.m4.experiment.table import (
        choose_baselines,
        dev_curve,
        format_table,
        list_tokens_to_losses,
        make_row,
    )

    done = [cell for cell in cells if experiment.is_done(cell)]
    if not done:
        raise NamedMeshError("no model of the grid is done", fix="run the experiment first")
    rows = [make_row(experiment, cell) for cell in done]
    (experiment.folder / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(format_table(rows))
    by_name = dict(zip([cell.name for cell in done], done, strict=True))
    result: dict[str, Any] = {"significance": [], "bilingual": []}
    samples = flags.FLAGS.bootstrap

    def add(system: str, baseline: str, scores: list[dict[str, Any]]) -> None:
        for found in scores:
            result["significance"].append({"system": system, "baseline": baseline, "scores": found})
            print(
                f"{system} against {baseline}, {found['languages']}: {found['score']} "
                f"{found['system']} against {found['baseline']}, p = {found['p']:.4f}"
            )

    for cell in done:
        dense = by_name.get(cell.name.replace(f"moe{cell.settings.model.experts}", "dense"))
        if cell.kind == "mixture" and dense is not None:
            pair = experiment.evaluation_of(dense), experiment.evaluation_of(cell)
            add(cell.name, dense.name, compare(*pair, samples))
    for code, (baseline, _) in choose_baselines(done, rows).items():
        own = experiment.evaluation_of(baseline)
        for cell in done:
            every = {} if cell.language else experiment.evaluation_of(cell)
            if any(row["language"] == code for row in every.get("languages", ())):
                scores = compare_in_language(own, every, code, samples)
                add(cell.name, baseline.name, scores)
    curves = {
        cell.name: dev_curve(read_metrics(experiment.run_of(cell).metrics))
        for cell in done
        if not cell.language
    }
    if curves:
        result["million_tokens_to_loss"] = list_tokens_to_losses(curves)
    result["bilingual"] = compare_with_baselines(experiment, done, rows)
    deltas = list_deltas(result["bilingual"], rows)
    (experiment.folder / "delta_bleu.json").write_text(json.dumps(deltas, indent=1) + "\n")
    (experiment.folder / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    for path in draw_figures(experiment, done, rows):
        print(f"figure: {path}")
    return result


def main(arguments: list[str]) -> None:
    """Do the commands that are given, or all; mistakes are reported without a traceback."""
    logging.set_verbosity(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ctrl-C
    say = lambda text: print(text, flush=True)
    try:
        for command in arguments[1:]:
            if command not in COMMANDS:
                raise NamedMeshError(
                    f"{command!r} is not a command", fix=did_you_mean(command, COMMANDS)
                )
        settings, cells = resolve_grid()
        experiment = Experiment(pathlib.Path(flags.FLAGS.out))
        commands = arguments[1:] or COMMANDS
        if "prepare" in commands:
            experiment.prepare(cells, settings, flags.FLAGS.data, say)
        failed = []
        if "run" in commands:
            failed = experiment.train(cells, flags.FLAGS.sentences, say)
        if "report" in commands:
            report(experiment, cells)
        if failed:
            sys.exit(f"error: {len(failed)} models failed: {', '.join(failed)}")
    except NamedMeshError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from there")


if __name__ == "__main__":
    app.run(main)
