"""Tests of tools/plotting and tools/viewer/curves.py with hand-made results."""

from configurator import Config

import doctest
import json

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

from support.run_folder import save_config
from support.statistics import rate_interval
from tools import view
from tools.plotting import plots
from tools.plotting import style as plot_style
from tools.plotting.style import look_of
from tools.viewer import curves as view_curves


def lines_of(axes):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


# ---------- parts of plots


def test_the_band_is_open_where_a_seed_has_no_evaluation():
    rates = np.array([[0.5, np.nan, 1.0], [0.5, 0.5, 1.0]])
    low, high = plots.success_band(rates, {}, num_prompts=4)
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True, False]
    both = np.array([[1, 1, 0, 0]] * 2)
    assert (low[0], high[0]) == pytest.approx(rate_interval(both))


def test_players_obey_the_limits_of_the_policy():
    names = (
        "start",
        "after RL",
        "optimal, closed loop",
        "optimal, 1 a turn",
        "optimal, 5 a turn",
        "greedy, closed loop",
        "random, closed loop",
    )
    wins = dict.fromkeys(names, [1])
    limits = {"max_turns": 2, "actions_per_turn": 5, "actions_per_traj": 10}
    with_ten_turns = plots.players_under_limits(wins, limits | {"max_turns": 10})
    assert list(with_ten_turns) == ["optimal, 5 a turn", "greedy player", "random actions"]
    nine_actions = limits | {"max_turns": 9, "actions_per_turn": 1}
    assert list(plots.players_under_limits(wins, nine_actions)) == ["optimal, 5 a turn"]
    assert plots.players_under_limits({"start": [1]}, limits) == {}


def test_noise_is_averaged_over_nine_iterations():
    values = np.array([[float(i % 2) for i in range(100)]])
    smooth = plots.moving_average(values)
    # Iterations 46 to 54 are averaged. The four odd iterations have the value 1.
    assert smooth[0, 50] == pytest.approx(4 / 9)
    assert smooth[0, 0] == pytest.approx(2 / 5)  # iterations 0 to 4
    values[0, 20:40] = np.nan
    assert np.isnan(plots.moving_average(values)[0, 24:36]).all()
    short = values[:, :26]
    assert plots.moving_average(short) is short


def test_labels_that_would_touch_are_moved_apart():
    assert plot_style.spread([10.0, 73.0, 77.0, 94.0], 5) == [10.0, 72.5, 77.5, 94.0]
    assert plot_style.spread([50.0] * 3, 5) == [45, 50, 55]
    assert plot_style.spread([98.0, 99.0, 100.0], 5, highest=100) == [90, 95, 100]
    assert plot_style.spread([], 5) == []
    for module, num_examples in ((plot_style, 3), (view_curves, 1)):
        results = doctest.testmod(module)
        assert results.attempted == num_examples and results.failed == 0


def test_curves_beyond_the_sixth_have_other_dashes():
    looks = [tuple(look_of(i).values()) for i in range(24)]
    assert len(set(looks)) == 24
    assert look_of(0)["color"] == look_of(6)["color"]


# ---------- plots of run folders


@pytest.fixture
def drawn(monkeypatch):
    axes = []
    original = Canvas.subplots

    def subplots(self, *args, **options):
        made = original(self, *args, **options)
        axes.extend(np.ravel(made))
        return made

    monkeypatch.setattr(Canvas, "subplots", subplots)
    return axes


def write_run(folder, rates, scores=None, **settings):
    save_config(Config(eval_size=10, out_dir=str(folder), **settings), {}, folder)
    lines = []
    for i, rate in enumerate(rates, 1):
        for step, success in ((2 * i - 1, None), (2 * i, rate)):
            row = {"step": step, "eval_success": success, "cpu_s": 1.0, "response_length": 5.0}
            lines.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if scores:
        (folder / "scores.json").write_text(json.dumps(scores))
    return folder


def test_seeds_of_a_method_share_a_curve(tmp_path, drawn):
    runs = [write_run(tmp_path / f"a{seed}", [0.1 * seed], seed=seed) for seed in (4, 5, 6)]
    runs.append(write_run(tmp_path / "b", [0.8], estimator="grpo"))
    path = tmp_path / "curves.png"
    view_curves.draw_curves(runs, path)
    assert Image.open(path).size == (1440, 960)
    (axes,) = drawn
    curves = lines_of(axes)[:5]
    assert curves[3] == ([2], [pytest.approx(50)])
    assert curves[4] == ([2], [80])
    assert [heights for _, heights in curves[:3]] == [[pytest.approx(h)] for h in (40, 50, 60)]
    assert texts_of(axes) == ["a4 50 (3 seeds)", "b 80 (1 seed)"]
    # The three seeds solve 4 of 10, 5 of 10 and 6 of 10 prompts. The interval assumes that a better
    # seed solves all prompts that a worse seed solves.
    intervals = []
    for band in axes.collections:
        heights = band.get_paths()[0].vertices[:, 1]
        intervals.append((heights.min(), heights.max()))
    low, high = rate_interval(np.array([[int(i < n) for i in range(10)] for n in (4, 5, 6)]))
    assert intervals[0] == pytest.approx((100 * low, 100 * high))
    assert intervals[1] == pytest.approx((49.02, 94.33), abs=0.01)


def test_long_names_are_in_a_legend_below(tmp_path, drawn):
    names = ("a" * 24, "b" * 25)
    runs = [write_run(tmp_path / names[0], [0.4]), write_run(tmp_path / names[1], [0.8], lam=0.5)]
    view_curves.draw_curves(runs, tmp_path / "curves.png")
    (axes,) = drawn
    assert texts_of(axes) == ["40 (1 seed)", "80 (1 seed)"]
    (legend,) = axes.figure.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries == [*(f" {name}" for name in names), " 95 % interval"]
    colors = [line.get_color() for line in legend.get_lines()]
    assert colors == [text.get_color() for text in axes.texts]
    assert axes.get_position().width > 0.6


def test_a_finished_run_shows_its_start_and_the_players(tmp_path, drawn):
    games = {"start": [0] * 10, "after RL": [1] * 10, "optimal, 5 a turn": [1, 0] * 5}
    scores = {"frozenlake": games, "bandit": games}
    run = write_run(tmp_path / "_a$x$", [0.5, 1.0], scores)
    view_curves.draw_curves([run], tmp_path / "curves.png")
    (axes,) = drawn
    assert lines_of(axes)[0][1] == [50, 50]
    assert lines_of(axes)[1] == ([0, 2, 4], [0, 50, 100])
    assert texts_of(axes) == ["optimal, 5 a turn 50", "_a$x$ 100 (1 seed)"]
    assert axes.get_title(loc="left") == "FrozenLake: success on 10 fixed prompts"
    assert axes.get_xlabel() == "iteration"
    (legend,) = axes.figure.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries == [" 95 % interval", " player under the same limits"]
    # The band shows the 95 % interval. At iteration 0 the run solves none of 10 prompts, and at
    # iteration 4 it solves all 10.
    (band,) = axes.collections
    heights = 100 * np.array([rate_interval(np.array([[win] * 10])) for win in (0, 1)])
    corners = band.get_paths()[0].vertices
    for iteration, ends in ((0, heights[0]), (4, heights[1])):
        found = corners[corners[:, 0] == iteration, 1]
        assert (found.min(), found.max()) == pytest.approx(tuple(ends))


def test_plots_are_written_as_png_and_pdf(tmp_path, capsys):
    runs = [write_run(tmp_path / name, [0.5]) for name in "ab"]
    view.main([str(run) for run in runs])
    assert (tmp_path / "a/curves.png").read_bytes().startswith(b"\x89PNG")
    pdf = (tmp_path / "a/curves.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf
    assert f"wrote {tmp_path}/a/curves.png and {tmp_path}/a/curves.pdf" in capsys.readouterr().out


@pytest.mark.parametrize(
    "env, wanted",
    [
        ("sokoban:size=6,boxes=1", "Sokoban: success on 256 fixed prompts\nsize 6, boxes 1"),
        ("my_env.py:My_Doors,num=3", "My_Doors: success on 256 fixed prompts\nnum 3"),
        ("bandit", "Bandit: success on 256 fixed prompts"),
    ],
)
def test_titles_are_words(env, wanted):
    assert view_curves.title_of(env, 256) == wanted


def test_panel_marks_what_appears_with_a_row(tmp_path, drawn, monkeypatch):
    def new_warnings(history):
        return ["entropy drops"] if len(history) == 3 else []

    monkeypatch.setattr(view_curves, "new_warnings", new_warnings)
    steps = [1, 2, 3, 4, 5]
    values = {"reward": 1, "in_group_reward_std": 2, "entropy": 3, "grad_norm": 4}
    rows = [{"step": step, "success": 0.5, **values} for step in steps]
    rows[1]["entropy"] = None
    run = tmp_path / "_run$"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view_curves.draw_warning_panel([run], tmp_path / "panel.png")
    assert Image.open(tmp_path / "panel.png").size == (1800, 1200)
    entropy = ([1, 3, 4, 5], [3] * 4)
    wanted = [(steps, [1] * 5), (steps, [2] * 5), entropy, (steps, [4] * 5)]
    assert [lines_of(axes)[0] for axes in drawn] == wanted
    assert [lines_of(axes)[1] for axes in drawn] == wanted
    assert [lines_of(axes)[2][0] for axes in drawn] == [[3, 3]] * 4
    assert [axes.get_xlabel() for axes in drawn] == ["", "", "iteration", "iteration"]
    figure = drawn[0].figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [" _run$"]
    assert legend.get_title().get_text() == "_run$, iteration 3: entropy drops"


@pytest.mark.parametrize(
    "limits, wanted",
    [
        ((0.15, 0.6), ["0.2", "0.3", "0.5"]),
        ((0.3, 0.5), ["0.3", "0.4", "0.5"]),
        ((0.05, 20), ["0.1", "1", "10"]),
    ],
)
def test_a_log_axis_has_numbers(limits, wanted):
    axes = Canvas().subplots()
    plot_style.log_axis(axes)
    axes.set_ylim(*limits)
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    axes.figure.draw_without_rendering()
    shown = [tick.label1.get_text() for tick in ticks if limits[0] <= tick.get_loc() <= limits[1]]
    assert [text for text in shown if text] == wanted
