"""Plots of runs for tools/view.py: learning curves, and the metrics that warn of a collapse."""

from configurator import UserError

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.echo_trap import new_warnings
from support.run_folder import load_saved, read_json, read_rows, replace_file
from support.statistics import wilson_interval

PANEL_METRICS = ("reward", "in_group_reward_std", "entropy", "grad_norm")  # entropy: nats a token
RATE = (float, None)
PANEL_ROW = {"step": int, "success": RATE, **dict.fromkeys(PANEL_METRICS, RATE)}
STAGES = ("start", "after RL")  # rows of the policy in scores.json; others are reference players
LABEL_HEIGHT = 0.045  # of a player's name, as a fraction of the axis


def draw_curves(runs: Sequence[Path], path: Path) -> None:
    """Plot success on the fixed prompts over iterations, with 95 % Wilson intervals.

    Iteration 0 is the policy before RL. Dotted lines are the reference players of the runs.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    players: set[tuple[float, str]] = set()  # success rate and name
    for run in runs:
        scores = read_scores(run)
        draw_learning_curve(axes, run, scores)
        for name, successes in scores.items():
            if name not in STAGES:
                players.add((fmean(successes), name))
    draw_players(axes, players)
    axes.set(xlabel="iteration", ylabel="success on fixed prompts", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, loc="lower right")
    with replace_file(path, "wb") as file:
        figure.savefig(file, dpi=150)


def read_scores(run: Path) -> dict[str, list[int]]:
    """Read scores.json: stage or player -> successes on the fixed prompts; {} without the file.

    The first environment in the file is the one that the run trains on.
    """
    path = run / "scores.json"
    if not path.is_file():
        return {}
    scores = next(iter(read_json(path, {str: {str: [int]}}).values()), {})
    if scores and not (scores.get("start") and all(scores.values())):
        raise UserError(f"{path} must hold the successes of 'start' and of each player")
    return scores


def draw_learning_curve(axes: Axes, run: Path, scores: dict[str, list[int]]) -> None:
    num_prompts = load_saved(run).eval_size
    rates = {}  # iteration -> success rate
    if scores:
        rates[0] = fmean(scores["start"])
    for row in read_rows(run / "metrics.jsonl", shape={"step": int, "eval_success": RATE}):
        if row["eval_success"] is not None:
            rates[row["step"]] = row["eval_success"]
    if not rates:
        raise UserError(f"{run} has no evaluation yet")
    if not all(0 <= rate <= 1 for rate in rates.values()):
        raise UserError(f"{run} has success rates that are not between 0 and 1")

    steps = list(rates)
    intervals = [wilson_interval(round(num_prompts * p), num_prompts) for p in rates.values()]
    low = [interval[0] for interval in intervals]
    high = [interval[1] for interval in intervals]
    (line,) = axes.plot(steps, list(rates.values()), marker=".", label=run.name)
    axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def draw_players(axes: Axes, players: set[tuple[float, str]]) -> None:
    """Draw a line for each reference player, with its name at the right of the plot."""
    last_label_y = -1.0
    for rate, name in sorted(players):
        label_y = max(rate, last_label_y + LABEL_HEIGHT)  # names do not overlap
        last_label_y = label_y
        axes.axhline(rate, color="0.6", linewidth=0.8, linestyle=":")
        x_is_fraction = axes.get_yaxis_transform()  # x as a fraction of the axes, y in data units
        axes.text(
            1.01, label_y, name, color="0.4", fontsize=8, va="center", transform=x_is_fraction
        )


def draw_warning_panel(runs: Sequence[Path], path: Path) -> None:
    """Plot metrics that change before a run collapses, with a dashed line at each early sign.

    Source: figure 6 of https://arxiv.org/abs/2504.20073.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    plots = figure.subplots(2, 2, sharex=True)
    captions = ["iteration"]
    for run in runs:
        rows = read_rows(run / "metrics.jsonl", shape=PANEL_ROW)
        if not rows:
            raise UserError(f"{run} has no iteration yet")
        signs = find_early_signs(rows)
        captions += [f"{run.name}, iteration {step}: {text}" for step, text in signs]
        for axes, metric in zip(plots.flat, PANEL_METRICS, strict=True):
            values = {row["step"]: row[metric] for row in rows if row[metric] is not None}
            steps = list(values)
            (line,) = axes.plot(steps, list(values.values()), linewidth=1.2, label=run.name)
            for step, _ in signs:
                axes.axvline(step, color=line.get_color(), linewidth=0.8, linestyle="--")
            axes.set(ylabel=metric, yscale="log" if metric == "grad_norm" else "linear")
    plots[0, 0].legend(frameon=False)
    figure.supxlabel("\n".join(captions), fontsize=9)
    with replace_file(path, "wb") as file:
        figure.savefig(file, dpi=150)


def find_early_signs(rows: list[dict]) -> list[tuple[int, str]]:
    """Return (iteration, text) of each early sign of collapse in the rows of metrics.jsonl."""
    signs = []
    for i, row in enumerate(rows):
        for text in new_warnings(rows[: i + 1]):
            signs.append((row["step"], text))
    return signs
