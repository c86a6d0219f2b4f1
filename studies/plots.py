"""Plot metrics of runs against iterations, for the pictures that studies/reproduce.py writes.

In the panels of the success rate, labelled lines show the success of reference players: random,
greedy or optimal players.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from studies.tables import Curves, Rows, series, wins_of_run
from tools.plotting.plots import (
    draw_players,
    moving_average,
    players_under_limits,
    success_band,
)
from tools.plotting.style import (
    QUANTITIES,
    Label,
    draw_legend,
    label_lines,
    log_axis,
    look_of,
    percent_axis,
    picture,
)

CAPTION = """\
In the picture (the .png file beside this page), a line is the mean of the seeds. In a panel "fixed
prompts solved, %", the band at the first and the last evaluation is the 95 % interval of the table.
For evaluations during training, only the success rate of each seed is recorded, not which prompts
it solved. So with several seeds, the band at an evaluation during training is the widest 95 %
interval that is compatible with these rates. All other panels show metrics of training. Their
lines are moving averages over nine iterations, and their bands go from the lowest to the highest
value of the seeds. A grey dashed line, if there is one, is the success of a reference player with
the policy's limits on turns and actions. A triangle marks the first warning of a seed."""
PANEL_WIDTH = 4.8  # inches
PANEL_HEIGHT = 2.9


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
    """Map each curve's label, without the environment, to a colour and dashes. Curves with the same
    label have the same colour and dashes in all columns."""
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
    """Group curves by environment. The first word of a label names the environment, and is removed
    from the label."""
    columns: dict[str, Curves] = {}
    for label, rows in curves.items():
        env = label.replace("_", " ").split()[0]
        if rows:
            columns.setdefault(env, {})[label.removeprefix(f"{env} ")] = rows
    return columns or {"nothing was run": {}}


def draw_curve(axes: Axes, metric: str, rows: Rows, look: dict) -> None:
    """Draw a metric's mean over the seeds and a band around the mean. The x axis counts passes over
    trajectories (iterations x epochs).

    For the metric "eval_success", the band is the 95 % interval from `success_band`. For other
    metrics, the band goes from the lowest to the highest value of the seeds. For each seed with a
    sign of collapse, a triangle on the line marks the iteration of the first sign
    (support/collapse_signs.py).
    """
    iterations, values = stack_seeds(rows, metric)  # (I,), (S, I)
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


def draw_shared_players(axes: Axes, curves: Curves) -> list[Label]:
    """Draw the success of the reference players that obey every policy's limits on turns and
    actions (`players_under_limits`). Leave out a player whose success differs between curves.

    Returns: the labels of the drawn players."""
    players = []
    for rows in curves.values():
        wins = {name: games[0] for name, games in wins_of_run(rows).items()}
        players.append(players_under_limits(wins, rows[0]["settings"]))
    shared = {}
    for label, wins in players[0].items():
        if all(label in other and other[label].mean() == wins.mean() for other in players):
            shared[label] = wins
    return draw_players(axes, shared)


# ---------- values of the seeds


def stack_seeds(rows: Rows, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the iterations in which at least one seed has a value of the metric, and the values of
    all seeds. For I iterations and S seeds, the shapes are (I,) and (S, I). NaN means that a seed
    has no value in an iteration."""
    seeds = [series(row).get(metric, {}) for row in rows]
    iterations = sorted(set().union(*seeds))
    values = []
    for seed in seeds:
        values.append([seed.get(iteration, np.nan) for iteration in iterations])
    return np.array(iterations), np.array(values)
