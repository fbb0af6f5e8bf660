"""The distribution's package manager, with lists and caches of our own: no root is needed."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError

HELPER = "/usr/lib/apt/apt-helper"
# Every language that Debian or Ubuntu has translated descriptions of packages in.
DESCRIPTION_LANGUAGES = (
    "en", "ar", "ast", "be", "bg", "bn", "bs", "ca", "cs", "cy", "da", "de", "el", "eo", "es", "et",
    "eu", "fa", "fi", "fr", "gl", "he", "hi", "hr", "hu", "id", "is", "it", "ja", "ka", "km", "ko",
    "ku", "lt", "lv", "mk", "ml", "mr", "ms", "nb", "ne", "nl", "nn", "oc", "pa", "pl", "pt",
    "pt_BR", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "ta", "te", "tg", "th", "tr", "ug", "uk",
    "ur", "vi", "zh", "zh_CN", "zh_TW",
)  # fmt: skip
CONFIGURATION = """
Dir::State "{folder}/state";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
Acquire::Retries "3";
Acquire::IndexTargets::deb::Contents-deb {{
  MetaKey "$(COMPONENT)/Contents-$(ARCHITECTURE)";
  ShortDescription "Contents-$(ARCHITECTURE)";
  Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents";
  KeepCompressed "true";
}};
Acquire::IndexTargets::deb::Contents-deb-legacy {{
  MetaKey "Contents-$(ARCHITECTURE)";
  ShortDescription "Contents-$(ARCHITECTURE)";
  Description "$(RELEASE) $(ARCHITECTURE) Contents";
  KeepCompressed "true";
  Fallback-Of "Contents-deb";
}};
"""
SOURCES = """
Dir::Etc::sourcelist "{file}";
Dir::Etc::sourceparts "-";
"""


@dataclass(frozen=True)
class DebianPackage:
    """A package that can be downloaded: one version of it.

    Attributes:
        name: Its name.
        version: Its version.
        size: The bytes of its file.
        sha256: The digest of its file.
    """

    name: str
    version: str
    size: int
    sha256: str


class Apt:
    """Apt with lists and caches in a folder of ours.

    Args:
        folder: Where lists and caches are kept.
        sources: A list of sources to use; by default the machine's own.

    Raises:
        NamedMeshError: If this machine has no apt, or the list of sources is not a file.
    """

    def __init__(self, folder: str | os.PathLike, sources: str | os.PathLike | None = None):
        for program in ("apt-get", "dpkg-deb", HELPER):
            if not shutil.which(program):
                raise NamedMeshError(
                    f"this machine has no {program}: the corpus of a distribution needs Debian, "
                    "Ubuntu or a relative of theirs",
                    fix="use --data catalogs, which needs pip alone",
                )
        if sources is not None and not pathlib.Path(sources).is_file():
            # Before the lists that are there are given up for those of other sources.
            raise NamedMeshError(
                f"the list of sources {str(sources)!r} is not a file",
                fix="name a file as apt's sources.list, or leave out --sources",
            )
        self.folder = pathlib.Path(folder).absolute()
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.configuration = self.folder / "apt.conf"
        text = CONFIGURATION.format(folder=self.folder)
        if sources is not None:
            text += SOURCES.format(file=pathlib.Path(sources).absolute())
        if not self.configuration.exists() or self.configuration.read_text() != text:
            self.configuration.write_text(text)
            (self.folder / "updated").unlink(missing_ok=True)

    def run(
        self, command: Sequence[str], folder: pathlib.Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of apt-get in a folder; what it prints is in the result."""
        # On the command line, since a machine's own configuration may ask for none.
        languages = f"Acquire::Languages={','.join(DESCRIPTION_LANGUAGES)}"
        command = ["apt-get", "-o", languages, *command]
        environment = {**os.environ, "APT_CONFIG": str(self.configuration), "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    def update(self) -> None:
        """Fetch the lists of packages, of their files, and of their descriptions."""
        done = self.run(["update"])
        if done.returncode or not any(self._targets("Contents")):
            raise NamedMeshError(
                "apt-get update could not fetch the lists of the distribution",
                *(f"apt: {line}" for line in done.stderr.strip().splitlines()[-3:]),
                fix="run again where apt can reach its sources, or use --data catalogs",
            )
        (self.folder / "updated").touch()

    @property
    def updated(self) -> bool:
        """Return whether the lists are there."""
        return (self.folder / "updated").exists()

    @property
    def digest(self) -> str:
        """A name of the lists as they are, that other lists do not have."""
        state = hashlib.sha256()
        for path in sorted((self.folder / "state" / "lists").glob("*Release")):
            state.update(path.read_bytes())
        return state.hexdigest()[:16]

    @property
    def origin(self) -> str:
        """The distribution and its release, as its own lists name them."""
        names = {
            f"{fields.get('Origin', '')} {fields.get('Codename', '')} {fields.get('Version', '')}"
            for fields in self._targets("Packages")
        }
        return ", ".join(sorted(" ".join(name.split()) for name in names))

    def packages(self) -> dict[str, DebianPackage]:
        """Read which packages there are; of several versions the one of the last list."""
        packages: dict[str, DebianPackage] = {}
        for paragraph in self._paragraphs("Packages"):
            if "SHA256" in paragraph:
                packages[paragraph["Package"]] = DebianPackage(
                    paragraph["Package"],
                    paragraph["Version"],
                    int(paragraph["Size"]),
                    paragraph["SHA256"],
                )
        return packages

    def files(self, *folders: str) -> Iterator[tuple[str, list[str]]]:
        """Iterate over the files in some folders: each path, and the packages that have it."""
        for target in self._targets("Contents"):
            for line in self._read(target["Filename"]):
                if any(folder in line for folder in folders):
                    path, _, owners = line.rstrip("\n").rpartition(" ")
                    yield path.rstrip(), [owner.rpartition("/")[2] for owner in owners.split(",")]

    def descriptions(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Iterate over descriptions of packages: the language, and the fields of one of them."""
        for target in self._targets("Translations"):
            language = target.get("Language", "")
            for paragraph in self._paragraphs_of(target["Filename"]):
                yield language, paragraph

    def download(self, packages: Sequence[DebianPackage], folder: pathlib.Path) -> str:
        """Download packages into a folder; those that fail are not there. Returns apt's errors."""
        names = [f"{package.name}={package.version}" for package in packages]
        return self.run(["download", "--quiet", *names], folder).stderr

    def _targets(self, kind: str) -> list[dict[str, str]]:
        """Return the lists of a kind that were fetched, with what apt knows of each."""
        printed = self.run(["indextargets"]).stdout
        targets = [
            {
                name: value
                for name, _, value in (line.partition(": ") for line in block.splitlines())
            }
            for block in printed.strip().split("\n\n")
            if block
        ]
        return [
            target
            for target in targets
            if target["Created-By"].startswith(kind) and pathlib.Path(target["Filename"]).exists()
        ]

    def _paragraphs(self, kind: str) -> Iterator[dict[str, str]]:
        for target in self._targets(kind):
            yield from self._paragraphs_of(target["Filename"])

    def _paragraphs_of(self, path: str) -> Iterator[dict[str, str]]:
        """Iterate over the paragraphs of a list: fields and their values, lines of one joined."""
        fields: dict[str, str] = {}
        name = ""
        for line in self._read(path):
            if line == "\n":
                if fields:
                    yield fields
                fields, name = {}, ""
            elif line[0] in " \t":
                fields[name] += "\n" + line[1:].rstrip("\n")
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields

    def _read(self, path: str) -> Iterator[str]:
        """Iterate over the lines of a list, however it is compressed."""
        with subprocess.Popen(
            [HELPER, "cat-file", path], stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
        ) as process:
            yield from process.stdout or ()
