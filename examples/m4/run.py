"""The run directory: settings, data, artifacts, checkpoints, metrics and plots of one run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from examples.m4.corpus import Corpus, build_catalog_corpus, build_synthetic_corpus, read_corpus
from examples.m4.input.batches import Batches
from examples.m4.input.tokens import Tokens, cached_tokens
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.settings import Settings
from namedmesh.dims.errors import NamedMeshError

Pairs = dict[str, list[tuple[str, str]]]
# What the lowered programs depend on: the rest of the settings may change between two starts of a run.
LOWERED = (
    "source_length", "target_length", "rows", "optimizer", "learning_rate", "warmup", "decay_after", "clip_norm", "mesh",
    "layout", "params", "precision", "beam", "alpha", "translation_rows", "translation_length",
)  # fmt: skip
# What may not change between two starts, for the run to be one run.
FIXED = (
    "source_length",
    "target_length",
    "rows",
    "languages",
    "temperature",
    "seed",
    "vocabulary_sentences",
    "optimizer",
)


class Run:
    """One run on disk."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self.data, self.checkpoints = self.folder / "data", self.folder / "checkpoints"
        self.metrics, self.plots = self.folder / "metrics.jsonl", self.folder / "plots"
        self.summaries = self.folder / "summaries"

    @property
    def settings(self) -> Settings:
        """The settings the run was started with."""
        path = self.folder / "settings.json"
        try:
            return Settings.from_json(path.read_text())
        except FileNotFoundError:
            raise NamedMeshError(
                f"{self.folder} is no run: it has no settings.json",
                fix="start one with train, or name another",
            ) from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise NamedMeshError(
                f"{path} cannot be read: {error}", fix="restore it, or start another run"
            ) from None

    @property
    def corpus(self) -> str:
        """What the run's data was made of; empty if that is not known."""
        path = self.data / "corpus.txt"
        return path.read_text() if path.exists() else ""

    @property
    def started(self) -> bool:
        """Whether the run has settings."""
        return (self.folder / "settings.json").exists()

    def start(self, settings: Settings, data: str, say: Any = print) -> Settings:
        """Makes the run ready to train with these settings: the data, and the model's vocabulary sizes; safe to repeat.

        A run that has its data keeps it; data is then empty, or the same.
        """
        if self.started:
            settings = self.fitted(settings)
            if data and self.corpus not in (data, ""):
                raise NamedMeshError(
                    f"{self.folder} is a run on other data: {self.corpus} there, {data} here",
                    fix="leave out --data, or name another folder with --run",
                )
            return settings
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NamedMeshError(
                f"cannot make the run {self.folder}: {error.strerror}", fix="name another folder"
            ) from None
        settings = (
            self._reuse(settings, Run(data))
            if Run(data).started
            else self._prepare(settings, data, say)
        )
        self._check_lengths(settings, say)
        self._write("data/corpus.txt", data)
        self.keep(settings)
        return settings

    def keep(self, settings: Settings) -> None:
        """Makes these the run's settings, once it is known that they work."""
        self._write("settings.json", settings.to_json())

    def _check_lengths(self, settings: Settings, say: Any) -> None:
        """Says how many examples are too long for a row; raises when all are."""
        shape = settings.rows, settings.source_length, settings.target_length
        for split in ("train", "dev"):
            tokens = self.tokens(split)
            dropped = sum(
                Batches(tokens, *shape, seed=0, temperature=settings.temperature).dropped.values()
            )
            if dropped:
                say(
                    f"{split}: {dropped:,} of {len(tokens):,} pairs are too long for a row, and left out"
                )

    def _reuse(self, settings: Settings, other: Run) -> Settings:
        """The data of another run: the same languages, vocabularies and tokens, for models to be compared on."""
        before = other.settings
        if settings.languages not in ("", before.languages):
            raise NamedMeshError(
                f"the data of {other.folder} is of {before.languages or 'all its languages'}, not of {settings.languages} alone",
                fix="give the corpus itself as --data: the same sentences are held out of it whichever languages are asked for",
            )
        shutil.copytree(other.data, self.data, copy_function=shutil.copy2, dirs_exist_ok=True)
        sizes = {name: getattr(before.model, name) for name in ("source_vocab", "target_vocab")}
        same = {name: getattr(before, name) for name in ("languages", "vocabulary_sentences")}
        return settings.but(**sizes, **same)

    def fitted(self, settings: Settings) -> Settings:
        """These settings with the run's vocabulary sizes; raises where they are those of another run."""
        before = self.settings
        changed = [name for name in FIXED if getattr(before, name) != getattr(settings, name)]
        vocabularies = {
            name: getattr(before.model, name) for name in ("source_vocab", "target_vocab")
        }
        model = dataclasses.replace(settings.model, **vocabularies)
        free = ("remat", "dispatch")  # how the model is computed, not what it is
        fields = [one.name for one in dataclasses.fields(model) if one.name not in free]
        changed += [name for name in fields if getattr(before.model, name) != getattr(model, name)]
        if changed:
            was = before.model if hasattr(before.model, changed[0]) else before
            now = settings.model if hasattr(before.model, changed[0]) else settings
            raise NamedMeshError(
                f"{self.folder} is a run with other settings: {', '.join(changed)}",
                f"{changed[0]}: {getattr(was, changed[0])!r} there, {getattr(now, changed[0])!r} here",
                fix="give its settings again, or name another folder with --run",
            )
        return dataclasses.replace(settings, model=model)

    def _prepare(self, settings: Settings, data: str, say: Any) -> Settings:
        """Vocabularies and tokens of a corpus; the model gets the vocabularies' sizes, rounded up so that they divide well."""
        corpus = opened(
            data, self.folder, [code for code in settings.languages.split(",") if code], say
        )
        say(str(corpus.report))
        if not corpus.dev:
            raise NamedMeshError(
                f"the corpus {data!r} has no good dev line",
                fix="add dev/<lang>.tsv, or put all files into one directory: dev and test are then held out of them",
            )
        say(
            f"vocabularies from {sum(map(len, corpus.train.values())):,} pairs of {len(corpus.train)} languages ..."
        )
        vocabularies = Vocabularies.train(
            corpus.train,
            settings.model.source_vocab,
            settings.model.target_vocab,
            temperature=settings.temperature,
            sentences=settings.vocabulary_sentences,
            seed=settings.seed,
        )
        self.data.mkdir(exist_ok=True)
        vocabularies.save(self.data)
        for name, pairs in (("train", corpus.train), ("dev", corpus.dev)):
            tokens = cached_tokens(
                self.data / name, pairs, vocabularies.source, vocabularies.target
            )
            sides = f"{len(tokens.source.tokens):,} source and {len(tokens.target.tokens):,} target tokens"
            say(f"{name}: {len(tokens):,} pairs, {sides}")
        self._write("data/tests.json", json.dumps(corpus.tests, ensure_ascii=False))
        sizes = {name: -(-size // 64) * 64 for name, size in
                 (("source_vocab", vocabularies.source.size), ("target_vocab", vocabularies.target.size))}  # fmt: skip
        return settings.but(**sizes)

    def _write(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all."""
        temporary = self.folder / f"{name}.{os.getpid()}.partial"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / name)

    @property
    def vocabularies(self) -> Vocabularies:
        """The run's vocabularies."""
        return Vocabularies.load(self.data)

    def tokens(self, split: str) -> Tokens:
        """The tokenised pairs of train or dev."""
        return Tokens.open(self.data / split)

    @property
    def tests(self) -> dict[str, Pairs]:
        """The test sets: pairs of text by set and language."""
        try:
            sets = json.loads((self.data / "tests.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NamedMeshError(
                f"{self.folder} has no test data", fix="start the run again, with train or export"
            ) from None
        return {
            name: {code: [(s, e) for s, e in pairs] for code, pairs in languages.items()}
            for name, languages in sets.items()
        }

    def artifact(self, name: str, settings: Settings, say: Any = print) -> pathlib.Path:
        """The file of a lowered program, made (with TensorFlow) unless it is there already for the same settings."""
        lowered = {one: getattr(settings, one) for one in LOWERED} | {
            "model": dataclasses.asdict(settings.model)
        }
        digest = hashlib.sha256(json.dumps(lowered, sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / "artifacts" / f"{name}-{digest}.nmesh"
        if not path.exists():
            try:
                import tensorflow  # noqa: F401  (what lowering needs; tracing does not)

                from examples.m4.programs import artifact
            except ImportError as error:
                raise NamedMeshError(
                    f"{path} is not there, and making it needs TensorFlow: {error}",
                    f"mesh: {settings.mesh}; layout: {settings.layout}",
                    fix="make it with `export` and the same flags on a machine that has TensorFlow",
                ) from None
            say(f"lowering the {name} step for {settings.mesh} ...")
            path.parent.mkdir(exist_ok=True)
            artifact(name, settings).save(path)
        return path


def opened(data: str, folder: pathlib.Path, languages: list[str], say: Any) -> Corpus:
    """The corpus a name stands for: catalogs (fetched), synthetic (made), or a directory of TSV files."""
    if data not in ("catalogs", "synthetic"):
        return read_corpus(data, languages=languages or None)
    root = folder.parent / f"corpus-{data}"
    if not root.exists():
        try:
            if data == "catalogs":
                say("building the corpus from message catalogs of Python packages ...")
                build_catalog_corpus(root, progress=say)
        except NamedMeshError as error:
            say(
                f"{error}\nthe catalogs are out of reach: going on with synthetic languages instead"
            )
            return opened("synthetic", folder, [], say)
        if data == "synthetic":
            build_synthetic_corpus(root, progress=say)
    return read_corpus(root, languages=languages or None)
