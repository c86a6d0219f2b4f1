"""
Tests of envs.py and grids.py: gymnasium's transitions, upstream's measured numbers, brute force, boards by hand.
CPU, under a minute.

    python -m pytest -q tests/test_envs.py
"""

from configurator import Config, load_config

import ast
import doctest
import hashlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envs
import grids
from dialogue import Episode, check_thought, format_response, parse_response
from envs import make_env, mixture_at
from rollout import make_episode
from worlds.countdown import countdown_solution, evaluate_expression

LAKE_V1 = "frozenlake:frozen_prob=0.8,success_rate=0.3333333333333333"
LAKE_V2 = "frozenlake:frozen_prob=0.9,success_rate=0.8"
LAKE_SURE = "frozenlake:frozen_prob=0.9,success_rate=1"
SIMPLE = "sokoban"
LARGER = "sokoban:size=8,boxes=2,search_depth=10"
NEWVOCAB = "sokoban:search_depth=30,symbols=newvocab"
SMALL_COUNTDOWN = "countdown:numbers=3,largest=9"


# size 4, start (1,1), goal (3,4), holes (1,3) (2,2) (4,1); cells are numbered row by row from 0
LAKE_BOARD = "P_O_\n_O__\n___G\nO___"
# size 6, one box; a wall stands right of the box
ROOM_BOARD = "######\n#O___#\n#_X#_#\n#_P__#\n#____#\n######"


def lake_instance(board):
    rows = board.split("\n")
    cells = "".join(rows)
    holes = tuple(i for i, symbol in enumerate(cells) if symbol == "O")
    return ("frozenlake", len(rows), holes, cells.index("P"), cells.index("G"))


def room_instance(board, symbols="default"):
    """The instance drawn in `board` with the default symbols."""
    rows = board.split("\n")
    cells = list(enumerate("".join(rows)))

    def where(letters):
        return tuple(i for i, symbol in cells if symbol in letters)

    return (
        "sokoban",
        symbols,
        len(rows),
        where("_O√XPS"),
        where("O√S"),
        where("PS")[0],
        where("X√"),
    )


def on_lake(board, *, observation="grid", max_actions=10, success_rate=1):
    spec = f"frozenlake:size={board.count(chr(10)) + 1},success_rate={success_rate}"
    env = make_env(spec, observation=observation, max_actions=max_actions)
    env.start(lake_instance(board), [0])
    return env


def in_room(board, *, observation="grid", max_actions=10):
    boxes = board.count("X") + board.count("√")
    size = len(board.split("\n"))
    env = make_env(
        f"sokoban:size={size},boxes={boxes}", observation=observation, max_actions=max_actions
    )
    env.start(room_instance(board), [0])
    return env


def episode_in(board, **options):
    """An episode in the hand-made room or on the hand-made lake (no slips), in front of its first turn."""
    keys = ("observation", "max_actions")
    make = in_room if "#" in board else on_lake
    env = make(board, **{k: v for k, v in options.items() if k in keys})
    instance = env.instance
    episode = Episode(env, Config(**{k: v for k, v in options.items() if k not in keys}))
    episode.reset(0)
    env.start(instance, [0])
    return episode


def raw_draws(spec, count, seed=0):
    """`count` instances straight from the generator, as upstream draws them: repeats allowed, nothing reserved."""
    env, rng = make_env(spec), np.random.default_rng([seed, 4])
    return env, [env.draw(rng) for _ in range(count)]


def test_doctests():
    results = doctest.testmod(envs)
    assert results.attempted > 0
    assert results.failed == 0


# ---------- FrozenLake against gymnasium


class Stub:
    """A generator whose random() is fixed."""

    def __init__(self, value):
        self.value = value

    def random(self):
        return self.value


def move_outcome(env, cell, action, u):
    env.player, env.rng = cell, Stub(u)
    reward, terminated, success, effective = env._move(action)
    assert success == (env.player == env.goal) and effective == (env.player != cell)
    return env.player, reward, terminated


def our_transitions(env, cell, action):
    """{(next cell, reward, terminated): probability}: three bands of u, (1-p)/2 and (1-p)/2 and p wide."""
    side = (1 - env.success_rate) / 2
    bands = [(0.0, side), (side, 2 * side), (2 * side, 1.0)]
    total = Counter()
    for low, high in bands:
        if high - low < 1e-9:
            continue  # no slips: the two side bands are empty
        # the outcome is constant inside of a band, up to 1e-9 of its ends: this is what "band widths" means
        outcomes = {
            move_outcome(env, cell, action, u) for u in (low + 1e-9, (low + high) / 2, high - 1e-9)
        }
        assert len(outcomes) == 1
        total[outcomes.pop()] += high - low
    return dict(total)


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8, 1.0])
def test_lake_transitions_equal_gymnasium(success_rate):
    env, instances = raw_draws(f"frozenlake:frozen_prob=0.7,success_rate={success_rate}", 20)
    assert env.success_rate == success_rate
    for instance in instances:
        _, size, holes, start, goal = instance
        letters = [
            "H" if c in holes else "S" if c == start else "G" if c == goal else "F"
            for c in range(size * size)
        ]
        desc = ["".join(letters[r * size : (r + 1) * size]) for r in range(size)]
        reference = FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=success_rate).P
        env.start(instance, [0])
        for cell, action in product(
            [c for c in range(size * size) if c not in (*holes, goal)], range(4)
        ):
            expected = Counter()
            for prob, after, reward, terminated in reference[cell][action]:
                expected[after, float(reward), bool(terminated)] += prob
            expected = {outcome: prob for outcome, prob in expected.items() if prob > 0}
            assert our_transitions(env, cell, action) == pytest.approx(expected, abs=1e-12)


def test_lake_slip_frequencies():
    # From the middle of 3x3 ice, p = 0.8, 4000 moves "Up": 3200 up (sd 25.3), 400 left and 400 right (sd 19.0 each).
    env = make_env("frozenlake:size=3,success_rate=0.8")
    env.start(("frozenlake", 3, (), 4, 8), [11])
    ends = Counter()
    for _ in range(4000):
        env.player, env.num_actions, env.terminated = 4, 0, False
        env.step("Up")
        ends[env.player] += 1
    assert set(ends) == {1, 3, 5}
    assert abs(ends[1] - 3200) < 3.5 * 25.3
    assert abs(ends[3] - 400) < 3.5 * 19.0 and abs(ends[5] - 400) < 3.5 * 19.0


def test_lake_ends_by_hand():
    env = on_lake(LAKE_BOARD)
    nothing = {"success": False, "valid": True, "effective": False}
    assert env.step("Up") == envs.Step(
        LAKE_BOARD, 0.0, False, False, nothing
    )  # the border stops the move
    step = env.step("right")  # action names are read without regard to case
    assert step.observation == "_PO_\n_O__\n___G\nO___" and step.info["effective"]
    step = env.step("Right")
    assert step.observation == "__X_\n_O__\n___G\nO___"
    assert (step.reward, step.terminated, step.truncated, step.info["success"]) == (
        0.0,
        True,
        False,
        False,
    )
    before = env.num_actions
    step = env.step("Left")  # after the end nothing happens
    assert step.terminated and not step.info["valid"] and env.num_actions == before

    env = on_lake(LAKE_BOARD)
    rewards = [env.step(a).reward for a in ("Down", "Down", "Right", "Right")]
    step = env.step("Right")
    assert rewards == [0.0] * 4 and step.reward == 1.0 and step.terminated and step.info["success"]
    assert step.observation == "__O_\n_O__\n___√\nO___"


# ---------- distributions against upstream's measurements


def agree(values, upstream, upstream_values=256):
    """Is the mean of `values` within 3.5 combined standard errors of a mean that upstream took over 256 instances?

    Both means have the standard deviation of one instance, s: the tolerance is 3.5 * s * sqrt(1/n + 1/256). Upstream's
    figure of a random player averages 200 games on each of 256 boards, so s is then the spread between boards.
    """
    values = np.asarray(values, dtype=float)
    tolerance = 3.5 * values.std(ddof=1) * math.sqrt(1 / len(values) + 1 / upstream_values)
    tolerance = max(tolerance, 0.0005)  # the figures are rounded to 0.1 %, half a unit
    assert abs(values.mean() - upstream) <= tolerance, (values.mean(), upstream, tolerance)


def agree_frac(hits, upstream, upstream_values=256):
    """The same for a fraction, with the pooled standard deviation (one of the two may be 0 or 1)."""
    n, m, hits = len(hits), upstream_values, np.asarray(hits, dtype=float)
    pooled = (hits.sum() + m * upstream) / (n + m)
    tolerance = max(3.5 * math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m)), 0.0005)
    assert abs(hits.mean() - upstream) <= tolerance, (hits.mean(), upstream, tolerance)


def play(env, instance, choose, games, seed):
    """Success rate of a player that chooses one action at a time, ten actions a game."""
    wins = 0
    for game in range(games):
        env.start(instance, [seed, game])
        step = None
        while step is None or not (step.terminated or step.truncated):
            step = env.step(choose(env))
        assert env.num_actions <= 10
        wins += step.info["success"]
    return wins / games


def random_player(seed):
    keys = iter(np.random.default_rng(seed).integers(4, size=10**6).tolist())
    return lambda env: env.actions[next(keys)]


def greedy_player(env):
    return env.greedy()


def optimal_player(env):
    return env.plan(1, env.actions_left)[0]


@pytest.mark.parametrize(
    "spec, random, greedy, optimal",
    [
        (LAKE_V1, 0.213, 0.354, 0.483),
        (LAKE_V2, 0.246, 0.812, 0.944),
        (LAKE_SURE, 0.239, 0.863, 1.0),
    ],
)
def test_lake_reference_players(spec, random, greedy, optimal):
    env, instances = raw_draws(spec, 500)
    players = [(random_player(1), random), (greedy_player, greedy), (optimal_player, optimal)]
    for choose, upstream in players:
        agree([play(env, instance, choose, 4, i) for i, instance in enumerate(instances)], upstream)


def test_sokoban_reference_players():
    env, instances = raw_draws(SIMPLE, 500)
    choose = random_player(2)
    agree([play(env, instance, choose, 10, i) for i, instance in enumerate(instances)], 0.192)
    solved = [play(env, instance, optimal_player, 1, 0) for instance in instances[:250]]
    agree_frac(solved, 1.0)


def test_larger_sokoban_random_player():
    env, instances = raw_draws(LARGER, 400)
    choose = random_player(3)
    agree([play(env, instance, choose, 12, i) for i, instance in enumerate(instances)], 0.0235)


def optimal_lengths(spec, count):
    env, instances = raw_draws(spec, count)
    lengths = []
    for instance in instances:
        env.start(instance, [0])
        lengths.append(env.optimal_length())
    return np.array(lengths)


def test_sokoban_optimal_lengths():
    # upstream, seeds 123..378: cumulative fractions of the 256 validation rooms
    lengths = optimal_lengths(SIMPLE, 1500)
    for at_most, upstream in {
        1: 0.109,
        2: 0.344,
        3: 0.449,
        4: 0.633,
        5: 0.777,
        8: 0.973,
        10: 1.0,
    }.items():
        agree_frac(lengths <= at_most, upstream)
    agree(lengths, 3.95)


def test_larger_sokoban_optimal_lengths():
    lengths = optimal_lengths(LARGER, 800)
    for at_most, upstream in {5: 0.453, 8: 0.918, 10: 0.988, 12: 1.0}.items():
        agree_frac(lengths <= at_most, upstream)
    agree(lengths, 5.81)


def test_lake_shortest_paths():
    v1, v2 = optimal_lengths(LAKE_V1, 2000), optimal_lengths(LAKE_V2, 2000)
    agree(v1, 2.84)
    agree(v2, 2.75)
    for lengths in (v1, v2):  # 27 % one step away, 47 % at most two
        agree_frac(lengths <= 1, 0.27)
        agree_frac(lengths <= 2, 0.47)


def test_256_rooms_with_solutions_take_less_than_5_seconds():
    grids.sokoban_solution.cache_clear()
    before = time.process_time()
    lengths = optimal_lengths(SIMPLE, 256)
    elapsed = time.process_time() - before
    assert len(lengths) == 256 and all(length >= 1 for length in lengths.tolist())
    assert elapsed < 5


# ---------- Sokoban against an independent simulator


@pytest.mark.parametrize(
    "spec, count, boxes", [(SIMPLE, 100, 1), (NEWVOCAB, 100, 1), ("sokoban:size=8,boxes=2", 20, 2)]
)
def test_sokoban_plans_replay(spec, count, boxes):
    env, instances = raw_draws(spec, count, seed=1)
    env.max_actions = 200
    for instance in instances:
        env.start(instance, [0])
        assert len(env.boxes) == len(env.targets) == boxes and not set(env.boxes) & env.targets
        path = env.plan(200, 1)
        assert len(path) == env.optimal_length()
        steps = [env.step(action) for action in path]
        assert [s.info["success"] for s in steps] == [False] * (len(path) - 1) + [True] and steps[
            -1
        ].terminated
        assert all(s.info["effective"] for s in steps)  # a shortest solution wastes nothing
        # every box starts off target and ends on one: +1 net each, 10 once, 0.1 an action
        assert sum(s.reward for s in steps) == pytest.approx(10 + boxes - 0.1 * len(path), abs=1e-9)


def solves(board, path):
    """Play `path` ('UDLR' letters) on a board text with complex numbers for places; is every box on a target?"""
    places = {
        complex(c, r): symbol
        for r, row in enumerate(board.split("\n"))
        for c, symbol in enumerate(row)
    }
    player = next(p for p, symbol in places.items() if symbol in "PS")
    boxes = {p for p, symbol in places.items() if symbol in "X√"}
    targets = {p for p, symbol in places.items() if symbol in "O√S"}
    for letter in path:
        step = {"U": -1j, "D": 1j, "L": -1, "R": 1}[letter]
        ahead, beyond = player + step, player + 2 * step
        if places[ahead] == "#" or (ahead in boxes and (places[beyond] == "#" or beyond in boxes)):
            continue
        if ahead in boxes:
            boxes = boxes - {ahead} | {beyond}
        player = ahead
    return boxes == targets


def test_sokoban_optimal_length_equals_brute_force():
    # iterative deepening over all 4^n key sequences: none shorter than the solver's length solves, one of it does
    checked = 0
    for spec in (SIMPLE, LARGER):
        env, instances = raw_draws(spec, 80, seed=2)
        for instance in instances:
            env.start(instance, [0])
            length, board = env.optimal_length(), env.render()
            if length > 4 or checked == (10 if spec == SIMPLE else 20):
                continue
            found = next(
                n
                for n in range(10)
                if any(solves(board, path) for path in product("UDLR", repeat=n))
            )
            assert found == length
            checked += 1
    assert checked == 20


def test_room_board_round_trip():
    env = in_room(ROOM_BOARD)
    assert env.render() == ROOM_BOARD
    env.start(room_instance(ROOM_BOARD, "newvocab"), [0])
    assert (env.player, env.boxes, env.targets) == (20, (14,), {7})  # cell = 6 * row + column


def test_sokoban_box_stops_at_wall_and_at_box():
    board = "######\n#OPX##\n##X###\n##X_O#\n##_O##\n######"
    env = in_room(board)
    for action in (
        "Right",
        "Down",
        "Up",
    ):  # a wall behind the box, a second box behind the box, a wall
        step = env.step(action)
        assert step.observation == board and step.reward == pytest.approx(-0.1)
        assert step.info == {"success": False, "valid": True, "effective": False}
    assert (
        env.step("Left").info["effective"] and env.num_actions == 4
    )  # blocked moves cost an action too


def test_sokoban_rewards_for_boxes_on_and_off_target():
    # Two boxes, so that one on its target does not end the game.
    #   Right pushes the first box onto the target (+1 - 0.1), Right again pushes it off (-1 - 0.1).
    env = in_room("######\n#PXO_#\n#____#\n#_XO_#\n#____#\n######")
    on = env.step("Right")
    assert on.reward == pytest.approx(0.9) and not on.terminated
    assert on.observation == "######\n#_P√_#\n#____#\n#_XO_#\n#____#\n######"
    off = env.step("Right")
    assert off.reward == pytest.approx(-1.1)
    assert off.observation == "######\n#__SX#\n#____#\n#_XO_#\n#____#\n######"
    # Both on target: 1 + 10 - 0.1 with the second.
    env = in_room("######\n#P√__#\n#_XO_#\n#____#\n#____#\n######")
    assert env.step("Down").reward == pytest.approx(-0.1)
    done = env.step("Right")
    assert (
        done.reward == pytest.approx(10.9)
        and done.terminated
        and not done.truncated
        and done.info["success"]
    )


def test_sokoban_unsolvable_room_has_no_plan():
    env = in_room("######\n#X___#\n#____#\n#__O_#\n#P___#\n######")  # the box is in a corner
    assert env.optimal_length() == 0 and env.plan(5, 5) == []


# ---------- instances: the same everywhere, disjoint splits, groups


def prompt_digest():
    """sha256 over first prompts of several environments, seeds, splits and members, and over what slips do."""
    digest = hashlib.sha256()
    for spec in (SIMPLE, LARGER, LAKE_V1, LAKE_V2, "bandit", "bandit:pair=jobs", SMALL_COUNTDOWN):
        for observation in ("grid", "relations"):
            env = make_env(spec, observation=observation)
            episode = Episode(env, Config())
            for seed, split in product((0, 3, 200), envs.SPLITS):
                digest.update("\n".join(episode.reset(seed, split=split, member=2)).encode())
                outcome = episode.step(format_response("", env.actions))
                digest.update(f"{outcome.user}{outcome.reward}".encode())
            digest.update("\n".join(episode.reset([5, 10**12, 7])).encode())
    return digest.hexdigest()


def test_same_seed_same_prompts_in_another_process():
    here = pathlib.Path(__file__).parent
    paths = [str(here.parent), str(here)]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; import test_envs; print(test_envs.prompt_digest())"
    )
    environs = [{**os.environ, "PYTHONHASHSEED": hash_seed} for hash_seed in ("1", "2")]
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=e, stdout=subprocess.PIPE, text=True)
        for e in environs
    ]
    assert {run.communicate(timeout=60)[0].strip() for run in runs} == {prompt_digest()}


def test_splits_are_disjoint():
    # at frozen_prob 0.9 boards repeat: a board without holes is one draw in five, and there are only 240 of those
    env = make_env(LAKE_V2)
    sets = {}
    for split in ("eval", "heldout"):
        drawn = []
        for i in range(256):
            env.reset(i, split=split)
            drawn.append(env.instance)
        sets[split] = set(drawn)
        assert len(sets[split]) == 256
    assert not sets["eval"] & sets["heldout"]
    train = set()
    for seed in range(3000):
        env.reset([seed, 1])
        train.add(env.instance)
    assert not train & (sets["eval"] | sets["heldout"])
    assert len(train) > 1000


@pytest.mark.parametrize("spec", [SIMPLE, LARGER, LAKE_V1, SMALL_COUNTDOWN])
def test_reserved_sets_are_distinct(spec):
    reserved = envs.reserved_instances(spec)
    assert len(set(reserved["eval"])) == len(set(reserved["heldout"])) == 256
    assert not set(reserved["eval"]) & set(reserved["heldout"])


def test_bandit_is_the_documented_exception():
    # one pair has two prompts (the order of the arms): every split shows both
    env = make_env("bandit")
    for split in envs.SPLITS:
        assert {env.reset(i, split=split) for i in range(30)} == {
            "Arms: Phoenix, Dragon",
            "Arms: Dragon, Phoenix",
        }
    assert env.repeats and not make_env(SIMPLE).repeats


def test_bandit_pays_by_hand():
    env = make_env("bandit")
    paid = []
    for seed in range(1000):
        env.reset(seed)
        low = env.step("phoenix")
        assert (low.reward, low.terminated, low.info["success"]) == (0.1, True, False)
        env.reset(seed)
        high = env.step("Dragon")
        assert high.terminated and high.info["success"]
        paid.append(high.reward)
    assert set(paid) == {0.0, 1.0}
    assert abs(sum(paid) - 250) < 3.5 * math.sqrt(1000 * 0.25 * 0.75)  # sd 13.7


def test_group_shares_the_board_and_not_the_noise():
    env = make_env(LAKE_V1)
    outcomes = []
    for _ in range(2):
        firsts, ends = [], []
        for member in range(8):
            firsts.append(env.reset(21, member=member))
            ends.append(tuple(env.step(a).observation for a in ("Left", "Right", "Down", "Up")))
        assert len(set(firsts)) == 1
        assert len(set(ends)) > 1
        outcomes.append(ends)
    assert outcomes[0] == outcomes[1]  # the same member slips in the same way again


def test_reset_errors():
    env = make_env("frozenlake")
    with pytest.raises(ValueError, match=r"split must be one of train, eval, heldout, got 'test'"):
        env.reset(0, split="test")
    for index in (256, -1, [1, 2]):
        with pytest.raises(
            ValueError, match=r"an index of the eval split is one integer in \[0, 256\)"
        ):
            env.reset(index, split="eval")


# ---------- FrozenLake plans against slow recursions


def lake_dynamics(instance, success_rate):
    """(next-cell distribution as a dict, set of absorbing cells), written with rows and columns."""
    _, size, holes, _, goal = instance
    compass = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
    beside = {
        "Left": ("Up", "Down"),
        "Right": ("Up", "Down"),
        "Up": ("Left", "Right"),
        "Down": ("Left", "Right"),
    }

    def after(cell, action):
        if cell == goal or cell in holes:
            return {cell: 1.0}
        total = {}
        for name, prob in [
            (action, success_rate),
            *((b, (1 - success_rate) / 2) for b in beside[action]),
        ]:
            row, col = cell // size + compass[name][0], cell % size + compass[name][1]
            there = row * size + col if 0 <= row < size and 0 <= col < size else cell
            total[there] = total.get(there, 0.0) + prob
        return total

    return after, {goal, *holes}


def after_sequence(after, cell, actions):
    spread = {cell: 1.0}
    for action in actions:
        new = {}
        for here, prob in spread.items():
            for there, p in after(here, action).items():
                new[there] = new.get(there, 0.0) + prob * p
        spread = new
    return spread


def achieved(env, instance, k, turns, actions):
    """Exact success probability of `env.plan(k, turns left)` followed turn by turn from the start."""
    after, absorbing = lake_dynamics(instance, env.success_rate)
    env.start(instance, [0])

    @cache
    def value(cell, turns, actions):
        if cell in absorbing or turns == 0 or actions == 0:
            return float(cell == instance[4])
        env.player, env.num_actions = cell, env.max_actions - actions
        path = env.plan(k, turns)
        assert 1 <= len(path) <= min(k, actions)
        spread = after_sequence(after, cell, path)
        return sum(
            prob * value(there, turns - 1, actions - len(path)) for there, prob in spread.items()
        )

    return value(instance[3], turns, actions)


def best_possible(instance, success_rate, k, turns, actions):
    """The largest success probability of any player that commits to 1..k actions a turn: plain recursion."""
    after, absorbing = lake_dynamics(instance, success_rate)
    sequences = [
        q for n in range(1, k + 1) for q in product(("Left", "Down", "Right", "Up"), repeat=n)
    ]
    spreads = cache(lambda cell, q: after_sequence(after, cell, q))

    @cache
    def value(cell, turns, actions):
        if cell in absorbing or turns == 0 or actions == 0:
            return float(cell == instance[4])
        return max(
            sum(
                prob * value(there, turns - 1, actions - len(q))
                for there, prob in spreads(cell, q).items()
            )
            for q in sequences
            if len(q) <= actions
        )

    return value(instance[3], turns, actions)


@pytest.mark.parametrize("spec", [LAKE_V1, LAKE_V2])
def test_closed_loop_plan_is_optimal(spec):
    env, instances = raw_draws(spec, 10, seed=3)
    for instance in instances:
        best = best_possible(instance, env.success_rate, 1, 10, 10)
        assert achieved(env, instance, 1, 10, 10) == pytest.approx(best, abs=1e-5)


def test_two_action_plans():
    env, instances = raw_draws(LAKE_V1, 10, seed=4)
    gains = [achieved(env, i, 2, 5, 10) - achieved(env, i, 1, 5, 10) for i in instances]
    assert (
        min(gains) > -1e-5 and max(gains) > 0.01
    )  # ten actions in five turns can do what five can, and more
    env, instances = raw_draws("frozenlake:size=3,success_rate=0.5", 3, seed=5)
    for instance in instances:
        best = best_possible(instance, 0.5, 2, 5, 10)
        assert achieved(env, instance, 2, 5, 10) == pytest.approx(best, abs=1e-5)


def test_plan_by_hand():
    # no slips, one turn of five actions: the only way is the shortest one, Down Down Right Right Right
    env = on_lake(LAKE_BOARD)
    assert env.optimal_length() == 5
    assert env.plan(5, 1) == ["Down", "Down", "Right", "Right", "Right"]
    # corridor S _ G, success rate 0.5: from the middle "Right" reaches the goal with probability 1/2, else it hits the
    # border and stays (the two sides are holes only if drawn so: here row 1 has holes below it)
    instance = ("frozenlake", 3, (3, 4, 5), 0, 2)
    # from cell 0: Right 1/2 ahead, 1/4 up (stays), 1/4 down (hole). One turn each: first Right then Right = 1/2 * 1/2
    # with two actions; "Up" at cell 0 would stay 1/2 + 1/4 and go right 1/4. Up, Right = 1/4 * 1/2 is worse.
    env = make_env("frozenlake:size=3,success_rate=0.5", max_actions=2)
    env.start(instance, [0])
    assert env.plan(2, 1) == ["Right", "Right"]
    assert achieved(env, instance, 2, 1, 2) == pytest.approx(0.25)
    assert best_possible(instance, 0.5, 2, 1, 2) == pytest.approx(0.25)


def test_greedy_by_hand():
    # goal 2 down 3 right: vertical first, blind to holes; then along the row
    env = on_lake(LAKE_BOARD)
    path = []
    while not env.terminated:
        path.append(env.greedy())
        env.step(path[-1])
    assert path == ["Down", "Down", "Right", "Right", "Right"]
    # Sokoban: box at distance 2 from its target; pushing Left shortens it, nothing else does
    env = in_room("######\n#____#\n#O_XP#\n#____#\n#____#\n######")
    assert env.greedy() == "Left"


# ---------- what the policy reads


def test_lake_observation_modes_by_hand():
    # (1,3), two to the right of (1,1), and (2,2), the corner, are holes
    text = on_lake(LAKE_BOARD, observation="relations").observe()
    relations = "Away left edge, up edge. Goal 2 down ice ice, 3 right ice hole, corner hole."
    assert text == f"{LAKE_BOARD}\n{relations}"
    text = on_lake(LAKE_BOARD, observation="coord").observe()
    assert text == LAKE_BOARD + "\nPlayer (1,1). Goal (3,4). Holes (1,3) (2,2) (4,1)."
    assert on_lake(LAKE_BOARD).observe() == LAKE_BOARD
    far = on_lake("P___\n____\n____\n_G_O", observation="relations")
    assert (
        far.observe().split("\n")[-1]
        == "Away left edge, up edge. Goal 3 down ice ice, 1 right ice ice, corner ice."
    )
    assert (
        on_lake("PG\n_O", observation="relations")
        .observe()
        .endswith("up edge. Goal 1 right goal edge.")
    )
    none = on_lake("_G__\n____\n_P__\n____", observation="coord")
    assert none.observe().split("\n")[-1] == "Player (3,2). Goal (1,2). Holes none."


def test_lake_statements_by_hand():
    env = on_lake(LAKE_BOARD)
    assert env.statements() == [
        "Next edge ice ice edge.",
        "Goal 2 down 3 right.",
        "Way down down right right right.",
    ]
    env.step(
        "Right"
    )  # at (1,2): holes below at (2,2) and right at (1,3); in the order Left, Down, Right, Up
    assert env.statements() == [
        "Next ice hole hole edge.",
        "Goal 2 down 2 right.",
        "Way left down down right right.",
    ]
    env = on_lake("G__\n_P_\n_O_")
    assert env.statements() == [
        "Next ice hole ice ice.",
        "Goal 1 up 1 left.",
        "Way up left.",
    ]  # left could slip down
    assert on_lake("PG\n_O").statements() == [
        "Next edge ice goal edge.",
        "Goal 1 right.",
        "Way right.",
    ]


def test_demonstrated_moves_follow_a_random_shortest_path():
    env, rng, seen = on_lake("P__\n_O_\n__G"), np.random.default_rng(0), set()
    for _ in range(50):
        seen.add(tuple(env.demonstrate(9, rng)))
        assert len(env.demonstrate(3, rng)) == 3
    assert seen == {("Right", "Right", "Down", "Down"), ("Down", "Down", "Right", "Right")}


def test_room_observation_modes_by_hand():
    # around you at (4,3) and around the box at (3,3): up, down, left, right
    text = in_room(ROOM_BOARD, observation="relations").observe()
    assert text == ROOM_BOARD + (
        "\nBox 1 up, its target 1 up 1 left, around it floor you floor wall.\nNext box floor floor floor."
    )
    text = in_room(ROOM_BOARD, observation="coord").observe()
    assert text == ROOM_BOARD + "\nPlayer (4,3). Boxes (3,3). Targets (2,2)."
    assert in_room(ROOM_BOARD).statements() == [
        "Next box floor floor floor.",
        "Box 1 up.",
        "Target 1 up 1 left.",
    ]
    # two boxes, one on its target: "here" for that one; the other is led to the free target, not to the nearer one
    board = "######\n#_X√_#\n#____#\n#_P_O#\n#____#\n######"
    env = in_room(board, observation="relations")
    assert env.observe() == board + (
        "\nBox 2 up, its target 2 down 2 right, around it wall floor floor box."
        "\nBox 2 up 1 right, its target here, around it wall floor box floor."
        "\nNext floor floor floor floor."
    )
    boxes = ["Box 2 up.", "Target 2 down 2 right.", "Box 2 up 1 right.", "Target here."]
    assert env.statements() == ["Next floor floor floor floor.", *boxes]


def direction_words(board, here, there):
    """'2 down 1 right' from the places of two symbols in the board text, by comparing line and column numbers."""
    lines = board.split("\n")
    (r, c), (r2, c2) = (
        (next((i, line.index(s)) for i, line in enumerate(lines) if s in line))
        for s in (here, there)
    )
    words = [f"{r2 - r} down"] * (r2 > r) + [f"{r - r2} up"] * (r2 < r)
    words += [f"{c2 - c} right"] * (c2 > c) + [f"{c - c2} left"] * (c2 < c)
    return " ".join(words) or "here"


def safest_way(board):
    """The moves from P to G of the shortest path around the holes O with fewest of them at the sides of its moves: by
    trying all paths of one, two, ... moves on the board text, in the order left, down, right, up."""
    places = {
        (r, c): symbol for r, line in enumerate(board.split("\n")) for c, symbol in enumerate(line)
    }
    ways = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
    paths = [(0, [], next(place for place, symbol in places.items() if symbol == "P"))]
    while not (done := [path for path in paths if places[path[2]] == "G"]):
        longer, paths = paths, []
        for (risk, words, (r, c)), (word, (dr, dc)) in product(longer, ways.items()):
            if places.get((r + dr, c + dc), "O") != "O":
                sides = sum(places.get((r + sign * dc, c + sign * dr)) == "O" for sign in (-1, 1))
                paths.append((risk + sides, [*words, word], (r + dr, c + dc)))
    return min(done, key=lambda path: path[0])[1]


def neighbours(board, symbol, border):
    """The symbols up, down, left, right of a symbol in the board text; `border` outside of it."""
    lines = board.split("\n")
    rows = [
        border * (len(lines[0]) + 2),
        *(border + line + border for line in lines),
        border * (len(lines[0]) + 2),
    ]
    r, c = next((i, row.index(symbol)) for i, row in enumerate(rows) if symbol in row)
    return [rows[r - 1][c], rows[r + 1][c], rows[r][c - 1], rows[r][c + 1]]


def test_statements_are_true_and_counted():
    rng = np.random.default_rng(0)
    for spec in (LAKE_V1, SIMPLE):
        env, instances = raw_draws(spec, 60, seed=6)
        for instance in instances:
            env.start(instance, [1])
            for _ in range(int(rng.integers(4))):
                env.step(env.actions[rng.integers(4)])
            board, facts = env.render(), env.statements()
            if env.terminated or "S" in board:
                continue
            if spec == SIMPLE:
                box, target = direction_words(board, "P", "X"), direction_words(board, "X", "O")
                names = {"#": "wall", "_": "floor", "O": "target", "X": "box"}
                around = [names[symbol] for symbol in neighbours(board, "P", "#")]
                assert facts == [f"Next {' '.join(around)}.", f"Box {box}.", f"Target {target}."]
            else:
                names = {" ": "edge", "_": "ice", "O": "hole", "G": "goal"}
                up, down, left, right = (names[symbol] for symbol in neighbours(board, "P", " "))
                goal = direction_words(board, "P", "G")
                around = {"left": left, "down": down, "right": right, "up": up}
                way = " ".join(safest_way(board)[:5])
                assert facts == [
                    f"Next {' '.join(around.values())}.",
                    f"Goal {goal}.",
                    f"Way {way}.",
                ]
            assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))


def test_check_thought_by_hand():
    facts = ["Next ice hole.", "Goal up."]
    # begins like a fact: Goal up (true), Next ice hole (true), Next hole hole (false); "I go" is no claim
    assert check_thought("Goal up. Next ice hole. I go. Next hole hole.", facts) == (3, 2)
    assert check_thought("", facts) == (0, 0)


# where the rules name each symbol
SOKOBAN_LEGEND = {
    "wall": r"a wall (\S)",
    "floor": r"Floor is (\S)",
    "target": r"onto a target (\S)\.",
    "box on target": r"a box on a target is (\S)\.",
    "box": r"every box (\S)",
    "you": r"You are (\S),",
    "you on target": r"on a target (\S);",
}
LAKE_LEGEND = {
    "you": r"You are (\S)\.",
    "ice": r"ice (\S)",
    "goal": r"goal (\S);",
    "hole": r"hole (\S) ",
}


@cache
def legend(spec):
    """{meaning: symbol} as the system message states it."""
    patterns = SOKOBAN_LEGEND if spec.startswith("sokoban") else LAKE_LEGEND
    system = Episode(make_env(spec), Config()).system()
    return {meaning: re.search(pattern, system).group(1) for meaning, pattern in patterns.items()}


@pytest.mark.parametrize(
    "spec", ["sokoban:boxes=2", "sokoban:boxes=2,search_depth=30,symbols=newvocab", LAKE_V1]
)
def test_legend_is_that_of_the_boards(spec):
    # random and planned moves on many boards; a board on which the game has ended is in no message
    env, rng, seen = make_env(spec, max_actions=60), np.random.default_rng(7), set()
    for seed in range(60):
        seen |= set(env.reset(seed))
        while not env.terminated and env.actions_left:
            plan = env.plan(1, 5)
            step = env.step(
                plan[0] if plan and rng.random() < 0.5 else env.actions[rng.integers(4)]
            )
            seen |= set() if step.terminated else set(step.observation)
    assert seen - {"\n"} == set(legend(spec).values())


@pytest.mark.parametrize("spec", [SIMPLE, NEWVOCAB])
def test_legend_decodes_rooms(spec):
    # reading a board with the legend of its prompt gives back walls, targets, box and player
    means = {symbol: meaning for meaning, symbol in legend(spec).items()}
    assert len(means) == 7
    env = make_env(spec)
    for seed in range(20):
        cells = [means[symbol] for symbol in env.reset(seed).replace("\n", "")]
        assert {i for i, m in enumerate(cells) if m != "wall"} == env.floor
        assert {i for i, m in enumerate(cells) if "target" in m} == env.targets
        assert [i for i, m in enumerate(cells) if m.startswith("box")] == list(env.boxes)
        assert [i for i, m in enumerate(cells) if m.startswith("you")] == [env.player]


def test_legend_decodes_lakes():
    means = {symbol: meaning for meaning, symbol in legend(LAKE_V1).items()}
    env = make_env(LAKE_V1)
    for seed in range(20):
        cells = [means[symbol] for symbol in env.reset(seed).replace("\n", "")]
        assert {i for i, m in enumerate(cells) if m == "hole"} == env.holes
        assert (cells.index("you"), cells.index("goal")) == (env.player, env.goal)


# ---------- Countdown


def problem(numbers, target):
    env = make_env("countdown")
    env.start(("countdown", numbers, target), [0])
    return env


@pytest.mark.parametrize(
    "action, reward",
    [
        ("(3 + 5) * 2", 1.0),
        (" 2*(5+3) ", 1.0),
        ("((3)+(05)) * 2", 1.0),
        ("5 * 3 + 2 / 2", 0.0),  # 16, but 2 is used twice
        ("3 * 5 + 1", 0.0),  # 16, but of 1
        ("(3 + 5)", 0.0),  # 2 is not used
        ("32 / 5", 0.0),  # digits, not numbers
        ("3 + 5 * 2", 0.1),  # 13: products come first
        ("5 - 3 - 2", 0.1),  # 0
        ("2 / (3 - 5)", 0.1),  # -1
    ],
)
def test_countdown_pays_by_hand(action, reward):
    env = problem((5, 3, 2), 16)
    step = env.step(action)
    assert (step.reward, step.terminated, step.truncated) == (reward, True, False)
    assert step.info == {"success": reward == 1, "valid": True, "effective": reward > 0}
    assert not env.step("(3 + 5) * 2").info["valid"]  # one action a game


def test_countdown_is_exact():
    # 8 / (3 - 8 / 3) = 8 / (1 / 3) = 24, in floating point 23.99..; the solver takes whole steps only, so it finds none
    assert problem((8, 8, 3, 3), 24).step("8 / (3 - 8 / 3)").info["success"]
    assert countdown_solution(tuple((n, str(n)) for n in (8, 8, 3, 3)), 24) is None
    assert countdown_solution(((6, "6"), (2, "2")), 3) == "(6 / 2)"
    assert countdown_solution(((2, "2"), (6, "6")), 4) == "(6 - 2)"


NO_EXPRESSIONS = (
    "",
    " ",
    "Up",
    "3 +",
    "+ 3",
    "-3 + 5",
    "3 5",
    "3 + 5 = 8",
    "2 ** 3",
    "9**9**9**9",
    "7 // 2",
    "2(3)",
    "(2)(3)",
    "()",
    "(3 + 5",
    "3 + 5)",
    "1)+(2",
    "5 / 0",
    "5 / (3 - 3)",
    "3.5 + 1",
    "1e2",
    "1_0",
    "0x1",
    "3,5",
    "٣ + ٥",
    "３+５",
    "²+1",
    "1\0+1",
    "1\n+1",
    "1\t+1",
    "1 || 2",
    "__import__('os')",
    "end",
    "9" * 100_000,
    "1+" * 100_000,
    "(" * 100_000,
    "(" * 50_000 + "1" + ")" * 50_000,
    "(" * 100,
    ")" * 100,
    "(" * 50 + "1" + ")" * 50,
)


@pytest.mark.parametrize("text", NO_EXPRESSIONS, ids=range(len(NO_EXPRESSIONS)))
def test_no_expression_is_no_action(text):
    env = problem((5, 3, 2), 16)
    assert evaluate_expression(text) is None
    step = env.step(text)
    assert (step.reward, step.terminated, step.truncated, step.info["valid"]) == (
        0.0,
        False,
        False,
        False,
    )
    assert env.step("(3 + 5) * 2").info["success"]  # the one action was not spent


def test_longest_expressions():
    assert evaluate_expression("9" * 100) == ([10**100 - 1], 10**100 - 1)
    assert evaluate_expression("(" * 49 + "12" + ")" * 49) == ([12], 12)  # 100 characters
    assert evaluate_expression("1" + "+1" * 49 + " ") == ([1] * 50, 50)


def python_reads(text):
    """(numbers, value) by Python's own grammar: binary + - * / of whole numbers and nothing else, else None."""
    if len(text) > 100 or not set(text) <= set("0123456789+-*/() "):
        return None
    try:
        tree = ast.parse(
            re.sub(r"\b0+(?=\d)", "", text).strip(), mode="eval"
        )  # no leading zeros in Python
    except SyntaxError:
        return None
    legal = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Constant)
    if not all(isinstance(node, legal) for node in ast.walk(tree)):
        return None
    numbers = sorted(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    try:
        return numbers, eval(
            re.sub(r"(\d+)", r"Fraction('\1')", text).strip(), {"Fraction": Fraction}
        )
    except ZeroDivisionError:
        return None


EXPRESSIONS = st.recursive(
    st.integers(0, 30).map(str),
    lambda part: st.tuples(
        part, st.sampled_from("+-*/"), part, st.sampled_from(("{}", "({})", " ( {} )"))
    ).map(lambda parts: parts[3].format(f"{parts[0]}{parts[1]} {parts[2]}")),
    max_leaves=8,
)
LEGAL_CHARACTERS = st.text("0123456789+-*/() ", max_size=12)


@settings(deadline=None, max_examples=150)
@given(EXPRESSIONS, LEGAL_CHARACTERS, st.integers(0, 99), st.integers(0, 3))
def test_expressions_are_read_as_python_reads_them(text, inserted, at, removed):
    for changed in (
        text,
        inserted,
        text[:at] + text[at + removed :],
        text[:at] + inserted + text[at:],
    ):
        assert evaluate_expression(changed) == python_reads(changed), changed


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_an_expression_or_not(text):
    assert evaluate_expression(text) == python_reads(text)
    episode = Episode(problem((5, 3, 2), 16), Config(max_turns=1))
    episode.open(episode.env.observe())
    outcome = episode.step(f"<think></think><answer>{text}</answer>")
    assert outcome.status in ("success", "failure", "out_of_turns") and -0.1 <= outcome.reward <= 1


@pytest.mark.parametrize(
    "spec", ["countdown", "countdown:numbers=2", SMALL_COUNTDOWN, "countdown:numbers=4"]
)
def test_countdown_problems_can_be_solved(spec):
    env, instances = raw_draws(spec, 150)
    rng, wins = np.random.default_rng(0), Counter()
    for instance in instances:
        _, numbers, target = instance
        assert len(numbers) in (
            [3, 4] if spec == "countdown" else [int(re.search(r"numbers=(\d)", spec)[1])]
        )
        assert list(numbers) == sorted(numbers, reverse=True) and 10 <= target <= 100
        assert numbers[-1] >= 1 and numbers[0] <= (9 if spec == SMALL_COUNTDOWN else 99)
        for player in ("random", "greedy", "optimal"):
            env.start(instance, [0])
            text = {
                "random": env.random(1, rng)[0],
                "greedy": env.greedy(),
                "optimal": env.plan(1, 1)[0],
            }[player]
            used, value = python_reads(text)
            assert used == sorted(numbers)
            assert player == "greedy" or (value > 0 and value.denominator == 1)
            wins[player] += env.step(text).info["success"]
            assert env.terminated and env.optimal_length() == 1
    assert wins["optimal"] == 150 > wins["greedy"]


def test_countdown_draws():
    _, instances = raw_draws("countdown", 600)
    four = sum(len(numbers) == 4 for _, numbers, _ in instances)
    assert abs(four - 300) < 3.5 * math.sqrt(600 / 4)
    targets = Counter(
        (target - 10) // 31 for _, _, target in instances
    )  # 10 to 40, 41 to 71, 72 to 100
    assert set(targets) == {0, 1, 2} and min(targets.values()) > 120
    assert {n for _, numbers, _ in instances for n in numbers} == set(range(1, 100))
    plans = "".join(problem(*instance[1:]).plan(1, 1)[0] for instance in instances)
    assert set(plans) == set("0123456789+-*/() ")


def test_countdown_splits_know_no_order_of_numbers():
    # 165 multisets of three numbers up to 9, so problems repeat: 602 different ones among 1000 draws
    env = make_env(SMALL_COUNTDOWN)
    reserved = {key for part in envs.reserved_instances(SMALL_COUNTDOWN).values() for key in part}
    train = set()
    for seed in range(600):
        env.reset([seed, 1])
        train.add((tuple(sorted(env.numbers)), env.target))
    assert len(reserved) == 512 and len(train) > 200
    assert not train & {(tuple(sorted(numbers)), target) for _, numbers, target in reserved}


def test_countdown_texts():
    env = problem((25, 7, 3), 96)
    assert env.observe() == "Target 96. Numbers 25 7 3."
    assert env.statements() == ["Target 96.", "Numbers 25 7 3."]
    assert env.greedy() == "25 + 7 + 3"  # 35, 29, 21 and 15
    assert problem((25, 7, 3), 20).greedy() == "25 - 7 + 3"
    assert env.plan(5, 5) == ["(25 + 7) * 3"] and problem((5, 2), 10).plan(1, 1) == ["5 * 2"]
    assert {make_env("countdown", observation=mode).reset(3) for mode in envs.OBSERVATIONS} == {
        make_env("countdown").reset(3)
    }
    for options in ("numbers=5", "numbers=1", "largest=4", "largest=1000"):
        with pytest.raises(
            ValueError, match=r"countdown wants numbers 2, 3, 4 or 0 \(3 or 4\), largest 5\.\.999"
        ):
            make_env(f"countdown:{options}")


def test_countdown_dialogue():
    episode = Episode(make_env("countdown"), Config())
    system, _ = episode.reset(0)
    assert (
        system == episode.reset(1)[0]
        and "Actions:" not in system
        and "At most 1 action a turn." in system
    )
    episode.env.start(("countdown", (5, 3, 2), 16), [0])
    outcome = episode.step(
        "<think>Target 16. Numbers 5 3.</think><answer>(3 + 5) * 2 = 16</answer>"
    )
    head = (
        'Reward -0.1. Unknown action: "(3 + 5) * 2 = 16". No action was executed; nothing changed.'
    )
    assert outcome.user == f"{head}\nTurn 2 of 5, 1 action left.\nTarget 16. Numbers 5 3 2."
    assert (outcome.info["statements_checked"], outcome.info["statements_true"]) == (2, 1)
    outcome = episode.step(
        "<think></think><answer>(3 + 5) * 2 || 3 + 5 + 2</answer>"
    )  # one action is left
    assert (outcome.status, outcome.info["actions"]) == ("success", ["(3 + 5) * 2"])
    assert outcome.reward == pytest.approx(0.9)  # the second is over the limit


def countdown_config(**changes):
    folder = pathlib.Path(envs.__file__).parent / "config"
    config = load_config(
        [str(folder / "countdown_ppo.py"), str(folder / "tiny.py"), f"--env={SMALL_COUNTDOWN}"]
    )[0]
    return replace(config, **changes)


def test_countdown_players_and_demonstrations(chat):
    from eval import PLAYERS, play_reference
    from tools.corpus import (
        demonstration,
    )  # here: they need torch, and other processes import this file

    config, rates = countdown_config(eval_size=64), {}
    for player in PLAYERS:
        played = play_reference(config, player)
        assert all(len(t.turns) == 1 and t.turns[0].info["format_ok"] for t in played)
        rates[player] = sum(t.success for t in played) / 64
    assert rates["optimal"] == 1 > rates["greedy"] > rates["random"]
    for noise in (0.0, 1.0):
        demos = [demonstration(replace(config, sft_noise=noise), chat, i) for i in range(30)]
        assert all(demo.turns[0].info["format_ok"] and demo.score >= 0.1 for demo in demos)
        assert all(demo.success for demo in demos) == (noise == 0)


def test_shipped_tokenizer_is_built_again(tokenizer):
    """Another environment here must not change it: the weights in `base` were trained with it."""
    base = json.loads(
        (pathlib.Path(envs.__file__).parent / "base" / "tokenizer.json").read_text(encoding="utf-8")
    )
    built = json.loads(tokenizer.backend_tokenizer.to_str())
    assert len(base["model"]["merges"]) > 100
    assert (built["model"]["vocab"], built["model"]["merges"]) == (
        base["model"]["vocab"],
        base["model"]["merges"],
    )
    assert built["added_tokens"] == base["added_tokens"]


# ---------- mixtures and curricula


LAKE = "frozenlake:size=4,frozen_prob=0.8"


@pytest.mark.parametrize(
    "text, iteration, expected",
    [
        (LAKE, None, {LAKE: 1.0}),
        (f" {LAKE} ", 7, {LAKE: 1.0}),
        (f"{LAKE} + 2*sokoban", 0, {LAKE: 1 / 3, "sokoban": 2 / 3}),
        (f"0.5*{LAKE}+1.5 * bandit:pair=jobs", 0, {LAKE: 0.25, "bandit:pair=jobs": 0.75}),
        (".5*bandit + countdown + .5*bandit", 0, {"bandit": 0.5, "countdown": 0.5}),
        (f"{LAKE} @50 > sokoban", 0, {LAKE: 1.0}),
        (f"{LAKE} @50 > sokoban", 49, {LAKE: 1.0}),
        (f"{LAKE} @50 > sokoban", 50, {"sokoban": 1.0}),
        (f"{LAKE} @50 > sokoban", None, {"sokoban": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 0, {"bandit": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 1, {"bandit": 0.25, "sokoban": 0.75}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 19, {"bandit": 0.25, "sokoban": 0.75}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 20, {"countdown": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 10**9, {"countdown": 1.0}),
    ],
)
def test_stages_by_hand(text, iteration, expected):
    shares = mixture_at(text, iteration)
    assert shares == pytest.approx(expected) and list(shares) == list(expected)


STAGES = "all stages but the last, and only they, must end in @N, N rising from 1; got env="
PART = r"must be ENV or WEIGHT\*ENV with a weight above 0"


@pytest.mark.parametrize(
    "text, message",
    [
        ("bandit > sokoban", STAGES),  # no @N
        ("bandit @x > sokoban", STAGES),
        ("bandit @-5 > sokoban", STAGES),
        ("bandit @1.5 > sokoban", STAGES),
        ("bandit @0 > sokoban", STAGES),
        ("bandit @20 > sokoban @20 > countdown", STAGES),
        ("bandit @20 > sokoban @10 > countdown", STAGES),
        ("bandit @20 > sokoban > countdown", STAGES),
        ("bandit @20", STAGES),  # the last stage has no end
        ("bandit @20 > sokoban @30", STAGES),
        ("", rf"'' in env='' {PART}"),
        ("bandit +", rf"'' in env='bandit \+' {PART}"),
        ("+ bandit", PART),
        ("bandit + + sokoban", PART),
        ("bandit @20 >", PART),
        ("@20 > bandit", PART),
        ("0*bandit", rf"'0\*bandit' in env='0\*bandit' {PART}"),
        ("0.0*bandit + sokoban", PART),
        ("-1*bandit", PART),
        ("nan*bandit", PART),
        ("2*", PART),
        ("2*3*bandit", PART),
        ("bandit sokoban", PART),
        ("bandit @20 > sokoban @x", PART),
        ("bandti", "unknown environment 'bandti' in env='bandti'; did you mean bandit"),
        ("bandit + 2*frozenlake:sise=3", "unknown option 'sise'"),
        (
            "sokobann @5 > bandit",
            "unknown environment 'sokobann'",
        ),  # also where another stage is asked for
    ],
)
def test_stages_that_are_refused(text, message):
    for iteration in (0, 25, None):
        with pytest.raises(ValueError, match=message):
            mixture_at(text, iteration)


# ---------- dialogue by hand


def test_parse_by_hand():
    assert parse_response("<think> a </think>\n<answer> Up||Left || </answer> ") == (
        "a",
        ["Up", "Left"],
        True,
    )
    assert parse_response("<think></think><answer></answer>") == ("", [], True)
    assert parse_response("so <think>a</think><answer>Up</answer>") == ("a", ["Up"], False)
    assert parse_response("<think>a</think> so <answer>Up</answer>") == ("a", ["Up"], False)
    assert parse_response("<think>a</think><answer>Up</answer> so") == ("a", ["Up"], False)
    for text in (
        "",
        "Up",
        "<think>a<answer>Up</answer>",
        "<think>a</think><answer>Up",
        "<answer>Up</answer>",
    ):
        assert parse_response(text) == ("", [], False)
    assert parse_response("<answer>Up || Down</answer>", think=False) == ("", ["Up", "Down"], True)
    assert parse_response("<think>a</think><answer>Up</answer>", think=False) == ("", ["Up"], False)
    for think in (True, False):
        text = format_response("go" if think else "", ["Up", "Left"], think=think)
        assert parse_response(text, think=think) == ("go" if think else "", ["Up", "Left"], True)


def test_turn_with_two_actions():
    episode = episode_in(ROOM_BOARD)
    # you (4,3) -> (4,2) -> (3,2); facts before the turn: "Box 1 up.", "Target 1 up 1 left."
    outcome = episode.step("<think>Box 1 up. Target 1 left. Go.</think><answer>Left || Up</answer>")
    board = "######\n#O___#\n#PX#_#\n#____#\n#____#\n######"
    assert outcome.user == f"Reward -0.2.\nTurn 2 of 5, 8 actions left.\n{board}"
    assert outcome.reward == pytest.approx(-0.2) and outcome.status is None
    assert outcome.info == {
        "actions": ["Left", "Up"],
        "num_actions": 2,
        "format_ok": True,
        "effective": 1.0,
        "statements_checked": 2,
        "statements_true": 1,
        "env_reward": -0.2,
    }


def test_first_messages():
    episode = episode_in(ROOM_BOARD)
    system, user = episode.reset(0)
    assert user == f"Turn 1 of 5, 10 actions left.\n{episode.env.observe()}"
    assert system == episode.reset(1)[0] == episode.system()
    assert "Actions: Up, Down, Left, Right." in system
    form = re.search(r"Reply (.*) in at most 400 tokens", system).group(1)
    parsed = parse_response(form)  # the form that is shown is one that the parser accepts
    assert parsed.well_formed and parsed.thought and len(parsed.actions) == 2


def test_unknown_action_is_reported_and_penalised():
    episode = episode_in(ROOM_BOARD)
    outcome = episode.step("<think>a</think><answer>Left || Jump || up</answer>")
    # two moves, -0.1 each, and the format penalty -0.1; the unknown one costs no action
    assert outcome.reward == pytest.approx(-0.3)
    assert outcome.user.split("\n")[:2] == [
        'Reward -0.3. Unknown action: "Jump".',
        "Turn 2 of 5, 8 actions left.",
    ]
    assert outcome.info["num_actions"] == 2 and not outcome.info["format_ok"]
    outcome = episode.step("<think>a</think><answer>Jump</answer>")
    assert outcome.reward == pytest.approx(-0.1)
    head = 'Reward -0.1. Unknown action: "Jump". No action was executed; nothing changed.'
    assert outcome.user.startswith(f"{head}\nTurn 3 of 5, 8 actions left.\n")


def test_surplus_actions_are_reported():
    episode = episode_in(ROOM_BOARD, actions_per_turn=2)
    outcome = episode.step("<think>a</think><answer>Left || Right || Left || Right</answer>")
    assert outcome.reward == pytest.approx(-0.3) and outcome.info["num_actions"] == 2
    assert outcome.user.startswith(
        "Reward -0.3. Not executed, over the limit: 2.\nTurn 2 of 5, 8 actions left.\n"
    )
    # the budget cuts too: one action is left of three, two are asked for
    episode = episode_in(ROOM_BOARD, max_actions=3)
    assert episode.step("<think>a</think><answer>Left || Right</answer>").reward == pytest.approx(
        -0.2
    )
    outcome = episode.step("<think>a</think><answer>Left || Right</answer>")
    assert (
        outcome.reward == pytest.approx(-0.2)
        and outcome.status == "failure"
        and outcome.info["num_actions"] == 1
    )


def test_malformed_reply():
    episode = episode_in(ROOM_BOARD)
    outcome = episode.step("I go up")
    head = "Reward -0.1. The reply was not in the required form. No action was executed; nothing changed."
    assert outcome.user == f"{head}\nTurn 2 of 5, 10 actions left.\n{ROOM_BOARD}"
    assert outcome.reward == pytest.approx(-0.1) and not outcome.info["format_ok"]
    empty = episode.step(
        "<think>a</think><answer></answer>"
    )  # the form is right, but nothing is asked for
    assert empty.user.startswith(
        "Reward -0.1. No action was executed; nothing changed.\nTurn 3 of 5"
    )


def test_text_outside_the_tags_is_penalised_but_executed():
    reply = "Sure! <think>a</think><answer>Left</answer>"
    outcome = episode_in(ROOM_BOARD).step(reply)
    assert outcome.reward == pytest.approx(-0.2) and outcome.info["num_actions"] == 1
    head = "Reward -0.2. The reply was not in the required form."
    assert outcome.user.startswith(f"{head}\nTurn 2 of 5, 9 actions left.\n")
    assert episode_in(ROOM_BOARD, format_penalty=0.0).step(reply).reward == pytest.approx(-0.1)


def test_no_think_variant():
    episode = episode_in(ROOM_BOARD, think=False)
    assert "<think>" not in episode.system()
    form = re.search(r"Reply (.*) in at most 400 tokens", episode.system()).group(1)
    parsed = parse_response(form, think=False)
    assert parsed.well_formed and len(parsed.actions) == 2
    outcome = episode.step("<answer>Left</answer>")
    assert outcome.reward == pytest.approx(-0.1) and outcome.info["format_ok"]
    assert not episode.step("<think>a</think><answer>Left</answer>").info["format_ok"]


def test_turn_limit():
    episode = episode_in(ROOM_BOARD, max_turns=2)
    assert episode.step("<think>a</think><answer>Left</answer>").status is None
    outcome = episode.step("nothing")
    assert (outcome.status, outcome.user) == ("out_of_turns", "")


def test_action_budget():
    episode = episode_in(ROOM_BOARD, max_actions=2)
    outcome = episode.step("<think>a</think><answer>Left || Right</answer>")
    assert (outcome.status, outcome.user) == ("failure", "") and outcome.reward == pytest.approx(
        -0.2
    )
    # success with the last action of the budget and of the turns is a success
    episode = episode_in(
        "######\n#____#\n#OXP_#\n#____#\n#____#\n######", max_actions=1, max_turns=1
    )
    assert episode.step("<think>a</think><answer>Left</answer>").status == "success"


def test_success_ends():
    episode = episode_in("######\n#____#\n#OXP_#\n#____#\n#____#\n######")
    outcome = episode.step("<think>a</think><answer>Left || Right || Up</answer>")
    assert (outcome.status, outcome.user) == ("success", "")
    # -0.1 + 1 + 10; what follows the end is neither executed nor penalised
    assert outcome.reward == pytest.approx(10.9)
    assert outcome.info["num_actions"] == 1 and outcome.info["format_ok"]


def test_hole_ends_in_failure():
    outcome = episode_in(LAKE_BOARD).step("<think>a</think><answer>Right || Right || Left</answer>")
    assert (outcome.status, outcome.user, outcome.reward) == ("failure", "", 0.0)
    assert outcome.info["num_actions"] == 2


@pytest.mark.parametrize(
    "per_turn, in_all, turns", [(5, 10, 5), (2, 10, 5), (3, 4, 9), (7, 35, 2), (1, 2, 3)]
)
def test_stated_limits_are_executed(per_turn, in_all, turns):
    options = {"actions_per_turn": per_turn, "max_turns": turns, "max_response_tokens": 321}
    episode = episode_in(ROOM_BOARD, max_actions=in_all, **options)
    system = episode.system()
    assert f"At most {per_turn} action{'s' * (per_turn > 1)} a turn." in system
    assert episode.reset(0)[1].startswith(f"Turn 1 of {turns}, {in_all} actions left.\n")
    episode = episode_in(ROOM_BOARD, max_actions=in_all, **options)
    assert "in at most 321 tokens" in system
    counts, status = [], None
    while status is None:
        outcome = episode.step(
            "<think>a</think><answer>" + " || ".join(["Down"] * 50) + "</answer>"
        )
        counts.append(outcome.info["num_actions"])
        status = outcome.status
        if status is None:
            head = re.search(r"Turn (\d+) of (\d+), (\d+) actions? left\.", outcome.user)
            assert [int(n) for n in head.groups()] == [len(counts) + 1, turns, in_all - sum(counts)]
    # whole turns of `per_turn` until the turns or the actions are used up
    assert counts[:-1] == [per_turn] * (len(counts) - 1) and sum(counts) == min(
        in_all, per_turn * turns
    )
    assert status == ("failure" if sum(counts) == in_all else "out_of_turns")


def test_one_action_prompt():
    system = Episode(
        make_env("bandit", max_actions=1), Config(max_turns=1, actions_per_turn=1)
    ).system()
    assert "At most 1 action a turn." in system and "||" not in system
    assert (
        "Phoenix" not in system
    )  # the arms stand in the observation, the system message is that of all instances


# ---------- any text


FRAGMENTS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "||",
    " || ",
    "Up",
    "down",
    "EXIT_INTERRUPTED",
    "Right",
    "Phoenix",
    "Dragon",
    "<|im_end|>",
    "<|im_start|>",
    "Jump",
    "\n",
    " ",
    ".",
    "<",
    "</",
    "Goal up.",
    "Box here.",
    "<think></think><answer>",
    "<think>go</think><answer>Right || Down</answer>",
    "<think>a</think><answer>Left || Up || Up || Right</answer>",
    "<answer>Up || Left || Jump</answer>",
)
# ASCII characters of the generated text stand for the fragments, the others for themselves
TO_FRAGMENTS = {code: FRAGMENTS[code % len(FRAGMENTS)] for code in range(128)}
ANY_TEXT = st.text(max_size=8).map(lambda text: text.translate(TO_FRAGMENTS))
# the text alone, as the answer in the right form, as the thought in front of a right answer
WRAPS = (
    "{}",
    "<think>a</think><answer>{}</answer>",
    "<answer>{}</answer>",
    "<think>{}</think><answer>Up</answer>",
)


def assert_parses(text):
    for think in (True, False):
        parsed = parse_response(text, think=think)
        assert all(a and a == a.strip() and "||" not in a for a in parsed.actions)
        assert isinstance(parsed.thought, str) and isinstance(parsed.well_formed, bool)
        if parsed.well_formed:
            assert text.strip().startswith(
                "<think>" if think else "<answer>"
            ) and text.strip().endswith("</answer>")


@cache
def shared_env(spec):
    return make_env(spec, max_actions=6)


def assert_legal(env):
    assert 0 <= env.num_actions <= env.max_actions
    if isinstance(env, grids.FrozenLake):
        assert 0 <= env.player < env.size**2
        assert env.terminated == (env.player in env.holes or env.player == env.goal)
    if isinstance(env, grids.Sokoban):
        assert env.player in env.floor and env.player not in env.boxes
        assert len(set(env.boxes)) == len(env.boxes) == env.num_boxes and env.floor.issuperset(
            env.boxes
        )


@settings(
    max_examples=10_000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    ANY_TEXT,
    st.sampled_from(
        list(product(("bandit", LAKE_V1, SIMPLE, LARGER), range(20), WRAPS, (True, False)))
    ),
)
def test_any_text_parses_and_plays(text, setting):
    spec, index, wrap, think = setting
    env = shared_env(spec)
    episode = Episode(env, Config(think=think, max_turns=2, actions_per_turn=3))
    episode.reset(index, split="eval")
    for response in (wrap.format(text), text):
        assert_parses(response)
        before = env.num_actions
        outcome = episode.step(response)
        assert_legal(env)
        assert outcome.info["num_actions"] == env.num_actions - before <= 3
        assert 0 <= outcome.info["statements_true"] <= outcome.info["statements_checked"]
        assert math.isfinite(outcome.reward) and episode.turn_idx <= 2
        assert outcome.status in (None, "success", "failure", "out_of_turns")
        assert (outcome.user == "") == (outcome.status is not None)
        if outcome.status is not None:
            break
    assert outcome.status is not None  # the second turn is the last


def test_long_responses_take_linear_time():
    # quadratic work on 100,000 repeats would take minutes
    many = 100_000
    assert parse_response("<think>a</think><answer>" + "||" * many + "</answer>") == ("a", [], True)
    assert (
        len(parse_response("<think>a</think><answer>" + "Up||" * many + "</answer>").actions)
        == many
    )
    for piece in ("<think>", "<think></think>", "<answer>", "</answer>", "<think></think><answer>"):
        for think in (True, False):
            parsed = parse_response(piece * many, think=think)
            assert parsed.actions == [] and not parsed.well_formed
    reply = "<think>" + "Box 1 up. " * many + "</think><answer>" + "Up||" * many + "</answer>"
    outcome = episode_in(ROOM_BOARD).step(reply)
    assert outcome.info["num_actions"] == 5 and outcome.info["statements_true"] == many


# ---------- errors


@pytest.mark.parametrize(
    "spec, words",
    [
        ("frozenlak", ["unknown environment 'frozenlak'", "did you mean frozenlake?"]),
        ("zzz", ["unknown environment 'zzz'", "bandit, frozenlake, sokoban"]),
        (
            "frozenlake:sucess_rate=1",
            ["unknown option 'sucess_rate'", "frozenlake has success_rate"],
        ),
        ("bandit:size=4", ["unknown option 'size'", "bandit has pair"]),
        ("sokoban:size=big", ["size wants int", "got 'big' (str)"]),
        ("sokoban:size=6.5", ["size wants int", "got 6.5 (float)"]),
        ("sokoban:size", ["size wants int", "got ''"]),
        ("frozenlake:success_rate=often", ["success_rate wants float", "got 'often'"]),
        (
            "frozenlake:success_rate=1.5",
            ["0 < success_rate <= 1", "got size=4, frozen_prob=0.8, success_rate=1.5"],
        ),
        ("frozenlake:success_rate=nan", ["success_rate wants float", "got 'nan'"]),
        ("frozenlake:size=10", ["frozenlake wants size", "got size=10"]),
        ("sokoban:size=4", ["sokoban wants size", "got size=4"]),
        ("sokoban:boxes=0", ["sokoban wants", "got size=6, boxes=0"]),
        ("sokoban:symbols=emoji", ["symbols must be one of default, newvocab", "got 'emoji'"]),
        ("bandit:pair=foo", ["pair must be one of phoenix", "got 'foo'"]),
    ],
)
def test_make_env_errors(spec, words):
    with pytest.raises((ValueError, TypeError)) as error:
        make_env(spec)
    for word in words:
        assert word in str(error.value)


def test_training_leaves_out_what_any_environment_of_the_run_reserves():
    easy, hard = ("frozenlake:size=3,frozen_prob=0.9", "frozenlake:size=3,frozen_prob=0.8")
    reserved = {i for part in envs.reserved_instances(hard).values() for i in part}
    drawn = [
        [envs.draw_instance(easy, (0, i), "train", others) for i in range(300)]
        for others in ((), (hard,))
    ]
    assert len(reserved.intersection(drawn[0])) > 10 and not reserved.intersection(drawn[1])
    assert sum(a == b for a, b in zip(*drawn, strict=True)) == sum(
        i not in reserved for i in drawn[0]
    )
    for text in (f"{easy} @5 > {hard}", f"{easy} + 2*{hard}"):
        assert make_episode(Config(env=text), easy).env.also_reserved == (easy, hard)
    assert make_episode(Config(env=easy, eval_env=hard)).env.also_reserved == (easy, hard)


def test_make_env_options():
    env = make_env("sokoban:size=8,boxes=2,search_depth=10", observation="coord", max_actions=7)
    assert (env.size, env.num_boxes, env.search_depth, env.max_actions) == (8, 2, 10, 7)
    assert env.observation_mode == "coord"
    with pytest.raises(
        ValueError, match="observation must be one of grid, coord, relations, got 'pixels'"
    ):
        make_env("bandit", observation="pixels")
