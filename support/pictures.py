"""Boards of FrozenLake and Sokoban as pictures, for the page of view.py, its GIFs, and TensorBoard."""

import re
from collections.abc import Sequence
from itertools import takewhile
from textwrap import fill

from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon

from grids import Sokoban

HEAD = re.compile(
    r"(?:(.*?)\n)?(Turn \d+ of \d+, \d+ actions? left)\.\n(.*)", re.S
)  # see Episode._turn_text
# the picture of a cell is a pile of layers, a layer a list of shapes: colour and x y radius, or corners x y x y ...
COLORS = {  # light, dark
    "ice": ("#dfebf5", "#2a3843"),
    "water": ("#3f5870", "#0c141b"),
    "rim": ("#c3d7e7", "#3a4d5c"),
    "floor": ("#f0ebe0", "#36322b"),
    "wall": ("#a59c8d", "#5d574d"),
    "pole": ("#6d7680", "#a9b2ba"),
    "wood": ("#d0a266", "#b98d54"),
    "plank": ("#ab7d43", "#8d6839"),
    "goal": ("#34a06a", "#4cba82"),
    "you": ("#e2733a", "#ee8b52"),
    "eye": ("#ffffff", "#1c1f22"),
}
LAYERS = {
    **{
        name: [(name, 0.05, 0.05, 0.95, 0.05, 0.95, 0.95, 0.05, 0.95)]
        for name in ("ice", "floor", "wall")
    },
    "hole": [("rim", 0.5, 0.5, 0.38), ("water", 0.5, 0.52, 0.33)],
    "flag": [
        ("pole", 0.32, 0.16, 0.36, 0.16, 0.36, 0.84, 0.32, 0.84),
        ("goal", 0.38, 0.18, 0.78, 0.33, 0.38, 0.48),
    ],
    "you": [("you", 0.5, 0.5, 0.3), ("eye", 0.41, 0.45, 0.055), ("eye", 0.59, 0.45, 0.055)],
    "box": [
        ("wood", 0.2, 0.2, 0.8, 0.2, 0.8, 0.8, 0.2, 0.8),
        ("plank", 0.2, 0.2, 0.28, 0.2, 0.8, 0.72, 0.8, 0.8, 0.72, 0.8, 0.2, 0.28),
    ],
    "done": [
        ("goal", 0.2, 0.2, 0.8, 0.2, 0.8, 0.8, 0.2, 0.8),
        ("floor", 0.3, 0.5, 0.46, 0.66, 0.7, 0.4, 0.64, 0.34, 0.46, 0.5, 0.4, 0.4),
    ],
    "ring": [("goal", 0.5, 0.5, 0.22), ("floor", 0.5, 0.5, 0.13)],
}
LAKE = {
    "_": "ice",
    "O": "ice hole",
    "G": "ice flag",
    "P": "ice you",
    "X": "ice hole you",
    "√": "ice flag you",
}
ROOM = ("wall", "floor", "floor ring", "floor done", "floor box", "floor you", "floor ring you")


def symbols(spec: str) -> dict[str, str]:
    """The layers of every symbol of an environment that is drawn as a picture; {} for others, shown as text."""
    name, _, options = spec.partition(":")
    alphabet = Sokoban.SYMBOLS["newvocab" if "symbols=newvocab" in options else "default"]
    return {"frozenlake": LAKE, "sokoban": dict(zip(alphabet, ROOM, strict=True))}.get(name, {})


def take_apart(observation: str, known: dict[str, str]) -> dict[str, str]:
    """The parts of a user message: report of the last turn, budget, board (lines of known symbols) and other text.

    >>> take_apart("Reward 0.\\nTurn 2 of 5, 1 action left.\\n_G\\nP_\\nGoal up.", LAKE)
    {'report': 'Reward 0.', 'budget': 'Turn 2 of 5, 1 action left', 'board': '_G\\nP_', 'text': 'Goal up.'}
    """
    match = HEAD.fullmatch(observation)
    report, budget, text = match.groups() if match else ("", "", observation)
    lines = text.split("\n")
    rows = list(
        takewhile(lambda line: len(line) == len(lines[0]) > 1 and set(line) <= known.keys(), lines)
    )
    return {
        "report": report or "",
        "budget": budget,
        "board": "\n".join(rows),
        "text": "\n".join(lines[len(rows) :]),
    }


def draw(axes, board: str, known: dict[str, str]) -> None:
    """Draw a board of `take_apart` on matplotlib axes."""
    axes.axis("off")
    cells = [
        (x, y, known[symbol])
        for y, row in enumerate(board.split("\n"))
        for x, symbol in enumerate(row)
    ]
    for x, y, (color, *n) in (
        (x, y, n) for x, y, pile in cells for layer in pile.split() for n in LAYERS[layer]
    ):
        points = [(x + dx, -y - dy) for dx, dy in zip(n[::2], n[1::2], strict=False)]
        axes.add_patch(Circle(points[0], n[2]) if len(n) == 3 else Polygon(points)).set_color(
            COLORS[color][0]
        )
    axes.axis("scaled")


def strip(env: str, observations: Sequence[str], captions: Sequence[str]) -> Figure | None:
    """The boards of an episode side by side, with a caption each; None where there is a text instead."""
    known = symbols(env)
    boards = [take_apart(observation, known)["board"] for observation in observations]
    if not all(boards):
        return None
    figure = Figure(figsize=(2 * len(boards), 2.6), layout="constrained")
    for axes, board, caption in zip(
        figure.subplots(1, len(boards), squeeze=False)[0], boards, captions, strict=True
    ):
        draw(axes, board, known)
        axes.set_title(
            fill("".join(c if c.isprintable() else " " for c in caption), 28),
            fontsize=8,
            parse_math=False,
        )
    return figure
