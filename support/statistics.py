"""Statistics of success rates: intervals, paired differences, pass@k."""

import math

import numpy as np

Z_95 = 1.959964  # 97.5 % quantile of the normal distribution


def wilson_interval(num_success: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a success rate (Wilson 1927).

    Args:
        num_success: Successes among the trials. It may be a fraction, such as a mean over seeds.
        n: Number of trials, 1 or more.
        z: Quantile of the normal distribution; the default gives a 95 % interval.

    Returns:
        Lower and upper end, both between 0 and 1.

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    rate = num_success / n
    correction = z * z / n
    variance = rate * (1 - rate) / n + correction / (4 * n)
    centre = (rate + correction / 2) / (1 + correction)
    half_width = z * math.sqrt(variance) / (1 + correction)
    low = max(0.0, centre - half_width)
    high = min(1.0, centre + half_width)
    return low, high


def paired_bootstrap(
    a: np.ndarray,
    b: np.ndarray,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Mean of a - b with its 95 % bootstrap interval over seeds and instances.

    Args:
        a: (S, n) scores of S seeds on n instances.
        b: (S, n) scores on the same instances, or (1, n) for a player without seeds.
        draws: Number of bootstrap samples. Each draws S rows and n columns with replacement.
        seed: Seed of the bootstrap.

    Returns:
        Mean, lower end and upper end, in units of the scores.

    >>> paired_bootstrap(np.ones((2, 5)), np.zeros((1, 5)), draws=10)
    (1.0, 1.0, 1.0)
    """
    difference = np.asarray(a, float) - np.asarray(b, float)  # (S, n)
    num_seeds, n = difference.shape
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(draws):
        rows = rng.integers(num_seeds, size=num_seeds)
        columns = rng.integers(n, size=n)
        resampled = difference[rows][:, columns]  # (S, n)
        means.append(resampled.mean())
    low, high = np.quantile(means, [0.025, 0.975])
    mean = difference.mean()
    return float(mean), float(low), float(high)


def pass_at_k(n: int, num_right: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right, from n samples.

    It is 1 - C(n - num_right, k) / C(n, k). Source: arXiv 2107.03374.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    all_wrong = math.comb(n - num_right, k)
    return 1 - all_wrong / math.comb(n, k)
