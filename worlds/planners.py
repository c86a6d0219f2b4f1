"""Exact planners for the grid worlds: pure functions, without random draws.

- `lake_paths`: the safest of the shortest paths on a lake, by breadth-first search.
- `lake_plans`: the optimal player of FrozenLake, by value iteration over turns.
- `sokoban_solution`: the optimal player of Sokoban, by breadth-first search.

Cells are numbered row by row: cell = row * size + column.
"""

from collections import deque
from functools import lru_cache
from itertools import product

import numpy as np

ACTION_COST = 1e-6  # a shorter plan is better than a longer one with the same success rate
FALL_VALUE = -1e-4  # value of a hole: running out of turns is a little better than falling
TOLERANCE = 1e-9  # plans are equally good if their values differ by less than this


# ---------- FrozenLake


LAKE_DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (rows, columns) of Left, Down, Right, Up


def lake_neighbour(size: int, cell: int, direction: int) -> int:
    """The cell next to `cell` in a direction, 0..3 for Left, Down, Right, Up.

    A move over the border of the board stays in `cell`."""
    row, col = divmod(cell, size)
    delta_row, delta_col = LAKE_DELTAS[direction]
    row = min(max(row + delta_row, 0), size - 1)
    col = min(max(col + delta_col, 0), size - 1)
    return row * size + col


@lru_cache(maxsize=4096)
def lake_paths(size: int, holes: frozenset[int], goal: int) -> dict[int, tuple[int, ...]]:
    """For every cell with a path to the goal, the moves of the safest shortest path.

    The risk of a path is the number of holes into which its moves could slip. Of several shortest
    paths, this takes the one with the lowest risk. Ties: the order Left, Down, Right, Up.
    """
    paths = {}
    risks = {}
    queued = {goal}
    queue = deque([goal])
    while queue:  # breadth-first search from the goal
        cell = queue.popleft()
        near = [lake_neighbour(size, cell, move) for move in range(4)]
        options = [(0, ())] if cell == goal else []
        for move, neighbour in enumerate(near):
            if neighbour in paths:  # reached earlier, so it is nearer to the goal
                sides = (near[(move - 1) % 4], near[(move + 1) % 4])
                risk = risks[neighbour] + sum(side in holes for side in sides)
                options.append((risk, (move, *paths[neighbour])))
        risks[cell], paths[cell] = min(options)
        new = set(near) - queued - holes
        queued |= new
        queue.extend(new)
    return paths


def lake_transitions(
    size: int, holes: frozenset[int], goal: int, success_rate: float
) -> np.ndarray:
    """P(next cell | cell, move): array (4, cells, cells). The player never leaves goal or holes."""
    num_cells = size**2
    side_prob = (1.0 - success_rate) / 2
    slips = ((-1, side_prob), (0, success_rate), (1, side_prob))
    transitions = np.zeros((4, num_cells, num_cells))  # (move, from, to)
    for move, cell, (turn, prob) in product(range(4), range(num_cells), slips):
        if cell == goal or cell in holes:
            after = cell
        else:
            after = lake_neighbour(size, cell, (move + turn) % 4)
        transitions[move, cell, after] += prob
    return transitions


@lru_cache(maxsize=1024)
def lake_plans(
    size: int,
    holes: frozenset[int],
    goal: int,
    success_rate: float,
    max_actions: int,
    budget: int,
) -> np.ndarray:
    """The optimal moves of a turn, for every number of turns left, cell and number of actions left.

    Value iteration over turns, where a turn commits to a sequence q of 1 to `max_actions` moves:
        V_t(cell, a) = max over q of E[V_{t-1}(next cell, a - |q|)] - ACTION_COST * |q|
    Goal and holes are absorbing. With one action a turn and as many turns as actions, this is
    optimal closed-loop control. Ties: the shortest sequence, then Left, Down, Right, Up.

    Args:
        max_actions: the longest sequence of one turn.
        budget: actions of a whole game.
    Returns:
        plans[turns left, cell, actions left], int64 (budget + 1, cells, budget + 1): the sequence
        as a number that `decode_moves` reads.
    """
    num_cells = size**2
    single_moves = lake_transitions(size, holes, goal, success_rate)
    sequences = move_sequences(single_moves, min(max_actions, budget))
    value = np.zeros((num_cells, budget + 1))  # (cell, actions left), with no turns left
    value[list(holes)] = FALL_VALUE
    value[goal] = 1.0
    alive = np.ones((num_cells, 1))
    alive[[goal, *holes]] = 0.0

    plans = np.zeros((budget + 1, num_cells, budget + 1), dtype=np.int64)
    for turns_left in range(1, budget + 1):
        best = np.full_like(value, -1.0)
        plan = plans[turns_left]  # (cell, actions left), a view
        for length, (codes, matrices) in enumerate(sequences, start=1):
            # (sequence, from, actions left afterwards)
            expected = (matrices @ value)[:, :, : budget + 1 - length]
            scores = expected - ACTION_COST * length * alive
            top_scores = scores.max(axis=0)
            top_codes = codes[scores.argmax(axis=0)]
            better = top_scores > best[:, length:] + TOLERANCE
            best[:, length:] = np.where(better, top_scores, best[:, length:])
            plan[:, length:] = np.where(better, top_codes, plan[:, length:])
        value = np.maximum(best, value)
    return plans


def move_sequences(
    single_moves: np.ndarray, max_length: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """All sequences of 1 to `max_length` moves.

    Args:
        single_moves: transition matrices of the four moves, (4, from, to).
    Returns:
        For each length j the codes of the 4**j sequences, (4**j,), and their transition matrices,
        (4**j, from, to).
    """
    num_cells = single_moves.shape[-1]
    digits = np.arange(1, 5)
    codes = digits
    matrices = single_moves
    sequences = [(codes, matrices)]
    for _ in range(max_length - 1):
        codes = (codes[:, None] * 5 + digits).reshape(-1)
        matrices = (matrices[:, None] @ single_moves).reshape(-1, num_cells, num_cells)
        sequences.append((codes, matrices))
    return sequences


def decode_moves(code: int) -> list[int]:
    """Decode a plan of `lake_plans`: each digit 1..4 in base 5 is a move; the code 0 has no moves.

    >>> decode_moves(2 * 5 + 4)
    [1, 3]
    """
    digits = np.base_repr(code, base=5) if code else ""
    return [int(digit) - 1 for digit in digits]


# ---------- Sokoban


def sokoban_move(
    floor: frozenset[int], player: int, boxes: tuple[int, ...], delta: int
) -> tuple[int, tuple[int, ...]] | None:
    """(player, boxes) after a step or a push by `delta`; None if it is blocked.

    Boxes stay sorted.
    """
    ahead = player + delta
    beyond = ahead + delta
    if ahead not in floor:
        return None
    if ahead not in boxes:
        return ahead, boxes
    if beyond not in floor or beyond in boxes:
        return None
    pushed = sorted(beyond if box == ahead else box for box in boxes)
    return ahead, tuple(pushed)


@lru_cache(maxsize=16384)
def sokoban_solution(
    floor: frozenset[int],
    targets: frozenset[int],
    player: int,
    boxes: tuple[int, ...],
    deltas: tuple[int, ...],
) -> tuple[int, ...] | None:
    """A shortest sequence of moves that puts all boxes on targets, by breadth-first search.

    Returns: indices into `deltas`, or None if there is no solution. Ties: the order of `deltas`.
    """
    start = (player, boxes)
    paths = {start: ()}
    queue = deque([start])
    while queue:
        player, boxes = state = queue.popleft()
        if targets.issuperset(boxes):
            return paths[state]
        for move, delta in enumerate(deltas):
            after = sokoban_move(floor, player, boxes, delta)
            if after is not None and after not in paths:
                paths[after] = (*paths[state], move)
                queue.append(after)
    return None
