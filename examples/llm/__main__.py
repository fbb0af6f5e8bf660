"""A language model: python -m examples.llm train | sample | tune | grpo | write | serve."""

from __future__ import annotations

import argparse
import importlib
import math
import pathlib
import sys
from typing import Any

from examples.llm.adapters import Tuning
from examples.llm.architecture import Experts
from examples.llm.settings import LAYOUTS, PRESETS, PRODUCTS, Settings
from namedmesh.errors.errors import NamedMeshError

RUNS = pathlib.Path("runs/llm")
ENDS = "tokens that end a text; by default those of the folder, none with --end alone"


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.llm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train a run, or continue to")
    train.add_argument("--preset", choices=PRESETS, default="tiny")
    train.add_argument("--experts", type=int, help="experts of each layer; 0 for a dense model")
    train.add_argument("--steps", type=int)
    train.add_argument("--seed", type=int)
    train.add_argument("--products", choices=PRODUCTS, help="of layers with weights, in 8 bits")
    train.add_argument("--layout", help=f"one of {', '.join(LAYOUTS)}, or e.g. batch:data")
    train.add_argument("--mesh", help="e.g. data=4; every layout has a small one")
    train.add_argument("--schedule", help="of a pipeline: gpipe, 1f1b or zero_bubble")
    train.add_argument("--microbatches", type=int, help="of a pipeline")
    sample = commands.add_parser("sample", help="continue a prompt")
    sample.add_argument("--prompt", default="def ")
    sample.add_argument("--length", type=int, default=200, help="bytes to write")
    sample.add_argument("--count", type=int, default=3, help="texts to write")
    sample.add_argument("--temperature", type=float, default=0.7)
    sample.add_argument("--top_p", type=float, default=0.95)
    sample.add_argument("--beam", type=int, default=0, help="search with that many hypotheses")
    sample.add_argument("--seed", type=int, default=0)
    tune = commands.add_parser("tune", help="fine-tune weights of a folder")
    tune.add_argument("--examples", type=pathlib.Path, required=True, help="a file of JSON lines")
    tune.add_argument("--length", type=int, default=512, help="tokens of a row")
    tune.add_argument(
        "--loss_chunks", type=int, default=1, help="of a row, whose logits are made one by one"
    )
    grpo = commands.add_parser("grpo", help="let a model learn from what it writes")
    grpo.add_argument("--prompts", type=pathlib.Path, required=True, help="a file of JSON lines")
    grpo.add_argument("--reward", required=True, help="module:function of two lists of tokens")
    grpo.add_argument("--length", type=int, default=64, help="most tokens of a prompt")
    grpo.add_argument("--group", type=int, default=8, help="texts for each prompt")
    grpo.add_argument("--written", type=int, default=64, help="most tokens of a text")
    grpo.add_argument("--updates", type=int, default=1, help="from the same texts")
    grpo.add_argument("--end", type=int, nargs="*", help=ENDS)
    grpo.add_argument("--write_layout", help="another layout to write under, on the same mesh")
    grpo.set_defaults(loss_chunks=1)  # its loss needs the scores of all tokens
    for command in (tune, grpo):
        _add_tuning(command)
    serve = commands.add_parser("serve", help="answer the completions API")
    serve.add_argument("--weights", type=pathlib.Path, required=True, help="a folder")
    serve.add_argument("--slots", type=int, default=8, help="texts that are written at once")
    serve.add_argument("--length", type=int, default=256, help="most tokens of a prompt")
    serve.add_argument("--size", type=int, default=512, help="most tokens of prompt and text")
    serve.add_argument("--mesh", default="", help="e.g. tensor=2")
    serve.add_argument("--layout", default="one", help="e.g. megatron")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--seed", type=int, default=0)
    write = commands.add_parser("write", help="continue tokens with weights of a folder")
    write.add_argument(
        "--weights", type=pathlib.Path, required=True, help="of Hugging Face's format"
    )
    write.add_argument(
        "--tokens", nargs="+", required=True, type=_read_tokens, help="prompts, e.g. 1,15,7 1,9"
    )
    write.add_argument("--length", type=int, default=32, help="tokens to write")
    write.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest")
    write.add_argument("--top_p", type=float, default=1.0)
    write.add_argument("--end", type=int, nargs="*", help=ENDS)
    write.add_argument("--seed", type=int, default=0)
    write.add_argument("--mesh", default="", help="e.g. tensor=2; every layout has a small one")
    write.add_argument("--layout", default="one", help=f"one of {', '.join(LAYOUTS)}, or a text")
    for command in (serve, write):
        _add_storage(command)
    for command in (train, sample):
        command.add_argument("--run", type=pathlib.Path, help=f"a folder, by default in {RUNS}")
    return parser.parse_args(words)


def _read_tokens(text: str) -> list[int]:
    """Read a prompt of the command line."""
    try:
        return [int(token) for token in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not token numbers with commas between them, such as 1,15,7"
        ) from None


def _add_storage(command: argparse.ArgumentParser) -> None:
    """Add the options of weights that are not trained."""
    add = command.add_argument
    add("--dtype", default="float32", help="of activations: float32 or bfloat16")
    add("--frozen", default="float32", help="weights are stored in float32, bfloat16, int8 or int4")
    add("--block", type=int, default=0, help="elements that share a scale, of int8 and int4")
    add("--unroll", action="store_true", help="write layers out: faster on GPUs, slower to compile")


def _read_storage(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of weights that are not trained."""
    tuning = None
    if options.frozen != "float32":
        tuning = Tuning(0, options.frozen, options.block)
    return {"dtype": options.dtype, "unroll": options.unroll, "tuning": tuning}


def _add_tuning(command: argparse.ArgumentParser) -> None:
    """Add the options of training weights of a folder."""
    add = command.add_argument
    add("--weights", type=pathlib.Path, required=True, help="the folder to start from")
    add("--to", type=pathlib.Path, required=True, help="the folder to write")
    add("--rank", type=int, default=0, help="of adapters; 0 trains all weights")
    add("--frozen", default="bfloat16", help="float32, bfloat16, int8 or int4")
    add("--block", type=int, default=0, help="elements that share a scale")
    add("--steps", type=int, default=100)
    add("--batch", type=int, default=8, help="rows, or prompts, of a step")
    add("--learning_rate", type=float, default=1e-4)
    add("--dtype", default="float32", help="of activations: float32 or bfloat16")
    add("--seed", type=int, default=0)
    add("--layout", default="fsdp", help=f"one of {', '.join(LAYOUTS)}, or a text")
    add("--mesh", default="", help="e.g. data=4; every layout has a small one")
    add("--params", default="", help="where weights are at rest, for a layout's text")
    add(
        "--remat", default="dots", choices=("none", "dots", "full"),
        help="what the backward pass computes again",
    )  # fmt: skip
    add("--offload", action="store_true", help="what is stored for it waits in the host's memory")


def train(options: argparse.Namespace) -> None:
    """Train a run, and draw it beside the others of its folder."""
    names = ("steps", "seed", "products", "layout", "mesh", "schedule", "microbatches")
    changes = {name: getattr(options, name) for name in names}
    settings = PRESETS[options.preset].but(
        **{name: value for name, value in changes.items() if value is not None}
    )
    if options.experts:
        shape = settings.architecture
        mixture = Experts(options.experts, 2, shape.hidden)
        settings = settings.but(architecture=shape.but(experts=mixture))
    mesh, _ = settings.devices
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(mesh.devices)
    from examples.llm import training
    from examples.llm.plots import draw
    from examples.llm.text import measure_baselines, read_text

    text = read_text()
    baselines = measure_baselines(text)
    print(f"{len(text.train):,} bytes to learn from; bits per byte of {len(text.dev):,} others:")
    print("  " + ", ".join(f"{name} {bits:.2f}" for name, bits in baselines.items()))
    kind = f"experts{options.experts}" if options.experts else "dense"
    folder = options.run or RUNS / kind
    last = training.train(folder, settings, text)
    print(
        f"trained {settings.steps:,} steps at {last['bytes_per_second']:,.0f} bytes a second; "
        f"dev: {last['dev_loss'] / math.log(2):.3f} bits per byte"
    )
    print(f"plot: {draw(folder.parent, baselines)}")


def sample(options: argparse.Namespace) -> None:
    """Continue a prompt."""
    from examples.llm.sampling import continue_prompt

    names = ("length", "count", "temperature", "top_p", "beam", "seed")
    chosen = {name: getattr(options, name) for name in names}
    for text in continue_prompt(options.run or RUNS / "dense", options.prompt, **chosen):
        print(f"{text}\n{'-' * 40}")


def tune(options: argparse.Namespace) -> None:
    """Fine-tune weights of a folder, and write another."""
    settings = _tuning_settings(options)
    from examples.llm.packing import read_examples
    from examples.llm.tuning import tune

    tune(options.weights, options.to, settings, read_examples(options.examples, options.weights))


def grpo(options: argparse.Namespace) -> None:
    """Let a model of a folder learn from what it writes, and write another folder."""
    settings = _tuning_settings(options)
    from examples.llm.grpo import Grpo, train
    from examples.llm.packing import read_examples

    module, _, name = options.reward.partition(":")
    reward = getattr(importlib.import_module(module), name)
    prompts = [one.tokens for one in read_examples(options.prompts, options.weights)]
    chosen = {name: getattr(options, name) for name in ("group", "written", "updates")}
    how = Grpo(end=_ends_of(options), layout=options.write_layout, **chosen)
    train(options.weights, options.to, settings, how, prompts, reward)


def _tuning_settings(options: argparse.Namespace) -> Settings:
    """Return the settings of training weights of a folder."""
    names = (
        "steps", "batch", "length", "learning_rate", "dtype", "seed", "layout", "mesh", "params",
        "remat", "offload", "loss_chunks",
    )  # fmt: skip
    chosen = {name: getattr(options, name) for name in names}
    if not options.rank and (options.frozen not in ("bfloat16", "float32") or options.block):
        raise NamedMeshError(
            f"--frozen {options.frozen} --block {options.block} without adapters: --rank 0 trains "
            "all weights, in float32",
            fix="add e.g. --rank 8, or leave --frozen and --block out",
        )
    tuning = Tuning(options.rank, options.frozen, options.block) if options.rank else None
    settings = Settings(tuning=tuning, capacity_factor=0, **chosen)
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(settings.devices[0].devices)
    from examples.llm import weights

    architecture, _ = weights.read_model(options.weights)
    return settings.but(architecture=architecture, warmup=max(1, options.steps // 20))


def serve(options: argparse.Namespace) -> None:
    """Serve a model of a folder."""
    names = ("length", "mesh", "layout")
    chosen = {name: getattr(options, name) for name in names} | _read_storage(options)
    settings = Settings(batch=options.slots, capacity_factor=0, **chosen)
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(settings.devices[0].devices)
    from examples.llm import weights
    from examples.llm.serve import open_engine, serve

    architecture, _ = weights.read_model(options.weights)
    settings = settings.but(architecture=architecture)
    engine, tokenizer = open_engine(options.weights, settings, options.size, options.seed)
    serve(engine, options.weights, tokenizer, options.host, options.port)


def write(options: argparse.Namespace) -> None:
    """Continue tokens with weights of a folder."""
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(Settings(mesh=options.mesh, layout=options.layout).devices[0].devices)
    from examples.llm.sampling import continue_tokens

    names = ("length", "temperature", "top_p", "seed", "mesh", "layout")
    chosen = {name: getattr(options, name) for name in names} | _read_storage(options)
    ends = _ends_of(options)
    for row in continue_tokens(options.weights, options.tokens, end=ends, **chosen):
        length = next((i + 1 for i, token in enumerate(row) if token in (ends or ())), len(row))
        print(",".join(map(str, row[:length])))


def _ends_of(options: argparse.Namespace) -> tuple[int, ...] | None:
    """Return the tokens that end a text: those of the command line, or else of the folder."""
    from examples.llm import weights

    ends = weights.read_ends(options.weights) if options.end is None else tuple(options.end)
    return ends or None


def main() -> None:
    """Run a command; print mistakes as messages."""
    options = parse_arguments()
    try:
        commands = {"train": train, "sample": sample, "tune": tune, "grpo": grpo}
        commands |= {"write": write, "serve": serve}
        commands[options.command](options)
    except NamedMeshError as error:
        sys.exit(str(error))
    except FileNotFoundError as error:
        sys.exit(f"there is no {error.filename}")
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install -e '.[llm]' has what all commands need")


if __name__ == "__main__":
    main()
