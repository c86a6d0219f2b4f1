"""Tests of pretrain.py, board_probes.py and the scores of drills.py."""

from configurator import UserError, load_config

import json
import shutil
import subprocess
import sys
import time

import pytest
import torch
from runs import read_lines
from shared_fixtures import small_config

from model import load_model
from rollout import Trajectory, Turn
from studies.base_model import board_probes, corpus, drills, pretrain, tiny_model
from studies.base_model.drills import DrillRecord
from support.checkpoint import Saver
from support.run_lock import lock_folder

pytestmark = pytest.mark.slow


def test_the_probed_environments_exist():
    for files in board_probes.BASE_PROBES:
        config, _, _ = load_config([f"{board_probes.CONFIGS}/{file}.py" for file in files.split()])
        assert config.env.split(":")[0] in ("frozenlake", "sokoban", "bandit")


def weights_of(folder):
    return list(load_model(str(folder))[0].parameters())


PRETRAINING = [
    corpus.PRETRAINING,
    "--model=2x64",
    "--sft_steps=6",
    "--sft_batch_size=2",
    "--micro_batch_tokens=1024",
    "--save_every=2",
    "--eval_every=3",
]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "base_report", lambda *_: {})
        pretrain.main([*PRETRAINING, f"--out_dir={folder}"])
    return folder


def test_pretraining_continues_as_if_it_had_not_stopped(whole_run, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "base_report", lambda *_: {})

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        # The run calls `stop` after step 3. The last checkpoint is that of step 2.
        patch.setattr(pretrain, "base_report", stop)
        pretrain.main([*PRETRAINING, f"--out_dir={tmp_path}/cut"])
    assert [path.name for path in (tmp_path / "cut").glob("checkpoint*")] == ["checkpoint-000002"]
    message = "holds a run with other settings .seed was 0 and is now 1"
    with pytest.raises(ValueError, match=message):
        pretrain.main([*PRETRAINING, "--seed=1", f"--out_dir={tmp_path}/cut"])
    pretrain.main([*PRETRAINING, f"--out_dir={tmp_path}/cut"])
    expected, found = weights_of(whole_run / "model"), weights_of(tmp_path / "cut/model")
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    whole = read_lines(whole_run / "curve.jsonl")
    cut = read_lines(tmp_path / "cut/curve.jsonl")
    assert [row["step"] for row in whole] == [row["step"] for row in cut] == [3, 6]
    assert whole[0]["loss"] > whole[1]["loss"]
    for row, other in zip(whole, cut, strict=True):
        assert (row["tokens"], row["loss"]) == (other["tokens"], other["loss"])


def test_no_model_is_written_during_a_checkpoint(tmp_path, monkeypatch):
    """After step 3 `export` must wait until the checkpoint of step 2 is written."""
    writing = []
    write = Saver._write

    def slow_write(*arguments):
        writing.append("checkpoint")
        time.sleep(1)
        write(*arguments)
        writing.pop()

    written = []

    def note(folder, *_):
        assert writing == []
        written.append(folder.name)

    monkeypatch.setattr(pretrain, "base_report", lambda *_: {})
    monkeypatch.setattr(Saver, "_write", slow_write)
    monkeypatch.setattr(pretrain, "export", note)
    pretrain.main([*PRETRAINING, f"--out_dir={tmp_path}/run"])
    assert written == ["model-3", "model-6", "model"]


def test_two_processes_train_like_one(whole_run, tmp_path):
    code = "from studies.base_model import pretrain; pretrain.base_report = lambda *_: {}; "
    code += "pretrain.run_main(pretrain.main)"
    flags = ["--standalone", "--no_python", "--nproc_per_node=2"]
    launch = [sys.executable, "-m", "torch.distributed.run", *flags]
    command = [*launch, sys.executable, "-c", code, *PRETRAINING, f"--out_dir={tmp_path}/two"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    one = read_totals(whole_run)
    two = read_totals(tmp_path / "two")
    assert one["tokens"] == two["tokens"]
    assert one["losses"] == pytest.approx(two["losses"], abs=1e-5)
    start = tiny_model.build_tiny(0, "2x64")[0].parameters()
    pairs = zip(weights_of(whole_run / "model"), weights_of(tmp_path / "two/model"), strict=True)
    for before, (weight, other) in zip(start, pairs, strict=True):
        assert (weight - before).abs().max() > 1e-3
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-4)


def read_totals(folder):
    state = (folder / "checkpoint-000006/state.json").read_text()
    return json.loads(state)["totals"]


def test_a_damaged_checkpoint_is_noticed(whole_run, tmp_path, monkeypatch, capsys):
    """The run continues from an earlier checkpoint, and ends with the weights of `whole_run`."""
    monkeypatch.setattr(pretrain, "base_report", lambda *_: {})
    shutil.copytree(whole_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    (file,) = (tmp_path / "run/checkpoint-000006/state").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    pretrain.main([*PRETRAINING, f"--out_dir={tmp_path}/run"])
    assert "checkpoint-000006 is damaged (wrong checksum of state/shard-" in capsys.readouterr().out
    expected, found = weights_of(whole_run / "model"), weights_of(tmp_path / "run/model")
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    for folder in (tmp_path / "run").glob("checkpoint*"):
        (folder / "state.json").write_text("{}")
    with pytest.raises(UserError, match="all checkpoints in .* are damaged; give another"):
        pretrain.main([*PRETRAINING, f"--out_dir={tmp_path}/run"])


def test_one_process_at_a_time(whole_run):
    with lock_folder(whole_run), pytest.raises(UserError, match="is in use by process"):
        pretrain.main([*PRETRAINING, f"--out_dir={whole_run}"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "nothing to do: sft_steps is 0; give studies/base_model/config/pretraining.py"),
        ([corpus.PRETRAINING, "--dtype=float16"], "computes in float32 or bfloat16, got dtype"),
        ([corpus.PRETRAINING, "--model=tiny"], "layers x width, .* such as 4x128, .* got 'tiny'"),
    ],
)
def test_what_pretraining_cannot_do_is_refused(arguments, words, tmp_path):
    with pytest.raises(UserError, match=words):
        pretrain.main([*arguments, f"--out_dir={tmp_path}/out"])
    assert not (tmp_path / "out/config.json").exists()


# ---------- probes of reading


def drill_turn(question, truth, answer):
    record = DrillRecord([], question=question, truth=truth, answer=answer)
    return Turn([], [], [], record=record)


def test_reading_is_scored_by_kind():
    player = "Player (1,1)."
    holes = "Holes (1,3) (2,3)."
    turns = [
        drill_turn("Where", f"{player} Goal (3,2). {holes}", f"{player} Goal (3,1). {holes}"),
        drill_turn("Where", "Player (1,1). Goal (3,2). Holes none.", "Player (1,1)"),
        drill_turn("Row 1", "wall you floor wall", "wall you wall wall"),
        drill_turn("Column 2", "wall box", ""),
        drill_turn("Up", "P_\n__", "P_\n__"),
    ]
    scores = drills.score_reading([Trajectory((0,), 0, turns)])
    assert scores == {
        "cell": 0.5,  # 3 of the 4 cells in Row 1 are right, and 0 of the 2 cells in Column 2
        "goal": 0.0,
        "holes": 0.5,
        "next_board": 1.0,
        "player": 1.0,
        "wall": 0.6667,  # both walls in Row 1 are right, but not the wall in Column 2
    }


def test_a_probe_of_reading_asks_about_heldout_boards(trained_model, chat):
    # probe_reading sets reward_density to "native", so "dense" has no effect.
    config = small_config(eval_size=3, observation="grid", reward_density="dense")
    scores = board_probes.probe_reading(trained_model, chat, config)
    assert set(scores) == {"cell", "goal", "holes", "next_board", "player"}
