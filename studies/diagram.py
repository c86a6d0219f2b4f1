"""Draw one iteration of RL as a diagram. The example has two groups of four trajectories.

`python -m studies.readme_pictures` writes the picture to docs/algorithm.png. The scores are
made-up examples. R is the score of a trajectory. As in GRPO, its advantage is (R - mean) / std. The
mean and std are taken over the scores in its group.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from tools.plotting.style import COLORS, GRAY, picture

TRAINED = COLORS[0]  # colour of tokens that the policy sampled
READ = "#d5d8dc"  # colour of tokens of the environment
GOOD, BAD = COLORS[2], COLORS[1]  # colours of advantages above and below 0
FADED = 0.35  # opacity of a group that is dropped because its scores are equal
# x of the left end of each column; x runs from 0 to 100 in the picture
GAMES, SCORE, FILTER, ADVANTAGE, UPDATE = 8, 50.5, 60.5, 71.5, 86
ENV_WIDTH, REPLY_WIDTH = 4.6, 9.0
ROW = 3.1  # vertical distance between neighbouring trajectories
HEAD_Y = 40.5


class Group(NamedTuple):
    """The trajectories of one prompt."""

    name: str
    y: float  # height at which the first trajectory is drawn
    num_turns: tuple[int, ...]  # of each trajectory
    scores: tuple[int, ...]


GROUPS = (
    Group("lake A", 31.5, (3, 2, 3, 2), (1, 0, 0, 1)),
    Group("lake B", 15, (2, 3, 1, 3), (0, 0, 0, 0)),
)


def draw_algorithm(path: Path) -> None:
    with picture(path, width=10, height=4.6) as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 100), ylim=(-5, 43))
        axes.axis("off")
        draw_heads(axes)
        for group in GROUPS:
            draw_group(axes, group)
        draw_key(axes)
        draw_update(axes)
    print(f"wrote {path}")


def draw_heads(axes: Axes) -> None:
    heads = {
        GAMES: ("1  Collect", "each group plays one board several times, turn by turn"),
        SCORE: ("2  Score", "R: all rewards"),
        FILTER: ("3  Filter", "spread of R"),
        ADVANTAGE: ("4  Advantage", "(R - mean) / std"),
        UPDATE: ("5  Update", "policy loss"),
    }
    for x, (head, line) in heads.items():
        axes.text(x, HEAD_Y, head, weight="bold", fontsize=11.5)
        axes.text(x, HEAD_Y - 2.5, line, fontsize=8.5, color=GRAY)


def draw_group(axes: Axes, group: Group) -> None:
    scores = np.array(group.scores)
    is_kept = scores.std() > 0
    opacity = 1.0 if is_kept else FADED
    middle = group.y - 1.5 * ROW
    axes.text(0, middle, group.name, fontsize=10, va="center", alpha=opacity, weight="bold")
    for member, (num_turns, score) in enumerate(zip(group.num_turns, scores, strict=True)):
        y = group.y - member * ROW
        draw_trajectory(axes, y, num_turns, opacity, is_first=member == 0 and is_kept)
        axes.text(SCORE + 3, y, str(score), fontsize=10, va="center", alpha=opacity)
        if is_kept:
            advantage = (score - scores.mean()) / scores.std(ddof=1)
            color = GOOD if advantage > 0 else BAD
            draw_block(axes, ADVANTAGE, y, 6, f"{advantage:+.2f}", color, "white")
    verdict = "varies:\nkeep" if is_kept else "all equal:\ndrop"
    axes.text(
        FILTER + 0.5, middle, verdict, fontsize=10, va="center", color=GOOD if is_kept else BAD
    )


def draw_trajectory(axes: Axes, y: float, num_turns: int, opacity: float, is_first: bool) -> None:
    x = GAMES
    for turn in range(num_turns):
        prompt = "board" if is_first else ""
        reply = "think, answer" if is_first else ""
        draw_block(axes, x, y, ENV_WIDTH, prompt, READ, "black", opacity)
        x += ENV_WIDTH
        draw_block(axes, x, y, REPLY_WIDTH, reply, TRAINED, "white", opacity)
        if is_first:
            axes.text(x - ENV_WIDTH, y + 2.1, f"turn {turn + 1}", fontsize=8, color=GRAY)
        x += REPLY_WIDTH


def draw_block(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    color: str,
    text_color: str,
    opacity: float = 1.0,
) -> None:
    axes.barh(
        y, width, left=x, height=2.3, color=color, alpha=opacity, edgecolor="white", linewidth=1
    )
    axes.text(x + width / 2, y - 0.1, text, color=text_color, fontsize=8, ha="center", va="center")


def draw_key(axes: Axes) -> None:
    draw_block(axes, GAMES, 0.5, ENV_WIDTH, "", READ, "black")
    axes.text(GAMES + 6, 0.4, "tokens of the environment: read only", fontsize=9, va="center")
    draw_block(axes, GAMES, -2.7, ENV_WIDTH, "", TRAINED, "white")
    axes.text(GAMES + 6, -2.8, "tokens that the policy sampled: trained", fontsize=9, va="center")


def draw_update(axes: Axes) -> None:
    middle = GROUPS[0].y - 1.5 * ROW
    text = "blue tokens get more\nlikely at +0.87, and\nless likely at -0.87"
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#eaf2f8", "edgecolor": TRAINED}
    axes.text(UPDATE, middle, text, fontsize=9, va="center", bbox=box)
    arrow = {"arrowstyle": "-|>", "color": TRAINED, "linewidth": 1.8}
    axes.annotate("", (UPDATE - 1.6, middle), (ADVANTAGE + 6.5, middle), arrowprops=arrow)
    line_y = -1.2
    axes.plot([UPDATE + 6] * 2, [middle - 4.2, line_y], color=TRAINED, linewidth=1.8)
    axes.annotate("", (SCORE - 2, line_y), (UPDATE + 6.1, line_y), arrowprops=arrow)
    axes.text(SCORE + 5, 0.4, "new weights play the next iteration", fontsize=9, color=TRAINED)
    note = "This is GRPO. PPO gives each\ntoken its own, with a critic."
    axes.text(ADVANTAGE, middle - 8, note, fontsize=8.5, color=GRAY, va="center")
