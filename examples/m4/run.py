"""The run directory: settings, data, artifacts, checkpoints, metrics and plots of one run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable

from examples.m4.corpus import (
    Corpus,
    Wanted,
    build_catalog_corpus,
    build_debian_corpus,
    build_synthetic_corpus,
    read_corpus,
)
from examples.m4.input.batches import Batches
from examples.m4.input.identification import Languages
from examples.m4.input.tokens import Segmentation, Tokens, open_or_write_tokens
from examples.m4.input.vocabulary import LARGEST_FILE, Vocabularies
from examples.m4.settings import Settings
from namedmesh.artifacts.artifact import VERSION
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import read_bytes, write_file

Pairs = dict[str, list[tuple[str, str]]]
Say = Callable[[str], None]
# What the lowered programs depend on; the other settings may change between two starts of a run.
LOWERED = (
    "source_length", "target_length", "rows", "optimizer", "learning_rate", "warmup", "decay_after",
    "cooldown", "clip_norm", "average", "mesh", "layout", "params", "precision", "beam", "alpha",
    "translation_rows", "translation_length",
)  # fmt: skip
# What must stay the same between two starts of a run.
FIXED = (
    "source_length", "target_length", "rows", "languages", "pairs", "temperature", "repeat", "seed",
    "vocabulary_sentences", "subword_alpha", "optimizer", "average", "by_language",
)  # fmt: skip
# How the model is computed or evaluated, not what it learns.
FREE = (
    "remat", "unroll", "stages", "microbatches", "dispatch", "evaluation_second",
    "evaluation_capacity_factor", "decoding_capacity_factor",
)  # fmt: skip
VOCABULARIES = ("source_vocab", "target_vocab")
CORPORA = ("debian", "catalogs", "synthetic")  # those that are built, the richest first


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
            return Settings.from_json(read_bytes(path, LARGEST_FILE).decode())
        except FileNotFoundError:
            raise NamedMeshError(
                f"{self.folder} is not a run: it has no settings.json",
                fix="start one with train, or name another folder",
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NamedMeshError(
                f"{path} cannot be read: {error}", fix="restore it, or start another run"
            ) from None

    @property
    def corpus(self) -> str:
        """The source of the run's data; empty if that is not known."""
        path = self.data / "corpus.txt"
        return read_bytes(path, LARGEST_FILE).decode() if path.exists() else ""

    @property
    def started(self) -> bool:
        """Return whether the run has settings."""
        return (self.folder / "settings.json").exists()

    def start(
        self,
        settings: Settings,
        data: str,
        say: Say = print,
        corpora: pathlib.Path | None = None,
    ) -> Settings:
        """Prepare the run for training, with its data; return settings with its vocabulary sizes.

        Safe to repeat: a run that has data keeps it. `data` must then be empty or the same. A
        corpus that has to be built is kept in `corpora`, by default beside the run.
        """
        if self.started:
            settings = self.fit_settings(settings)
            if data and self.corpus and not _is_same_corpus(self.corpus, data):
                raise NamedMeshError(
                    f"{self.folder} is a run on other data: {self.corpus} there, {data} here",
                    fix="leave out --data, or name another folder with --run",
                )
            return settings
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NamedMeshError(
                f"cannot create the run {self.folder}: {error.strerror}", fix="name another folder"
            ) from None
        if Run(data).started:
            settings = self._copy_data(settings, Run(data), say)
        else:
            settings = self._prepare_data(settings, data, corpora or self.folder.parent, say)
        if not settings.by_language:
            self._check_lengths(settings, say)
        self._write("data/corpus.txt", data)
        self.save_settings(settings)
        return settings

    def save_settings(self, settings: Settings) -> None:
        """Make these the settings of the run, once they are known to work."""
        self._write("settings.json", settings.to_json())

    def fit_settings(self, settings: Settings) -> Settings:
        """Return settings with the run's vocabulary sizes; raise if they are of another run."""
        before = self.settings
        if settings.by_language and before.by_language and not settings.languages:
            settings = settings.but(languages=before.languages)
        sizes = {name: getattr(before.model, name) for name in VOCABULARIES}
        model = dataclasses.replace(settings.model, **sizes)
        fields = [field.name for field in dataclasses.fields(model) if field.name not in FREE]
        changes = [
            (name, getattr(old, name), getattr(new, name))
            for names, old, new in ((FIXED, before, settings), (fields, before.model, model))
            for name in names
            if getattr(old, name) != getattr(new, name)
        ]
        if changes:
            raise NamedMeshError(
                f"{self.folder} is a run with other settings: "
                + ", ".join(name for name, _, _ in changes),
                *(f"{name}: {old!r} there, {new!r} here" for name, old, new in changes),
                fix="use the settings of the run, or name another folder with --run",
            )
        return dataclasses.replace(settings, model=model)

    def _check_lengths(self, settings: Settings, say: Say) -> None:
        """Say how many examples are too long for a row; raise if all of them are."""
        shape = settings.rows, settings.source_length, settings.target_length
        for split in ("train", "dev"):
            tokens = self.tokens(split)
            batches = Batches(tokens, *shape, seed=0, temperature=settings.temperature)
            dropped = sum(batches.dropped.values())
            if dropped:
                say(
                    f"{split}: {dropped:,} of {len(tokens):,} pairs are too long for a row "
                    "and are left out"
                )

    def _copy_data(self, settings: Settings, other: Run, say: Say) -> Settings:
        """Copy the data of another run: the same vocabularies and tokens, to compare models."""
        before = other.settings
        if settings.languages not in ("", before.languages):
            raise NamedMeshError(
                f"the data of {other.folder} has {before.languages or 'all its languages'}, "
                f"not {settings.languages} alone",
                fix="give the corpus itself as --data: it holds out the same sentences, "
                "whichever languages are asked for",
            )
        shutil.copytree(other.data, self.data, copy_function=_link, dirs_exist_ok=True)
        sizes = {name: getattr(before.model, name) for name in VOCABULARIES}
        names = "languages", "pairs", "vocabulary_sentences", "subword_alpha"
        same = {name: getattr(before, name) for name in names}
        for name, value in same.items():
            if value != getattr(settings, name):
                say(f"{name} is {value!r}, as it was when the data was made")
        return settings.but(**sizes, **same)

    def _prepare_data(
        self, settings: Settings, data: str, corpora: pathlib.Path, say: Say
    ) -> Settings:
        """Make vocabularies and tokens of a corpus; return settings with the vocabulary sizes."""
        languages = [code for code in settings.languages.split(",") if code]
        corpus = open_corpus(data, corpora, languages, settings.pairs, say)
        say(str(corpus.report))
        if not corpus.dev:
            raise NamedMeshError(
                f"the corpus {data!r} has no good dev line",
                fix="add dev/<lang>.tsv, or put all files into one directory, "
                "of which dev and test are then held out",
            )
        if settings.by_language:
            return self._prepare_languages(settings, corpus, say)
        pairs_count = sum(map(len, corpus.train.values()))
        say(f"vocabularies from {pairs_count:,} pairs of {len(corpus.train)} languages ...")
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
        Languages.train(corpus.train, settings.seed).save(self.data / "languages.npz")
        for name, pairs in (("train", corpus.train), ("dev", corpus.dev)):
            alpha = settings.subword_alpha if name == "train" else 0.0
            tokens = open_or_write_tokens(
                self.data / name,
                pairs,
                vocabularies.source,
                vocabularies.target,
                Segmentation(alpha, settings.seed),
            )
            say(
                f"{name}: {len(tokens):,} pairs, {len(tokens.source.tokens):,} source "
                f"and {len(tokens.target.tokens):,} target tokens"
            )
        self._write("data/tests.json", json.dumps(corpus.tests, ensure_ascii=False))
        sizes = vocabularies.source.size, vocabularies.target.size
        # Multiples of 64, so that a layout can split the vocabularies evenly.
        rounded = {
            name: -(-size // 64) * 64 for name, size in zip(VOCABULARIES, sizes, strict=True)
        }
        return settings.but(**rounded)

    def _prepare_languages(self, settings: Settings, corpus: Corpus, say: Say) -> Settings:
        """Make vocabularies and packed rows of each language, the rich ones first.

        Tables of weights are as large for all of them, however many pieces a language has.
        """
        from examples.m4.bilingual.rows import hold_out_dev, write_languages

        codes = corpus.languages
        self.data.mkdir(exist_ok=True)
        parts = {code: hold_out_dev(corpus.train[code], corpus.dev.get(code, ())) for code in codes}
        train = {code: kept for code, (kept, _) in parts.items()}
        dev = {code: held for code, (_, held) in parts.items()}
        write_languages(self.data, train, dev, settings, say)
        self._write("data/tests.json", json.dumps(corpus.tests, ensure_ascii=False))
        counts = {code: len(pairs) for code, pairs in train.items()}
        self._write("data/counts.json", json.dumps(counts))
        sizes = {name: -(-getattr(settings.model, name) // 64) * 64 for name in VOCABULARIES}
        return settings.but(languages=",".join(codes), **sizes)

    @property
    def counts(self) -> dict[str, int]:
        """The train pairs of each language."""
        if (self.data / "counts.json").exists():
            return json.loads(read_bytes(self.data / "counts.json", LARGEST_FILE))
        return self.tokens("train").counts

    def _write(self, name: str, text: str) -> None:
        """Write a file, completely or not at all."""
        write_file(str(self.folder / name), text.encode(), name)

    @property
    def vocabularies(self) -> Vocabularies:
        """The run's vocabularies."""
        return Vocabularies.load(self.data)

    @property
    def languages(self) -> Languages:
        """The identification of the run's languages."""
        return Languages.load(self.data / "languages.npz")

    def tokens(self, split: str) -> Tokens:
        """Open the tokenized pairs of train or dev."""
        return Tokens.open(self.data / split)

    @property
    def tests(self) -> dict[str, Pairs]:
        """The test sets: pairs of text by set and language."""
        try:
            sets = json.loads(read_bytes(self.data / "tests.json", LARGEST_FILE))
        except FileNotFoundError:
            raise NamedMeshError(
                f"{self.folder} has no test data", fix="start the run again, with train or export"
            ) from None
        return {
            name: {code: [(s, e) for s, e in pairs] for code, pairs in languages.items()}
            for name, languages in sets.items()
        }

    def artifact(self, name: str, settings: Settings, say: Say = print) -> pathlib.Path:
        """Return the file of a lowered program; make it, with TensorFlow, if it is not there."""
        values = {setting: getattr(settings, setting) for setting in LOWERED}
        if settings.cooldown:
            values["steps"] = settings.steps
        if settings.by_language:
            count = len(settings.languages.split(","))
            values |= {"languages": count, "patience": settings.patience}
        values["model"] = dataclasses.asdict(settings.model)
        values["artifact_version"] = VERSION
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / "artifacts" / f"{name}-{digest}.nmesh"
        if not path.exists():
            try:
                from examples.m4.programs import make_artifact

                say(f"lowering the {name} step for {settings.mesh} ...")
                lowered = make_artifact(name, settings)
            except ImportError as error:
                raise NamedMeshError(
                    f"{path} is missing, and making it needs TensorFlow: {error}",
                    f"mesh: {settings.mesh}; layout: {settings.layout}",
                    fix="make it with `export` and the same flags on a machine with TensorFlow",
                ) from None
            path.parent.mkdir(exist_ok=True)
            lowered.save(path)
        return path


def _link(source: str, target: str) -> None:
    """Give a file a second name; copy it where that cannot be. Files of data never change."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _is_same_corpus(data: str, other: str) -> bool:
    """Check whether two values of --data name the same, e.g. with and without a slash."""
    if data in CORPORA or other in CORPORA:
        return data == other
    return os.path.abspath(data) == os.path.abspath(other)


def open_corpus(
    data: str, folder: pathlib.Path, languages: list[str], pairs: int, say: Say
) -> Corpus:
    """Open a corpus by its name, which is built in a folder, or a directory.

    Where the packages of one cannot be had, the next one is taken: debian, catalogs, synthetic.
    """
    if data not in CORPORA:
        return read_corpus(data, languages=languages or None)
    root = folder / f"corpus-{data}{f'-{pairs}' if pairs and data == 'debian' else ''}"
    if not root.exists():
        try:
            if data == "debian":
                say("building the corpus from the packages of this machine's distribution ...")
                build_debian_corpus(root, Wanted(pairs=pairs or None), progress=say)
            elif data == "catalogs":
                say("building the corpus from message catalogs of Python packages ...")
                build_catalog_corpus(root, progress=say)
            else:
                build_synthetic_corpus(root, progress=say)
        except NamedMeshError as error:
            following = CORPORA[CORPORA.index(data) + 1 :]
            if not following:
                raise
            say(f"{error}\nusing the corpus {following[0]!r} instead")
            return open_corpus(following[0], folder, languages, 0, say)
    return read_corpus(root, languages=languages or None)
