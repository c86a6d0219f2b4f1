"""Tests of files that an attacker may prepare, such as links, pipes and bad content."""

from configurator import Config, UserError

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from shared_fixtures import small_config

import eval as evaluation
import parallel
from mixtures import specs_that_run_programs
from support import checkpoint
from support.records import write_jsonl, write_samples
from support.run import HISTORY_ROW, read_history
from support.run_folder import check_out_dir, load_saved, save_config
from support.run_lock import lock_folder
from tools import api_models, replay, view
from utils.checksums import sha256_of
from utils.files import (
    append_to,
    check_writable,
    read_text,
    remove_partial_files,
    replace_file,
    write_atomically,
    write_rows,
)
from utils.model_folder import check_folder
from worlds.code import swe

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("config/frozenlake_grpo.py", "config/models/tiny.py")
PLAIN = "cannot be written: it is a link or not a regular file; remove it, or give another path"


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "target"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    return path


# ---------- links


def append_a_line(path):
    with append_to(path) as file:
        file.write("line\n")


def write_bytes(path):
    with replace_file(path, "wb") as file:
        file.write(b"\0")


WRITERS = {
    "replace text": lambda path: write_atomically(path, "new"),
    "replace bytes": write_bytes,
    "replace rows": lambda path: write_rows(path, [{}]),
    "replace trajectories": lambda path: write_jsonl(path, {}),
    "append": append_a_line,
    "append trajectories": lambda path: write_jsonl(path, {}, mode="a"),
    "append samples": lambda path: write_samples(path, 1, [], 1, None),
    "check": check_writable,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "link to a device"])
def test_nothing_is_written_through_a_link(writer, kind, folder, target):
    path = folder / "scores.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/null")
    else:
        path.symlink_to(target if kind == "link" else folder / "new")
    with pytest.raises(UserError) as error:
        WRITERS[writer](path)
    assert str(error.value) == f"{path} {PLAIN}"
    assert target.read_text() == "precious"
    assert [entry.name for entry in folder.iterdir()] == ["scores.json"]


def test_a_hard_link_is_replaced_and_never_appended_to(folder, target):
    path = folder / "scores.json"
    os.link(target, path)
    with pytest.raises(UserError) as error:
        append_a_line(path)
    assert str(error.value) == f"{path} {PLAIN}"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_the_lock_is_no_link(kind, folder, target):
    path = folder / "lock"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(target)
    else:
        os.link(target, path)
    with pytest.raises(UserError) as error, lock_folder(folder):
        pass
    assert str(error.value) == f"{path} {PLAIN}"
    assert target.read_text() == "precious"


@pytest.mark.parametrize(
    "name", ["lock", "metrics.jsonl", "best", "tensorboard", "policy", "model/x"]
)
def test_a_run_refuses_a_folder_with_links(name, folder, target):
    (folder / "config.json").write_text('{"config": {}}')
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    with pytest.raises(UserError) as error:
        check_out_dir(Config(out_dir=str(folder)), accept_changes=True)
    target.unlink()
    with pytest.raises(UserError):
        check_out_dir(Config(out_dir=str(folder)), accept_changes=True)
    sentence = "is a symbolic link, and a run does not write through links; remove it"
    assert str(error.value) == f"{path} {sentence}"


def test_the_old_name_of_a_partial_file_is_not_used(folder, target):
    (folder / "config.json.partial").symlink_to(target)
    write_atomically(folder / "config.json", "new")
    assert target.read_text() == "precious"
    assert (folder / "config.json").read_text() == "new"
    remove_partial_files(folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert target.read_text() == "precious"


# ---------- folders that cannot be written


def test_a_folder_is_tried_before_the_work():
    with pytest.raises(UserError) as error:
        check_writable("/proc/scores.json")
    sentence = str(error.value)
    assert sentence.startswith("/proc/scores.json cannot be written ([Errno 2] ")


def test_a_check_leaves_nothing_and_changes_nothing(folder):
    path = folder / "scores.json"
    check_writable(path)
    assert list(folder.iterdir()) == []
    path.write_text("old")
    check_writable(str(path))
    assert path.read_text() == "old"
    with pytest.raises(UserError, match="cannot be written: it is a folder"):
        check_writable(folder)
    with pytest.raises(UserError, match="cannot be written: there is no folder"):
        check_writable(folder / "none" / "scores.json")


@pytest.mark.parametrize(
    "name, kind",
    [
        ("scores.md", "folder"),
        ("eval_final.jsonl", "folder"),
        ("metrics.jsonl", "folder"),
        ("trajectories.jsonl", "pipe"),
        ("checkpoint-000003", "file"),
        ("best", "file"),
        ("old", "pipe"),
        ("partial", "file"),
        ("model", "file"),
    ],
)
def test_a_run_refuses_entries_of_another_kind(name, kind, folder):
    save_config(Config(), {}, folder)
    path = folder / name
    if kind == "folder":
        path.mkdir()
        wanted = "plain file"
    else:
        os.mkfifo(path) if kind == "pipe" else path.write_text("")
        wanted = "plain file" if path.suffix else "folder"
    with pytest.raises(UserError) as error:
        check_out_dir(Config(out_dir=str(folder)), accept_changes=True)
    sentence = f"must be a {wanted}, because a run writes to it; remove it"
    assert str(error.value) == f"{path} {sentence}"


def test_what_a_run_does_not_open_is_left_alone(folder, target):
    save_config(Config(), {}, folder)
    for name in ("wandb/latest-run", "wandb/debug.log", "newest", "notes.jsonl", "best/notes"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
    os.mkfifo(folder / "pipe")
    (folder / "a.partial").mkdir()
    (folder / "b.partial").write_text("")
    check_out_dir(Config(out_dir=str(folder)), accept_changes=True)
    remove_partial_files(folder)
    assert (folder / "a.partial").is_dir() and not (folder / "b.partial").exists()


LONG = 300 * "a"


def test_a_name_that_is_too_long_is_one_sentence(folder):
    with pytest.raises(UserError) as error:
        check_writable(folder / LONG)
    assert str(error.value).startswith(f"{folder / LONG} cannot be written ([Errno 36] File name t")
    with pytest.raises(UserError, match="cannot be a folder .*File name too long"):
        check_out_dir(Config(out_dir=str(folder / LONG)))
    with pytest.raises(UserError, match="could not be written .*File name too long"):
        write_atomically(folder / LONG, "new")


@pytest.mark.parametrize(
    "module, arguments",
    [
        ("eval", [LONG]),
        ("eval", [f"--model={LONG}", *SMALL, "--player=random", f"--json={LONG}"]),
        ("train", [f"--out_dir={LONG}", *SMALL]),
        ("tools.compare", [LONG]),
        ("tools.view", [LONG]),
        ("tools.sft", [*SMALL, "--sft_steps=1", f"--export={LONG}"]),
    ],
)
@pytest.mark.slow
def test_commands_answer_a_long_name_in_one_sentence(module, arguments, folder):
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "too long" in done.stderr


def test_a_pipe_is_not_read(folder):
    for name in ("config.json", "rows.jsonl"):
        os.mkfifo(folder / name)
    with pytest.raises(UserError, match="config.json does not exist; expected the folder of a run"):
        load_saved(folder)
    with pytest.raises(UserError) as error:
        read_text(folder / "rows.jsonl")
    assert str(error.value) == f"{folder}/rows.jsonl cannot be read (it is not a regular file)"
    with pytest.raises(UserError, match="swe needs rows=PATH .* is not a regular file"):
        swe.read_rows(folder / "rows.jsonl")
    message = "config.json is not a regular file, and reading it could block"
    with pytest.raises(UserError, match=message):
        check_folder(folder)


def test_a_manifest_that_is_a_pipe_is_damage(folder, capsys):
    path = checkpoint_with(folder, '{"format": 1, "step": 3}')
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(UserError, match="all checkpoints in .* are damaged"):
        checkpoint.newest(folder)
    assert "manifest.json cannot be read (it is not a regular file)" in capsys.readouterr().out


# ---------- the lock


def test_a_lock_that_was_deleted_by_hand_still_holds(folder):
    with lock_folder(folder):
        (folder / "lock").unlink()
        (folder / "config.json").write_text("{}")
        with pytest.raises(UserError) as error, lock_folder(folder):
            pass
        assert str(error.value) == (
            f"out_dir={str(folder)!r} is in use by a process whose lock file was deleted; "
            "end that process, or give another --out_dir"
        )
    with lock_folder(folder):
        pass


# ---------- programs that the config.json of a run names

PROGRAMS = [
    "{folder}/evil.py:X",
    "swe:rows={folder}/rows.jsonl,sandbox=none",
    "swe:rows={folder}/rows.jsonl",
    "textworld",
    "alfworld:task=place",
    "bandit + 2*swe:rows={folder}/rows.jsonl",
    "bandit @5 > textworld:q=4",
    "swe:rows={folder}/rows.jsonl@5>bandit",
    "frozenlake:size=4 + {folder}/evil.py:X",
    "'{folder}/evil.py:X'",
    "rg:simple_integration,settings=max_degree=2;symbols=['exit']",
    "rg:simple_integration,settings=operators=exit",
    'gem:game:Sudoku-v0-easy,settings="words={{1,2}}"',
]
COMMANDS = {
    "eval": lambda run: evaluation.main([run, "--player=greedy"]),
    "replay": lambda run: replay.main([run, "--record=none"]),
    "API": lambda run: api_models.main([run, "--api_base=http://[::1]:9", "--api_model=x"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("key", ["env", "eval_env"])
@pytest.mark.parametrize("spec", PROGRAMS)
def test_no_run_folder_names_a_program(command, key, spec, folder):
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    value = spec.format(folder=folder)
    save_config(small_config(**{key: value}), {}, folder / "run")
    (folder / "run" / "policy").mkdir()
    with pytest.raises(UserError) as error:
        COMMANDS[command](str(folder / "run"))
    sentence = str(error.value)
    assert sentence.startswith(f"{folder}/run names ")
    assert ", which can run programs or read files; if you trust it, add " in sentence
    assert sentence.endswith(f"--{key}={shlex.quote(value)}")


def test_a_run_folder_may_give_a_hub_numbers():
    spec = 'rg:leg_counting,settings="max_animals=3;weights=[1,2.5];strict=True;seed=None"'
    assert specs_that_run_programs(spec) == []


def test_the_command_line_may_name_a_program(folder):
    (folder / "evil.py").write_text("raise ValueError('it ran')")
    env = f"{folder}/evil.py:X"
    save_config(small_config(env=env), {}, folder / "run")
    with pytest.raises(UserError, match="it ran"):
        replay.main([str(folder / "run"), f"--env={env}", "--record=none"])


# ---------- damaged JSON in the folder of a run

KIND = "does not have the expected content: "


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "must be JSON, got ''"),
        ("[" * 5000, f"must be JSON, got '{'[' * 80}'"),
        ('{"config": 1' + "0" * 5000 + "}", "must be JSON, got "),
        ("[]", f"{KIND}it must be a JSON object, got '[]'"),
        ("null", f"{KIND}it must be a JSON object, got 'None'"),
        ('{"config": []}', f"{KIND}config must be a JSON object, got '[]'"),
        ('{"config": [["seed", 1]]}', f"{KIND}config must be a JSON object, got "),
    ],
)
def test_a_config_of_another_kind(text, sentence, folder):
    path = folder / "config.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_saved(folder)
    assert str(error.value).startswith(f"{path} {sentence}")
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="config.json cannot be read .'utf-8' codec"):
        load_saved(folder)


ROW = {key: None for key in HISTORY_ROW}


@pytest.mark.parametrize(
    "change, sentence",
    [
        ([], f":2 {KIND}it must be a JSON object, got '[]'"),
        ({}, f":2 {KIND}step must be a whole number, 0 or more, but it is missing"),
        (ROW | {"step": "2"}, f":2 {KIND}step must be a whole number, 0 or more, got '2'"),
        (
            ROW | {"step": 2, "entropy": []},
            f":2 {KIND}entropy must be a finite number, not above 1e300, got '[]'",
        ),
        (
            ROW | {"step": 2, "success": True},
            f":2 {KIND}success must be a finite number, not above 1e300, got 'True'",
        ),
        (
            ROW | {"step": 2, "grad_norm": 1e999},
            f":2 {KIND}grad_norm must be a finite number, not above 1e300, got 'inf'",
        ),
        (
            ROW | {"step": 1},
            " must have a row for each iteration up to 3, the iteration of the newest checkpoint; ",
        ),
        (
            None,
            " must have a row for each iteration up to 3, the iteration of the newest checkpoint; "
            "got 2 rows: ",
        ),
    ],
)
def test_metrics_of_another_kind(change, sentence, folder):
    rows = [ROW | {"step": 1}, change, ROW | {"step": 3}, ROW | {"step": 4}]
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))
    with pytest.raises(UserError) as error:
        read_history(path, 3)
    assert str(error.value).startswith(f"{path}{sentence}")


def test_shortened_metrics_are_noticed(folder):
    path = folder / "metrics.jsonl"
    rows = [ROW | {"step": step} for step in (1, 2, 3, 4)]
    write_rows(path, rows)
    assert read_history(path, 3) == rows[:3]
    assert read_history(path, 0) == []
    sentence = (
        f"{path} must have a row for each iteration up to 3, the iteration of the newest "
        "checkpoint; got {} rows: restore the file, or give another --out_dir"
    )
    write_rows(path, rows[:2])
    with pytest.raises(UserError) as error:
        read_history(path, 3)
    assert str(error.value) == sentence.format(2)
    path.unlink()
    with pytest.raises(UserError) as error:
        read_history(path, 3)
    assert str(error.value) == sentence.format(0)


def checkpoint_with(folder, state, manifest=None):
    path = folder / "checkpoint-000003"
    path.mkdir()
    (path / "state.json").write_text(state)
    if manifest is None:
        manifest = json.dumps({"state.json": sha256_of(path / "state.json")})
    (path / "manifest.json").write_text(manifest)
    return path


@pytest.mark.parametrize(
    "state, sentence",
    [
        ("[]", f"state.json {KIND}it must be a JSON object, got '[]'"),
        ('{"step": 3}', f"state.json {KIND}format must be a whole number, 0 or more, but it is"),
        ('{"format": 1}', f"state.json {KIND}step must be a whole number, 0 or more, but it is"),
        ('{"format": 1, "step": "3"}', f"state.json {KIND}step must be a whole number, 0 or more,"),
        ('{"format": 1, "step": 4}', "state.json has step 4, which is not that of its folder"),
    ],
)
def test_the_state_of_a_checkpoint_of_another_kind(state, sentence, folder):
    path = checkpoint_with(folder, state)
    with pytest.raises(UserError) as error:
        checkpoint.newest(folder)
    assert str(error.value).startswith(f"{path}/{sentence}")


@pytest.mark.parametrize("manifest", ["[]", '{"state.json": 1}', "{}", "[" * 5000, '{"../x": "a"}'])
def test_the_manifest_of_a_checkpoint_of_another_kind(manifest, folder, capsys):
    checkpoint_with(folder, '{"format": 1, "step": 3}', manifest)
    (folder / "checkpoint-abcdef").mkdir()
    (folder / "checkpoint-000009").write_text("")
    with pytest.raises(UserError, match="all checkpoints in .* are damaged"):
        checkpoint.newest(folder)
    assert "checkpoint-000003 is damaged (" in capsys.readouterr().out


RECORD = {
    "env": "bandit",
    "seed": [0],
    "member": 0,
    "status": "success",
    "success": True,
    "score": 1.0,
    "system": "",
    "turns": [],
}


TURN = {
    "observation": "",
    "response": "",
    "actions": [],
    "format_ok": True,
    "reward": 0,
    "tokens": [],
    "surprise": [],
}


@pytest.mark.parametrize(
    "record, sentence",
    [
        ({}, "env must be a text, but it is missing"),
        ([], "it must be a JSON object, got '[]'"),
        (RECORD | {"turns": {}}, "turns must be a list, got '{}'"),
        (RECORD | {"turns": [{}]}, "turns[0].observation must be a text, but it is missing"),
        (
            RECORD | {"turns": [TURN | {"surprise": [1e308]}]},
            "turns[0].surprise[0] must be a finite number, not above 1e300, got '1e+308'",
        ),
        (RECORD | {"score": None}, "score must be a finite number, not above 1e300, got 'None'"),
        (RECORD | {"success": 1}, "success must be true or false, got '1'"),
        (
            RECORD | {"turns": [TURN | {"closing": None}]},
            "turns[0].closing must be a text, got 'None'",
        ),
    ],
)
def test_trajectories_of_another_kind(record, sentence, folder):
    (folder / "config.json").write_text('{"config": {}}')
    path = folder / "eval_start.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError) as error:
        view.main([str(folder)])
    assert str(error.value) == f"{path}:1 {KIND}{sentence}"
    assert not (folder / "view.html").exists()


@pytest.mark.parametrize(
    "scores, sentence",
    [
        ("[]", f"{KIND}it must be a JSON object, got '[]'"),
        ('{"bandit": 1}', f"{KIND}bandit must be a JSON object, got '1'"),
        (
            '{"bandit": {"start": [1.5]}}',
            f"{KIND}bandit.start[0] must be a whole number, 0 or more,",
        ),
        ('{"bandit": {"greedy": [1]}}', "must hold for each environment the successes"),
        ('{"bandit": {"start": []}}', "must hold for each environment the successes"),
    ],
)
def test_scores_of_another_kind(scores, sentence, folder):
    (folder / "config.json").write_text('{"config": {}}')
    (folder / "scores.json").write_text(scores)
    with pytest.raises(UserError) as error:
        view.main([str(folder), str(folder)])
    assert str(error.value).startswith(f"{folder}/scores.json {sentence}")
