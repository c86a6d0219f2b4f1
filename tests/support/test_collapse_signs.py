"""Tests of support/collapse_signs.py on made-up metrics."""

import math

import numpy as np
import pytest
import torch
from test_mutual_information import MEASURED, log, metrics_of

from support.collapse_signs import classify_regime, early_stop_reason, new_warnings


def healthy(num_rows):
    """Return metrics of a run that learns.

    In the first 100 rows, success rises from 0.3 to 0.8, and entropy falls.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(num_rows):
        noise = rng.uniform(0.85, 1.15, 3)
        success = 0.3 + 0.5 * min(1, i / 100)
        spike = 8 if i % 17 == 5 else 1  # healthy runs also have isolated large gradient norms
        row = {
            "step": i + 1,
            "success": success,
            "reward": success,
            "in_group_reward_std": noise[0] * math.sqrt(success * (1 - success)),
            "kept_groups": 2,
            "entropy": noise[1] * (0.3 - 0.2 * min(1, i / 100)),
            "grad_norm": 0.3 * noise[2] * spike,
            "eval_success": success if i % 10 == 9 else None,
        }
        rows.append(row | dict.fromkeys(MEASURED))
    return rows


def changed(rows, start, **changes):
    result = list(rows[:start])
    for row in rows[start:]:
        values = {key: new(row) if callable(new) else new for key, new in changes.items()}
        result.append(row | values)
    return result


# ---------- regimes


def measured(matrix, own, lengths=None):
    return {f"{key}_first": value for key, value in metrics_of(matrix, own, lengths).items()}


# Each matrix scores four thoughts after two prompts. Row i has the log-probs of all four thoughts
# after prompt i.
UNIFORM = log([1 / 4] * 4, [1 / 4] * 4)
READING = log([1 / 2, 1 / 2, 0, 0], [0, 0, 1 / 2, 1 / 2])
CERTAIN = log([1, 1, 0, 0], [0, 0, 1, 1])
SAME = log([1] * 4, [1] * 4)


@pytest.mark.parametrize(
    "matrix, mi, entropy, expected",
    [
        (READING, math.log(2), math.log(2), "diverse"),
        (UNIFORM, 0, math.log(4), "template"),
        (CERTAIN, math.log(2), 0, "compressed"),
        (SAME, 0, 0, "collapsed"),
    ],
)
def test_the_four_regimes(matrix, mi, entropy, expected):
    values = measured(matrix, [0, 0, 1, 1])
    assert values["mi_first"] == pytest.approx(mi)
    assert values["conditional_entropy_first"] == pytest.approx(entropy)
    row = healthy(1)[0] | values
    assert classify_regime(row, []) == expected
    assert classify_regime(healthy(1)[0], [row]) == expected
    start = healthy(1)[0] | measured(READING, [0, 0, 1, 1])
    assert classify_regime(row, [start] * 30) == expected


def test_entropy_is_low_against_the_start():
    # Each thought has ten tokens. In the row `start`, each token has the probability 0.5, so the
    # entropy is 0.693 nats. In the row `later`, each token has the probability 0.9, so the entropy
    # is 0.105 nats. If the history is empty, an entropy of 0.105 is not low, because the fixed
    # limit is 0.05. If the history holds the row `start`, an entropy of 0.105 is low, because it is
    # under a quarter of 0.693.
    start, later = (
        healthy(1)[0] | measured(10 * log([p, 0.01], [0.01, p]), [0, 1], [10, 10])
        for p in (0.5, 0.9)
    )
    assert classify_regime(start, []) == classify_regime(later, []) == "diverse"
    assert classify_regime(later, [start]) == "compressed"


def regime_at_the_end(rows):
    return classify_regime(rows[-1], rows[:-1])


def test_without_measurements_the_traces_of_the_trap_decide():
    rows = healthy(60)
    assert {regime_at_the_end(rows[: i + 1]) for i in range(60)} == {"diverse"}
    flat = changed(rows, 30, in_group_reward_std=0.05, success=0.1)
    assert regime_at_the_end(flat) == "template"
    certain = changed(flat, 40, entropy=0.01)
    assert regime_at_the_end(certain) == "collapsed"
    # rewards vary little because nearly all trajectories succeed
    learned = changed(rows, 30, in_group_reward_std=0.05, success=0.95, entropy=0.01)
    assert regime_at_the_end(learned) == "compressed"
    idle = changed(rows, 0, entropy=None, grad_norm=None)
    assert regime_at_the_end(idle) is None


def test_a_measurement_of_one_prompt_does_not_count():
    flat = changed(healthy(60), 30, in_group_reward_std=0.05, success=0.1)
    one_prompt = measured(torch.tensor([[-1.0, -1.0]]), [0, 0])
    rows = [row | one_prompt for row in flat]
    assert regime_at_the_end(rows) == "template" and regime_at_the_end(rows[:21]) == "diverse"


# ---------- signs of collapse


def all_warnings(rows):
    found = {i: new_warnings(rows[:i]) for i in range(1, len(rows) + 1)}
    return {i: sentences for i, sentences in found.items() if sentences}


def test_a_healthy_run_is_left_alone():
    rows = healthy(200)
    assert all_warnings(rows) == {}
    assert [early_stop_reason(rows[:i]) for i in range(201)] == [None] * 201
    learned = changed(rows, 50, in_group_reward_std=0.01, success=0.99, kept_groups=1)
    assert all_warnings(learned) == {}


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"in_group_reward_std": 0.1}, "std of rewards inside groups went from"),
        ({"entropy": 0.01}, "entropy per token went from"),
        ({"entropy": 6.5}, "entropy per token went from"),
    ],
)
def test_signs_are_reported_once(changes, sentence):
    rows = changed(changed(healthy(60), 0, success=0.3), 30, **changes)
    warnings = all_warnings(rows)
    assert list(warnings) == [33]  # three new values move the median of the last five rows
    (warning,) = warnings[33]
    (new,) = changes.values()
    assert sentence in warning and warning.endswith(f" to {new:.3g}")


def test_levels_in_a_sentence_by_hand():
    rows = changed(changed(healthy(20), 0, entropy=0.5), 17, entropy=0.1)
    assert new_warnings(rows) == ["sign of collapse: entropy per token went from 0.5 to 0.1"]
    assert new_warnings(rows[:19]) == []  # only two of the last five entropies are low
    assert new_warnings(changed(rows, 17, entropy=0.126)) == []  # 0.126 is over a quarter of 0.5
    certain = changed(changed(rows, 0, entropy=0.04), 17, entropy=0.001)
    assert new_warnings(certain) == []  # entropy was low from the start


def test_slow_decline_is_no_cliff():
    falling = changed(
        healthy(150), 0, success=0.2, in_group_reward_std=lambda row: 0.5 * 0.97 ** row["step"]
    )
    assert falling[-1]["in_group_reward_std"] < 0.01 and all_warnings(falling) == {}


def test_skipped_updates_leave_gaps():
    rows = changed(healthy(60), 20, entropy=None, grad_norm=None, kept_groups=0)
    assert all_warnings(rows) == {}


# ---------- early stops


def test_rewards_that_no_longer_vary_stop_a_run():
    rows = changed(healthy(40), 0, in_group_reward_std=0.5)
    low = changed(rows, 15, in_group_reward_std=0.049)
    assert early_stop_reason(low[:24]) is None
    assert early_stop_reason(low[:25]) == (
        "the std of rewards inside groups was below 10% of its mean over the first 10 iterations, "
        "10 iterations in a row"
    )
    nine = changed(low, 24, in_group_reward_std=0.5)[:25]
    assert early_stop_reason(nine) is None
    assert early_stop_reason(changed(rows, 15, in_group_reward_std=0.051)) is None
    zero = changed(rows, 0, in_group_reward_std=0.0, success=0.0)
    assert early_stop_reason(zero) is None  # 0 is not below 10 % of 0


def test_dead_evaluations_stop_a_run():
    dead = lambda row: 0.004 if row["step"] % 10 == 0 else None  # noqa: E731
    rows = changed(healthy(60), 0, eval_success=dead)
    assert early_stop_reason(rows[:49]) is None
    assert early_stop_reason(rows[:50]) == "success was below 1% in 5 evaluations in a row"
    alive = rows[:39] + [rows[39] | {"eval_success": 0.01}] + rows[40:50]
    assert early_stop_reason(alive) is None


def test_an_empty_filter_stops_a_run():
    rows = changed(healthy(30), 10, kept_groups=0)
    assert early_stop_reason(rows[:14]) is None
    assert early_stop_reason(rows[:15]) == "the filter kept no group in 5 iterations in a row"
    assert early_stop_reason(changed(rows, 14, kept_groups=1)[:15]) is None


def test_a_run_without_rows():
    assert early_stop_reason([]) is None and new_warnings([]) == []
