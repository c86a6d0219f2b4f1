"""Animate a trajectory for tools/view.py: one frame per turn, then one for the end.

A frame shows the board at the left and text at the right. Positions and lengths are in inches,
font sizes in points; y grows downwards.
"""

from configurator import UserError

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from tools.viewer.pictures import COLORS, draw_board
from utils.files import replace_file

DPI = 200
WIDTH = 7.0
BOARD_SIZE = 3.2
MARGIN = 0.15
TEXT_LEFT = 3.65
LINE_CHARACTERS = 36  # characters that fit beside the board
FONT_SIZE = 12  # points
LABEL_SIZE = 9.5
LINE_HEIGHT = 0.23
BLOCK_GAP = 0.14  # space below a block of text
INK = "#24282c"
GRAY = "#6f757b"
FAILED = "#c65d45"
TURN_MS = 2500  # how long the frame of a turn is shown, in milliseconds
END_MS = 4000
ARROWS = {"left": "←", "down": "↓", "right": "→", "up": "↑"}


class Block(NamedTuple):
    """Lines of text below an optional label."""

    label: str
    text: str
    color: str = INK
    weight: str = "normal"

    def height(self) -> float:
        num_lines = self.text.count("\n") + 1 + bool(self.label)
        return num_lines * LINE_HEIGHT + BLOCK_GAP


class Frame(NamedTuple):
    """The board and the texts of a frame."""

    board: str  # "" for environments other than FrozenLake and Sokoban
    blocks: list[Block]


def draw_gif(data: dict, index: int, path: Path) -> None:
    """Write a trajectory as an animated GIF.

    Args: data: from `load_runs`; index: number of the trajectory in `data`.
    Raises: UserError if `data` has no trajectory with this number.
    """
    trajectories = data["trajectories"]
    if index >= len(trajectories):
        name = data["runs"][0]["name"]
        raise UserError(f"{name} has trajectories from 0 to {len(trajectories) - 1}, got {index}")
    trajectory = trajectories[index]
    cells = data["cells"][trajectory["env"]]
    arrows = ARROWS if cells else {}  # show arrows only if a board is drawn
    frames = [turn_frame(turn, arrows) for turn in trajectory["turns"]]
    frames.append(end_frame(trajectory, arrows))

    height = BOARD_SIZE
    for frame in frames:
        height = max(height, sum(block.height() for block in frame.blocks))
    images = [render(frame, cells, height + 2 * MARGIN) for frame in frames]
    durations = [TURN_MS] * len(trajectory["turns"]) + [END_MS]
    with replace_file(path, "wb") as file:
        images[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=durations,
            loop=0,
        )


def turn_frame(turn: dict, arrows: dict[str, str]) -> Frame:
    """Return the frame of a turn: the reply, the reward, and the board before the actions."""
    blocks = [
        make_block("", turn["budget"], weight="bold"),
        *response_blocks(turn, arrows),
        make_block("Reward", f"{turn['reward']:g}"),
    ]
    return Frame(turn["board"], blocks)


def end_frame(trajectory: dict, arrows: dict[str, str]) -> Frame:
    """Return the last frame: how the game ended, the score, and the board after the last action."""
    last = trajectory["turns"][-1]
    status = trajectory["status"].replace("_", " ").capitalize()
    color = COLORS["goal"].light if trajectory["success"] else FAILED
    blocks = [
        make_block("", status, color=color, weight="bold"),
        *response_blocks(last, arrows),
        make_block("Sum of rewards", f"{trajectory['score']:g}"),
    ]
    return Frame(last["final_board"] or last["board"], blocks)


def response_blocks(turn: dict, arrows: dict[str, str]) -> list[Block]:
    """Return the nonempty blocks of a turn: observation (without board), thought, answer."""

    def with_arrow(name: str) -> str:
        return f"{arrows.get(name.lower(), '')} {name}".strip()

    actions = []
    for action, move in zip(turn["actions"], turn.get("moves", turn["actions"]), strict=True):
        slip = f" (slipped: {with_arrow(move)})" if move not in ("", action) else ""
        actions.append(with_arrow(action) + slip)
    parts = [
        make_block("Observation", turn["text"]),
        make_block("Thought", turn["thought"]),
        make_block("Answer", "   ".join(actions)),
    ]
    return [part for part in parts if part.text]


def make_block(label: str, text: str, *, color: str = INK, weight: str = "normal") -> Block:
    """Wrap a text into a block, and replace characters that UTF-8 cannot encode."""
    wrapped = "\n".join(fill(line, LINE_CHARACTERS) for line in text.split("\n"))
    return Block(label, wrapped.encode(errors="replace").decode(), color, weight)


def render(frame: Frame, cells: dict[str, tuple[str, ...]], height: float) -> Image.Image:
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    if frame.board:
        size = (BOARD_SIZE / WIDTH, BOARD_SIZE / height)
        corner = (MARGIN / WIDTH, 1 - (MARGIN + BOARD_SIZE) / height)
        axes = figure.add_axes((*corner, *size))
        draw_board(axes, frame.board, cells)
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, WIDTH), ylim=(height, 0))
    page.axis("off")
    write_blocks(page, frame.blocks)

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())  # (height, width, 4)
    return Image.fromarray(picture).convert("RGB")


def write_blocks(page: Axes, blocks: list[Block]) -> None:
    """Write blocks of text below each other."""
    y = MARGIN
    for block in blocks:
        text_y = y
        if block.label:
            page.text(TEXT_LEFT, y, block.label, va="top", size=LABEL_SIZE, color=GRAY)
            text_y += LINE_HEIGHT
        page.text(
            TEXT_LEFT,
            text_y,
            block.text,
            va="top",
            size=FONT_SIZE,
            color=block.color,
            weight=block.weight,
            linespacing=1.3,  # puts the lines about LINE_HEIGHT apart
            parse_math=False,
        )
        y += block.height()
