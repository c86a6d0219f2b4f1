"""Tests of Sokoban against another simulator, brute force, RAGEN's rooms and hand-drawn rooms."""

import time
from itertools import product

import numpy as np
import pytest
from boards import (
    LARGER,
    NEWVOCAB,
    ROOM_BOARD,
    SIMPLE,
    assert_fraction,
    assert_mean,
    direction_words,
    in_room,
    legend,
    neighbours,
    optimal_lengths,
    optimal_player,
    random_player,
    raw_draws,
    room_instance,
    success_rate,
    symbols_seen,
)

from dialogue import check_thought
from envs import make_env
from worlds.planners import sokoban_solution

# ---------- dynamics by hand


def test_room_board_round_trip():
    env = in_room(ROOM_BOARD)
    assert env.render() == ROOM_BOARD
    env.start(room_instance(ROOM_BOARD, "newvocab"), [0])
    assert (env.player, env.boxes, env.targets) == (20, (14,), {7})  # cell = 6 * row + column


def test_box_stops_at_wall_and_at_box():
    board = "######\n#OPX##\n##X###\n##X_O#\n##_O##\n######"
    env = in_room(board)
    # Right pushes a box against a wall. Down pushes a box against another box. A wall blocks Up.
    for action in ("Right", "Down", "Up"):
        step = env.step(action)
        assert step.observation == board and step.reward == pytest.approx(-0.1)
        assert (step.success, step.valid, step.effective) == (False, True, False)
    assert env.step("Left").effective and env.num_actions == 4


def test_rewards_for_boxes_on_and_off_target():
    # In a room with two boxes, one box on a target does not end the game. The first Right pushes a
    # box onto a target (reward 1 - 0.1). The second Right pushes this box off (reward -1 - 0.1).
    env = in_room("######\n#PXO_#\n#____#\n#_XO_#\n#____#\n######")
    on = env.step("Right")
    assert on.reward == pytest.approx(0.9) and not on.terminated
    assert on.observation == "######\n#_P√_#\n#____#\n#_XO_#\n#____#\n######"
    off = env.step("Right")
    assert off.reward == pytest.approx(-1.1)
    assert off.observation == "######\n#__SX#\n#____#\n#_XO_#\n#____#\n######"
    # The push that brings the last box onto a target gives the reward 1 + 10 - 0.1.
    env = in_room("######\n#P√__#\n#_XO_#\n#____#\n#____#\n######")
    assert env.step("Down").reward == pytest.approx(-0.1)
    done = env.step("Right")
    assert done.reward == pytest.approx(10.9)
    assert (done.terminated, done.truncated, done.success) == (True, False, True)


def test_unsolvable_room_has_no_plan():
    env = in_room("######\n#X___#\n#____#\n#__O_#\n#P___#\n######")
    assert env.optimal_length() == 0 and env.plan(5, 5) == []


@pytest.mark.parametrize(
    "room, corner",
    [
        ("######\n#X___#\n#____#\n#_O__#\n#P___#\n######", True),
        ("######\n#___X#\n#____#\n#_O__#\n#P___#\n######", True),
        ("######\n#____#\n#____#\n#_OP_#\n#X___#\n######", True),
        ("######\n#____#\n#____#\n#_OP_#\n#___X#\n######", True),
        ("######\n#_X__#\n#____#\n#_O__#\n#P___#\n######", False),
        ("######\n#____#\n#X___#\n#_O__#\n#P___#\n######", False),
    ],
)
def test_a_box_in_a_corner_is_lost(room, corner):
    assert in_room(room).why_lost().startswith("a box is stuck in a corner") == corner


def test_greedy_by_hand():
    env = in_room("######\n#____#\n#O_XP#\n#____#\n#____#\n######")
    assert env.greedy() == "Left"


# ---------- plans


@pytest.mark.parametrize(
    "spec, count, boxes", [(SIMPLE, 100, 1), (NEWVOCAB, 100, 1), ("sokoban:size=8,boxes=2", 20, 2)]
)
def test_plans_replay(spec, count, boxes):
    env, instances = raw_draws(spec, count, seed=1)
    env.max_actions = 200
    for instance in instances:
        env.start(instance, [0])
        assert len(env.boxes) == len(env.targets) == boxes
        assert not set(env.boxes) & env.targets
        path = env.plan(200, 1)
        assert len(path) == env.optimal_length()
        steps = [env.step(action) for action in path]
        assert [step.success for step in steps] == [False] * (len(path) - 1) + [True]
        assert steps[-1].terminated
        assert all(step.effective for step in steps)
        # No box starts on a target, and each box ends on a target. So the rewards sum to 1 for each
        # box, plus 10 for the success, minus 0.1 for each action.
        total = sum(step.reward for step in steps)
        assert total == pytest.approx(10 + boxes - 0.1 * len(path), abs=1e-9)


def solves(board, path):
    """Return whether `path`, a sequence of letters U, D, L, R, puts every box on a target."""
    places = {}
    for row, line in enumerate(board.split("\n")):
        for col, symbol in enumerate(line):
            places[complex(col, row)] = symbol
    player = next(place for place, symbol in places.items() if symbol in "PS")
    boxes = {place for place, symbol in places.items() if symbol in "X√"}
    targets = {place for place, symbol in places.items() if symbol in "O√S"}
    for letter in path:
        step = {"U": -1j, "D": 1j, "L": -1, "R": 1}[letter]
        ahead, beyond = player + step, player + 2 * step
        if places[ahead] == "#":
            continue
        if ahead in boxes:
            if places[beyond] == "#" or beyond in boxes:
                continue
            boxes = boxes - {ahead} | {beyond}
        player = ahead
    return boxes == targets


@pytest.mark.parametrize("spec", [SIMPLE, LARGER])
def test_optimal_length_equals_brute_force(spec):
    # Brute force tries all 4^n sequences of n actions. No sequence shorter than optimal_length()
    # solves the room. Some sequence of exactly this length solves the room.
    env, instances = raw_draws(spec, 80, seed=2)
    checked = 0
    for instance in instances:
        env.start(instance, [0])
        length, board = env.optimal_length(), env.render()
        if length > 4 or checked == 10:
            continue
        for n in range(length):
            assert not any(solves(board, path) for path in product("UDLR", repeat=n))
        assert any(solves(board, path) for path in product("UDLR", repeat=length))
        checked += 1
    assert checked == 10


def test_256_rooms_with_solutions_take_less_than_5_seconds():
    sokoban_solution.cache_clear()
    before = time.process_time()
    lengths = optimal_lengths(SIMPLE, 256)
    elapsed = time.process_time() - before
    assert len(lengths) == 256 and all(length >= 1 for length in lengths.tolist())
    assert elapsed < 5


# ---------- distributions compared with measurements of RAGEN's code


@pytest.mark.slow
def test_reference_players():
    env, instances = raw_draws(SIMPLE, 500)
    choose = random_player(2)
    rates = [success_rate(env, instance, choose, 10, i) for i, instance in enumerate(instances)]
    assert_mean(rates, 0.192)
    solved = [success_rate(env, instance, optimal_player, 1, 0) for instance in instances[:250]]
    assert_fraction(solved, 1.0)


@pytest.mark.slow
def test_random_player_in_larger_rooms():
    env, instances = raw_draws(LARGER, 400)
    choose = random_player(3)
    rates = [success_rate(env, instance, choose, 12, i) for i, instance in enumerate(instances)]
    assert_mean(rates, 0.0235)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec, count, mean, cumulative",
    [
        # `cumulative` maps a length L to the share of RAGEN's 256 validation rooms (seeds 123..378)
        # whose optimal length is at most L.
        (
            SIMPLE,
            1500,
            3.95,
            {1: 0.109, 2: 0.344, 3: 0.449, 4: 0.633, 5: 0.777, 8: 0.973, 10: 1.0},
        ),
        (LARGER, 800, 5.81, {5: 0.453, 8: 0.918, 10: 0.988, 12: 1.0}),
    ],
)
def test_optimal_lengths(spec, count, mean, cumulative):
    lengths = optimal_lengths(spec, count)
    for at_most, fraction in cumulative.items():
        assert_fraction(lengths <= at_most, fraction)
    assert_mean(lengths, mean)


# ---------- what the policy reads


def test_observation_modes_by_hand():
    # "around it" lists the cells up, down, left and right of the box. "Next" lists the cells up,
    # down, left and right of the player.
    text = in_room(ROOM_BOARD, observation="relations").observe()
    assert text == ROOM_BOARD + (
        "\nBox 1 up, its target 1 up 1 left, around it floor you floor wall."
        "\nNext box floor floor floor."
    )
    text = in_room(ROOM_BOARD, observation="coord").observe()
    assert text == ROOM_BOARD + "\nPlayer (4,3). Boxes (3,3). Targets (2,2)."
    assert in_room(ROOM_BOARD).statements() == [
        "Next box floor floor floor.",
        "Box 1 up.",
        "Target 1 up 1 left.",
    ]


def test_each_box_has_its_own_target():
    # The free target belongs to the left box, though the target under the right box is nearer.
    board = "######\n#_X√_#\n#____#\n#_P_O#\n#____#\n######"
    env = in_room(board, observation="relations")
    assert env.observe() == board + (
        "\nBox 2 up, its target 2 down 2 right, around it wall floor floor box."
        "\nBox 2 up 1 right, its target here, around it wall floor box floor."
        "\nNext floor floor floor floor."
    )
    assert env.statements() == [
        "Next floor floor floor floor.",
        "Box 2 up.",
        "Target 2 down 2 right.",
        "Box 2 up 1 right.",
        "Target here.",
    ]


def test_statements_are_true_and_counted():
    rng = np.random.default_rng(0)
    env, instances = raw_draws(SIMPLE, 60, seed=6)
    names = {"#": "wall", "_": "floor", "O": "target", "X": "box"}
    for instance in instances:
        env.start(instance, [1])
        for _ in range(int(rng.integers(4))):
            env.step(env.actions[rng.integers(4)])
        board, facts = env.render(), env.statements()
        if env.terminated or "S" in board:
            continue
        around = [names[symbol] for symbol in neighbours(board, "P", "#")]
        assert facts == [
            f"Next {' '.join(around)}.",
            f"Box {direction_words(board, 'P', 'X')}.",
            f"Target {direction_words(board, 'X', 'O')}.",
        ]
        assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["sokoban:boxes=2", "sokoban:boxes=2,search_depth=30,symbols=newvocab"]
)
def test_legend_is_that_of_the_boards(spec):
    assert symbols_seen(spec, seeds=20) == set(legend(spec).values())


@pytest.mark.parametrize("spec", [SIMPLE, NEWVOCAB])
def test_legend_decodes_rooms(spec):
    means = {symbol: meaning for meaning, symbol in legend(spec).items()}
    assert len(means) == 7
    env = make_env(spec)
    for seed in range(20):
        cells = list(enumerate(means[symbol] for symbol in env.reset(seed).replace("\n", "")))
        assert {cell for cell, meaning in cells if meaning != "wall"} == env.floor
        assert {cell for cell, meaning in cells if "target" in meaning} == env.targets
        assert [cell for cell, meaning in cells if meaning.startswith("box")] == list(env.boxes)
        assert [cell for cell, meaning in cells if meaning.startswith("you")] == [env.player]
