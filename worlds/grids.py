"""Grid worlds: FrozenLake and Sokoban, their dynamics, texts and reference players.

Rules, symbols, rewards and the random generation of boards follow RAGEN. Transition noise, seeds
and splits differ from RAGEN's, as the docstring of envs.py explains. The optimal players use the
exact planners of worlds/planners.py. Cells are numbered row by row: cell = row * size + column.
"""

from configurator import UserError

from collections.abc import Callable, Iterable

import numpy as np

from envs import MAX_DRAWS, Env, Move
from worlds.planners import (
    decode_moves,
    lake_neighbour,
    lake_paths,
    lake_plans,
    sokoban_move,
    sokoban_solution,
)
from worlds.sokoban_rooms import draw_room, manhattan_distance


class Grid(Env):
    """The common part of FrozenLake and Sokoban: a square board and its texts."""

    size: int  # cells along each side

    def render(self) -> str:
        """Return the board as lines of symbols."""
        raise NotImplementedError

    def coordinates(self) -> str:
        """Return the line of the observation mode "coord": the positions of player and objects."""
        raise NotImplementedError

    def relations(self) -> str:
        """Return the lines of observation mode "relations": cells nearby and the way to objects."""
        raise NotImplementedError

    def word(self, cell: int) -> str:
        """Return the word, such as "ice", by which `relations` and `statements` describe a cell."""
        raise NotImplementedError

    def words(self, cells: Iterable[int]) -> str:
        return " ".join(self.word(cell) for cell in cells)

    def observe(self) -> str:
        texts = [self.render()]
        if self.observation_mode == "coord":
            texts.append(self.coordinates())
        elif self.observation_mode == "relations":
            texts.append(self.relations())
        return "\n".join(texts).rstrip()

    def _legend(self, relations: str) -> str:
        """Return the part of `rules` that explains the observation mode.

        Args: relations: an explanation of the lines that `self.relations` returns. Only the mode
            "relations" uses it.
        """
        if self.observation_mode == "coord":
            return " Places are (row,column), counted from 1 at the top left."
        if self.observation_mode == "relations":
            return f" Below the board: {relations}."
        return ""

    def _rows(self, symbol: Callable[[int], str]) -> str:
        """Return the board as text. Each cell is shown as `symbol(cell)`."""
        symbols = "".join(symbol(cell) for cell in range(self.size**2))
        starts = range(0, self.size**2, self.size)
        return "\n".join(symbols[start : start + self.size] for start in starts)

    def _place(self, cell: int) -> str:
        return f"({cell // self.size + 1},{cell % self.size + 1})"

    def _places(self, cells: Iterable[int]) -> str:
        return " ".join(self._place(cell) for cell in sorted(cells))

    def _offset(self, a: int, b: int) -> str:
        """Return the way from cell `a` to `b`, such as '2 down 1 right', or 'here' if a == b."""
        row_a, col_a = divmod(a, self.size)
        row_b, col_b = divmod(b, self.size)
        words = []
        if row_a != row_b:
            words += [str(abs(row_b - row_a)), "down" if row_b > row_a else "up"]
        if col_a != col_b:
            words += [str(abs(col_b - col_a)), "right" if col_b > col_a else "left"]
        return " ".join(words) or "here"


# ---------- FrozenLake


class FrozenLake(Grid):
    """Walk over ice with holes from a random start to a random goal; moves may slip to a side.

    Each cell of a board except start and goal is drawn as ice with probability `frozen_prob`, else
    as a hole. Start and goal are two different cells without holes, and a path connects them. A
    move has the intended direction with probability `success_rate`; the two perpendicular
    directions share the rest equally.
    """

    actions = ("Left", "Down", "Right", "Up")

    def __init__(
        self, *, size: int = 4, frozen_prob: float = 0.8, success_rate: float = 0.8, **common
    ):
        super().__init__(**common)
        if not (2 <= size <= 9 and 0 < frozen_prob <= 1 and 0 < success_rate <= 1):
            raise UserError(
                "frozenlake needs size 2..9, 0 < frozen_prob <= 1, 0 < success_rate <= 1, got "
                f"size={size}, frozen_prob={frozen_prob}, success_rate={success_rate}"
            )
        self.size = size
        self.frozen_prob = frozen_prob
        self.success_rate = success_rate

    def draw(self, rng: np.random.Generator) -> tuple:
        num_cells = self.size**2
        while True:
            melted = rng.random(num_cells) >= self.frozen_prob
            start, goal = rng.choice(num_cells, size=2, replace=False).tolist()
            holes = set(np.flatnonzero(melted).tolist()) - {start, goal}
            if start in lake_paths(self.size, frozenset(holes), goal):
                return ("frozenlake", self.size, tuple(sorted(holes)), start, goal)

    def _start(self, instance: tuple) -> None:
        _, _, holes, self.player, self.goal = instance
        self.holes = frozenset(holes)

    def _move(self, index: int) -> Move:
        side_prob = (1.0 - self.success_rate) / 2
        noise = self.rng.random()
        direction = index
        if noise < side_prob:
            direction = (index - 1) % 4
        elif noise < 2 * side_prob:
            direction = (index + 1) % 4
        if direction != index:
            self.slipped_to = self.actions[direction]
        before = self.player
        self.player = lake_neighbour(self.size, before, direction)
        success = self.player == self.goal
        return Move(
            reward=float(success),
            terminated=success or self.player in self.holes,
            success=success,
            effective=self.player != before,
        )

    def state_key(self) -> int:
        return self.player

    # Texts

    def render(self) -> str:
        symbols = dict.fromkeys(self.holes, "O")
        symbols[self.goal] = "G"
        symbols[self.player] = {"goal": "√", "hole": "X", "ice": "P"}[self._ground(self.player)]
        return self._rows(lambda cell: symbols.get(cell, "_"))

    def coordinates(self) -> str:
        holes = self._places(self.holes) or "none"
        return f"Player {self._place(self.player)}. Goal {self._place(self.goal)}. Holes {holes}."

    def _ground(self, cell: int) -> str:
        if cell == self.goal:
            return "goal"
        return "hole" if cell in self.holes else "ice"

    def word(self, cell: int) -> str:
        return "you" if cell == self.player else self._ground(cell)

    def _word_after(self, *moves: str) -> str:
        """Return the word for the cell that the player reaches by `moves` if no move slips.

        The word is 'edge' if the edge of the board blocks a move."""
        names = [name.lower() for name in self.actions]
        cell = self.player
        for move in moves:
            before = cell
            cell = lake_neighbour(self.size, before, names.index(move))
            if cell == before:
                return "edge"
        return self.word(cell)

    def relations(self) -> str:
        """Return a line of text about the goal and the cells near the player.

        Example: 'Away left edge, up edge. Goal 2 down ice ice, 3 right ice hole, corner hole.'
        The part 'Away' names the next cell in each direction that does not lead towards the goal.
        The part 'Goal' names each direction towards the goal, the distance in this direction and
        the next two cells. If two directions lead towards the goal, this part also names the
        corner: the cell after one move in the first direction and one move in the second."""
        # such as ['2', 'down', '3', 'right'], or ['here'] at the goal
        offset = self._offset(self.player, self.goal).split()
        distances = offset[::2]
        towards = offset[1::2]
        away = [name.lower() for name in self.actions if name.lower() not in offset]
        away_texts = [f"{way} {self._word_after(way)}" for way in away]
        goal_texts = []
        # not strict, because at the goal `distances` is ['here'] and `towards` is []
        for distance, way in zip(distances, towards, strict=False):
            words = f"{self._word_after(way)} {self._word_after(way, way)}"
            goal_texts.append(f"{distance} {way} {words}")
        if len(towards) == 2:
            goal_texts.append(f"corner {self._word_after(*towards)}")
        return f"Away {', '.join(away_texts)}. Goal {', '.join(goal_texts)}."

    def rules(self) -> str:
        slip = ""
        if self.success_rate < 1:
            slip_prob = round(1 - self.success_rate, 4)
            slip = f" A move slips to one side with probability {slip_prob:g}."
        legend = self._legend(
            "what is next to you, then one and two moves towards the goal; "
            "corner: one move each way"
        )
        return f"You are P. Walk over ice _ to the goal G; a hole O ends the game.{slip}{legend}"

    def statements(self) -> list[str]:
        names = [name.lower() for name in self.actions]
        next_words = [self._word_after(name) for name in names]
        # the first 5 moves, because a turn has at most 5 actions by default (`actions_per_turn`)
        path = self._shortest_path()[:5]
        way = " ".join(names[move] for move in path) or "none"
        return [
            f"Next {' '.join(next_words)}.",
            f"Goal {self._offset(self.player, self.goal)}.",
            f"Way {way}.",
        ]

    def why_lost(self) -> str:
        place = self._place(self.player)
        return f"fell into a hole at {place}" if self.player in self.holes else ""

    # Players

    def _shortest_path(self) -> tuple[int, ...]:
        """Return the moves of a shortest path to the goal; () if no path exists."""
        return lake_paths(self.size, self.holes, self.goal).get(self.player, ())

    def optimal_length(self) -> int:
        return len(self._shortest_path())

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return the optimal moves for one turn, chosen before the outcome of any move is known."""
        plans = lake_plans(
            self.size, self.holes, self.goal, self.success_rate, max_actions, self.max_actions
        )
        turns_left = min(turns_left, self.max_actions)
        moves = decode_moves(int(plans[turns_left, self.player, self.actions_left]))
        return [self.actions[move] for move in moves]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return moves along a random shortest path, chosen as if no move slipped."""
        paths = lake_paths(self.size, self.holes, self.goal)
        cell = self.player
        moves = []
        while len(moves) < count and cell != self.goal:
            neighbours = [lake_neighbour(self.size, cell, move) for move in range(4)]
            nearer = []  # moves that shorten the path to the goal
            for move, neighbour in enumerate(neighbours):
                if neighbour in paths and len(paths[neighbour]) < len(paths[cell]):
                    nearer.append(move)
            move = nearer[rng.integers(len(nearer))]
            moves.append(move)
            cell = neighbours[move]
        return [self.actions[move] for move in moves]

    def greedy(self) -> str:
        """Return a step towards the goal, vertical if the rows differ. Holes are ignored."""
        return self._offset(self.player, self.goal).split()[1].capitalize()


# ---------- Sokoban


class Sokoban(Grid):
    """Push every box onto a target.

    To make a random room, a search pulls the boxes away from the targets (`reverse_play` in
    worlds/sokoban_rooms.py). `search_depth` limits the number of moves in each sequence that the
    search tries. RAGEN's search_depth is 300 for 6x6 rooms with one box, and 10 for 8x8 rooms with
    two boxes. For rooms with the symbols "newvocab", RAGEN's search_depth is 30.
    """

    actions = ("Up", "Down", "Left", "Right")
    SYMBOLS = {  # in the order wall, floor, target, box on target, box, you, you on target
        "default": "#_O√XPS",
        "newvocab": "W.GCBA@",
    }

    def __init__(
        self,
        *,
        size: int = 6,
        boxes: int = 1,
        search_depth: int = 300,
        symbols: str = "default",
        **common,
    ):
        super().__init__(**common)
        if not (5 <= size <= 12 and 1 <= boxes <= 4 and search_depth >= 2):
            raise UserError(
                "sokoban needs size 5..12, boxes 1..4 and search_depth >= 2, got "
                f"size={size}, boxes={boxes}, search_depth={search_depth}"
            )
        if symbols not in self.SYMBOLS:
            raise UserError(
                f"sokoban symbols must be one of {', '.join(self.SYMBOLS)}, got {symbols!r}"
            )
        self.max_reward = 10.0 + boxes
        self.size = size
        self.num_boxes = boxes
        self.search_depth = search_depth
        self.symbols = symbols
        self.alphabet = self.SYMBOLS[symbols]
        self.deltas = (-size, size, -1, 1)  # what Up, Down, Left, Right add to a cell number

    def draw(self, rng: np.random.Generator) -> tuple:
        for _ in range(MAX_DRAWS):
            room = draw_room(rng, self.size, self.num_boxes, self.search_depth)
            if room:
                return ("sokoban", self.symbols, self.size, *room)
        raise UserError(
            f"no sokoban room with size={self.size}, boxes={self.num_boxes}, "
            f"search_depth={self.search_depth} in {MAX_DRAWS} attempts; use a larger room, fewer "
            "boxes or more depth"
        )

    def key(self, instance: tuple) -> tuple:
        """Return the instance without its symbols, which do not change the game."""
        name, _, *room = instance
        return (name, *room)

    def _start(self, instance: tuple) -> None:
        _, _, _, floor, targets, self.player, self.boxes = instance
        self.floor = frozenset(floor)
        self.targets = frozenset(targets)

    def _move(self, index: int) -> Move:
        placed_before = len(self.targets.intersection(self.boxes))
        moved = sokoban_move(self.floor, self.player, self.boxes, self.deltas[index])
        if moved is not None:
            self.player, self.boxes = moved
        placed = len(self.targets.intersection(self.boxes))
        success = placed == len(self.targets)
        reward = -0.1 + (placed - placed_before) + (10.0 if success else 0.0)
        return Move(reward, terminated=success, success=success, effective=moved is not None)

    def state_key(self) -> tuple:
        return self.player, frozenset(self.boxes)

    # Texts

    def render(self) -> str:
        wall, floor, target, box_on_target, box, you, you_on_target = self.alphabet
        off_target = {"wall": wall, "floor": floor, "box": box, "you": you}
        on_target = {"target": target, "box": box_on_target, "you": you_on_target}

        def symbol(cell: int) -> str:
            symbols = on_target if cell in self.targets else off_target
            return symbols[self.word(cell)]

        return self._rows(symbol)

    def coordinates(self) -> str:
        player = self._place(self.player)
        boxes = self._places(self.boxes)
        return f"Player {player}. Boxes {boxes}. Targets {self._places(self.targets)}."

    def word(self, cell: int) -> str:
        if cell == self.player:
            return "you"
        if cell in self.boxes:
            return "box"
        if cell in self.targets:
            return "target"
        return "floor" if cell in self.floor else "wall"

    def _around(self, cell: int) -> str:
        """Return the words of the cells up, down, left and right of `cell`."""
        return self.words(cell + delta for delta in self.deltas)

    def _target_of(self, box: int) -> int:
        """Return the target that `relations` and `statements` name for a box.

        If a box is on a target, the function returns this target. Otherwise it returns the free
        target that is nearest to the box. Of targets at the same distance, the target with the
        lowest cell number is taken.
        """
        if box in self.targets:
            return box
        free = self.targets.difference(self.boxes) or self.targets
        return min(sorted(free), key=lambda target: self._distance(box, target))

    def relations(self) -> str:
        lines = []
        for box in self.boxes:
            offset = self._offset(self.player, box)
            target_offset = self._offset(box, self._target_of(box))
            around = self._around(box)
            lines.append(f"Box {offset}, its target {target_offset}, around it {around}.")
        lines.append(f"Next {self._around(self.player)}.")
        return "\n".join(lines)

    def rules(self) -> str:
        wall, floor, target, box_on_target, box, you, you_on_target = self.alphabet
        legend = self._legend(
            "the way to the box, from it to its target, and what is around it and you, up to right"
        )
        return (
            f"Push every box {box} onto a target {target}. You are {you}, on a target "
            f"{you_on_target}; a box on a target is {box_on_target}. Walk into a box to push it; "
            f"a wall {wall} or another box behind it stops the push. Floor is {floor}. "
            "Reward -0.1 an action, 1 for a box on a target (-1 off it), 10 when all are."
            f"{legend}"
        )

    def statements(self) -> list[str]:
        facts = [f"Next {self._around(self.player)}."]
        for box in self.boxes:
            facts.append(f"Box {self._offset(self.player, box)}.")
            facts.append(f"Target {self._offset(box, self._target_of(box))}.")
        return facts

    def why_lost(self) -> str:
        """Say where a box is stuck in a corner that is not a target; "" if there is no such box."""
        for box in self.boxes:
            if box not in self.targets and self.in_corner(box):
                return f"a box is stuck in a corner at {self._place(box)}"
        return ""

    def in_corner(self, cell: int) -> bool:
        """Return whether a cell has a wall above or below it, and a wall to its left or right."""
        up, down, left, right = (cell + delta not in self.floor for delta in self.deltas)
        return (up or down) and (left or right)

    # Players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return first moves of a shortest solution (breadth-first search), or [] if unsolvable."""
        path = sokoban_solution(self.floor, self.targets, self.player, self.boxes, self.deltas)
        return [self.actions[move] for move in (path or ())[:max_actions]]

    def greedy(self) -> str:
        """Return the move with the lowest `cost_after`; if moves tie, the first in `actions`."""
        return self.actions[min(range(4), key=self.cost_after)]

    def cost_after(self, index: int) -> tuple[int, int]:
        """Measure how far the room would be from a solution after the move `actions[index]`.

        A blocked move gets a higher cost than any move that is not blocked.

        Returns: two numbers. The first is the sum of the distances of the boxes to their nearest
            targets. The second is the distance of the player to the nearest box that is not on a
            target. If all boxes are on targets, the second is the distance to the nearest box.
        """
        moved = sokoban_move(self.floor, self.player, self.boxes, self.deltas[index])
        if moved is None:
            return (10**6, 0)
        player, boxes = moved
        total = 0
        for box in boxes:
            total += min(self._distance(box, target) for target in self.targets)
        unplaced = [box for box in boxes if box not in self.targets] or boxes
        return total, min(self._distance(player, box) for box in unplaced)

    def _distance(self, a: int, b: int) -> int:
        return manhattan_distance(self.size, a, b)
