"""Tests of support/settings_history.py: settings before and after --take_config=True."""

from configurator import Config, UserError

import json
from dataclasses import replace

import pytest

from support.report import show_if_finished
from support.run_folder import changed_settings, check_out_dir, save_config
from support.seed_groups import pool_seeds
from support.settings_history import (
    Earlier,
    describe_earlier,
    earlier_when_continued,
    evaluations_changed_at,
    read_earlier,
    without_old_evaluations,
)

A = Config()
B = Config(clip_high=0.4)
C = Config(clip_high=0.5)


# ---------- which settings may change


def test_a_setting_that_another_one_reads_may_not_change(tmp_path):
    falls = Config(out_dir=str(tmp_path), final_lr=0.1, num_iterations=4)
    save_config(falls, {}, tmp_path)
    longer = replace(falls, num_iterations=8)
    with pytest.raises(UserError) as error:
        check_out_dir(longer, flag="--take_config=True")
    assert (
        "(num_iterations was 4 and is now 8, on which final_lr=0.1 depends); give another "
        "--out_dir, or --take_config=True to continue with the new settings"
    ) in str(error.value)
    check_out_dir(longer, accept_changes=True)
    check_out_dir(replace(falls, eval_every=7))
    assert changed_settings(Config(), Config(num_iterations=8)) == []
    assert changed_settings(Config(early_stop=True), Config(early_stop=True, eval_every=7)) == [
        "eval_every was 50 and is now 7, on which early_stop=True depends"
    ]


def test_the_advice_for_a_finished_run_names_the_flag(tmp_path, capsys):
    (tmp_path / "scores.md").write_text("scores")
    config = Config(out_dir=str(tmp_path), num_iterations=4)
    assert show_if_finished(config, 4, None)
    assert "to continue, --num_iterations=N.\n" in capsys.readouterr().out
    assert show_if_finished(replace(config, final_lr=0.1), 4, None)
    assert "to continue, --num_iterations=N --take_config=True.\n" in capsys.readouterr().out


# ---------- what is kept


def continue_run(folder, config, step):
    earlier = earlier_when_continued(folder, config, step)
    save_config(config, {}, folder, earlier)
    assert read_earlier(folder) == earlier
    return earlier


def test_each_stretch_of_settings_is_kept(tmp_path):
    assert continue_run(tmp_path, A, 0) == []
    assert continue_run(tmp_path, replace(A, num_iterations=9), 2) == []
    a = replace(A, num_iterations=9)
    assert continue_run(tmp_path, B, 4) == [(4, a)]
    assert continue_run(tmp_path, B, 6) == [(4, a)]
    assert continue_run(tmp_path, C, 8) == [(4, a), (8, B)]
    text = json.loads((tmp_path / "config.json").read_text())["earlier"]
    assert [entry["until"] for entry in text] == [4, 8]
    assert continue_run(tmp_path, C, 2) == [(2, a)]
    assert continue_run(tmp_path, A, 2) == []


def test_a_run_that_begins_again_has_no_earlier_settings(tmp_path):
    continue_run(tmp_path, A, 0)
    assert continue_run(tmp_path, B, 0) == []


def test_damaged_earlier_settings_are_refused(tmp_path):
    for entry in ({}, {"until": -1, "config": {}}, {"until": 1, "config": {"x": 1}}):
        text = json.dumps({"config": {}, "earlier": [entry]})
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match="config.json"):
            read_earlier(tmp_path)


def test_changes_are_said():
    assert describe_earlier([Earlier(4, A)], B) == [
        "until iteration 4: clip_high was 0.28 and is now 0.4"
    ]


# ---------- evaluations


@pytest.mark.parametrize(
    "change, last_old",
    [
        ({"clip_high": 0.4}, 0),
        ({"env": "sokoban"}, 4),  # eval_env is empty, so evaluations use env
        ({"eval_env": "sokoban"}, 4),
        ({"eval_env": "frozenlake"}, 0),  # A's env is frozenlake, so evaluations do not change
        ({"env": "sokoban @9 > frozenlake"}, 0),
        ({"eval_size": 8}, 4),
        ({"eval_split": "heldout"}, 4),
        ({"max_turns": 6}, 4),
    ],
)
def test_which_evaluations_can_be_compared(change, last_old):
    assert evaluations_changed_at([Earlier(4, replace(A, **change))], A) == last_old


def test_old_evaluations_are_left_out():
    rows = [{"step": 1, "eval_success": 0.9}, {"step": 2, "eval_success": 0.1}]
    assert without_old_evaluations(rows, 0) == rows
    assert without_old_evaluations(rows, 1) == [{"step": 1, "eval_success": None}, rows[1]]
    assert rows[0]["eval_success"] == 0.9


# ---------- seeds


def test_a_run_that_changed_on_the_way_is_no_seed_of_one_that_did_not(tmp_path):
    folders = {}
    for seed, earlier in ((0, []), (1, []), (2, [Earlier(4, A)]), (3, [Earlier(4, A)])):
        folder = tmp_path / f"run_s{seed}"
        save_config(replace(B, seed=seed), {}, folder, earlier)
        folders[str(seed)] = str(folder / "policy")
    seeds, notes = pool_seeds(folders)
    assert seeds == [["0", "1"], ["2", "3"]]
    assert notes == [
        "2 is not another seed of 0: they differ in the settings before a restart changed them"
    ]
