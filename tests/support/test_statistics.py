"""Tests of support/statistics.py.

Intervals are checked by hand and by their equations, and pass@k is checked by counting.
"""

import doctest
import itertools
import math

import numpy as np
import pytest

from support import statistics
from support.statistics import (
    Z_95,
    difference_interval,
    interval_of_rates,
    pass_at_k,
    rate_interval,
    t_quantile,
    wilson_interval,
)


def test_doctests():
    results = doctest.testmod(statistics)
    assert results.attempted > 0 and results.failed == 0


def test_wilson_interval_by_hand():
    # For k = 0 and n = 10, the ends are 0 and z^2 / (n + z^2) = 3.841459 / 13.841459 = 0.277533.
    # For k = n = 10, the ends are 1 - 0.277533 and 1.
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-6)
    # For k = 128 and n = 256, the half-width is z sqrt(0.25 / 256 + z^2 / 262144) / (1 + z^2 / 256)
    # = 0.0617067 / 1.0150057.
    assert wilson_interval(128, 256) == pytest.approx((0.439206, 0.560794), abs=1e-6)


@pytest.mark.parametrize("k, n", [(1, 7), (5, 7), (40, 256), (200, 256)])
def test_wilson_interval_solves_its_equation(k, n):
    """For each end p, |k / n - p| is 1.96 times the standard error sqrt(p (1 - p) / n)."""
    for p in wilson_interval(k, n):
        assert abs(k / n - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / n), rel=1e-9)


def test_z_is_the_normal_quantile():
    assert math.erf(Z_95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-6)


def test_t_quantiles():
    # With one degree of freedom, the t distribution is the Cauchy distribution.
    assert t_quantile(1) == pytest.approx(math.tan(0.475 * math.pi), abs=1e-4)
    # With two degrees of freedom, the distribution function is 1/2 + t / (2 sqrt(2 + t^2)).
    t = t_quantile(2)
    assert 0.5 + t / (2 * math.sqrt(2 + t * t)) == pytest.approx(0.975, abs=1e-6)
    # For more than ten degrees of freedom, `t_quantile` returns the quantile for ten, which is a
    # little too large.
    assert t_quantile(10) == t_quantile(99) == 2.2281


# ---------- intervals over seeds and instances


def test_one_seed_with_one_game_has_the_wilson_interval():
    for k, n in ((0, 10), (8, 10), (128, 256), (256, 256)):
        wins = np.arange(n)[None] < k
        assert rate_interval(wins) == pytest.approx(wilson_interval(k, n))


def test_equal_seeds_have_the_interval_over_instances():
    wins = np.array([[1, 1, 0, 1, 0, 0, 1, 1, 1, 1]])
    same = np.repeat(wins, 3, 0)
    assert rate_interval(same) == pytest.approx(rate_interval(wins))
    other = np.zeros((1, 10))
    of_one = difference_interval(wins, other)
    assert difference_interval(same, other) == pytest.approx(of_one)
    assert difference_interval(same, np.repeat(other, 3, 0)) == pytest.approx(of_one)


def test_rate_interval_of_two_seeds_by_hand():
    """One seed wins all eight instances, the other seed wins none. Each instance has the mean 1/2.

    `rate_interval` adds an instance with mean 0 and an instance with mean 1, so the variance of the
    ten means is (0.5^2 + 0.5^2) / 10 = 0.05. Then the mean over the eight instances has the
    variance 0.05 / 8. The mean of N games, each won with probability 1/2, has the variance
    0.25 / N. The two variances are equal for N = 40. So the interval for the choice of instances
    has the half-width of Wilson's interval for 20 wins in 40 games.

    The seeds' rates 1 and 0 have the standard deviation sqrt(0.5). For two seeds, the 97.5 %
    quantile of Student's t is 12.7062. So the interval for the choice of seeds has the half-width
    12.7062 * sqrt(0.5) / sqrt(2) = 6.35. Rates are between 0 and 1, so the interval is cut at 0
    and 1.
    """
    wins = np.array([[1.0] * 8, [0.0] * 8])
    assert rate_interval(wins) == (0.0, 1.0)
    low, high = wilson_interval(20, 40)
    # For the rates 0.51 and 0.49, the interval for the choice of seeds has the half-width
    # 12.7062 * 0.01.
    close = np.array([[0.51] * 8, [0.49] * 8])
    half = math.hypot((high - low) / 2, 0.127062)
    assert rate_interval(close) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_rates_alone_give_the_widest_interval():
    """The first seed solves one of four prompts, the second seed solves three. `interval_of_rates`
    assumes that the second seed also solves the first seed's prompt, so the prompts have mean rates
    of 1, 1/2, 1/2 and 0."""
    alike = rate_interval(np.array([[1, 0, 0, 0], [1, 1, 1, 0]]))
    assert interval_of_rates(np.array([0.25, 0.75]), num_prompts=4) == alike
    rng = np.random.default_rng(0)
    wins = rng.random((300, 3, 50)) < 0.7
    low, high = rate_interval(wins)
    widest_low, widest_high = interval_of_rates(wins.mean(-1), num_prompts=50)  # (300,)
    assert (widest_low <= low).all() and (high <= widest_high).all()
    assert np.mean(widest_low < low) > 0.9


def test_difference_interval_by_hand():
    """Player a alone wins 3 of 98 instances, player b alone wins 1, and both players win 94.

    `difference_interval` adds two instances, one with the difference +1 and one with -1. The
    variance is (3 + 1 + 2) / 100 - (2 / 100)^2 = 0.0596.
    """
    a = np.array([[1, 1, 1, 0, *[1] * 94]])
    b = np.array([[0, 0, 0, 1, *[1] * 94]])
    low, high = difference_interval(a, b)
    half = 1.959964 * math.sqrt(0.0596 / 100)
    assert (low, high) == pytest.approx((2 / 98 - half, 2 / 98 + half))
    # Here player a wins all 100 instances, and player b loses 4 of them. The sign test has
    # p = 0.125, so the interval must contain 0.
    low, _ = difference_interval(np.ones((1, 100)), np.array([[0] * 4 + [1] * 96]))
    assert low < 0


def test_three_seeds_that_differ_say_little():
    """Three seeds are 54, 7 and 23 points better than a player that never wins. The interval over
    seeds alone is 28 +- 4.3027 * 23.9 / sqrt(3), which is -31 to 87."""
    a = np.zeros((3, 100))
    for seed, wins in enumerate((54, 7, 23)):
        a[seed, :wins] = 1
    low, high = difference_interval(a, np.zeros((1, 100)))
    half = 4.3027 * np.std([0.54, 0.07, 0.23], ddof=1) / math.sqrt(3)
    assert -0.35 < low < 0.28 - half and 0.28 + half < high < 0.91


def test_no_interval_excludes_its_seeds():
    rng = np.random.default_rng(3)
    for num_seeds in (2, 3, 5, 12):
        rates = rng.random((200, num_seeds, 1)) ** 4
        wins = rng.random((200, num_seeds, 40)) < rates
        low, high = rate_interval(wins)
        assert (low <= wins.mean(-1).min(-1)).all() and (wins.mean(-1).max(-1) <= high).all()
        low, high = difference_interval(wins, 1 - wins[:, :1])
        differences = (wins - (1 - wins[:, :1])).mean(-1)
        assert (low <= differences.min(-1)).all() and (differences.max(-1) <= high).all()


# ---------- simulated coverage

GRID = list(
    itertools.product((0.02, 0.2, 0.5, 0.8, 0.98), (0.0, 0.02, 0.05, 0.1, 0.15), (1, 16), (2, 3, 5))
)
COARSE_GRID = [cell for cell in GRID if cell[0] in (0.02, 0.5, 0.8) and cell[1] in (0, 0.05, 0.15)]
PLAYER_RATE = 0.6
NUM_INSTANCES = 256


def draw_seed_rates(rng, rate, spread, shape):
    """Draw rates from a normal distribution around `rate`, with a standard deviation of at most
    `spread`.

    If `rate` is near 0 or 1, the standard deviation is smaller. With the full `spread`, many rates
    would be clipped to exactly 0 or 1, and two seeds would often have equal rates.
    """
    room = min(rate, 1 - rate)
    spread = min(spread, room / 2)
    deviation = spread * rng.normal(size=shape)
    return rate + deviation.clip(-room, room)


def play(rng, rates, luck, num_games):
    """Return the share of games that each seed wins on each instance.

    Args:
        rates: (R, S) win rates of S seeds in R repeats of the experiment.

    Returns:
        An array of shape (R, S, instances).
    """
    rates = rates[..., None]  # (R, S, 1)
    own_luck = rng.random((*rates.shape[:2], luck.shape[-1]), dtype=np.float32)
    chances = 0.3 * rates + 0.5 * (luck < rates) + 0.2 * (own_luck < rates)
    if num_games == 1:
        return rng.random(chances.shape, dtype=np.float32) < chances
    return rng.binomial(num_games, chances) / num_games


def coverages(cell, num_repeats):
    """Return the coverage of three kinds of intervals.

    Coverage is the share of intervals that hold the true value. The intervals are for the rate of a
    set of seeds, for its difference to the rate of a player without seeds, and for the difference
    between the rates of two sets of seeds.
    """
    rate, spread, num_games, num_seeds = cell
    rng = np.random.default_rng([round(1000 * x) for x in cell])
    luck = rng.random((num_repeats, 1, NUM_INSTANCES), dtype=np.float32)
    shape = (num_repeats, num_seeds)
    after = play(rng, draw_seed_rates(rng, rate, spread, shape), luck, num_games)
    before = play(rng, draw_seed_rates(rng, PLAYER_RATE, spread, shape), luck, num_games)
    player = play(rng, np.full((num_repeats, 1), PLAYER_RATE), luck, num_games)
    found = {}
    found["rate"] = covers(*rate_interval(after), rate)
    found["difference to a player"] = covers(
        *difference_interval(after, player), rate - PLAYER_RATE
    )
    found["difference of seeds"] = covers(*difference_interval(after, before), rate - PLAYER_RATE)
    return found


def covers(low, high, value):
    return float(((low <= value) & (value <= high)).mean())


def check_coverage(grid, num_repeats):
    typical = {}
    for cell in grid:
        rate, spread, _, _ = cell
        for kind, coverage in coverages(cell, num_repeats).items():
            assert coverage >= 0.93, (kind, cell)
            if spread and 0.2 <= rate <= 0.8:
                typical.setdefault(kind, []).append(coverage)
    for kind, found in typical.items():
        assert 0.94 < np.mean(found) <= 0.97, kind
    assert len(typical) == 3


@pytest.mark.slow
def test_intervals_hold_the_true_value():
    check_coverage(COARSE_GRID, num_repeats=500)


@pytest.mark.slow
def test_intervals_hold_the_true_value_on_the_whole_grid():
    check_coverage(GRID, num_repeats=1000)


@pytest.mark.parametrize(
    "num_seeds, rate, difference", [(2, 67, 70), (3, 49, 54), (5, 67, 67), (10, 89, 89)]
)
def test_intervals_rarely_hold_the_true_value_if_seeds_collapse(num_seeds, rate, difference):
    """Each seed collapses to a rate of 10 % with probability 1/5. Otherwise its rate is 80 %.

    The docstring of `rate_interval` has this example.
    """
    rng = np.random.default_rng(num_seeds)
    collapses = rng.random((1000, num_seeds, 1)) < 0.2
    chances = np.where(collapses, 0.1, 0.8)
    wins = rng.random((1000, num_seeds, NUM_INSTANCES), dtype=np.float32) < chances
    player = rng.random((1000, 1, NUM_INSTANCES), dtype=np.float32) < 0.5
    true_mean = 0.2 * 0.1 + 0.8 * 0.8
    found = covers(*rate_interval(wins), true_mean)
    assert found == pytest.approx(rate / 100, abs=0.05)
    found = covers(*difference_interval(wins, player), true_mean - 0.5)
    assert found == pytest.approx(difference / 100, abs=0.05)
    # The true mean is 66 %. Most intervals that miss the true mean come from experiments in which
    # no seed collapses.
    no_collapse = 1 - collapses.any(1).mean()
    assert no_collapse == pytest.approx(0.8**num_seeds, abs=0.05)
    said = f"{rate}" in rate_interval.__doc__ and f"{difference}" in rate_interval.__doc__
    assert said


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    for n, num_right in [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (6, 6)]:
        samples = [True] * num_right + [False] * (n - num_right)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, num_right, k) == pytest.approx(expected)
