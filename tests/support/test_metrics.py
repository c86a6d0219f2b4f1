"""Tests of support/metrics.py, and of the metrics of an iteration."""

from configurator import Config

import doctest
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from learners import two_trajectories

import starpo
from support import metrics
from support.metrics import GROUPS, METRICS, PLACEHOLDERS, glossary, metric_groups, metric_names
from support.scores import summarize
from support.training_metrics import explained_variance, iteration_metrics, peak_memory

ROOT = Path(__file__).resolve().parents[2]


def test_doctests():
    results = doctest.testmod(metrics)
    assert results.attempted > 0 and results.failed == 0


def test_names_are_unique_and_their_groups_described():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert {metric.group for metric in METRICS} == set(GROUPS)
    assert all(metric.unit and metric.meaning.endswith(".") for metric in METRICS)


def test_names_that_depend_on_the_settings():
    eval_env = "bandit + sokoban:boxes=2 + countdown"
    names = metric_names(Config(group_size=4, batch_size=4, eval_env=eval_env))
    assert names[:3] == ["step", "success", "pass@4"]
    per_env = [name for name in names if name.startswith("eval_success")]
    assert per_env == ["eval_success", "eval_success/sokoban:boxes=2", "eval_success/countdown"]
    assert "eval_success/{ENV}" not in metric_names(Config())
    assert not any(name.startswith("eval_success/") for name in metric_names(Config()))


def test_names_of_the_collapse_metrics():
    groups = metric_groups(Config())
    collapse = [name for name, group in groups.items() if group == "collapse"]
    # `regime` and `valid_thinking_rate` exist once. All other collapse metrics exist twice, for
    # first thoughts and for sampled thoughts. The numbers 2, 10, 2 and 12 in brackets below count:
    # - `pairs` and `mi_bound`
    # - `mi`, `mi_zscore`, `marginal_std` and two entropies, each per token and per thought
    # - `marginal_std_ema` and `mi_zscore_ema`
    # - the three retrieval metrics, each with K = 1, 2, 4 and 8
    assert len(collapse) == 2 + 2 * (2 + 10 + 2 + 12)
    assert {"mi_seq_first", "mi_zscore_ema_sampled", "retrieval_above@8_first"} <= set(collapse)


def test_groups_of_names():
    groups = metric_groups(Config())
    expected = {
        "reward": "rollout",
        "pass@16": "rollout",
        "entropy": "update",
        "kept_groups": "update",
        "eval_entropy": "eval",
        "regime": "collapse",
        "retrieval@1_first": "collapse",
        "cpu_s": "cost",
        "memory_gib": "cost",
    }
    assert {name: groups[name] for name in expected} == expected


def test_metrics_of_an_iteration_by_hand():
    """Four groups have two trajectories each. One group has an error. The filter keeps one of the
    other three groups."""
    first, second = two_trajectories()  # scores 0.9 and 0
    good = [first, second, second, second, first, first]
    sampled = [*good, replace(first, status="error"), first]
    scores = torch.tensor([trajectory.score for trajectory in good])
    stats = starpo.group_stats(scores, 2)
    learner = SimpleNamespace(
        config=Config(group_size=2, batch_size=2), step=7, bad_steps=1, device=torch.device("cpu")
    )
    rollout_timer = SimpleNamespace(wall_s=3.0, cpu_s=5.0)
    update_timer = SimpleNamespace(wall_s=2.0, cpu_s=4.0)
    found = iteration_metrics(learner, sampled, good, stats, 2, rollout_timer, update_timer)
    expected = {
        "step": 7,
        "error_frac": 1 / 8,
        "kept_groups": 1,
        "kept_trajectories": 2,
        "sampled_groups": 4,
        "bad_steps": 1,
        "rollout_s": 3.0,
        "update_s": 2.0,
        "cpu_s": 9.0,
        "success": 3 / 6,
        "pass@2": 2 / 3,
        "zero_std_frac": 2 / 3,
        "in_group_reward_max": (0.9 + 0 + 0.9) / 3,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert found["pg_loss"] is None and found["eval_success"] is None


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads a file of Linux")
def test_peak_memory_is_the_kernels():
    found = peak_memory(torch.device("cpu"))
    kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    assert found == pytest.approx(kib / 2**20, rel=0.02)


def test_summarize_by_hand():
    first, second = two_trajectories()
    assert (first.score, first.num_response_tokens) == (0.9, 4)
    assert summarize([first, second]) == pytest.approx(
        {
            "success": 1 / 2,
            "reward": (0.9 + 0.0) / 2,
            "void_frac": 1 / 2,
            "num_turns": 3 / 2,
            "num_actions": (2 + 3) / 2,
            "valid_frac": 2 / 3,
            "effective_frac": (0 + 0.5 + 1) / 3,
            "thought_true_frac": 3 / 4,
            "thoughts_per_turn": 4 / 3,
            "response_length": (4 + 2) / 2,
            "lost_frac": 1 / 2,
            "out_of_actions_frac": 0.0,
            "out_of_turns_frac": 0.0,
            "out_of_tokens_frac": 0.0,
            "cut_frac": 0.0,
            "cut_by_context_frac": 0.0,
        }
    )
    unchecked = replace(first, turns=first.turns[:1])
    assert summarize([unchecked])["thought_true_frac"] == 0.0


def test_explained_variance_by_hand():
    values, returns = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    assert explained_variance(values, returns) == pytest.approx(1 - 0.5 / 2)
    small = torch.tensor([1.0, 1.0 + 1e-3])
    assert explained_variance(torch.zeros(2), small) == pytest.approx(0.0)
    assert explained_variance(small, small) == 1.0
    assert explained_variance(values, torch.tensor([2.0, 2.0])) == 0.0


def test_the_page_is_the_list():
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert page == glossary() + "\n", "run: python -m support.metrics > docs/metrics.md"
    assert all(f"- {placeholder} in a name is " in page for placeholder in PLACEHOLDERS)
