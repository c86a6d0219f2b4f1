"""
Tests of train.py: runs that repeat and continue bit by bit, micro-batches, gradients of masked tokens, bad steps. CPU.

    python -m pytest -q tests/test_train.py
"""

import copy
import json
import math
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from conftest import SMALL_RUN, both_losses, make_learner, small_config
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import AutoModelForCausalLM

import dialogue
import grids
import model
import parallel
import rollout
import starpo
import train
from dialogue import Chat
from packing import pack
from rollout import Trajectory, Turn
from support import log, report, timer
from support.checkpoint import Saver, find_corruption
from support.metrics import metric_groups

RUN = SMALL_RUN | dict(
    num_groups=4
)  # the filter keeps 2 groups of 4: two optimizer steps of 4 trajectories
KEYS = """
    step error_frac kept_groups kept_trajectories success reward num_turns num_actions valid_frac effective_frac
    thought_true_frac thoughts_per_turn response_length in_group_reward_mean in_group_reward_std in_group_reward_max
    zero_std_frac pass@4 pg_loss clipfrac approx_kl entropy kl_ref vf_loss vf_clipfrac grad_norm grad_norm_critic
    explained_variance logprob_diff_mean logprob_diff_max
    eval_success eval_reward eval_valid_frac eval_entropy eval_response_length bad_steps
    rollout_s update_s cpu_s memory_gib regime
""".split()  # noqa: SIM905
COLLAPSE_KEYS = [key for key, group in metric_groups(small_config()).items() if group == "collapse"]
COLLAPSE_KEYS.remove("regime")
KEYS += COLLAPSE_KEYS
OF_AN_UPDATE = {
    *("pg_loss", "clipfrac", "approx_kl", "entropy", "kl_ref", "vf_loss", "vf_clipfrac"),
    *("grad_norm", "grad_norm_critic", "explained_variance"),
    *("logprob_diff_mean", "logprob_diff_max"),
}
OF_CRITIC = {"vf_loss", "vf_clipfrac", "grad_norm_critic", "explained_variance"}
OF_EVAL = {key for key in KEYS if key.startswith("eval_")}
UNKNOWN = {
    "regime",
    *COLLAPSE_KEYS,
}  # of which nothing is known without an update or a measurement


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


def run(out_dir, start, **changes):
    """train.main on the small settings, from the model in folder `start`. Returns: the rows of metrics.jsonl."""
    settings = RUN | dict(model=str(start)) | changes
    file = Path(f"{out_dir}.py")
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    train.main([str(file), f"--out_dir={out_dir}"])
    return rows_of(out_dir)


def rows_of(out_dir):
    return [json.loads(line) for line in (Path(out_dir) / "metrics.jsonl").read_text().splitlines()]


def untimed(rows):
    return [
        {key: value for key, value in row.items() if not key.endswith(("_s", "_gib"))}
        for row in rows
    ]


def assert_same_checkpoint(first, second):
    """Weights and optimizer states, bit by bit; and the exported policy."""
    a, b = (sorted(Path(folder).glob("checkpoint-*"))[-1] for folder in (first, second))
    assert a.name == b.name and not find_corruption(a) and not find_corruption(b)
    assert (a / "state.json").read_text() == (b / "state.json").read_text()
    files = [
        [*sorted((a / "state").iterdir()), Path(first, "policy/model.safetensors")],
        [*sorted((b / "state").iterdir()), Path(second, "policy/model.safetensors")],
    ]
    for x, y in zip(*([load_file(file) for file in side] for side in files), strict=True):
        assert x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)


def played_and_targets(learner):
    """Two groups with variance, and their targets."""
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    scores = torch.tensor([t.score for t in played], dtype=torch.float64)
    groups = train.select_groups(learner.config, played, scores)
    assert len(groups) == 2
    kept = [played[4 * group + i] for group in groups.tolist() for i in range(4)]
    return kept, train.compute_targets(learner, kept)


# ---------- whole runs


@pytest.fixture(scope="module")
def gae_run(trained_folder, tmp_path_factory):
    """Four iterations with a critic, evaluated after 2 and 4."""
    out_dir = tmp_path_factory.mktemp("runs") / "gae"
    return out_dir, run(out_dir, trained_folder, num_iterations=4)


def test_rows_of_a_run(gae_run):
    _, rows = gae_run
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert sorted(row) == sorted(KEYS)
        missing = {key for key, value in row.items() if value is None}
        assert missing == {"kl_ref", *COLLAPSE_KEYS} | (
            set() if row["step"] % 2 == 0 else OF_EVAL
        )
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert row["regime"] == "diverse"
        assert (row["kept_groups"], row["kept_trajectories"], row["bad_steps"]) == (2, 8, 0)
        assert row["grad_norm"] > 1e-3 and row["grad_norm_critic"] > 1e-3 and row["entropy"] > 0.01
    assert 0.1 < rows[0]["memory_gib"] <= rows[3]["memory_gib"] < 64  # the largest so far
    assert rows[0]["explained_variance"] == pytest.approx(
        0.0, abs=1e-6
    )  # the critic says 0 everywhere


def test_files_of_a_run(gae_run, trained_folder):
    out_dir, _ = gae_run
    names = {path.name for path in out_dir.iterdir()}
    assert names == {
        "config.json",
        "metrics.jsonl",
        "tensorboard",
        "trajectories.jsonl",
        "eval_start.jsonl",
        "eval_final.jsonl",
        "scores.md",
        "scores.json",
        "checkpoint-000002",
        "checkpoint-000004",
        "best",
        "policy",
    }
    weights, tokenizer = model.load_model(str(out_dir / "policy"))
    start = model.load_model(str(trained_folder))[0]
    assert all(
        not torch.equal(a, b) for a, b in zip(weights.parameters(), start.parameters(), strict=True)
    )
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>"]) == [2]
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
    final = [json.loads(line) for line in (out_dir / "eval_final.jsonl").read_text().splitlines()]
    assert scores["after RL"] == [int(record["success"]) for record in final] and len(final) == 6
    played = [
        json.loads(line) for line in (out_dir / "trajectories.jsonl").read_text().splitlines()
    ]
    keys = (
        "step",
        "group",
        "member",
    )  # five of each evaluated iteration: a group of four, and one of the next
    assert [tuple(r[key] for key in keys) for r in played] == [
        (step, i // 4, i % 4) for step in (2, 4) for i in range(5)
    ]
    for turn in (turn for record in played for turn in record["turns"]):
        assert "".join(turn["tokens"]).removesuffix("<|im_end|>") == turn["response"]
        assert len(turn["surprise"]) == len(turn["tokens"]) and min(turn["surprise"]) >= 0


@pytest.fixture(scope="module")
def first_half(trained_folder, tmp_path_factory):
    """The same settings, two iterations only."""
    out_dir = tmp_path_factory.mktemp("runs") / "half"
    return out_dir, run(out_dir, trained_folder, num_iterations=2)


def test_two_runs_with_one_seed_are_equal_and_another_seed_differs(
    gae_run, first_half, trained_folder, tmp_path
):
    assert untimed(first_half[1]) == untimed(gae_run[1][:2])
    other = run(tmp_path / "other", trained_folder, num_iterations=1, seed=1)
    assert other[0]["entropy"] != gae_run[1][0]["entropy"]


@pytest.mark.parametrize("killed", [False, True])
def test_four_iterations_equal_two_and_a_continuation(
    gae_run, first_half, trained_folder, tmp_path, capsys, killed
):
    """`killed`: while iteration 4 was being saved, with the row of iteration 3 written."""
    (whole, rows), out_dir = gae_run, tmp_path / "out"
    shutil.copytree(first_half[0], out_dir)
    if killed:
        shutil.copytree(whole / "checkpoint-000004", out_dir / "partial")
        (out_dir / "partial" / "manifest.json").unlink()
        with (out_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(rows[2]) + "\n")
        played = (whole / "trajectories.jsonl").read_text().splitlines(keepends=True)
        (out_dir / "trajectories.jsonl").write_text(
            "".join(played[:7]) + played[7][:99]
        )  # cut off in iteration 4
    capsys.readouterr()
    both = run(out_dir, trained_folder, num_iterations=4)
    assert f"continuing {out_dir} from iteration 2" in capsys.readouterr().out
    assert untimed(both) == untimed(rows)
    assert_same_checkpoint(whole, out_dir)
    for name in ("eval_final.jsonl", "scores.json", "trajectories.jsonl"):
        assert (out_dir / name).read_text() == (whole / name).read_text()


def test_grpo_run_continues_too(trained_folder, tmp_path):
    grpo = dict(estimator="grpo", num_epochs=2, eval_every=1)
    rows = run(tmp_path / "whole", trained_folder, num_iterations=2, **grpo)
    assert sorted(rows[0]) == sorted(KEYS)
    assert {key for key, value in rows[0].items() if value is None} == OF_CRITIC | {
        "kl_ref",
        *COLLAPSE_KEYS,
    }
    state = tmp_path / "whole" / "checkpoint-000002" / "state"
    saved = HuggingFaceStorageReader(str(state)).read_metadata().state_dict_metadata
    assert {name.split(".")[0] for name in saved} == {"policy"}
    run(tmp_path / "split", trained_folder, num_iterations=1, **grpo)
    assert untimed(run(tmp_path / "split", trained_folder, num_iterations=2, **grpo)) == untimed(
        rows
    )
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "split")


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
    assert untimed(run(tmp_path / "out", trained_folder, num_iterations=2)) == untimed(
        first_half[1]
    )


KL = dict(
    estimator="grpo", kl_coef=0.1, batch_size=8, eval_every=1
)  # one optimizer step an iteration


@pytest.fixture(scope="module")
def kl_run(trained_folder, tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "kl", trained_folder, num_iterations=2, **KL)


def test_kl_is_measured_against_the_start(kl_run):
    assert abs(kl_run[0]["kl_ref"]) < 1e-8  # the policy still is the reference
    assert kl_run[1]["kl_ref"] > 1e-5


def test_the_sampler_always_has_the_newest_weights(kl_run):
    """With one optimizer step an iteration the policy of the update is the one that sampled: every ratio is 1."""
    assert all(
        row["approx_kl"] < 1e-8 and row["clipfrac"] == 0 and row["grad_norm"] > 0 for row in kl_run
    )


def test_kl_is_measured_against_the_start_after_a_continuation(kl_run, trained_folder, tmp_path):
    run(tmp_path / "split", trained_folder, num_iterations=1, **KL)
    assert untimed(run(tmp_path / "split", trained_folder, num_iterations=2, **KL)) == untimed(
        kl_run
    )


def test_a_filter_that_keeps_nothing_skips_the_update(random_model, tokenizer, tmp_path, capsys):
    random_model.save_pretrained(tmp_path / "random")
    tokenizer.save_pretrained(tmp_path / "random")
    # no reply has the form, and that costs nothing: all scores are 0
    rows = run(tmp_path / "out", tmp_path / "random", format_penalty=0.0, weight_decay=0.1)
    assert (
        "iteration 1: the filter kept no group, because the scores in each group that it picked "
        "are equal; update skipped"
        in capsys.readouterr().out
    )
    assert len(rows) == 2
    for row in rows:
        assert sorted(row) == sorted(KEYS)
        assert (
            row["kept_groups"],
            row["kept_trajectories"],
            row["zero_std_frac"],
            row["bad_steps"],
        ) == (0, 0, 1.0, 0)
        missing = {key for key, value in row.items() if value is None} - OF_EVAL - UNKNOWN
        assert missing == OF_AN_UPDATE
    after = model.load_model(str(tmp_path / "out" / "policy"))[0]
    assert all(
        torch.equal(a, b)
        for a, b in zip(after.parameters(), random_model.parameters(), strict=True)
    )


def test_no_iterations_evaluate_the_start_only(trained_folder, tmp_path):
    assert run(tmp_path / "out", trained_folder, num_iterations=0) == []
    (scores,) = json.loads((tmp_path / "out" / "scores.json").read_text()).values()
    assert scores["start"] == scores["after RL"]


# ---------- starting and stopping


def test_a_finished_run_says_so(gae_run, trained_folder, capsys):
    out_dir, rows = gae_run
    capsys.readouterr()
    assert run(out_dir, trained_folder, num_iterations=4) == rows  # nothing was added
    out = capsys.readouterr().out
    assert f"{out_dir} is finished at iteration 4. To start a new run, give --seed=N" in out
    hint = report.next_steps_hint(small_config(out_dir="o", env="my.py:A + b.py:B"))
    assert hint.count("--env='my.py:A + b.py:B'") == 1
    assert f"python -m tools.view {out_dir} " in out and f"tensorboard --logdir {out_dir.parent}" in out
    assert (out_dir / "scores.md").read_text() in out


def test_a_continued_run_has_no_end_yet(trained_folder, tmp_path, monkeypatch):
    run(tmp_path / "out", trained_folder, num_iterations=1)
    there, iterate = [], train.iterate
    monkeypatch.setattr(
        train, "iterate", lambda *args: there.extend((tmp_path / "out").iterdir()) or iterate(*args)
    )
    run(tmp_path / "out", trained_folder, num_iterations=2)
    assert there and not {"eval_final.jsonl", "scores.json", "scores.md", "policy"} & {
        path.name for path in there
    }


def test_a_run_that_stopped_early_says_why_and_how_to_go_on(gae_run, capsys):
    out_dir, rows = gae_run
    config = small_config(out_dir=str(out_dir), early_stop=True, num_iterations=9)
    assert report.show_if_finished(config, len(rows), "success was 0")
    out = capsys.readouterr().out
    assert f"finished at iteration {len(rows)}, because success was 0. To start" in out
    assert "to continue, --early_stop=False --take_config=True." in out
    config = replace(config, num_iterations=len(rows))
    assert report.show_if_finished(config, len(rows), "success was 0")
    assert (
        "to continue, --num_iterations=N --early_stop=False --take_config=True."
        in capsys.readouterr().out
    )
    assert not report.show_if_finished(replace(config, num_iterations=9), len(rows), None)


def test_the_last_iteration_before_an_early_stop_is_evaluated(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path / "random")
    tokenizer.save_pretrained(tmp_path / "random")
    changes = dict(
        format_penalty=0.0, early_stop=True, num_iterations=9, eval_every=0, save_every=0
    )
    rows = run(tmp_path / "out", tmp_path / "random", **changes)  # the filter keeps nothing
    assert [row["eval_success"] is not None for row in rows] == [False] * 4 + [True]
    assert (tmp_path / "out/best/config.json").is_file()


def test_time_of_a_measurement_is_in_neither_part(trained_folder, tmp_path, monkeypatch):
    clock = [0.0]  # of the process, which only these advance

    def timed(do, cost):
        def call(*args, **options):
            clock[0] += cost
            return do(*args, **options)

        return call

    monkeypatch.setattr(train, "collect_rollouts", timed(train.collect_rollouts, 1.0))
    monkeypatch.setattr(train, "measure_collapse", timed(train.measure_collapse, 50.0))
    monkeypatch.setattr(timer.time, "process_time", lambda: clock[0])
    rows = run(tmp_path / "out", trained_folder, num_iterations=2, collapse_every=2, think=True)
    assert [row["cpu_s"] for row in rows] == [1.0, 1.0] and clock == [52.0]


def test_the_folder_of_another_run_is_refused(gae_run, trained_folder):
    out_dir, rows = gae_run
    with pytest.raises(ValueError) as error:
        run(out_dir, trained_folder, num_iterations=4, gamma=0.5, seed=3)
    assert str(error.value) == (
        f"out_dir={str(out_dir)!r} holds a run with other settings "
        "(seed was 0 and is now 3, gamma was 1.0 and is now 0.5); "
        "give another --out_dir, or --take_config=True to continue with the new settings"
    )
    assert (
        rows_of(out_dir) == rows
        and json.loads((out_dir / "config.json").read_text())["config"]["seed"] == 0
    )


def test_a_folder_with_something_else_is_refused(trained_folder, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(
        ValueError, match="out_dir='.+' is not empty and holds no run; give another --out_dir"
    ):
        run(tmp_path / "notes", trained_folder)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]
    (tmp_path / "cut").mkdir()  # by a kill in the first moment of a run
    (tmp_path / "cut" / "config.json.partial").write_text("{")
    assert run(tmp_path / "cut", trained_folder, num_iterations=0) == []


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda', but torch sees no GPU"):
        parallel.init_distributed(small_config(device="cuda"))
    assert parallel.init_distributed(small_config(device="auto", dtype="bfloat16")) == (
        torch.device("cpu"),
        torch.bfloat16,
    )
    assert parallel.init_distributed(small_config(device="auto")) == (torch.device("cpu"), torch.float32)


# ---------- targets


def small_trajectory(rewards, lengths):
    turns = [
        Turn([1, 3, 4], list(range(5, 5 + n)), [-0.5 * (i + 1) for i in range(n)], reward)
        for reward, n in zip(rewards, lengths, strict=True)
    ]
    return Trajectory((0,), 0, turns)


def test_targets_by_hand(trained_folder):
    kept = [small_trajectory([-0.1, 1.0], [2, 1]), small_trajectory([0.0], [2])]
    old = [-0.5, -1.0, -0.5, -0.5, -1.0]

    targets = train.compute_targets(make_learner(trained_folder), kept)
    assert targets.ref_logprobs is None
    assert targets.rollout_logprobs.tolist() == old
    assert targets.old_logprobs.tolist() == old and targets.old_values.tolist() == [0.0] * 5
    # gamma = lam = 1 and values 0: what is still to come, (0.9, 0.9, 1, 0, 0): mean 0.56, unbiased variance 0.271333...
    torch.testing.assert_close(targets.returns, torch.tensor([0.9, 0.9, 1.0, 0.0, 0.0]))
    spread = math.sqrt((2 * 0.34**2 + 0.44**2 + 2 * 0.56**2) / 4)
    expected = torch.tensor([0.34, 0.34, 0.44, -0.56, -0.56]) / spread
    torch.testing.assert_close(targets.advantages, expected, rtol=1e-5, atol=1e-6)

    learner = make_learner(trained_folder, estimator="grpo", group_size=2, batch_size=2)
    targets = train.compute_targets(learner, kept)
    assert targets.ref_logprobs is targets.old_values is targets.returns is None
    assert targets.rollout_logprobs.tolist() == targets.old_logprobs.tolist() == old
    # mean 0.45, unbiased std sqrt(2 * 0.45^2) = 0.9 / sqrt(2): +-1 / sqrt(2)
    expected = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]) / math.sqrt(2)
    torch.testing.assert_close(targets.advantages, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_neutral_settings_leave_the_targets_of_plain_ppo_and_grpo(trained_folder, estimator):
    neutral = dict(
        reward_density="native",
        think_reward=0.0,
        context_turns=0,
        turn_level=False,
        turn_gamma=1.0,
        turn_lam=1.0,
        reward_norm="none",
        filter_strategy="fraction",
        filter_by="reward_std",
        filter_loss_scale="none",
        dual_clip=0.0,
        aggregation="token_mean",
        kl_in="loss",
        kl_coef=0.1,
        mask_observations=True,
    )
    learner = make_learner(trained_folder, bias=True, estimator=estimator, **neutral)
    kept, targets = played_and_targets(learner)
    assert targets.old_logprobs.tolist() == targets.rollout_logprobs.tolist()
    expected, values = [], iter(targets.old_values.tolist() if learner.critic else ())
    for i, t in enumerate(kept):
        scores = torch.tensor([member.score for member in kept[i // 4 * 4 : i // 4 * 4 + 4]])
        for k, each in enumerate(
            t.turns
        ):  # what is still to come, less V; or the score against its group
            to_go = sum(later.reward for later in t.turns[k:])
            relative = (t.score - scores.mean().item()) / (scores.std().item() + 1e-6)
            expected += [
                to_go - next(values) if estimator == "gae" else relative for _ in each.response_ids
            ]
    expected = torch.tensor(expected)
    if estimator == "gae":
        torch.testing.assert_close(
            targets.returns, expected + targets.old_values, rtol=1e-5, atol=1e-5
        )
        expected = (expected - expected.mean()) / expected.std()
    torch.testing.assert_close(targets.advantages, expected, rtol=1e-4, atol=1e-4)


def test_scores_come_in_the_order_of_the_trajectories(trained_folder):
    learner = make_learner(trained_folder, bias=True)
    kept, targets = played_and_targets(learner)
    assert len({len(t.ids) for t in kept}) > 1
    for micro_batch_tokens in (640, 100_000):
        learner.config = replace(learner.config, micro_batch_tokens=micro_batch_tokens)
        (values,) = parallel.score_tokens(learner.critic, kept, learner.config)
        logprobs, _ = parallel.score_tokens(learner.policy, kept, learner.config, 1.0)
        with torch.no_grad():
            for module, scores, *rest in (
                (learner.critic, values),
                (learner.policy, logprobs, 1.0),
            ):
                alone = []
                for t in kept:
                    out = module(pack([t]), *rest)
                    alone.append(out[0] if rest else out)
                torch.testing.assert_close(scores, torch.cat(alone), rtol=1e-5, atol=1e-5)
        assert values.std() > 1e-3
        torch.testing.assert_close(
            logprobs, targets.old_logprobs, rtol=1e-4, atol=1e-4
        )  # the sampler's


# ---------- the update


def captured_update(start, monkeypatch, **changes):
    """One update; returns its metrics and the gradients of its first optimizer step."""
    learner = make_learner(start, bias=True, **changes)
    kept, targets = played_and_targets(learner)
    if targets.ref_logprobs is not None:
        targets.ref_logprobs = targets.ref_logprobs - 0.3  # a reference that differs
    targets.old_logprobs = targets.old_logprobs + 0.1 * torch.sin(
        torch.arange(len(targets.old_logprobs))
    )
    steps, step = [], train.optimizer_step

    def spy(learner, metrics):
        modules = [m for m in (learner.policy, learner.critic) if m is not None]
        steps.append([p.grad.full_tensor().clone() for m in modules for p in m.parameters()])
        return step(learner, metrics)

    monkeypatch.setattr(train, "optimizer_step", spy)
    metrics = train.update(learner, kept, targets)
    monkeypatch.undo()
    return metrics, steps


@pytest.mark.parametrize(
    "estimator, kl_coef, entropy_coef", [("gae", 0.0, 0.001), ("grpo", 0.1, 0.1)]
)
def test_micro_batches_change_nothing(
    trained_folder, monkeypatch, estimator, kl_coef, entropy_coef
):
    changes = dict(
        estimator=estimator,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
        batch_size=8,
        temperature=0.7,
    )
    small, [in_small] = captured_update(
        trained_folder, monkeypatch, micro_batch_tokens=640, **changes
    )
    large, [in_large] = captured_update(
        trained_folder, monkeypatch, micro_batch_tokens=100_000, **changes
    )
    assert (
        small.keys() == large.keys()
        and {"pg_loss", "grad_norm", "entropy", "approx_kl"} <= small.keys()
    )
    assert small == pytest.approx(large, rel=1e-5, abs=1e-5)
    assert small["grad_norm"] > 0.01 and small["approx_kl"] > 1e-4
    for a, b in zip(in_small, in_large, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_micro_batches_change_nothing_for_windows_and_other_means(trained_folder, monkeypatch):
    changes = dict(
        estimator="gae",
        batch_size=8,
        context_turns=2,
        aggregation="seq_mean_token_mean",
        entropy_coef=0.1,
    )
    small, [in_small] = captured_update(
        trained_folder, monkeypatch, micro_batch_tokens=640, **changes
    )
    large, [in_large] = captured_update(
        trained_folder, monkeypatch, micro_batch_tokens=100_000, **changes
    )
    assert small == pytest.approx(large, rel=1e-5, abs=1e-5) and small["grad_norm"] > 0.01
    for a, b in zip(in_small, in_large, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_update_visits_every_trajectory_once_an_epoch(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, num_epochs=3)
    kept, targets = played_and_targets(learner)
    packs, policy_loss = [], train.policy_loss

    def spy(learner, batch, targets, weights, num_tokens):
        packs.append((batch, num_tokens, targets))
        return policy_loss(learner, batch, targets, weights, num_tokens)

    monkeypatch.setattr(train, "policy_loss", spy)
    train.update(learner, kept, targets)
    names = {tuple(t.ids): i for i, t in enumerate(kept)}
    assert len(names) == 8 and len(packs) == 3 * 2
    lengths = [t.num_response_tokens for t in kept]
    pieces = targets.split(lengths)
    orders = []
    for batch, num_tokens, t in packs:
        parts, inner = (
            batch.ids.split(batch.lengths),
            {i for context in batch.contexts for i in context},
        )
        whole = [
            torch.cat([parts[j] for j in (*c, i)])
            for i, c in enumerate(batch.contexts)
            if i not in inner
        ]
        chosen = [names[tuple(ids.tolist())] for ids in whole]
        assert num_tokens == sum(lengths[i] for i in chosen)
        for field in fields(train.Targets):  # targets belong to the trajectories of the pack
            value = getattr(t, field.name)
            expected = [getattr(pieces[i], field.name) for i in chosen]
            if value is None:
                assert expected == [None] * len(chosen)
            else:
                assert torch.equal(value, torch.cat(expected))
        orders.append(chosen)
    epochs = [[set(orders[2 * e]), set(orders[2 * e + 1])] for e in range(3)]
    assert all(a | b == set(range(8)) for a, b in epochs)
    assert any(epoch != epochs[0] for epoch in epochs) and epochs[0] != [
        {0, 1, 2, 3},
        {4, 5, 6, 7},
    ]  # shuffled


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_masked_tokens_get_zero_gradient(trained_folder, monkeypatch, estimator):
    """d loss / d hidden is zero in every row that does not choose a sampled token."""
    learner = make_learner(
        trained_folder, bias=True, estimator=estimator, kl_coef=0.1, entropy_coef=0.1
    )
    kept, targets = played_and_targets(learner)
    hidden, packed_hidden = [], model.packed_hidden

    def spy(*args):
        hidden.append(packed_hidden(*args))
        hidden[-1].retain_grad()
        return hidden[-1]

    monkeypatch.setattr(model, "packed_hidden", spy)
    batch = pack(kept)
    for loss, _ in both_losses(learner, batch, targets):
        loss.backward()
    sampled = [token for t in kept for turn in t.turns for token in turn.response_ids]
    assert batch.ids[batch.response_index].tolist() == sampled
    chooses = torch.zeros(len(batch.ids), dtype=torch.bool)
    chooses[batch.response_index - 1] = True  # the row before a sampled token
    assert len(hidden) == (2 if estimator == "gae" else 1)
    for rows in hidden:
        assert rows.grad.shape == (len(batch.ids), 64)
        assert (rows.grad[~chooses] == 0).all()
        assert (rows.grad[chooses].abs().amax(1) > 0).all()


def test_prompt_text_is_not_trained(trained_folder):
    """The loss does not read prompt tokens as targets: only what they do to the sampled tokens' states counts."""
    learner = make_learner(trained_folder, estimator="grpo")
    kept, targets = played_and_targets(learner)
    learner.policy = model.Policy(
        model.load_model(str(trained_folder))[0]
    )  # not sharded, so its parts can be used
    batch = pack(kept)
    weight = learner.policy.model.lm_head.weight
    untied = torch.nn.Parameter(weight.detach().clone())
    learner.policy.model.lm_head.weight = untied
    targets.advantages = torch.ones_like(targets.advantages)
    learner.config = replace(learner.config, entropy_coef=0.0)
    for loss, _ in both_losses(learner, batch, targets):
        loss.backward()
    # by hand at ratio 1: dL/dW = -1/R sum over sampled tokens of (onehot - p) h^T
    with torch.no_grad():
        hidden = model.packed_hidden(learner.policy.model.model, batch)
        h, y = hidden[batch.response_index - 1], batch.ids[batch.response_index]
        error = torch.nn.functional.one_hot(y, 768) - (h @ untied.T).softmax(-1)
        expected = -(error.T @ h) / len(y)
    torch.testing.assert_close(untied.grad, expected, rtol=1e-3, atol=1e-5)


def test_the_loss_moves_probability_towards_advantage(trained_folder):
    learner = make_learner(trained_folder, estimator="grpo", learning_rate=1e-5, batch_size=8)
    kept, targets = played_and_targets(learner)
    before = parallel.score_tokens(learner.policy, kept, learner.config, 1.0)[0]
    train.update(learner, kept, targets)
    gain = parallel.score_tokens(learner.policy, kept, learner.config, 1.0)[0] - before
    assert (gain * targets.advantages).mean() > 0


def test_compiled_parts_on_packs_of_one_size_change_nothing(trained_folder, monkeypatch):
    compiled = []

    def compile_eagerly(module, **options):
        compiled.append((type(module).__name__, options))

    monkeypatch.setattr(torch.nn.Module, "compile", compile_eagerly)
    sizes, packed = [], train.pack
    monkeypatch.setattr(
        train, "pack", lambda *a, **k: (sizes.append(packed(*a, **k)), sizes[-1])[1]
    )
    found, _ = captured_update(
        trained_folder, monkeypatch, compile=True, batch_size=8, micro_batch_tokens=2000
    )
    monkeypatch.undo()
    assert len(compiled) == 2 * 2 * 3 and {options["dynamic"] for _, options in compiled} == {False}
    assert {len(batch.ids) for batch in sizes} == {2000} and len(sizes) > 0
    expected, _ = captured_update(
        trained_folder, monkeypatch, batch_size=8, micro_batch_tokens=2000
    )
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_recomputed_log_probs_are_the_trainers(trained_folder):
    learner = make_learner(trained_folder, recompute_old_logprobs=True)
    kept = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for t in kept:
        for each in t.turns:
            each.rollout_logprobs = [
                lp - 0.5 for lp in each.rollout_logprobs
            ]  # an engine that is off
    targets = train.compute_targets(learner, kept)
    expected, _ = parallel.score_tokens(learner.policy, kept, learner.config, 1.0)
    assert torch.equal(targets.old_logprobs, expected)
    metrics = train.update(learner, kept, targets)
    assert metrics["logprob_diff_mean"] == pytest.approx(0.5, abs=1e-3)
    assert metrics["logprob_diff_max"] == pytest.approx(0.5, abs=1e-2)


def test_a_drift_between_engine_and_trainer_is_said(trained_folder, tmp_path, capsys, monkeypatch):
    targets = train.compute_targets

    def drifted(*args):
        found = targets(*args)
        return replace(found, rollout_logprobs=found.rollout_logprobs - 0.01)

    monkeypatch.setattr(train, "compute_targets", drifted)
    rows = run(tmp_path / "out", trained_folder, num_iterations=1)
    assert rows[0]["logprob_diff_mean"] == pytest.approx(0.01, abs=1e-4)
    assert (
        "warning: the log-probs of engine and trainer differ by 0.0100 nats a token"
        in capsys.readouterr().out
    )


# ---------- every method


class Update:
    """One iteration up to its only optimizer step, whose gradients are kept. `prepare(learner)` comes before the
    targets, `change(targets)` after them."""

    def __init__(self, start, prepare=None, change=None, **changes):
        self.start, settings = start, dict(estimator="grpo", batch_size=8, entropy_coef=0.0)
        learner = make_learner(start, bias=True, **settings | changes)
        self.learner, self.config, chat = learner, learner.config, Chat(learner.tokenizer)
        self.played = train.collect_rollouts(learner, learner.engine, chat)
        scores = torch.tensor([t.score for t in self.played], dtype=torch.float64)
        self.groups = train.select_groups(self.config, self.played, scores).tolist()
        self.original = [self.played[4 * group + i] for group in self.groups for i in range(4)]
        masked = self.config.mask_observations
        self.kept = (
            self.original if masked else [rollout.unmask(t, chat.end) for t in self.original]
        )
        if prepare:
            prepare(learner)
        self.targets = train.compute_targets(
            learner, self.kept, len(self.groups) / self.config.num_groups
        )
        if change:
            change(self.targets)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "optimizer_step", self.spy)
            self.metrics = train.update(learner, self.kept, self.targets)

    def spy(self, learner, metrics):
        grads = {
            name: p.grad.full_tensor().clone()
            for name, p in learner.policy.model.named_parameters()
        }
        self.gradient = torch.cat([grads[name].flatten() for name in sorted(grads)])
        self.of_critic = (
            learner.critic and learner.critic.value_head.weight.grad.full_tensor().clone()
        )
        return {"grad_norm": 0.0}

    def advantages(self):
        """Of tokens, by trajectory and turn."""
        each = iter(self.targets.advantages.tolist())
        return [[[next(each) for _ in turn.response_ids] for turn in t.turns] for t in self.kept]

    def plain_gradient(self):
        """-sum of A grad log p in a loop over trajectories and what each of their turns saw, one forward at a time."""
        plain = AutoModelForCausalLM.from_pretrained(self.start, dtype=torch.float32)
        num_tokens, B = sum(t.num_response_tokens for t in self.kept), len(self.kept)
        for t, advantages in zip(self.kept, self.advantages(), strict=True):
            share = {
                "token_mean": 1 / num_tokens,
                "seq_mean_token_mean": 1 / B / t.num_response_tokens,
                "seq_mean_token_sum": 1 / B,
                "constant": 1 / B / (3 * 12),
            }[self.config.aggregation]
            seen, loss = [], 0.0
            for turn, weights in zip(t.turns, advantages, strict=True):
                seen = [
                    *([] if self.config.context_turns else seen),
                    *turn.prompt_ids,
                    *turn.response_ids,
                ]
                n = len(turn.response_ids)
                logp = plain(torch.tensor([seen])).logits[0, -n - 1 : -1].log_softmax(-1)
                chosen = logp.gather(1, torch.tensor(turn.response_ids)[:, None])[:, 0]
                loss -= (chosen * torch.tensor(weights)).sum() * share
            loss.backward()
        grads = {name: p.grad for name, p in plain.named_parameters()}
        return torch.cat([grads[name].flatten() for name in sorted(grads)])


@pytest.fixture(scope="module")
def neutral(trained_folder):
    """GRPO with nothing else switched on."""
    parallel.init_distributed(small_config())
    return Update(trained_folder)


def same(a, b):
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


def scores_of(update):
    return torch.tensor([t.score for t in update.original], dtype=torch.float64).view(
        -1, 4
    )  # (P, N)


def first_advantages(update):
    """Those of the first token of each trajectory, (P, N)."""
    return torch.tensor([turns[0][0] for turns in update.advantages()], dtype=torch.float64).view(
        -1, 4
    )


def rewards_of(update):
    return {turn.reward for t in update.played for turn in t.turns}


def spread(update):
    """How much advantages differ inside of a trajectory, at most."""
    return max(max(map(max, turns)) - min(map(min, turns)) for turns in update.advantages())


METHODS = {  # settings, what holds for the update `u` and the neutral one `n`
    "neutral": ({}, lambda u, n: torch.equal(u.gradient, n.gradient)),
    # estimators
    "gae": (dict(estimator="gae"), lambda u, n: spread(u) > 0 and u.of_critic.abs().max() > 0),
    "bi_level_gae": (
        dict(estimator="bi_level_gae", turn_gamma=0.5),
        lambda u, n: abs(u.targets.advantages.mean()) < 1e-5 and u.of_critic.abs().max() > 0,
    ),
    "dr_grpo": (
        dict(estimator="dr_grpo"),
        lambda u, n: same(first_advantages(u), scores_of(u) - scores_of(u).mean(1, keepdim=True)),
    ),
    "rloo": (
        dict(estimator="rloo"),
        lambda u, n: same(
            first_advantages(u), (scores_of(u) - scores_of(u).mean(1, keepdim=True)) * 4 / 3
        ),
    ),
    "reinforce_plus_plus": (
        dict(estimator="reinforce_plus_plus", turn_gamma=0.5),
        lambda u, n: spread(u) > 0 and abs(u.targets.advantages.std() - 1) < 1e-3,
    ),
    "reinforce_plus_plus_baseline": (
        dict(estimator="reinforce_plus_plus_baseline"),
        lambda u, n: spread(u) == 0 and abs(u.targets.advantages.std() - 1) < 1e-3,
    ),
    "grpo, turn level": (
        dict(turn_level=True),
        lambda u, n: spread(u) > 0 and u.groups == n.groups,
    ),
    "rloo, turn level": (dict(estimator="rloo", turn_level=True), lambda u, n: spread(u) > 0),
    # normalised rewards: GRPO of them is GRPO, Dr. GRPO of them GRPO as well
    "mean": (dict(reward_norm="mean"), lambda u, n: same(u.gradient, n.gradient)),
    "mean_std": (
        dict(reward_norm="mean_std", estimator="dr_grpo"),
        lambda u, n: same(u.gradient, n.gradient),
    ),
    "asym_clip": (
        dict(reward_norm="asym_clip", estimator="dr_grpo"),
        lambda u, n: same(
            first_advantages(u), (x := first_advantages(n).clamp(-1, 3)) - x.mean(1, keepdim=True)
        ),
    ),
    "mean_std over the batch": (
        dict(reward_norm="mean_std", reward_norm_over="batch", estimator="dr_grpo"),
        lambda u, n: same(
            first_advantages(u) * (scores_of(u).std() + 1e-6),
            scores_of(u) - scores_of(u).mean(1, keepdim=True),
        ),
    ),
    # aggregations
    "seq_mean_token_mean": (
        dict(aggregation="seq_mean_token_mean"),
        lambda u, n: not same(u.gradient, n.gradient),
    ),
    "seq_mean_token_sum": (
        dict(aggregation="seq_mean_token_sum"),
        lambda u, n: same(u.gradient, n.gradient * len(u.targets.advantages) / 8),
    ),
    "constant": (
        dict(aggregation="constant"),
        lambda u, n: same(u.gradient, n.gradient * len(u.targets.advantages) / 8 / 36),
    ),
    # filters
    "count": (
        dict(filter_strategy="count", filter_keep=2),
        lambda u, n: same(u.gradient, n.gradient),
    ),
    "top_p": (
        dict(filter_strategy="top_p", filter_keep=0.01, batch_size=4),
        lambda u, n: len(u.groups) == 1 and u.groups[0] in n.groups,
    ),
    "top_p_softmax": (
        dict(filter_strategy="top_p_softmax", filter_keep=1.0, batch_size=16, filter_zero_std=True),
        lambda u, n: u.groups == [0, 1, 2, 3],
    ),
    "min_p": (
        dict(filter_strategy="min_p", filter_keep=1.0, batch_size=4),
        lambda u, n: scores_of(u).std(1).min() == scores_of(n).std(1).max(),
    ),
    "by mean, smallest, unfiltered variance": (
        dict(filter_by="reward_mean", filter_smallest=True, filter_zero_std=True),
        lambda u, n: (
            sorted(means := [sum(t.score for t in u.played[4 * g : 4 * g + 4]) for g in range(4)])[
                :2
            ]
            == sorted(means[g] for g in u.groups)
        ),
    ),
    "by length": (
        dict(
            filter_by="length",
            filter_keep=1,
            filter_strategy="count",
            filter_zero_std=True,
            batch_size=4,
        ),
        lambda u, n: (
            sum(t.num_response_tokens for t in u.kept)
            == max(
                sum(t.num_response_tokens for t in u.played[4 * g : 4 * g + 4]) for g in range(4)
            )
        ),
    ),
    "by entropy": (
        dict(
            filter_by="entropy",
            filter_keep=1,
            filter_strategy="count",
            filter_zero_std=True,
            batch_size=4,
        ),
        lambda u, n: (
            max(
                range(4),
                key=lambda g: (
                    -torch.cat(
                        [torch.tensor(t.rollout_logprobs) for t in u.played[4 * g : 4 * g + 4]]
                    ).mean()
                ),
            )
            in u.groups
        ),
    ),
    "a loss scaled by what was kept": (
        dict(filter_loss_scale="linear"),
        lambda u, n: same(u.gradient, n.gradient * 0.5),
    ),
    "a loss scaled by its root": (
        dict(filter_loss_scale="sqrt"),
        lambda u, n: same(u.gradient, n.gradient * 0.5**0.5),
    ),
    # windows, the mask of the paper's code
    "single turns": (
        dict(context_turns=1),
        lambda u, n: all(
            len(turn.prompt_ids) < 400 and turn.prompt_ids[0] == 1
            for t in u.kept
            for turn in t.turns
        ),
    ),
    "two turns": (dict(context_turns=2), lambda u, n: max(len(t.turns) for t in u.kept) == 3),
    "two turns, all tokens": (
        dict(context_turns=2, mask_observations=False),
        lambda u, n: (
            len(u.targets.advantages) > 2 * sum(t.num_response_tokens for t in u.original)
        ),
    ),
    "all tokens": (
        dict(mask_observations=False),
        lambda u, n: (
            not same(u.gradient, n.gradient) and same(first_advantages(u), first_advantages(n))
        ),
    ),
    # rewards: this environment pays at the goal only, so that only the plan is denser
    "sparse": (dict(reward_density="sparse"), lambda u, n: same(u.gradient, n.gradient)),
    "balanced": (dict(reward_density="balanced"), lambda u, n: same(u.gradient, n.gradient)),
    "dense": (dict(reward_density="dense"), lambda u, n: same(u.gradient, n.gradient)),
    "plan": (
        dict(reward_density="plan"),
        lambda u, n: not same(u.gradient, n.gradient) and len(rewards_of(u)) > len(rewards_of(n)),
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_the_update_that_it_names(trained_folder, neutral, method):
    settings, holds = METHODS[method]
    update = Update(trained_folder, **settings)
    for values in vars(update.targets).values():
        assert values is None or torch.isfinite(values).all()
    assert update.metrics["logprob_diff_max"] < 1e-3 and update.metrics["approx_kl"] < 1e-6
    assert update.gradient.norm() > 1e-4 and holds(update, neutral)
    assert same(update.gradient, update.plain_gradient())


def shaken(learner):
    """A reference that differs from the policy."""
    with torch.no_grad():
        for p in learner.ref.parameters():
            p.mul_(1.1)


@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_by_hand(trained_folder, kl_estimator):
    changes = dict(
        kl_coef=0.1, kl_in="reward", kl_estimator=kl_estimator, estimator="reinforce_plus_plus"
    )
    update = Update(trained_folder, prepare=shaken, **changes)
    d = (update.targets.old_logprobs - update.targets.ref_logprobs).double()
    kl = {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[kl_estimator]
    assert kl.abs().mean() > 0.01
    turns = [turn for t in update.kept for turn in t.turns]
    rewards = (
        torch.tensor([r for x in turns for r in (*[0.0] * (len(x.response_ids) - 1), x.reward)])
        - 0.1 * kl
    )
    parts = rewards.split([t.num_response_tokens for t in update.kept])
    to_go = torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts])
    expected = (to_go - to_go.mean()) / to_go.std()
    torch.testing.assert_close(
        update.targets.advantages.double(), expected, rtol=1e-4, atol=1e-4
    )
    assert same(update.gradient, update.plain_gradient())  # nothing of it is left in the loss
    assert update.metrics["kl_ref"] == pytest.approx(kl.mean().item(), rel=1e-3)


@pytest.mark.parametrize("estimator", ["gae", "grpo", "reinforce_plus_plus"])
def test_what_engine_and_trainer_differ_by_is_no_kl(trained_folder, estimator):
    """A policy that is its reference, without any reward: whitening would blow up the last bits of the engine's."""
    learner = make_learner(
        trained_folder, estimator=estimator, kl_coef=0.1, kl_in="reward", kl_estimator="k1"
    )
    kept, _ = played_and_targets(learner)
    for turn in (turn for t in kept for turn in t.turns):
        turn.reward, turn.rollout_logprobs = (
            0.0,
            [lp + 1e-3 * (i % 2) for i, lp in enumerate(turn.rollout_logprobs)],
        )
    targets = train.compute_targets(learner, kept)
    assert (
        torch.equal(targets.old_logprobs, targets.ref_logprobs)
        and targets.advantages.abs().max() == 0.0
    )


@pytest.mark.parametrize("kl_estimator", ["k2", "k3"])
def test_kl_in_the_loss_by_hand(trained_folder, neutral, kl_estimator):
    update = Update(trained_folder, prepare=shaken, kl_coef=0.1, kl_estimator=kl_estimator)
    assert torch.equal(update.targets.advantages, neutral.targets.advantages)
    d = update.targets.old_logprobs - update.targets.ref_logprobs
    update.targets.advantages -= 0.1 * (
        d if kl_estimator == "k2" else 1 - (-d).exp()
    )  # derivatives of the two
    assert same(update.gradient, update.plain_gradient()) and not same(
        update.gradient, neutral.gradient
    )


def test_dual_clip_bounds_what_bad_tokens_can_do(trained_folder):
    """All ratios are e^2 = 7.4: good tokens are clipped, bad ones only by a dual clip below that."""

    def far(targets):
        targets.old_logprobs = targets.old_logprobs - 2.0

    single, loose, tight = (
        Update(trained_folder, change=far, dual_clip=c) for c in (0.0, 8.0, 3.0)
    )
    single.targets.advantages.clamp_(max=0.0)
    assert same(single.gradient, single.plain_gradient()) and single.gradient.norm() > 1e-3
    assert torch.equal(loose.gradient, single.gradient) and tight.gradient.abs().max() == 0.0


def test_true_thoughts_move_the_policy(trained_folder, neutral, monkeypatch):
    """Replies of an odd length are given a true thought."""
    parse = dialogue.parse_response

    def thoughtful(text, *, think):
        return parse(text, think=think)._replace(
            thought="Ice is cold." if len(text) % 2 else "Ice is hot."
        )

    monkeypatch.setattr(dialogue, "parse_response", thoughtful)
    monkeypatch.setattr(grids.FrozenLake, "statements", lambda env: ["Ice is cold.", "Goal up."])
    update = Update(trained_folder, think_reward=0.5)
    odd = 0
    for t, before in zip(update.played, neutral.played, strict=True):
        for turn, plain in zip(t.turns, before.turns, strict=True):
            assert turn.response_ids == plain.response_ids
            assert turn.reward == pytest.approx(plain.reward + 0.25 * (len(turn.text) % 2))
            odd += len(turn.text) % 2
    assert odd > 0 and not same(update.gradient, neutral.gradient)
    assert same(update.gradient, update.plain_gradient())


def test_a_mixture_draws_an_environment_for_each_group(trained_folder, monkeypatch):
    learner, asked = make_learner(trained_folder, num_groups=400, group_size=2), []
    monkeypatch.setattr(
        train, "mixture_at", lambda spec, step: {"a": 0.25, "b": 0.75} if step else {spec: 1.0}
    )
    monkeypatch.setattr(parallel, "collect_all", lambda *args, envs, **options: asked.append(envs))
    for learner.step in (1, 1, 2, 0):
        train.collect_rollouts(learner, learner.engine, None)
    first, again, second, alone = asked
    assert first == again != second and set(alone) == {learner.config.env}
    assert first[::2] == first[1::2] and len(first) == 800 and {type(env) for env in first} == {str}
    assert first.count("a") / 800 == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 400) ** 0.5)


def test_scores_are_normalised_inside_of_each_environment(trained_folder, monkeypatch):
    mixture = {SMALL_RUN["env"]: 0.5, "bandit": 0.5}
    monkeypatch.setattr(train, "mixture_at", lambda spec, step: mixture)
    changes = dict(
        reward_norm="mean_std",
        reward_norm_over="env",
        estimator="dr_grpo",
        batch_size=16,
        filter_keep=1.0,
    )
    update = Update(trained_folder, **changes)
    assert {t.env for t in update.kept} == set(mixture) and len(update.kept) == 16
    z = []
    for t in update.kept:
        own = torch.tensor(
            [other.score for other in update.kept if other.env == t.env], dtype=torch.float64
        )
        z.append((t.score - own.mean()) / (own.std() + 1e-6))
    z = torch.stack(z).view(-1, 4)
    assert z.std() > 0.5 and same(first_advantages(update), z - z.mean(1, keepdim=True))
    assert same(update.gradient, update.plain_gradient())


def test_lines_of_iterations_are_aligned():
    row = dict.fromkeys(report.PRINTED) | {
        "step": 9,
        "reward": -0.25,
        "success": 1.0,
        "regime": "diverse",
    }
    later = dict.fromkeys(report.PRINTED, 1.5) | {"step": 10, "regime": "diverse"}
    lines = [report.describe_step(row, 200, 0.0), report.describe_step(later, 200, 90.0)]
    bars = [[i for i, char in enumerate(line) if char == "|"] for line in lines]
    assert bars[0] == bars[1][: len(bars[0])] and lines[1].endswith("diverse | 2 min left")
    assert lines[0].startswith(
        "   9/200 reward -0.25 | success 1.00 | in_group_reward_std    - | kept_groups   - |"
    )


# ---------- steps that are not finite


def state_of(learner):
    return [
        p.detach().full_tensor().clone()
        for m in (learner.policy, learner.critic)
        for p in m.parameters()
    ]


def unchanged(learner, before):
    return all(torch.equal(a, b) for a, b in zip(state_of(learner), before, strict=True))


@pytest.mark.parametrize("where", ["loss", "policy gradient", "critic gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(
    trained_folder, monkeypatch, where, capsys
):
    learner = make_learner(trained_folder, batch_size=8, max_bad_steps=3)
    kept, targets = played_and_targets(learner)
    before = state_of(learner)
    capsys.readouterr()
    policy_loss, backward = starpo.policy_loss, train.backward
    if where == "loss":
        monkeypatch.setattr(
            starpo, "policy_loss", lambda *a, **k: (policy_loss(*a, **k)[0] * math.nan, {})
        )
    else:
        module = (
            learner.policy.model.model.norm
            if where == "policy gradient"
            else learner.critic.value_head
        )

        def spoilt(*args):
            metrics = backward(*args)
            module.weight.grad.mul_(math.inf)
            return metrics

        monkeypatch.setattr(train, "backward", spoilt)
    for count in (1, 2):
        train.update(learner, kept, targets)
        assert capsys.readouterr().out == (
            "iteration 1: the loss or the gradient is not finite; optimizer step skipped\n"
        )
        assert learner.bad_steps == count and unchanged(learner, before)
        assert all(
            p.grad is None for p in learner.policy.parameters()
        )  # nothing is left for the next step
    with pytest.raises(ValueError) as error:
        train.update(learner, kept, targets)
    assert str(error.value) == (
        "the loss or the gradient was not finite in 3 optimizer steps in a row (iteration 1); "
        "lower learning_rate or critic_lr, and start with another --out_dir"
    )
    assert unchanged(learner, before)

    learner.bad_steps = 2
    monkeypatch.undo()
    for optimizer in learner.optimizers.values():
        optimizer.zero_grad()
    train.update(learner, kept, targets)
    assert learner.bad_steps == 0 and not unchanged(learner, before)  # only steps in a row count


def weights_of(folder):
    (file,) = (folder / "state").glob("*.safetensors")
    return {key: value for key, value in load_file(file).items() if ".weights." in key}


def test_a_run_of_bad_steps_stops_and_leaves_the_checkpoint(trained_folder, tmp_path, monkeypatch):
    settings = dict(batch_size=8, max_bad_steps=2, save_every=1)
    run(tmp_path / "out", trained_folder, num_iterations=1, **settings)
    before = weights_of(tmp_path / "out" / "checkpoint-000001")
    policy_loss = starpo.policy_loss
    monkeypatch.setattr(
        starpo, "policy_loss", lambda *a, **k: (policy_loss(*a, **k)[0] * math.nan, {})
    )
    with pytest.raises(
        ValueError, match=r"not finite in 2 optimizer steps in a row \(iteration 3\)"
    ):
        run(tmp_path / "out", trained_folder, num_iterations=9, **settings)
    rows = rows_of(tmp_path / "out")
    assert [row["bad_steps"] for row in rows] == [0, 1]
    assert rows[1]["pg_loss"] is None and rows[1]["grad_norm"] is None  # NaN is no JSON
    after = weights_of(tmp_path / "out" / "checkpoint-000002")
    assert len(before) > 0 and all(torch.equal(value, after[key]) for key, value in before.items())


# ---------- checkpoints


def test_learner_saves_and_loads_everything(trained_folder, tmp_path):
    learner = make_learner(trained_folder, bias=True)
    kept, targets = played_and_targets(learner)
    train.update(learner, kept, targets)
    learner.step, learner.bad_steps = 7, 1
    with Saver(tmp_path, 2) as saver:
        learner.save(saver)
    other = make_learner(trained_folder)
    other.load(tmp_path / "checkpoint-000007")
    assert (other.step, other.bad_steps) == (7, 1) and unchanged(other, state_of(learner))
    for each in (learner, other):  # the same next step, so the optimizers agree too
        train.update(each, kept, copy.deepcopy(targets))
    assert unchanged(other, state_of(learner))
    with Saver(tmp_path, 2) as saver:
        for learner.step in (8, 9):
            learner.save(saver)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000008", "checkpoint-000009"]


# ---------- learning


def test_the_policy_learns_which_arm_pays(tmp_path, monkeypatch):
    """Whole chain on the bandit, from the base model: it pulls either arm, so only reward can tell which is better."""
    monkeypatch.chdir(tmp_path)
    config, base = Path(train.__file__).parent / "config", Path(train.__file__).parent / "base"
    files = [str(config / name) for name in ("bandit_grpo.py", "tiny.py")]
    sizes = ["--num_iterations=20", "--eval_every=0", "--eval_size=32", "--learning_rate=1e-3"]
    train.main([*files, *sizes, f"--model={base}", "--out_dir=out/arms"])
    success = [
        row["success"] for row in rows_of("out/arms")
    ]  # share of the better arm; chance is 0.5
    assert sum(success[-5:]) / 5 > max(0.7, sum(success[:4]) / 4 + 0.15)
