"""The data of the example: pairs of a sentence in some language and its English translation.

They are read from files, extracted from message catalogs, or invented.
"""

from examples.m4.corpus.catalogs import build_catalog_corpus
from examples.m4.corpus.debian import Wanted, build_debian_corpus
from examples.m4.corpus.files import Corpus, read_corpus, write_corpus
from examples.m4.corpus.packages import PACKAGES, Package
from examples.m4.corpus.report import Report
from examples.m4.corpus.synthetic import build_synthetic_corpus

__all__ = [
    "PACKAGES",
    "Corpus",
    "Package",
    "Report",
    "Wanted",
    "build_catalog_corpus",
    "build_debian_corpus",
    "build_synthetic_corpus",
    "read_corpus",
    "write_corpus",
]
