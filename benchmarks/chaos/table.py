"""The table of a campaign, written by the program that made it."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.chaos.campaign import RunRow
from benchmarks.chaos.faults import ENDS, FEWER, KINDS, SPARE


def summarize(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Return the figures of a campaign."""
    faults = [fault for row in rows for fault in row.faults]
    problems = [problem for row in rows for problem in row.problems]
    saving = [fault for fault in faults if fault["details"].get("saving")]
    damaged = [fault for fault in faults if fault["details"].get("damaged")]
    same, others = [row for row in rows if row.same], [row for row in rows if not row.same]
    return {
        "faults": len(faults),
        "kinds": len({(fault["kind"], fault["details"].get("way")) for fault in faults}),
        "seconds_to_next_step": {way: _recovery(faults, way) for way in (SPARE, FEWER, ENDS)},
        "runs": len(rows),
        "attempts": sum(row.attempts for row in rows),
        "minutes": round(sum(row.seconds for row in rows) / 60, 1),
        "hangs": sum("hung" in problem for problem in problems),
        "lost_checkpoints": sum("lost checkpoint" in problem for problem in problems),
        "problems": len(problems),
        "killed_while_saving": len(saving),
        "damaged_files": len(damaged),
        "damage_noticed": sum((one["resumed"] or 0) < one["details"]["damaged"] for one in damaged),
        "runs_in_one_place": len(same),
        "equal_bit_for_bit": sum(row.equal for row in same),
        "runs_in_changing_places": len(others),
        "largest_difference": max((row.difference for row in others), default=0.0),
    }


def _recovery(faults: Sequence[dict[str, Any]], way: str) -> dict[str, float]:
    """Return the seconds from faults to the next new step, and the steps that were lost."""
    chosen = [one for one in faults if one["details"].get("way") == way and one["kind"] != "none"]
    chosen = [one for one in chosen if one["resumed"] is not None]
    seconds = [one["details"].get("next_step", one["seconds"]) for one in chosen]
    lost = [one["details"].get("lost", 0) for one in chosen]
    if not seconds:
        return {}
    return {
        "faults": len(seconds),
        "median": round(statistics.median(seconds), 1),
        "worst": round(max(seconds), 1),
        "lost_steps_median": statistics.median(lost),
        "lost_steps_worst": max(lost),
    }


def format_table(rows: Sequence[RunRow], command: str, load: str) -> str:
    """Return the page of a campaign."""
    figures = summarize(rows)
    faults = [fault for row in rows for fault in row.faults]
    lines = [
        "# Faults against training in several processes",
        "",
        f"{figures['faults']} faults in {figures['runs']} runs and {figures['minutes']} minutes; "
        f"{figures['attempts']} launches. Hangs over 60 s: {figures['hangs']}. Lost checkpoints: "
        f"{figures['lost_checkpoints']}. Other problems: "
        f"{figures['problems'] - figures['hangs'] - figures['lost_checkpoints']}. Measured on "
        f"{os.cpu_count()} cores (load at the end: {load}).",
        "",
        "| after a fault | faults | seconds to the next new step: median | worst | lost steps: "
        "median | worst |",
        "|---|---|---|---|---|---|",
        *(
            f"| {way} | {one['faults']} | {one['median']} | {one['worst']} | "
            f"{one['lost_steps_median']:g} | {one['lost_steps_worst']} |"
            for way, one in figures["seconds_to_next_step"].items()
            if one
        ),
        "",
        f"- Runs whose attempts all had the same processes, mesh and layout: the last state is "
        f"that of an undisturbed run bit for bit in {figures['equal_bit_for_bit']} of "
        f"{figures['runs_in_one_place']}.",
        f"- Runs whose processes, mesh and layout changed at every restart: "
        f"{figures['runs_in_changing_places']}; the largest difference from an undisturbed run is "
        f"{figures['largest_difference']:.1e} of the largest number of a variable (allowed: 1e-6).",
        f"- A process, or all of them, died while a checkpoint was being written: "
        f"{figures['killed_while_saving']} times. It is whole then, or it is not there; "
        "the one before it stays.",
        f"- Files of the newest checkpoint were damaged {figures['damaged_files']} times. That was "
        f"noticed {figures['damage_noticed']} times, and training went on from the one before it; "
        f"otherwise nobody reads the damaged bytes.",
        "",
        "| fault | what follows | times | processes ended | training went on | seconds to the end "
        "or the next new step: median | longest | problems |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds = dict.fromkeys(itertools.chain(*KINDS.values(), ["none"]))
    for kind, way in itertools.product(kinds, (SPARE, FEWER, ENDS, "goes on", None)):
        chosen = [one for one in faults if one["kind"] == kind]
        chosen = [one for one in chosen if one["details"].get("way") == way]
        if not chosen:
            continue
        seconds = [fault["seconds"] for fault in chosen]
        ended = sum(fault["status"] is not None for fault in chosen)
        problems = sum(len(fault["problems"]) for fault in chosen)
        lines.append(
            f"| {kind} | {way or ''} | {len(chosen)} | {ended} | {len(chosen) - ended} | "
            f"{statistics.median(seconds):.1f} | {max(seconds):.1f} | {problems} |"
        )
    lines += ["", "```bash", command, "```", ""]
    for row in rows:
        for problem in row.problems:
            lines.append(f"- run {row.number}: {problem.splitlines()[0]}")
    return "\n".join(lines).rstrip() + "\n"
