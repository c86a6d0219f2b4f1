"""Tests that compare starpo.py with hand-computed numbers, slow loops or sums over all outcomes."""

from configurator import (
    CRITIC_ESTIMATORS,
    GIGPO_ESTIMATORS,
    GROUP_BASELINE_ESTIMATORS,
    Aggregation,
)

import doctest
import inspect
import math
import re
import warnings
from typing import get_args

import pytest
import torch
from learners import BUILT_IN
from learners import estimate as estimate_turns

import starpo
from support import training_metrics
from support.training_metrics import explained_variance, rollout_metrics

NAN, INF = float("nan"), float("inf")


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual, expected, tol=1e-12):
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol
    )


def filtered(scores, group_size, keep, **options):
    std = starpo.group_stats(scores, group_size)[1]
    return starpo.filter_groups(std, std, keep=keep, **options)


def grouped(scores, group_size, estimator="grpo"):
    return starpo.group_advantages(scores, torch.arange(len(scores)) // group_size, estimator)


def test_doctests():
    results = doctest.testmod(starpo)
    assert results.attempted > 0
    assert results.failed == 0
    functions = [f for f in vars(starpo).values() if inspect.isfunction(f)]
    own = [f for f in functions if f.__module__ == "starpo"]
    public = [f for f in own if not f.__name__.startswith("_")]
    assert len(public) >= 17
    assert [f.__name__ for f in public if ">>>" not in f.__doc__] == []
    results = doctest.testmod(training_metrics)
    assert results.attempted > 0 and results.failed == 0


# ---------- groups


def test_group_stats_by_hand():
    # Group 0 has mean 2 and unbiased variance ((-2)^2 + 0 + 2^2) / 2 = 4.
    # Group 1 has mean -1 and variance (1 + 1 + 4) / 2 = 3.
    mean, std, best = starpo.group_stats(doubles(0, 2, 4, -2, -2, 1), 3)
    close(mean, [2, -1])
    close(std, [2, math.sqrt(3)])
    close(best, [4, 1])


def test_group_stats_of_one_rollout_has_zero_std():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean, std, best = starpo.group_stats(torch.tensor([3.0, -1.0]), 1)
    assert mean.tolist() == best.tolist() == [3.0, -1.0]
    assert std.tolist() == [0.0, 0.0]


OF_GROUPS = ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_noise_is_no_variance(dtype):
    low = torch.tensor([0.3, 9.0], dtype=dtype)
    high = torch.nextafter(low, low + 1)  # one bit above `low`; in float64 high[0] is 0.1 + 0.2
    assert dtype == torch.float32 or high[0].item() == 0.1 + 0.2 != low[0].item()
    scores = torch.stack([low, high], 1).flatten()
    assert starpo.group_stats(scores, 2)[1].tolist() == [0.0, 0.0]
    for estimator in OF_GROUPS:
        assert grouped(scores, 2, estimator).tolist() == [0.0] * 4
    assert filtered(scores, 2, 0.9).tolist() == []
    groups = torch.tensor([0, 0, 1, 1])
    for method in ("mean", "mean_std", "asym_clip"):
        assert starpo.normalize_rewards(scores, [1] * 4, groups, method).tolist() == [0.0] * 4
    # whitening must not scale the noise up to 1
    options = dict(estimator="reinforce_plus_plus_baseline", group_size=2)
    found, _ = estimate_turns(scores, None, [1] * 4, [1] * 4, **options)
    assert found.tolist() == [0.0] * 4
    stats = starpo.group_stats(scores, 2)
    assert rollout_metrics(stats, torch.zeros(4), 2)["zero_std_frac"] == 1.0


def test_small_true_variance_survives():
    # two rollouts earn 10.9, and one of them loses 0.1 as a format penalty
    scores = torch.tensor([10.9, 10.8])
    assert starpo.group_stats(scores, 2)[1].item() == pytest.approx(0.1 / math.sqrt(2), rel=1e-4)
    assert filtered(scores, 2, 0.5).tolist() == [0]


@pytest.mark.parametrize(
    "estimator, expected",
    [
        # Group 0 has mean 2 and std 2. Group 1 has mean -1 and std sqrt(3).
        # grpo adds 1e-6 to each std.
        (
            "grpo",
            [-2 / 2.000001, 0, 2 / 2.000001, *(x / (math.sqrt(3) + 1e-6) for x in (-1, -1, 2))],
        ),
        ("dr_grpo", [-2, 0, 2, -1, -1, 2]),
        ("reinforce_plus_plus_baseline", [-2, 0, 2, -1, -1, 2]),
        # rloo subtracts the mean of the other scores of the group.
        # Group 0: 0 - (2 + 4) / 2, 2 - (0 + 4) / 2, 4 - (0 + 2) / 2.
        # Group 1: -2 - (-2 + 1) / 2 twice, 1 - (-2 - 2) / 2.
        ("rloo", [-3, 0, 3, -1.5, -1.5, 3]),
    ],
)
def test_group_advantages_by_hand(estimator, expected):
    scores = doubles(0, 2, 4, -2, -2, 1)
    close(grouped(scores, 3, estimator), expected)
    order = torch.tensor([3, 0, 4, 1, 2, 5])
    mixed = starpo.group_advantages(scores[order], torch.tensor([9, 0, 9, 0, 0, 9]), estimator)
    close(mixed, doubles(*expected)[order])


@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_group_advantages_sum_to_zero_and_agree_with_loop(estimator):
    torch.manual_seed(0)
    scores = torch.randn(24, dtype=torch.float64) * 3 + 7
    advantages = grouped(scores, 4, estimator)
    assert advantages.view(6, 4).sum(1).abs().max() < 1e-12
    assert advantages.abs().max() > 0.5
    for i in range(24):
        group = scores[i // 4 * 4 : i // 4 * 4 + 4].tolist()
        mean = sum(group) / 4
        std = math.sqrt(sum((s - mean) ** 2 for s in group) / 3)
        expected = scores[i].item() - mean
        if estimator == "grpo":
            expected /= std + 1e-6
        elif estimator == "rloo":
            expected = scores[i].item() - sum(s for j, s in enumerate(group) if j != i % 4) / 3
        assert advantages[i].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_group_advantages_without_variance_are_zero(estimator):
    assert grouped(torch.tensor([3.0, -1.0]), 1, estimator).tolist() == [0.0, 0.0]
    advantages = grouped(doubles(5, 5, 0, 2), 2, estimator)
    assert advantages[:2].tolist() == [0.0, 0.0] and advantages[2] == -advantages[3] < 0
    close(
        grouped(doubles(5, 5, 0, 2), 2),
        [0, 0, -1 / (math.sqrt(2) + 1e-6), 1 / (math.sqrt(2) + 1e-6)],
    )


def test_stats_within_groups_by_hand():
    # The scores 1 and 5 of group 4 have mean 3 and variance (4 + 4) / 1.
    # Group 2 has the scores 7, 7 and 7. Group 0 has one score.
    scores, groups = doubles(1, 7, 5, 7, 7, -2), torch.tensor([4, 2, 4, 2, 2, 0])
    mean, std, size = starpo._stats_within_groups(scores, groups)
    close(mean, [3, 7, 3, 7, 7, -2])
    close(std, [math.sqrt(8), 0, math.sqrt(8), 0, 0, 0])
    assert size.tolist() == [2, 3, 2, 3, 3, 1]


# ---------- normalised rewards

# Four trajectories have 2, 1, 2 and 1 turns. Their scores are 3, 0, 5 and 3.
TURN_REWARDS, TURNS = (1, 2, 0, 4, 1, 3), [2, 1, 2, 1]
NORMALISED_WITHIN = {"group": [0, 0, 1, 1], "batch": [0, 0, 0, 0], "env": [0, 1, 1, 0]}
R2, R6 = math.sqrt(2), math.sqrt(17 / 4)
NORMALISED = [
    # The two groups have the mean scores 1.5 and 4. The batch has the mean 11 / 4. The two
    # environments have the means 3 and 2.5. The change of a trajectory's score is added to the
    # reward of the trajectory's last turn.
    ("mean", "group", [1, 2 - 1.5, -1.5, 4, 1 - 4, 3 - 4]),
    ("mean", "batch", [1, 2 - 2.75, -2.75, 4, 1 - 2.75, 3 - 2.75]),
    ("mean", "env", [1, 2 - 3, -2.5, 4, 1 - 2.5, 3 - 3]),
    # The stds of the groups are 3 / sqrt(2) and sqrt(2). Each score becomes (score - mean) / std =
    # +-1 / sqrt(2). Each reward is divided by the std of the group. Then the reward of the last
    # turn is changed so that the rewards of a trajectory sum to the new score.
    ("mean_std", "group", [R2 / 3, 1 / R2 - R2 / 3, -1 / R2, 4 / R2, 1 / R2 - 4 / R2, -1 / R2]),
    # The scores minus the batch mean are 1/4, -11/4, 9/4 and 1/4. Their variance is
    # (1 + 121 + 81 + 1) / 16 / 3 = 17/4.
    ("mean_std", "batch", [1 / R6, -0.75 / R6, -2.75 / R6, 4 / R6, -1.75 / R6, 0.25 / R6]),
    # -2.75 / R6 = -1.33 is clipped to -1
    ("asym_clip", "batch", [1 / R6, -0.75 / R6, -1, 4 / R6, -1.75 / R6, 0.25 / R6]),
    # The scores of environment 0 are equal, so its rewards become 0. Environment 1 has the std
    # 5 / sqrt(2).
    ("mean_std", "env", [0, 0, -1 / R2, 4 * R2 / 5, 1 / R2 - 4 * R2 / 5, 0]),
]


@pytest.mark.parametrize("method, over, expected", NORMALISED)
def test_normalize_rewards_by_hand(method, over, expected):
    rewards = starpo.normalize_rewards(
        doubles(*TURN_REWARDS), TURNS, torch.tensor(NORMALISED_WITHIN[over]), method
    )
    close(rewards, expected, tol=2e-6)  # `expected` ignores the 1e-6 that is added to a std


def test_asym_clip_by_hand():
    # Eleven scores of 0 and one of 12 have mean 1 and variance (11 + 121) / 11 = 12. The score 12
    # becomes (12 - 1) / sqrt(12) = 3.18, clipped to 3. The score 0 becomes -1 / sqrt(12) = -0.29.
    # With -12 in place of 12, all signs are opposite, and -3.18 is clipped to -1.
    for sign, bound in ((1, 3.0), (-1, -1.0)):
        rewards = starpo.normalize_rewards(
            doubles(*[0] * 11, sign * 12), [1] * 12, torch.zeros(12).long(), "asym_clip"
        )
        close(rewards, [-sign / math.sqrt(12)] * 11 + [bound], tol=1e-6)


@pytest.mark.parametrize("over", ["group", "batch", "env"])
@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_normalize_rewards_agrees_with_loop(method, over):
    torch.manual_seed(1)
    turns = torch.randint(1, 5, (24,)).tolist()
    rewards = torch.randn(sum(turns), dtype=torch.float64).round(decimals=1)
    groups = {
        "group": torch.arange(24) // 4,
        "batch": torch.zeros(24).long(),
        "env": torch.randint(3, (24,)),
    }[over]
    found = starpo.normalize_rewards(rewards, turns, groups, method).split(turns)
    scores = [part.sum().item() for part in rewards.split(turns)]
    for b, part in enumerate(rewards.split(turns)):
        own = [scores[i] for i in range(24) if groups[i] == groups[b]]
        mean = sum(own) / len(own)
        std = (
            math.sqrt(sum((x - mean) ** 2 for x in own) / (len(own) - 1)) + 1e-6
            if method != "mean"
            else 1.0
        )
        wanted = (scores[b] - mean) / std
        wanted = min(max(wanted, -1.0), 3.0) if method == "asym_clip" else wanted
        close(found[b][:-1], part[:-1] / std)
        assert found[b].sum().item() == pytest.approx(wanted, abs=1e-12)


def test_normalised_scores_of_single_trajectories_are_zero():
    for method in ("mean", "mean_std", "asym_clip"):
        rewards = starpo.normalize_rewards(doubles(0.5, 1, 2), [2, 1], torch.tensor([0, 1]), method)
        assert [part.sum().item() for part in rewards.split([2, 1])] == [0.0, 0.0]


# ---------- filters

# The std of two scores is their difference / sqrt(2). The differences are 1, 3, 0, 2.
FOUR_GROUPS = (0, 1, 0, 3, 4, 4, 0, 2)


@pytest.mark.parametrize(
    "keep, kept",
    [
        (0.1, [1]),  # max(1, int(0.1 * 4)) = 1 of 4 groups is kept
        (0.25, [1]),
        (0.5, [1, 3]),
        (0.74, [1, 3]),  # int(2.96) = 2
        (0.75, [0, 1, 3]),
        (0.99, [0, 1, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_filter_by_hand(keep, kept):
    groups = filtered(doubles(*FOUR_GROUPS), 2, keep)
    assert groups.dtype == torch.int64
    assert groups.tolist() == kept


def test_filter_never_fills_up_with_zero_variance():
    # int(0.75 * 4) = 3 groups may be kept, but only one has variance
    assert filtered(doubles(1, 1, 0, 0, 2, 3, 7, 7), 2, 0.75).tolist() == [2]


def test_filter_ties_go_to_the_lower_index():
    scores = doubles(0, 1, 0, 2, 5, 7, -2, 0, 1, 3, 0, 1)  # differences 1, 2, 2, 2, 2, 1
    assert filtered(scores, 2, 0.5).tolist() == [1, 2, 3]
    assert filtered(scores, 2, 0.9).tolist() == [0, 1, 2, 3, 4]
    many = doubles(0, 1, 0, 1, 0, 2).repeat(1000)  # every third group has the largest std
    assert filtered(many, 2, 0.1).tolist() == list(range(2, 900, 3))
    noisy = doubles(0, 0.3, 0, 0.1 + 0.2)  # counts as a tie: the stds differ by only 4e-17
    assert noisy[3] > noisy[1]
    assert filtered(noisy, 2, 0.5).tolist() == [0]


def test_filter_may_be_empty():
    groups = filtered(torch.ones(8), 4, 0.5)
    assert groups.dtype == torch.int64
    assert groups.shape == (0,)
    assert filtered(torch.tensor([1.0, 2.0, 3.0]), 1, 0.5).tolist() == []
    assert filtered(torch.ones(8), 4, 1.0).tolist() == [0, 1]


def test_filter_count_survives_float_product():
    # In floats 0.29 * 100 is 28.999999999999996, but 29 groups must be kept.
    scores = torch.stack([torch.zeros(100), torch.arange(1.0, 101.0)], 1).flatten()
    assert filtered(scores, 2, 0.29).tolist() == list(range(71, 100))


# The value of each group is its std. The four values are 1, 3, 0 and 2. Their sum is 6. The powers
# e^3, e^2, e^1 and e^0 are 20.09, 7.39, 2.72 and 1. Their sum is 31.19. The softmax divides each
# power by 31.19. So the softmax of 3, 2, 1 and 0 is 0.644, 0.237, 0.087 and 0.032.
@pytest.mark.parametrize(
    "strategy, keep, options, kept",
    [
        ("fraction", 0.5, {}, [1, 3]),
        ("fraction", 0.5, dict(smallest=True), [0, 3]),  # keeps 2 of 4; group 2 (std 0) is excluded
        ("fraction", 0.1, dict(smallest=True), [0]),
        ("fraction", 0.5, dict(smallest=True, zero_std=True), [0, 2]),
        ("fraction", 0.99, dict(zero_std=True), [0, 1, 3]),
        ("count", 1, {}, [1]),
        ("count", 2.0, {}, [1, 3]),
        ("count", 4, {}, [0, 1, 3]),
        ("count", 4, dict(zero_std=True), [0, 1, 2, 3]),
        ("count", 1, dict(smallest=True), [0]),
        ("count", 2, dict(smallest=True), [0, 3]),
        ("count", 1, dict(smallest=True, zero_std=True), [2]),
        ("top_p", 0.5, {}, [1]),  # group 1 has half of the sum, 3 of 6
        ("top_p", 0.51, {}, [1, 3]),
        ("top_p", 5 / 6, {}, [1, 3]),
        ("top_p", 0.84, {}, [0, 1, 3]),
        ("top_p", 1, dict(zero_std=True), [0, 1, 3]),  # groups 0, 1, 3 have the whole sum, 6
        # If group 2 is excluded, the shares of e^3, e^2 and e^1 in their sum are 0.665, 0.245 and
        # 0.090. If zero_std includes group 2 (e^0), the shares of e^3 and e^2 are 0.644 and 0.237.
        ("top_p_softmax", 0.66, {}, [1]),
        ("top_p_softmax", 0.67, {}, [1, 3]),
        ("top_p_softmax", 0.90, {}, [1, 3]),
        ("top_p_softmax", 0.92, {}, [0, 1, 3]),
        ("top_p_softmax", 0.64, dict(zero_std=True), [1]),
        ("top_p_softmax", 0.65, dict(zero_std=True), [1, 3]),
        ("top_p_softmax", 0.97, dict(zero_std=True), [0, 1, 2, 3]),
        ("min_p", 1, {}, [1]),
        ("min_p", 0.67, {}, [1]),
        ("min_p", 2 / 3, {}, [1, 3]),
        ("min_p", 0.33, {}, [0, 1, 3]),
        ("min_p", 0.33, dict(zero_std=True), [0, 1, 3]),
    ],
)
def test_filter_strategies_by_hand(strategy, keep, options, kept):
    std = doubles(1, 3, 0, 2)
    assert starpo.filter_groups(std, std, keep=keep, strategy=strategy, **options).tolist() == kept


def test_smallest_keeps_groups_with_variance():
    """Groups without variance are excluded before the other groups are ranked, as in RAGEN-2."""
    std = doubles(0.55, 0.03, 0, 0.54, 0, 0.79, 0.3, 0.45)
    assert starpo.filter_groups(std, std, keep=0.25, smallest=True).tolist() == [1, 6]
    assert starpo.filter_groups(std, std, keep=0.25).tolist() == [0, 5]


def test_filter_ranks_by_other_values_and_still_excludes_groups_without_variance():
    values, std = doubles(5, -1, 4, 3), doubles(0, 1, 1, 1)
    assert starpo.filter_groups(values, std, keep=0.5).tolist() == [2, 3]
    assert starpo.filter_groups(values, std, keep=0.5, zero_std=True).tolist() == [0, 2]
    assert starpo.filter_groups(values, std, keep=2, strategy="count", smallest=True).tolist() == [
        1,
        3,
    ]
    # top_p_softmax allows negative values. Without group 0 (std 0), the exponentials of the values
    # sum to e^-1 + e^4 + e^3. In this sum, e^4 has the share 0.73, and e^4 + e^3 has 0.995.
    assert starpo.filter_groups(values, std, keep=0.99, strategy="top_p_softmax").tolist() == [2, 3]
    assert starpo.filter_groups(values, std, keep=0.72, strategy="top_p_softmax").tolist() == [2]


@pytest.mark.parametrize(
    "strategy, keep",
    [("fraction", 0.9), ("count", 2), ("top_p", 0.9), ("top_p_softmax", 0.9), ("min_p", 0.1)],
)
def test_filter_strategies_on_groups_that_are_alike(strategy, keep):
    alike = doubles(0.7, 0.7, 0.7)
    wanted = {"fraction": [0, 1], "count": [0, 1]}
    kept = starpo.filter_groups(alike, alike, keep=keep, strategy=strategy).tolist()
    assert kept == wanted.get(strategy, [0, 1, 2])
    assert starpo.filter_groups(alike * 0, alike * 0, keep=keep, strategy=strategy).tolist() == []
    one = doubles(0.7)
    assert starpo.filter_groups(one, one, keep=min(keep, 1), strategy=strategy).tolist() == [0]


def slow_filter(values, std, keep, strategy, smallest, zero_std):
    mass = [math.exp(v) for v in values] if strategy == "top_p_softmax" else values
    left = [i for i in range(len(values)) if std[i] > 0 or zero_std]
    taken = []
    for i in sorted(left, key=lambda i: (values[i] if smallest else -values[i], i)):
        enough = {
            "fraction": len(taken) >= max(1, int(keep * len(values))),
            "count": len(taken) >= keep,
            "top_p": sum(mass[j] for j in taken) >= keep * sum(mass[j] for j in left),
            "min_p": values[i] < keep * max(values[j] for j in left),
        }
        if enough[strategy.removesuffix("_softmax")]:
            break
        taken.append(i)
    return sorted(taken)


@pytest.mark.parametrize("strategy", ["fraction", "count", "top_p", "top_p_softmax", "min_p"])
def test_filter_strategies_agree_with_loop(strategy):
    generator, sizes = torch.Generator().manual_seed(6), set()
    for i in range(60):
        values = torch.rand(9, generator=generator, dtype=torch.float64) * 3
        std = torch.rand(9, generator=generator, dtype=torch.float64).round()
        keep = (1 + i % 9) if strategy == "count" else 0.05 + 0.9 * (i / 60)
        options = dict(
            smallest=strategy in ("fraction", "count") and i % 2 == 0, zero_std=i % 3 == 0
        )
        kept = starpo.filter_groups(values, std, keep=keep, strategy=strategy, **options).tolist()
        assert kept == slow_filter(values.tolist(), std.tolist(), keep, strategy, **options)
        sizes.add(len(kept))
    assert len(sizes) > 4


# ---------- tokens


def test_gae_by_hand():
    # gamma = 0.5, lam = 0.5, gamma * lam = 0.25.
    # Trajectory 0 has V = 1, 2, 4 and r = 0, 1, 2.
    # delta_0 = 0 + 0.5 * 2 - 1 = 0, delta_1 = 1 + 0.5 * 4 - 2 = 1, delta_2 = 2 - 4 = -2.
    # A_2 = -2, A_1 = 1 - 0.25 * 2 = 0.5, A_0 = 0 + 0.25 * 0.5 = 0.125.
    # Trajectory 1 has one token, with V = 1, r = 3 and A = 3 - 1 = 2.
    advantages, returns = starpo.gae(doubles(0, 1, 2, 3), doubles(1, 2, 4, 1), [3, 1], 0.5, 0.5)
    close(advantages, [0.125, 0.5, -2, 2])
    close(returns, [1.125, 2.5, 2, 3])


def padded_gae_with_observations(rewards, values, response_mask, gamma, lam):
    """Slow reference: walk each row of T tokens from its end and skip unsampled tokens."""
    B, T = response_mask.shape
    advantages = torch.zeros(B, T, dtype=values.dtype)
    for b in range(B):
        next_value = next_advantage = 0.0
        for t in reversed(range(T)):
            if not response_mask[b, t]:
                continue
            delta = rewards[b, t] + gamma * next_value - values[b, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[b, t]
            advantages[b, t] = next_advantage
    return advantages


@pytest.mark.parametrize(
    "gamma, lam", [(0.9, 0.8), (1.0, 0.95), (0.97, 1.0), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)]
)
def test_gae_agrees_with_walk_over_observations(gamma, lam):
    generator = torch.Generator().manual_seed(1)
    # Turns have 1 to 4 sampled tokens. Two observation tokens precede each turn.
    turn_lengths = [[1, 1, 1], [4, 1, 2], [3], [1], [2, 2, 1, 1, 4]]
    turn_rewards = [[0.0, 0.0, 1.0], [-0.1, 0.0, 0.0], [0.0], [2.0], [0.0, -1.0, 0.0, 10.0, 0.0]]
    B, T = 5, 24
    response_mask = torch.zeros(B, T, dtype=torch.bool)
    rewards = torch.zeros(B, T, dtype=torch.float64)
    values = torch.randn(B, T, generator=generator, dtype=torch.float64)
    for b in range(B):
        t = 0
        for n, reward in zip(turn_lengths[b], turn_rewards[b], strict=True):
            t += 2
            response_mask[b, t : t + n] = True
            t += n
            rewards[b, t - 1] = reward
    expected = padded_gae_with_observations(rewards, values, response_mask, gamma, lam)[
        response_mask
    ]

    lengths = [sum(turns) for turns in turn_lengths]
    advantages, returns = starpo.gae(
        rewards[response_mask], values[response_mask], lengths, gamma, lam
    )
    close(advantages, expected)
    close(returns, expected + values[response_mask])
    assert expected.abs().min() > 1e-4


def test_gae_without_discount_is_return_to_go_minus_value():
    generator = torch.Generator().manual_seed(2)
    lengths = [5, 1, 7]
    rewards, values = torch.randn(2, 13, generator=generator, dtype=torch.float64)
    advantages, returns = starpo.gae(rewards, values, lengths, 1.0, 1.0)
    to_go = torch.cat([part.flip(0).cumsum(0).flip(0) for part in rewards.split(lengths)])
    close(returns, to_go)
    close(advantages, to_go - values)


def test_gae_takes_half_precision_and_no_trajectory():
    advantages, returns = starpo.gae(
        torch.tensor([1.0, 2.0]), torch.zeros(2).bfloat16(), [1, 1], 0.5, 0.5
    )
    assert advantages.dtype == returns.dtype == torch.float32
    assert advantages.tolist() == [1.0, 2.0]
    assert starpo.gae(torch.zeros(0), torch.zeros(0), [], 1.0, 1.0)[0].shape == (0,)


def test_gae_carries_no_gradient():
    values = torch.ones(2, requires_grad=True)
    advantages, returns = starpo.gae(torch.ones(2), values, [2], 1.0, 1.0)
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_whiten():
    # The numbers 1, 2, 3 and 6 have mean 3 and unbiased variance (4 + 1 + 0 + 9) / 3.
    s = math.sqrt(14 / 3) + 1e-8
    close(starpo.whiten(doubles(1, 2, 3, 6)), [-2 / s, -1 / s, 0, 3 / s])
    x = starpo.whiten(torch.randn(1000, generator=torch.Generator().manual_seed(3)) * 5 + 100)
    assert abs(x.mean().item()) < 1e-6
    assert x.std().item() == pytest.approx(1.0, abs=1e-5)


def test_whiten_without_variance():
    assert starpo.whiten(torch.tensor([7.0])).tolist() == [0.0]
    assert starpo.whiten(torch.zeros(0)).shape == (0,)
    assert starpo.whiten(torch.zeros(3)).tolist() == [0.0] * 3
    # The numbers differ by a rounding error, which whitening must not scale up to 1.
    noise = starpo.whiten(doubles(0.3, 0.1 + 0.2, 0.3))  # 0.1 + 0.2 - 0.3 is 6e-17
    assert noise.abs().max() < 1e-15


# ---------- advantages

# COUNTS has the number of turns of each trajectory. LENGTHS has the number of tokens of each turn.
# A group has three trajectories.
COUNTS = [3, 1, 2, 1, 4, 2]
LENGTHS = [1, 3, 2, 1, 2, 2, 4, 1, 1, 5, 2, 3, 1]
DISCOUNTS = dict(gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6)


def episodes(dense=True):
    """Return the rewards and the values of all tokens.

    If `dense`, each token has a reward, as when the reward includes a KL penalty. Otherwise only
    the last token of a turn has a reward, and in every third turn this reward is 0."""
    generator = torch.Generator().manual_seed(7)
    rewards, values = torch.randn(2, sum(LENGTHS), generator=generator, dtype=torch.float64)
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    sparse = torch.zeros_like(rewards)
    sparse[ends] = rewards[ends]
    sparse[ends[::3]] = 0.0
    return rewards if dense else sparse, values


def nested(flat):
    rest, lengths = iter(flat.tolist()), iter(LENGTHS)
    return [[[next(rest) for _ in range(next(lengths))] for _ in range(count)] for count in COUNTS]


def slow_whiten(numbers):
    mean = sum(numbers) / len(numbers)
    std = math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))
    return [(x - mean) / (std + 1e-8) for x in numbers]


def estimate(estimator, rewards, values=None, **options):
    return estimate_turns(
        rewards, values, LENGTHS, COUNTS, estimator=estimator, group_size=3, **options
    )


def slow_gae(rewards, values, gamma, lam, turn_gamma, turn_lam):
    """Slow reference: GAE of one trajectory, computed from its last token to its first.

    `rewards` and `values` have one list for each turn. A list has one number for each token."""
    advantages, next_value, next_advantage = [], 0.0, 0.0
    for turn_rewards, turn_values in zip(rewards[::-1], values[::-1], strict=True):
        for t in reversed(range(len(turn_rewards))):
            g, decay = (turn_gamma, turn_lam) if t == len(turn_rewards) - 1 else (gamma, lam)
            delta = turn_rewards[t] + g * next_value - turn_values[t]
            next_advantage = delta + g * decay * next_advantage
            next_value = turn_values[t]
            advantages.append(next_advantage)
    return advantages[::-1]


def test_gae_discounts_turns_by_hand():
    # A trajectory has a turn of 1 token and a turn of 2 tokens. V = 1, 2, 4 and r = 1, 0, 8.
    # Inside a turn, gamma is 0.5 and lam is 1. Between turns, gamma is 0.25 and lam is 0.5.
    # delta_2 = 8 - 4 = 4, A_2 = 4.
    # delta_1 = 0 + 0.5 * 4 - 2 = 0, A_1 = 0.5 * 4 = 2.
    # delta_0 = 1 + 0.25 * 2 - 1 = 0.5, A_0 = 0.5 + 0.25 * 0.5 * 2 = 0.75.
    # `gamma` and `lam` have one number for each token, for the step from this token to the next.
    gamma, lam = doubles(0.25, 0.5, 0.25), doubles(0.5, 1, 0.5)
    advantages, returns = starpo.gae(doubles(1, 0, 8), doubles(1, 2, 4), [3], gamma, lam)
    close(advantages, [0.75, 2, 4])
    close(returns, [1.75, 4, 8])
    options = dict(estimator="gae", gamma=0.5, lam=1.0, turn_gamma=0.25, turn_lam=0.5)
    found, returns = estimate_turns(doubles(1, 0, 8), doubles(1, 2, 4), [1, 2], [2], **options)
    close(found, slow_whiten([0.75, 2, 4]))
    close(returns, [1.75, 4, 8])


def slow_bi_level(rewards, values, gamma, lam, turn_gamma, turn_lam):
    """Slow reference: RAGEN's two loops, over turns and over tokens, for one trajectory."""
    turn_returns, next_value, last = [], 0.0, 0.0
    for turn_rewards, turn_values in zip(rewards[::-1], values[::-1], strict=True):
        delta = sum(turn_rewards) + turn_gamma * next_value - turn_values[-1]
        last = delta + turn_gamma * turn_lam * last
        next_value = turn_values[-1]
        turn_returns.append(last + turn_values[-1])
    advantages = []
    for turn_rewards, turn_values, turn_return in zip(
        rewards, values, turn_returns[::-1], strict=True
    ):
        updated, own = list(turn_rewards), []
        updated[-1] += turn_return - sum(turn_rewards)
        for t in reversed(range(len(updated))):
            end = t == len(updated) - 1
            next_value, last = (0.0, 0.0) if end else (turn_values[t + 1], last)
            last = updated[t] + gamma * next_value - turn_values[t] + gamma * lam * last
            own.append(last)
        advantages += own[::-1]
    return advantages


def test_bi_level_gae_by_hand():
    # The first turn has 2 tokens. The second has 1. The tokens have r = 0, 0, 1 and V = 1, 2, 3.
    # Both gammas are 0.5, and both lambdas are 1.
    # The first pass is GAE over turns. Here the V of a turn is the V of its last token: 2 and 3.
    # The second turn has A = 1 - 3 = -2 and return A + V = 1.
    # The first turn has A = 0 + 0.5 * 3 - 2 + 0.5 * -2 = -1.5 and return A + V = 0.5.
    # The second pass is GAE over tokens. Here each turn is a trajectory of its own. The return of a
    # turn becomes the reward of its last token. The only token of the second turn has
    # A = 1 - 3 = -2. In the first turn, the last token has A = 0.5 - 2 = -1.5. The first token has
    # A = 0 + 0.5 * 2 - 1 + 0.5 * -1.5 = -0.75.
    discounts = starpo.Discounts(gamma=0.5, lam=1.0, turn_gamma=0.5, turn_lam=1.0)
    advantages, returns = starpo.bi_level_gae(
        doubles(0, 0, 1), doubles(1, 2, 3), [2, 1], [2], discounts
    )
    close(advantages, [-0.75, -1.5, -2])
    close(returns, [0.25, 0.5, 1])


@pytest.mark.parametrize("estimator, slow", [("gae", slow_gae), ("bi_level_gae", slow_bi_level)])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(turn_gamma=1.0, turn_lam=1.0),
        dict(gamma=1.0, lam=1.0, turn_lam=1.0, turn_gamma=0.95),
        dict(lam=0.0),
    ],
)
def test_estimators_with_turn_discounts_agree_with_loops(estimator, slow, dense, changes):
    (rewards, values), discounts = episodes(dense), DISCOUNTS | changes
    found, returns = estimate(estimator, rewards, values, **discounts)
    pairs = zip(nested(rewards), nested(values), strict=True)
    expected = [a for r, v in pairs for a in slow(r, v, **discounts)]
    close(found, slow_whiten(expected))
    close(returns, doubles(*expected) + values)


def test_bi_level_gae_without_any_reward():
    (rewards, values) = episodes(False)
    found, returns = estimate("bi_level_gae", rewards * 0, values * 0, **DISCOUNTS)
    assert found.abs().max() == returns.abs().max() == 0.0


@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_trajectories_have_one_advantage_for_all_their_tokens(estimator):
    rewards, _ = episodes()
    scores = doubles(*(sum(map(sum, turns)) for turns in nested(rewards)))
    expected = [
        a
        for a, turns in zip(grouped(scores, 3, estimator).tolist(), nested(rewards), strict=True)
        for turn in turns
        for _ in turn
    ]
    found, returns = estimate(estimator, rewards, gamma=0.5, turn_gamma=0.5)
    close(found, slow_whiten(expected) if estimator == "reinforce_plus_plus_baseline" else expected)
    assert returns is None


def test_turn_level_advantages_by_hand():
    # The discount is 0.5. The rewards (1, 0, 2) of trajectory 0 give the returns-to-go (1.5, 1, 2).
    # The rewards (0, 1) of trajectory 1 give (0.5, 1). So the first turns have the returns 1.5 and
    # 0.5, and the second turns have equal returns. Only trajectory 0 has a third turn, so the third
    # turn is compared with no other turn.
    rewards = doubles(1, 0, 0, 2, 0, 0, 1)
    half, small = 1 / 2, 0.5 / (math.sqrt(0.5) + 1e-6)
    for estimator, x in (("dr_grpo", half), ("rloo", 1.0), ("grpo", small)):
        options = dict(estimator=estimator, turn_level=True, turn_gamma=0.5)
        found, _ = estimate_turns(rewards, None, [1, 2, 1, 2, 1], [3, 2], **options)
        close(found, [x, 0, 0, 0, -x, -x, 0])
    # Each of four groups has one trajectory, so no turn is compared with another turn.
    options = dict(estimator="dr_grpo", turn_level=True, group_size=1)
    found, _ = estimate_turns(doubles(1, 2, 3, 4, 5, 6, 7, 8), None, [1] * 8, [2] * 4, **options)
    close(found, [0.0] * 8)
    found, _ = estimate_turns(rewards, None, [1, 2, 1, 2, 1], [3, 2], estimator="dr_grpo")
    close(found, [1.0] * 4 + [-1.0] * 3)


@pytest.mark.parametrize("turn_gamma", [1.0, 0.7])
@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_turn_level_advantages_agree_with_loop(estimator, turn_gamma):
    rewards, _ = episodes()
    to_go = {}
    for b, turns in enumerate(nested(rewards)):
        for k in range(len(turns)):
            to_go[b, k] = sum(turn_gamma ** (j - k) * sum(turns[j]) for j in range(k, len(turns)))
    expected = []
    for length, ((b, k), value) in zip(LENGTHS, to_go.items(), strict=True):
        others = [to_go[i, k] for i in range(6) if i // 3 == b // 3 and i != b and (i, k) in to_go]
        mean = (sum(others) + value) / (len(others) + 1)
        a = value - mean
        if estimator == "grpo" and others:
            a /= math.sqrt(sum((x - mean) ** 2 for x in (value, *others)) / len(others)) + 1e-6
        elif estimator == "rloo" and others:
            a = value - sum(others) / len(others)
        expected += [a] * length
    found, _ = estimate(estimator, rewards, turn_level=True, turn_gamma=turn_gamma)
    close(found, slow_whiten(expected) if estimator == "reinforce_plus_plus_baseline" else expected)
    # In the first group, only one trajectory has a third turn. In the second group, only one
    # trajectory has a third and a fourth turn. No turn can be compared with these three turns, so
    # their advantage is 0. The three turns have 2, 5 and 2 tokens.
    assert expected.count(0.0) == 2 + 5 + 2


def test_permuted_rewards_change_turn_advantages_but_not_those_of_trajectories():
    rewards = doubles(1, 0, 2, 1)
    permuted = doubles(0, 1, 2, 1)
    for turn_level in (False, True):
        options = dict(estimator="dr_grpo", turn_level=turn_level)
        before, _ = estimate_turns(rewards, None, [1] * 4, [2, 2], **options)
        after, _ = estimate_turns(permuted, None, [1] * 4, [2, 2], **options)
        assert torch.equal(before, after) != turn_level


@pytest.mark.parametrize("dense", [False, True])
def test_reinforce_plus_plus_agrees_with_loop(dense):
    rewards, _ = episodes(dense)
    expected = []
    for turns in nested(rewards):
        running, backwards = 0.0, []
        for turn in turns[::-1]:
            for t in reversed(range(len(turn))):
                running = turn[t] + (0.7 if t == len(turn) - 1 else 0.9) * running
                backwards.append(running)
        expected += backwards[::-1]
    found, returns = estimate("reinforce_plus_plus", rewards, **DISCOUNTS)
    close(found, slow_whiten(expected))
    assert returns is None


@pytest.mark.parametrize("estimator", BUILT_IN)
def test_equal_rewards_and_groups_of_one_teach_nothing(estimator):
    for scores in (doubles(2, 2, 2), doubles(2)):
        values = torch.zeros_like(scores) if estimator in CRITIC_ESTIMATORS else None
        ones = [1] * len(scores)
        for turn_level in {False, estimator in GROUP_BASELINE_ESTIMATORS}:
            options = dict(estimator=estimator, turn_level=turn_level)
            found, _ = estimate_turns(scores, values, ones, ones, **options)
            assert found.tolist() == [0.0] * len(scores)


# ---------- policy loss

# Each row has `ratio`, `A`, `term`, `grad` and `clipped`. The loss of a token is -term. Its `grad`
# is d term / d logprob, which is ratio * A, or 0 if the token is clipped.
# With clip_low = 0.2 and clip_high = 0.28, the bounds are 0.8 and 1.28.
CLIP_CASES = [
    (1.5, 2.0, 1.28 * 2.0, 0.0, 1),  # above, A > 0: held at 1.28
    (1.25, 2.0, 1.25 * 2.0, 1.25 * 2.0, 0),  # inside the bounds, though above 1 + clip_low
    (0.5, 2.0, 0.5 * 2.0, 0.5 * 2.0, 0),  # below, A > 0: min(1.0, 1.6) takes the unclipped term
    (0.5, -2.0, 0.8 * -2.0, 0.0, 1),  # below, A < 0: held at 0.8
    (0.9, -2.0, 0.9 * -2.0, 0.9 * -2.0, 0),  # inside
    (1.5, -2.0, 1.5 * -2.0, 1.5 * -2.0, 0),  # above, A < 0: min(-3, -2.56) takes the unclipped term
    (1.0, 3.0, 3.0, 3.0, 0),
    (4.0, 0.0, 0.0, 0.0, 0),  # no advantage
]


@pytest.mark.parametrize("ratio, A, term, grad, clipped", CLIP_CASES)
def test_policy_clip_by_hand(ratio, A, term, grad, clipped):
    old = doubles(-1.5)
    logprobs = (old + math.log(ratio)).requires_grad_()
    loss, metrics = starpo.ppo_loss(
        logprobs, old, doubles(A), clip_low=0.2, clip_high=0.28, num_tokens=1
    )
    loss.backward()
    assert loss.item() == pytest.approx(-term, abs=1e-12)
    assert logprobs.grad.item() == pytest.approx(-grad, abs=1e-12)
    if clipped:
        assert logprobs.grad.item() == 0.0
    assert metrics["clipfrac"].item() == clipped
    assert metrics["approx_kl"].item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-12)


def clip_batch():
    old = torch.linspace(-3.0, -0.5, len(CLIP_CASES), dtype=torch.float64)
    ratio, advantages, terms, grads, clipped = (
        doubles(*column) for column in zip(*CLIP_CASES, strict=True)
    )
    return old, old + ratio.log(), advantages, terms, grads, clipped


def test_policy_loss_divides_sums_by_the_given_denominator():
    old, new, advantages, terms, grads, clipped = clip_batch()
    logprobs = new.clone().requires_grad_()
    loss, metrics = starpo.ppo_loss(
        logprobs, old, advantages, clip_low=0.2, clip_high=0.28, num_tokens=100
    )
    loss.backward()
    close(loss.detach(), -terms.sum() / 100)
    close(logprobs.grad, -grads / 100)
    assert metrics["clipfrac"].item() == clipped.sum().item() / 100 == 0.02
    assert not metrics["approx_kl"].requires_grad


def test_policy_loss_of_micro_batches_adds_up():
    old, new, advantages, _, _, _ = clip_batch()
    whole = new.clone().requires_grad_()
    args = dict(clip_low=0.2, clip_high=0.28, num_tokens=8)
    loss, metrics = starpo.ppo_loss(whole, old, advantages, **args)
    loss.backward()
    parts, total, sums = new.clone().requires_grad_(), 0.0, {"clipfrac": 0.0, "approx_kl": 0.0}
    for piece in (slice(0, 1), slice(1, 6), slice(6, 6), slice(6, 8)):
        part_loss, part_metrics = starpo.ppo_loss(
            parts[piece], old[piece], advantages[piece], **args
        )
        part_loss.backward()
        total += part_loss.item()
        sums = {key: sums[key] + part_metrics[key].item() for key in part_metrics}
    assert total == pytest.approx(loss.item(), rel=1e-12)
    assert loss.item() != 0.0
    close(parts.grad, whole.grad)
    assert sums == pytest.approx({key: value.item() for key, value in metrics.items()}, rel=1e-12)


@pytest.mark.parametrize(
    "ratio, A, term, grad",
    [
        (5.0, -2.0, -6.0, 0.0),  # -10 is held at 3 * -2
        (2.9, -2.0, -5.8, -5.8),
        (0.5, -2.0, -1.6, 0.0),  # PPO's own bound
        (5.0, 2.0, 2.56, 0.0),  # A > 0: dual_clip has no effect
        (0.5, 2.0, 1.0, 1.0),
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_dual_clip_by_hand(ratio, A, term, grad):
    old = doubles(-2)
    logprobs = (old + math.log(ratio)).requires_grad_()
    options = dict(clip_low=0.2, clip_high=0.28, num_tokens=1, dual_clip=3.0)
    loss, metrics = starpo.ppo_loss(logprobs, old, doubles(A), **options)
    loss.backward()
    assert loss.item() == pytest.approx(-term, abs=1e-12)
    assert logprobs.grad.item() == pytest.approx(-grad, abs=1e-12)


def test_weights_multiply_the_terms_and_get_no_gradient():
    old, new, advantages, terms, grads, _ = clip_batch()
    logprobs, weights = (
        new.clone().requires_grad_(),
        torch.arange(8.0, dtype=torch.float64).requires_grad_(),
    )
    options = dict(clip_low=0.2, clip_high=0.28, num_tokens=8, weights=weights)
    loss, _ = starpo.ppo_loss(logprobs, old, advantages, **options)
    loss.backward()
    close(loss.detach(), -(terms * torch.arange(8)).sum() / 8)
    close(logprobs.grad, -grads * torch.arange(8) / 8)
    assert weights.grad is None


def test_policy_loss_survives_absurd_ratios_and_half_precision():
    logprobs = torch.tensor([0.0, -500.0]).bfloat16().requires_grad_()
    old = torch.tensor([-500.0, 0.0])
    loss, metrics = starpo.ppo_loss(
        logprobs, old, doubles(-1, 1).float(), clip_low=0.2, clip_high=0.28, num_tokens=2
    )
    loss.backward()
    # The ratios are clamped to e^20 and e^-20, so the loss is -(e^20 * -1 + e^-20 * 1) / 2.
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.exp(20) / 2, rel=1e-5)
    assert torch.isfinite(logprobs.grad).all()
    assert torch.isfinite(metrics["approx_kl"])


# ---------- aggregation


@pytest.mark.parametrize(
    "aggregation, expected",
    [
        # The loss divides each weight by the number of tokens, 4. The comment of a row gives the
        # weights after this division.
        ("token_mean", [1, 1, 1, 1]),  # 1/4
        ("seq_mean_token_mean", [2, 2 / 3, 2 / 3, 2 / 3]),  # 1/2 * (1, 1/3, 1/3, 1/3)
        ("seq_mean_token_sum", [2, 2, 2, 2]),  # 1/2
        ("constant", [0.2, 0.2, 0.2, 0.2]),  # 1/2 / 10
    ],
)
def test_token_weights_by_hand(aggregation, expected):
    close(starpo.token_weights([1, 3], aggregation, 10), expected, tol=1e-6)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_aggregations_agree_with_loop_and_micro_batches_change_nothing(aggregation):
    lengths = [1, 5, 2, 4]
    generator = torch.Generator().manual_seed(8)
    new, old, advantages = torch.randn(3, 12, generator=generator)
    new, options = old + 0.1 * new, dict(clip_low=0.2, clip_high=0.28, num_tokens=12)
    weights = starpo.token_weights(lengths, aggregation, 6)
    whole = new.clone().requires_grad_()
    loss, _ = starpo.ppo_loss(whole, old, advantages, weights=weights, **options)
    loss.backward()
    losses, _ = zip(
        *(
            starpo.ppo_loss(*token, **options | dict(num_tokens=1, clip_low=0.2))
            for token in zip(*(x.split(1) for x in (new, old, advantages)), strict=True)
        ),
        strict=True,
    )
    parts = torch.stack(losses).split(lengths)
    expected = {
        "token_mean": sum(part.sum() for part in parts) / 12,
        "seq_mean_token_mean": sum(part.sum() / len(part) for part in parts) / 4,
        "seq_mean_token_sum": sum(part.sum() for part in parts) / 4,
        "constant": sum(part.sum() for part in parts) / 4 / 6,
    }[aggregation]
    close(loss.detach(), expected, tol=1e-6)
    pieces, total = new.clone().requires_grad_(), 0.0
    for piece in (slice(0, 1), slice(1, 8), slice(8, 12)):
        part, _ = starpo.ppo_loss(
            pieces[piece], old[piece], advantages[piece], weights=weights[piece], **options
        )
        part.backward()
        total += part.item()
    assert total == pytest.approx(loss.item(), rel=1e-5) != 0.0
    close(pieces.grad, whole.grad, tol=1e-6)


# ---------- value loss

# With value_clip = 0.5 and an old value of 1, v is clipped to [0.5, 1.5].
# The loss is half of the larger of (v - R)^2 and the clipped term (clipped v - R)^2.
# Each row has v, R, the loss, d loss / d v, and 1 if the clipped term is larger (else 0).
VALUE_CASES = [
    (2.0, 3.0, 0.5 * 1.5**2, 0.0, 1),  # held at 1.5, (1.5 - 3)^2 = 2.25 > (2 - 3)^2
    (2.0, 0.0, 0.5 * 2.0**2, 2.0, 0),  # held at 1.5, but (2 - 0)^2 = 4 > (1.5 - 0)^2 = 2.25
    (-1.0, -2.0, 0.5 * 2.5**2, 0.0, 1),  # held at 0.5, (0.5 + 2)^2 = 6.25 > (-1 + 2)^2
    (-1.0, 2.0, 0.5 * 3.0**2, -3.0, 0),  # held at 0.5, but (-1 - 2)^2 = 9 > (0.5 - 2)^2 = 2.25
    (1.25, 2.0, 0.5 * 0.75**2, -0.75, 0),
]


def value_batch():
    values, returns, losses, grads, clipped = (
        doubles(*column) for column in zip(*VALUE_CASES, strict=True)
    )
    return values, returns, torch.ones_like(values), losses, grads, clipped


def test_value_loss_by_hand():
    values, returns, old_values, losses, grads, clipped = value_batch()
    for i in range(5):
        v = values[i : i + 1].clone().requires_grad_()
        loss, metrics = starpo.value_loss(
            v, old_values[:1], returns[i : i + 1], value_clip=0.5, num_tokens=1
        )
        loss.backward()
        close(loss.detach(), losses[i])
        close(v.grad, grads[i : i + 1])
        assert metrics["vf_clipfrac"].item() == clipped[i].item()


def test_value_loss_without_clip_is_half_squared_error():
    values, returns, old_values, _, _, _ = value_batch()
    loss, metrics = starpo.value_loss(values, old_values, returns, value_clip=INF, num_tokens=5)
    close(loss, 0.5 * ((values - returns) ** 2).mean())
    assert metrics["vf_clipfrac"].item() == 0.0


def test_value_loss_of_micro_batches_adds_up():
    values, returns, old_values, losses, grads, clipped = value_batch()
    parts, total, clipped_frac = values.clone().requires_grad_(), 0.0, 0.0
    for piece in (slice(0, 3), slice(3, 4), slice(4, 5)):
        loss, metrics = starpo.value_loss(
            parts[piece], old_values[piece], returns[piece], value_clip=0.5, num_tokens=20
        )
        loss.backward()
        total += loss.item()
        clipped_frac += metrics["vf_clipfrac"].item()
    assert total == pytest.approx(losses.sum().item() / 20, rel=1e-12)
    close(parts.grad, grads / 20)
    assert clipped_frac == pytest.approx(clipped.sum().item() / 20) == 0.1


def test_value_loss_is_weighted_like_the_policy_loss():
    values, returns = doubles(1, 2, 3, 4).requires_grad_(), doubles(0, 0, 0, 0)
    weights = starpo.token_weights([1, 3], "seq_mean_token_mean", 10)
    options = dict(value_clip=INF, num_tokens=4, weights=weights)
    loss, metrics = starpo.value_loss(values, values.detach(), returns, **options)
    loss.backward()
    # 0.5 * (1^2 + (2^2 + 3^2 + 4^2) / 3) / 2
    close(loss.detach(), 0.5 * (1 + 29 / 3) / 2, tol=1e-6)
    close(values.grad, [1 / 2, 2 / 6, 3 / 6, 4 / 6], tol=1e-6)
    assert metrics["vf_clipfrac"].item() == 0.0


# ---------- KL estimators


def test_kl_estimators_by_hand():
    # The three values of d = logprob - ref are log 2, 0 and -log 4. So the ratio exp(-d), which is
    # p(reference) / p(policy), has the values 1/2, 1 and 4.
    logprobs, ref = doubles(-1, -2, -3), doubles(-1 - math.log(2), -2, -3 + math.log(4))
    close(starpo.kl_penalty(logprobs, ref, "k1"), [math.log(2), 0, -math.log(4)])
    close(starpo.kl_penalty(logprobs, ref, "k2"), [math.log(2) ** 2 / 2, 0, math.log(4) ** 2 / 2])
    close(starpo.kl_penalty(logprobs, ref, "k3"), [0.5 - 1 + math.log(2), 0, 4 - 1 - math.log(4)])


def test_k3_is_never_negative_even_for_tiny_ratios():
    generator = torch.Generator().manual_seed(4)
    logprobs = -torch.rand(10_000, generator=generator) * 5
    d = torch.randn(10_000, generator=generator) * 10 ** (
        torch.rand(10_000, generator=generator) * 8 - 7
    )
    k3 = starpo.kl_penalty(logprobs, logprobs - d, "k3")
    assert (k3 >= 0).all()
    assert k3.max() > 1
    assert torch.isfinite(
        starpo.kl_penalty(torch.tensor([-500.0]), torch.tensor([0.0]), "k3")
    ).all()


def enumerated_policy():
    logits = doubles(0.3, -0.7, 1.1).requires_grad_()
    ref_logprobs = doubles(0.5, 0.2, 0.3).log()
    return logits, torch.log_softmax(logits, 0), ref_logprobs


def test_k1_and_k3_have_the_kl_as_expectation():
    _, logprobs, ref = enumerated_policy()
    p, q = logprobs.exp().detach(), ref.exp()
    kl = (p * (p / q).log()).sum().item()
    assert kl > 0.05
    for estimator in ("k1", "k3"):
        mean = (p * starpo.kl_penalty(logprobs, ref, estimator)).sum().item()
        assert mean == pytest.approx(kl, abs=1e-12), estimator
    assert (p * starpo.kl_penalty(logprobs, ref, "k2")).sum().item() != pytest.approx(kl, abs=1e-3)


def expected_loss_gradient(estimator):
    """Return the expected gradient of a KL estimator with respect to the logits.

    The expectation is over tokens sampled from the policy. The sampling probabilities are held
    constant."""
    logits, logprobs, ref = enumerated_policy()
    p = logprobs.exp().detach()
    (p * starpo.kl_penalty(logprobs, ref, estimator)).sum().backward()
    return logits.grad


def test_k1_as_loss_has_zero_expected_gradient():
    close(expected_loss_gradient("k1"), [0, 0, 0])


def test_k2_and_k3_as_loss_have_the_gradients_of_the_two_kls():
    logits, logprobs, ref = enumerated_policy()
    (logprobs.exp() * (logprobs - ref)).sum().backward()  # KL(policy || reference)
    close(expected_loss_gradient("k2"), logits.grad)
    # the gradient of KL(reference || policy) in the logits is p(policy) - p(reference)
    gradient = (logprobs.exp() - ref.exp()).detach()
    close(expected_loss_gradient("k3"), gradient)
    assert gradient.abs().max() > 0.1


# ---------- metrics


def test_explained_variance():
    # The returns (0, 2) have variance 1 (denominator n). The residuals (0, 1) have variance 1/4.
    assert explained_variance(doubles(0, 1), doubles(0, 2)) == pytest.approx(0.75)
    assert explained_variance(doubles(5, 7), doubles(0, 2)) == pytest.approx(1.0)
    assert explained_variance(doubles(2, 0), doubles(0, 2)) == pytest.approx(
        -3.0
    )  # residuals (-2, 2)
    assert explained_variance(doubles(1, 2), doubles(4, 4)) == 0.0
    assert explained_variance(doubles(1, 2), doubles(0.3, 0.1 + 0.2)) == 0.0
    # The returns differ by 1e-7 of their size, which counts as a rounding error.
    assert explained_variance(doubles(1, 2), doubles(1e4, 1e4 + 1e-3)) == 0.0
    assert explained_variance(doubles(1), doubles(2)) == 0.0
    assert explained_variance(doubles(), doubles()) == 0.0


def test_rollout_metrics_by_hand():
    # The means of the groups (0, 2), (1, 1) and (3, 7) are 1, 1 and 5. Their stds are sqrt(2), 0
    # and sqrt(8), and their maxima are 2, 1 and 7.
    successes = torch.tensor([False, True, False, False, True, True])
    stats = starpo.group_stats(doubles(0, 2, 1, 1, 3, 7), 2)
    assert rollout_metrics(stats, successes, 2) == pytest.approx(
        {
            "in_group_reward_mean": 7 / 3,
            "in_group_reward_std": 3 * math.sqrt(2) / 3,
            "in_group_reward_max": 10 / 3,
            "zero_std_frac": 1 / 3,
            "pass@2": 2 / 3,
        }
    )


def test_rollout_metrics_of_single_rollouts():
    stats = starpo.group_stats(doubles(0, 2), 1)
    metrics = rollout_metrics(stats, torch.tensor([0.0, 1.0]), 1)
    assert metrics["pass@1"] == 0.5
    assert metrics["in_group_reward_std"] == 0.0


# ---------- errors and side effects


def test_inputs_stay_unmodified():
    generator = torch.Generator().manual_seed(5)
    x, y, z = torch.randn(3, 6, generator=generator)
    before = [t.clone() for t in (x, y, z)]
    lengths, groups = [2, 4], torch.tensor([0, 0])
    starpo.group_stats(x, 2)
    starpo.filter_groups(y.abs(), x.abs(), keep=0.5, strategy="top_p")
    starpo.normalize_rewards(x, lengths, groups, "mean_std")
    starpo.group_advantages(x, torch.arange(6) // 2, "rloo")
    for estimator in BUILT_IN:
        values = y if estimator in CRITIC_ESTIMATORS else None
        turn_level = estimator in GROUP_BASELINE_ESTIMATORS
        options = dict(estimator=estimator, turn_level=turn_level, turn_gamma=0.5)
        state_weight = 0.5 * (estimator in GIGPO_ESTIMATORS)
        states = [0, 1, 0, 1]
        estimate_turns(
            x, values, [1, 1, 2, 2], [2, 2], states, state_weight=state_weight, **options
        )
    starpo.gae(x, y, lengths, 0.9, 0.9)
    starpo.whiten(x)
    starpo.ppo_loss(x, y, z, clip_low=0.2, clip_high=0.2, num_tokens=6)
    starpo.value_loss(x, y, z, value_clip=0.2, num_tokens=6)
    for estimator in ("k1", "k2", "k3"):
        starpo.kl_penalty(x, y, estimator)
    explained_variance(x, y)
    rollout_metrics(starpo.group_stats(x, 2), y > 0, 2)
    assert all(torch.equal(now, then) for now, then in zip((x, y, z), before, strict=True))
    assert lengths == [2, 4] and groups.tolist() == [0, 0]


ONE, TWO, GROUP = torch.zeros(1), torch.zeros(2), torch.zeros(2).long()
PPO = dict(clip_low=0.2, clip_high=0.2, num_tokens=1)
VALUE = dict(value_clip=0.5, num_tokens=2)
ERRORS = [
    (lambda: starpo.group_stats(torch.zeros(5), 2), "5 scores into groups of group_size=2"),
    (lambda: starpo.group_stats(TWO, 0), "group_size=0"),
    (lambda: starpo.group_stats(torch.zeros(0), 2), "0 scores"),
    (lambda: starpo.group_stats(torch.zeros(2, 2), 2), "{'scores': (2, 2)}"),
    (lambda: starpo.group_stats(torch.tensor([1, 2]), 2), "floats, got torch.int64 [1, 2]"),
    (lambda: starpo.group_stats(torch.tensor([NAN, 2.0]), 2), "got torch.float32 [nan, 2.0]"),
    (lambda: starpo._stats_within_groups(TWO * NAN, GROUP), "got torch.float32 [nan, nan]"),
    (lambda: starpo._stats_within_groups(ONE, GROUP), "{'scores': (1,), 'group_ids': (2,)}"),
    (lambda: starpo.group_advantages(TWO, GROUP, "gae"), "no group baseline for estimator 'gae'"),
    (lambda: starpo.filter_groups(TWO, ONE, keep=0.5), "{'values': (2,), 'std': (1,)}"),
    (lambda: starpo.filter_groups(TWO, TWO, keep=1, strategy="top_k"), "or min_p, got 'top_k'"),
    (lambda: starpo.normalize_rewards(TWO, [2, 1], GROUP, "mean"), "sum to 2, got [2, 1]"),
    (lambda: advantages_of(TWO, "grpo", [1, 2], [1, 1]), "sum to 2, got [1, 2]"),
    (lambda: advantages_of(TWO, "grpo", [1, 1], [1, 2]), "sum to 2, got [1, 2]"),
    (lambda: advantages_of(TWO, "ppo", [1, 1], [1, 1]), "no group baseline for estimator 'ppo'"),
    (lambda: advantages_of(TWO, "grpo", [2, 0], [1, 1]), ">= 1 and sum to 2, got [2, 0]"),
    (lambda: turn_advantages_of(TWO, [1, 2], [1, 1]), "sum to 2, got [1, 2]"),
    (lambda: turn_advantages_of(TWO, [1, 1], [1, 2]), "sum to 2, got [1, 2]"),
    (lambda: returns_of(TWO, [1, 2], [1, 1]), "sum to 2, got [1, 2]"),
    (lambda: starpo.token_weights([1], "mean", 5), "seq_mean_token_sum or constant, got 'mean'"),
    (lambda: starpo.gae(TWO, ONE, [2], 1.0, 1.0), "{'rewards': (2,), 'values': (1,)}"),
    (lambda: starpo.gae(TWO, TWO, [1, 2], 1.0, 1.0), "must be >= 1 and sum to 2, got [1, 2]"),
    (lambda: starpo.gae(TWO, TWO, [2, 0], 1.0, 1.0), "must be >= 1 and sum to 2, got [2, 0]"),
    (lambda: starpo.whiten(torch.zeros(2, 2)), "{'x': (2, 2)}"),
    (lambda: starpo.ppo_loss(TWO, TWO, ONE, **PPO), "'advantages': (1,)"),
    (lambda: starpo.ppo_loss(TWO, TWO, TWO, **PPO | {"num_tokens": 0}), ">= 1, got 0"),
    (lambda: starpo.ppo_loss(TWO, TWO, TWO, **PPO | {"clip_low": 1.2}), "got 1.2, 0.2"),
    (lambda: starpo.ppo_loss(TWO, TWO, TWO, **PPO | {"clip_high": -0.1}), "got 0.2, -0.1"),
    (lambda: starpo.value_loss(TWO, ONE, TWO, **VALUE), "'old_values': (1,)"),
    (lambda: starpo.value_loss(TWO, TWO, TWO, **VALUE | {"value_clip": 0.0}), "> 0, got 0.0"),
    (lambda: starpo.value_loss(TWO, TWO, TWO, **VALUE | {"num_tokens": -1}), ">= 1, got -1"),
    (lambda: starpo.kl_penalty(TWO, TWO, "kl"), "'k1', 'k2' or 'k3', got 'kl'"),
    (lambda: starpo.kl_penalty(TWO, ONE, "k1"), "'ref_logprobs': (1,)"),
]


def advantages_of(rewards, estimator, *counts):
    return starpo.trajectory_advantages(rewards, *counts, GROUP, estimator)


def turn_advantages_of(rewards, *counts):
    return starpo.turn_advantages(rewards, *counts, GROUP, "grpo", turn_gamma=1.0)


def returns_of(rewards, *counts):
    return starpo.token_returns(rewards, *counts, starpo.Discounts(1.0, 1.0, 1.0, 1.0))


@pytest.mark.parametrize("call, message", ERRORS)
def test_errors_name_what_was_given(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# ---------- the sampler's log-probs against the trainer's


def test_importance_weights_by_hand():
    new, rollout = torch.tensor([-1.0, -1.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -1.5, -1.0])
    # `importance_weights` takes the log-probs of pi (`new`), pi_old and pi_engine (`rollout`). The
    # weight is min(pi / pi_engine, cap) / (pi / pi_old).
    # If the engine gave the old log-probs, pi_old is pi_engine. The weight is then
    # min(1, cap / ratio), where ratio = pi / pi_engine.
    found = starpo.importance_weights(new, rollout, rollout, 2.0)
    close(found, [1.0, 2.0 / math.e, 1.0, 1.0], tol=1e-6)
    # If the trainer gave the old log-probs, pi is pi_old before the first optimizer step of an
    # update. The weight is then min(pi_old / pi_engine, cap).
    found = starpo.importance_weights(new, new, rollout, 2.0)
    close(found, [1.0, 2.0, math.exp(0.5), math.exp(-1.0)], tol=1e-6)
    # After an optimizer step, pi differs from pi_old, so the divisor pi / pi_old is not 1.
    old = torch.tensor([-1.0, -1.5, -1.0, -1.5])
    ratio = [1.0, math.exp(0.5), 1.0, math.exp(-0.5)]
    total = [1.0, 2.0, math.exp(0.5), math.exp(-1.0)]
    found = starpo.importance_weights(new, old, rollout, 2.0)
    close(found, [t / r for t, r in zip(total, ratio, strict=True)], tol=1e-6)


def test_importance_weights_truncate_the_gradient():
    """PPO does not clip a token with A < 0 and ratio pi / pi_old above 1.

    The importance weight bounds the gradient of this token. With this weight, d loss / d logprob is
    -A * min(pi / pi_engine, cap)."""
    new = torch.tensor([1.5, 0.1], requires_grad=True)
    old, advantages = torch.zeros(2), torch.tensor([-1.0, -1.0])
    weights = starpo.importance_weights(new, old, old, 2.0)
    assert not weights.requires_grad
    options = dict(clip_low=0.2, clip_high=0.28, num_tokens=1)
    starpo.ppo_loss(new, old, advantages, weights=weights, **options)[0].backward()
    close(new.grad, [2.0, math.exp(0.1)], tol=1e-6)


def test_importance_weights_refuse_a_cap_below_one():
    with pytest.raises(ValueError, match=r"cap must be at least 1, got 0\.5"):
        starpo.importance_weights(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0.5)
