"""Draw how success and the signs of collapse change during training."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from tools.plotting.style import draw_legend, look_of, percent_axis, picture

Run = Sequence[dict]  # the metrics of each iteration, as in metrics.jsonl


class Panel(NamedTuple):
    """The plot of one metric."""

    metric: str
    title: str
    scale: float = 1.0


PANELS = (
    Panel("success", "success in training, %", 100),
    Panel("valid_frac", "replies in the required form, %", 100),
    Panel("in_group_reward_std", "spread of rewards in a group"),
    Panel("entropy", "entropy, nats a token"),
    Panel("grad_norm", "gradient norm before clipping"),
    Panel("response_length", "tokens of a reply"),
    Panel("reward", "mean reward of a game"),
)


def metrics_of(row: dict) -> list[dict]:
    """Return the metrics in "series" of a run's JSON file as rows, one for each iteration."""
    steps = []
    for index in range(row["iterations"]):
        step = {key: values[index] for key, values in row["series"].items()}
        steps.append({"step": index + 1, **step})
    return steps


def draw_traps(path: Path, curves: dict[str, list[Run]]) -> None:
    draw_panels(path, PANELS, curves)


def draw_panels(path: Path, panels: Sequence[Panel], curves: dict[str, list[Run]]) -> None:
    """Draw each panel, and one legend for all panels.

    Args:
        curves: maps the name of a method to its runs. The runs of a method share a colour."""
    looks = looks_of(curves)
    columns = min(4, len(panels))
    num_rows = math.ceil(len(panels) / columns)
    with picture(path, width=2.75 * columns, height=2.7 * num_rows) as figure:
        axes_of_panels = figure.subplots(num_rows, columns, sharex=True, squeeze=False).flat
        for axes, panel in zip(axes_of_panels, panels, strict=False):
            draw_panel(axes, panel, curves, looks)
        for empty in axes_of_panels[len(panels) :]:
            empty.set_axis_off()
        draw_legend(figure, in_legend(curves, looks))


def draw_two_rates(path: Path, low: dict[str, list[Run]], high: dict[str, list[Run]]) -> None:
    """Draw the picture at the top of the repository's README.

    Args:
        low: maps a method to its runs at a learning rate of 2e-5, one run for each seed.
        high: maps the same methods to their runs at 8e-5."""
    looks = looks_of(high)
    success, replies = PANELS[0], PANELS[5]
    drawn = (
        (low, success._replace(title="rate 2e-5: success, %")),
        (high, success._replace(title="rate 8e-5: success, %")),
        (high, replies._replace(title="rate 8e-5: reply tokens")),
    )
    with picture(path, width=8.25, height=2.7) as figure:
        for axes, (curves, panel) in zip(figure.subplots(1, 3), drawn, strict=True):
            draw_panel(axes, panel, curves, looks)
        # The two learning rates have different numbers of seeds, so the legend names no number.
        draw_legend(figure, looks)


def looks_of(curves: dict[str, list[Run]]) -> dict[str, dict]:
    return {name: look_of(index) for index, name in enumerate(curves)}


def in_legend(curves: dict[str, list[Run]], looks: dict[str, dict]) -> dict[str, dict]:
    legend = {}
    for name, runs in curves.items():
        seeds = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
        legend[f"{name}, {seeds}"] = looks[name]
    return legend


def draw_panel(
    axes: Axes, panel: Panel, curves: dict[str, list[Run]], looks: dict[str, dict]
) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel("iteration")
    if panel.scale == 100:
        percent_axis(axes)
        axes.set_ylabel("")
    for name, runs in curves.items():
        for run in runs:
            draw_metric(axes, panel, run, looks[name])


def draw_metric(axes: Axes, panel: Panel, run: Run, look: dict) -> None:
    iterations = []
    values = []
    for row in run:
        if row[panel.metric] is not None:
            iterations.append(row["step"])
            values.append(panel.scale * row[panel.metric])
    axes.plot(iterations, values, linewidth=1.2, **look)
