"""Sokoban rooms, made by the method of RAGEN and gym-sokoban: dig a floor, then play backward.

Cells are numbered row by row: cell = row * size + column.
"""

from typing import NamedTuple

import numpy as np

DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # (rows, columns) of a step
TURN_PROB = 0.35  # probability that the digging walk draws a new direction
# Each step of the digging walk digs the cells of a random mask. A mask lists cells as (row, column)
# in the 3x3 square whose centre (1, 1) is the walk's present cell.
MASKS = (
    ((1, 0), (1, 1), (1, 2)),
    ((0, 1), (1, 1), (2, 1)),
    ((1, 0), (1, 1), (2, 1)),
    ((1, 0), (1, 1), (2, 0), (2, 1)),
    ((1, 1), (1, 2), (2, 1)),
)
MAX_STATES = 300_000  # reverse play visits at most this many states


class Room(NamedTuple):
    """A room at the start of a game. All cells that are not in `floor` are walls."""

    floor: tuple[int, ...]
    targets: tuple[int, ...]
    player: int
    boxes: tuple[int, ...]


def draw_room(
    rng: np.random.Generator, size: int, num_boxes: int, search_depth: int
) -> Room | None:
    """Try to draw a room.

    Return None if the boxes and the player would fill the floor. Return None, too, if the player
    or a box is on a target in every state that reverse play visited.

    Args: size: cells along each side, walls included.
    """
    floor = dig_floor(rng, size)
    if len(floor) <= num_boxes + 1:
        return None
    player, *others = rng.permutation(sorted(floor)).tolist()
    targets = tuple(sorted(others[:num_boxes]))
    player, boxes = reverse_play(size, floor, player, targets, search_depth)
    displacement = total_distance(size, boxes, targets)
    if displacement == 0:
        return None
    first_prob = 0.8 if displacement == 1 else 0.5
    player = walk_away(rng, size, floor, player, boxes, first_prob)
    return Room(tuple(sorted(floor)), targets, player, tuple(sorted(boxes)))


def dig_floor(rng: np.random.Generator, size: int) -> set[int]:
    """Return the floor cells that a random walk digs.

    Each step of the walk digs the cells of a mask, drawn from MASKS.
    """
    direction = DIRECTIONS[rng.integers(4)]
    row, col = rng.integers(1, size, size=2).tolist()
    last = size - 2  # the last row and column inside the walls
    num_steps = int(1.7 * 2 * size)  # 1.7 * (height + width)
    floor = set()
    for _ in range(num_steps):
        if rng.random() < TURN_PROB:
            direction = DIRECTIONS[rng.integers(4)]
        row = min(max(row + direction[0], 1), last)
        col = min(max(col + direction[1], 1), last)
        for mask_row, mask_col in MASKS[rng.integers(5)]:
            dug_row = row - 1 + mask_row
            dug_col = col - 1 + mask_col
            if 1 <= dug_row <= last and 1 <= dug_col <= last:
                floor.add(dug_row * size + dug_col)
    return floor


def reverse_play(
    size: int, floor: set[int], player: int, targets: tuple[int, ...], search_depth: int
) -> tuple[int, tuple[int, ...]]:
    """Pull the boxes away from the targets, by depth-first search.

    In a game, the player can reverse the moves of this search, the last move first. Then each
    pull becomes a push, and the boxes end on the targets. So the room can be solved.

    If a box is behind the player, a move pulls this box. The search looks for the best state. In
    the best state, neither a box nor the player is on a target. Of all visited states that meet
    this condition, the best has the largest product of
    - the number of pulls that switch to another box (the first pull counts as a switch), and
    - the total Manhattan distance of the boxes to their targets.

    Returns:
        (player, boxes) in the best state. If no visited state meets the condition, this is the
        state at the start. `boxes[i]` is the box that began on `targets[i]`.
    """
    best = (player, targets)
    best_score = 0
    visited = set()
    # An entry of the stack: player, boxes, index of the box pulled last (-1: none yet), number of
    # pulls that switched to another box, moves left.
    stack = [(player, targets, -1, 0, search_depth - 1)]
    while stack and len(visited) < MAX_STATES:
        player, boxes, last_box, num_changes, moves_left = stack.pop()
        if moves_left <= 0 or (player, boxes) in visited:
            continue
        visited.add((player, boxes))
        score = num_changes * total_distance(size, boxes, targets)
        uncovered = player not in targets and not set(boxes) & set(targets)
        if score > best_score and uncovered:
            best = (player, boxes)
            best_score = score
        # The entry appended last is visited first, so the order is Up, Down, Left, Right.
        for delta in (1, -1, size, -size):
            ahead = player + delta
            behind = player - delta
            if ahead not in floor or ahead in boxes:
                continue
            box = boxes.index(behind) if behind in boxes else last_box
            pulled = tuple(player if cell == behind else cell for cell in boxes)
            changes = num_changes if box == last_box else num_changes + 1
            stack.append((ahead, pulled, box, changes, moves_left - 1))
    return best


def walk_away(
    rng: np.random.Generator,
    size: int,
    floor: set[int],
    player: int,
    boxes: tuple[int, ...],
    first_prob: float,
) -> int:
    """Return the player's cell after up to three random steps.

    The first step is made with probability `first_prob`, each further step with probability 0.5. No
    cell is visited twice.
    """
    visited = [player]
    prob = first_prob
    while rng.random() <= prob and len(visited) <= 3:
        near = [visited[-1] + delta for delta in (-size, size, -1, 1)]
        blocked = (*boxes, *visited)
        free = [cell for cell in near if cell in floor and cell not in blocked]
        if not free:
            break
        visited.append(free[rng.integers(len(free))])
        prob = 0.5
    return visited[-1]


def manhattan_distance(size: int, a: int, b: int) -> int:
    row_a, col_a = divmod(a, size)
    row_b, col_b = divmod(b, size)
    return abs(row_a - row_b) + abs(col_a - col_b)


def total_distance(size: int, boxes: tuple[int, ...], targets: tuple[int, ...]) -> int:
    """Return the sum over i of the Manhattan distance from box i to target i."""
    pairs = zip(boxes, targets, strict=True)
    return sum(manhattan_distance(size, box, target) for box, target in pairs)
