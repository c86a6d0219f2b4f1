"""Tests of support/checkpoint.py."""

from configurator import UserError

import json
import math
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from learners import make_learner
from safetensors.torch import load_file
from shared_fixtures import small_config

import parallel
from support import checkpoint
from support.checkpoint import Saver, make_buffers, newest, to_cpu
from support.run import check_lost_checkpoints
from support.run_folder import DISK_ADVICE
from utils.checksums import find_corruption, sha256_of


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


def small_state():
    return {"policy": {"weights": {"w": torch.arange(3.0)}}}


def save_steps(folder, *steps, keep=9):
    with Saver(folder, keep) as saver:
        for step in steps:
            saver.save(small_state(), {"step": step, "bad_steps": 0})


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# ---------- what is written and kept


def test_the_files_of_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_steps(tmp_path, 3)
    folder = tmp_path / "checkpoint-000003"
    assert names_in(folder) == ["config.json", "manifest.json", "state", "state.json"]
    assert names_in(folder / "state") == ["shard-00001.safetensors"]
    state = json.loads((folder / "state.json").read_text())
    assert state == {"format": 1, "step": 3, "bad_steps": 0}
    assert names_in(tmp_path) == ["checkpoint-000003", "config.json"]


def test_later_checkpoints_are_removed(tmp_path):
    save_steps(tmp_path, 1, 2, 7)
    assert len(names_in(tmp_path)) == 3
    save_steps(tmp_path, 3, keep=1)
    assert names_in(tmp_path) == ["checkpoint-000003"]


# ---------- damage


@pytest.mark.parametrize(
    "fault, problem",
    [
        ("truncated", r"wrong checksum of state/.+\.safetensors"),
        ("flipped", r"wrong checksum of state/.+"),
        ("counts", r"wrong checksum of state.json"),
        ("missing", r"manifest.json does not list its files: state/.+\.safetensors"),
        ("manifest", r".+/manifest.json must be JSON, got .+"),
    ],
)
def test_damage_is_found_and_named(tmp_path, fault, problem):
    save_steps(tmp_path, 3)
    folder = tmp_path / "checkpoint-000003"
    assert find_corruption(folder) == ""
    (weights,) = (folder / "state").iterdir()
    if fault == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif fault == "flipped":
        flip_bit(weights)
    elif fault == "counts":
        flip_bit(folder / "state.json")
    elif fault == "missing":
        weights.unlink()
    else:
        os.truncate(folder / "manifest.json", 40)
    assert re.fullmatch(problem, find_corruption(folder))


def test_a_damaged_checkpoint_is_skipped(tmp_path, capsys):
    save_steps(tmp_path, 2, 3)
    last = tmp_path / "checkpoint-000003"
    (weights,) = (last / "state").iterdir()
    flip_bit(weights)
    assert newest(tmp_path) == tmp_path / "checkpoint-000002"
    assert capsys.readouterr().out.endswith(
        f"{last} is damaged (wrong checksum of state/{weights.name}); "
        "trying the checkpoint before it\n"
    )


def test_no_undamaged_checkpoint(tmp_path):
    assert newest(tmp_path / "nothing") is None
    save_steps(tmp_path, 2, 3)
    for folder in tmp_path.iterdir():
        flip_bit(folder / "state.json")
    with pytest.raises(ValueError) as error:
        newest(tmp_path)
    assert str(error.value) == (
        f"all checkpoints in {tmp_path} are damaged; give another --out_dir, or empty this one"
    )


def test_another_format_is_refused(tmp_path):
    save_steps(tmp_path, 3)
    folder = tmp_path / "checkpoint-000009"
    folder.mkdir()
    (folder / "state.json").write_text('{"format": 2}')
    checksum = sha256_of(folder / "state.json")
    (folder / "manifest.json").write_text(json.dumps({"state.json": checksum}))
    with pytest.raises(ValueError) as error:
        newest(tmp_path)
    assert str(error.value) == f"{folder} has format 2, but this version reads 1"


# ---------- saving in the background


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    state = small_state()
    disk_is_fast = threading.Event()
    fsync_path = checkpoint.fsync_path

    def slow_disk(path):
        assert disk_is_fast.wait(60)
        fsync_path(path)

    monkeypatch.setattr(checkpoint, "fsync_path", slow_disk)
    with Saver(tmp_path, 2) as saver:
        saver.save(state, {"step": 1, "bad_steps": 0})
        state["policy"]["weights"]["w"] += 1
        assert newest(tmp_path) is None and not saver.writing.done()
        disk_is_fast.set()
    (file,) = (newest(tmp_path) / "state").iterdir()
    assert load_file(file)["policy.weights.w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.slow
def test_on_a_gpu_the_buffers_of_a_save_are_written_again(trained_folder, tmp_path, monkeypatch):
    synchronized = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronized.append(1))
    learner = make_learner(trained_folder)
    name = "model.model.norm.weight"

    def weight_of(buffers):
        return buffers["policy"]["weights"][name].to_local()

    with Saver(tmp_path, 9) as saver:
        checkpoint.save_learner(learner, saver)
        first = saver.buffers
        address = weight_of(first).data_ptr()
        weight = dict(learner.policy.named_parameters())[name].to_local()
        with torch.no_grad():
            weight += 1
        assert not torch.equal(weight_of(first), weight)
        learner.step = 1
        checkpoint.save_learner(learner, saver)
        assert weight_of(saver.buffers).data_ptr() == address
        with torch.no_grad():
            weight += 1
    assert len(synchronized) == 2
    saved = []
    for step in (0, 1):
        (file,) = (tmp_path / f"checkpoint-00000{step}" / "state").iterdir()
        saved.append(load_file(file)[f"policy.weights.{name}"])
    assert torch.equal(saved[0] + 1, saved[1]) and torch.equal(saved[1] + 1, weight)


def test_the_buffers_of_a_save_take_no_more_memory_than_the_state():
    """When torch allocates pinned memory, it rounds the size of each tensor up to a power of two.
    The tensor `odd` of 4,100 bytes would then take 8,192 bytes."""
    tensors = {
        "step": torch.tensor(3.0),
        "half": torch.arange(5, dtype=torch.bfloat16),
        "odd": torch.arange(1025.0),
        "empty": torch.zeros(0, 4),
        "matrix": torch.arange(6.0).view(2, 3),
    }
    state = {"policy": {"weights": tensors}}
    memory, buffers = make_buffers(state)
    assert memory.nbytes == 64 + 64 + 4160 + 0 + 64  # sizes rounded up to multiples of 64 bytes
    copy = to_cpu(state, buffers)
    first, last = memory.data_ptr(), memory.data_ptr() + memory.nbytes
    for name, tensor in tensors.items():
        found = copy["policy"]["weights"][name]
        assert torch.equal(found, tensor) and found.dtype == tensor.dtype
        assert not tensor.numel() or first <= found.data_ptr() < last


def test_the_buffer_of_a_gpu_is_pinned_as_it_is(tmp_path, monkeypatch):
    calls = []

    class Runtime:
        def cudaHostRegister(self, *arguments):
            calls.append(("register", *arguments))

        def cudaHostUnregister(self, *arguments):
            calls.append(("unregister", *arguments))

    class TensorOfGPU(torch.Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    state = {"w": torch.arange(40.0).as_subclass(TensorOfGPU)}
    memory, _ = make_buffers(state)
    assert calls == [("register", memory.data_ptr(), 192, 1)]  # 160 bytes, rounded up to 3 * 64
    with Saver(tmp_path, 9) as saver:
        saver.memory = memory
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    assert calls[1:] == [("unregister", memory.data_ptr())]


def test_a_cpu_run_keeps_no_buffers(tmp_path):
    with Saver(tmp_path, 9) as saver:
        saver.save(small_state(), {"step": 1, "bad_steps": 0})
        assert saver.buffers is None


def test_a_save_that_failed_is_reported_by_the_next(tmp_path, monkeypatch):
    save_steps(tmp_path, 1)

    def full_disk(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "fsync_path", full_disk)
    with Saver(tmp_path, 2) as saver:
        saver.save(small_state(), {"step": 2, "bad_steps": 0})
        with pytest.raises(ValueError) as error:
            saver.save(small_state(), {"step": 3, "bad_steps": 0})
    assert str(error.value) == (
        f"{tmp_path}/checkpoint-000002 could not be written "
        f"([Errno 28] No space left on device); {DISK_ADVICE}"
    )
    assert names_in(tmp_path) == ["checkpoint-000001"]


def test_an_older_folder_stays_until_the_new_one_is_complete(tmp_path):
    final = tmp_path / "best"
    for content in ("old", "new"):
        with checkpoint.atomic_folder(final) as partial:
            (partial / "weights").write_text(content)
    assert (final / "weights").read_text() == "new"
    with pytest.raises(ValueError, match="best could not be written"):
        with checkpoint.atomic_folder(final) as partial:
            (partial / "weights").write_text("half")
            raise OSError(28, "No space left on device")
    assert (final / "weights").read_text() == "new" and names_in(tmp_path) == ["best"]


def test_a_kill_while_old_checkpoints_are_removed_leaves_no_half_one(tmp_path, monkeypatch):
    save_steps(tmp_path, 1, 2)
    seen = []
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **_: seen.append(path.name))
    save_steps(tmp_path, 3, keep=2)
    assert set(seen) == {"partial", "old"}  # a checkpoint is renamed before its files are deleted
    monkeypatch.undo()
    assert names_in(tmp_path) == ["checkpoint-000002", "checkpoint-000003", "old"]


def test_what_a_crash_left_is_removed(tmp_path):
    for name in ("partial", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    save_steps(tmp_path, 1)
    assert names_in(tmp_path) == ["checkpoint-000001"]
    assert "file" not in names_in(tmp_path / "checkpoint-000001")


# ---------- state


def test_weights_that_are_not_finite_are_refused(tmp_path):
    module = torch.nn.Linear(2, 2)
    modules = {"policy": module}
    optimizers = {"policy": torch.optim.AdamW(module.parameters())}
    for step, value in ((1, 0.5), (2, math.nan)):
        with torch.no_grad():
            module.bias[1] = value
        with Saver(tmp_path, 2) as saver:
            state = checkpoint.training_state(modules, optimizers)
            saver.save(state, {"step": step, "bad_steps": 0})
    checkpoint.load(tmp_path / "checkpoint-000001", modules, optimizers)
    assert module.bias[1] == 0.5
    with pytest.raises(UserError) as error:
        checkpoint.load(tmp_path / "checkpoint-000002", modules, optimizers)
    assert str(error.value) == (
        f"{tmp_path}/checkpoint-000002 holds weights that are not finite (policy: bias)"
    )


@pytest.mark.slow
def test_saving_before_the_first_step_changes_no_step(trained_folder):
    def step_counts(learner):
        state = checkpoint.training_state(learner.modules, learner.optimizers)
        counts = set()
        for part in state.values():
            counts |= {float(moments["step"]) for moments in part["moments"].values()}
        return counts

    weights = []
    for saves_first in (False, True):
        learner = make_learner(trained_folder)
        if saves_first:
            assert step_counts(learner) == {0.0}
        for module in learner.modules.values():
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
        for optimizer in learner.optimizers.values():
            optimizer.step()
        assert step_counts(learner) == {1.0}
        weights.append([parallel.full_tensor(p.detach()) for p in learner.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(trained_folder, tmp_path):
    learner = make_learner(trained_folder)
    with Saver(tmp_path, 2) as saver:
        checkpoint.save_learner(learner, saver)
    other = make_learner(trained_folder, lora_rank=2)
    folder = tmp_path / "checkpoint-000000"
    with pytest.raises(ValueError) as error:
        checkpoint.load_learner(other, folder)
    pattern = r"\S+ belongs to a run that trained other weights \(.*lora_A.*\); give another "
    assert re.match(pattern, str(error.value)) and "\n" not in str(error.value)
    shutil.rmtree(folder)


def test_a_finished_run_without_checkpoints_is_not_replaced(tmp_path, capsys):
    check_lost_checkpoints(tmp_path)
    assert capsys.readouterr().out == ""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    check_lost_checkpoints(tmp_path)
    sentence = f"{tmp_path} has metrics, but no checkpoint: the run begins again\n"
    assert capsys.readouterr().out == sentence
    (tmp_path / "policy").mkdir()
    with pytest.raises(UserError, match="holds a finished run without checkpoints, and a new st"):
        check_lost_checkpoints(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    check_lost_checkpoints(tmp_path)


def test_make_train_answers_in_one_sentence():
    """`make train` must not use torchrun, which would add forty lines of traceback to an error."""
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")
    files = "config/frozenlake_ppo.py config/models/tiny.py config/recipes/tiny_best.py"
    assert f".venv/bin/python train.py {files} $(ARGS)" in makefile
