"""Plots of the studies: metrics over iterations, with reference players as labelled lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from support.statistics import Interval, interval_of_rates, rate_interval
from tools.plotting.style import (
    QUANTITIES,
    Label,
    draw_legend,
    draw_player,
    label_lines,
    log_axis,
    look_of,
    percent_axis,
    picture,
)
from tools.plotting.tables import Curves, Rows, Wins, series, wins_of_run

CAPTION = """\
In the picture, a line is the mean of the seeds. The band around evaluations is the 95 % interval
over prompts and seeds, as in the table. Of evaluations during training only the rates are recorded.
So their band is the widest that these rates allow. All other metrics are from training. Their lines
are moving averages over nine iterations, and their bands are the range of the seeds. Dashed lines,
if there are any, are reference players with the policy's limits on turns and actions. A triangle
marks a first warning."""
PANEL_WIDTH = 4.8  # inches
PANEL_HEIGHT = 2.9
WINDOW = 9  # a moving average is over this many iterations


def plot(path: Path, title: str, metrics: Sequence[str], curves: Curves) -> None:
    """Draw a column of panels for every environment and a row of panels for every metric."""
    columns = split_by_env(curves)
    looks = looks_of(columns)
    size = {"width": 1 + PANEL_WIDTH * len(columns), "height": 0.9 + PANEL_HEIGHT * len(metrics)}
    with picture(path, **size) as figure:
        figure.suptitle(title, wrap=True)
        grid = figure.subplots(len(metrics), len(columns), squeeze=False)
        for column, (env, inside) in zip(grid.T, columns.items(), strict=True):
            for axes, metric in zip(column, metrics, strict=True):
                axes.set_title(env)
                draw_metric(axes, metric, inside, looks)
        draw_legend(figure, looks)


def looks_of(columns: dict[str, Curves]) -> dict[str, dict]:
    """Return the look of each curve: name -> colour and dashes, the same in all columns."""
    labels: dict[str, None] = {}
    for inside in columns.values():
        labels.update(dict.fromkeys(inside))
    return {label: look_of(i) for i, label in enumerate(labels)}


def draw_metric(axes: Axes, metric: str, curves: Curves, looks: dict[str, dict]) -> None:
    quantity = QUANTITIES[metric]
    epochs = {row["settings"]["num_epochs"] for rows in curves.values() for row in rows}
    several = epochs - {1}
    axes.set_xlabel("passes over rollouts (iterations x epochs)" if several else "iteration")
    if quantity.scale == 100:
        percent_axis(axes)
    axes.set_ylabel(quantity.words)
    if metric == "grad_norm":
        log_axis(axes)
    for label, rows in curves.items():
        draw_curve(axes, metric, rows, looks[label])
    if metric == "eval_success":
        label_lines(axes, draw_shared_players(axes, curves))


def split_by_env(curves: Curves) -> dict[str, Curves]:
    """Group curves by environment, the first word of their label, and remove this word from it."""
    columns: dict[str, Curves] = {}
    for label, rows in curves.items():
        env = label.replace("_", " ").split()[0]
        if rows:
            columns.setdefault(env, {})[label.removeprefix(f"{env} ")] = rows
    return columns or {"nothing was run": {}}


def draw_curve(axes: Axes, metric: str, rows: Rows, look: dict) -> None:
    """Draw a metric's mean over the seeds. The x axis counts passes (iterations x epochs).

    The band is `success_band` for evaluations, and the range of the seeds for other metrics. A
    triangle marks the first warning of a collapse in a seed.
    """
    iterations, values = stack_seeds(rows, metric)  # (S, number of iterations)
    if not len(iterations):
        return
    if metric != "eval_success":
        values = moving_average(values)
    scale = QUANTITIES[metric].scale
    num_epochs = rows[0]["settings"]["num_epochs"]
    passes = num_epochs * iterations
    mean = np.nanmean(values, 0)
    low = np.nanmin(values, 0)
    high = np.nanmax(values, 0)
    if metric == "eval_success":
        wins = wins_of_run(rows)
        low, high = success_band(values, {0: wins["start"], -1: wins["after RL"]})
    mean = scale * mean
    axes.plot(passes, mean, **look)
    axes.fill_between(
        passes, scale * low, scale * high, color=look["color"], alpha=0.18, linewidth=0
    )
    warned = [num_epochs * row["first_warning"][0] for row in rows if row["first_warning"]]
    axes.plot(warned, np.interp(warned, passes, mean), "v", color=look["color"])


def success_band(rates: np.ndarray, known: dict[int, np.ndarray], num_prompts: int = 0) -> Interval:
    """Return the 95 % intervals over prompts and seeds of I evaluations: lower and upper ends (I,).

    If the solved prompts are known, the interval is `rate_interval`. If they are unknown, it is
    `interval_of_rates`, which is at least as wide. If a seed has no rate, it is NaN.

    Args:
        rates: success rates of S seeds, (S, I).
        known: index of an evaluation, 0 to I - 1, or -1 for the last -> solved prompts (S, n).
        num_prompts: n, if no solved prompts are known.
    """
    for wins in known.values():
        num_prompts = wins.shape[-1]
    low, high = interval_of_rates(rates.T, num_prompts)  # (I,)
    for place, wins in known.items():
        low[place], high[place] = rate_interval(wins)
    is_complete = np.isfinite(rates).all(0)  # (I,)
    return Interval(np.where(is_complete, low, np.nan), np.where(is_complete, high, np.nan))


# ---------- reference players


def draw_shared_players(axes: Axes, curves: Curves) -> list[Label]:
    """Draw the players whose success is equal in all curves. Returns: the labels of the players."""
    players = []
    for rows in curves.values():
        wins = {name: games[0] for name, games in wins_of_run(rows).items()}
        players.append(players_under_limits(wins, rows[0]["settings"]))
    shared = {}
    for label, wins in players[0].items():
        if all(label in other and other[label].mean() == wins.mean() for other in players):
            shared[label] = wins
    return draw_players(axes, shared)


def players_under_limits(wins: Wins, settings: Mapping[str, object]) -> Wins:
    """Return the reference players that obey the policy's limits: label -> successes.

    A closed-loop player takes one action a turn, so it needs as many turns as actions. Random play
    ignores observations, so it can take as many actions a turn as the policy.

    Args:
        wins: name of a row of eval.py, such as "optimal, 5 a turn" -> successes.
        settings: of the policy.
    """
    found = {}
    optimal = [name for name in wins if name.startswith("optimal, ") and name.endswith(" a turn")]
    if optimal:  # the last one has the most actions a turn
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


# ---------- values of the seeds


def stack_seeds(rows: Rows, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the iterations (I,), and the values (S, I) with NaN for missing values."""
    seeds = [series(row).get(metric, {}) for row in rows]
    iterations = sorted(set().union(*seeds))
    values = []
    for seed in seeds:
        values.append([seed.get(iteration, np.nan) for iteration in iterations])
    return np.array(iterations), np.array(values)


def moving_average(values: np.ndarray) -> np.ndarray:
    """Return means over WINDOW neighbouring iterations, (S, I).

    With fewer than 3 * WINDOW iterations, the values are returned unchanged."""
    num_iterations = values.shape[1]
    if num_iterations < 3 * WINDOW:
        return values
    smooth = np.full_like(values, np.nan)
    for i in range(num_iterations):
        window = values[:, max(0, i - WINDOW // 2) : i + WINDOW // 2 + 1]
        known = np.isfinite(window).any(1)
        smooth[known, i] = np.nanmean(window[known], 1)
    return smooth
