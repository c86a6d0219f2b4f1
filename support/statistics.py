"""Statistics of success rates: intervals over seeds and instances, paired differences, pass@k.

A seed is one training run. An instance is one initial state of a game, such as a map. The intervals
are for the mean over all seeds and all instances that could have been drawn. The error of a
measured mean has two parts, one from the choice of instances and one from the choice of seeds. Each
part has a half-width. The half-width for the choice of seeds uses quantiles of Student's t.
`rate_interval`, `difference_interval` and `mean_over_seeds` combine the two half-widths into one,
the root of the sum of their squares (the method MOVER of Zou and Donner,
https://doi.org/10.1002/sim.3095). `seed_interval` leaves out the error from the choice of
instances.

tests/support/test_statistics.py simulates how often `rate_interval` and `difference_interval`
contain the true value.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy import ndarray

Z_95 = 1.959964  # 97.5 % quantile of the normal distribution
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom
T_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


class Interval(NamedTuple):
    """The ends of an interval, as numbers. For many intervals, the ends are arrays."""

    low: ndarray
    high: ndarray


def rate_interval(wins: ndarray) -> Interval:
    """95 % interval of the mean success rate of S seeds on n instances.

    For one seed with one game per instance, the result is the Wilson interval of n trials. The
    interval is widened, if needed, to contain the measured rate of each seed.

    If a small share of all possible seeds has a much lower or higher rate than the rest, the
    interval contains the true mean too rarely. Example: the rate of each seed is 10 % with
    probability 1/5, and 80 % with probability 4/5. For this example, the table below says how often
    the intervals contain the true value in 20,000 simulated experiments with 256 instances. The
    last column is for the difference between the seeds and a player that wins half of its games.
    Half of the experiments with three seeds have no seed at 10 %, and their interval is usually too
    high. The other half of the experiments have a seed at 10 %. This seed is visible in the text of
    `percent`, which writes each seed's mean beside the interval.

        seeds   rate_interval   difference_interval
        2       67 %            70 %
        3       49 %            54 %
        5       67 %            67 %
        10      89 %            89 %

    Args:
        wins: (..., S, n) share of won games, 0 to 1, of each seed on each instance.

    Returns:
        The low and the high ends, each of shape (...), between 0 and 1.

    >>> low, high = rate_interval(np.array([[1, 1, 1, 1, 1, 1, 1, 1, 0, 0]]))
    >>> round(float(low), 3), round(float(high), 3)
    (0.49, 0.943)
    """
    wins = np.asarray(wins, float)
    n = wins.shape[-1]
    rate = wins.mean((-2, -1))  # (...,)
    # Wilson's interval takes a number of independent games, here num_games. The mean of N
    # independent games has the variance `variance_of_a_game` / N. The mean over the n instances has
    # the variance `variance` / n. The number num_games is the N that makes the two variances
    # equal. If this N is below n, num_games is n instead. N is above n if the rates of the
    # instances vary less than the results of single games.
    variance_of_a_game = rate * (1 - rate)  # (...,)
    variance = _variance_over_instances(wins, lowest=0.0)  # (...,)
    num_games = np.maximum(n, n * variance_of_a_game / variance)  # (...,)
    low, high = wilson_interval(rate * num_games, num_games)
    return _add_seeds(wins, rate - low, high - rate, lowest=0.0)


def interval_of_rates(rates: ndarray, num_prompts: int) -> Interval:
    """`rate_interval`, computed only from the rates of S seeds that played each prompt once.

    It is not known which prompts a seed solved. The function assumes that a prompt solved by one
    seed was also solved by every seed with an equal or higher rate. This assumption gives the
    widest interval.

    Args:
        rates: (..., S) success rates.

    >>> low, high = interval_of_rates(np.array([0.8]), num_prompts=10)  # one seed: Wilson interval
    >>> round(float(low), 3), round(float(high), 3)
    (0.49, 0.943)
    """
    num_solved = np.rint(rates * num_prompts)  # (..., S)
    wins = np.arange(num_prompts) < num_solved[..., None]  # (..., S, n)
    return rate_interval(wins)


def difference_interval(a: ndarray, b: ndarray) -> Interval:
    """95 % interval of the mean of a - b, paired by seed and instance.

    The interval is widened, if needed, to contain each seed's mean difference.

    Args:
        a: (..., S, n) scores between 0 and 1 of S seeds on n instances.
        b: (..., S, n) scores of the same seeds, or (..., 1, n) of a player without seeds.

    >>> low, high = difference_interval(np.ones((1, 98)), np.zeros((1, 98)))
    >>> round(float(low), 3), float(high)
    (0.961, 1.0)
    """
    difference = np.asarray(a, float) - np.asarray(b, float)  # (..., S, n)
    n = difference.shape[-1]
    variance = _variance_over_instances(difference, lowest=-1.0)  # (...,)
    half_width = Z_95 * np.sqrt(variance / (n + 2))  # (...,)
    return _add_seeds(difference, half_width, half_width, lowest=-1.0)


def seed_interval(rates: ndarray) -> Interval:
    """95 % interval of the mean of S seeds. The error from the choice of instances is left out.

    Args:
        rates: (S, ...) success rates, S at least 2.

    >>> low, high = seed_interval(np.array([0.4, 0.5, 0.6]))  # 0.5 -+ 4.3027 * 0.1 / sqrt(3)
    >>> round(float(low), 3), round(float(high), 3)
    (0.252, 0.748)
    """
    num_seeds = len(rates)
    mean = rates.mean(0)  # (...,)
    standard_error = rates.std(0, ddof=1) / math.sqrt(num_seeds)  # (...,)
    half_width = t_quantile(num_seeds - 1) * standard_error
    return Interval(np.maximum(mean - half_width, 0.0), np.minimum(mean + half_width, 1.0))


def _variance_over_instances(scores: ndarray, lowest: float) -> ndarray:
    """Variance of the scores of the instances, (...,).

    The score of an instance is its mean over the seeds. Two instances are added, one with the score
    `lowest` and one with the score 1. If few instances differ from the rest, the variance without
    the added instances is too small. Source: Bonett and Price, "Adjusted Wald confidence interval
    for a difference of binomial proportions based on paired data", 2012.
    """
    means = scores.mean(-2)  # (..., n)
    shape = (*means.shape[:-1], 1)
    worst = np.full(shape, lowest)
    best = np.ones(shape)
    all_means = np.concatenate([means, worst, best], axis=-1)  # (..., n + 2)
    return all_means.var(-1)


def _add_seeds(scores: ndarray, below: ndarray, above: ndarray, lowest: float) -> Interval:
    """Add the error from the choice of seeds to an interval, and make it contain each seed's mean.

    Args:
        scores: (..., S, n).
        below, above: (...,) how far the interval for the choice of instances reaches below and
            above the mean.
    """
    mean = scores.mean((-2, -1))  # (...,)
    seeds = scores.mean(-1)  # (..., S)
    num_seeds = seeds.shape[-1]
    seed_half_width = 0.0
    if num_seeds > 1:
        standard_error = seeds.std(-1, ddof=1) / math.sqrt(num_seeds)  # (...,)
        seed_half_width = t_quantile(num_seeds - 1) * standard_error
    low = np.minimum(mean - np.hypot(below, seed_half_width), seeds.min(-1))
    high = np.maximum(mean + np.hypot(above, seed_half_width), seeds.max(-1))
    low = np.maximum(low, lowest)
    high = np.minimum(high, 1.0)
    return Interval(low, high)


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t. Above 10 degrees of freedom, it is the quantile for 10.

    >>> t_quantile(1), t_quantile(30)
    (12.7062, 2.2281)
    """
    index = min(degrees, len(T_95)) - 1
    return T_95[index]


def wilson_interval(num_success, num_trials) -> Interval:
    """95 % Wilson score interval of a success rate (Wilson 1927).

    Args:
        num_success: a number or an array, with values that need not be whole.
        num_trials: a number or an array, with values of at least 1.

    >>> low, high = wilson_interval(8, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.49, 0.943)
    """
    rate = num_success / num_trials
    correction = Z_95**2 / num_trials
    scale = 1 + correction
    variance = rate * (1 - rate) / num_trials
    variance += correction / (4 * num_trials)
    centre = (rate + correction / 2) / scale
    half_width = Z_95 * np.sqrt(variance) / scale
    low = np.maximum(0.0, centre - half_width)
    high = np.minimum(1.0, centre + half_width)
    return Interval(low, high)


def pass_at_k(n: int, num_right: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right.

    If num_right of n samples are right, the estimate is 1 - C(n - num_right, k) / C(n, k). Source:
    arXiv 2107.03374.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    all_wrong = math.comb(n - num_right, k)
    return 1 - all_wrong / math.comb(n, k)


def rate_in_percent(rate: float, low: float, high: float) -> str:
    """A rate and its interval, in %.

    >>> rate_in_percent(0.5, 0.25, 0.75)
    '50.0 [25.0, 75.0]'
    """
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def percent(scores: ndarray, low: float, high: float) -> str:
    """Mean, interval and each seed's mean, in %. The seeds' means are left out if all seeds have
    equal scores.

    Args: scores: (S, n).
    >>> percent(np.array([[1, 0], [1, 1]]), 0.25, 1.0)
    '75.0 [25.0, 100.0] (50.0, 100.0)'
    """
    text = rate_in_percent(scores.mean(), low, high)
    if (scores == scores[0]).all():
        return text
    seeds = ", ".join(f"{100 * seed.mean():.1f}" for seed in scores)
    return f"{text} ({seeds})"


def rate_text(wins: ndarray) -> str:
    """Mean success rate, its `rate_interval` and each seed's mean, in % (see `percent`).

    Args: wins: (S, n), see `rate_interval`.
    >>> rate_text(np.array([[1, 1, 1, 1, 1, 1, 1, 1, 0, 0]]))
    '80.0 [49.0, 94.3]'
    """
    low, high = rate_interval(wins)
    return percent(wins, float(low), float(high))


def difference_text(a: ndarray, b: ndarray) -> str:
    """Mean of a - b, its `difference_interval` and each seed's mean, in % (see `percent`).

    Args: a, b: see `difference_interval`.
    >>> difference_text(np.ones((1, 98)), np.zeros((1, 98)))
    '100.0 [96.1, 100.0]'
    """
    low, high = difference_interval(a, b)
    return percent(a - b, float(low), float(high))


# ---------- intervals of any statistic


def jackknife_interval(
    statistic: Callable[[ndarray], ndarray], clusters: ndarray
) -> tuple[ndarray, ndarray]:
    """A statistic of n observations in clusters, and the half-width of its 95 % interval.

    Observations of one cluster may depend on each other. The statistic is computed again C times,
    each time without one of the C clusters. Source: Efron and Stein, "The jackknife estimate of
    variance", 1981.

    Args:
        statistic: takes a mask (n,) of the observations to use; returns values of any shape (...).
        clusters: (n,) the cluster of each observation, as a number.
    Returns:
        The statistic of all observations, (...), and the half-width, (...). If there is only one
        cluster, the half-width is NaN.

    >>> x = np.array([1.0, 2.0, 3.0])  # half_width is t times the standard error 1 / sqrt(3)
    >>> value, half_width = jackknife_interval(lambda mask: x[mask].mean(), np.arange(3))
    >>> float(value), round(float(half_width), 3)
    (2.0, 2.484)
    """
    clusters = np.asarray(clusters)
    names = np.unique(clusters)
    everything = np.ones(len(clusters), bool)
    value = np.asarray(statistic(everything))  # (...)
    if len(names) < 2:
        return value, np.full_like(value, np.nan)
    without_each = []
    for name in names:
        without_each.append(statistic(clusters != name))
    degrees = len(names) - 1
    variance = degrees * np.var(without_each, axis=0)  # (...)
    half_width = t_quantile(degrees) * np.sqrt(variance)  # (...)
    return value, half_width


def mean_over_seeds(values: ndarray, half_widths: ndarray) -> tuple[ndarray, ndarray]:
    """The mean of S seeds and the half-width of its 95 % interval.

    The half-width has two parts. The first part combines the `half_widths` of the seeds. The second
    part covers the choice of seeds. If S is 1, the second part is left out. The half-width is the
    root of the sum of the squares of its parts (the method MOVER).

    Args:
        values, half_widths: (S, ...) the value of each seed and the half-width of its interval.

    >>> mean, half_width = mean_over_seeds(np.array([1.0, 3.0]), np.zeros(2))
    >>> float(mean), round(float(half_width), 3)  # t (12.7062) times the standard error (1)
    (2.0, 12.706)
    """
    num_seeds = len(values)
    mean = np.mean(values, axis=0)  # (...)
    inside = np.linalg.norm(half_widths, axis=0) / num_seeds  # (...)
    if num_seeds == 1:
        return mean, inside
    standard_error = np.std(values, axis=0, ddof=1) / math.sqrt(num_seeds)  # (...)
    between = t_quantile(num_seeds - 1) * standard_error  # (...)
    return mean, np.hypot(inside, between)
