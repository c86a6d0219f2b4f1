"""Parts of plots: bands around success rates, reference players, and moving averages."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from support.statistics import Interval, interval_of_rates, rate_interval
from tools.plotting.arms import Wins
from tools.plotting.style import Label, draw_player

WINDOW = 9  # number of iterations in the window of a moving average


def success_band(rates: np.ndarray, known: dict[int, np.ndarray], num_prompts: int = 0) -> Interval:
    """Return the 95 % intervals of the mean success in I evaluations.

    Each end is an array, (I,). An interval accounts for the choice of prompts and of seeds. For an
    evaluation in `known`, `rate_interval` computes the interval. For other evaluations, only the
    rates of the seeds are known. Then `interval_of_rates` computes the widest interval that these
    rates allow. If the rate of a seed is NaN, the interval is NaN.

    Args:
        rates: success rates of S seeds, (S, I).
        known: maps the index of an evaluation to its results, an array (S, n) with 1 for each
            solved prompt and 0 for each other prompt. The index -1 is the last evaluation.
        num_prompts: n, the number of prompts; needed only if `known` is empty.
    """
    for wins in known.values():
        num_prompts = wins.shape[-1]
    low, high = interval_of_rates(rates.T, num_prompts)  # (I,)
    for place, wins in known.items():
        low[place], high[place] = rate_interval(wins)
    is_complete = np.isfinite(rates).all(0)  # (I,)
    return Interval(np.where(is_complete, low, np.nan), np.where(is_complete, high, np.nan))


def players_under_limits(wins: Wins, settings: Mapping[str, object]) -> Wins:
    """Return the reference players that obey the policy's limits on turns and actions.

    The returned dict maps the label of a player to its successes.

    eval.py's table has rows named "PLAYER, closed loop". In these rows, the player took one action
    a turn. The player had enough turns for all actions, even if the policy has fewer turns. The
    greedy player needs the result of each action, so it needs a turn for each action. The greedy
    player obeys the limits if max_turns is at least actions_per_traj. The random player ignores
    observations, so its success does not depend on the number of actions a turn. The random player
    obeys the limits if max_turns * actions_per_turn is at least actions_per_traj.

    Args:
        wins: maps the name of a row of eval.py's table, such as "optimal, 5 a turn", to the
            successes of the row.
        settings: the settings of the policy's run.
    """
    found = {}
    optimal = [name for name in wins if name.startswith("optimal, ") and name.endswith(" a turn")]
    if optimal:  # the last row allows the most actions a turn
        found[optimal[-1]] = wins[optimal[-1]]
    num_turns = settings["max_turns"]
    num_actions = settings["actions_per_traj"]
    if "greedy, closed loop" in wins and num_turns >= num_actions:
        found["greedy player"] = wins["greedy, closed loop"]
    if "random, closed loop" in wins and num_turns * settings["actions_per_turn"] >= num_actions:
        found["random actions"] = wins["random, closed loop"]
    return found


def draw_players(axes: Axes, players: Wins) -> list[Label]:
    """Draw the players and return their labels. Players with equal success share a line."""
    names: dict[float, list[str]] = {}
    for label, wins in players.items():
        percent = float(100 * wins.mean())
        names.setdefault(percent, []).append(label)
    labels = []
    for percent, same in names.items():
        draw_player(axes, percent)
        labels.append(Label(percent, f"{' = '.join(same)} {percent:.0f}"))
    return labels


def moving_average(values: np.ndarray) -> np.ndarray:
    """Return the moving average of each row of `values`.

    Each mean is over WINDOW neighbouring iterations, or over fewer at the ends. With fewer than
    3 * WINDOW iterations, the values are returned unchanged.

    Args: values: (S, I), of S seeds at I iterations."""
    num_iterations = values.shape[1]
    if num_iterations < 3 * WINDOW:
        return values
    smooth = np.full_like(values, np.nan)
    for i in range(num_iterations):
        window = values[:, max(0, i - WINDOW // 2) : i + WINDOW // 2 + 1]
        known = np.isfinite(window).any(1)
        smooth[known, i] = np.nanmean(window[known], 1)
    return smooth
