"""Tests of studies/plots.py with hand-made results."""

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from studies import plots
from support.statistics import rate_interval, wilson_interval
from tools.plotting.style import look_of

SUCCESSES = {  # whether each of four prompts is solved
    "start": [1, 0, 0, 0],
    "after RL": [1, 1, 0, 0],
    "optimal, closed loop": [1, 1, 1, 1],
    "optimal, 1 a turn": [1, 1, 0, 0],
    "optimal, 5 a turn": [1, 1, 1, 0],
    "greedy, closed loop": [1, 1, 0, 0],
    "random, closed loop": [0, 0, 0, 0],
}
LIMITS = {"max_turns": 2, "actions_per_turn": 5, "actions_per_traj": 10}


def solved(rate):
    return [int(i < 4 * rate) for i in range(4)]


def row_by_hand(rate, reward, warning):
    return {
        "settings": {"num_epochs": 5, **LIMITS},
        "successes": {"lake": SUCCESSES | {"after RL": solved(rate)}},
        "curve": {"2": rate},
        "series": {"reward": reward},
        "first_warning": warning,
    }


ROWS = [row_by_hand(0.5, [1.0, None], [1, "low"]), row_by_hand(1.0, [3.0, 4.0], None)]


def lines_of(axes):
    points = []
    for line in axes.get_lines():
        points.append((list(line.get_xdata()), list(line.get_ydata())))
    return points


def corners_of(axes):
    (outline,) = axes.collections[-1].get_paths()
    return [tuple(corner) for corner in outline.vertices.tolist()]


def draw(metric, rows):
    axes = Canvas().subplots()
    plots.draw_curve(axes, metric, rows, look_of(0))
    return axes


def test_a_curve_is_the_mean_of_its_seeds():
    axes = draw("reward", ROWS)
    # The x axis counts epochs. An iteration has 5 epochs.
    assert lines_of(axes) == [([5, 10], [2.0, 4.0]), ([5], [2.0])]
    assert {(5, 1.0), (5, 3.0), (10, 4.0)} <= set(corners_of(axes))
    axes = draw("eval_success", ROWS)
    assert lines_of(axes)[0] == ([0, 10], [25, 75])
    axes = draw("eval_success", ROWS[1:])
    low, high = wilson_interval(4, 4)
    heights = [height for passes, height in corners_of(axes) if passes == 10]
    assert (min(heights), max(heights)) == pytest.approx((100 * low, 100 * high))


def test_the_band_of_evaluations_is_the_interval_of_the_tables():
    corners = np.array(corners_of(draw("eval_success", ROWS)))
    before = [[1, 0, 0, 0], [1, 0, 0, 0]]
    after = [[1, 1, 0, 0], [1, 1, 1, 1]]
    for passes, wins in ((0, before), (10, after)):
        heights = corners[corners[:, 0] == passes, 1]
        low, high = rate_interval(np.array(wins))
        assert (heights.min(), heights.max()) == pytest.approx((100 * low, 100 * high))


def test_players_are_labelled_lines():
    """The greedy player needs a turn for each of its ten actions. The policy has only two turns, so
    the picture leaves the greedy player out."""
    axes = Canvas().subplots()
    labels = plots.draw_shared_players(axes, {"lake_ppo": ROWS, "lake_grpo": ROWS[:1]})
    assert [height[0] for _, height in lines_of(axes)] == [75, 0]
    assert [label.text for label in labels] == ["optimal, 5 a turn 75", "random actions 0"]


@pytest.mark.slow
def test_all_pictures_are_drawn(tmp_path):
    curves = {"lake_ppo": ROWS, "lake_grpo": []}
    plots.plot(tmp_path / "metrics.png", "title", ("eval_success", "reward"), curves)
    plots.plot(tmp_path / "nothing.png", "title", ("reward",), {"lake_grpo": []})
    pictures = list(tmp_path.iterdir())
    assert len(pictures) == 2
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
