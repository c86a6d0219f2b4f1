"""Tests of worlds/rubik.py (geometry, published counts) and worlds/sudoku.py (made-up boards)."""

import itertools
from collections import Counter

import numpy as np
import pytest
from shared_fixtures import config_file

from dialogue import Episode, check_thought
from envs import make_env, reserved_instances
from worlds import rubik, sudoku

# ---------- Rubik

# Maps a face to three directions. The first direction points outward. The second points right and
# the third points down for a viewer of the face. The x axis points right, the y axis up and the z
# axis to a viewer in front of the cube.
LOOKS = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
}


def sticker_places():
    places = []
    for face in rubik.FACES:
        out, right, down = map(np.array, LOOKS[face])
        for row, column in itertools.product((-1, 1), repeat=2):
            corner = out + column * right + row * down
            places.append((tuple(corner.tolist()), tuple(out.tolist())))
    return places


def rotated(vector, axis):
    """Turn `vector` by 90 degrees around `axis`, clockwise for a viewer to whom `axis` points."""
    vector, axis = np.array(vector), np.array(axis)
    along = axis * (vector @ axis)
    return tuple((along - np.cross(axis, vector)).tolist())


@pytest.mark.parametrize("face", "URF")
def test_turns_are_rotations_of_space(face):
    places = sticker_places()
    axis = LOOKS[face][0]
    expected = [None] * 24
    for number, (corner, out) in enumerate(places):
        moves = np.dot(corner, axis) == 1
        target = (rotated(corner, axis), rotated(out, axis)) if moves else (corner, out)
        expected[places.index(target)] = number
    assert rubik.SOURCES[face] == tuple(expected)
    inverse = [rubik.SOURCES[face][place] for place in rubik.SOURCES[f"{face}'"]]
    assert inverse == list(range(24))


def test_numbers_of_cubes_at_each_distance():
    # www.jaapsch.net/puzzles/cube2.htm lists these numbers of cubes for 0 to 6 quarter turns
    counts = Counter(rubik.near_solved().values())
    assert [counts[distance] for distance in range(7)] == [1, 6, 27, 120, 534, 2256, 8969]


def test_solutions_are_shortest():
    rng = np.random.default_rng(0)
    lengths = set()
    for count in (1, 2, 3, 5, 9, 12):
        for _ in range(4):
            cube = rubik.SOLVED
            for action in rng.choice(rubik.Rubik.actions, count).tolist():
                cube = rubik.turn(cube, action)
            path = rubik.shortest_solution(cube)
            # Each turn is an odd permutation of the stickers. So the scramble and `path`, which
            # undoes the scramble, have an even number of turns together.
            assert len(path) <= count and len(path) % 2 == count % 2
            for number, action in enumerate(path):
                assert len(rubik.shortest_solution(cube)) == len(path) - number
                cube = rubik.turn(cube, action)
            assert cube == rubik.SOLVED
            lengths.add(len(path))
    assert max(lengths) > rubik.NEAR


def test_rubik_by_hand():
    env = make_env("rubik")
    cube = rubik.turn(rubik.turn(rubik.SOLVED, "R"), "U")
    env.start(("rubik", "123456", cube), [0])
    # After R: U:1313 R:2222 F:3434 D:4646 L:5555 B:1616. Then the turn U rotates the upper face
    # and moves the upper rows of the side faces: back to right, right to front, front to left, left
    # to back.
    assert env.observe() == "U:1133 R:1622 F:2234 D:4646 L:3455 B:5516"
    assert env.statements() == ["Away 2.", "Way U' R'."]
    assert env.plan(1, 5) == ["U'"]
    first = env.step("u'")
    assert (first.reward, first.terminated, first.effective) == (0.0, False, True)
    assert env.statements() == ["Away 1.", "Way R'."]
    assert env.greedy() == "R'"
    last = env.step("R'")
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    assert env.observe() == "U:1111 R:2222 F:3333 D:4444 L:5555 B:6666"
    assert env.statements() == ["Away 0.", "Way none."]


def test_scrambles_have_all_lengths():
    env = make_env("rubik:scramble=3")
    rng = np.random.default_rng(0)
    lengths = Counter()
    for _ in range(300):
        _, colours, cube = env.draw(rng)
        assert sorted(colours) == list("123456")
        lengths[len(rubik.shortest_solution(cube))] += 1
    assert set(lengths) == {1, 2, 3} and min(lengths.values()) > 50


@pytest.mark.parametrize("spec", ["rubik:scramble=0", "rubik:scramble=15"])
def test_rubik_options_that_are_refused(spec):
    with pytest.raises(ValueError, match=r"rubik needs scramble 1\.\.14, got"):
        make_env(spec)


# ---------- Sudoku

FULL = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)


def board(text):
    return tuple(int(digit) if digit.isdigit() else 0 for digit in text.split() for digit in digit)


def opened(text, **options):
    env = sudoku.Sudoku(max_actions=20, **options)
    env.start(("sudoku", board(text)), [0])
    return env


def is_full_board(cells):
    grid = np.array(cells).reshape(4, 4)
    units = [*grid, *grid.T]
    units += [grid[i : i + 2, j : j + 2].ravel() for i in (0, 2) for j in (0, 2)]
    return all(sorted(unit.tolist()) == [1, 2, 3, 4] for unit in units)


@pytest.mark.slow
def test_full_boards_are_all_boards():
    rows = list(itertools.permutations((1, 2, 3, 4)))
    expected = set()
    for four in itertools.product(rows, repeat=4):
        if len(set(four)) == 4 and is_full_board(sum(four, ())):
            expected.add(sum(four, ()))
    assert len(expected) == 288
    assert set(sudoku.full_boards()) == expected


@pytest.mark.parametrize("empty", [1, 6, 10])
def test_puzzles_have_one_solution(empty):
    env = make_env(f"sudoku:empty={empty}")
    rng = np.random.default_rng(0)
    for _ in range(20):
        _, given = env.draw(rng)
        assert given.count(0) == empty
        fits = []
        for full in sudoku.full_boards():
            if all(a in (0, b) for a, b in zip(given, full, strict=True)):
                fits.append(full)
        assert len(fits) == 1 and is_full_board(fits[0])
        env.start(("sudoku", given), [0])
        assert env.solution == fits[0]
        assert env.optimal_length() == empty


def test_sudoku_by_hand():
    env = opened("12_4 34__ 2_43 4321")
    assert env.observe() == "12_4\n34__\n2_43\n4321"
    # Row 1 lacks only the digit 3, in column 3. In row 2, column 3 must be 1, because row 2 has 3
    # and 4, and column 3 has 2 and 4. Then column 4 of row 2 must be 2. In row 3, column 2
    # must be 1. An action such as "1 3 3" names the row, the column and the digit.
    assert env.statements() == ["Next 1 3 3, 2 3 1, 2 4 2.", "Clash none."]
    assert env.plan(9, 9) == ["1 3 3", "2 3 1", "2 4 2", "3 2 1"]
    wrong = env.step("3,2,2")
    assert (wrong.valid, wrong.effective, wrong.reward) == (True, True, 0.0)
    assert env.statements()[1] == "Clash 3 2 2."
    assert env.plan(1, 9) == ["3 2 1"]
    assert not env.step("3 2 2").effective
    for action in ("1 1 2", "5 1 1", "1 3 5", "1 3", "133", "1 3 3 1", "a b c"):
        assert not env.step(action).valid
    for action in ("3 2 1", "1 3 3", "2 3 1"):
        assert not env.step(action).terminated
    last = env.step("2 4 2")
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    assert is_full_board(env.board)


def test_every_mistake_can_be_mended():
    env = make_env("sudoku:empty=9", max_actions=99)
    rng = np.random.default_rng(0)
    for seed in range(10):
        env.reset(seed)
        for action in env.random(12, rng):
            env.step(action)
        if env.terminated:
            continue
        plan = env.plan(99, 1)
        wrong = [a != b for a, b in zip(env.board, env.solution, strict=True)]
        assert len(plan) == env.optimal_length() == sum(wrong)
        steps = [env.step(action) for action in plan]
        assert [step.success for step in steps] == [False] * (len(plan) - 1) + [True]


@pytest.mark.parametrize("spec", ["sudoku:empty=0", "sudoku:empty=11"])
def test_sudoku_options_that_are_refused(spec):
    with pytest.raises(ValueError, match=r"sudoku needs 1\.\.10 empty cells, got"):
        make_env(spec)


# ---------- both


@pytest.mark.parametrize("spec", ["rubik:scramble=3", "sudoku:empty=6"])
def test_games_fit_the_tiny_model(spec, chat):
    from configurator import load_config

    name = spec.split(":")[0]
    files = [config_file(f"{name}_ppo"), config_file("tiny")]
    config = load_config(files)[0]
    episode = Episode(make_env(spec), config)
    system, user = episode.reset(0, split="eval")
    assert len(chat.opening(system, user)) < 220
    longest = 0
    for index in range(64):
        _, user = episode.reset(index, split="eval")
        plan = episode.env.plan(config.actions_per_turn, 5)
        thought = " ".join(episode.statements())
        reply = f"<think>{thought}</think><answer>{' || '.join(plan)}</answer>"
        longest = max(longest, len(chat.encode(reply)) + 1)
    assert longest <= config.max_response_tokens
    assert 5 * (longest + len(chat.encode(user)) + 12) + 220 < config.max_context_tokens


@pytest.mark.parametrize("spec", ["rubik:scramble=3", "sudoku:empty=6"])
def test_splits_and_statements(spec):
    env = make_env(spec)
    reserved = reserved_instances(spec)
    held_out = {*reserved["eval"], *reserved["heldout"]}
    assert len(held_out) == 512
    rng = np.random.default_rng(0)
    for seed in range(60):
        env.reset([seed, 1])
        assert env.instance not in held_out
        env.step(env.random(1, rng)[0])
        facts = env.statements()
        assert check_thought(" ".join(facts), facts) == (2, 2)
