"""python -m tests.peers: writes README.md, the table of the tests of other libraries."""

from __future__ import annotations

from tests.peers.test_peers import ROOT, write_table

if __name__ == "__main__":
    (ROOT / "README.md").write_text(write_table())
