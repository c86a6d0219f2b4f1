"""Rubik: the cube of 2x2x2 pieces, as in RAGEN-2, with an exact planner.

Deliberate differences from RAGEN-2:
- The actions turn three faces only. Turning one of the other faces equals turning the opposite
  face and rotating the whole cube.
- Every game gives the six faces their colours at random, so that a small model cannot learn the
  cubes by heart. The same cube in other colours counts as another game. So a cube of the
  evaluation can occur in training, in other colours.
"""

from configurator import UserError

from functools import lru_cache

import numpy as np

from envs import Env, Move

FACES = "URFDLB"  # up (its stickers have the places 0-3), right (4-7), front, down, left, back
# A cube is a text of 24 letters, one for each place of a sticker. The letter of a place names a
# face. When the cube is solved, the sticker that is now in this place lies on the named face.
SOLVED = "".join(face * 4 for face in FACES)
COLOURS = "123456"
# Maps a face to the cycles of its clockwise turn. Each cycle is a list of places. The turn moves
# each sticker to the next place of its cycle. The sticker in the last place moves to the first
# place. The places of a face are numbered row by row. The back face is seen from behind. The down
# face is seen from below, with its front edge on top.
CYCLES = {
    "U": ((0, 1, 3, 2), (8, 16, 20, 4), (9, 17, 21, 5)),
    "R": ((4, 5, 7, 6), (3, 20, 15, 11), (1, 22, 13, 9)),
    "F": ((8, 9, 11, 10), (2, 4, 13, 19), (3, 6, 12, 17)),
}
# `near_solved` returns all cubes that are at most this many turns from SOLVED. These are 11,913 of
# the 3,674,160 cubes.
NEAR = 6
MAX_DISTANCE = 14  # every cube can be solved by at most this many quarter turns


def _sources() -> dict[str, tuple[int, ...]]:
    """Return {action: sources}.

    After the action, place i (0 to 23) has the sticker that was in place sources[i] before.
    """
    sources = {}
    for face, cycles in CYCLES.items():
        clockwise = list(range(24))
        counterclockwise = list(range(24))
        for cycle in cycles:
            for place, next_place in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                clockwise[next_place] = place
                counterclockwise[place] = next_place
        sources[face] = tuple(clockwise)
        sources[f"{face}'"] = tuple(counterclockwise)
    return sources


SOURCES = _sources()


class Rubik(Env):
    """Turn faces until every face has one colour.

    At the start, 1 to `scramble` random turns have scrambled the cube.
    """

    actions = tuple(SOURCES)

    def __init__(self, *, scramble: int = 3, **common):
        super().__init__(**common)
        if not 1 <= scramble <= MAX_DISTANCE:
            raise UserError(f"rubik needs scramble 1..{MAX_DISTANCE}, got {scramble}")
        self.scramble = scramble

    def draw(self, rng: np.random.Generator) -> tuple:
        colours = "".join(rng.permutation(list(COLOURS)).tolist())
        count = int(rng.integers(1, self.scramble + 1))
        cube = SOLVED
        while cube == SOLVED:
            for action in rng.choice(self.actions, count).tolist():
                cube = turn(cube, action)
        return ("rubik", colours, cube)

    def _start(self, instance: tuple) -> None:
        _, self.colours, self.cube = instance

    def _move(self, index: int) -> Move:
        self.cube = turn(self.cube, self.actions[index])
        success = self.cube == SOLVED
        return Move(float(success), terminated=success, success=success, effective=True)

    # ---------- texts

    def observe(self) -> str:
        seen = self.cube.translate(str.maketrans(FACES, self.colours))
        faces = [f"{face}:{seen[4 * i : 4 * i + 4]}" for i, face in enumerate(FACES)]
        return " ".join(faces)

    def rules(self) -> str:
        return (
            "Turn the faces of a 2x2 cube until each has one colour. U up, R right, F front, "
            "D down, L left, B back; four colours each, row by row. U turns a face clockwise, "
            "U' counterclockwise. Reward 1."
        )

    def statements(self) -> list[str]:
        way = shortest_solution(self.cube)
        return [f"Away {len(way)}.", f"Way {' '.join(way) or 'none'}."]

    # ---------- players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return list(shortest_solution(self.cube)[:max_actions])

    def greedy(self) -> str:
        """Choose the action that gives the highest `count_pairs`; of several, choose the first."""
        return max(self.actions, key=lambda action: count_pairs(turn(self.cube, action)))


def turn(cube: str, action: str) -> str:
    return "".join(map(cube.__getitem__, SOURCES[action]))


def count_pairs(cube: str) -> int:
    """Return how many pairs of adjacent stickers on the same face have one colour (24 at most)."""
    total = 0
    for start in range(0, 24, 4):
        a, b, c, d = cube[start : start + 4]
        total += (a == b) + (a == c) + (b == d) + (c == d)
    return total


@lru_cache(maxsize=1)
def near_solved() -> dict[str, int]:
    """Return {cube: length of its shortest solution} for all cubes up to NEAR turns from SOLVED."""
    distances = {SOLVED: 0}
    queue = [SOLVED]
    for cube in queue:  # the loop also visits the cubes that it appends
        if distances[cube] == NEAR:
            break
        for action in SOURCES:
            after = turn(cube, action)
            if after not in distances:
                distances[after] = distances[cube] + 1
                queue.append(after)
    return distances


@lru_cache(maxsize=65536)
def shortest_solution(cube: str) -> tuple[str, ...]:
    """Return the actions of a shortest solution.

    The search takes up to a second for a solution of 14 turns, and milliseconds for 10 turns.
    """
    distances = near_solved()
    queue = [(cube, ())]
    seen = {cube}
    for found, path in queue:
        if found in distances:
            break
        for action in SOURCES:
            after = turn(found, action)
            if after not in seen:
                seen.add(after)
                queue.append((after, (*path, action)))
    while found != SOLVED:
        nearer = [a for a in SOURCES if distances.get(turn(found, a)) == distances[found] - 1]
        path = (*path, nearer[0])
        found = turn(found, nearer[0])
    return path
