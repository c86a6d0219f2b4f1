"""Environments: Bandit, FrozenLake and Sokoban behind one protocol (`Env`), their instances and best plans.

    python envs.py frozenlake --seed=3             # play it: through the prompt and the parser of the policy
    python envs.py sokoban --seed=3 --expert       # see the optimal player, or --random

Rules, symbols, rewards and budgets are RAGEN's (arXiv 2504.20073, github.com/RAGEN-AI/RAGEN). What differs, on purpose:
- members of a group share the instance but not the transition noise (upstream shares both, so slips repeat);
- a seed means the same instance in every process: nothing depends on `hash()` or global random state;
- splits are disjoint by instance, not only by seed, as small boards repeat.
"""

import difflib
import importlib
import re
import runpy
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "eval", "heldout")  # eval: the fixed prompts that are reported; heldout: for choosing settings
SPLIT_SIZE, EVAL_SEED = 256, 123
OBSERVATIONS = ("grid", "coord", "relations")
TRANSITIONS = 7  # purpose number that keeps transition noise apart from instance noise
MAX_DRAWS = 20_000  # attempts to draw an instance before the options are called impossible
TIE_BREAK = 1e-6  # cost of an action in FrozenLake's plans


class Step(NamedTuple):
    """What one action did."""

    observation: str
    reward: float
    terminated: bool  # the game ended by its rules
    truncated: bool  # the action budget ran out
    info: dict  # success, valid (a legal action), effective (something moved)


# ---------- dynamics


class Env:
    """The protocol. A subclass defines `actions`, `draw`, `_start`, `_move`, `observe`, `rules`, `greedy`, `plan` (best
    commitment of at most k actions) and `statements` (true sentences about the board; thoughts are checked by them)."""

    actions: tuple[str, ...] = ()  # names; () in a class whose instances name their own, or read any text (`_read`)
    repeats = False  # True: so few distinct prompts that splits cannot be disjoint (Bandit)
    max_reward = 1.0  # what a success pays
    blocking = False  # True: a step takes long (it waits for a program or a server) and is done in a thread

    def __init__(self, *, observation: str = "grid", max_actions: int = 10):
        if observation not in OBSERVATIONS:
            raise ValueError(f"observation must be one of {', '.join(OBSERVATIONS)}, got {observation!r}")
        self.observation_mode, self.max_actions = observation, max_actions

    def reset(self, seed: int | Sequence[int], *, split: str = "train", member: int = 0) -> str:
        """Start the instance named by (split, seed); `member` of a group changes the transition noise only. `seed`: for
        "train" any integer or sequence of integers >= 0, for "eval" and "heldout" an index below 256.

        Returns: the first observation. Raises: ValueError for an unknown split or an index outside of it."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        path = (int(seed),) if isinstance(seed, (int, np.integer)) else tuple(int(s) for s in seed)
        return self.start(draw_instance(self.spec, path, split), [TRANSITIONS, SPLITS.index(split), *path, member])

    def start(self, instance: tuple, noise_seed: Sequence[int]) -> str:
        """Start a given instance (as `draw` makes it) with transition noise from `noise_seed`."""
        self.instance, self.rng = instance, np.random.default_rng(list(noise_seed))
        self.num_actions, self.terminated = 0, False
        self._start(instance)
        return self.observe()

    def step(self, action: str) -> Step:
        """Execute one action. Any string is accepted: an unknown one, or one after the end, changes nothing."""
        move = None if self.terminated or self.actions_left == 0 else self._read(action.strip())
        reward, success, effective = 0.0, False, False
        if move is not None:
            self.num_actions += 1
            reward, self.terminated, success, effective = self._move(move)
        info = {"success": success, "valid": move is not None, "effective": effective}
        return Step(self.observe(), reward, self.terminated, self.actions_left == 0 and not self.terminated, info)

    def _read(self, action: str):
        """What `_move` takes: an index into `actions`, elsewhere what the text means. None: it is no action."""
        return {name.lower(): index for index, name in enumerate(self.actions)}.get(action.lower())

    @property
    def actions_left(self) -> int:
        return self.max_actions - self.num_actions

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """What a supervised demonstration does here: `count` moves of the optimal plan, fewer where the game ends."""
        return self.plan(count, self.actions_left)

    def greedy(self) -> str:
        """The action of a player who looks no further than the next step; here that of the best."""
        return self.plan(1, 1)[0]

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """`count` random legal actions."""
        return rng.choice(self.actions, count).tolist()

    def optimal_length(self) -> int | None:
        """Actions of a shortest solution when every move goes as intended; None: unsolvable."""
        return 1


class Bandit(Env):
    """Two arms known by name only. Low arm: 0.1 for sure; high arm: 1 with probability 0.25, else 0. One action."""

    PAIRS = {  # low arm/high arm; `jobs_test` is for generalisation only
        "phoenix": "Phoenix/Dragon", "trader": "Trader/Librarian", "engineer": "Engineer/Teacher",
        "teacher": "Teacher/Engineer", "librarian": "Librarian/Trader",
        "jobs": "Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker "
        "Engineer/RealEstateAgent Pharmacist/Musician Clerk/Freelancer Technician/Youtuber Planner/Artist "
        "Postman/Pilot Banker/VentureCapitalist Gardener/Cryptominer",
        "jobs_test": "Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant SocialWorker/Photographer "
        "Mechanic/GameDesigner Secretary/Entrepreneur Cashier/DataScientist CivilServant/StartupAccelerator",
    }  # fmt: skip
    LOW, HIGH_PROB = 0.1, 0.25
    repeats = True  # two prompts a pair: training and evaluation share them

    def __init__(self, *, pair: str = "phoenix", **common):
        super().__init__(**(common | {"max_actions": 1}))  # the game is one choice
        if pair not in self.PAIRS:
            raise ValueError(f"bandit pair must be one of {', '.join(self.PAIRS)}, got {pair!r}")
        self.pair = pair

    def draw(self, rng: np.random.Generator) -> tuple:
        low, high = rng.choice(self.PAIRS[self.pair].split()).split("/")
        return ("bandit", low, high, bool(rng.integers(2)))

    def _start(self, instance: tuple) -> None:
        _, self.low, self.high, swap = instance
        self.actions = (self.high, self.low) if swap else (self.low, self.high)

    def _move(self, index: int) -> tuple[float, bool, bool, bool]:
        if self.actions[index] == self.low:
            return self.LOW, True, False, True
        return float(self.rng.random() < self.HIGH_PROB), True, True, True

    def observe(self) -> str:
        return f"Arms: {self.actions[0]}, {self.actions[1]}"

    def rules(self) -> str:
        return ("Choose one of two arms by its name. Each pays by its own unknown distribution; choose the arm that "
                "pays more on average.")  # fmt: skip

    def statements(self) -> list[str]:
        return [f"The arms are {self.actions[0]} and {self.actions[1]}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [self.high]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        return [self.actions[rng.integers(2)]]  # nothing on the screen tells which arm is better: RL has to find out

    def greedy(self) -> str:
        return self.low  # the arm whose name says nothing and whose payment is sure


class Grid(Env):
    """What FrozenLake and Sokoban share: cells numbered row by row, four moves, offsets in words."""

    size: int

    def _offset(self, a: int, b: int) -> str:
        """Where cell b lies as seen from cell a, such as '2 down 1 right'."""
        (ra, ca), (rb, cb) = divmod(a, self.size), divmod(b, self.size)
        ways = ((rb - ra, "up", "down"), (cb - ca, "left", "right"))
        return " ".join(f"{abs(n)} {more if n > 0 else less}" for n, less, more in ways if n) or "here"

    def _distance(self, a: int, b: int) -> int:
        (ra, ca), (rb, cb) = divmod(a, self.size), divmod(b, self.size)
        return abs(ra - rb) + abs(ca - cb)

    def _place(self, cell: int) -> str:
        return f"({cell // self.size + 1},{cell % self.size + 1})"

    def _legend(self, relations: str) -> str:
        coord = " Places are (row,column), counted from 1 at the top left."
        return {"grid": "", "coord": coord, "relations": f" Below the board: {relations}."}[self.observation_mode]

    def _rows(self, symbol: Callable[[int], str]) -> str:
        return "\n".join("".join(symbol(r * self.size + c) for c in range(self.size)) for r in range(self.size))

    def words(self, cells: Iterable[int]) -> str:
        """What lies on these cells, by the words that relations and statements use."""
        return " ".join(map(self.word, cells))

    def observe(self) -> str:
        extra = {"grid": str, "coord": self.coordinates, "relations": self.relations}[self.observation_mode]()
        return f"{self.render()}\n{extra}".rstrip()


class FrozenLake(Grid):
    """Walk from a random start to a random goal over ice with holes; a move slips to one side with some probability.

    Boards are drawn as upstream draws them: every cell is ice with `frozen_prob`, start and goal differ, a path exists.
    `success_rate` is the probability of the intended direction; the rest is shared by the two perpendicular ones."""

    actions = ("Left", "Down", "Right", "Up")
    DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))

    def __init__(self, *, size: int = 4, frozen_prob: float = 0.8, success_rate: float = 0.8, **common):
        super().__init__(**common)
        if not (2 <= size <= 9 and 0 < frozen_prob <= 1 and 0 < success_rate <= 1):
            raise ValueError("frozenlake wants size 2..9, 0 < frozen_prob <= 1, 0 < success_rate <= 1, got "
                             f"size={size}, frozen_prob={frozen_prob}, success_rate={success_rate}")  # fmt: skip
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
        before, self.player = self.player, lake_neighbour(self.size, self.player, (index + turn) % 4)
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
            before, cell = cell, lake_neighbour(self.size, cell, self.actions.index(word.capitalize()))
            if cell == before:
                return "edge"
        return self.word(cell)

    def relations(self) -> str:
        words = self._offset(self.player, self.goal).split()  # 2 down 1 right
        ahead, away = words[1::2], [word for word in map(str.lower, self.actions) if word not in words]
        far = zip(words[::2], ahead, strict=False)  # "here" has no second word
        ways = [f"{n} {way} {self._kind(way)} {self._kind(way, way)}" for n, way in far]
        ways += [f"corner {self._kind(*ahead)}"] if len(ahead) == 2 else []
        return f"Away {', '.join(f'{word} {self._kind(word)}' for word in away)}. Goal {', '.join(ways)}."

    def rules(self) -> str:
        slip = f" A move slips to one side with probability {round(1 - self.success_rate, 4):g}."
        slip = "" if self.success_rate == 1 else slip
        extra = self._legend("what is next to you, then one and two moves towards the goal; corner: one move each way")
        return f"You are P. Walk over ice _ to the goal G; a hole O ends the game.{slip}{extra}"

    def statements(self) -> list[str]:
        goal, words = self._offset(self.player, self.goal), [name.lower() for name in self.actions]
        way = " ".join(words[i] for i in lake_ways(self.size, self.holes, self.goal).get(self.player, ())[:5]) or "none"
        return [f"Next {' '.join(map(self._kind, words))}.", f"Goal {goal}.", f"Way {way}."]  # five moves fit in a turn

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
        plans = lake_plans(self.size, self.holes, self.goal, self.success_rate, max_actions, self.max_actions)
        code = int(plans[min(turns_left, self.max_actions), self.player, self.actions_left])
        return [self.actions[int(digit) - 1] for digit in np.base_repr(code, 5).strip("0")]  # 0: no move

    def greedy(self) -> str:
        """Walk to the goal blind to holes; where two directions approach it, the vertical one comes first."""
        return self._offset(self.player, self.goal).split()[1].capitalize()

    def optimal_length(self) -> int | None:
        return None if (way := lake_ways(self.size, self.holes, self.goal).get(self.player)) is None else len(way)


def lake_neighbour(size: int, cell: int, direction: int) -> int:
    """The cell reached from `cell` by going Left, Down, Right, Up (0..3); the border stops the move."""
    (row, col), (dr, dc) = divmod(cell, size), FrozenLake.DELTAS[direction]
    return min(max(row + dr, 0), size - 1) * size + min(max(col + dc, 0), size - 1)


@lru_cache(maxsize=4096)
def lake_ways(size: int, holes: frozenset, goal: int) -> dict[int, tuple]:
    """Moves of a shortest path to the goal, from every cell that has one: of the path with the fewest holes at the
    sides of its moves, into which they could slip. Ties: the order Left, Down, Right, Up."""
    risk, ways, queue = {}, {}, [goal]
    for cell in queue:  # which grows meanwhile: breadth first, so a neighbour with a way is nearer to the goal
        near = [lake_neighbour(size, cell, direction) for direction in range(4)]
        sides = [(near[i - 1] in holes) + (near[(i + 1) % 4] in holes) for i in range(4)]
        options = [(risk[n] + sides[i], (i, *ways[n])) for i, n in enumerate(near) if n in ways]
        risk[cell], ways[cell] = min(options, default=(0, ()))
        queue += {*near} - {*queue, *holes}
    return ways


@lru_cache(maxsize=1024)
def lake_plans(size: int, holes: frozenset, goal: int, success_rate: float, k: int, budget: int) -> np.ndarray:
    """Optimal commitments: result[t, cell, actions left] is an action tuple in base 5 (digits 1..4), t turns left.

    Value iteration over turns, V_t(s, a) = max over sequences q of 1..k actions of E[V_{t-1}(s', a - |q|)] - cost |q|,
    where goal and holes absorb. With k = 1 and as many turns as actions this is the closed-loop optimum. Ties: the
    shortest sequence, then the order Left, Down, Right, Up."""
    cells, side = size * size, (1.0 - success_rate) / 2
    single = np.zeros((4, cells, cells))  # (action, from, to)
    for action, cell, (turn, prob) in product(range(4), range(cells), ((-1, side), (0, success_rate), (1, side))):
        after = cell if cell == goal or cell in holes else lake_neighbour(size, cell, (action + turn) % 4)
        single[action, cell, after] += prob
    moves, codes = [single], [np.arange(1, 5)]  # moves[j - 1]: (4**j, from, to), one matrix per sequence of j actions
    for _ in range(min(k, budget) - 1):
        moves.append((moves[-1][:, None] @ single[None]).reshape(-1, cells, cells))
        codes.append((codes[-1][:, None] * 5 + codes[0]).reshape(-1))
    value, alive = np.zeros((cells, budget + 1)), np.ones((cells, 1))
    value[goal], value[list(holes)] = 1.0, -1e-4  # running out of turns is a little better than falling
    alive[[goal, *holes]] = 0.0
    plans = np.zeros((budget + 1, cells, budget + 1), dtype=np.int64)
    for t in range(1, budget + 1):
        best = np.full_like(value, -1.0)
        for j, (move, code) in enumerate(zip(moves, codes, strict=True), start=1):
            scores = (move @ value)[:, :, : budget + 1 - j] - TIE_BREAK * j * alive  # (4**j, from, left after)
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
    SYMBOLS = {"default": "#_O√XPS", "newvocab": "W.GCBA@"}  # wall, floor, target, box on it, box, you, you on target
    MASKS = (((1, 0), (1, 1), (1, 2)), ((0, 1), (1, 1), (2, 1)), ((1, 0), (1, 1), (2, 1)),
             ((1, 0), (1, 1), (2, 0), (2, 1)), ((1, 1), (1, 2), (2, 1)))  # fmt: skip

    def __init__(self, *, size: int = 6, boxes: int = 1, search_depth: int = 300, symbols: str = "default", **common):
        super().__init__(**common)
        if not (5 <= size <= 12 and 1 <= boxes <= 4 and search_depth >= 2):
            raise ValueError("sokoban wants size 5..12, boxes 1..4 and search_depth >= 2, got "
                             f"size={size}, boxes={boxes}, search_depth={search_depth}")  # fmt: skip
        if symbols not in self.SYMBOLS:
            raise ValueError(f"sokoban symbols must be one of {', '.join(self.SYMBOLS)}, got {symbols!r}")
        self.max_reward = 10.0 + boxes
        self.size, self.num_boxes, self.search_depth, self.symbols = size, boxes, search_depth, symbols
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
            return ("sokoban", self.symbols, self.size, tuple(sorted(floor)), targets, player, tuple(sorted(boxes)))
        raise ValueError(f"no sokoban room with size={self.size}, boxes={self.num_boxes}, search_depth="
                         f"{self.search_depth} in {MAX_DRAWS} attempts; use a larger room, fewer boxes or more depth")

    def _topology(self, rng: np.random.Generator) -> set[int]:
        """Floor cells of a random walk that stamps one of five masks on each of 1.7 * (height + width) steps."""
        size, directions = self.size, ((1, 0), (0, 1), (-1, 0), (0, -1))
        direction, (row, col) = directions[rng.integers(4)], rng.integers(1, size, size=2)
        floor = set()
        for _ in range(int(1.7 * 2 * size)):
            if rng.random() < 0.35:
                direction = directions[rng.integers(4)]
            row, col = (min(max(int(x) + d, 1), size - 2) for x, d in zip((row, col), direction, strict=True))
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

    def _random_walk(self, rng: np.random.Generator, floor: set[int], player: int, boxes: tuple, prob: float) -> int:
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
        boxes, targets = (" ".join(self._place(c) for c in sorted(s)) for s in (self.boxes, self.targets))
        return f"Player {self._place(self.player)}. Boxes {boxes}. Targets {targets}."

    def _target_of(self, box: int) -> int:
        """The target that the text names for a box: its own cell, or the nearest uncovered one (lowest cell first)."""
        free = [box] if box in self.targets else sorted(self.targets - set(self.boxes)) or sorted(self.targets)
        return min(free, key=lambda cell: self._distance(box, cell))

    def word(self, cell: int) -> str:
        if cell == self.player or cell in self.boxes:
            return "you" if cell == self.player else "box"
        return "target" if cell in self.targets else "floor" if cell in self.floor else "wall"

    def _around(self, cell: int) -> str:
        return self.words(cell + delta for delta in self.deltas)

    def relations(self) -> str:
        lines = [f"Box {self._offset(self.player, box)}, its target {self._offset(box, self._target_of(box))}, "
                 f"around it {self._around(box)}." for box in self.boxes]  # fmt: skip
        return "\n".join([*lines, f"Next {self._around(self.player)}."])

    def rules(self) -> str:
        wall, ground, target, box_on, box, you, you_on = self.alphabet
        extra = self._legend("the way to the box, from it to its target, and what is around it and you, up to right")
        return (f"Push every box {box} onto a target {target}. You are {you}, on a target {you_on}; a box on a target "
                f"is {box_on}. Walk into a box to push it; a wall {wall} or another box behind it stops the push. "
                f"Floor is {ground}. Reward -0.1 an action, 1 for a box on a target (-1 off it), 10 when all are."
                f"{extra}")  # fmt: skip

    def statements(self) -> list[str]:
        ways = [way for b in self.boxes for way in (("Box", self.player, b), ("Target", b, self._target_of(b)))]
        return [f"Next {self._around(self.player)}.", *(f"{name} {self._offset(a, b)}." for name, a, b in ways)]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """The first `max_actions` moves of a shortest solution (breadth-first search); [] where none exists."""
        return [self.actions[i] for i in (self._solution() or ())[:max_actions]]

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

    def optimal_length(self) -> int | None:
        return None if (path := self._solution()) is None else len(path)

    def _solution(self) -> tuple | None:
        return sokoban_solution(self.floor, self.targets, self.player, self.boxes, self.deltas)


def sokoban_move(floor: frozenset, player: int, boxes: tuple, delta: int) -> tuple[int, tuple] | None:
    """(player, boxes) after a move or push by `delta`, or None where it is blocked. Boxes stay sorted."""
    ahead, beyond = player + delta, player + 2 * delta
    if ahead not in floor or (ahead in boxes and (beyond not in floor or beyond in boxes)):
        return None
    return ahead, tuple(sorted(beyond if box == ahead else box for box in boxes)) if ahead in boxes else boxes


@lru_cache(maxsize=16384)
def sokoban_solution(floor: frozenset, targets: frozenset, player: int, boxes: tuple, deltas: tuple) -> tuple | None:
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


ENVS = {"bandit": "envs:Bandit", "frozenlake": "envs:FrozenLake", "sokoban": "envs:Sokoban",  # imported when used
        "countdown": "countdown:Countdown", "quest": "worlds:Quest", "household": "worlds:Household",
        "repair": "repair:Repair", "textworld": "adapters:TextWorld", "alfworld": "adapters:ALFWorld",
        "swe": "sandbox:SWE"}  # fmt: skip


@lru_cache
def find_class(place: str) -> type[Env]:
    """The environment that 'module:Class' or 'path/to/file.py:Class' names. Raises: ValueError where there is none."""
    source, _, name = place.rpartition(":")
    names = runpy.run_path(source) if source.endswith(".py") else vars(importlib.import_module(source))
    if not (isinstance(names.get(name), type) and issubclass(names[name], Env)):
        raise ValueError(f"{source} has no environment {name!r}; name one as {source}:CLASS, a subclass of envs.Env")
    return names[name]


def make_env(spec: str, *, observation: str = "grid", max_actions: int = 10) -> Env:
    """Build an environment from 'name', 'name:key=value,key=value' or 'path/to/file.py:Class,key=value'. Raises:
    ValueError that names the unknown environment or key, what was expected, and near names.
    >>> make_env("frozenlake:size=5,success_rate=1").size
    5
    """
    name, _, options = spec.partition(":")
    if name not in ENVS and not name.endswith(".py"):
        near = difflib.get_close_matches(name, ENVS, n=3) or list(ENVS)
        raise ValueError(f"unknown environment {name!r} in env={spec!r}; did you mean {', '.join(near)}?")
    own, _, rest = options.partition(",")
    place, options = (ENVS[name], options) if name in ENVS else (f"{name}:{own}", rest)
    legal, kwargs = find_class(place).__init__.__kwdefaults__ or {}, {}
    for item in filter(None, options.split(",")):
        key, _, value = item.partition("=")
        if key not in legal or key in ("observation", "max_actions"):  # these are settings of their own
            near = difflib.get_close_matches(key, legal, n=3) or list(legal)
            raise ValueError(f"unknown option {key!r} in env={spec!r}; {name} has {', '.join(near)}")
        try:
            kwargs[key] = type(legal[key])(value)
        except ValueError as error:
            raise ValueError(f"{key} in env={spec!r} must be {type(legal[key]).__name__}, got {value!r}") from error
    env = find_class(place)(**kwargs, observation=observation, max_actions=max_actions)
    env.spec = spec
    return env


def stage_of(text: str, iteration: int | None = None) -> dict[str, float]:
    """Environments of a curriculum at an iteration (None: in its last stage), each with its share of the groups.

    'A + 2*B' mixes A and B as 1 to 2; 'A @50 > B' is A in iterations 0 to 49, then B; a stage may be a mixture.
    Raises: ValueError for a missing, surplus or not rising @N, an empty part, a weight of 0, or by `make_env`.
    >>> stage_of("frozenlake @50 > sokoban + 3*bandit", 50)
    {'sokoban': 0.25, 'bandit': 0.75}
    """
    stages = [re.fullmatch(r"(.*?)(?:@\s*(\d+)\s*)?", stage, re.DOTALL).groups() for stage in text.split(">")]
    ends = [0, *(float(end or "inf") for _, end in stages)]
    if ends != sorted(set(ends)) or stages[-1][1]:
        raise ValueError(f"all stages but the last, and only they, must end in @N, N rising from 1; got env={text!r}")
    mixtures = [_shares(mixture, text) for mixture, _ in stages]
    return mixtures[sum(iteration is None or end <= iteration for end in ends[1:-1])]


def _shares(mixture: str, text: str) -> dict[str, float]:
    weights = {}
    for part in mixture.split("+"):
        match = re.fullmatch(r"\s*(?:(\d*\.?\d+)\s*\*)?\s*([^*@\s]+)\s*", part)
        weight = float(match[1] or 1) if match else 0.0
        if weight == 0:
            raise ValueError(f"{part.strip()!r} in env={text!r} must be ENV or WEIGHT*ENV with a weight above 0")
        spec = make_env(match[2]).spec
        weights[spec] = weights.get(spec, 0.0) + weight
    return {spec: weight / sum(weights.values()) for spec, weight in weights.items()}


# ---------- instances


@lru_cache(maxsize=64)
def reserved_instances(spec: str) -> dict[str, tuple]:
    """256 distinct evaluation instances and 256 held-out ones, from fixed seeds; just drawn where prompts repeat."""
    env, taken, splits = make_env(spec), set(), {}
    for split in ("eval", "heldout"):
        rng, drawn = np.random.default_rng([EVAL_SEED, SPLITS.index(split)]), []
        while len(drawn) < SPLIT_SIZE:
            drawn.append(_draw_outside(env, rng, taken))
            taken.add(drawn[-1])
        splits[split] = tuple(drawn)
    return splits


def _draw_outside(env: Env, rng: np.random.Generator, taken: set) -> tuple:
    for _ in range(MAX_DRAWS):
        if (instance := env.draw(rng)) not in taken or env.repeats:
            return instance
    raise ValueError(f"env={env.spec!r} has too few different instances to keep {len(taken)} apart from training")


@lru_cache(maxsize=64)  # the members of a group share it
def draw_instance(spec: str, path: tuple[int, ...], split: str) -> tuple:
    """The instance of (split, seed path); instances are tuples that serve as their own canonical keys."""
    reserved = reserved_instances(spec)
    if split != "train":
        if len(path) != 1 or not 0 <= path[0] < SPLIT_SIZE:
            raise ValueError(f"an index of the {split} split is one integer in [0, {SPLIT_SIZE}), got {list(path)}")
        return reserved[split][path[0]]
    return _draw_outside(make_env(spec), np.random.default_rng(list(path)), {*reserved["eval"], *reserved["heldout"]})


if __name__ == "__main__":
    runpy.run_module("dialogue", run_name="__main__")  # which stands above
