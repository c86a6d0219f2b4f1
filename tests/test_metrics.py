"""
Tests of metrics.py: names and groups of a row, and the glossary page.

    python -m pytest -q tests/test_metrics.py
"""

from configurator import Config

import doctest
from pathlib import Path

from support import metrics
from support.metrics import GROUPS, METRICS, PLACEHOLDERS, glossary, metric_groups, metric_names

ROOT = Path(__file__).resolve().parent.parent


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
    # for each of two samplings: pairs and bound, five values per token and five per thought,
    # moving averages of two values, 3 x 4 of retrieval
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


def test_the_page_is_the_list():
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert page == glossary() + "\n", "run: python -m support.metrics > docs/metrics.md"
    assert all(f"- {placeholder} in a name is " in page for placeholder in PLACEHOLDERS)
