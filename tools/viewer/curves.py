"""Plots of run folders: learning curves of methods, and the metrics that warn of a collapse."""

from configurator import UserError

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from envs import ENVS
from support.collapse_signs import new_warnings
from tools.plotting.arms import LONGEST_NAME, Arm, Wins, arms_by_method, read_run
from tools.plotting.plots import draw_players, moving_average, players_under_limits, success_band
from tools.plotting.style import (
    GRAY,
    PLAYER_LOOK,
    QUANTITIES,
    Label,
    draw_legend,
    label_lines,
    log_axis,
    look_of,
    percent_axis,
    picture,
)
from utils.files import read_rows
from utils.text import printable

PANEL_METRICS = ("reward", "in_group_reward_std", "entropy", "grad_norm")
LONGEST_NAME_AT_LINE = 24  # characters; if any arm has a longer name, the legend shows all names
LEGEND_LINE = 0.4  # inches that each name in the legend adds to the height of the plot
MEAN_LINE = {"linewidth": 2.4, "marker": "o", "markersize": 3.5}
SEED_LINE = {"linewidth": 0.9, "alpha": 0.5}
BAND_ALPHA = 0.15
RATE = (float, None)
PANEL_ROW = {"step": int, "success": RATE, **dict.fromkeys(PANEL_METRICS, RATE)}


# ---------- learning curves


def draw_curves(runs: Sequence[Path], *paths: Path) -> None:
    """Plot success over iterations, with one curve for each method."""
    draw_arms(paths, arms_by_method([read_run(run) for run in runs]))


def draw_arms(paths: Sequence[Path], arms: Sequence[Arm]) -> None:
    """Plot success on the fixed prompts over iterations.

    An arm is one method with one or more seeds. If all finished runs were scored in the same
    environment, the plot also shows `shared_players_under_limits`: reference players that obey all
    arms' limits on turns and actions.

    Args: paths: the PNG or PDF files to write."""
    looks = {}
    if max(len(arm.name) for arm in arms) > LONGEST_NAME_AT_LINE:
        looks = {arm.name: look_of(i) for i, arm in enumerate(arms)}
    with picture(*paths, width=7.2, height=4.8 + LEGEND_LINE * len(looks)) as figure:
        axes = figure.subplots()
        percent_axis(axes)
        axes.set_xlabel("iteration")
        axes.xaxis.get_major_locator().set_params(integer=True)
        players = {}
        envs = {run.scored_env() for arm in arms for run in arm.runs if run.is_finished()}
        if len(envs) == 1:
            players = shared_players_under_limits(arms, min(envs))
            num_prompts = arms[0].runs[0].config.eval_size
            axes.set_title(title_of(min(envs), num_prompts), parse_math=False)
        labels = draw_players(axes, players)
        of_arms = [draw_arm(axes, arm, look_of(i)) for i, arm in enumerate(arms)]
        if not looks:
            named = zip(arms, of_arms, strict=True)
            of_arms = [label._replace(text=f"{arm.name} {label.text}") for arm, label in named]
        draw_legend(figure, looks, signs=signs_of(arms, bool(players)))
        label_lines(axes, labels + of_arms)


def title_of(env: str, num_prompts: int) -> str:
    """Return the title of a plot: a line for the environment, then a line for its options.

    >>> print(title_of("frozenlake:size=4,success_rate=0.8", 256))
    FrozenLake: success on 256 fixed prompts
    size 4, success rate 0.8
    """
    name, _, options = env.partition(":")
    words = [word.replace("_", " ").replace("=", " ") for word in options.split(",") if word]
    if name.endswith(".py"):  # a user's environment: file.py:CLASS,key=value
        title = options.split(",")[0]
        words = words[1:]
    else:
        title = ENVS.get(name, name).rpartition(":")[2]
    title = printable(title, limit=LONGEST_NAME)
    lines = [f"{title}: success on {num_prompts} fixed prompts"]
    if words:
        lines.append(printable(", ".join(words), limit=LONGEST_NAME))
    return "\n".join(lines)


def signs_of(arms: Sequence[Arm], has_players: bool) -> dict[str, Artist]:
    """Return legend entries that explain the kinds of lines and areas.

    The result maps the text of an entry to the line or area that the entry shows."""
    signs: dict[str, Artist] = {}
    if any(len(arm.runs) > 1 for arm in arms):
        signs["mean of the seeds"] = Line2D([], [], color=GRAY, **MEAN_LINE)
        signs["single seed"] = Line2D([], [], color=GRAY, **SEED_LINE)
    signs["95 % interval"] = Patch(color=GRAY, alpha=BAND_ALPHA, linewidth=0)
    if has_players:
        signs["player under the same limits"] = Line2D([], [], **PLAYER_LOOK)
    return signs


def draw_arm(axes: Axes, arm: Arm, look: dict) -> Label:
    """Draw an arm: its mean success, the `success_band` of the mean, and each seed's success.

    Returns: the label of the curve of the mean."""
    iterations = arm.shared_iterations()
    seeds = [[run.evaluations[i].success for i in iterations] for run in arm.runs]
    rates = np.array(seeds)  # (S, number of evaluations)
    mean = rates.mean(0)
    low, high = success_band(rates, known_wins(arm), arm.runs[0].config.eval_size)
    if len(arm.runs) > 1:
        for run in arm.runs:
            success = [100 * evaluation.success for evaluation in run.evaluations.values()]
            axes.plot(list(run.evaluations), success, **look, **SEED_LINE)
    axes.fill_between(
        iterations, 100 * low, 100 * high, color=look["color"], alpha=BAND_ALPHA, linewidth=0
    )
    axes.plot(iterations, 100 * mean, **look, **MEAN_LINE)
    last = float(100 * mean[-1])
    num_seeds = len(arm.runs)
    noun = "seed" if num_seeds == 1 else "seeds"
    return Label(last, f"{last:.0f} ({num_seeds} {noun})", look["color"])


def known_wins(arm: Arm) -> dict[int, np.ndarray]:
    """Return the success (1 or 0) of each seed on each fixed prompt, before RL and after RL.

    Key 0 of the dict holds the evaluation before RL, and key -1 holds the one after RL. For S seeds
    and n prompts, each array has shape (S, n). The dict is empty until all seeds are finished.
    Key -1 is missing if seeds end at different iterations.
    """
    if not all(run.is_finished() for run in arm.runs):
        return {}
    env = arm.runs[0].scored_env()
    known = {0: arm.wins(env, "start")}
    if len({max(run.evaluations) for run in arm.runs}) == 1:
        known[-1] = arm.wins(env, "after RL")
    return known


def shared_players_under_limits(arms: Sequence[Arm], env: str) -> Wins:
    """Return the players in `shared_players` that obey all arms' limits on turns and actions."""
    shared = shared_players(arms, env)
    of_arms = [players_under_limits(shared, arm.settings()) for arm in arms]
    return {
        label: wins
        for label, wins in of_arms[0].items()
        if all(label in players for players in of_arms)
    }


def shared_players(arms: Sequence[Arm], env: str) -> Wins:
    """Return each policy or player that solves the same fixed prompts of `env` in all runs.

    The result maps a name to the success (1 or 0) on each prompt. Runs without scores on `env` are
    left out. The names "start" and "after RL" stand for the policy before and after RL. All other
    names are those of reference players."""
    players = [run.wins[env] for arm in arms for run in arm.runs if env in run.wins]
    shared = {}
    for name, wins in (players[0] if players else {}).items():
        same = [name in other and np.array_equal(other[name], wins) for other in players]
        if all(same):
            shared[name] = wins
    return shared


# ---------- warnings of a collapse


def draw_warning_panel(runs: Sequence[Path], *paths: Path) -> None:
    """Plot PANEL_METRICS over iterations. A dashed line marks where a sign of collapse begins.

    Thin lines show single iterations, and thick lines show moving averages. The metrics are those
    of figure 6 of https://arxiv.org/abs/2504.20073.
    """
    looks = {}
    notes = []
    with picture(*paths, width=9, height=6) as figure:
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
    steps = [row["step"] for row in rows if row[metric] is not None]
    values = np.array([[row[metric] for row in rows if row[metric] is not None]])  # (1, I)
    axes.plot(steps, values[0], **look, linewidth=0.8, alpha=0.4)
    axes.plot(steps, moving_average(values)[0], **look, linewidth=1.8)
    axes.set_ylabel(QUANTITIES[metric].words)
    if metric == "grad_norm":
        log_axis(axes)


def find_signs(rows: list[dict]) -> list[tuple[int, str]]:
    """Return (iteration, text) for each start of a sign of collapse in rows of metrics.jsonl."""
    signs = []
    for i, row in enumerate(rows):
        for text in new_warnings(rows[: i + 1]):
            signs.append((row["step"], text))
    return signs
