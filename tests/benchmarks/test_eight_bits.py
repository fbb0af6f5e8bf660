"""The benchmark of products in 8 bits, on a model that CPUs train in seconds."""

import json
import lzma
import sys

import numpy as np
import pytest

from benchmarks.gpu import eight_bits


def test_rows_follow_the_language():
    drawn = [eight_bits.draw_rows(np.random.default_rng(i), 4, 64) for i in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0]["inputs"], drawn[1]["inputs"])
    assert np.any(drawn[0]["inputs"] != drawn[2]["inputs"])
    np.testing.assert_array_equal(drawn[0]["inputs"][:, 1:], drawn[0]["targets"][:, :-1])
    after = {}
    for one in drawn:
        for row, nexts in zip(one["inputs"], one["targets"], strict=True):
            for i in range(1, len(row)):
                after.setdefault((row[i - 1], row[i]), set()).add(nexts[i])
    assert max(map(len, after.values())) <= eight_bits.CHOICES


@pytest.mark.slow
def test_every_kind_is_timed_and_trained(tmp_path, monkeypatch):
    words = [str(tmp_path), "--models", "tiny", "tiny", "--steps", "20"]
    for task in ("export", "measure"):
        monkeypatch.setattr(sys, "argv", ["", task, *words, "--json", str(tmp_path / "out.json")])
        eight_bits.main()
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["kind"] for row in result["stack"]] == [*eight_bits.KINDS]
    curves = {row["kind"]: row for row in result["curves"]}
    assert {*curves} == {*eight_bits.KINDS, "bfloat16, other rows"}
    assert curves["bfloat16"]["at_most"] == 0.0
    assert all(0 < curves[kind]["at_most"] < 0.02 for kind in eight_bits.KINDS[1:])


def test_rows_of_a_text_are_its_bytes(tmp_path):
    text = "".join(f"{i} and " for i in range(300)).encode()
    (tmp_path / "plain.txt").write_bytes(text)
    (tmp_path / "small.xz").write_bytes(lzma.compress(text))
    for name in ("plain.txt", "small.xz"):
        rows = eight_bits.draw_rows(np.random.default_rng(0), 4, 32, tmp_path / name)
        for row, after in zip(rows["inputs"], rows["targets"], strict=True):
            assert bytes(row.tolist()) + bytes(after.tolist()[-1:]) in text
            np.testing.assert_array_equal(row[1:], after[:-1])
