"""The benchmark of checkpoints, with a few thousand weights."""

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import checkpoints


@pytest.mark.parametrize("bound", [None, 1])
def test_saving_and_restoring_are_compared_with_the_disk(tmp_path, monkeypatch, bound):
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    for name, size in (("MODEL", 64), ("HIDDEN", 512)):
        monkeypatch.setattr(checkpoints, name, size)
    path = tmp_path / "result.json"
    options = {"billions": 5e-4, "tokens": 4, "folder": str(tmp_path), "host_memory": bound}
    with flagsaver.flagsaver(json=str(path), **options):
        checkpoints.main([])
    result = json.loads(path.read_text())
    assert result["weights"] == 8 * 2 * 64 * 512
    assert result["save_to_disk"] > 0 and result["restore_to_disk"] > 0
    assert result["step_ratio"] > 0 and result["host_memory_mib"] == bound
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]  # nothing is left
