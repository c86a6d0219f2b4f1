"""Tests of reproduce.py: the table by hand, finished rows, failed runs."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import reproduce
from configurator import load_config
from eval import paired_bootstrap

ROW = {
    "command": "python train.py", "git_commit": "0123456789", "machine": "here", "iterations": 2,
    "cpu_s_per_iteration": 1.5, "curve": {"2": 0.75}, "settings": {},
}  # fmt: skip
# four instances: the start solves the first, RL all but the last, the greedy player the first two
SUCCESSES = {"greedy, closed loop": [1, 1, 0, 0], "start": [1, 0, 0, 0], "after RL": [1, 1, 1, 0]}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").symlink_to(Path(reproduce.__file__).parent / "config")
    folder = tmp_path / "docs/results/learning"
    folder.mkdir(parents=True)
    return folder


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_by_hand(results):
    (results / "frozenlake_ppo_s0.json").write_text(json.dumps(ROW | {"successes": SUCCESSES}))
    second = ROW | {"git_commit": None, "successes": SUCCESSES | {"after RL": [1] * 4}, "cpu_s_per_iteration": 2.5}
    (results / "frozenlake_ppo_s2.json").write_text(json.dumps(second))
    head, _, first, other, both, *players = reproduce.learning_table().splitlines()
    assert cells(head)[1:3] == ["start", "after RL"]
    # Wilson at 1 of 4 and 3 of 4; mean differences 2/4 and 1/4
    assert cells(first)[0] == "frozenlake_ppo_s0 (0123456)"
    assert cells(first)[1:3] == ["25.0 [4.6, 69.9]", "75.0 [30.1, 95.4]"]
    assert cells(first)[3].startswith("50.0 [") and cells(first)[4].startswith("25.0 [")
    assert cells(first)[5] == "1.50"
    assert cells(other)[0] == "frozenlake_ppo_s2 (None)" and cells(other)[2].startswith("100.0 [")
    a, b = (np.array([SUCCESSES[key], second["successes"][key]]) for key in ("after RL", "start"))
    assert cells(both)[0] == "frozenlake_ppo, 2 seeds" and cells(both)[2].startswith("87.5 [")
    assert cells(both)[3] == reproduce.percent(*paired_bootstrap(a, b))
    assert cells(both)[5] == "2.00"
    assert "- frozenlake_ppo: greedy, closed loop 50.0 [15.0, 85.0]" in players


def test_a_finished_row_is_not_run_again(results, monkeypatch):
    monkeypatch.setattr(reproduce.subprocess, "run", lambda *_, **__: pytest.fail("was run"))
    for seed in reproduce.SEEDS:
        settings = asdict(load_config(reproduce.command("bandit_ppo", seed)[1:])[0])
        row = ROW | {"successes": SUCCESSES, "settings": settings}
        (results / f"bandit_ppo_s{seed}.json").write_text(json.dumps(row))
    reproduce.main(["learning", "--only=bandit"])
    assert "bandit_ppo_s0 (0123456)" in (results.parent / "learning.md").read_text()


def test_a_row_of_other_settings_is_run_again(results, monkeypatch):
    monkeypatch.setattr(reproduce.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    (results / "bandit_ppo_s0.json").write_text(json.dumps(ROW | {"successes": SUCCESSES}))
    with pytest.raises(ValueError, match="bandit_ppo seed 0: failed with exit code 2"):
        reproduce.main(["learning", "--only=bandit"])


def test_a_failed_run_leaves_no_row_and_fails(results, monkeypatch):
    monkeypatch.setattr(reproduce.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(ValueError, match=r"bandit_ppo seed 0: failed with exit code 2, see out/learning/bandit_ppo_s0"):
        reproduce.main(["learning", "--only=bandit"])
    assert list(results.iterdir()) == []


@pytest.mark.parametrize("argv, message", [
    ([], "give the name of a table: learning; got nothing"),
    (["learning", "--only=chess"], "--only=chess matches none of frozenlake_ppo"),
    (["learning", "--seed=3"], "the settings of the runs are fixed here"),
])  # fmt: skip
def test_messages(argv, message, results):
    with pytest.raises(ValueError, match=message):
        reproduce.main(argv)
