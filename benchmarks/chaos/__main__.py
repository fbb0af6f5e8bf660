"""A campaign of faults against training in several processes on one machine.

    python -m benchmarks.chaos --minutes 60 --faults 300 --seed 1

Each run trains a small program to its last step while processes are killed, stopped and refused,
its disk fills up, its checkpoints are damaged and bits in its memory flip. Who is gone is replaced
by a spare, or fewer processes go on, or the run ends and is started again, then also with other
processes and layouts. The last state is compared with that of an undisturbed run. Finished runs
stand in `OUT/SEED.jsonl`: the same command goes on where it was stopped. Needs TensorFlow once.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

from benchmarks.chaos.campaign import Campaign
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.table import format_table, summarize


def main() -> None:
    """Run the campaign and write its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which faults, where and when")
    parser.add_argument("--faults", type=int, default=300, help="at least so many faults")
    parser.add_argument("--minutes", type=float, default=60.0, help="and at least so long")
    parser.add_argument("--each", type=int, default=15, help="faults planned for one run")
    parser.add_argument("--steps", type=int, default=170, help="the last step of a run")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds before each step")
    parser.add_argument("--out", default="build/chaos", help="the folder of the runs")
    parser.add_argument("--results", help="write the table and the rows to this folder")
    parser.add_argument("--kinds", default="", help="of the faults only these, with commas")
    arguments = parser.parse_args()
    chosen = arguments.kinds.split(",")
    campaign = Campaign(
        pathlib.Path(arguments.out),
        arguments.seed,
        faults=arguments.each,
        steps=arguments.steps,
        pause=arguments.pause,
        kinds={
            way: [kind for kind in kinds if chosen == [""] or kind in chosen]
            for way, kinds in KINDS.items()
        },
    )
    campaign.prepare()
    while True:
        rows = campaign.finished()
        figures = summarize(rows)
        if figures["faults"] >= arguments.faults and figures["minutes"] >= arguments.minutes:
            break
        row = campaign.run_next()
        wrong = f"; PROBLEMS: {row.problems}" if row.problems else ""
        print(
            f"{time.strftime('%H:%M:%S')} run {row.number}: {len(row.faults)} faults in "
            f"{row.attempts} attempts, {row.seconds:.0f} s, difference {row.difference:.1e}{wrong}",
            flush=True,
        )
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    command = (
        f"python -m benchmarks.chaos --minutes {arguments.minutes:g} --faults {arguments.faults} "
        f"--seed {arguments.seed}  # make chaos"
    )
    text = format_table(rows, command, load)
    print(text)
    if arguments.results:
        results = pathlib.Path(arguments.results)
        results.mkdir(parents=True, exist_ok=True)
        (results / "README.md").write_text(text)
        rows_text = json.dumps({"summary": figures, "runs": [vars(row) for row in rows]}, indent=1)
        (results / "chaos.json").write_text(rows_text + "\n")
    sys.exit(bool(figures["problems"]))


if __name__ == "__main__":
    main()
