"""Tests that run train.py as a whole on a CPU, and tests of the checks before a run."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs import assert_same_checkpoint, read_lines, rows_of, run, untimed
from safetensors.torch import load_file
from shared_fixtures import config_file, small_config
from torch.distributed.checkpoint import HuggingFaceStorageReader

import model
import parallel
import starpo
import train
from support import log, preflight, report, training_metrics
from support.metrics import metric_groups
from utils import machine

pytestmark = pytest.mark.usefixtures("one_rank")

KEYS = """
    step error_frac kept_groups kept_trajectories success reward num_turns num_actions valid_frac
    effective_frac thought_true_frac thoughts_per_turn response_length in_group_reward_mean
    in_group_reward_std in_group_reward_max zero_std_frac pass@4 pg_loss clipfrac approx_kl entropy
    kl_ref vf_loss vf_clipfrac grad_norm grad_norm_critic explained_variance logprob_diff_mean
    logprob_diff_max eval_success eval_reward eval_valid_frac eval_entropy eval_response_length
    bad_steps rollout_s update_s cpu_s memory_gib regime void_frac masked_frac observation_nll
    sampled_groups learning_rate critic_lr lost_frac out_of_actions_frac out_of_turns_frac
    out_of_tokens_frac cut_frac cut_by_context_frac eval_error_frac eval_lost_frac
    eval_out_of_actions_frac eval_out_of_turns_frac eval_out_of_tokens_frac eval_cut_frac
    eval_cut_by_context_frac
""".split()
COLLAPSE_KEYS = [key for key, group in metric_groups(small_config()).items() if group == "collapse"]
COLLAPSE_KEYS.remove("regime")
KEYS += COLLAPSE_KEYS
EVAL_KEYS = {key for key in KEYS if key.startswith("eval_")}
CRITIC_KEYS = {"vf_loss", "vf_clipfrac", "grad_norm_critic", "explained_variance", "critic_lr"}
POLICY_KEYS = {"pg_loss", "clipfrac", "approx_kl", "entropy", "kl_ref", "grad_norm"}
POLICY_KEYS |= {"masked_frac", "observation_nll", "learning_rate"}
UPDATE_KEYS = POLICY_KEYS | CRITIC_KEYS | {"logprob_diff_mean", "logprob_diff_max"}
# Besides UPDATE_KEYS and EVAL_KEYS, these keys may be None. `regime` may be None in an iteration
# without an update. The collapse keys are None in an iteration that does not measure collapse.
SOMETIMES_UNKNOWN = {"regime", *COLLAPSE_KEYS}


def missing_keys(row):
    return {key for key, value in row.items() if value is None}


# ---------- whole runs


@pytest.fixture(scope="module")
def gae_run(trained_folder, tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("runs") / "gae"
    return out_dir, run(out_dir, trained_folder, num_iterations=4)


@pytest.fixture(scope="module")
def first_half(trained_folder, tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("runs") / "half"
    return out_dir, run(out_dir, trained_folder, num_iterations=2)


def test_rows_of_two_iterations(first_half):
    out_dir, rows = first_half
    assert [row["step"] for row in rows] == [1, 2]
    assert all(sorted(row) == sorted(KEYS) for row in rows)
    assert missing_keys(rows[1]) == {"kl_ref", "observation_nll", *COLLAPSE_KEYS}
    assert (out_dir / "policy/config.json").is_file()


@pytest.mark.slow
def test_rows_of_a_run(gae_run):
    _, rows = gae_run
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert sorted(row) == sorted(KEYS)
        is_evaluated = row["step"] % 2 == 0
        missing = {"kl_ref", "observation_nll", *COLLAPSE_KEYS}
        assert missing_keys(row) == (missing if is_evaluated else missing | EVAL_KEYS)
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert row["regime"] == "diverse"
        assert (row["kept_groups"], row["kept_trajectories"], row["bad_steps"]) == (2, 8, 0)
        assert row["grad_norm"] > 1e-3 and row["grad_norm_critic"] > 1e-3
        assert row["entropy"] > 0.01
    assert 0.1 < rows[0]["memory_gib"] <= rows[3]["memory_gib"] < 64
    assert rows[0]["explained_variance"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_files_of_a_run(gae_run, trained_folder):
    out_dir, _ = gae_run
    names = {path.name for path in out_dir.iterdir()}
    names.discard("code.diff")
    assert names == {
        *("config.json", "metrics.jsonl", "tensorboard", "trajectories.jsonl"),
        *("eval_start.jsonl", "eval_final.jsonl", "scores.md", "scores.json"),
        *("checkpoint-000002", "checkpoint-000004", "best", "policy"),
    }
    weights, tokenizer = model.load_model(str(out_dir / "policy"))
    start = model.load_model(str(trained_folder))[0]
    for after, before in zip(weights.parameters(), start.parameters(), strict=True):
        assert not torch.equal(after, before)
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>"]) == [2]


@pytest.mark.slow
def test_scores_of_a_run(gae_run):
    out_dir, _ = gae_run
    (scores,) = json.loads((out_dir / "scores.json").read_text()).values()
    assert list(scores) == [
        "random, closed loop",
        "greedy, closed loop",
        "optimal, closed loop",
        "optimal, 1 a turn",
        "optimal, 2 a turn",
        "start",
        "after RL",
    ]
    final = read_lines(out_dir / "eval_final.jsonl")
    assert len(final) == 6
    assert scores["after RL"] == [int(record["success"]) for record in final]


@pytest.mark.slow
def test_trajectories_of_a_run(gae_run):
    out_dir, _ = gae_run
    played = read_lines(out_dir / "trajectories.jsonl")
    found = [(record["step"], record["group"], record["member"]) for record in played]
    assert found == [(step, i // 4, i % 4) for step in (1, 2, 4) for i in range(16)]
    for record in played:
        for turn in record["turns"]:
            assert "".join(turn["tokens"]).removesuffix("<|im_end|>") == turn["response"]
            assert len(turn["surprise"]) == len(turn["tokens"])
            assert min(turn["surprise"]) >= 0
            assert ("advantage" in turn) == ("value" in turn) == record["kept"]
    assert all(len({r["kept"] for r in played[i : i + 4]}) == 1 for i in range(0, 48, 4))


@pytest.mark.slow
def test_two_runs_with_one_seed_are_equal_and_another_seed_differs(
    gae_run, first_half, trained_folder, tmp_path
):
    assert untimed(first_half[1]) == untimed(gae_run[1][:2])
    other = run(tmp_path / "other", trained_folder, num_iterations=1, seed=1)
    assert other[0]["entropy"] != gae_run[1][0]["entropy"]


def leave_as_if_killed(out_dir, whole, rows):
    """Leave an unfinished checkpoint of iteration 4, metrics up to iteration 3, and half a line at
    the end of trajectories.jsonl."""
    shutil.copytree(whole / "checkpoint-000004", out_dir / "partial")
    (out_dir / "partial" / "manifest.json").unlink()
    with (out_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(rows[2]) + "\n")
    played = (whole / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (out_dir / "trajectories.jsonl").write_text("".join(played[:35]) + played[35][:99])


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_four_iterations_equal_two_and_a_continuation(
    gae_run, first_half, trained_folder, tmp_path, capsys, killed
):
    whole, rows = gae_run
    out_dir = tmp_path / "out"
    shutil.copytree(first_half[0], out_dir)
    if killed:
        leave_as_if_killed(out_dir, whole, rows)
    capsys.readouterr()
    both = run(out_dir, trained_folder, num_iterations=4)
    assert f"continuing {out_dir} from iteration 2" in capsys.readouterr().out
    assert untimed(both) == untimed(rows)
    assert_same_checkpoint(whole, out_dir)
    for name in ("eval_final.jsonl", "scores.json", "trajectories.jsonl"):
        assert (out_dir / name).read_text() == (whole / name).read_text()


@pytest.mark.slow
def test_grpo_run_continues_too(trained_folder, tmp_path):
    grpo = dict(estimator="grpo", num_epochs=2, eval_every=1)
    rows = run(tmp_path / "whole", trained_folder, num_iterations=2, **grpo)
    assert sorted(rows[0]) == sorted(KEYS)
    assert missing_keys(rows[0]) == CRITIC_KEYS | {"kl_ref", "observation_nll", *COLLAPSE_KEYS}
    state = tmp_path / "whole" / "checkpoint-000002" / "state"
    saved = HuggingFaceStorageReader(str(state)).read_metadata().state_dict_metadata
    assert {name.split(".")[0] for name in saved} == {"policy"}
    run(tmp_path / "split", trained_folder, num_iterations=1, **grpo)
    continued = run(tmp_path / "split", trained_folder, num_iterations=2, **grpo)
    assert untimed(continued) == untimed(rows)
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "split")


@pytest.mark.slow
def test_no_row_is_lost_between_checkpoint_and_log(
    first_half, trained_folder, tmp_path, monkeypatch
):
    write = log.Log.write

    def interrupted(self, row, samples):
        if row["step"] == 2:
            raise KeyboardInterrupt
        write(self, row, samples)

    monkeypatch.setattr(log.Log, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", trained_folder, num_iterations=2)
    monkeypatch.undo()
    continued = run(tmp_path / "out", trained_folder, num_iterations=2)
    assert untimed(continued) == untimed(first_half[1])


# With these settings, the KL divergence from the start policy is in the loss, and each iteration
# has one optimizer step.
KL = dict(estimator="grpo", kl_coef=0.1, batch_size=8, eval_every=1)


@pytest.fixture(scope="module")
def kl_run(trained_folder, tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "kl", trained_folder, num_iterations=2, **KL)


@pytest.mark.slow
def test_kl_is_measured_against_the_start(kl_run):
    assert abs(kl_run[0]["kl_ref"]) < 1e-8
    assert kl_run[1]["kl_ref"] > 1e-5


@pytest.mark.slow
def test_the_sampler_always_has_the_newest_weights(kl_run):
    """Each iteration makes one optimizer step, and the weights before this step sampled the
    rollouts. So all of PPO's probability ratios are 1."""
    for row in kl_run:
        assert row["approx_kl"] < 1e-8 and row["clipfrac"] == 0 and row["grad_norm"] > 0


@pytest.mark.slow
def test_kl_is_measured_against_the_start_after_a_continuation(kl_run, trained_folder, tmp_path):
    run(tmp_path / "split", trained_folder, num_iterations=1, **KL)
    continued = run(tmp_path / "split", trained_folder, num_iterations=2, **KL)
    assert untimed(continued) == untimed(kl_run)


def save_model(weights, tokenizer, folder):
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_filter_that_keeps_nothing_skips_the_update(random_model, tokenizer, tmp_path, capsys):
    start = save_model(random_model, tokenizer, tmp_path / "random")
    # No reply has the required form, and the format penalty is 0, so all scores are 0.
    rows = run(tmp_path / "out", start, format_penalty=0.0, weight_decay=0.1)
    message = (
        "iteration 1: the filter kept no group, because the scores in each group are equal; "
        "update skipped"
    )
    assert message in capsys.readouterr().out
    assert len(rows) == 2
    for row in rows:
        assert sorted(row) == sorted(KEYS)
        assert (row["kept_groups"], row["kept_trajectories"]) == (0, 0)
        assert (row["zero_std_frac"], row["bad_steps"]) == (1.0, 0)
        assert missing_keys(row) - EVAL_KEYS - SOMETIMES_UNKNOWN == UPDATE_KEYS
    after = model.load_model(str(tmp_path / "out" / "policy"))[0]
    for weight, before in zip(after.parameters(), random_model.parameters(), strict=True):
        assert torch.equal(weight, before)


@pytest.mark.slow
def test_no_iterations_evaluate_the_start_only(trained_folder, tmp_path):
    assert run(tmp_path / "out", trained_folder, num_iterations=0) == []
    (scores,) = json.loads((tmp_path / "out" / "scores.json").read_text()).values()
    assert scores["start"] == scores["after RL"]


# ---------- starting and stopping


@pytest.mark.slow
def test_a_finished_run_says_so(gae_run, trained_folder, capsys):
    out_dir, rows = gae_run
    capsys.readouterr()
    assert run(out_dir, trained_folder, num_iterations=4) == rows
    out = capsys.readouterr().out
    assert f"{out_dir} is finished at iteration 4. To start a new run, give --seed=N" in out
    hint = report.next_steps_hint(small_config(out_dir="o", env="my.py:A + b.py:B"))
    assert hint.count("--env='my.py:A + b.py:B'") == 1
    assert f"python -m tools.view {out_dir} " in out
    assert f"tensorboard --logdir {out_dir.parent}" in out
    assert (out_dir / "scores.md").read_text() in out


@pytest.mark.slow
def test_a_continued_run_has_no_end_yet(trained_folder, tmp_path, monkeypatch):
    out_dir = tmp_path / "out"
    run(out_dir, trained_folder, num_iterations=1)
    names = set()
    iterate = train.iterate

    def spy(*args):
        names.update(path.name for path in out_dir.iterdir())
        return iterate(*args)

    monkeypatch.setattr(train, "iterate", spy)
    run(out_dir, trained_folder, num_iterations=2)
    assert names and not {"eval_final.jsonl", "scores.json", "scores.md", "policy"} & names


@pytest.mark.slow
def test_a_run_that_stopped_early_says_why_and_how_to_go_on(gae_run, capsys):
    out_dir, rows = gae_run
    config = small_config(out_dir=str(out_dir), early_stop=True, num_iterations=9)
    assert report.show_if_finished(config, len(rows), "success was 0")
    out = capsys.readouterr().out
    assert f"finished at iteration {len(rows)}, because success was 0. To start" in out
    assert "to continue, --early_stop=False --take_config=True." in out
    config = replace(config, num_iterations=len(rows))
    assert report.show_if_finished(config, len(rows), "success was 0")
    out = capsys.readouterr().out
    assert "to continue, --num_iterations=N --early_stop=False --take_config=True." in out
    assert not report.show_if_finished(replace(config, num_iterations=9), len(rows), None)


@pytest.mark.slow
def test_the_last_iteration_before_an_early_stop_is_evaluated(random_model, tokenizer, tmp_path):
    start = save_model(random_model, tokenizer, tmp_path / "random")
    stop = dict(early_stop=True, num_iterations=9, eval_every=0, save_every=0)
    rows = run(tmp_path / "out", start, format_penalty=0.0, **stop)
    assert [row["eval_success"] is not None for row in rows] == [False] * 4 + [True]
    assert (tmp_path / "out/best/config.json").is_file()


@pytest.mark.slow
def test_time_of_a_measurement_is_in_neither_part(trained_folder, tmp_path, monkeypatch):
    clock = [0.0]

    def timed(function, cost):
        def call(*args, **options):
            clock[0] += cost
            return function(*args, **options)

        return call

    monkeypatch.setattr(train, "collect_rollouts", timed(train.collect_rollouts, 1.0))
    monkeypatch.setattr(train, "measure_collapse", timed(train.measure_collapse, 50.0))
    monkeypatch.setattr(train, "select_groups", timed(train.select_groups, 3.0))
    monkeypatch.setattr(training_metrics.time, "process_time", lambda: clock[0])
    rows = run(tmp_path / "out", trained_folder, num_iterations=2, collapse_every=2, think=True)
    assert [row["cpu_s"] for row in rows] == [4.0, 4.0]
    assert clock == [58.0]


@pytest.mark.slow
def test_the_folder_of_another_run_is_refused(gae_run, trained_folder):
    out_dir, rows = gae_run
    with pytest.raises(ValueError) as error:
        run(out_dir, trained_folder, num_iterations=4, gamma=0.5, seed=3)
    assert str(error.value) == (
        f"out_dir={str(out_dir)!r} holds a run with other settings "
        "(seed was 0 and is now 3, gamma was 1.0 and is now 0.5); "
        "give another --out_dir, or --take_config=True to continue with the new settings"
    )
    assert rows_of(out_dir) == rows
    assert json.loads((out_dir / "config.json").read_text())["config"]["seed"] == 0


@pytest.mark.slow
def test_a_folder_with_something_else_is_refused(trained_folder, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    message = "out_dir='.+' is not empty and holds no run; give another --out_dir"
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "notes", trained_folder)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]
    # A run that is killed while it writes config.json leaves a folder such as cut/.
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.json.partial").write_text("{")
    assert run(tmp_path / "cut", trained_folder, num_iterations=0) == []


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda', but torch sees no GPU"):
        parallel.init_distributed(small_config(device="cuda"))
    cpu = torch.device("cpu")
    assert parallel.init_distributed(small_config(device="auto")) == cpu
    assert model.pick_dtype("auto", cpu) == torch.float32
    assert model.pick_dtype("bfloat16", cpu) == torch.bfloat16


# The first line of /proc/driver/nvidia/version has two forms. The upper form below comes from
# NVIDIA's closed-source kernel module, and the lower form from its open-source kernel module.
DRIVERS = [
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}.54.14  Thu Feb 22 01:44:30 UTC 2024",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.54.14  Release Build  (root@a)",
]


@pytest.mark.parametrize("line", DRIVERS)
def test_an_old_driver_is_named(monkeypatch, tmp_path, line):
    """Without the error about an old driver, a run with device=auto would start on the CPU. On
    the CPU, the vLLM build for GPUs would fail."""
    driver = tmp_path / "version"
    driver.write_text(line.format(550) + "\nGCC version:  gcc version 12.3.0\n")
    monkeypatch.setattr(machine, "DRIVER_FILE", driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for device in ("auto", "cuda"):
        with pytest.raises(ValueError) as error:
            parallel.init_distributed(small_config(device=device))
        assert str(error.value) == (
            "the NVIDIA driver is of release 550, and torch for CUDA 13.0 needs 580 or newer; "
            "update the driver, or use --device=cpu"
        )
    cpu = torch.device("cpu")
    assert model.pick_device("cpu") == cpu
    # Release 550 is new enough for CUDA 12, so the driver is not the reason that torch sees no GPU.
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    assert model.pick_device("auto") == cpu
    monkeypatch.setattr(torch.version, "cuda", None)  # torch for CPUs
    assert model.pick_device("auto") == cpu
    driver.write_text(line.format(580))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert model.pick_device("auto") == cpu


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    "driver, python, message",
    [
        ("550.54.14", "3.12.1", "the NVIDIA driver is of release 550, CUDA 13 needs 580 or newer"),
        ("580.65.06", "3.10.14", "old_python is Python 3.10.14, Python 3.11 or newer is needed"),
    ],
)
def test_make_names_an_old_driver_or_python(tmp_path, driver, python, message):
    shutil.copy(Path(__file__).parents[2] / "Makefile", tmp_path)
    old_enough = int(python.split(".")[1] == "10")
    scripts = {
        "nvidia-smi": f"echo {driver}",
        "old_python": f"[ $1 = -V ] && echo Python {python} || exit {old_enough}",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["make", "PYTHON=old_python", ".venv/bin/python"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode and f"error: {message}" in done.stdout, done.stdout


def test_an_old_python_is_named(monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(preflight.sys, "version_info", (3, 10, 14))
    monkeypatch.setattr(preflight.platform, "python_version", lambda: "3.10.14")
    with pytest.raises(ValueError) as error:
        preflight.check_installed(small_config(engine="vllm"))
    assert str(error.value) == (
        "engine='vllm' needs Python 3.11 or newer, and this is 3.10.14; make a new .venv with "
        "make clean and make PYTHON=python3.12, or use --engine=torch"
    )
    preflight.check_installed(small_config(engine="torch"))


def test_a_gpu_is_set_up_without_cudnn_attention(monkeypatch):
    monkeypatch.setattr(parallel, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    try:
        found = parallel.init_distributed(small_config(device="cuda"))
        assert found == torch.device("cuda", 0)
        assert model.pick_dtype("auto", found) == torch.bfloat16
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
        parallel.init_distributed(small_config())


# ---------- what a run prints, and steps that are not finite


def test_lines_of_iterations_are_aligned():
    first = dict(step=9, reward=-0.25, success=1.0, regime="diverse")
    row = dict.fromkeys(report.PRINTED) | first
    later = dict.fromkeys(report.PRINTED, 1.5) | dict(step=10, regime="diverse")
    lines = [report.describe_step(row, 200, 0.0), report.describe_step(later, 200, 90.0)]
    bars = [[i for i, char in enumerate(line) if char == "|"] for line in lines]
    assert bars[0] == bars[1][: len(bars[0])]
    assert lines[1].endswith("diverse | 2 min left")
    expected = "   9/200 reward -0.25 | success 1.00 | in_group_reward_std    - | kept_groups   - |"
    assert lines[0].startswith(expected)


@pytest.mark.slow
def test_a_drift_between_engine_and_trainer_is_said(trained_folder, tmp_path, capsys, monkeypatch):
    build_experience = train.build_experience

    def drifted(*args):
        experience = build_experience(*args)
        return replace(experience, rollout_logprobs=experience.rollout_logprobs - 0.01)

    monkeypatch.setattr(train, "build_experience", drifted)
    rows = run(tmp_path / "out", trained_folder, num_iterations=1)
    assert rows[0]["logprob_diff_mean"] == pytest.approx(0.01, abs=1e-4)
    message = "warning: the log-probs of engine and trainer differ by 0.0100 nats a token"
    assert message in capsys.readouterr().out


def test_the_less_precise_type_decides_what_is_a_mismatch(capsys):
    """A difference of 0.02 nats between log-probs is too large for float32, but not for the coarse
    rounding of bfloat16."""
    for engine_dtype, warns in (("float32", True), ("bfloat16", False)):
        config = small_config(engine_dtype=engine_dtype)
        learner = SimpleNamespace(config=config, dtype=torch.float32, device=torch.device("cpu"))
        train.warn_of_mismatch(learner, 0.02)
        assert ("differ by 0.0200 nats" in capsys.readouterr().out) == warns


def weights_of(folder):
    (file,) = (folder / "state").glob("*.safetensors")
    return {key: value for key, value in load_file(file).items() if ".weights." in key}


@pytest.mark.slow
def test_a_run_of_bad_steps_stops_and_leaves_the_checkpoint(trained_folder, tmp_path, monkeypatch):
    out_dir = tmp_path / "out"
    settings = dict(batch_size=8, max_bad_steps=2, save_every=1)
    run(out_dir, trained_folder, num_iterations=1, **settings)
    before = weights_of(out_dir / "checkpoint-000001")
    policy_loss = starpo.ppo_loss

    def spoilt(*args, **options):
        return policy_loss(*args, **options)[0] * math.nan, {}

    monkeypatch.setattr(starpo, "ppo_loss", spoilt)
    message = r"not finite in 2 optimizer steps in a row \(iteration 3\)"
    with pytest.raises(ValueError, match=message):
        run(out_dir, trained_folder, num_iterations=9, **settings)
    rows = rows_of(out_dir)
    assert [row["bad_steps"] for row in rows] == [0, 1]
    assert rows[1]["pg_loss"] is None and rows[1]["grad_norm"] is None  # JSON has no NaN
    after = weights_of(out_dir / "checkpoint-000002")
    assert len(before) > 0
    assert all(torch.equal(value, after[key]) for key, value in before.items())


# ---------- learning


@pytest.mark.slow
def test_the_policy_learns_which_arm_pays(tmp_path, monkeypatch):
    """The base model pulls both arms, so only the reward can tell which arm is better."""
    monkeypatch.chdir(tmp_path)
    root = Path(train.__file__).parent
    files = [config_file(name) for name in ("bandit_grpo", "tiny")]
    sizes = ["--num_iterations=20", "--eval_every=0", "--eval_size=32", "--learning_rate=1e-3"]
    train.main([*files, *sizes, f"--model={root / 'base'}", "--out_dir=out/arms"])
    success = [row["success"] for row in rows_of("out/arms")]
    assert sum(success[-5:]) / 5 > max(0.7, sum(success[:4]) / 4 + 0.15)  # chance is 0.5
