"""Tests of support/statistics.py: intervals by hand and by their equations, pass@k by counting.

python -m pytest -q tests/test_statistics.py
"""

import doctest
import itertools
import math

import numpy as np
import pytest

from support import statistics
from support.statistics import Z_95, paired_bootstrap, pass_at_k, wilson_interval


def test_doctests():
    results = doctest.testmod(statistics)
    assert results.attempted > 0 and results.failed == 0


def test_wilson_interval_by_hand():
    # z^2 = 3.841459; k = 0: (0, z^2 / (n + z^2)) = 3.841459 / 13.841459; k = n mirrors it
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-6)
    # k = n / 2: the half width is z sqrt(0.25 / 256 + z^2 / 262144) / (1 + z^2 / 256),
    # 0.0617067 / 1.0150057
    assert wilson_interval(128, 256) == pytest.approx((0.439206, 0.560794), abs=1e-6)


@pytest.mark.parametrize("k, n", [(1, 7), (5, 7), (40, 256), (200, 256)])
def test_wilson_interval_solves_its_equation(k, n):
    """Both ends p lie 1.96 standard errors sqrt(p (1 - p) / n) away from k / n."""
    for p in wilson_interval(k, n):
        assert abs(k / n - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / n), rel=1e-9)


def test_z_is_the_normal_quantile():
    assert math.erf(Z_95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-6)


def test_bootstrap_of_equal_and_shifted_scores():
    b = np.random.default_rng(1).integers(2, size=(3, 50))
    assert paired_bootstrap(b, b, draws=200) == (0.0, 0.0, 0.0)  # unpaired, this would be wide
    assert paired_bootstrap(b + 0.25, b, draws=200) == pytest.approx((0.25, 0.25, 0.25))
    assert paired_bootstrap(np.ones((2, 50)), np.zeros((1, 50)), draws=200) == (1.0, 1.0, 1.0)


def test_bootstrap_interval_of_one_seed_is_nearly_normal():
    rng = np.random.default_rng(2)
    difference = rng.choice([-1, 0, 1], p=[0.1, 0.5, 0.4], size=(1, 400))
    mean, low, high = paired_bootstrap(difference, np.zeros((1, 400)), draws=3000)
    half = 1.96 * difference.std() / 20
    assert mean == difference.mean()
    assert mean - low == pytest.approx(half, rel=0.1)
    assert high - mean == pytest.approx(half, rel=0.1)
    again = paired_bootstrap(difference, np.zeros((1, 400)), draws=3000)
    assert again == (mean, low, high)


def test_bootstrap_draws_seeds_too():
    # The seeds differ and the instances do not: means of two draws from (0, 1) are 0, 0.5 and 1
    # with probability 1/4, 1/2 and 1/4.
    a = np.array([[0.0] * 30, [1.0] * 30])
    assert paired_bootstrap(a, np.zeros((1, 30)), draws=1000) == (0.5, 0.0, 1.0)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    for n, num_right in [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (6, 6)]:
        samples = [True] * num_right + [False] * (n - num_right)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, num_right, k) == pytest.approx(expected)
