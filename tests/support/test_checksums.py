"""Tests of the detection of damage to logs, models and the best policy."""

from configurator import UserError

import hashlib
import json
import os

import pytest
from shared_fixtures import small_config
from test_checkpoint import flip_bit, save_steps

import parallel
from support.checkpoint import Saver
from support.run import check_logs, find_best
from utils.checksums import changed_logs, find_damage, write_checksums
from utils.files import write_rows
from utils.model_folder import check_folder


@pytest.fixture(autouse=True, scope="module")
def one_process():
    parallel.init_distributed(small_config())


@pytest.fixture
def saved(tmp_path):
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        write_rows(tmp_path / name, [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.25}])
    save_steps(tmp_path, 2)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 3, "reward": 0.0}\n')
    return tmp_path / "checkpoint-000002"


# ---------- logs


def test_a_checkpoint_holds_the_checksums_of_the_logs_so_far(saved, tmp_path):
    content = b'{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.25}\n'
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    logs = json.loads((saved / "logs.json").read_text())
    assert logs == {"metrics.jsonl": record, "trajectories.jsonl": record}
    assert "logs.json" in json.loads((saved / "manifest.json").read_text())
    assert changed_logs(tmp_path, saved) == [] and check_logs(tmp_path, saved) == ""


def test_the_checksums_of_a_second_save_go_on_from_the_first(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with Saver(tmp_path, 9) as saver:
        saver.save({"policy": {}}, {"step": 1})
        saver.wait()
        path.write_text('{"step": 1}\n{"step": 2}\n')
        saver.save({"policy": {}}, {"step": 2})
    for step in (1, 2):
        assert changed_logs(tmp_path, tmp_path / f"checkpoint-00000{step}") == []


@pytest.mark.parametrize("damage", ["changed", "truncated", "zeroed", "missing"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "trajectories.jsonl"])
def test_a_damaged_log_is_found(saved, tmp_path, name, damage):
    path = tmp_path / name
    if damage == "changed":  # the line is still valid JSON
        path.write_text(path.read_text().replace("0.25", "0.75"))
    elif damage == "truncated":
        os.truncate(path, 30)
    elif damage == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    else:
        path.unlink()
    assert changed_logs(tmp_path, saved) == [name]
    if name == "trajectories.jsonl":
        assert check_logs(tmp_path, saved) == (
            f"{path} is not what the run wrote up to iteration 2: trajectories are missing or "
            "changed"
        )
        return
    with pytest.raises(UserError) as error:
        check_logs(tmp_path, saved)
    assert str(error.value) == (
        f"{path} was changed: its rows up to iteration 2 are not those that the run wrote; "
        "restore the file, or give another --out_dir"
    )


def test_a_checkpoint_without_checksums_of_logs_is_accepted(saved, tmp_path):
    (saved / "logs.json").unlink()
    (tmp_path / "trajectories.jsonl").unlink()
    assert changed_logs(tmp_path, saved) == []
    (saved / "logs.json").write_text('{"../x": {"bytes": 1, "sha256": ""}}')
    with pytest.raises(UserError, match="may name only metrics.jsonl and trajectories.jsonl"):
        changed_logs(tmp_path, saved)


# ---------- models


def test_a_damaged_model_is_found(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(100))
    assert find_damage(tmp_path) == ""
    write_checksums(tmp_path, "checksums.json")
    (tmp_path / "README.md").write_text("added")
    assert find_damage(tmp_path) == ""
    flip_bit(weights)
    assert find_damage(tmp_path) == "missing or changed: model.safetensors"
    with pytest.raises(UserError) as error:
        check_folder(tmp_path)
    assert str(error.value) == (
        f"model={str(tmp_path)!r} is damaged (missing or changed: model.safetensors); restore the "
        "folder, or remove its checksums.json if you changed the model yourself"
    )
    weights.unlink()
    os.mkfifo(weights)  # reading a named pipe would block
    assert find_damage(tmp_path) == "missing or changed: model.safetensors"


def test_the_best_policy_has_the_success_of_its_iteration(tmp_path):
    successes = [0.5, None, 0.75, 0.25]
    rows = [{"step": i, "eval_success": success} for i, success in enumerate(successes, 1)]
    assert find_best(tmp_path, [{"step": 1, "eval_success": None}]) == (-1.0, "")
    best = tmp_path / "best"
    lost = "): from now on it holds the best policy after iteration 4"
    assert find_best(tmp_path, rows) == (
        -1.0,
        f"{best} was lost (there is no such folder{lost}",
    )
    best.mkdir()
    # older versions of the code saved best/ without iteration.json
    assert find_best(tmp_path, rows) == (0.75, "")
    for step, success in ((3, 0.75), (4, 0.25), (5, 0.75)):
        # best/ holds the policy of step 4 only if the better policy of step 3 was lost. If best/
        # holds the policy of step 5, the run crashed between step 5 and the next checkpoint, so the
        # row of step 5 is lost. The success of step 5 is unknown then, so find_best() returns the
        # highest known success.
        (best / "iteration.json").write_text(json.dumps({"step": step}))
        assert find_best(tmp_path, rows) == (success, "")
    write_checksums(best, "checksums.json")
    (best / "iteration.json").write_text('{"step": 1}')
    success, sentence = find_best(tmp_path, rows)
    assert success == -1 and sentence.startswith(f"{best} was lost (missing or changed: iteration.")
