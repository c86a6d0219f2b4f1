"""The style of all plots: colours, axes, legends, and labels at lines."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from utils.files import replace_file

# Colour-blind-safe colours of Okabe and Ito, https://jfly.uni-koeln.de/color/.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", ":", "-.")  # the first six curves are solid, the next six dashed, ...
GRAY = "#555555"
DPI = 200
STYLE = {
    "font.size": 11,
    "figure.constrained_layout.w_pad": 0.08,  # inches
    "figure.constrained_layout.h_pad": 0.08,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,  # TrueType fonts, as journals require
}
PLAYER_LOOK = {"color": GRAY, "linewidth": 1.0, "linestyle": (0, (4, 3))}
LABEL_GAP = 1.35  # smallest distance between two labels, in multiples of the font size
LEGEND_WIDTH = 2.6  # smallest width of a legend entry, in inches
LETTER_WIDTH = 0.1  # width of a letter in the legend, in inches
LABEL_X = 1.045  # x at which labels begin, in multiples of the axes width


class Quantity(NamedTuple):
    """How a metric is drawn."""

    words: str  # name of the axis
    scale: float = 1.0  # multiplies the values; the factor 100 turns fractions into per cent


PERCENT = Quantity("fixed prompts solved, %", 100)
QUANTITIES = {
    "eval_success": PERCENT,
    "success": Quantity("solved in training, %", 100),
    "reward": Quantity("mean reward of a game"),
    "in_group_reward_std": Quantity("spread of rewards in a group"),
    "entropy": Quantity("entropy, nats per token"),
    "grad_norm": Quantity("gradient norm"),
    "response_length": Quantity("sampled tokens of a game"),
    "thought_true_frac": Quantity("true sentences in thoughts, %", 100),
}


class Label(NamedTuple):
    """The name of a line, written to the right of the line's end."""

    height: float  # where the line ends, in units of the y axis
    text: str
    color: str = GRAY


@contextmanager
def picture(*paths: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, then write it to the paths as PNG or PDF. Width and height are in inches."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for path in paths:
            form = path.suffix.removeprefix(".")
            # With a creation date, the same data would give a different PDF each time.
            metadata = {"CreationDate": None} if form == "pdf" else None
            with replace_file(path, "wb") as file:
                figure.savefig(file, dpi=DPI, format=form, metadata=metadata)


def percent_axis(axes: Axes) -> None:
    """Make the y axis show success in per cent. The limits leave room for lines at 0 and 100."""
    axes.set(ylabel=PERCENT.words, ylim=(-2, 102), yticks=range(0, 101, 20))


def log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic.

    Major ticks always have numbers. If the highest value of the axis is less than 20 times the
    lowest value, some minor ticks also have numbers. If the highest value is less than 3 times the
    lowest value, all minor ticks have numbers."""

    def between(value: float, _: int) -> str:
        low, high = axes.get_ylim()
        has_round_digit = f"{value:.0e}"[0] in "235"
        is_shown = high < 3 * low or (high < 20 * low and has_round_digit)
        return f"{value:g}" if is_shown else ""

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(between)


def look_of(index: int) -> dict:
    """Return colour and dashes for curve number `index`, as options of `Axes.plot`."""
    dashes = DASHES[index // len(COLORS) % len(DASHES)]
    return {"color": COLORS[index % len(COLORS)], "linestyle": dashes}


def draw_player(axes: Axes, height: float) -> None:
    """Draw the line of a reference player. `label_lines` writes the player's name."""
    axes.axhline(height, **PLAYER_LOOK, zorder=1)


def draw_legend(
    figure: Figure,
    looks: dict[str, dict],
    notes: str = "",
    signs: dict[str, Artist] | None = None,
) -> None:
    """Draw one legend below all panels.

    Args:
        looks: maps the name of each curve to its options of `Axes.plot`, see `look_of`.
        notes: text above the entries.
        signs: maps the text of each additional entry to its line or area.
            The additional entries come last.
    """
    entries: dict[str, Artist] = {name: Line2D([], [], **look) for name, look in looks.items()}
    entries |= signs or {}
    longest = max((len(name) for name in entries), default=0)
    entry_width = max(LEGEND_WIDTH, LETTER_WIDTH * longest)
    most_columns = max(1, int(figure.get_figwidth() / entry_width))
    num_lines = max(1, math.ceil(len(entries) / most_columns))
    num_columns = max(1, math.ceil(len(entries) / num_lines))
    handles = list(entries.values())
    # Each name gets a space in front: matplotlib leaves out names that begin with "_".
    names = [f" {name}" for name in entries]
    legend = figure.legend(handles, names, loc="outside lower center", ncols=num_columns)
    legend.set_title(notes, {"size": 10})
    for text in (legend.get_title(), *legend.get_texts()):
        text.set_parse_math(False)  # matplotlib would read dollar signs in a name as math


def label_lines(axes: Axes, labels: Sequence[Label]) -> None:
    """Write each label to the right of the axes, near its line's end. Labels do not overlap.

    Call this function after the y limits are final, because the limits decide which labels
    would overlap.
    """
    axes.figure.draw_without_rendering()  # computes the layout, which sets the height of the axes
    labels = sorted(labels, key=lambda label: label.height)
    bottom, top = axes.get_ylim()
    box = axes.get_position()
    points = 72 * axes.figure.get_figheight() * box.height
    font_size = axes.yaxis.label.get_fontsize() - 1
    gap = LABEL_GAP * font_size * (top - bottom) / points
    places = spread([label.height for label in labels], gap, highest=top)
    transform = axes.get_yaxis_transform()  # x in widths of the axes, y in the units of the data
    for label, place in zip(labels, places, strict=True):
        axes.plot(
            [1.005, LABEL_X - 0.01],
            [label.height, place],
            color=label.color,
            linewidth=0.8,
            transform=transform,
            clip_on=False,
            scalex=False,
            scaley=False,
        )
        axes.text(
            LABEL_X,
            place,
            label.text,
            color=label.color,
            fontsize=font_size,
            verticalalignment="center",
            transform=transform,
            parse_math=False,
        )


def spread(heights: Sequence[float], gap: float, highest: float = math.inf) -> list[float]:
    """Move ascending heights apart, as little as possible.

    Afterwards neighbours are at least `gap` apart, and no height is above `highest`. The method is
    isotonic regression (pool adjacent violators).

    >>> spread([10.0, 73.0, 77.0], gap=5.0)
    [10.0, 72.5, 77.5]
    >>> spread([99.0, 100.0], gap=5.0, highest=100.0)
    [95.0, 100.0]
    >>> spread([80.0, 97.0, 97.0], gap=5.0, highest=100.0)
    [80.0, 94.5, 99.5]
    """
    blocks: list[list[float]] = []
    limit = highest - (len(heights) - 1) * gap
    for i, height in enumerate(heights):
        block = [height - i * gap]
        while blocks and np.mean(blocks[-1]) > np.mean(block):
            block = blocks.pop() + block
        blocks.append(block)
    places = []
    for block in blocks:
        places += [min(float(np.mean(block)), limit)] * len(block)
    return [place + i * gap for i, place in enumerate(places)]
