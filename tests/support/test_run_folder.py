"""Tests of support/run_folder.py and utils/files.py: settings, run folders, crash-safe writes."""

from configurator import Config, UserError, load_config

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.run_folder import check_out_dir, load_saved, save_config
from tools.sft_config import SftConfig
from utils.files import read_rows, write_atomically, write_rows

ROOT = Path(__file__).resolve().parents[2]


# ---------- settings


def test_save_and_load_again(tmp_path):
    shipped = str(ROOT / "config/bandit_grpo.py")
    config, _, sources = load_config([shipped, "--seed=5", "--kl_coef=0.25"])
    path = save_config(config, sources, tmp_path / "run")
    assert load_saved(path) == load_saved(tmp_path / "run") == config
    record = json.loads(path.read_text())
    assert set(record) == {"config", "sources", "git_commit", "launch"}
    assert record["sources"]["kl_coef"] == "command line" and record["launch"] == sys.argv


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"config": {"sead": 1}}', "unknown key 'sead' from .*config.json: did you mean seed"),
        ('{"config": {"group_size": 0}}', "group_size must be 1 or more, got 0"),
        ("{", "config.json must be JSON, got '{'"),
        (
            "{}",
            "config.json does not have the expected content: config must be a JSON object",
        ),
    ],
)
def test_saved_settings_with_mistakes(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_saved(path)


def test_settings_that_a_file_lacks_have_their_defaults(tmp_path):
    with pytest.raises(ValueError, match="nothing does not exist; expected the folder of a run"):
        load_saved(tmp_path / "nothing")
    path = tmp_path / "config.json"
    path.write_text('{"config": {"seed": 3}}')
    assert load_saved(path) == Config(seed=3)
    path.write_text('{"config": {"seed": 3, "num_samples": 64}}')  # num_samples was once a setting
    assert load_saved(path) == Config(seed=3)
    path.write_text('{"config": {"sequence": "turn"}}')  # the former name of `segment`
    assert load_saved(path) == Config(segment="turn")


def test_a_run_continues_with_its_settings_only(tmp_path):
    config = Config(out_dir=str(tmp_path))
    check_out_dir(config)
    save_config(config, {}, tmp_path)
    check_out_dir(replace(config, num_iterations=7, grace_s=5.0))
    other = replace(config, gamma=0.5, seed=3)
    sentence = (
        f"out_dir={str(tmp_path)!r} holds a run with other settings "
        "(seed was 0 and is now 3, gamma was 1.0 and is now 0.5); give another --out_dir"
    )
    with pytest.raises(ValueError) as error:
        check_out_dir(other)
    assert str(error.value) == sentence
    with pytest.raises(ValueError) as error:
        check_out_dir(other, flag="--take_config=True")
    assert (
        str(error.value) == f"{sentence}, or --take_config=True to continue with the new settings"
    )
    check_out_dir(other, accept_changes=True)


def test_train_and_tools_sft_refuse_each_others_folders(tmp_path):
    trained = Config(out_dir=str(tmp_path / "rl"))
    imitated = SftConfig(out_dir=str(tmp_path / "sft"), sft_steps=3)
    for config in (trained, imitated):
        save_config(config, {}, config.out_dir)
        check_out_dir(config)
    assert load_saved(imitated.out_dir, SftConfig) == imitated
    assert load_saved(imitated.out_dir) == replace(trained, out_dir=imitated.out_dir)
    for config, owner in ((trained, "supervised learning"), (imitated, "train.py")):
        other = imitated.out_dir if config is trained else trained.out_dir
        with pytest.raises(UserError) as error:
            check_out_dir(replace(config, out_dir=other), accept_changes=True)
        assert str(error.value) == (
            f"out_dir={other!r} holds a run of {owner}; give another --out_dir"
        )
    with pytest.raises(UserError, match="other settings .sft_steps was 3 and is now 4"):
        check_out_dir(replace(imitated, sft_steps=4))


def test_a_folder_with_other_files_is_refused(tmp_path):
    config = Config(out_dir=str(tmp_path))
    for name in (
        "lock",
        "config.json.0123456789abcdef.partial",
    ):
        (tmp_path / name).write_text("")
    check_out_dir(config)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError) as error:
        check_out_dir(config, accept_changes=True)
    assert str(error.value) == (
        f"out_dir={str(tmp_path)!r} is not empty and holds no run; give another --out_dir"
    )


# ---------- files


def test_a_file_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_atomically(path, "old")

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError) as error:
        write_atomically(path, "new")
    assert str(error.value) == f"{path} could not be written ([Errno 28] No space left on device)"
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_rows_end_at_a_step_and_leave_out_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path) == []
    rows = [{"step": 1, "x": 0.5}, {"step": 2, "x": None}, {"name": "no step"}]
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert read_rows(path, 1) == [rows[0], rows[2]]
    with path.open("a") as file:
        file.write('{"step": 3, "x"')
    assert read_rows(path) == rows


def test_a_file_may_have_the_longest_name(tmp_path):
    path = tmp_path / ("x" * 255)
    write_atomically(path, "text")
    assert path.read_text() == "text"


def test_a_run_of_changed_code_says_how_to_restore_it(tmp_path):
    """The present code may not know a value in the run's settings, such as a user's estimator."""
    (tmp_path / "config.json").write_text('{"config": {"estimator": "mine"}}')
    with pytest.raises(UserError, match="estimator must be one of .*, got 'mine'$"):
        load_saved(tmp_path)
    (tmp_path / "code.diff").write_text("diff")
    with pytest.raises(UserError, match=f"got 'mine'; .* git apply {tmp_path}/code.diff$"):
        load_saved(tmp_path)
