"""Plots of run folders: learning curves of methods, and the metrics that warn of a collapse."""

from configurator import UserError, printable

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from support.echo_trap import new_warnings
from support.run_folder import read_rows
from support.statistics import seed_interval, wilson_interval
from tools.plotting.arms import LONGEST_NAME, Arm, Wins, arms_by_method, read_run
from tools.plotting.plots import draw_players, moving_average
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

PANEL_METRICS = ("reward", "in_group_reward_std", "entropy", "grad_norm")
LONGEST_NAME_AT_LINE = 24  # characters
RATE = (float, None)
PANEL_ROW = {"step": int, "success": RATE, **dict.fromkeys(PANEL_METRICS, RATE)}


# ---------- learning curves


def draw_curves(runs: Sequence[Path], path: Path) -> None:
    """Plot success over iterations, a curve for each method. Seeds of a method share a curve."""
    draw_arms([path], arms_by_method([read_run(run) for run in runs]))


def draw_arms(paths: Sequence[Path], arms: Sequence[Arm]) -> None:
    """Plot success on the fixed prompts over iterations, and the reference players.

    Args: paths: files to write, PNG or SVG."""
    with picture(*paths, width=7.2, height=4.2) as figure:
        axes = figure.subplots()
        percent_axis(axes)
        labels = []
        envs = {run.scored_env() for arm in arms for run in arm.runs if run.is_finished()}
        if len(envs) == 1:
            axes.set_title(printable(min(envs), limit=LONGEST_NAME), parse_math=False)
            labels += draw_players(axes, shared_players(arms, min(envs)))
        labels += draw_curves_of_arms(axes, arms)
        label_lines(axes, labels)


def draw_curves_of_arms(axes: Axes, arms: Sequence[Arm]) -> list[Label]:
    """Draw a curve for each arm over the iterations. Returns: their labels.

    Long names are in a legend below, because they would take the place of the curves.

    A thick line is the mean of the seeds, thin lines are single seeds. The band is the 95 %
    interval over seeds. For one seed it is the Wilson interval over prompts. Iteration 0 is the
    policy before RL."""
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("iteration (band: 95 % interval, thin lines: single seeds)")
    labels = [draw_arm(axes, arm, look_of(i)) for i, arm in enumerate(arms)]
    if max(len(arm.name) for arm in arms) <= LONGEST_NAME_AT_LINE:
        named = zip(arms, labels, strict=True)
        return [label._replace(text=f"{arm.name} {label.text}") for arm, label in named]
    draw_legend(axes.figure, {arm.name: look_of(i) for i, arm in enumerate(arms)})
    return labels


def draw_arm(axes: Axes, arm: Arm, look: dict) -> Label:
    """Mean, interval and single seeds of an arm. Returns: its label, without the name."""
    iterations = arm.shared_iterations()
    seeds = [[run.evaluations[i].success for i in iterations] for run in arm.runs]
    rates = np.array(seeds)  # (S, number of evaluations)
    mean = rates.mean(0)
    if len(arm.runs) > 1:
        low, high = seed_interval(rates)
        for run in arm.runs:
            success = [100 * evaluation.success for evaluation in run.evaluations.values()]
            axes.plot(list(run.evaluations), success, **look, linewidth=0.9, alpha=0.5)
    else:
        num_prompts = arm.runs[0].config.eval_size
        low, high = wilson_interval(mean * num_prompts, num_prompts)
    axes.fill_between(
        iterations, 100 * low, 100 * high, color=look["color"], alpha=0.15, linewidth=0
    )
    axes.plot(iterations, 100 * mean, **look, linewidth=2.4, marker="o", markersize=3.5)
    last = float(100 * mean[-1])
    num_seeds = len(arm.runs)
    noun = "seed" if num_seeds == 1 else "seeds"
    return Label(last, f"{last:.0f} ({num_seeds} {noun})", look["color"])


def shared_players(arms: Sequence[Arm], env: str) -> Wins:
    """Successes of the players that all finished runs played with the same result."""
    players = [run.wins[env] for arm in arms for run in arm.runs if env in run.wins]
    shared = {}
    for name, wins in (players[0] if players else {}).items():
        same = [name in other and np.array_equal(other[name], wins) for other in players]
        if all(same):
            shared[name] = wins
    return shared


# ---------- warnings of a collapse


def draw_warning_panel(runs: Sequence[Path], path: Path) -> None:
    """Plot metrics that change before a run collapses, with a dashed line at each sign.

    Thin lines are single iterations, thick lines are moving averages.

    Source: figure 6 of https://arxiv.org/abs/2504.20073.
    """
    looks = {}
    notes = []
    with picture(path, width=9, height=6) as figure:
        grid = figure.subplots(2, 2, sharex=True)
        for i, run in enumerate(runs):
            rows = read_rows(run / "metrics.jsonl", shape=PANEL_ROW)
            if not rows:
                raise UserError(f"{run} has no iteration yet")
            name = printable(run.name, limit=LONGEST_NAME)
            looks[name] = look_of(i)
            signs = find_signs(rows)
            notes += [f"{name}, iteration {step}: {text}" for step, text in signs]
            for axes, metric in zip(grid.flat, PANEL_METRICS, strict=True):
                draw_metric(axes, metric, rows, looks[name])
                for step, _ in signs:
                    axes.axvline(step, color=looks[name]["color"], linewidth=0.8, linestyle="--")
        for axes in grid[-1]:
            axes.set_xlabel("iteration")
            axes.xaxis.get_major_locator().set_params(integer=True)
        draw_legend(figure, looks, "\n".join(notes))


def draw_metric(axes: Axes, metric: str, rows: list[dict], look: dict) -> None:
    """Draw a metric of every iteration, and its moving average."""
    steps = [row["step"] for row in rows if row[metric] is not None]
    values = np.array([[row[metric] for row in rows if row[metric] is not None]])  # (1, I)
    axes.plot(steps, values[0], **look, linewidth=0.8, alpha=0.4)
    axes.plot(steps, moving_average(values)[0], **look, linewidth=1.8)
    axes.set_ylabel(QUANTITIES[metric].words)
    if metric == "grad_norm":
        log_axis(axes)


def find_signs(rows: list[dict]) -> list[tuple[int, str]]:
    """Return (iteration, text) of each sign of collapse in the rows of metrics.jsonl."""
    signs = []
    for i, row in enumerate(rows):
        for text in new_warnings(rows[: i + 1]):
            signs.append((row["step"], text))
    return signs
