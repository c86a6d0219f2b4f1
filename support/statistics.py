"""Statistics of success rates: intervals over seeds and instances, paired differences, pass@k.

The intervals are for the mean over all seeds and all instances that could have been drawn. Their
error has two parts. The part of the instances is large if instances differ in difficulty. The part
of the seeds is large if training runs differ. Two or three seeds say little about it, so it gets
the quantiles of Student's t. `rate_interval` and `difference_interval` add the squares of the two
half-widths (the method MOVER of Zou and Donner, https://doi.org/10.1002/sim.3095). If all seeds
have the same rate, only the part of the instances is left. tests/test_statistics.py simulates how
often the intervals hold the true value.
"""

import math

import numpy as np

Z_95 = 1.959964  # 97.5 % quantile of the normal distribution
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom
T_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def rate_interval(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the mean success rate of S seeds on n instances.

    For one seed with one game an instance, it is the Wilson interval of n trials. It holds the
    rates of all seeds.

    Args:
        wins: (..., S, n) share of won games, 0 to 1, of each seed on each instance.

    Returns:
        Lower and upper end (...), between 0 and 1.

    >>> low, high = rate_interval(np.array([[1, 1, 1, 1, 1, 1, 1, 1, 0, 0]]))
    >>> round(float(low), 3), round(float(high), 3)
    (0.49, 0.943)
    """
    wins = np.asarray(wins, float)
    n = wins.shape[-1]
    rate = wins.mean((-2, -1))  # (...,)
    # If instances differ less than those of n single games, the rate is as good as that of more.
    variance = _variance_over_instances(wins, extremes=(0.0, 1.0))  # (...,)
    num_trials = np.maximum(n, rate * (1 - rate) * n / variance)  # (...,)
    low, high = wilson_interval(rate * num_trials, num_trials)
    return _add_seeds(wins, rate - low, high - rate, bounds=(0.0, 1.0))


def difference_interval(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of a - b with its 95 % interval, paired by seed and instance.

    The interval holds the differences of all seeds.

    Args:
        a: (..., S, n) scores between 0 and 1 of S seeds on n instances.
        b: (..., S, n) scores of the same seeds, or (..., 1, n) of a player without seeds.

    Returns:
        Mean, lower end and upper end (...), between -1 and 1.

    >>> mean, low, high = difference_interval(np.ones((1, 98)), np.zeros((1, 98)))
    >>> float(mean), round(float(low), 3), float(high)
    (1.0, 0.961, 1.0)
    """
    difference = np.asarray(a, float) - np.asarray(b, float)  # (..., S, n)
    n = difference.shape[-1]
    variance = _variance_over_instances(difference, extremes=(-1.0, 1.0))  # (...,)
    half_width = Z_95 * np.sqrt(variance / (n + 2))  # (...,)
    low, high = _add_seeds(difference, half_width, half_width, bounds=(-1.0, 1.0))
    return difference.mean((-2, -1)), low, high


def _variance_over_instances(scores: np.ndarray, extremes: tuple[float, float]) -> np.ndarray:
    """Variance of the instances' means over seeds (...,), with two more instances at the extremes.

    Without these two, few instances that differ would by chance seem to be none. Source: Bonett and
    Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data", 2012.
    """
    means = scores.mean(-2)  # (..., n)
    low = np.full((*means.shape[:-1], 1), extremes[0])
    high = np.full((*means.shape[:-1], 1), extremes[1])
    return np.concatenate([means, low, high], -1).var(-1)


def _add_seeds(
    scores: np.ndarray, below: np.ndarray, above: np.ndarray, bounds: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of an interval whose half-widths over instances are `below` and `above`, (...,)."""
    mean = scores.mean((-2, -1))  # (...,)
    of_seeds = scores.mean(-1)  # (..., S)
    num_seeds = of_seeds.shape[-1]
    half_width = np.zeros_like(mean)  # (...,)
    if num_seeds > 1:
        half_width = t_quantile(num_seeds - 1) * of_seeds.std(-1, ddof=1) / math.sqrt(num_seeds)
    low = np.minimum(mean - np.hypot(below, half_width), of_seeds.min(-1))
    high = np.maximum(mean + np.hypot(above, half_width), of_seeds.max(-1))
    return np.maximum(low, bounds[0]), np.minimum(high, bounds[1])


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t.

    From 11 degrees of freedom on it is an expansion in 1 / degrees with an error below 0.003.
    Source: Abramowitz and Stegun, 26.7.5.

    >>> t_quantile(1), round(t_quantile(30), 3)
    (12.7062, 2.042)
    """
    if degrees <= len(T_95):
        return T_95[degrees - 1]
    z = Z_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def wilson_interval(num_success, num_trials, z: float = Z_95) -> tuple:
    """Wilson score interval of a success rate (Wilson 1927).

    Args:
        num_success: Successes among the trials, a number or an array. It may be a fraction.
        num_trials: Number of trials, 1 or more, a number or an array.
        z: Quantile of the normal distribution; the default gives a 95 % interval.

    Returns:
        Lower and upper end, both between 0 and 1.

    >>> low, high = wilson_interval(8, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.49, 0.943)
    """
    rate = num_success / num_trials
    correction = z * z / num_trials
    variance = rate * (1 - rate) / num_trials + correction / (4 * num_trials)
    centre = (rate + correction / 2) / (1 + correction)
    half_width = z * np.sqrt(variance) / (1 + correction)
    low = np.maximum(0.0, centre - half_width)
    high = np.minimum(1.0, centre + half_width)
    return low, high


def pass_at_k(n: int, num_right: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right, from n samples.

    It is 1 - C(n - num_right, k) / C(n, k). Source: arXiv 2107.03374.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    all_wrong = math.comb(n - num_right, k)
    return 1 - all_wrong / math.comb(n, k)
