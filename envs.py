"""Environments: the protocol `Env`, the Bandit, specs and mixtures of environments, and splits.

docs/environments.md lists all environments and says how to write your own.

Rules, symbols, rewards and budgets are RAGEN's (arXiv 2504.20073, github.com/RAGEN-AI/RAGEN), with
three deliberate differences:
- Members of a group share the instance but not the transition noise. RAGEN shares both, so all
  members of a group slip at the same time.
- A seed gives the same instance in every process. Nothing depends on `hash()` or on a global
  random state.
- Splits have no instance in common. Different seeds alone do not ensure this, because small boards
  repeat.
"""

from configurator import UserError, check_type, parse_text, run_main

import difflib
import importlib
import re
import runpy
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

# train: drawn anew for every seed; eval: 256 fixed prompts that results report;
# heldout: 256 other fixed prompts, for choosing settings
SPLITS = ("train", "eval", "heldout")
SPLIT_SIZE = 256  # instances in each of the two fixed splits
EVAL_SEED = 123  # seed of the fixed splits
OBSERVATIONS = ("grid", "coord", "relations")
SEED_TRANSITIONS = 7  # purpose number in the seed of transition noise
MAX_DRAWS = 20_000  # attempts to draw an instance before the options count as impossible


# ---------- the protocol


class Step(NamedTuple):
    """What `Env.step` returns: the effect of one action."""

    observation: str
    reward: float
    terminated: bool  # the game ended by its rules
    truncated: bool  # the action budget ran out
    success: bool  # the game ended and was won
    valid: bool  # the text was a legal action
    effective: bool  # the action changed something


class Move(NamedTuple):
    """What `Env._move` returns. A plain tuple of the same four values works as well."""

    reward: float
    terminated: bool  # the game ended by its rules
    success: bool  # the game ended and was won
    effective: bool  # the action changed something


class Env:
    """The protocol of an environment. Subclass it to write your own.

    A subclass must define:
        actions: tuple[str, ...]
            The names of the actions; () if `_read` reads free text.
        draw(rng: np.random.Generator) -> tuple
            A random instance: a name, then everything that the start of the game depends on.
        _start(instance: tuple) -> None
            Begin this instance.
        _move(move: int) -> Move
            Execute `actions[move]`, or the action that `_read` returned.
        observe() -> str
            The observation that the policy gets in each turn.
        rules() -> str
            The description of the game in the system message.
        statements() -> list[str]
            True sentences about the present state. Thoughts are checked against them.
        plan(max_actions: int, turns_left: int) -> list[str]
            The best next actions, at most `max_actions`; [] if the game cannot be won.

    A subclass may override:
        repeats: bool, max_reward: float, blocking: bool, runs_programs: bool
            See the class attributes below.
        key(instance: tuple) -> Hashable
            A value that is equal for instances that are the same game.
        _read(action: str) -> Any
            The argument of `_move` for this text; None if the action is illegal.
        greedy() -> str
            The action of the reference player "greedy".
        random(count: int, rng: np.random.Generator) -> list[str]
            Actions of the reference player "random".
        demonstrate(count: int, rng: np.random.Generator) -> list[str]
            Actions of a supervised demonstration, at most `count`.
        optimal_length() -> int
            The number of actions of a shortest solution.

    The keyword-only arguments of `__init__` with a default are the options of the environment, as
    in `--env=frozenlake:size=5`. `__init__` passes all other arguments on, with
    `super().__init__(**common)`. Noise during the game must come from `self.rng`. `start` sets it.
    """

    actions: tuple[str, ...] = ()
    repeats = False  # True: too few distinct instances for disjoint splits, as in the Bandit
    max_reward = 1.0  # total reward of a success
    blocking = False  # True: a step waits for a program or a server, so it runs in a thread
    # True: it runs programs or reads files. The command line must name it, because the settings
    # that a run's folder holds may be somebody else's.
    runs_programs = False

    spec: str  # the text that names this environment and its options; `make_env` sets it
    # Specs of other environments. Training does not draw the instances of their fixed splits.
    also_reserved: tuple[str, ...] = ()

    def __init__(self, *, observation: str = "grid", max_actions: int = 10):
        if observation not in OBSERVATIONS:
            raise UserError(
                f"observation must be one of {', '.join(OBSERVATIONS)}, got {observation!r}"
            )
        self.observation_mode = observation
        self.max_actions = max_actions

    def reset(self, seed: int | Sequence[int], *, split: str = "train", member: int = 0) -> str:
        """Start the instance of this split and seed.

        Args:
            seed: for "train", an integer >= 0 or a sequence of them; else an index below 256.
            split: one of SPLITS.
            member: position in the group; it changes the transition noise and nothing else.
        Returns:
            The first observation.
        Raises:
            UserError: the split is unknown, or the index is outside of the split.
        """
        if split not in SPLITS:
            raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if isinstance(seed, (int, np.integer)):
            seed = (seed,)
        numbers = tuple(int(number) for number in seed)
        instance = draw_instance(self.spec, numbers, split, self.also_reserved)
        return self.start(instance, [SEED_TRANSITIONS, SPLITS.index(split), *numbers, member])

    def start(self, instance: tuple, noise_seed: Sequence[int]) -> str:
        """Start an instance that `draw` made, with transition noise from `noise_seed`.

        Returns: the first observation.
        """
        self.instance = instance
        self.rng = np.random.default_rng(list(noise_seed))
        self.num_actions = 0
        self.terminated = False
        self._start(instance)
        return self.observe()

    def step(self, action: str) -> Step:
        """Execute one action. Any string is accepted; an illegal action changes nothing.

        After the end of the game, and without actions left, no action is legal.
        """
        over = self.terminated or self.actions_left == 0
        move = None if over else self._read(action.strip())
        result = Move(reward=0.0, terminated=self.terminated, success=False, effective=False)
        if move is not None:
            self.num_actions += 1
            result = Move(*self._move(move))
            self.terminated = result.terminated
        return Step(
            observation=self.observe(),
            reward=result.reward,
            terminated=self.terminated,
            truncated=self.actions_left == 0 and not self.terminated,
            success=result.success,
            valid=move is not None,
            effective=result.effective,
        )

    @property
    def actions_left(self) -> int:
        return self.max_actions - self.num_actions

    def key(self, instance: tuple) -> Hashable:
        """A value that is equal for instances that are the same game."""
        return instance

    def _read(self, action: str) -> Any:
        """The argument of `_move` for this text: an index into `actions`, or None if illegal."""
        indices = {name.lower(): index for index, name in enumerate(self.actions)}
        return indices.get(action.lower())

    def greedy(self) -> str:
        """The action of a player that looks one step ahead; by default the optimal one."""
        return self.plan(1, 1)[0]

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """`count` random legal actions."""
        return rng.choice(self.actions, count).tolist()

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """The actions of a supervised demonstration: at most `count`, by default optimal ones."""
        return self.plan(count, self.actions_left)

    def optimal_length(self) -> int:
        """Actions of a shortest solution if no move slips; 0 if there is no solution."""
        return len(self.plan(999, 999))


# ---------- the Bandit


class Bandit(Env):
    """One choice between two arms. Only their names tell them apart.

    The low arm always pays 0.1. The high arm pays 1 with probability 0.25, else 0.
    """

    PAIRS = {  # low arm/high arm; `jobs_test` is for tests of generalisation
        "phoenix": "Phoenix/Dragon",
        "trader": "Trader/Librarian",
        "engineer": "Engineer/Teacher",
        "teacher": "Teacher/Engineer",
        "librarian": "Librarian/Trader",
        "jobs": "Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker "
        "Engineer/RealEstateAgent Pharmacist/Musician Clerk/Freelancer Technician/Youtuber "
        "Planner/Artist Postman/Pilot Banker/VentureCapitalist Gardener/Cryptominer",
        "jobs_test": "Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant "
        "SocialWorker/Photographer Mechanic/GameDesigner Secretary/Entrepreneur "
        "Cashier/DataScientist CivilServant/StartupAccelerator",
    }
    LOW_REWARD = 0.1
    HIGH_PROB = 0.25  # probability that the high arm pays 1
    repeats = True  # a pair gives two prompts, so training and evaluation share them

    def __init__(self, *, pair: str = "phoenix", **common):
        common["max_actions"] = 1  # the game is one choice
        super().__init__(**common)
        if pair not in self.PAIRS:
            raise UserError(f"bandit pair must be one of {', '.join(self.PAIRS)}, got {pair!r}")
        self.pair = pair

    def draw(self, rng: np.random.Generator) -> tuple:
        low, high = rng.choice(self.PAIRS[self.pair].split()).split("/")
        high_is_first = bool(rng.integers(2))
        return ("bandit", low, high, high_is_first)

    def _start(self, instance: tuple) -> None:
        _, self.low, self.high, high_is_first = instance
        self.actions = (self.high, self.low) if high_is_first else (self.low, self.high)

    def _move(self, index: int) -> Move:
        if self.actions[index] == self.low:
            return Move(self.LOW_REWARD, terminated=True, success=False, effective=True)
        reward = float(self.rng.random() < self.HIGH_PROB)
        return Move(reward, terminated=True, success=True, effective=True)

    def observe(self) -> str:
        return f"Arms: {self.actions[0]}, {self.actions[1]}"

    def rules(self) -> str:
        return (
            "Choose one of two arms by its name. Each pays by its own unknown distribution; "
            "choose the arm that pays more on average."
        )

    def statements(self) -> list[str]:
        return [f"The arms are {self.actions[0]} and {self.actions[1]}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [self.high]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """A random arm. The prompt does not tell which arm is better, so RL has to find it out."""
        return [self.actions[rng.integers(2)]]

    def greedy(self) -> str:
        """The arm with the certain payment."""
        return self.low


# ---------- finding and building environments


ENVS = {  # name in --env -> "module:Class"; `make_env` imports the module
    "bandit": "envs:Bandit",
    "frozenlake": "grids:FrozenLake",
    "sokoban": "grids:Sokoban",
    "countdown": "worlds.countdown:Countdown",
    "quest": "worlds.quest:Quest",
    "household": "worlds.household:Household",
    "repair": "worlds.repair:Repair",
    "textworld": "worlds.textworld:TextWorld",
    "alfworld": "worlds.alfworld:ALFWorld",
    "swe": "worlds.swe:SWE",
}
COMMON_OPTIONS = ("observation", "max_actions")  # these have settings of their own


def make_env(spec: str, *, observation: str = "grid", max_actions: int = 10) -> Env:
    """Build an environment.

    Args:
        spec: 'name', 'name:key=value,key=value' or 'path/to/file.py:Class,key=value'.
        observation: one of OBSERVATIONS.
        max_actions: the largest number of actions in one game.
    Raises:
        UserError: the environment or an option is unknown (the message has near names), or a
            value has the wrong type or is out of range.
    >>> make_env("frozenlake:size=5,success_rate=1").size
    5
    """
    name, place, options_text = _split_spec(spec)
    env_class = find_class(place)
    options = _parse_options(options_text, env_class, name, spec)
    env = env_class(**options, observation=observation, max_actions=max_actions)
    env.spec = spec
    return env


def _split_spec(spec: str) -> tuple[str, str, str]:
    """The name of an environment, the place of its class for `find_class`, and its options."""
    name, _, options_text = spec.partition(":")
    if name.endswith(".py"):
        class_name, _, options_text = options_text.partition(",")
        return name, f"{name}:{class_name}", options_text
    if name in ENVS:
        return name, ENVS[name], options_text
    near = difflib.get_close_matches(name, ENVS, n=3) or list(ENVS)
    raise UserError(
        f"unknown environment {name!r} in env={spec!r}; did you mean {', '.join(near)}?"
    )


@lru_cache
def find_class(place: str) -> type[Env]:
    """The class at 'module:Class' or 'path/to/file.py:Class'.

    Raises: UserError if the file cannot be loaded or has no such subclass of Env.
    """
    source, _, class_name = place.rpartition(":")
    try:
        if source.endswith(".py"):
            names = runpy.run_path(source)
        else:
            names = vars(importlib.import_module(source))
    except Exception as error:  # user code may raise anything
        raise UserError(f"{source} cannot be loaded: {type(error).__name__}: {error}") from error
    found = names.get(class_name)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise UserError(
            f"{source} has no environment {class_name!r}; "
            f"name one as {source}:CLASS, a subclass of envs.Env"
        )
    return found


def _parse_options(text: str, env_class: type[Env], name: str, spec: str) -> dict[str, Any]:
    """The options in 'key=value,key=value', checked against the defaults in `__init__`."""
    defaults = env_class.__init__.__kwdefaults__ or {}
    options = {}
    for item in text.split(","):
        if not item:
            continue
        key, _, value = item.partition("=")
        if key not in defaults or key in COMMON_OPTIONS:
            near = difflib.get_close_matches(key, defaults, n=3) or list(defaults)
            raise UserError(f"unknown option {key!r} in env={spec!r}; {name} has {', '.join(near)}")
        wanted = type(defaults[key])
        options[key] = check_type(key, parse_text(value, wanted), wanted, f"env={spec!r}")
    return options


# ---------- mixtures and curricula


STAGE = re.compile(r"(.*?)(?:@\s*(\d+)\s*)?", re.DOTALL)  # 'MIXTURE' or 'MIXTURE @50'
PART = re.compile(r"\s*(?:(\d*\.?\d+)\s*\*)?\s*([^*@\s]+)\s*")  # 'ENV' or '2*ENV'


class Stage(NamedTuple):
    """One stage of a curriculum."""

    end: float  # the first iteration after the stage; inf for the last stage
    shares: dict[str, float]  # spec -> probability that a group plays it; they sum to 1


def mixture_at(text: str, iteration: int | None = None) -> dict[str, float]:
    """The environments at an iteration of a curriculum, with the probability of each.

    'A + 2*B' draws A for one third of the groups and B for two thirds. 'A @50 > B' is A in
    iterations 0 to 49, then B. A stage may be a mixture.

    Args:
        text: the setting `env` or `eval_env`.
        iteration: the number of finished iterations; None for the last stage.
    Returns:
        spec -> probability.
    Raises:
        UserError: an @N is missing, superfluous or not rising, a part is empty, a weight is 0, or
            `make_env` refuses an environment.
    >>> mixture_at("frozenlake @50 > sokoban + 3*bandit", 50)
    {'sokoban': 0.25, 'bandit': 0.75}
    """
    stages = _parse_stages(text)
    if iteration is None:
        return stages[-1].shares
    return next(stage.shares for stage in stages if iteration < stage.end)


@lru_cache
def env_specs(*texts: str) -> tuple[str, ...]:
    """The specs of all environments in some curricula, without repetition. A text may be empty."""
    specs = {}  # a dict, because it keeps the order
    for text in texts:
        for stage in _parse_stages(text) if text else ():
            specs |= stage.shares
    return tuple(specs)


def specs_that_run_programs(text: str) -> list[str]:
    """The specs in a curriculum that run programs or read files. It builds no environment.

    Args: text: the setting `env` or `eval_env`. It may be empty.
    Raises: UserError for an unknown environment or an illegal weight.
    """
    found = []
    for part in text.split(">") if text else ():
        mixture, _ = STAGE.fullmatch(part).groups()
        for spec in _weights_in(mixture, text):
            name, place, _ = _split_spec(spec)
            # A user's file is code: it is not imported to ask it.
            if name.endswith(".py") or find_class(place).runs_programs:
                found.append(spec)
    return found


def _parse_stages(text: str) -> list[Stage]:
    """The stages of 'MIXTURE @50 > MIXTURE'."""
    parts = [STAGE.fullmatch(part).groups() for part in text.split(">")]
    ends = [float(end or "inf") for _, end in parts]
    _, last_end = parts[-1]
    rising = ends[0] > 0 and ends == sorted(set(ends))
    if not rising or last_end:
        raise UserError(
            "every stage but the last must end in @N, with N rising from 1, "
            f"and the last must not; got env={text!r}"
        )
    shares = [_parse_mixture(mixture, text) for mixture, _ in parts]
    return [Stage(*stage) for stage in zip(ends, shares, strict=True)]


def _parse_mixture(mixture: str, text: str) -> dict[str, float]:
    """The shares of 'A + 2*B'. `text` is the whole setting, for the error message."""
    weights = _weights_in(mixture, text)
    for spec in weights:
        make_env(spec)  # raises for an unknown environment
    total = sum(weights.values())
    return {spec: weight / total for spec, weight in weights.items()}


def _weights_in(mixture: str, text: str) -> dict[str, float]:
    """Spec -> weight in 'A + 2*B'. It builds no environment."""
    weights: dict[str, float] = {}
    for part in mixture.split("+"):
        match = PART.fullmatch(part)
        weight = float(match[1] or 1) if match else 0.0
        if weight == 0:
            raise UserError(
                f"{part.strip()!r} in env={text!r} must be ENV or WEIGHT*ENV with a weight above 0"
            )
        weights[match[2]] = weights.get(match[2], 0.0) + weight
    return weights


# ---------- instances in disjoint splits


@lru_cache(maxsize=64)  # the members of a group share the instance
def draw_instance(
    spec: str, seed: tuple[int, ...], split: str, also_reserved: tuple[str, ...] = ()
) -> tuple:
    """The instance of a split and seed.

    Args:
        spec: the environment.
        seed: integers >= 0; for "eval" and "heldout" one index below 256.
        split: one of SPLITS.
        also_reserved: more environments whose fixed splits training must not draw.
    Raises:
        UserError: the index is outside of the split, or nearly all instances are reserved.
    """
    reserved = reserved_instances(spec)
    if split == "train":
        taken = reserved_keys(spec, *also_reserved)
        return _draw_outside(make_env(spec), np.random.default_rng(list(seed)), taken)
    if len(seed) != 1 or not 0 <= seed[0] < SPLIT_SIZE:
        raise UserError(
            f"an index of the {split} split is one integer in [0, {SPLIT_SIZE}), got {list(seed)}"
        )
    return reserved[split][seed[0]]


@lru_cache(maxsize=64)
def reserved_instances(spec: str) -> dict[str, tuple]:
    """The instances of the splits "eval" and "heldout": 256 each, from fixed seeds.

    All 512 are distinct, except in an environment with `repeats`.
    """
    env = make_env(spec)
    taken = set()
    splits = {}
    for split in ("eval", "heldout"):
        rng = np.random.default_rng([EVAL_SEED, SPLITS.index(split)])
        instances = []
        while len(instances) < SPLIT_SIZE:
            instance = _draw_outside(env, rng, taken)
            instances.append(instance)
            taken.add(env.key(instance))
        splits[split] = tuple(instances)
    return splits


@lru_cache(maxsize=64)
def reserved_keys(*specs: str) -> frozenset:
    """The keys of all instances in the fixed splits of these environments."""
    keys = set()
    for spec in specs:
        env = make_env(spec)
        for instances in reserved_instances(spec).values():
            keys.update(map(env.key, instances))
    return frozenset(keys)


def _draw_outside(env: Env, rng: np.random.Generator, taken: set | frozenset) -> tuple:
    """Draw instances until one has a key that is not taken."""
    for _ in range(MAX_DRAWS):
        instance = env.draw(rng)
        if env.repeats or env.key(instance) not in taken:
            return instance
    raise UserError(
        f"env={env.spec!r} has too few distinct instances: {len(taken)} are reserved, and "
        f"{MAX_DRAWS} draws gave no other one"
    )


def main(argv: list[str]) -> None:
    """Tell how to play an environment by hand."""
    wanted = " ".join(argv) or "frozenlake --seed=3"
    raise UserError(f"to play by hand, run: python -m tools.play {wanted}")


if __name__ == "__main__":
    run_main(main)
