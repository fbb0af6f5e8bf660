"""Texts to fine-tune on: read from a file, and packed into rows of one length."""

from __future__ import annotations

import hashlib
import importlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

import namedmesh as nm
from examples.llm.huggingface import read_config
from namedmesh.training import NumberedBatches

Rows = dict[str, np.ndarray]


class Example(NamedTuple):
    """The tokens of a text, and how many at its beginning are a prompt, which is not learned."""

    tokens: list[int]
    prompt: int = 0


def read_examples(path: pathlib.Path, folder: pathlib.Path | None = None) -> list[Example]:
    """Read the examples of a file: a line of JSON for each.

    A line has `tokens`, and `prompt`, how many of them are the prompt. Or both are texts, `prompt`
    and `completion`, for which the folder of the model has a tokenizer.json.
    """
    examples, vocab = [], None
    if folder is not None and (folder / "config.json").exists():
        vocab = read_config(folder).vocab
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except ValueError as error:
            raise nm.NamedMeshError(
                f"{path}:{number} is not JSON: {error}", fix="write an object on each line"
            ) from None
        texts = isinstance(one, dict) and (one.get("prompt", ""), one.get("completion"))
        if isinstance(one, dict) and "tokens" in one:
            examples.append(Example(one["tokens"], one.get("prompt", 0)))
            _check_example(examples[-1], vocab, f"{path}:{number}")
        elif texts and all(isinstance(text, str) for text in texts):
            encode = load_tokenizer(folder).encode
            prompt = encode(texts[0]).ids
            rest = encode(texts[1], add_special_tokens=False).ids
            examples.append(Example(prompt + rest, len(prompt)))
        else:
            raise nm.NamedMeshError(
                f"{path}:{number} is not an example: {line[:80]}",
                fix='write {"tokens": [1, 5, 9, 2], "prompt": 2}, or texts as "prompt" and '
                '"completion"',
            )
    if not examples:
        raise nm.NamedMeshError(f"{path} has no examples", fix="write a line of JSON for each")
    return examples


def _check_example(example: Example, vocab: int | None, where: str) -> None:
    """Raise for what is not token numbers of a model, or not a number of them."""
    tokens, prompt = example
    if not isinstance(tokens, list) or not tokens or not all(type(one) is int for one in tokens):
        raise nm.NamedMeshError(
            f"{where}: tokens is not a list of token numbers: {str(tokens)[:80]}",
            fix='write e.g. "tokens": [1, 5, 9, 2]',
        )
    check_tokens(tokens, vocab or max(tokens) + 1, where)
    if type(prompt) is not int or not 0 <= prompt <= len(tokens):
        raise nm.NamedMeshError(
            f"{where}: prompt is {prompt!r}, beside {len(tokens)} tokens",
            fix=f"write how many of them are the prompt, from 0 to {len(tokens)}",
        )


def check_tokens(tokens: Iterable[int], vocab: int, where: str) -> None:
    """Raise for a token that a model does not have."""
    unknown = next((one for one in tokens if not 0 <= one < vocab), None)
    if unknown is not None:
        raise nm.NamedMeshError(
            f"{where}: the model has no token {unknown}: its vocab={vocab}",
            fix=f"give token numbers from 0 to {vocab - 1}, of the tokenizer of this model",
        )


def load_tokenizer(folder: pathlib.Path | None) -> Any:
    """Load the tokenizer of a model's folder."""
    path = folder and folder / "tokenizer.json"
    try:
        tokenizers = importlib.import_module("tokenizers")
        if path is None or not path.exists():
            raise FileNotFoundError(f"{folder} has no tokenizer.json")
    except (ImportError, FileNotFoundError) as error:
        raise nm.NamedMeshError(
            f"texts need the model's tokenizer: {error}",
            fix="give token numbers, or install tokenizers and copy tokenizer.json to the folder",
        ) from None
    return tokenizers.Tokenizer.from_file(str(path))


def pack(examples: Iterable[Example], length: int) -> Rows:
    """Pack examples into as few rows as first-fit finds, several in a row one after the other.

    Returns:
        `inputs` and `targets`; `segments`, the number of each token's example in its row, from 1,
        0 for padding; its `positions` there; and `weights`, 1 for targets that are learned.
    """
    rows: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=lambda one: -len(one.tokens)):
        example = Example(example.tokens[: length + 1], example.prompt)  # what is longer is cut
        size = len(example.tokens) - 1
        if size < 1:
            continue
        place = next((i for i, left in enumerate(room) if left >= size), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(length)
        rows[place].append(example)
        room[place] -= size
    names = ("inputs", "targets", "segments", "positions")
    packed: Rows = {name: np.zeros([len(rows), length], np.int32) for name in names}
    packed["weights"] = np.zeros([len(rows), length], np.float32)
    for i, row in enumerate(rows):
        first = 0
        for number, (tokens, prompt) in enumerate(row, 1):
            size = len(tokens) - 1
            at = (i, slice(first, first + size))
            packed["inputs"][at], packed["targets"][at] = tokens[:-1], tokens[1:]
            packed["segments"][at], packed["positions"][at] = number, np.arange(size)
            packed["weights"][at] = np.arange(size) >= prompt - 1
            first += size
    return packed


def shuffle_rows(rows: Rows, batch: int, seed: int) -> NumberedBatches:
    """Draw batches of rows, in another order each time that all were seen."""
    count = len(rows["inputs"])

    def make_batch(number: int) -> Rows:
        places = np.arange(number * batch, (number + 1) * batch)
        orders = {
            epoch: np.random.default_rng([seed, epoch]).permutation(count)
            for epoch in {*(places // count).tolist()}
        }
        chosen = [orders[place // count][place % count] for place in places.tolist()]
        return {name: values[chosen] for name, values in rows.items()}

    digest = hashlib.sha256(b"".join(one.tobytes() for one in rows.values())).hexdigest()
    return NumberedBatches(make_batch, digest)
