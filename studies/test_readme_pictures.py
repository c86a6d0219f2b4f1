"""Tests of readme_pictures.py, of diagram.py, and of the pictures and numbers in README."""

from configurator import UserError

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from view_rows import LAKE, record, to_lines, turn_record

from studies import diagram, readme_pictures
from studies.imitation import comparison
from tools.viewer import data as view_data

ROOT = Path(__file__).resolve().parent.parent
START = "Turn 1 of 5, 10 actions left.\nP_\nOG"


@pytest.fixture
def panels(monkeypatch, tmp_path):
    """Draw docs/flagship.png into a temporary file. Returns: the panels (Axes) by title."""
    drawn = []
    original = Figure.subplots

    def subplots(self, *args, **options):
        axes = original(self, *args, **options)
        drawn.extend(np.ravel(axes))
        return axes

    monkeypatch.setattr(Figure, "subplots", subplots)
    readme_pictures.draw_flagship(tmp_path / "flagship.png")
    assert Image.open(tmp_path / "flagship.png").size == (1720, 840)
    return {axes.get_title(loc="left"): axes for axes in drawn}


def table_in_readme():
    """Read README's table. Map the name of each row to its cells of Sokoban and FrozenLake."""
    table = {}
    for line in (ROOT / "README.md").read_text().splitlines():
        cells = [cell.strip(" *") for cell in line.split("|")]
        if len(cells) == 5 and "[" in cells[2]:
            table[cells[1]] = cells[2:4]
    return table


def test_the_picture_shows_the_numbers_of_the_table_in_readme(panels):
    table = table_in_readme()
    assert len(table) == 4
    # In studies/imitation/table.md, PPO takes 471 CPU seconds (8 minutes) in Sokoban and 370 CPU
    # seconds (6 minutes) in slippery FrozenLake.
    sokoban, lake = panels
    assert sokoban == "Sokoban, 6x6 rooms\n8 CPU-minutes of RL"
    assert lake == "FrozenLake, slippery\n6 CPU-minutes of RL"
    for column, axes in enumerate(panels.values()):
        before, after = table["base model, before RL"], table["after RL (PPO, all groups kept)"]
        random, optimal = table["random actions"], table["optimal play under the same limits"]
        success = [cells[column].split()[0] for cells in (before, after, random, optimal)]
        assert [text.get_text() for text in axes.texts] == [
            success[0],
            success[1],
            f"random actions {success[2]}",
            f"optimal play {success[3]}",
        ]
        heights = [f"{bar.get_height():.1f}" for bar in axes.patches]
        assert heights == success[:2]
        for bar, cells in zip(axes.collections, (before, after), strict=True):
            ((_, low), (_, high)) = bar.get_segments()[0]
            assert f"[{low:.1f}, {high:.1f}]" in cells[column]
        assert axes.get_ylabel() == "games won, %"


def test_the_dots_are_the_seeds_that_readme_names(panels):
    readme = (ROOT / "README.md").read_text()
    for axes in panels.values():
        (dots,) = [line for line in axes.get_lines() if len(line.get_ydata()) == 3]
        assert ", ".join(f"{seed:.1f}" for seed in dots.get_ydata()) in readme


def test_readme_shows_the_numbers_that_its_command_prints():
    printed = comparison.recorded("sokoban"), comparison.recorded("frozenlake")
    for cells in table_in_readme().values():
        for cell, text in zip(cells, printed, strict=True):
            assert f"| {cell} " in text


def test_the_commands_and_the_picture_come_first():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "docs/echo_trap.png" in first and "torchrun --standalone train.py" in first
    assert "make train " in first and "make view " in first


def test_the_picture_of_the_algorithm_has_the_advantages_of_grpo(monkeypatch, tmp_path):
    """Scores 1, 0, 0, 1 have mean 1/2 and standard deviation 0.577. So score 1 has the advantage
    (1 - 1/2) / 0.577 = 0.87."""
    drawn = []
    monkeypatch.setattr(diagram, "draw_heads", drawn.append)
    diagram.draw_algorithm(tmp_path / "algorithm.png")
    texts = [text.get_text() for text in drawn[0].texts]
    advantages = [text for text in texts if text in ("+0.87", "-0.87")]
    assert advantages == ["+0.87", "-0.87", "-0.87", "+0.87"]
    assert texts.count("varies:\nkeep") == texts.count("all equal:\ndrop") == 1
    assert Image.open(tmp_path / "algorithm.png").size == (2000, 920)


# ---------- the pictures of a run


def write_run(folder, *, moves):
    """Write the folder of a run with three games: two are lost after one turn each, and the third
    is won after three turns.

    Args: moves: a list with the direction in which the agent moves in the first turn of each game.
        The agent chooses Right in this turn. With ["Down"], the agent slips: it moves Down
        instead."""
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
    assert readme_pictures.find_game(data, readme_pictures.is_unlucky_loss) == 1
    assert readme_pictures.find_game(data, readme_pictures.is_long_success) == 2


def test_a_run_without_slips_is_an_error(tmp_path):
    data = view_data.load_runs([write_run(tmp_path, moves=["Right"])])
    with pytest.raises(UserError, match="has no recorded game that fits"):
        readme_pictures.find_game(data, readme_pictures.is_unlucky_loss)


@pytest.mark.slow
def test_pictures_of_a_run_are_drawn(tmp_path, browser):
    run = write_run(tmp_path, moves=["Down"])
    readme_pictures.draw_run(browser, run, tmp_path / "agent.gif", tmp_path / "view.png")
    assert Image.open(tmp_path / "agent.gif").n_frames == 4  # three turns, and the final board
    screenshot = Image.open(tmp_path / "view.png")
    assert screenshot.size == (2560, 1720)
    assert len(screenshot.convert("RGB").getcolors(maxcolors=100_000)) > 50  # not blank


def test_the_run_is_trained_first(tmp_path, monkeypatch):
    commands = []

    def run(command):
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, returncode=1)

    monkeypatch.setattr(readme_pictures, "DOCS", tmp_path)
    monkeypatch.setattr(readme_pictures.subprocess, "run", run)
    with pytest.raises(UserError, match="is not finished; see the message above"):
        readme_pictures.train()
    assert not list(tmp_path.iterdir())
    makefile = (ROOT / "Makefile").read_text()
    assert commands == [list(readme_pictures.TRAIN)]
    # `make train` runs the command in TRAIN.
    assert f"python {' '.join(readme_pictures.TRAIN)} $(ARGS)" in makefile


def test_the_command_has_no_options():
    with pytest.raises(UserError, match="expected no arguments, got --all"):
        readme_pictures.main(["--all"])
