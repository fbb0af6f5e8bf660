"""The first cases of `python -m tests.fuzz_files`, which has ten thousand."""

from tests.fuzz_files import failures, run_all


def test_changed_files_are_refused_or_harmless(tmp_path):
    results = run_all(0, 168, tmp_path)
    assert failures(results) == []
    kinds = {one.kind for one in results}
    assert len(kinds) == 12 and len(results) == 168
    for kind in kinds - {"links where it is saved"}:  # those make room, or stay
        outcomes = [one.outcome for one in results if one.kind == kind]
        assert any(outcome in ("refused", "older") for outcome in outcomes), kind
