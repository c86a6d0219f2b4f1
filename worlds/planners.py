"""Exact planners for FrozenLake and Sokoban, as pure functions.

Cells are numbered row by row: cell = row * size + column.
"""

from collections import deque
from functools import lru_cache
from itertools import product

import numpy as np

ACTION_COST = 1e-6  # value lost per move, so that the shortest of equally successful plans is best
FALL_VALUE = -1e-4  # value of a fall, a little worse than running out of turns (0)
TOLERANCE = 1e-9  # plans are equally good if their values differ by less than this


# ---------- FrozenLake


LAKE_DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # change of (row, column) by Left, Down, Right, Up


def lake_neighbour(size: int, cell: int, direction: int) -> int:
    """Return the cell next to `cell` in a direction: 0..3 for Left, Down, Right, Up.

    A direction out of the board gives `cell` itself."""
    row, col = divmod(cell, size)
    delta_row, delta_col = LAKE_DELTAS[direction]
    row = min(max(row + delta_row, 0), size - 1)
    col = min(max(col + delta_col, 0), size - 1)
    return row * size + col


@lru_cache(maxsize=4096)
def lake_paths(size: int, holes: frozenset[int], goal: int) -> dict[int, tuple[int, ...]]:
    """Return {cell: moves of a shortest path to the goal}, for all cells with a path.

    If a cell has several shortest paths, the function takes the path with the lowest risk.
    Each move of a path has a number of holes into which it could slip. The risk of the path is the
    sum of these numbers.
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
            if neighbour in paths:  # reached earlier, so the neighbour is nearer to the goal
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
    """Return P(next cell | cell, move) as an array (4 moves, cells, next cells).

    The goal and the holes are absorbing."""
    num_cells = size**2
    side_prob = (1.0 - success_rate) / 2
    slips = ((-1, side_prob), (0, success_rate), (1, side_prob))
    transitions = np.zeros((4, num_cells, num_cells))
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
    """For each (turns left, cell, actions left), return a code of the best moves for one turn.

    This is value iteration over turns. V_t(cell, a) is the value of `cell` if t turns and `a`
    actions are left. An action is one move. In a turn, the player commits to a sequence q of 1 to
    `max_actions` moves. |q| is the number of moves in q. If `a` actions are left, q has at most `a`
    moves. The recursion is:
        V_t(cell, a) = max over q of E[V_{t-1}(next cell, a - |q|)] - ACTION_COST * |q|
    If this maximum is below V_{t-1}(cell, a), then V_t(cell, a) is V_{t-1}(cell, a) instead, as if
    the player could skip a turn. V_0 is 1 at the goal, FALL_VALUE in a hole, and 0 elsewhere.

    Args:
        max_actions: the largest number of moves in one turn.
        budget: the largest number of moves in a game.
    Returns:
        plans, int64 (budget + 1, cells, budget + 1): plans[turns left, cell, actions left] is the
        code of an optimal sequence. `decode_moves` turns a code into moves.
    """
    num_cells = size**2
    single_moves = lake_transitions(size, holes, goal, success_rate)
    sequences = move_sequences(single_moves, min(max_actions, budget))
    value = np.zeros((num_cells, budget + 1))  # V_0; axes: cell, actions left
    value[list(holes)] = FALL_VALUE
    value[goal] = 1.0
    alive = np.ones((num_cells, 1))
    alive[[goal, *holes]] = 0.0

    plans = np.zeros((budget + 1, num_cells, budget + 1), dtype=np.int64)
    for turns_left in range(1, budget + 1):
        best = np.full_like(value, -1.0)
        plan = plans[turns_left]  # a view of `plans`; axes: cell, actions left
        for length, (codes, matrices) in enumerate(sequences, start=1):
            # axes: sequence q, cell before q, actions left after q
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
    """Return all sequences of 1 to `max_length` moves, with their transition matrices.

    Args:
        single_moves: transition matrices of the four moves, (4, cells, next cells).
    Returns:
        One pair (codes, matrices) for each length j. `codes` has the shape (4**j,) and holds the
        codes of all sequences of j moves (see `decode_moves`). `matrices` has the shape
        (4**j, cells, next cells) and holds the transition matrices of these sequences.
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
    """Return the moves (0 to 3) that a code from `lake_plans` stands for.

    Each base-5 digit d of the code stands for the move d - 1.

    >>> decode_moves(2 * 5 + 4)
    [1, 3]
    """
    digits = np.base_repr(code, base=5) if code else ""
    return [int(digit) - 1 for digit in digits]


# ---------- Sokoban


def sokoban_move(
    floor: frozenset[int], player: int, boxes: tuple[int, ...], delta: int
) -> tuple[int, tuple[int, ...]] | None:
    """Return (player, boxes) after a move to cell `player + delta`, or None if the move is blocked.

    A box in cell `player + delta` is pushed one cell further. If `boxes` is sorted, the returned
    boxes are sorted too.
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
    """Find a shortest sequence of moves that puts all boxes on targets, by breadth-first search.

    Args: deltas: for each move, what it adds to the number of the player's cell.
    Returns: indices into `deltas`; None if there is no solution.
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
