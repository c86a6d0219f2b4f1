"""Measure how well the credit of an advantage estimator agrees with the true advantages of turns.

The credit of a turn is the mean advantage that the estimator gives the tokens of the turn. All
games together have K turns. For each turn, studies/credit/play.py continues the game m times from
the state before the turn, and m times after the turn's reply.

    estimated true advantage = mean return after the reply - mean return from the state before it

The noise of these estimates lowers every correlation. Most measures are corrected for the noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from support.statistics import jackknife_interval

DECIDED = 2.0  # an advantage's sign counts as known if abs(advantage) > DECIDED * standard error
# studies/credit/README.md defines these measures; HEADINGS in report.py has their table headings
MEASURES = ("rank", "gain", "rank_raw", "within", "right_signs", "signal", "bias", "luck")


@dataclass
class Truth:
    """Returns of continued games. For each of K turns, m games go on from the state before the
    turn, and m other games first repeat the turn's reply."""

    before: ndarray  # (K, m) returns of the games that go on from the state before the turn
    reply: ndarray  # (K, m) returns of the games that first repeat the reply

    def among(self, mask: ndarray) -> "Truth":
        return Truth(self.before[mask], self.reply[mask])

    @property
    def values(self) -> ndarray:
        return self.before.mean(1)  # (K,)

    @property
    def advantages(self) -> ndarray:
        return self.reply.mean(1) - self.before.mean(1)  # (K,)

    @property
    def noise(self) -> ndarray:
        """The squared standard error of each estimated advantage, (K,)."""
        num_draws = self.before.shape[1]
        return (self.before.var(1, ddof=1) + self.reply.var(1, ddof=1)) / num_draws

    @property
    def value_noise(self) -> ndarray:
        """The squared standard error of each mean return in `values`, (K,)."""
        return self.before.var(1, ddof=1) / self.before.shape[1]

    def spread(self) -> float:
        """An estimate of the variance of the true advantages over the turns."""
        return variance_of(self.advantages) - float(self.noise.mean())

    def reliability(self) -> float:
        """The share of the variance of the estimated advantages that is not noise."""
        variance = variance_of(self.advantages)
        return self.spread() / variance if variance > 0 else 0.0

    def rank_reliability(self) -> float:
        """The expected rank correlation of the estimated advantages with a second set of estimates.

        A *draw* is one continued game. The second set would use the same number of new draws. To
        predict the correlation, we split the present draws into halves, and estimate the advantages
        from each half. The formula of Spearman and Brown converts the rank correlation of the
        halves to the full number of draws. The result is NaN if the estimates from the two halves
        do not correlate positively.
        """
        even = Truth(self.before[:, ::2], self.reply[:, ::2])
        odd = Truth(self.before[:, 1::2], self.reply[:, 1::2])
        of_halves = rank_correlation(even.advantages, odd.advantages)
        return 2 * of_halves / (1 + of_halves) if of_halves > 0 else math.nan

    def ceiling(self) -> float:
        """The approximate rank correlation between true and estimated advantages.

        It is NaN if `rank_reliability` is NaN."""
        return math.sqrt(self.rank_reliability())

    def draws_for(self, ceiling: float) -> float:
        """How many draws m are needed for a Pearson correlation of `ceiling` between estimated and
        true advantages."""
        if self.spread() <= 0:
            return math.inf
        num_draws = self.before.shape[1]
        # With m draws, the squared correlation is spread / (spread + noise_of_one_draw / m).
        wanted = ceiling**2
        return num_draws * self.noise.mean() / self.spread() * wanted / (1 - wanted)


def measure(
    credits: ndarray,
    alternatives: ndarray,
    reference: ndarray,
    truth: Truth,
    games: ndarray,
    clusters: ndarray,
) -> dict[str, list[float]]:
    """Map each name in MEASURES to [value, half-width of its 95 % interval] for one estimator.

    Args:
        credits: (K,) the estimator's credit of each turn.
        alternatives: (K,) the credit of each turn in another game, which repeats the turn's game
            up to and including the reply.
        reference: (K,) GRPO's credit of each turn. The measure "gain" is the measure "rank" of
            `credits` minus the measure "rank" of `reference`.
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
    """Map each name to [value, half-width of its 95 % interval by the jackknife over boards].

    Args:
        compute: maps a mask of turns, (K,) bool, to an array with a value for each name.
        clusters: (K,) index of each turn's board.
    """
    values, half_widths = jackknife_interval(compute, clusters)
    pairs = zip(names, values.tolist(), half_widths.tolist(), strict=True)
    return {name: [value, half_width] for name, value, half_width in pairs}


def within_games(credits: ndarray, truth: Truth, games: ndarray) -> float:
    """Return Pearson's correlation of credits and true advantages, after each game's mean is
    subtracted from both.

    The correlation is corrected for noise. It is 0 if the credits within each game are equal.
    Otherwise, it is NaN if noise explains all variance of the estimated advantages within games.
    """
    centred_credits = _less_game_mean(credits, games)
    centred_truth = _less_game_mean(truth.advantages, games)
    num_turns = np.bincount(games)[games]  # (K,)
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
    """Return the share of turns whose credit has the sign of the true advantage.

    Only turns whose true sign is known (`is_decided`) count. The result is NaN if no sign is
    known. A credit of 0 counts as half right."""
    decided = is_decided(truth)
    if not decided.any():
        return math.nan
    agreement = np.sign(credits[decided]) * np.sign(truth.advantages[decided])  # -1, 0 or 1
    return float((1 + agreement).mean() / 2)


def is_decided(truth: Truth) -> ndarray:
    """Whether each estimated advantage is more than DECIDED standard errors from 0, (K,) bool."""
    return np.abs(truth.advantages) > DECIDED * np.sqrt(truth.noise)


def variance_shares(
    credits: ndarray, alternatives: ndarray, truth: Truth
) -> tuple[float, float, float]:
    """Return the shares (signal, bias, luck) of the variance of the credits over K turns:

        signal = pearson(credits, estimated advantages)**2 / truth.reliability()
        luck = mean((credits - alternatives)**2) / 2 / variance(credits)
        bias = 1 - signal - luck

    All shares are 0 if all credits are equal. Otherwise, the shares are NaN if noise explains
    all variance of the estimated advantages.

    Args:
        credits: (K,) the credit of each turn.
        alternatives: (K,) the credit of each turn in another game, which repeats the turn's game
            up to and including the reply.
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
    """Compare the critic's value of the state before a turn with the mean return from this state.

    Args:
        values: (K,) the critic's value of the state before each turn.
        clusters: (K,) index of each turn's board.

    Returns: a dict from each measure to [value, half-width of its 95 % interval]. All measures
        except "bias" are corrected for the noise of the mean returns.

        "correlation": Pearson's.
        "explained": 1 - mean squared error / variance of the true values.
        "bias": mean error.
        "error": root mean square error.
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
    """Return the unbiased variance of the n values of x, or NaN if n = 1.

    >>> variance_of(np.array([1.0, 3.0])), variance_of(np.array([1.0]))
    (2.0, nan)
    """
    return float(x.var(ddof=1)) if len(x) > 1 else math.nan


def rank_correlation(x: ndarray, y: ndarray) -> float:
    """Return Spearman's rank correlation of x and y, both (n,). It is 0 if x or y is constant.

    >>> rank_correlation([1.0, 2.0, 9.0], [0.1, 0.2, 0.3])
    1.0
    """
    return correlation(ranks(x), ranks(y))


def correlation(x: ndarray, y: ndarray) -> float:
    """Return Pearson's correlation of x and y, both (n,). It is 0 if x or y is constant."""
    x = np.asarray(x, float) - np.mean(x)
    y = np.asarray(y, float) - np.mean(y)
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def ranks(x: ndarray) -> ndarray:
    """Return the ranks (n,) of the n values of x, counted from 0. Equal values share a mean rank.

    >>> ranks([5.0, 3.0, 5.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    _, group, counts = np.unique(np.asarray(x, float), return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts  # lowest rank of each value
    return (first + (counts - 1) / 2)[group]
