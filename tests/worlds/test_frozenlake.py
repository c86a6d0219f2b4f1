"""Tests of FrozenLake against gymnasium, RAGEN's boards, slow planners and hand-drawn boards."""

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
from boards import (
    LAKE_BOARD,
    LAKE_SURE,
    LAKE_V1,
    LAKE_V2,
    assert_fraction,
    assert_mean,
    direction_words,
    greedy_player,
    legend,
    neighbours,
    on_lake,
    optimal_lengths,
    optimal_player,
    random_player,
    raw_draws,
    success_rate,
    symbols_seen,
)
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from dialogue import check_thought
from envs import Step, make_env
from worlds import planners

MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}  # (row, column) steps


def test_a_plan_is_a_number_in_base_5():
    assert planners.decode_moves(0) == []
    # In base 5, 71 is written 241, because 71 = (2 * 5 + 4) * 5 + 1. Each digit minus 1 is the
    # index of an action.
    assert planners.decode_moves(71) == [1, 3, 0]


# ---------- transitions


class Stub:
    def __init__(self, value):
        self.value = value

    def random(self):
        return self.value


def move_outcome(env, cell, action, u):
    env.player, env.rng = cell, Stub(u)
    move = env._move(action)
    assert move.success == (env.player == env.goal)
    assert move.effective == (env.player != cell)
    return env.player, move.reward, move.terminated


def our_transitions(env, cell, action):
    """Return a dict that maps the outcomes of a move in our environment to their probabilities.

    An outcome is (next cell, reward, terminated). The environment draws one u in [0, 1) for a move.
    We divide [0, 1) into three bands. All u in a band must give the same outcome. With p =
    `success_rate`, the widths of the bands are (1-p)/2, (1-p)/2 and p.
    """
    side = (1 - env.success_rate) / 2
    total = Counter()
    for low, high in [(0.0, side), (side, 2 * side), (2 * side, 1.0)]:
        if high - low < 1e-9:
            continue
        inside = (low + 1e-9, (low + high) / 2, high - 1e-9)
        outcomes = {move_outcome(env, cell, action, u) for u in inside}
        assert len(outcomes) == 1
        total[outcomes.pop()] += high - low
    return dict(total)


def gymnasium_transitions(instance, success_rate):
    _, size, holes, start, goal = instance
    letters = ["F"] * size**2
    letters[start], letters[goal] = "S", "G"
    for hole in holes:
        letters[hole] = "H"
    rows = ["".join(letters[row * size : (row + 1) * size]) for row in range(size)]
    return FrozenLakeEnv(desc=rows, is_slippery=True, success_rate=success_rate).P


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8, 1.0])
def test_transitions_equal_gymnasium(success_rate):
    env, instances = raw_draws(f"frozenlake:frozen_prob=0.7,success_rate={success_rate}", 20)
    assert env.success_rate == success_rate
    for instance in instances:
        _, size, holes, _, goal = instance
        reference = gymnasium_transitions(instance, success_rate)
        env.start(instance, [0])
        alive = set(range(size * size)) - {*holes, goal}
        for cell, action in product(alive, range(4)):
            expected = Counter()
            for prob, after, reward, terminated in reference[cell][action]:
                expected[after, float(reward), bool(terminated)] += prob
            expected = {outcome: prob for outcome, prob in expected.items() if prob > 0}
            assert our_transitions(env, cell, action) == pytest.approx(expected, abs=1e-12)


def test_slip_frequencies():
    # The player moves "Up" 4000 times from the middle of 3x3 ice. With success_rate=0.8, we expect
    # 3200 moves up, 400 moves left and 400 moves right. The standard deviation is 25.3 for up, and
    # 19.0 for each of left and right.
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


def test_the_rules_tell_the_probability_of_a_slip():
    for rate, sentence in ((0.8, "probability 0.2."), (1 / 3, "probability 0.6667.")):
        rules = make_env(f"frozenlake:success_rate={rate}").rules()
        assert f" A move slips to one side with {sentence}" in rules
    assert "slips" not in make_env("frozenlake:success_rate=1").rules()


def test_a_slip_names_the_move_that_took_place():
    env = make_env("frozenlake:size=3,success_rate=0.4")
    env.start(("frozenlake", 3, (), 4, 8), [11])
    slips = Counter()
    for _ in range(200):
        env.player, env.num_actions, env.terminated = 4, 0, False
        step = env.step("Up")
        assert step.slipped_to == {1: "", 3: "Left", 5: "Right"}[env.player]
        slips[step.slipped_to] += 1
    assert min(slips.values()) > 40 and len(slips) == 3
    env.terminated = True
    assert env.step("Up").slipped_to == ""


def test_ends_by_hand():
    env = on_lake(LAKE_BOARD)
    # the border stops the move
    assert env.step("Up") == Step(
        LAKE_BOARD, 0.0, False, False, success=False, valid=True, effective=False
    )
    step = env.step("right")
    assert step.observation == "_PO_\n_O__\n___G\nO___" and step.effective
    assert env.step("Right") == Step(
        "__X_\n_O__\n___G\nO___", 0.0, True, False, success=False, valid=True, effective=True
    )
    before = env.num_actions
    step = env.step("Left")
    assert step.terminated and not step.valid and env.num_actions == before

    env = on_lake(LAKE_BOARD)
    rewards = [env.step(action).reward for action in ("Down", "Down", "Right", "Right")]
    assert rewards == [0.0] * 4
    assert env.step("Right") == Step(
        "__O_\n_O__\n___√\nO___", 1.0, True, False, success=True, valid=True, effective=True
    )


# ---------- distributions compared with those of RAGEN's generator


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec, random, greedy, optimal",
    [
        (LAKE_V1, 0.213, 0.354, 0.483),
        (LAKE_V2, 0.246, 0.812, 0.944),
        (LAKE_SURE, 0.239, 0.863, 1.0),
    ],
)
def test_reference_players(spec, random, greedy, optimal):
    env, instances = raw_draws(spec, 500)
    players = [(random_player(1), random), (greedy_player, greedy), (optimal_player, optimal)]
    for choose, reference in players:
        rates = [success_rate(env, instance, choose, 4, i) for i, instance in enumerate(instances)]
        assert_mean(rates, reference)


def test_shortest_paths():
    for spec, mean in [(LAKE_V1, 2.84), (LAKE_V2, 2.75)]:
        lengths = optimal_lengths(spec, 2000)
        assert_mean(lengths, mean)
        assert_fraction(lengths <= 1, 0.27)
        assert_fraction(lengths <= 2, 0.47)


# ---------- plans compared with slow recursions


def lake_dynamics(instance, success_rate):
    _, size, holes, _, goal = instance
    sides = {
        "Left": ("Up", "Down"),
        "Right": ("Up", "Down"),
        "Up": ("Left", "Right"),
        "Down": ("Left", "Right"),
    }

    def neighbour(cell, action):
        row, col = cell // size + MOVES[action][0], cell % size + MOVES[action][1]
        return row * size + col if 0 <= row < size and 0 <= col < size else cell

    def after(cell, action):
        if cell == goal or cell in holes:
            return {cell: 1.0}
        total = Counter({neighbour(cell, action): success_rate})
        for side in sides[action]:
            total[neighbour(cell, side)] += (1 - success_rate) / 2
        return total

    return after, {goal, *holes}


def after_sequence(after, cell, actions):
    spread = {cell: 1.0}
    for action in actions:
        new = Counter()
        for before, prob in spread.items():
            for end, p in after(before, action).items():
                new[end] += prob * p
        spread = new
    return spread


def achieved(env, instance, k, turns, actions):
    """Return the exact success probability of playing `env.plan(k, turns_left)` in each turn."""
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
            prob * value(end, turns - 1, actions - len(path)) for end, prob in spread.items()
        )

    return value(instance[3], turns, actions)


def best_possible(instance, success_rate, k, turns, actions):
    """Return the success probability of the best player.

    In each turn, the player chooses 1 to k actions at once, before it sees where they lead.
    """
    after, absorbing = lake_dynamics(instance, success_rate)
    sequences = [q for n in range(1, k + 1) for q in product(MOVES, repeat=n)]

    @cache
    def spread(cell, sequence):
        return after_sequence(after, cell, sequence)

    @cache
    def value(cell, turns, actions):
        if cell in absorbing or turns == 0 or actions == 0:
            return float(cell == instance[4])
        best = 0.0
        for sequence in sequences:
            left = actions - len(sequence)
            if left >= 0:
                ends = spread(cell, sequence).items()
                best = max(best, sum(prob * value(end, turns - 1, left) for end, prob in ends))
        return best

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
    assert min(gains) > -1e-5 and max(gains) > 0.01
    env, instances = raw_draws("frozenlake:size=3,success_rate=0.5", 3, seed=5)
    for instance in instances:
        best = best_possible(instance, 0.5, 2, 5, 10)
        assert achieved(env, instance, 2, 5, 10) == pytest.approx(best, abs=1e-5)


def test_plan_by_hand():
    # without slips, only the shortest path wins in one turn of five actions
    env = on_lake(LAKE_BOARD)
    assert env.optimal_length() == 5
    assert env.plan(5, 1) == ["Down", "Down", "Right", "Right", "Right"]
    # The board is a corridor S _ G above a row of holes. The success rate is 0.5. From cell 0, the
    # move Right goes right with probability 1/2, up (the player stays) with 1/4 and down (into a
    # hole) with 1/4. In one turn of two actions, Right Right reaches the goal with probability
    # 1/2 * 1/2. Up Right is worse, because Up reaches cell 1 only by a slip, with probability 1/4.
    instance = ("frozenlake", 3, (3, 4, 5), 0, 2)
    env = make_env("frozenlake:size=3,success_rate=0.5", max_actions=2)
    env.start(instance, [0])
    assert env.plan(2, 1) == ["Right", "Right"]
    assert achieved(env, instance, 2, 1, 2) == pytest.approx(0.25)
    assert best_possible(instance, 0.5, 2, 1, 2) == pytest.approx(0.25)


def test_greedy_by_hand():
    # The greedy player goes 2 down, then 3 right, and ignores holes.
    env = on_lake(LAKE_BOARD)
    path = []
    while not env.terminated:
        path.append(env.greedy())
        env.step(path[-1])
    assert path == ["Down", "Down", "Right", "Right", "Right"]


def test_demonstrated_moves_follow_a_random_shortest_path():
    env = on_lake("P__\n_O_\n__G")
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        seen.add(tuple(env.demonstrate(9, rng)))
        assert len(env.demonstrate(3, rng)) == 3
    assert seen == {("Right", "Right", "Down", "Down"), ("Down", "Down", "Right", "Right")}


# ---------- what the policy reads


def last_line(board):
    return on_lake(board, observation="relations").observe().split("\n")[-1]


def test_observation_modes_by_hand():
    # The player is at (1,1). The hole at (1,3) is two cells to the right. The hole at (2,2) is the
    # next cell on the diagonal.
    text = on_lake(LAKE_BOARD, observation="relations").observe()
    relations = "Away left edge, up edge. Goal 2 down ice ice, 3 right ice hole, corner hole."
    assert text == f"{LAKE_BOARD}\n{relations}"
    text = on_lake(LAKE_BOARD, observation="coord").observe()
    assert text == LAKE_BOARD + "\nPlayer (1,1). Goal (3,4). Holes (1,3) (2,2) (4,1)."
    assert on_lake(LAKE_BOARD).observe() == LAKE_BOARD
    relations = "Away left edge, up edge. Goal 3 down ice ice, 1 right ice ice, corner ice."
    assert last_line("P___\n____\n____\n_G_O") == relations
    assert last_line("PG\n_O").endswith("up edge. Goal 1 right goal edge.")
    no_holes = on_lake("_G__\n____\n_P__\n____", observation="coord").observe()
    assert no_holes.split("\n")[-1] == "Player (3,2). Goal (1,2). Holes none."


@pytest.mark.parametrize(
    "board, moves, facts",
    [
        (
            LAKE_BOARD,
            [],
            ["Next edge ice ice edge.", "Goal 2 down 3 right.", "Way down down right right right."],
        ),
        (  # the player is at (1,2), with holes below and to the right
            LAKE_BOARD,
            ["Right"],
            # "Next" says what is to the left, below, to the right and above, in this order
            ["Next ice hole hole edge.", "Goal 2 down 2 right.", "Way left down down right right."],
        ),
        (  # the way goes up first, because a move left could slip into the hole on slippery ice
            "G__\n_P_\n_O_",
            [],
            ["Next ice hole ice ice.", "Goal 1 up 1 left.", "Way up left."],
        ),
        ("PG\n_O", [], ["Next edge ice goal edge.", "Goal 1 right.", "Way right."]),
    ],
)
def test_statements_by_hand(board, moves, facts):
    env = on_lake(board)
    for move in moves:
        env.step(move)
    assert env.statements() == facts


def safest_way(board):
    """Among the shortest paths from P to G, return the moves of the path with the lowest risk.

    The risk counts the holes beside each move, because the player can slip into these holes.
    """
    places = {}
    for row, line in enumerate(board.split("\n")):
        for col, symbol in enumerate(line):
            places[row, col] = symbol
    start = next(place for place, symbol in places.items() if symbol == "P")
    paths = [(0, [], start)]  # (risk, moves, cell)
    while True:
        done = [path for path in paths if places[path[2]] == "G"]
        if done:
            return min(done, key=lambda path: path[0])[1]
        longer = []
        for (risk, words, (row, col)), (name, (dr, dc)) in product(paths, MOVES.items()):
            if places.get((row + dr, col + dc), "O") == "O":
                continue
            sides = [(row + dc, col + dr), (row - dc, col - dr)]
            risk += sum(places.get(side) == "O" for side in sides)
            longer.append((risk, [*words, name.lower()], (row + dr, col + dc)))
        paths = longer


def test_statements_are_true_and_counted():
    rng = np.random.default_rng(0)
    env, instances = raw_draws(LAKE_V1, 60, seed=6)
    names = {" ": "edge", "_": "ice", "O": "hole", "G": "goal"}
    for instance in instances:
        env.start(instance, [1])
        for _ in range(int(rng.integers(4))):
            env.step(env.actions[rng.integers(4)])
        if env.terminated:
            continue
        board, facts = env.render(), env.statements()
        up, down, left, right = (names[symbol] for symbol in neighbours(board, "P", " "))
        assert facts == [
            f"Next {left} {down} {right} {up}.",
            f"Goal {direction_words(board, 'P', 'G')}.",
            f"Way {' '.join(safest_way(board)[:5])}.",
        ]
        assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))


def test_legend_is_that_of_the_boards():
    assert symbols_seen(LAKE_V1, seeds=20) == set(legend(LAKE_V1).values())


def test_legend_decodes_boards():
    means = {symbol: meaning for meaning, symbol in legend(LAKE_V1).items()}
    env = make_env(LAKE_V1)
    for seed in range(20):
        cells = [means[symbol] for symbol in env.reset(seed).replace("\n", "")]
        assert {cell for cell, meaning in enumerate(cells) if meaning == "hole"} == env.holes
        assert (cells.index("you"), cells.index("goal")) == (env.player, env.goal)
