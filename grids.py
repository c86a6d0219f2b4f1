"""Grid worlds: FrozenLake and Sokoban, their dynamics and texts, and best plans by exact search.

Rules, symbols, rewards and ways of drawing boards are RAGEN's; `envs.py` says what differs.
"""

from configurator import UserError

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import product

import numpy as np

from envs import MAX_DRAWS, Env

TIE_BREAK = 1e-6  # cost of an action in FrozenLake's plans


class Grid(Env):
    """What FrozenLake and Sokoban share: cells numbered row by row, four moves, offsets in words."""

    size: int

    def _offset(self, a: int, b: int) -> str:
        """Where cell b lies as seen from cell a, such as '2 down 1 right'."""
        (ra, ca), (rb, cb) = divmod(a, self.size), divmod(b, self.size)
        ways = ((rb - ra, "up", "down"), (cb - ca, "left", "right"))
        return (
            " ".join(f"{abs(n)} {more if n > 0 else less}" for n, less, more in ways if n) or "here"
        )

    def _distance(self, a: int, b: int) -> int:
        (ra, ca), (rb, cb) = divmod(a, self.size), divmod(b, self.size)
        return abs(ra - rb) + abs(ca - cb)

    def _place(self, cell: int) -> str:
        return f"({cell // self.size + 1},{cell % self.size + 1})"

    def _legend(self, relations: str) -> str:
        coord = " Places are (row,column), counted from 1 at the top left."
        return {"grid": "", "coord": coord, "relations": f" Below the board: {relations}."}[
            self.observation_mode
        ]

    def _rows(self, symbol: Callable[[int], str]) -> str:
        return "\n".join(
            "".join(symbol(r * self.size + c) for c in range(self.size)) for r in range(self.size)
        )

    def words(self, cells: Iterable[int]) -> str:
        """What lies on these cells, by the words that relations and statements use."""
        return " ".join(map(self.word, cells))

    def observe(self) -> str:
        extra = {"grid": str, "coord": self.coordinates, "relations": self.relations}[
            self.observation_mode
        ]()
        return f"{self.render()}\n{extra}".rstrip()


class FrozenLake(Grid):
    """Walk from a random start to a random goal over ice with holes; a move slips to one side with some probability.

    Boards are drawn as upstream draws them: every cell is ice with `frozen_prob`, start and goal differ, a path exists.
    `success_rate` is the probability of the intended direction; the rest is shared by the two perpendicular ones."""

    actions = ("Left", "Down", "Right", "Up")
    DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))

    def __init__(
        self, *, size: int = 4, frozen_prob: float = 0.8, success_rate: float = 0.8, **common
    ):
        super().__init__(**common)
        if not (2 <= size <= 9 and 0 < frozen_prob <= 1 and 0 < success_rate <= 1):
            raise UserError(
                "frozenlake wants size 2..9, 0 < frozen_prob <= 1, 0 < success_rate <= 1, got "
                f"size={size}, frozen_prob={frozen_prob}, success_rate={success_rate}"
            )
        self.size, self.frozen_prob, self.success_rate = size, frozen_prob, success_rate

    def draw(self, rng: np.random.Generator) -> tuple:
        while True:
            holes = set(np.flatnonzero(rng.random(self.size**2) >= self.frozen_prob).tolist())
            start, goal = (int(c) for c in rng.choice(self.size**2, size=2, replace=False))
            holes -= {start, goal}
            if start in lake_ways(self.size, frozenset(holes), goal):
                return ("frozenlake", self.size, tuple(sorted(holes)), start, goal)

    def _start(self, instance: tuple) -> None:
        _, _, holes, self.player, self.goal = instance
        self.holes = frozenset(holes)

    def _move(self, index: int) -> tuple[float, bool, bool, bool]:
        side, u = (1.0 - self.success_rate) / 2, self.rng.random()
        turn = -1 if u < side else 1 if u < 2 * side else 0
        before, self.player = (
            self.player,
            lake_neighbour(self.size, self.player, (index + turn) % 4),
        )
        success = self.player == self.goal
        return float(success), success or self.player in self.holes, success, self.player != before

    def render(self) -> str:
        you = "√" if self.player == self.goal else "X" if self.player in self.holes else "P"
        signs = dict.fromkeys(self.holes, "O") | {self.goal: "G", self.player: you}
        return self._rows(lambda cell: signs.get(cell, "_"))

    def coordinates(self) -> str:
        holes = " ".join(self._place(h) for h in sorted(self.holes)) or "none"
        return f"Player {self._place(self.player)}. Goal {self._place(self.goal)}. Holes {holes}."

    def word(self, cell: int) -> str:
        free = "hole" if cell in self.holes else "ice"
        return {self.player: "you"}.get(cell, "goal" if cell == self.goal else free)

    def _kind(self, *moves: str) -> str:
        """What lies where these moves lead if nothing slips: ice, hole, goal, or edge where one leads off the board."""
        cell = self.player
        for word in moves:
            before, cell = (
                cell,
                lake_neighbour(self.size, cell, self.actions.index(word.capitalize())),
            )
            if cell == before:
                return "edge"
        return self.word(cell)

    def relations(self) -> str:
        words = self._offset(self.player, self.goal).split()  # 2 down 1 right
        ahead, away = (
            words[1::2],
            [word for word in map(str.lower, self.actions) if word not in words],
        )
        far = zip(words[::2], ahead, strict=False)  # "here" has no second word
        ways = [f"{n} {way} {self._kind(way)} {self._kind(way, way)}" for n, way in far]
        ways += [f"corner {self._kind(*ahead)}"] if len(ahead) == 2 else []
        return f"Away {', '.join(f'{word} {self._kind(word)}' for word in away)}. Goal {', '.join(ways)}."

    def rules(self) -> str:
        slip = f" A move slips to one side with probability {round(1 - self.success_rate, 4):g}."
        slip = "" if self.success_rate == 1 else slip
        extra = self._legend(
            "what is next to you, then one and two moves towards the goal; corner: one move each way"
        )
        return f"You are P. Walk over ice _ to the goal G; a hole O ends the game.{slip}{extra}"

    def statements(self) -> list[str]:
        goal, words = self._offset(self.player, self.goal), [name.lower() for name in self.actions]
        way = (
            " ".join(
                words[i]
                for i in lake_ways(self.size, self.holes, self.goal).get(self.player, ())[:5]
            )
            or "none"
        )
        return [
            f"Next {' '.join(map(self._kind, words))}.",
            f"Goal {goal}.",
            f"Way {way}.",
        ]  # five moves fit in a turn

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """Moves along a random shortest path, as if nothing slipped: what is best under slip is left to RL."""
        ways, moves, cell = lake_ways(self.size, self.holes, self.goal), [], self.player
        while len(moves) < count and cell != self.goal:
            near = {i: lake_neighbour(self.size, cell, i) for i in range(4)}
            nearer = [i for i, n in near.items() if n in ways and len(ways[n]) < len(ways[cell])]
            moves.append(nearer[rng.integers(len(nearer))])
            cell = near[moves[-1]]
        return [self.actions[i] for i in moves]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """The best commitment of at most `max_actions` moves: exact dynamic programming over the turns left."""
        plans = lake_plans(
            self.size, self.holes, self.goal, self.success_rate, max_actions, self.max_actions
        )
        code = int(plans[min(turns_left, self.max_actions), self.player, self.actions_left])
        return [
            self.actions[int(digit) - 1] for digit in np.base_repr(code, 5).strip("0")
        ]  # 0: no move

    def greedy(self) -> str:
        """Walk to the goal blind to holes; where two directions approach it, the vertical one comes first."""
        return self._offset(self.player, self.goal).split()[1].capitalize()

    def optimal_length(self) -> int:
        return len(lake_ways(self.size, self.holes, self.goal).get(self.player, ()))


def lake_neighbour(size: int, cell: int, direction: int) -> int:
    """The cell reached from `cell` by going Left, Down, Right, Up (0..3); the border stops the move."""
    (row, col), (dr, dc) = divmod(cell, size), FrozenLake.DELTAS[direction]
    return min(max(row + dr, 0), size - 1) * size + min(max(col + dc, 0), size - 1)


@lru_cache(maxsize=4096)
def lake_ways(size: int, holes: frozenset, goal: int) -> dict[int, tuple]:
    """Moves of a shortest path to the goal, from every cell that has one: of the path with the fewest holes at the
    sides of its moves, into which they could slip. Ties: the order Left, Down, Right, Up."""
    risk, ways, queue = {}, {}, [goal]
    for cell in (
        queue
    ):  # which grows meanwhile: breadth first, so a neighbour with a way is nearer to the goal
        near = [lake_neighbour(size, cell, direction) for direction in range(4)]
        sides = [(near[i - 1] in holes) + (near[(i + 1) % 4] in holes) for i in range(4)]
        options = [(risk[n] + sides[i], (i, *ways[n])) for i, n in enumerate(near) if n in ways]
        risk[cell], ways[cell] = min(options, default=(0, ()))
        queue += {*near} - {*queue, *holes}
    return ways


@lru_cache(maxsize=1024)
def lake_plans(
    size: int, holes: frozenset, goal: int, success_rate: float, k: int, budget: int
) -> np.ndarray:
    """Optimal commitments: result[t, cell, actions left] is an action tuple in base 5 (digits 1..4), t turns left.

    Value iteration over turns, V_t(s, a) = max over sequences q of 1..k actions of E[V_{t-1}(s', a - |q|)] - cost |q|,
    where goal and holes absorb. With k = 1 and as many turns as actions this is the closed-loop optimum. Ties: the
    shortest sequence, then the order Left, Down, Right, Up."""
    cells, side = size * size, (1.0 - success_rate) / 2
    single = np.zeros((4, cells, cells))  # (action, from, to)
    for action, cell, (turn, prob) in product(
        range(4), range(cells), ((-1, side), (0, success_rate), (1, side))
    ):
        after = (
            cell
            if cell == goal or cell in holes
            else lake_neighbour(size, cell, (action + turn) % 4)
        )
        single[action, cell, after] += prob
    moves, codes = (
        [single],
        [np.arange(1, 5)],
    )  # moves[j - 1]: (4**j, from, to), one matrix per sequence of j actions
    for _ in range(min(k, budget) - 1):
        moves.append((moves[-1][:, None] @ single[None]).reshape(-1, cells, cells))
        codes.append((codes[-1][:, None] * 5 + codes[0]).reshape(-1))
    value, alive = np.zeros((cells, budget + 1)), np.ones((cells, 1))
    value[goal], value[list(holes)] = (
        1.0,
        -1e-4,
    )  # running out of turns is a little better than falling
    alive[[goal, *holes]] = 0.0
    plans = np.zeros((budget + 1, cells, budget + 1), dtype=np.int64)
    for t in range(1, budget + 1):
        best = np.full_like(value, -1.0)
        for j, (move, code) in enumerate(zip(moves, codes, strict=True), start=1):
            scores = (move @ value)[
                :, :, : budget + 1 - j
            ] - TIE_BREAK * j * alive  # (4**j, from, left after)
            top = scores.max(0)
            better = top > best[:, j:] + 1e-9
            best[:, j:] = np.where(better, top, best[:, j:])
            plans[t][:, j:] = np.where(better, code[scores.argmax(0)], plans[t][:, j:])
        value = np.maximum(best, value)
    return plans


class Sokoban(Grid):
    """Push every box onto a target. Rooms are made as upstream makes them: random walk, reverse play, player walk.

    `search_depth` limits the reverse play: 300 for 6x6 rooms with one box, 10 for 8x8 with two, 30 for "newvocab"."""

    actions = ("Up", "Down", "Left", "Right")
    SYMBOLS = {
        "default": "#_O√XPS",
        "newvocab": "W.GCBA@",
    }  # wall, floor, target, box on it, box, you, you on target
    MASKS = (
        ((1, 0), (1, 1), (1, 2)),
        ((0, 1), (1, 1), (2, 1)),
        ((1, 0), (1, 1), (2, 1)),
        ((1, 0), (1, 1), (2, 0), (2, 1)),
        ((1, 1), (1, 2), (2, 1)),
    )

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
                "sokoban wants size 5..12, boxes 1..4 and search_depth >= 2, got "
                f"size={size}, boxes={boxes}, search_depth={search_depth}"
            )
        if symbols not in self.SYMBOLS:
            raise UserError(
                f"sokoban symbols must be one of {', '.join(self.SYMBOLS)}, got {symbols!r}"
            )
        self.max_reward = 10.0 + boxes
        self.size, self.num_boxes, self.search_depth, self.symbols = (
            size,
            boxes,
            search_depth,
            symbols,
        )
        self.alphabet, self.deltas = self.SYMBOLS[symbols], (-size, size, -1, 1)

    def draw(self, rng: np.random.Generator) -> tuple:
        for _ in range(MAX_DRAWS):
            floor = self._topology(rng)
            if len(floor) <= self.num_boxes + 1:
                continue
            cells = rng.permutation(sorted(floor)).tolist()
            player, targets = cells[0], tuple(sorted(cells[1 : 1 + self.num_boxes]))
            player, boxes, displacement = self._reverse_play(floor, player, targets)
            if displacement == 0:
                continue
            player = self._random_walk(rng, floor, player, boxes, 0.8 if displacement == 1 else 0.5)
            return (
                "sokoban",
                self.symbols,
                self.size,
                tuple(sorted(floor)),
                targets,
                player,
                tuple(sorted(boxes)),
            )
        raise UserError(
            f"no sokoban room with size={self.size}, boxes={self.num_boxes}, search_depth="
            f"{self.search_depth} in {MAX_DRAWS} attempts; use a larger room, fewer boxes or more depth"
        )

    def key(self, instance: tuple) -> tuple:
        return (instance[0], *instance[2:])  # whatever its symbols

    def _topology(self, rng: np.random.Generator) -> set[int]:
        """Floor cells of a random walk that stamps one of five masks on each of 1.7 * (height + width) steps."""
        size, directions = self.size, ((1, 0), (0, 1), (-1, 0), (0, -1))
        direction, (row, col) = directions[rng.integers(4)], rng.integers(1, size, size=2)
        floor = set()
        for _ in range(int(1.7 * 2 * size)):
            if rng.random() < 0.35:
                direction = directions[rng.integers(4)]
            row, col = (
                min(max(int(x) + d, 1), size - 2)
                for x, d in zip((row, col), direction, strict=True)
            )
            stamp = ((row - 1 + r, col - 1 + c) for r, c in self.MASKS[rng.integers(5)])
            floor |= {r * size + c for r, c in stamp if 1 <= r <= size - 2 and 1 <= c <= size - 2}
        return floor

    def _reverse_play(self, floor: set[int], player: int, targets: tuple) -> tuple[int, tuple, int]:
        """Depth-first reverse play, pulling whenever a box is behind; keep the state with the largest
        (changes of the pulled box) * (total Manhattan displacement) among those where no target is covered."""
        best, best_score, seen = (player, targets), 0, set()
        stack = [(player, targets, -1, 0, self.search_depth - 1)]
        while stack and len(seen) < 300_000:
            player, boxes, last, swaps, ttl = stack.pop()
            if ttl <= 0 or (player, boxes) in seen:
                continue
            seen.add((player, boxes))
            score = swaps * sum(map(self._distance, boxes, targets))
            if score > best_score and player not in targets and not set(boxes) & set(targets):
                best, best_score = (player, boxes), score
            for delta in reversed(self.deltas):
                ahead, behind = player + delta, player - delta
                if ahead in floor and ahead not in boxes:
                    i = boxes.index(behind) if behind in boxes else last
                    pulled = tuple(player if box == behind else box for box in boxes)
                    stack.append((ahead, pulled, i, swaps + (i != last), ttl - 1))
        return *best, sum(map(self._distance, best[1], targets))

    def _random_walk(
        self, rng: np.random.Generator, floor: set[int], player: int, boxes: tuple, prob: float
    ) -> int:
        """Up to three steps away from the box, so that the player does not always start next to it."""
        visited = [player]
        while rng.random() <= prob and len(visited) <= 3:
            near = (visited[-1] + delta for delta in self.deltas)
            options = [cell for cell in near if cell in floor and cell not in (*boxes, *visited)]
            if not options:
                break
            visited.append(options[rng.integers(len(options))])
            prob = 0.5
        return visited[-1]

    def _start(self, instance: tuple) -> None:
        _, _, _, floor, targets, self.player, self.boxes = instance
        self.floor, self.targets = frozenset(floor), frozenset(targets)

    def _move(self, index: int) -> tuple[float, bool, bool, bool]:
        before = len(self.targets & set(self.boxes))
        moved = sokoban_move(self.floor, self.player, self.boxes, self.deltas[index])
        self.player, self.boxes = moved or (self.player, self.boxes)
        on_target = len(self.targets & set(self.boxes))
        success = on_target == len(self.targets)
        return -0.1 + (on_target - before) + 10.0 * success, success, success, moved is not None

    def render(self) -> str:
        wall, ground, target, box_on, box, you, you_on = self.alphabet
        off = {"wall": wall, "floor": ground, "box": box, "you": you}
        on = {"target": target, "box": box_on, "you": you_on}
        return self._rows(lambda cell: (on if cell in self.targets else off)[self.word(cell)])

    def coordinates(self) -> str:
        boxes, targets = (
            " ".join(self._place(c) for c in sorted(s)) for s in (self.boxes, self.targets)
        )
        return f"Player {self._place(self.player)}. Boxes {boxes}. Targets {targets}."

    def _target_of(self, box: int) -> int:
        """The target that the text names for a box: its own cell, or the nearest uncovered one (lowest cell first)."""
        free = (
            [box]
            if box in self.targets
            else sorted(self.targets - set(self.boxes)) or sorted(self.targets)
        )
        return min(free, key=lambda cell: self._distance(box, cell))

    def word(self, cell: int) -> str:
        if cell == self.player or cell in self.boxes:
            return "you" if cell == self.player else "box"
        return "target" if cell in self.targets else "floor" if cell in self.floor else "wall"

    def _around(self, cell: int) -> str:
        return self.words(cell + delta for delta in self.deltas)

    def relations(self) -> str:
        lines = [
            f"Box {self._offset(self.player, box)}, its target {self._offset(box, self._target_of(box))}, "
            f"around it {self._around(box)}."
            for box in self.boxes
        ]
        return "\n".join([*lines, f"Next {self._around(self.player)}."])

    def rules(self) -> str:
        wall, ground, target, box_on, box, you, you_on = self.alphabet
        extra = self._legend(
            "the way to the box, from it to its target, and what is around it and you, up to right"
        )
        return (
            f"Push every box {box} onto a target {target}. You are {you}, on a target {you_on}; a box on a target "
            f"is {box_on}. Walk into a box to push it; a wall {wall} or another box behind it stops the push. "
            f"Floor is {ground}. Reward -0.1 an action, 1 for a box on a target (-1 off it), 10 when all are."
            f"{extra}"
        )

    def statements(self) -> list[str]:
        ways = [
            way
            for b in self.boxes
            for way in (("Box", self.player, b), ("Target", b, self._target_of(b)))
        ]
        return [
            f"Next {self._around(self.player)}.",
            *(f"{name} {self._offset(a, b)}." for name, a, b in ways),
        ]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """The first `max_actions` moves of a shortest solution (breadth-first search); [] where none exists."""
        path = (
            sokoban_solution(self.floor, self.targets, self.player, self.boxes, self.deltas) or ()
        )
        return [self.actions[i] for i in path[:max_actions]]

    def greedy(self) -> str:
        """One step ahead: least total distance of boxes to their targets, then of you to the nearest unplaced box.
        Ties: the order Up, Down, Left, Right; moves that change nothing come last."""

        def cost(index: int) -> tuple[int, int]:
            moved = sokoban_move(self.floor, self.player, self.boxes, self.deltas[index])
            if moved is None:
                return (10**6, 0)
            player, boxes = moved
            open_boxes = [b for b in boxes if b not in self.targets] or list(boxes)
            total = sum(min(self._distance(b, t) for t in self.targets) for b in boxes)
            return total, min(self._distance(player, b) for b in open_boxes)

        return self.actions[min(range(4), key=cost)]


def sokoban_move(
    floor: frozenset, player: int, boxes: tuple, delta: int
) -> tuple[int, tuple] | None:
    """(player, boxes) after a move or push by `delta`, or None where it is blocked. Boxes stay sorted."""
    ahead, beyond = player + delta, player + 2 * delta
    if ahead not in floor or (ahead in boxes and (beyond not in floor or beyond in boxes)):
        return None
    return ahead, tuple(
        sorted(beyond if box == ahead else box for box in boxes)
    ) if ahead in boxes else boxes


@lru_cache(maxsize=16384)
def sokoban_solution(
    floor: frozenset, targets: frozenset, player: int, boxes: tuple, deltas: tuple
) -> tuple | None:
    """A shortest sequence of action indices that puts all boxes on targets, or None. Ties: action order."""
    paths = {(player, boxes): ()}
    queue = list(paths)
    for state in queue:  # which grows meanwhile
        if targets.issuperset(state[1]):
            return paths[state]
        for index, delta in enumerate(deltas):
            moved = sokoban_move(floor, *state, delta)
            if moved is not None and moved not in paths:
                paths[moved] = (*paths[state], index)
                queue.append(moved)
    return None
