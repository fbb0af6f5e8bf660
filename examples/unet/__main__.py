"""Train a U-Net on images split over devices: python -m examples.unet."""

from __future__ import annotations

from absl import app, flags

from namedmesh.errors.errors import NamedMeshError

flags.DEFINE_string("run", "runs/unet", "the folder of the run; the same one again resumes")
flags.DEFINE_string("mesh", "data=2 space=4", 'device mesh, e.g. "space=4"')
flags.DEFINE_string(
    "layout",
    "batch:data, rows:space",
    "which of batch, rows, columns and hidden lie on which mesh axes",
)
flags.DEFINE_integer("steps", 400, "training steps", lower_bound=1)
flags.DEFINE_integer("batch", 16, "images of a step", lower_bound=1)
flags.DEFINE_integer("size", 64, "rows and columns of an image", lower_bound=16)
flags.DEFINE_integer("width", 8, "channels of the first level", lower_bound=4)
flags.DEFINE_integer("levels", 3, "levels, each of half the rows and columns", lower_bound=1)
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "dtype of activations")
flags.DEFINE_float("learning_rate", 5e-3, "the largest learning rate")
flags.DEFINE_integer("held_out", 4, "batches of held-out images to score", lower_bound=1)


def main(arguments: list[str]) -> None:
    """Plan, train, score and draw."""
    from examples.unet.model import UNet
    from examples.unet.plots import draw
    from examples.unet.training import Run, Settings

    options = flags.FLAGS
    if len(arguments) > 1:
        raise app.UsageError(f"{arguments[1]!r} is not a flag")
    model = UNet(
        batch=options.batch,
        rows=options.size,
        columns=options.size,
        width=options.width,
        levels=options.levels,
        dtype=options.dtype,
    )
    try:
        run = Run(
            options.run,
            Settings(
                model,
                options.mesh,
                options.layout,
                options.steps,
                options.learning_rate,
                options.held_out,
            ),
        )
        print(run.describe())
        trainer = run.train()
    except NamedMeshError as error:
        raise SystemExit(f"error: {error}") from None
    if trainer.stop:
        raise SystemExit(trainer.stop.exit_status)
    scores = run.score(trainer.state)
    print(
        f"trained {trainer.steps_taken} steps; "
        f"held-out loss {scores['dev_loss']:.3f}, IoU {scores['iou']:.3f}"
    )
    picture = run.folder / "unet.png"
    if draw(picture, run.metrics, *run.predict(trainer.state)):
        print(f"plot: {picture}")


if __name__ == "__main__":
    app.run(main)
