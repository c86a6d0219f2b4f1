"""Tests of the pictures of README and docs: what they show, and that they can be drawn again.

python -m pytest -q studies/test_figures.py
"""

from configurator import UserError

import csv
import json
import subprocess
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image
from test_view import LAKE, record, to_lines, turn_record

from studies import figures
from tools.viewer import data as view_data

ROOT = Path(__file__).resolve().parent.parent
START = "Turn 1 of 5, 10 actions left.\nP_\nOG"


@pytest.fixture
def axes(monkeypatch, tmp_path):
    """The axes of the learning curve in README, drawn into another file."""
    drawn = []
    original = Figure.subplots

    def subplots(self, *args, **options):
        drawn.append(original(self, *args, **options))
        return drawn[-1]

    monkeypatch.setattr(Figure, "subplots", subplots)
    figures.draw_flagship(tmp_path / "flagship.png")
    assert Image.open(tmp_path / "flagship.png").size == (1280, 800)
    return drawn[0]


def test_the_curve_is_the_mean_of_the_recorded_seeds(axes):
    with (ROOT / "docs/flagship.csv").open() as file:
        points = list(csv.DictReader(file))
    means = []
    for iteration in ("0", "20", "40", "60", "80", "100"):
        rates = [float(p["success"]) for p in points if p["iteration"] == iteration]
        assert len(rates) == 3
        means.append(100 * sum(rates) / 3)
    curve = max(axes.get_lines(), key=lambda line: line.get_linewidth())
    assert list(curve.get_xdata()) == [0, 20, 40, 60, 80, 100]
    assert list(curve.get_ydata()) == pytest.approx(means)
    assert axes.get_xlabel().startswith("iteration")
    assert axes.get_ylabel() == "fixed prompts solved, %"


def test_the_labels_are_the_numbers_of_the_table_in_readme(axes):
    labels = [text.get_text() for text in axes.texts]  # from below
    assert labels == [
        "random actions 23",
        "greedy player 72",
        "RL (PPO) 80 (3 seeds)",
        "optimal play 91",
    ]
    table = {}
    for line in (ROOT / "README.md").read_text().splitlines():
        cells = [cell.strip(" *") for cell in line.split("|")]
        if len(cells) == 5 and "[" in cells[2]:
            table[cells[1].partition(":")[0]] = round(float(cells[2].split()[0]))
    assert table["random actions"] == 23
    assert (
        table["after RL (PPO, all groups kept)"] == 80
        and table["optimal play under the same limits"] == 91
    )


# ---------- the pictures of a run


def write_run(folder, *, moves):
    """A run with one lost game of iteration 20 and a success of three turns after RL.

    Args: moves: of the first turn of both games; the answer is Right."""
    turn = turn_record(START, "Go right.", ["Right"], 0.0) | {"moves": moves}
    lost = record(LAKE, [turn], step=20, group=3, kept=True, filter_value=0.5)
    first = {**lost, "step": 1}
    second = turn_record(START, "Go left.", ["Left"])
    third = turn_record(START, "Go down.", ["Down"], 1.0)
    won = record(LAKE, [turn, second, third], "success")
    (folder / "config.json").write_text('{"config": {"eval_size": 10}}')
    (folder / "trajectories.jsonl").write_text(to_lines([first, lost]))
    (folder / "eval_final.jsonl").write_text(to_lines([won]))
    row = {"step": 20, "success": 0.5, "kept_groups": 1}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_games_with_slips_are_shown(tmp_path):
    data = view_data.load_runs([write_run(tmp_path, moves=["Down"])])
    assert figures.find_game(data, figures.is_unlucky_loss) == 1
    assert figures.find_game(data, figures.is_long_success) == 2


def test_a_run_without_slips_is_an_error(tmp_path):
    data = view_data.load_runs([write_run(tmp_path, moves=["Right"])])
    with pytest.raises(UserError, match="holds no game with a slip"):
        figures.find_game(data, figures.is_unlucky_loss)


@pytest.mark.slow
def test_pictures_of_a_run_are_drawn(tmp_path, browser):
    run = write_run(tmp_path, moves=["Down"])
    figures.draw_run(browser, run, tmp_path / "agent.gif", tmp_path / "view.png")
    assert Image.open(tmp_path / "agent.gif").n_frames == 4  # three turns and the end
    screenshot = Image.open(tmp_path / "view.png")
    assert screenshot.size == (2560, 1720)
    assert len(screenshot.convert("RGB").getcolors(maxcolors=100_000)) > 50  # a page was drawn


def test_the_run_is_trained_first(tmp_path, monkeypatch):
    commands = []

    def run(command):
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, returncode=1)

    monkeypatch.setattr(figures, "DOCS", tmp_path)
    monkeypatch.setattr(figures.subprocess, "run", run)
    with pytest.raises(UserError, match="is not finished; see the message above"):
        figures.train()
    assert not list(tmp_path.iterdir())
    makefile = (ROOT / "Makefile").read_text()
    assert commands == [list(figures.TRAIN)]
    assert f"python {' '.join(figures.TRAIN)} $(ARGS)" in makefile  # what `make train` runs


def test_the_command_has_no_options():
    with pytest.raises(UserError, match="expected no arguments, got --all"):
        figures.main(["--all"])
