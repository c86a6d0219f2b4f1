"""Redraw four of the five pictures of README.md.

    make figures        # or: python -m studies.readme_pictures

- docs/flagship.png: success before and after RL, from the results in studies/imitation/rows/.
- docs/algorithm.png: one iteration of the algorithm, drawn by studies/diagram.py.
- docs/agent.gif: a game of out/frozenlake_ppo, the run of `make train`. If this run is not
  finished, the script first starts or continues the run (7 CPU-minutes in all).
- docs/view.png: a screenshot of the web page of this run.

The script needs playwright (requirements/dev.txt) and Chromium. The script does not draw
docs/echo_trap.png: studies/real_model/page.py draws that picture.
"""

from configurator import UserError

from support.terminal import refuse_arguments, run_main

if __name__ == "__main__":
    run_main(refuse_arguments, kind=None)  # answers --help before the slow imports

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from studies.diagram import draw_algorithm
from studies.imitation.comparison import BASE, PLAYERS, rates_of
from support.statistics import rate_interval
from tools.plotting.style import (
    COLORS,
    Label,
    draw_legend,
    draw_player,
    label_lines,
    percent_axis,
    picture,
)
from tools.view import write_page
from tools.viewer.data import load_runs
from tools.viewer.gif import draw_gif
from tools.viewer.photograph import open_browser, photograph

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path("docs")
WORLDS = {"sokoban": "Sokoban, 6x6 rooms", "frozenlake": "FrozenLake, slippery"}
# Maps a player (a row of studies/imitation/table.md) to the label of its line in docs/flagship.png.
REFERENCES = {
    PLAYERS["optimal, 5 a turn"]: "optimal play",
    PLAYERS["random, closed loop"]: "random actions",
}
# Maps a row of studies/imitation/table.md to the label and colour of its bar in docs/flagship.png.
BARS = {BASE: ("before RL", "#9aa0a6"), "PPO": ("after RL", COLORS[0])}
SEED = {
    "marker": "o",
    "color": "white",
    "markeredgecolor": "black",
    "markersize": 5,
    "linewidth": 0,
}
SIGNS = {
    "95 % interval over prompts and seeds": Line2D([], [], color="black", linewidth=1.4),
    "single seed": Line2D([], [], **SEED),
}
RUN = Path("out/frozenlake_ppo")
TRAIN = (
    "train.py",
    "config/frozenlake_ppo.py",
    "config/models/tiny.py",
    "config/recipes/tiny_best.py",
)


def main(argv: list[str]) -> None:
    refuse_arguments(argv)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = open_browser(started)  # first, so that nothing is written if Chromium is missing
        train()
        draw_flagship(DOCS / "flagship.png")
        draw_algorithm(DOCS / "algorithm.png")
        draw_run(browser, RUN, DOCS / "agent.gif", DOCS / "view.png")
        browser.close()


def train() -> None:
    """Start or continue the run in the folder RUN. If this run is finished, train.py only prints
    the report of the run.

    Raises: UserError if train.py fails, for example because RUN holds a run with other settings."""
    command = [sys.executable, *TRAIN]
    if subprocess.run(command).returncode:
        raise UserError(f"the run {RUN} is not finished; see the message above")


# ---------- success before and after RL


def draw_flagship(path: Path) -> None:
    with picture(path, width=8.6, height=4.2) as figure:
        panels = figure.subplots(1, len(WORLDS))
        panel_labels = []
        for axes, (world, title) in zip(panels, WORLDS.items(), strict=True):
            rates = {row: wins for row, (wins, _) in rates_of(world).items()}  # (S, n)
            cpu_s = rates_of(world)["PPO"][1][0]
            axes.set_title(f"{title}\n{cpu_s / 60:.0f} CPU-minutes of RL")
            percent_axis(axes)
            axes.set_ylabel("games won, %")
            draw_bars(axes, rates)
            panel_labels.append((axes, draw_references(axes, rates)))
        draw_legend(figure, {}, signs=SIGNS)
        for axes, labels in panel_labels:
            label_lines(axes, labels)
    print(f"wrote {path}")


def draw_bars(axes: Axes, rates: dict[str, np.ndarray]) -> None:
    """Draw the mean success and its 95 % interval for each row of BARS. If a row has several seeds,
    draw a dot for each seed.

    Args: rates: maps the name of a row to its shares of won games, of shape (seeds, prompts)."""
    for place, (row, (_, color)) in enumerate(BARS.items()):
        wins = 100 * rates[row]
        mean = wins.mean()
        low, high = rate_interval(rates[row])
        axes.bar(place, mean, width=0.6, color=color)
        ends = [[mean - 100 * low], [100 * high - mean]]
        axes.errorbar(place, mean, yerr=ends, color="black", linewidth=1.4, capsize=4)
        seeds = wins.mean(1)
        if len(seeds) > 1:
            places = np.full(len(seeds), place + 0.15)
            axes.plot(places, seeds, **SEED)
        axes.text(place, 4, f"{mean:.1f}", color="white", weight="bold", ha="center", fontsize=12)
    axes.set_xticks(range(len(BARS)), [name for name, _ in BARS.values()])
    axes.set_xlim(-0.6, len(BARS) - 0.4)


def draw_references(axes: Axes, rates: dict[str, np.ndarray]) -> list[Label]:
    labels = []
    for row, label in REFERENCES.items():
        success = 100 * float(rates[row].mean())
        draw_player(axes, success)
        labels.append(Label(success, f"{label} {success:.1f}"))
    return labels


# ---------- a game and the page


def draw_run(browser: "Browser", run: Path, animation: Path, screenshot: Path) -> None:
    data = load_runs([run])
    draw_gif(data, find_game(data, is_long_success), animation)
    print(f"wrote {animation}")
    html = run / "view.html"
    write_page([run], html)
    photograph(browser, html, find_game(data, is_unlucky_loss), screenshot)
    print(f"wrote {screenshot}")


def find_game(data: dict, is_wanted: Callable[[dict], bool]) -> int:
    """Return the index of the first trajectory for which `is_wanted` is true.

    Raises: UserError if there is no such trajectory."""
    for number, trajectory in enumerate(data["trajectories"]):
        if is_wanted(trajectory):
            return number
    raise UserError(
        f"{data['runs'][0]['name']} has no recorded game that fits the picture of a slip"
    )


def is_long_success(trajectory: dict) -> bool:
    turns = trajectory["turns"]
    is_long = trajectory["when"] == "after RL" and len(turns) == 3
    return is_long and trajectory["success"] and slips_in(turns[0])


def is_unlucky_loss(trajectory: dict) -> bool:
    turns = trajectory["turns"]
    is_short = trajectory["when"] == "iteration 20" and len(turns) == 1
    return is_short and trajectory["kept"] and not trajectory["success"] and slips_in(turns[0])


def slips_in(turn: dict) -> bool:
    """Whether the agent slipped, that is, moved in another direction than its action says."""
    moves = turn.get("moves", turn["actions"])
    pairs = zip(turn["actions"], moves, strict=True)
    return any(move not in ("", action) for action, move in pairs)


if __name__ == "__main__":
    run_main(main)
