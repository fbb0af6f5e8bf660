"""The benchmark of checkpoints, with a few thousand weights."""

import json
import sys

import pytest

from benchmarks import checkpoints


@pytest.mark.parametrize("bound", [None, 1])
def test_saving_and_restoring_are_compared_with_the_disk(tmp_path, monkeypatch, bound):
    monkeypatch.setattr(checkpoints, "HIDDEN", 512)
    path = tmp_path / "result.json"
    words = f"--billions 5e-4 --model 64 --tokens 4 --folder {tmp_path} --json {path}".split()
    words += ["--host_memory", str(bound)] if bound else []
    monkeypatch.setattr(sys, "argv", ["", *words])
    checkpoints.main()
    result = json.loads(path.read_text())
    assert result["weights"] == 8 * 2 * 64 * 512
    assert result["save_to_disk"] > 0 and result["restore_to_disk"] > 0
    assert result["step_ratio"] > 0 and result["host_memory_mib"] == bound
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]  # nothing is left
