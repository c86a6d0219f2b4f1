"""Pictures of the figures: metrics over iterations, with reference players as labelled lines."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from support.statistics import wilson_interval
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
In the picture, a line is the mean of the seeds and the band around it their range. The band around
evaluations of a single seed is their 95 % Wilson interval. Metrics of every iteration are moving
averages over nine iterations. A triangle marks a first warning."""
PANEL_WIDTH = 4.8  # inches
PANEL_HEIGHT = 2.9
WINDOW = 9  # iterations of a moving average
PLAYERS = {  # reference player in the successes of a row -> its name in the picture
    "optimal, closed loop": "optimal",
    "greedy, closed loop": "greedy",
    "random, closed loop": "random",
}


def plot(path: Path, title: str, metrics: Sequence[str], curves: Curves) -> None:
    """Draw a column of panels for every environment and a line of panels for every metric.

    Grey lines are players that score the same for all curves of a panel. A curve has the same
    colour in all panels, and one legend below them names the colours.
    """
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
    """Curve -> colour and dashes. Curves of the same name look the same in all columns."""
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
    """Group the curves that were run by the first word of their labels, and remove this word."""
    columns: dict[str, Curves] = {}
    for label, rows in curves.items():
        env = label.replace("_", " ").split()[0]
        if rows:
            columns.setdefault(env, {})[label.removeprefix(f"{env} ")] = rows
    return columns or {"nothing was run": {}}


def draw_curve(axes: Axes, metric: str, rows: Rows, look: dict) -> None:
    """Draw the mean of the seeds. The x axis counts passes over rollouts: iterations x epochs.

    The band is the range of the seeds, and for evaluations of one seed a Wilson interval over
    prompts. A triangle marks the first warning of a seed.
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
    if metric == "eval_success" and len(rows) == 1:
        num_prompts = wins_of_run(rows)["after RL"].shape[1]
        low, high = wilson_interval(mean * num_prompts, num_prompts)
    mean = scale * mean
    axes.plot(passes, mean, **look)
    axes.fill_between(
        passes, scale * low, scale * high, color=look["color"], alpha=0.18, linewidth=0
    )
    warned = [num_epochs * row["first_warning"][0] for row in rows if row["first_warning"]]
    axes.plot(warned, np.interp(warned, passes, mean), "v", color=look["color"])


def draw_shared_players(axes: Axes, curves: Curves) -> list[Label]:
    """The lines of the players whose success is the same in all curves. Returns: their labels."""
    shared: Wins = {}
    wins = [wins_of_run(rows) for rows in curves.values()]
    for name in PLAYERS:
        rates = {players[name][0].mean() for players in wins}
        if len(rates) == 1:
            shared[name] = wins[0][name]
    return draw_players(axes, shared)


def draw_players(axes: Axes, wins: Wins) -> list[Label]:
    """Draw the lines of the players. Players with the same success share a label.

    Returns: the labels."""
    names: dict[float, list[str]] = {}
    for name, label in PLAYERS.items():
        if name in wins:
            percent = float(100 * wins[name].mean())
            names.setdefault(percent, []).append(label)
    labels = []
    for percent, same in names.items():
        draw_player(axes, percent)
        labels.append(Label(percent, f"{' = '.join(same)} {percent:.0f}"))
    return labels


def stack_seeds(rows: Rows, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns: iterations (I,) at which any seed has a value; values (S, I), NaN if a seed has
    none."""
    seeds = [series(row).get(metric, {}) for row in rows]
    iterations = sorted(set().union(*seeds))
    values = []
    for seed in seeds:
        values.append([seed.get(iteration, np.nan) for iteration in iterations])
    return np.array(iterations), np.array(values)


def moving_average(values: np.ndarray) -> np.ndarray:
    """Means over WINDOW neighbours, (S, I). At the ends and around missing values there are fewer.

    Fewer than three windows of iterations are returned unchanged."""
    num_iterations = values.shape[1]
    if num_iterations < 3 * WINDOW:
        return values
    smooth = np.full_like(values, np.nan)
    for i in range(num_iterations):
        window = values[:, max(0, i - WINDOW // 2) : i + WINDOW // 2 + 1]
        known = np.isfinite(window).any(1)
        smooth[known, i] = np.nanmean(window[known], 1)
    return smooth
