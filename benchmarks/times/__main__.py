"""Predict the seconds of published training steps, and compare.

python -m benchmarks.times [--rows FILE.tsv] [--json OUT] [--plot OUT.png]
python -m benchmarks.times --calibrate

Each row of a table becomes a model of ours on its mesh, with its layout, accumulation and
recomputation; its plan is priced by `nm.cost`, and only then compared with what was measured. A row
that cannot be expressed says why. With --calibrate, the constants of systems are fitted again, on
every third row of each system on each chip in the two tables that are not kept back.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

from benchmarks.times.paper import all_to_all_growth
from benchmarks.times.predict import predict
from benchmarks.times.systems import CONSTANTS, UNFITTED, calibration_rows, read_constants
from benchmarks.times.table import FURTHER, TABLE, Inexpressible, Step, read_step, read_table

COLUMNS = ("id", "measured", "predicted", "ratio", "exposed", "GiB", "fitted", "grade")


def predict_row(row: dict[str, str]) -> dict[str, Any]:
    """Return one row of results."""
    found: dict[str, Any] = {"id": row.get("id", ""), "source": row.get("source", "")}
    try:
        step = read_step(row)
        found |= {
            "system": step.system, "chip": step.chip, "model": step.model,
            "devices": step.devices, "grade": step.grade, "measured_seconds": step.measured,
        }  # fmt: skip
        prediction = predict(step)
    except Inexpressible as error:
        return {**found, "predicted_seconds": None, "why": str(error)}
    except Exception as error:  # a row of somebody else's must not end the others
        return {**found, "predicted_seconds": None, "why": f"{type(error).__name__}: {error}"}
    seconds = prediction.seconds
    return {
        **found,
        "predicted_seconds": seconds,
        "ratio": seconds / step.measured if step.measured else None,
        "used_for_calibration": step.id in calibration_rows(),
        "memory_bytes": prediction.memory,
        "exposed_seconds": prediction.exposed,
        "bubble": prediction.bubble,
        "constant": prediction.constant,
        "remat": prediction.remat,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far predictions are off, of rows of grade A and B that nothing was fitted on."""
    held = [
        row for row in rows
        if row.get("ratio") and row["grade"] in ("A", "B") and not row["used_for_calibration"]
    ]  # fmt: skip
    errors = sorted(abs(row["ratio"] - 1.0) for row in held)
    return {
        "rows": len(rows),
        "expressed": sum(row["predicted_seconds"] is not None for row in rows),
        "used_for_calibration": sum(bool(row.get("used_for_calibration")) for row in rows),
        "held_out_rows_of_grade_a_and_b": len(held),
        "median_error": statistics.median(errors) if errors else None,
        "share_within_25_percent": sum(one <= 0.25 for one in errors) / max(1, len(errors)),
        "ninth_decile_of_errors": errors[int(0.9 * (len(errors) - 1))] if errors else None,
    }


def calibrate(rows: list[dict[str, str]]) -> None:
    """Fit the constants of systems on every third of their rows on each chip."""
    by_key: dict[str, list[Step]] = {}
    for row in rows:
        try:
            step = read_step(row)
        except Inexpressible:
            continue
        if step.system not in UNFITTED and step.grade in ("A", "B"):
            by_key.setdefault(f"{step.system} {step.chip}", []).append(step)
    found = {}
    for key, steps in by_key.items():
        first = steps[::3][: round(len(steps) / 3)]
        constants = []
        for step in first:
            one = predict(step, 1.0)
            left = step.measured / (1.0 + one.bubble) - one.exposed
            constants.append(left / one.compute)
        if first:
            # Nobody's ops take less than expected: of such a row collectives are priced too high.
            middle = max(1.0, round(statistics.median(constants), 3))
            found[key] = {"constant": middle, "rows": [step.id for step in first]}
    CONSTANTS.write_text(json.dumps(found, indent=1) + "\n")
    read_constants.cache_clear()


def format_row(row: dict[str, Any]) -> str:
    """Return a row for people."""
    if row["predicted_seconds"] is None:
        return f"{row['id']:30} not expressed: {row['why']}"
    fitted = "fitted" if row["used_for_calibration"] else ""
    ratio = f"{row['ratio']:6.2f}" if row["ratio"] else "     -"
    return (
        f"{row['id']:30} {row['measured_seconds']:9.3f} {row['predicted_seconds']:9.3f} {ratio} "
        f"{row['exposed_seconds']:8.2f} {row['memory_bytes'] / 2**30:6.1f} {row['remat']:5} "
        f"{row['grade']:2} {fitted}"
    )


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draw predictions beside what was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 6))
    known = [row for row in rows if row.get("ratio")]
    systems = sorted({row["system"] for row in known})
    for i, system in enumerate(systems):
        for fitted in (False, True):
            some = [
                row for row in known
                if row["system"] == system and row["used_for_calibration"] == fitted
            ]  # fmt: skip
            axis.plot(
                [row["measured_seconds"] for row in some],
                [row["predicted_seconds"] for row in some],
                "ov^sDPX*<>hpd"[i % 13],
                color=f"C{i % 10}",
                markerfacecolor="none" if fitted else None,
                label=None if fitted else system,
                linestyle="none",
            )
    ends = [0.2, 200]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    for factor in (0.75, 1.25):
        axis.plot(ends, [factor * end for end in ends], color="gray", linewidth=0.6, linestyle="--")
    axis.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends,
        xlabel="measured seconds of a step", ylabel="predicted; hollow: used for calibration",
    )  # fmt: skip
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.times", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", type=pathlib.Path, default=TABLE, help="a table of steps")
    parser.add_argument("--json", type=pathlib.Path, help="where results are written")
    parser.add_argument("--plot", type=pathlib.Path, help="where the plot is written")
    parser.add_argument("--calibrate", action="store_true", help="fit the constants of systems")
    given = parser.parse_args(arguments)
    table = read_table(given.rows)
    if given.calibrate:
        calibrate([row for path in (FURTHER, TABLE) for row in read_table(path)])
    rows = []
    print(f"{'id':30}  measured predicted  ratio  exposed    GiB remat grade", flush=True)
    for row in table:
        rows.append(predict_row(row))
        print(format_row(rows[-1]), flush=True)
    growth = all_to_all_growth()
    summary = {**summarize(rows), "all_to_all_growth_128_to_2048_cores": growth}
    print(json.dumps(summary, indent=1))
    if given.json:
        written = sys.argv[1:] if arguments is None else arguments
        command = " ".join(["python -m benchmarks.times", *written])
        result = {"command": command, "summary": summary, "rows": rows}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    sys.exit(main())
