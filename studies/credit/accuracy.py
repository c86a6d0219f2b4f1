"""Measure how well the credit of an advantage estimator agrees with the true advantages of turns.

The credit of a turn is the mean advantage that the estimator gives its tokens. The true advantage
of each of K turns is estimated from m continuations of the game from the state before the turn, and
m that repeat the turn's reply first (studies/credit/play.py). The noise of these estimates lowers
every correlation. Most measures are corrected for this noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from support.statistics import jackknife_interval

DECIDED = 2.0  # an advantage more than this many standard errors from 0 has a known sign
# studies/credit/README.md defines these measures; report.py has their names in tables
MEASURES = ("rank", "gain", "rank_raw", "within", "right_signs", "signal", "bias", "luck")


@dataclass
class Truth:
    """The returns of continuations of K turns, and estimates from these returns."""

    before: ndarray  # (K, m) returns from the state before the turn
    reply: ndarray  # (K, m) returns of games that repeat the turn's reply first

    def among(self, mask: ndarray) -> "Truth":
        return Truth(self.before[mask], self.reply[mask])

    @property
    def values(self) -> ndarray:
        """Estimated value of the state before each turn, (K,)."""
        return self.before.mean(1)

    @property
    def advantages(self) -> ndarray:
        """Estimated true advantages, (K,)."""
        return self.reply.mean(1) - self.before.mean(1)

    @property
    def noise(self) -> ndarray:
        """Variance of the noise of each estimated advantage, (K,)."""
        num_draws = self.before.shape[1]
        return (self.before.var(1, ddof=1) + self.reply.var(1, ddof=1)) / num_draws

    @property
    def value_noise(self) -> ndarray:
        """Variance of the noise of each estimated value, (K,)."""
        return self.before.var(1, ddof=1) / self.before.shape[1]

    def spread(self) -> float:
        """Variance of the true advantages: variance of the estimates minus their mean noise."""
        return variance_of(self.advantages) - float(self.noise.mean())

    def reliability(self) -> float:
        """The share of the variance of the estimated advantages that is not noise."""
        variance = variance_of(self.advantages)
        return self.spread() / variance if variance > 0 else 0.0

    def rank_reliability(self) -> float:
        """The rank correlation that `advantages` has with a second, independent estimate, or NaN.

        The formula of Spearman and Brown predicts this correlation from two halves of the draws."""
        even = Truth(self.before[:, ::2], self.reply[:, ::2])
        odd = Truth(self.before[:, 1::2], self.reply[:, 1::2])
        of_halves = rank_correlation(even.advantages, odd.advantages)
        return 2 * of_halves / (1 + of_halves) if of_halves > 0 else math.nan

    def ceiling(self) -> float:
        """An estimate of the rank correlation of the exact advantages with `advantages`, or NaN."""
        return math.sqrt(self.rank_reliability())

    def draws_for(self, ceiling: float) -> float:
        """The number of draws at which Pearson's correlation of estimate and truth is `ceiling`."""
        if self.spread() <= 0:
            return math.inf
        num_draws = self.before.shape[1]
        wanted = ceiling**2  # reliability r(m) = spread / (spread + noise / m)
        return num_draws * self.noise.mean() / self.spread() * wanted / (1 - wanted)


def measure(
    credits: ndarray,
    alternatives: ndarray,
    reference: ndarray,
    truth: Truth,
    games: ndarray,
    clusters: ndarray,
) -> dict[str, list[float]]:
    """Return the MEASURES of an estimator: name -> [value, half-width of its 95 % interval].

    Args:
        credits: (K,) credits of the estimator.
        alternatives: (K,) credits if the game goes on differently after the turn's reply.
        reference: (K,) credits of the estimator to compare with.
        truth: continuations of the K turns.
        games: (K,) index of each turn's game.
        clusters: (K,) index of each turn's board.
    """

    def compute(mask: ndarray) -> ndarray:
        chosen = truth.among(mask)
        rank = rank_correlation(credits[mask], chosen.advantages)
        rank_of_reference = rank_correlation(reference[mask], chosen.advantages)
        return np.array(
            [
                rank / chosen.ceiling(),
                (rank - rank_of_reference) / chosen.ceiling(),
                rank,
                within_games(credits[mask], chosen, games[mask]),
                right_signs(credits[mask], chosen),
                *variance_shares(credits[mask], alternatives[mask], chosen),
            ]
        )

    return with_intervals(MEASURES, compute, clusters)


def with_intervals(
    names: Sequence[str], compute: Callable[[ndarray], ndarray], clusters: ndarray
) -> dict[str, list[float]]:
    """Return name -> [value, half-width of its 95 % interval by the jackknife over clusters].

    Args: compute: maps a mask of turns, (K,) bool, to an array with a value for each name."""
    values, half_widths = jackknife_interval(compute, clusters)
    pairs = zip(names, values.tolist(), half_widths.tolist(), strict=True)
    return {name: [value, half_width] for name, value, half_width in pairs}


def within_games(credits: ndarray, truth: Truth, games: ndarray) -> float:
    """Return Pearson's correlation of credits and true advantages between turns of the same game.

    The correlation is corrected for noise. It is 0 if the credits within each game are equal.
    Otherwise it is NaN if the advantages within games differ by noise only.
    """
    centred_credits = _less_game_mean(credits, games)
    centred_truth = _less_game_mean(truth.advantages, games)
    num_turns = np.bincount(games)[games]  # (K,) number of turns in each turn's game
    noise = (truth.noise * (1 - 1 / num_turns)).sum()
    spread = centred_truth @ centred_truth - noise
    size = centred_credits @ centred_credits
    if size <= 1e-12 * max(1.0, float(credits @ credits)):
        return 0.0
    if spread <= 0:
        return math.nan
    return float(centred_credits @ centred_truth / math.sqrt(size * spread))


def _less_game_mean(x: ndarray, games: ndarray) -> ndarray:
    sums = np.bincount(games, weights=x)
    counts = np.maximum(np.bincount(games), 1)
    return x - (sums / counts)[games]


def right_signs(credits: ndarray, truth: Truth) -> float:
    """Return the share of turns whose credit has the sign of the true advantage, or NaN.

    Only turns for which `is_decided` is true count. A credit of 0 counts as half."""
    decided = is_decided(truth)
    if not decided.any():
        return math.nan
    agreement = np.sign(credits[decided]) * np.sign(truth.advantages[decided])  # -1, 0 or 1
    return float((1 + agreement).mean() / 2)


def is_decided(truth: Truth) -> ndarray:
    """Whether each advantage is more than DECIDED standard errors from 0, (K,) bool."""
    return np.abs(truth.advantages) > DECIDED * np.sqrt(truth.noise)


def variance_shares(
    credits: ndarray, alternatives: ndarray, truth: Truth
) -> tuple[float, float, float]:
    """Split the variance of the credits over the turns into three shares that sum to 1:
    - signal: the squared correlation with the true advantage, corrected for the noise.
    - bias: the part that depends on state and reply, but not on their advantage.
    - luck: the part that depends on what happens after the reply. `alternatives` are the credits
      of a second game that repeats the reply and then goes on by itself. Luck is half the mean
      squared difference of both credits, divided by the variance.

    All shares are 0 if all credits are equal, and NaN if the advantages differ by noise only.
    """
    total = variance_of(credits)
    if total <= 1e-12 * max(1.0, float((credits**2).mean())):
        return 0.0, 0.0, 0.0
    reliability = truth.reliability()
    if reliability <= 0:
        return math.nan, math.nan, math.nan
    signal = correlation(credits, truth.advantages) ** 2 / reliability
    luck = float(((credits - alternatives) ** 2).mean() / 2 / total)
    return signal, 1 - signal - luck, luck


def measure_critic(values: ndarray, truth: Truth, clusters: ndarray) -> dict[str, list[float]]:
    """Compare the critic's values of the states before K turns with the values from continuations.

    - "correlation": Pearson's correlation.
    - "explained": the share of the variance of the true values that the critic explains.
    - "bias": the mean error. It is the only measure that is not corrected for the noise.
    - "error": the root mean square error.
    """

    def compute(mask: ndarray) -> ndarray:
        noise = truth.value_noise[mask].mean()
        true_values = truth.values[mask]
        errors = values[mask] - true_values
        squared_error = (errors**2).mean() - noise
        root = math.sqrt(max(squared_error, 0.0))
        variance = variance_of(true_values)
        spread = variance - noise
        if spread <= 0:
            return np.array([math.nan, math.nan, errors.mean(), root])
        attenuated = correlation(values[mask], true_values)
        corrected = attenuated * math.sqrt(variance / spread)
        explained = 1 - squared_error / spread
        return np.array([corrected, explained, errors.mean(), root])

    return with_intervals(("correlation", "explained", "bias", "error"), compute, clusters)


# ---------- correlations


def variance_of(x: ndarray) -> float:
    """Return the unbiased variance of x, (n,); NaN if n = 1.

    >>> variance_of(np.array([1.0, 3.0])), variance_of(np.array([1.0]))
    (2.0, nan)
    """
    return float(x.var(ddof=1)) if len(x) > 1 else math.nan


def rank_correlation(x: ndarray, y: ndarray) -> float:
    """Return Spearman's rank correlation of x and y, (n,) each; 0 if x or y is constant.

    >>> rank_correlation([1.0, 2.0, 9.0], [0.1, 0.2, 0.3])
    1.0
    """
    return correlation(ranks(x), ranks(y))


def correlation(x: ndarray, y: ndarray) -> float:
    """Return Pearson's correlation of x and y, (n,) each; 0 if x or y is constant."""
    x = np.asarray(x, float) - np.mean(x)
    y = np.asarray(y, float) - np.mean(y)
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def ranks(x: ndarray) -> ndarray:
    """Return the rank of each value of x, counted from 0, (n,). Equal values share their mean rank.

    >>> ranks([5.0, 3.0, 5.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    _, group, counts = np.unique(np.asarray(x, float), return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts  # the lowest rank of each value
    return (first + (counts - 1) / 2)[group]
