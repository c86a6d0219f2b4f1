"""Pictures of the figures: metrics over iterations, with reference players as horizontal lines."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from support.run_folder import replace_file
from support.statistics import wilson_interval
from tools.experiments import Panel
from tools.tables import Curves, Rows, Wins, series, wins_of_run

CAPTION = """\
In the picture, a line is the mean of the seeds and the band around it their range. The band around
evaluations of a single seed is their 95 % Wilson interval. A triangle marks a first warning."""
SUCCESS_CAPTION = """\
In the picture, a line is the mean of the seeds and the band around it their range."""
SUCCESS = "success on 256 fixed prompts, %"
BAND = "range of the seeds (line: mean)"
COLORS = {"PPO": "#1f6fb4", "GRPO": "#d9662b"}
GRAY = "#555555"
NUM_COLUMNS = 3


class Player(NamedTuple):
    """A reference player as a horizontal line."""

    name: str  # its key in the successes of a row
    label: str  # its name in the picture
    style: str | tuple  # of the line


PLAYERS = (
    Player("optimal, closed loop", "optimal, no limit of turns", "--"),
    Player("optimal, 1 a turn", "optimal with one action a turn", "-."),
    Player("greedy, closed loop", "greedy", (0, (6, 2, 1, 2, 1, 2))),
    Player("random, closed loop", "random actions", ":"),
)
STYLES = {"random": ":", "greedy": "-.", "optimal": "--"}  # of closed-loop players in `plot`
LABEL_GAP = 5  # smallest distance of two labels, in % of success


# ---------- success compared with reference players


def plot_success(path: Path, panels: Sequence[Panel], curves: Curves) -> None:
    """Draw success in % over the iterations: mean and range of the seeds, and reference players.

    Args:
        path: PNG to write.
        panels: One pair of axes for each. The legend takes the space of one more.
        curves: The rows of every curve.
    """
    num_lines = math.ceil((len(panels) + 1) / NUM_COLUMNS)
    figure = Figure(figsize=(9.5, 2.9 * num_lines), layout="constrained")
    grid = figure.subplots(num_lines, NUM_COLUMNS, squeeze=False, sharey=True)
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_panel(axes, panel, curves)
    for axes in grid[:, 0]:
        axes.set_ylabel(SUCCESS)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles = {}
    for axes in grid.flat:
        handles.update(handles_by_label(axes))
    order = [*COLORS, BAND, *(player.label for player in PLAYERS)]
    shared = [handles[label] for label in order if label in handles]
    grid.flat[-1].legend(handles=shared, loc="center", frameon=False)
    with replace_file(path, "wb") as file:
        figure.savefig(file, dpi=150)


def plot_flagship(path: Path, panel: Panel, curves: Curves) -> None:
    """Draw one panel with the names of the players next to their lines."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    draw_panel(axes, panel, curves)
    axes.set(title=f"{panel.title}: success during RL", ylabel=SUCCESS)
    handles = handles_by_label(axes)
    name_players([handles[player.label] for player in PLAYERS if player.label in handles])
    policies = [handles[name] for name in panel.curves if name in handles]
    for line in policies:
        percent = line.get_ydata()
        line.set_label(f"{line.get_label()}, from {percent[0]:.0f} to {percent[-1]:.0f} %")
    bands = [handles[BAND]] if policies else []
    axes.legend(handles=[*policies, *bands], loc=(0.44, 0.3), frameon=False)
    with replace_file(path, "wb") as file:
        figure.savefig(file, dpi=150)


def name_players(lines: Sequence[Line2D]) -> None:
    """Write value and name of each player to the right of its line."""
    values = [line.get_ydata()[0] for line in lines]
    for line, value, height in zip(lines, values, spread(values), strict=True):
        line.axes.text(
            1.01,
            height,
            f"{value:.0f} %  {line.get_label()}",
            transform=line.axes.get_yaxis_transform(),  # x: share of the axes, y: data
            verticalalignment="center",
            color=GRAY,
        )


def draw_panel(axes: Axes, panel: Panel, curves: Curves) -> None:
    axes.set(title=panel.title, xlabel="iteration", ylim=(0, 103))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e8e8e8", linewidth=0.8)
    finished = {name: curves[label] for name, label in panel.curves.items() if curves[label]}
    for name, rows in finished.items():
        draw_seeds(axes, name, rows)
    for rows in list(finished.values())[:1]:  # the players are the same for all curves
        draw_players(axes, wins_of_run(rows))


def draw_seeds(axes: Axes, name: str, rows: Rows) -> None:
    """Mean over the seeds, and a band from the lowest to the highest of them."""
    iterations, values = stack_seeds(rows, "eval_success")
    percent = 100 * values  # (S, number of evaluations)
    color = COLORS[name]
    mean = np.nanmean(percent, 0)
    low = np.nanmin(percent, 0)
    high = np.nanmax(percent, 0)
    axes.plot(iterations, mean, color=color, linewidth=2.2, label=name, zorder=3)
    axes.fill_between(iterations, low, high, color=color, alpha=0.3, linewidth=0, label=BAND)


def draw_players(axes: Axes, wins: Wins) -> None:
    for player in PLAYERS:
        success = 100 * wins[player.name][0].mean()
        axes.axhline(success, color=GRAY, linewidth=1.2, linestyle=player.style, label=player.label)


def handles_by_label(axes: Axes) -> dict[str, Artist]:
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def spread(heights: Sequence[float]) -> list[float]:
    """Heights in descending order, moved apart where labels would touch.

    >>> spread([94.0, 77.0, 73.0])
    [94.0, 77.5, 72.5]
    """
    places = list(heights)
    for i in range(len(places) - 1):
        overlap = max(0.0, LABEL_GAP - (places[i] - places[i + 1]))
        places[i] += overlap / 2
        places[i + 1] -= overlap / 2
    return places


# ---------- all other figures


def plot(path: Path, title: str, metrics: Sequence[str], curves: Curves) -> None:
    """Draw a column of panels for every environment and a line of panels for every metric.

    Gray lines are players that score the same for all curves of a panel.
    """
    columns = split_by_env(curves)
    figure = Figure(figsize=(5 * len(columns), 3.5 * len(metrics)), layout="constrained")
    figure.suptitle(title, wrap=True)
    grid = figure.subplots(len(metrics), len(columns), squeeze=False)
    for column, (env, inside) in zip(grid.T, columns.items(), strict=True):
        for axes, metric in zip(column, metrics, strict=True):
            axes.set(title=env, xlabel="iterations * num_epochs", ylabel=metric)
            axes.set_yscale("log" if metric == "grad_norm" else "linear")
            for label, rows in inside.items():
                draw_curve(axes, metric, label, rows)
            if metric == "eval_success":
                draw_shared_players(axes, inside)
            if inside:
                axes.legend(fontsize="small")
    with replace_file(path, "wb") as file:
        figure.savefig(file, dpi=100)


def split_by_env(curves: Curves) -> dict[str, Curves]:
    """Group the curves that were run by the first word of their labels, and remove this word."""
    columns: dict[str, Curves] = {}
    for label, rows in curves.items():
        env = label.replace("_", " ").split()[0]
        if rows:
            columns.setdefault(env, {})[label.removeprefix(f"{env} ")] = rows
    return columns or {"nothing was run": {}}


def draw_curve(axes: Axes, metric: str, label: str, rows: Rows) -> None:
    """Draw the mean of the seeds. The x axis counts passes over rollouts: iterations x epochs.

    The band is the range of the seeds, and for evaluations of one seed a Wilson interval over
    prompts. A triangle marks the first warning of a seed.
    """
    iterations, values = stack_seeds(rows, metric)  # (S, number of iterations)
    if not len(iterations):
        return
    num_epochs = rows[0]["settings"]["num_epochs"]
    passes = num_epochs * iterations
    mean = np.nanmean(values, 0)
    low = np.nanmin(values, 0)
    high = np.nanmax(values, 0)
    if metric == "eval_success" and len(rows) == 1:
        num_prompts = wins_of_run(rows)["after RL"].shape[1]
        low, high = wilson_interval(mean * num_prompts, num_prompts)
    color = axes.plot(passes, mean, label=label)[0].get_color()
    axes.fill_between(passes, low, high, color=color, alpha=0.2, linewidth=0)
    warned = [num_epochs * row["first_warning"][0] for row in rows if row["first_warning"]]
    axes.plot(warned, np.interp(warned, passes, mean), "v", color=color)


def draw_shared_players(axes: Axes, curves: Curves) -> None:
    wins = [wins_of_run(rows) for rows in curves.values()]
    for player, style in STYLES.items():
        rates = {players[f"{player}, closed loop"][0].mean() for players in wins}
        if len(rates) == 1:
            axes.axhline(rates.pop(), color="gray", linestyle=style, label=player)


def stack_seeds(rows: Rows, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns: iterations (I,) at which any seed has a value; values (S, I), NaN if a seed has
    none."""
    seeds = [series(row).get(metric, {}) for row in rows]
    iterations = sorted(set().union(*seeds))
    values = []
    for seed in seeds:
        values.append([seed.get(iteration, np.nan) for iteration in iterations])
    return np.array(iterations), np.array(values)
