"""Tests of support/seed_groups.py: which models are pooled as seeds of one method."""

from configurator import Config

import json
from dataclasses import replace

import pytest

from rollout import Trajectory
from support.run_folder import save_config
from support.scores import Scores, differences
from support.seed_groups import pool_seeds, settings_of_model, without_seed
from tools.sft_config import SftConfig


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save_run(name, **settings):
    save_config(Config(out_dir=f"out/{name}", **settings), {}, f"out/{name}")
    return f"out/{name}/policy"


def save_sft_run(name, **settings):
    save_config(SftConfig(out_dir=f"out/{name}", **settings), {}, f"out/{name}")
    return f"out/{name}/model"


def pool(*folders):
    return pool_seeds({folder: folder for folder in folders})


def test_runs_that_differ_in_the_seed_alone_are_pooled(in_folder):
    a = save_run("a")
    b = save_run("b", seed=1)
    c = save_run("c", seed=2)
    assert pool(a, b, c) == ([[a, b, c]], [])


def test_runs_that_differ_in_a_setting_are_kept_apart(in_folder):
    ppo = save_run("ppo")
    ppo_1 = save_run("ppo_1", seed=1)
    grpo = save_run("grpo", seed=2, estimator="grpo", learning_rate=1e-4)
    seeds, notes = pool(ppo, ppo_1, grpo)
    assert seeds == [[ppo, ppo_1]]
    keys = "estimator, learning_rate"
    assert notes == [f"{grpo} is not another seed of {ppo}: they differ in {keys}"]
    grpo_1 = save_run("grpo_1", seed=1, estimator="grpo", learning_rate=1e-4)
    assert pool(ppo, grpo, ppo_1, grpo_1).seeds == [[ppo, ppo_1], [grpo, grpo_1]]


def test_sft_runs_are_pooled_if_they_differ_in_the_seed_alone(in_folder):
    a = save_sft_run("a", sft_steps=5)
    b = save_sft_run("b", sft_steps=5, seed=1)
    longer = save_sft_run("longer", sft_steps=6, seed=2)
    assert pool(a, b, longer) == (
        [[a, b]],
        [f"{longer} is not another seed of {a}: they differ in sft_steps"],
    )


def test_runs_that_differ_in_what_they_write_are_pooled(in_folder):
    a = save_run("a")
    b = save_run(
        "b", seed=1, sample_every=9, save_every=7, keep_checkpoints=5, grace_s=5.0, wandb="x"
    )
    assert pool(a, b) == ([[a, b]], [])


def test_the_same_seed_counts_once(in_folder):
    a = save_run("a")
    twin = save_run("twin")
    b = save_run("b", seed=1)
    seeds, notes = pool(a, twin, b)
    assert seeds == [[a, b]]
    assert notes == [f"{twin} is not pooled with others: settings and seed are those of {a}"]


def test_the_last_and_the_best_policy_are_kept_apart(in_folder):
    last = save_run("last")
    best = save_run("best", seed=1).replace("policy", "best")
    seeds, notes = pool(last, best)
    assert seeds == []
    folders = "the folder (policy/ is the last policy, best/ the best so far)"
    assert notes == [f"{best} is not another seed of {last}: they differ in {folders}"]


def test_models_without_settings_are_kept_apart(in_folder, tmp_path):
    a = save_run("a")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    seeds, notes = pool(a, "tiny", "hub/model", "Qwen/Qwen2.5-0.5B")
    assert seeds == []
    ending = "is not pooled with others: no config.json says how it was trained"
    assert notes == [f"{name} {ending}" for name in ("tiny", "hub/model", "Qwen/Qwen2.5-0.5B")]
    assert settings_of_model(a) == Config(out_dir="out/a")


def test_the_seed_of_an_sft_stage_is_left_out():
    first = Config(model="out/sft/model", out_dir="out/a")
    second = replace(first, seed=1, model="out/sft_s1/model", out_dir="out/b")
    assert without_seed(first) == without_seed(second)
    other = replace(second, model="out/other_s1/model")
    assert without_seed(first) != without_seed(other)


def test_differences_pool_seeds_of_one_method_only(in_folder):
    names = [save_run("a"), save_run("b", seed=1), save_run("c", estimator="grpo"), "greedy"]
    rows = {}
    for name, wins in zip(names, ["11", "10", "00", "10"], strict=True):
        played = []
        for i, won in enumerate(wins):
            played.append(Trajectory((i,), 0, [], status="success" if won == "1" else "failure"))
        rows[name] = Scores({} if name == "greedy" else {"entropy": 0.1}, played)
    lines = differences(rows, "greedy").split("\n")
    means = [line.split(" [")[0].strip() for line in lines[1:]]
    a, b, c, _ = names
    assert means == [
        f"{a}: 50.0",
        f"{b}: 0.0",
        f"{c}: -50.0",
        f"2 seeds: {a}, {b}: 25.0",
        f"{c} is not another seed of {a}: they differ in estimator",
    ]
    titles = {f"lake: {name}": scores for name, scores in rows.items()}
    policies = {f"lake: {name}": name for name in rows}
    assert f"2 seeds: lake: {a}, lake: {b}: 25.0" in differences(titles, "lake: greedy", policies)
    assert "no config.json" in differences(titles, "lake: greedy")
