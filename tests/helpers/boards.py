"""Helpers for tests of environments."""

from configurator import Config

import hashlib
import math
import re
from functools import cache
from itertools import product

import numpy as np

import envs
from dialogue import Episode, format_response
from envs import make_env

LAKE_V1 = "frozenlake:frozen_prob=0.8,success_rate=0.3333333333333333"
LAKE_V2 = "frozenlake:frozen_prob=0.9,success_rate=0.8"
LAKE_SURE = "frozenlake:frozen_prob=0.9,success_rate=1"
SIMPLE = "sokoban"
LARGER = "sokoban:size=8,boxes=2,search_depth=10"
NEWVOCAB = "sokoban:search_depth=30,symbols=newvocab"
SMALL_COUNTDOWN = "countdown:numbers=3,largest=9"

# O is a hole in LAKE_BOARD and a target in ROOM_BOARD. An instance stores a cell as a number. The
# cells of a board are numbered row by row, from 0.
LAKE_BOARD = "P_O_\n_O__\n___G\nO___"
ROOM_BOARD = "######\n#O___#\n#_X#_#\n#_P__#\n#____#\n######"


# ---------- environments with boards drawn by hand


def lake_instance(board):
    rows = board.split("\n")
    cells = "".join(rows)
    holes = tuple(cell for cell, symbol in enumerate(cells) if symbol == "O")
    return ("frozenlake", len(rows), holes, cells.index("P"), cells.index("G"))


def room_instance(board, symbols="default"):
    rows = board.split("\n")
    cells = "".join(rows)

    def where(letters):
        return tuple(cell for cell, symbol in enumerate(cells) if symbol in letters)

    (player,) = where("PS")
    floor, targets, boxes = where("_O√XPS"), where("O√S"), where("X√")
    return ("sokoban", symbols, len(rows), floor, targets, player, boxes)


def on_lake(board, *, success_rate=1, **options):
    size = len(board.split("\n"))
    env = make_env(f"frozenlake:size={size},success_rate={success_rate}", **options)
    env.start(lake_instance(board), [0])
    return env


def in_room(board, **options):
    size = len(board.split("\n"))
    boxes = board.count("X") + board.count("√")
    env = make_env(f"sokoban:size={size},boxes={boxes}", **options)
    env.start(room_instance(board), [0])
    return env


def episode_in(board, *, max_actions=10, **settings):
    """Return an episode on `board` before its first turn."""
    make = in_room if "#" in board else on_lake
    env = make(board, max_actions=max_actions)
    episode = Episode(env, Config(**settings))
    episode.open(env.observe())
    return episode


def raw_draws(spec, count, seed=0):
    """Return an environment and `count` instances that it draws.

    An instance may be drawn twice, and may belong to the split "eval" or "heldout".
    """
    env = make_env(spec)
    rng = np.random.default_rng([seed, 4])
    return env, [env.draw(rng) for _ in range(count)]


def optimal_lengths(spec, count):
    env, instances = raw_draws(spec, count)
    lengths = []
    for instance in instances:
        env.start(instance, [0])
        lengths.append(env.optimal_length())
    return np.array(lengths)


# ---------- symbols as the system message states them


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
    patterns = SOKOBAN_LEGEND if spec.startswith("sokoban") else LAKE_LEGEND
    system = Episode(make_env(spec), Config()).system()
    return {meaning: re.search(pattern, system).group(1) for meaning, pattern in patterns.items()}


def symbols_seen(spec, seeds):
    env = make_env(spec, max_actions=60)
    rng = np.random.default_rng(7)
    seen = set()
    for seed in range(seeds):
        seen |= set(env.reset(seed))
        while not env.terminated and env.actions_left:
            plan = env.plan(1, 5)
            planned = plan and rng.random() < 0.5
            step = env.step(plan[0] if planned else env.actions[rng.integers(4)])
            if not step.terminated:
                seen |= set(step.observation)
    return seen - {"\n"}


def neighbours(board, symbol, border):
    """Return the symbols above, below, left and right of `symbol`.

    A place outside the board has the symbol `border`.
    """
    lines = board.split("\n")
    edge = border * (len(lines[0]) + 2)
    rows = [edge, *(border + line + border for line in lines), edge]
    row, col = next((i, line.index(symbol)) for i, line in enumerate(rows) if symbol in line)
    return [rows[row - 1][col], rows[row + 1][col], rows[row][col - 1], rows[row][col + 1]]


def direction_words(board, start, end):
    """Return the way from symbol `start` to symbol `end`, such as '2 down 1 right' or 'here'."""

    def place(symbol):
        lines = board.split("\n")
        return next((i, line.index(symbol)) for i, line in enumerate(lines) if symbol in line)

    (row, col), (end_row, end_col) = place(start), place(end)
    words = []
    if end_row > row:
        words.append(f"{end_row - row} down")
    if end_row < row:
        words.append(f"{row - end_row} up")
    if end_col > col:
        words.append(f"{end_col - col} right")
    if end_col < col:
        words.append(f"{col - end_col} left")
    return " ".join(words) or "here"


# ---------- players, and comparisons with the instances of RAGEN's generator


def random_player(seed):
    keys = iter(np.random.default_rng(seed).integers(4, size=10**6).tolist())
    return lambda env: env.actions[next(keys)]


def greedy_player(env):
    return env.greedy()


def optimal_player(env):
    return env.plan(1, env.actions_left)[0]


def success_rate(env, instance, choose, games, seed):
    wins = 0
    for game in range(games):
        env.start(instance, [seed, game])
        over = False
        while not over:
            step = env.step(choose(env))
            over = step.terminated or step.truncated
        assert env.num_actions <= 10
        wins += step.success
    return wins / games


def assert_mean(values, reference, reference_values=256):
    """Assert that the mean of `values` is close to `reference`.

    The difference may be at most 3.5 times its standard error. `reference` is a mean over
    `reference_values` instances of RAGEN's generator. The std over these instances is unknown, so
    the std of `values` takes its place.
    """
    values = np.asarray(values, dtype=float)
    tolerance = 3.5 * values.std(ddof=1) * math.sqrt(1 / len(values) + 1 / reference_values)
    tolerance = max(tolerance, 0.0005)  # the rounding error of a `reference` such as 0.192
    assert abs(values.mean() - reference) <= tolerance, (values.mean(), reference, tolerance)


def assert_fraction(hits, reference, reference_values=256):
    """Assert that the share of 1s in `hits` is close to `reference`.

    The difference may be at most 3.5 times its standard error. If all `hits` are equal, the std of
    `hits` alone is 0. So the std is sqrt(p (1 - p)), where p is the share of 1s among `hits` and
    the values of RAGEN's instances together.
    """
    hits = np.asarray(hits, dtype=float)
    n, m = len(hits), reference_values
    pooled = (hits.sum() + m * reference) / (n + m)
    tolerance = max(3.5 * math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m)), 0.0005)
    assert abs(hits.mean() - reference) <= tolerance, (hits.mean(), reference, tolerance)


# ---------- the same prompts in every process


def prompt_digest():
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
