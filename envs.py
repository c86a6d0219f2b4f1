"""Environments: one protocol (`Env`), the Bandit, how others are found and mixed, and instances in disjoint splits.

    python envs.py frozenlake --seed=3             # play it: through the prompt and the parser of the policy
    python envs.py sokoban --seed=3 --expert       # see the optimal player, or --random

Rules, symbols, rewards and budgets are RAGEN's (arXiv 2504.20073, github.com/RAGEN-AI/RAGEN). What differs, on purpose:
- members of a group share the instance but not the transition noise (upstream shares both, so slips repeat);
- a seed means the same instance in every process: nothing depends on `hash()` or global random state;
- splits are disjoint by instance, not only by seed, as small boards repeat.
"""

from configurator import UserError, check_type, parse_text

import difflib
import importlib
import re
import runpy
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

SPLITS = (
    "train",
    "eval",
    "heldout",
)  # eval: the fixed prompts that are reported; heldout: for choosing settings
SPLIT_SIZE, EVAL_SEED = 256, 123
OBSERVATIONS = ("grid", "coord", "relations")
TRANSITIONS = 7  # purpose number that keeps transition noise apart from instance noise
MAX_DRAWS = 20_000  # attempts to draw an instance before the options are called impossible


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

    actions: tuple[
        str, ...
    ] = ()  # names; () in a class whose instances name their own, or read any text (`_read`)
    repeats = False  # True: so few distinct prompts that splits cannot be disjoint (Bandit)
    max_reward = 1.0  # what a success pays
    also_reserved: tuple[
        str, ...
    ] = ()  # environments whose reserved instances are no training instances either
    blocking = False  # True: a step takes long (it waits for a program or a server) and is done in a thread

    def __init__(self, *, observation: str = "grid", max_actions: int = 10):
        if observation not in OBSERVATIONS:
            raise UserError(
                f"observation must be one of {', '.join(OBSERVATIONS)}, got {observation!r}"
            )
        self.observation_mode, self.max_actions = observation, max_actions

    def reset(self, seed: int | Sequence[int], *, split: str = "train", member: int = 0) -> str:
        """Start the instance named by (split, seed); `member` of a group changes the transition noise only. `seed`: for
        "train" any integer or sequence of integers >= 0, for "eval" and "heldout" an index below 256.

        Returns: the first observation. Raises: UserError for an unknown split or an index outside of it."""
        if split not in SPLITS:
            raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        path = (int(seed),) if isinstance(seed, (int, np.integer)) else tuple(int(s) for s in seed)
        instance = draw_instance(self.spec, path, split, self.also_reserved)
        return self.start(instance, [TRANSITIONS, SPLITS.index(split), *path, member])

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
        return Step(
            self.observe(),
            reward,
            self.terminated,
            self.actions_left == 0 and not self.terminated,
            info,
        )

    def key(self, instance: tuple) -> tuple:
        """The same for all instances that are the same game."""
        return instance

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

    def optimal_length(self) -> int:
        """Actions of a shortest solution when every move goes as intended; 0: there is none."""
        return len(self.plan(999, 999))


class Bandit(Env):
    """Two arms known by name only. Low arm: 0.1 for sure; high arm: 1 with probability 0.25, else 0. One action."""

    PAIRS = {  # low arm/high arm; `jobs_test` is for generalisation only
        "phoenix": "Phoenix/Dragon",
        "trader": "Trader/Librarian",
        "engineer": "Engineer/Teacher",
        "teacher": "Teacher/Engineer",
        "librarian": "Librarian/Trader",
        "jobs": "Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker "
        "Engineer/RealEstateAgent Pharmacist/Musician Clerk/Freelancer Technician/Youtuber Planner/Artist "
        "Postman/Pilot Banker/VentureCapitalist Gardener/Cryptominer",
        "jobs_test": "Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant SocialWorker/Photographer "
        "Mechanic/GameDesigner Secretary/Entrepreneur Cashier/DataScientist CivilServant/StartupAccelerator",
    }
    LOW, HIGH_PROB = 0.1, 0.25
    repeats = True  # two prompts a pair: training and evaluation share them

    def __init__(self, *, pair: str = "phoenix", **common):
        super().__init__(**(common | {"max_actions": 1}))  # the game is one choice
        if pair not in self.PAIRS:
            raise UserError(f"bandit pair must be one of {', '.join(self.PAIRS)}, got {pair!r}")
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
        return (
            "Choose one of two arms by its name. Each pays by its own unknown distribution; choose the arm that "
            "pays more on average."
        )

    def statements(self) -> list[str]:
        return [f"The arms are {self.actions[0]} and {self.actions[1]}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [self.high]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        return [
            self.actions[rng.integers(2)]
        ]  # nothing on the screen tells which arm is better: RL has to find out

    def greedy(self) -> str:
        return self.low  # the arm whose name says nothing and whose payment is sure


ENVS = {
    "bandit": "envs:Bandit",
    "frozenlake": "grids:FrozenLake",
    "sokoban": "grids:Sokoban",  # imported when used
    "countdown": "worlds.countdown:Countdown",
    "quest": "worlds.text_worlds:Quest",
    "household": "worlds.text_worlds:Household",
    "repair": "worlds.repair:Repair",
    "textworld": "worlds.adapters:TextWorld",
    "alfworld": "worlds.adapters:ALFWorld",
    "swe": "worlds.sandbox:SWE",
}


@lru_cache
def find_class(place: str) -> type[Env]:
    """The environment that 'module:Class' or 'path/to/file.py:Class' names. Raises: UserError where there is none."""
    source, _, name = place.rpartition(":")
    try:
        names = (
            runpy.run_path(source)
            if source.endswith(".py")
            else vars(importlib.import_module(source))
        )
    except Exception as error:  # of anybody's code
        raise UserError(f"{source} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(names.get(name), type) and issubclass(names[name], Env)):
        raise UserError(
            f"{source} has no environment {name!r}; name one as {source}:CLASS, a subclass of envs.Env"
        )
    return names[name]


def make_env(spec: str, *, observation: str = "grid", max_actions: int = 10) -> Env:
    """Build an environment from 'name', 'name:key=value,key=value' or 'path/to/file.py:Class,key=value'. Raises:
    UserError that names the unknown environment or key, what was expected, and near names.
    >>> make_env("frozenlake:size=5,success_rate=1").size
    5
    """
    name, _, options = spec.partition(":")
    if name not in ENVS and not name.endswith(".py"):
        near = difflib.get_close_matches(name, ENVS, n=3) or list(ENVS)
        raise UserError(
            f"unknown environment {name!r} in env={spec!r}; did you mean {', '.join(near)}?"
        )
    own, _, rest = options.partition(",")
    place, options = (ENVS[name], options) if name in ENVS else (f"{name}:{own}", rest)
    legal, kwargs = find_class(place).__init__.__kwdefaults__ or {}, {}
    for item in filter(None, options.split(",")):
        key, _, value = item.partition("=")
        if key not in legal or key in (
            "observation",
            "max_actions",
        ):  # these are settings of their own
            near = difflib.get_close_matches(key, legal, n=3) or list(legal)
            raise UserError(f"unknown option {key!r} in env={spec!r}; {name} has {', '.join(near)}")
        wanted = type(legal[key])
        kwargs[key] = check_type(key, parse_text(value, wanted), wanted, f"env={spec!r}")
    env = find_class(place)(**kwargs, observation=observation, max_actions=max_actions)
    env.spec = spec
    return env


def mixture_at(text: str, iteration: int | None = None) -> dict[str, float]:
    """Environments of a curriculum at an iteration (None: in its last stage), each with its share of the groups.

    'A + 2*B' mixes A and B as 1 to 2; 'A @50 > B' is A in iterations 0 to 49, then B; a stage may be a mixture.
    Raises: UserError for a missing, surplus or not rising @N, an empty part, a weight of 0, or by `make_env`.
    >>> mixture_at("frozenlake @50 > sokoban + 3*bandit", 50)
    {'sokoban': 0.25, 'bandit': 0.75}
    """
    ends, mixtures = _stages(text)
    return mixtures[sum(iteration is None or end <= iteration for end in ends[1:-1])]


@lru_cache
def env_specs(*texts: str) -> tuple[str, ...]:
    """All environments that curricula name, each once; '' names none."""
    return tuple(
        dict.fromkeys(
            spec for text in filter(None, texts) for shares in _stages(text)[1] for spec in shares
        )
    )


def _stages(text: str) -> tuple[list[float], list[dict[str, float]]]:
    stages = [
        re.fullmatch(r"(.*?)(?:@\s*(\d+)\s*)?", stage, re.DOTALL).groups()
        for stage in text.split(">")
    ]
    ends = [0, *(float(end or "inf") for _, end in stages)]
    if ends != sorted(set(ends)) or stages[-1][1]:
        raise UserError(
            f"all stages but the last, and only they, must end in @N, N rising from 1; got env={text!r}"
        )
    return ends, [_shares(mixture, text) for mixture, _ in stages]


def _shares(mixture: str, text: str) -> dict[str, float]:
    weights = {}
    for part in mixture.split("+"):
        match = re.fullmatch(r"\s*(?:(\d*\.?\d+)\s*\*)?\s*([^*@\s]+)\s*", part)
        weight = float(match[1] or 1) if match else 0.0
        if weight == 0:
            raise UserError(
                f"{part.strip()!r} in env={text!r} must be ENV or WEIGHT*ENV with a weight above 0"
            )
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
            taken.add(env.key(drawn[-1]))
        splits[split] = tuple(drawn)
    return splits


@lru_cache(maxsize=64)
def reserved_keys(*specs: str) -> frozenset:
    """The keys of all reserved instances of these environments."""
    return frozenset(
        make_env(s).key(i) for s in specs for part in reserved_instances(s).values() for i in part
    )


def _draw_outside(env: Env, rng: np.random.Generator, taken: set | frozenset) -> tuple:
    for _ in range(MAX_DRAWS):
        if env.key(instance := env.draw(rng)) not in taken or env.repeats:
            return instance
    raise UserError(
        f"env={env.spec!r} has too few different instances to keep {len(taken)} apart from training"
    )


@lru_cache(maxsize=64)  # the members of a group share it
def draw_instance(
    spec: str, path: tuple[int, ...], split: str, others: tuple[str, ...] = ()
) -> tuple:
    """The instance, a tuple, of (split, seed path). `others`: more environments whose reserved instances are not for
    training."""
    reserved = reserved_instances(spec)
    if split != "train":
        if len(path) != 1 or not 0 <= path[0] < SPLIT_SIZE:
            raise UserError(
                f"an index of the {split} split is one integer in [0, {SPLIT_SIZE}), got {list(path)}"
            )
        return reserved[split][path[0]]
    return _draw_outside(
        make_env(spec), np.random.default_rng(list(path)), reserved_keys(spec, *others)
    )


if __name__ == "__main__":
    runpy.run_module("dialogue", run_name="__main__")  # which stands above
