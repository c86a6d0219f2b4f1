"""Tests of card.py."""

import json

import pytest

from studies.base_model import card


def test_the_tables_show_the_probes(tmp_path, capsys):
    lake = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8 grid"
    rows = []
    for step, goal in ((100, 0.25), (1200, 0.996)):
        rows.append({"step": step, "tokens": step * 10_000, lake: {"player": 1, "goal": goal}})
    rows[-1]["bandit:pair=phoenix grid"] = {"success_T0.5": 0.5}
    path = tmp_path / "curve.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    card.main([str(path)])
    final, learned = capsys.readouterr().out.split("\n\n")
    assert final.splitlines()[2:] == [
        "| FrozenLake, slippery, grid | - | - | - | - | - | 1.00 | 1.00 | - | - | - | - | - | - |",
        "| Bandit, grid | 0.50 | - | - | - | - | - | - | - | - | - | - | - | - |",
    ]
    assert learned.splitlines()[2:] == [
        "| FrozenLake, slippery | 100 | 1.0 | - | - | 1.00 | 0.25 | - | - | - | - | - | - |",
        "| FrozenLake, slippery | 1,200 | 12.0 | - | - | 1.00 | 1.00 | - | - | - | - | - | - |",
    ]


def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match="give the curve.jsonl of a pretraining, got no/file"):
        card.main(["no/file"])
