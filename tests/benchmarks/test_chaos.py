"""The campaign of faults: its plans follow from the seed, and a short form finds nothing."""

import collections
import json
import random

import pytest

from benchmarks.chaos.campaign import Campaign, RunRow, plan_run
from benchmarks.chaos.faults import ENDS, FEWER, KINDS, SPARE, flip_bit, tear, truncate
from benchmarks.chaos.table import format_table, summarize
from benchmarks.chaos.training import PLACES


def test_a_plan_follows_from_seed_and_number():
    assert plan_run(3, 5, 10) == plan_run(3, 5, 10)
    assert plan_run(3, 5, 10) != plan_run(4, 5, 10)
    assert plan_run(3, 5, 10).kinds != plan_run(3, 6, 10).kinds


def test_every_kind_of_fault_comes_equally_often():
    plans = [plan_run(1, number, 10) for number in range(120)]
    assert len({(plan.way, kind) for plan in plans for kind in plan.kinds}) >= 12
    for way, kinds in KINDS.items():
        dealt = collections.Counter(k for plan in plans if plan.way == way for k in plan.kinds)
        assert set(dealt) == set(kinds) and max(dealt.values()) - min(dealt.values()) <= 1


def test_runs_that_end_are_started_in_one_place_or_in_others():
    plans = [plan_run(1, number, 10) for number in range(16)]
    assert {plan.way for plan in plans} == {ENDS, SPARE, FEWER}
    for plan in plans:
        assert plan.way == ENDS or len(set(plan.places)) == 1
    assert {plan.same for plan in plans if plan.way == ENDS} == {True, False}
    assert {place.processes for place in PLACES} == {1, 2, 3, 4}


@pytest.mark.parametrize("damage", [flip_bit, truncate, tear])
def test_damage_changes_a_file(damage, tmp_path):
    for seed in range(20):
        path = tmp_path / "file"
        path.write_bytes(b"checkpoint" * 10)
        damage(path, random.Random(seed))
        assert path.read_bytes() != b"checkpoint" * 10


def test_the_table_counts_what_went_wrong():
    fault = {"kind": "SIGKILL", "status": 137, "seconds": 2.0, "problems": ["hung: no end"]}
    fault |= {"resumed": 5, "details": {"saving": True, "way": ENDS, "lost": 3}}
    wrong = ["SIGKILL: hung: no end", "SIGTERM: lost checkpoint 5: went on from 0"]
    rows = [
        RunRow(0, True, 60.0, 2, True, 0.0, [fault], wrong),
        RunRow(1, False, 60.0, 1, False, 3e-7, [], []),
    ]
    figures = summarize(rows)
    assert (figures["hangs"], figures["lost_checkpoints"], figures["minutes"]) == (1, 1, 2.0)
    assert (figures["equal_bit_for_bit"], figures["largest_difference"]) == (1, 3e-7)
    assert figures["seconds_to_next_step"][ENDS]["lost_steps_worst"] == 3
    text = format_table(rows, "make chaos", "0.1")
    assert "| SIGKILL | started again | 1 | 1 | 0 | 2.0 | 2.0 | 1 |" in text and "3.0e-07" in text


@pytest.mark.slow
def test_a_short_campaign_finds_nothing_and_goes_on_where_it_was_stopped(tmp_path):
    kinds = {
        SPARE: ("SIGKILL while copying", "bit flipped in a replica"),
        ENDS: ("SIGKILL while saving", "SIGTERM", "file bit flipped", "wrong peer: data"),
    }
    campaign = Campaign(tmp_path, seed=2, faults=4, steps=50, pause=0.1, kinds=kinds)
    campaign.prepare()
    for number in range(2):
        row = campaign.run_next()
        assert row.number == number and row.problems == [] and len(row.faults) == 4
    again = Campaign(tmp_path, seed=2, faults=4, steps=50, pause=0.1, kinds=kinds)
    assert [row.number for row in again.finished()] == [0, 1]
    lines = (tmp_path / "2.jsonl").read_text().splitlines()
    assert [json.loads(line)["equal"] for line in lines] == [True, True]
