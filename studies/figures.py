"""Draw all pictures of README and docs again.

    make figures        # or: python -m studies.figures

- docs/flagship.png: the points of docs/flagship.csv and the players of
  studies/imitation/rows/. studies/imitation/README.md has the commands that make them.
- docs/agent.gif and docs/view.png: a game of out/frozenlake_ppo, and its page in Chromium. This is
  the run of `make train`. If it is missing, it is trained first, which takes 6 CPU-minutes.

Needs playwright (requirements/dev.txt) and Chromium.
"""

from configurator import Config, UserError, run_main

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from studies.photograph import open_browser, photograph
from support.run_folder import read_json
from tools.plotting.arms import Arm, Evaluation, TrainedRun
from tools.plotting.style import Label, draw_player, label_lines, percent_axis, picture
from tools.view import write_page
from tools.viewer.curves import draw_curves_of_arms
from tools.viewer.data import load_runs
from tools.viewer.gif import draw_gif

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path("docs")
POINTS = DOCS / "flagship.csv"
PLAYERS = Path("studies/imitation/rows/frozenlake-players_s0.json")
REFERENCES = {  # row of PLAYERS -> label of its line
    "optimal under the limits of the policy": "optimal play",
    "greedy, ten turns of one action": "greedy player",
    "random, ten turns of one action": "random actions",
}
RUN = Path("out/frozenlake_ppo")
TRAIN = (
    "train.py",
    "config/frozenlake_ppo.py",
    "config/models/tiny.py",
    "config/models/tiny_best.py",
)


def main(argv: list[str]) -> None:
    if argv:
        raise UserError(f"expected no arguments, got {' '.join(argv)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = open_browser(started)  # a missing one is an error before anything is written
        train()
        draw_flagship(DOCS / "flagship.png")
        draw_run(browser, RUN, DOCS / "agent.gif", DOCS / "view.png")
        browser.close()


def train() -> None:
    """Train RUN, continue it, or do nothing if it is finished. It refuses other settings.

    Raises: UserError if that fails."""
    command = [sys.executable, *TRAIN]
    if subprocess.run(command).returncode:
        raise UserError(f"the run {RUN} is not finished; see the message above")


# ---------- the learning curve


def draw_flagship(path: Path) -> None:
    """Draw the learning curve of PPO on slippery FrozenLake, and the reference players."""
    with picture(path, width=6.4, height=4.0) as figure:
        axes = figure.subplots()
        axes.set_title("Slippery FrozenLake, 256 fixed prompts")
        percent_axis(axes)
        labels = draw_references(axes)
        labels += draw_curves_of_arms(axes, [read_flagship()])
        label_lines(axes, labels)
    print(f"wrote {path}")


def read_flagship() -> Arm:
    """The runs of POINTS, as tools/compare.py wrote them."""
    runs: dict[int, TrainedRun] = {}
    with POINTS.open(newline="") as file:
        for point in csv.DictReader(file):
            seed = int(point["seed"])
            if seed not in runs:
                runs[seed] = TrainedRun(Path(point["run"]), Config(seed=seed), "unknown", {}, {})
            numbers = (float(point[name]) for name in Evaluation._fields)
            runs[seed].evaluations[int(point["iteration"])] = Evaluation(*numbers)
    return Arm("RL (PPO)", list(runs.values()))


def draw_references(axes: Axes) -> list[Label]:
    """Draw the lines of the reference players. Returns: their labels."""
    row = read_json(PLAYERS, {"samples": int, "wins": {str: [int]}})
    labels = []
    for name, label in REFERENCES.items():
        success = 100 * float(np.mean(row["wins"][name])) / row["samples"]
        draw_player(axes, success)
        labels.append(Label(success, f"{label} {success:.0f}"))
    return labels


# ---------- a game and the page


def draw_run(browser: "Browser", run: Path, animation: Path, screenshot: Path) -> None:
    """Animate a game of a run, and take a screenshot of the page of the run."""
    data = load_runs([run])
    draw_gif(data, find_game(data, is_long_success), animation)
    print(f"wrote {animation}")
    html = run / "view.html"
    write_page([run], html)
    photograph(browser, html, find_game(data, is_unlucky_loss), screenshot)
    print(f"wrote {screenshot}")


def find_game(data: dict, is_wanted: Callable[[dict], bool]) -> int:
    """The number of the first wanted trajectory. Raises: UserError if there is none."""
    for number, trajectory in enumerate(data["trajectories"]):
        if is_wanted(trajectory):
            return number
    raise UserError(f"{data['runs'][0]['name']} holds no game with a slip that can be shown")


def is_long_success(trajectory: dict) -> bool:
    """After RL, the agent slips and reaches the goal in its third turn."""
    turns = trajectory["turns"]
    is_long = trajectory["when"] == "after RL" and len(turns) == 3
    return is_long and trajectory["success"] and slips_in(turns[0])


def is_unlucky_loss(trajectory: dict) -> bool:
    """In iteration 20, a slip loses a game of one turn, and its group is kept."""
    turns = trajectory["turns"]
    is_short = trajectory["when"] == "iteration 20" and len(turns) == 1
    return is_short and trajectory["kept"] and not trajectory["success"] and slips_in(turns[0])


def slips_in(turn: dict) -> bool:
    """Whether an action of a turn moved the agent in another direction."""
    moves = turn.get("moves", turn["actions"])
    pairs = zip(turn["actions"], moves, strict=True)
    return any(move not in ("", action) for action, move in pairs)


if __name__ == "__main__":
    run_main(main)
