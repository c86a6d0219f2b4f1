"""The boards of FrozenLake and Sokoban as shapes, for the page and the GIFs of tools/view.py.

A cell is a stack of layers, and a layer is a list of shapes. A cell has width and height 1. In a
cell, the point (0, 0) is the upper left corner, and y grows downwards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from matplotlib import patches
from matplotlib.axes import Axes

from worlds.grids import Sokoban


class Color(NamedTuple):
    """The color of a shape in the light theme and in the dark theme of the page."""

    light: str
    dark: str


@dataclass(frozen=True)
class Circle:
    """A filled circle."""

    color: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Polygon:
    """A filled polygon with the corners (x, y)."""

    color: str
    corners: tuple[tuple[float, float], ...]


def rectangle(color: str, left: float, top: float, right: float, bottom: float) -> Polygon:
    return Polygon(color, ((left, top), (right, top), (right, bottom), (left, bottom)))


COLORS = {
    "ice": Color("#dfebf5", "#2a3843"),
    "water": Color("#3f5870", "#0c141b"),
    "rim": Color("#c3d7e7", "#3a4d5c"),
    "floor": Color("#f0ebe0", "#36322b"),
    "wall": Color("#a59c8d", "#5d574d"),
    "pole": Color("#6d7680", "#a9b2ba"),
    "wood": Color("#d0a266", "#b98d54"),
    "plank": Color("#ab7d43", "#8d6839"),
    "goal": Color("#34a06a", "#4cba82"),
    "player": Color("#e2733a", "#ee8b52"),
    "eye": Color("#ffffff", "#1c1f22"),
}

LAYERS: dict[str, list[Circle | Polygon]] = {
    "ice": [rectangle("ice", 0.05, 0.05, 0.95, 0.95)],
    "floor": [rectangle("floor", 0.05, 0.05, 0.95, 0.95)],
    "wall": [rectangle("wall", 0.05, 0.05, 0.95, 0.95)],
    "hole": [
        Circle("rim", 0.5, 0.5, 0.38),
        Circle("water", 0.5, 0.52, 0.33),
    ],
    "flag": [
        rectangle("pole", 0.32, 0.16, 0.36, 0.84),
        Polygon("goal", ((0.38, 0.18), (0.78, 0.33), (0.38, 0.48))),
    ],
    "player": [
        Circle("player", 0.5, 0.5, 0.3),
        Circle("eye", 0.41, 0.45, 0.055),
        Circle("eye", 0.59, 0.45, 0.055),
    ],
    "target": [
        Circle("goal", 0.5, 0.5, 0.22),
        Circle("floor", 0.5, 0.5, 0.13),
    ],
    "box": [
        rectangle("wood", 0.2, 0.2, 0.8, 0.8),
        Polygon(  # a diagonal plank
            "plank",
            ((0.2, 0.2), (0.28, 0.2), (0.8, 0.72), (0.8, 0.8), (0.72, 0.8), (0.2, 0.28)),
        ),
    ],
    "placed box": [
        rectangle("goal", 0.2, 0.2, 0.8, 0.8),
        Polygon(  # a check mark
            "floor",
            ((0.3, 0.5), (0.46, 0.66), (0.7, 0.4), (0.64, 0.34), (0.46, 0.5), (0.4, 0.4)),
        ),
    ],
}

FROZENLAKE_CELLS = {
    "_": ("ice",),
    "O": ("ice", "hole"),
    "G": ("ice", "flag"),
    "P": ("ice", "player"),
    "X": ("ice", "hole", "player"),
    "√": ("ice", "flag", "player"),
}
# The layers of each kind of cell. Each alphabet in Sokoban.SYMBOLS has one symbol for each kind,
# in this order.
SOKOBAN_CELLS = (
    ("wall",),
    ("floor",),
    ("floor", "target"),
    ("floor", "placed box"),
    ("floor", "box"),
    ("floor", "player"),
    ("floor", "target", "player"),
)

# `Episode` (dialogue.py) puts a header before an observation: a report on the previous turn, then
# the turns and actions that are left (the budget).
HEADER = re.compile(
    r"(?:(?P<report>.*?)\n)?"
    r"(?P<budget>Turn \d+ of \d+, \d+ actions? left)\.\n"
    r"(?P<text>.*)",
    re.DOTALL,
)


class Message(NamedTuple):
    """The parts of a user message; "" for a missing part."""

    report: str  # on the previous turn
    budget: str  # turns and actions that are left
    board: str  # leading lines of the observation that have equal length and only board symbols
    text: str  # the rest of the message


def cells_of(env: str) -> dict[str, tuple[str, ...]]:
    """Return a dict that maps each symbol of a board to the names of the layers to draw.

    The dict is empty for environments other than FrozenLake and Sokoban.

    Args: env: an environment with its options, as in the setting `env`.
    """
    name, _, options = env.partition(":")
    if name == "frozenlake":
        return FROZENLAKE_CELLS
    if name == "sokoban":
        alphabet = "newvocab" if "symbols=newvocab" in options else "default"
        return dict(zip(Sokoban.SYMBOLS[alphabet], SOKOBAN_CELLS, strict=True))
    return {}


def split_message(message: str, symbols: Mapping) -> Message:
    """Split a user message into its parts. Args: symbols: a mapping whose keys are board symbols.

    >>> message = "Reward 0.\\nTurn 2 of 5, 1 action left.\\n_G\\nP_\\nGoal up."
    >>> parts = split_message(message, FROZENLAKE_CELLS)
    >>> parts.report, parts.budget
    ('Reward 0.', 'Turn 2 of 5, 1 action left')
    >>> parts.board, parts.text
    ('_G\\nP_', 'Goal up.')
    """
    match = HEADER.fullmatch(message)
    report = (match["report"] or "") if match else ""
    budget = match["budget"] if match else ""
    lines = (match["text"] if match else message).split("\n")
    width = len(lines[0])

    def in_board(line: str) -> bool:
        return len(line) == width > 1 and set(line) <= symbols.keys()

    board = list(takewhile(in_board, lines))
    rest = lines[len(board) :]
    return Message(report, budget, "\n".join(board), "\n".join(rest))


def draw_board(axes: Axes, board: str, cells: Mapping[str, tuple[str, ...]]) -> None:
    """Draw a board in the light theme.

    Args:
        axes: the axes to draw on. Their limits become the size of the board, one unit per cell.
        board: lines of symbols.
        cells: from `cells_of`.
    """
    rows = board.split("\n")
    axes.set(xlim=(0, len(rows[0])), ylim=(len(rows), 0), aspect="equal")
    axes.axis("off")
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            for layer in cells[symbol]:
                for shape in LAYERS[layer]:
                    axes.add_patch(make_patch(shape, x, y))


def make_patch(shape: Circle | Polygon, x: int, y: int) -> patches.Patch:
    """Make a matplotlib patch of a shape in the cell at column x, row y."""
    color = COLORS[shape.color].light
    if isinstance(shape, Circle):
        return patches.Circle((x + shape.x, y + shape.y), shape.radius, color=color)
    corners = [(x + dx, y + dy) for dx, dy in shape.corners]
    return patches.Polygon(corners, color=color)
