"""A corpus from the packages of this machine's Linux distribution; apt is needed, root is not."""

from examples.m4.corpus.debian.building import Wanted, build_debian_corpus

__all__ = ["Wanted", "build_debian_corpus"]
