"""Environments: the protocol `Env`, how environments are found, and splits.

docs/environments.md lists all environments and says how to write your own.

Bandit, FrozenLake and Sokoban have the rules, symbols, rewards and action budgets of RAGEN
(arXiv 2504.20073, github.com/RAGEN-AI/RAGEN). All environments have three deliberate differences
from RAGEN:
- Members of a group share the instance but not the transition noise. In RAGEN the members share
  both, so in FrozenLake all members slip at the same steps.
- No environment depends on a global random state. A seed gives the same instance in every process,
  except in four datasets of reasoning-gym. These datasets depend on `hash()`, which can differ
  between processes. So these datasets need a fixed PYTHONHASHSEED (docs/hubs.md).
- Splits have no instance in common, unless `Env.repeats` is True. Different seeds for the splits
  would not be enough, because two seeds can draw the same small board.
"""

from configurator import UserError, check_type, parse_text

import difflib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from utils.quotes import split_unquoted, unquote
from utils.text import describe_error, printable
from utils.time_limit import EnvError, Item, limit_items

# In "train" every seed draws an instance. "eval" has 256 fixed instances, for reported results.
# "heldout" has 256 other fixed instances, for choosing settings.
SPLITS = ("train", "eval", "heldout")
SPLIT_SIZE = 256  # instances in each of the two fixed splits
EVAL_SEED = 123  # seed of the fixed splits
OBSERVATIONS = ("grid", "coord", "relations")
SEED_TRANSITIONS = 7  # makes the random streams of transition noise differ from other streams
MAX_DRAWS = 20_000  # after this many failed attempts to draw an instance, a UserError is raised
DRAW_LIMIT_S = 60.0  # time limit of `drawn_in_time` for one instance or game, in seconds


# ---------- the protocol


class Step(NamedTuple):
    """What `Env.step` returns: the effect of one action."""

    observation: str
    reward: float
    terminated: bool  # the game ended by its rules
    truncated: bool  # the action budget ran out before the game ended by its rules
    success: bool  # the game ended and was won
    valid: bool  # the action was legal
    effective: bool  # the action changed something
    slipped_to: str = ""  # the action that took place, if chance replaced the chosen action


class Move(NamedTuple):
    """What `Env._move` returns: four fields of `Step`. A plain tuple of these fields works, too."""

    reward: float
    terminated: bool
    success: bool
    effective: bool


class Env:
    """The protocol of an environment. To write an environment of your own, subclass `Env`.

    A subclass must define:
        actions: tuple[str, ...]
            The names of the actions. If actions are free text, `actions` is (), and the subclass
            must override `_read`.
        draw(rng: np.random.Generator) -> tuple
            A random instance. The tuple begins with a name for the game. The other elements hold
            everything that determines the start of the game.
        _start(instance: tuple) -> None
            Start the game of this instance.
        _move(move: int) -> Move
            Execute one action. `move` is what `_read` returned: by default, an index in `actions`.
        observe() -> str
            The observation that the policy gets in each turn.
        rules() -> str
            The description of the game in the system message.

    A subclass may override the attributes `repeats`, `max_reward`, `blocking` and `runs_programs`,
    and the methods from `key` to `optimal_length` below. docs/environments.md says when. Some
    features work only if the subclass overrides a method:
        --player=optimal: `plan`
        --player=greedy: `plan` or `greedy`
        demonstrations for SFT: `plan` or `demonstrate`
        --reward_density=plan: `plan` or `optimal_length`

    Each argument of `__init__` that has a default is an option of the environment, such as `size`
    in `--env=frozenlake:size=5`. `__init__` must pass all other arguments to
    `super().__init__(**common)`. Noise during the game must come from `self.rng`, which `start`
    sets. If noise replaces the chosen action, `_move` must set `self.slipped_to` to the name of the
    action that takes place.
    """

    actions: tuple[str, ...] = ()
    repeats = False  # True: splits may share instances, because too few exist, as in the Bandit
    max_reward = 1.0  # largest total reward of a won game
    blocking = False  # True: steps wait for a program or a server, so each step runs in a thread
    # True: the environment runs programs or reads files. `eval.py RUN` plays such an environment
    # only if the command line or a config file names it. The settings in the folder RUN are not
    # enough, because they may come from somebody else.
    runs_programs = False

    slipped_to = ""  # the action that took place, if `_move` replaced the chosen action
    spec: str  # the text that names this environment and its options; `make_env` sets it
    # Specs of all environments of a run. Two of these environments can be the same game with
    # different options. Both can then draw the same instance. So in training no environment draws
    # an instance from the "eval" or "heldout" split of any environment of the run. Only an
    # environment whose `repeats` is True may draw such instances.
    also_reserved: tuple[str, ...] = ()

    def __init__(self, *, observation: str = "grid", max_actions: int = 10):
        if observation not in OBSERVATIONS:
            raise UserError(
                f"observation must be one of {', '.join(OBSERVATIONS)}, got {observation!r}"
            )
        self.observation_mode = observation
        self.max_actions = max_actions

    def reset(self, seed: int | Sequence[int], *, split: str = "train", member: int = 0) -> str:
        """Start the game of the instance that `split` and `seed` select.

        Args:
            seed: one or more integers >= 0. In "eval" and "heldout", one index below 256.
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
        """Start the game of an instance that `draw` gave.

        `noise_seed` seeds the transition noise.

        Returns: the first observation.
        """
        self.instance = instance
        self.rng = np.random.default_rng(list(noise_seed))
        self.num_actions = 0
        self.terminated = False
        self._start(instance)
        check_attributes(self)
        if not self.actions and type(self)._read is Env._read:
            raise UserError(f"{name_of(self)} has no actions; set actions, or define _read(text)")
        return self.observe()

    def step(self, action: str) -> Step:
        """Execute one action. An illegal action raises no error and changes nothing.

        No action is legal after the end of the game or when `actions_left` is 0.
        """
        over = self.terminated or self.actions_left == 0
        move = None if over else self._read(action.strip())
        result = Move(reward=0.0, terminated=self.terminated, success=False, effective=False)
        self.slipped_to = ""
        if move is not None:
            self.num_actions += 1
            result = self._checked_move(move)
            self.terminated = result.terminated
        return Step(
            observation=self.observe(),
            reward=result.reward,
            terminated=self.terminated,
            truncated=self.actions_left == 0 and not self.terminated,
            success=result.success,
            valid=move is not None,
            effective=result.effective,
            slipped_to=self.slipped_to,
        )

    def _checked_move(self, move: Any) -> Move:
        """Execute a move.

        Raises: UserError if `_move` does not return a tuple of four values, or if the reward or
            `slipped_to` has a wrong type.
        """
        returned = self._move(move)
        if not isinstance(returned, tuple) or len(returned) != len(Move._fields):
            raise UserError(
                f"{name_of(self)}._move returned {show(returned)}; "
                f"expected ({', '.join(Move._fields)})"
            )
        reward, *flags = returned
        if not isinstance(self.slipped_to, str):
            raise UserError(
                f"{name_of(self)}._move set slipped_to to {show(self.slipped_to)}; expected a text"
            )
        if not hasattr(type(reward), "__float__"):  # accepts the numbers of numpy and torch, too
            raise UserError(
                f"{name_of(self)}._move returned the reward {show(reward)}; expected a number"
            )
        return Move(float(reward), *map(bool, flags))

    def is_legal(self, action: str) -> bool:
        """Whether this text is a legal action in the present state.

        Call `is_legal` only during a game: `step` checks whether the game is over, but `is_legal`
        does not.
        """
        return self._read(action.strip()) is not None

    @property
    def actions_left(self) -> int:
        return self.max_actions - self.num_actions

    @classmethod
    def can_run_programs(cls, options: dict[str, str]) -> bool:
        """Whether an environment with these options can run programs or read files.

        Args: options: maps each option to the text of its value, see `split_options`."""
        return cls.runs_programs

    def key(self, instance: tuple) -> Hashable:
        """Return the key of an instance. Splits share no key, unless `repeats` is True.

        Instances with equal keys count as one game. For example, Sokoban gives equal keys to boards
        that differ only in their symbols."""
        return instance

    def state_key(self) -> Hashable:
        """Return a key of the present state, or None if the observation is the key.

        GiGPO compares turns of a group if they start in states with equal keys (methods.py).
        """
        return None

    def _read(self, action: str) -> Any:
        """Return the argument that `_move` gets for this text: by default, an index in `actions`.

        If the text is not a legal action, return None.
        """
        indices = {name.lower(): index for index, name in enumerate(self.actions)}
        return indices.get(action.lower())

    def statements(self) -> list[str]:
        """Return sentences that are true in the present state, to check the policy's thoughts."""
        return []

    def why_lost(self) -> str:
        """Return why the game was lost or cannot be won any more, in few words, for the records."""
        return ""

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return the best next actions, at most `max_actions`, or [] if the game cannot be won."""
        return []

    def greedy(self) -> str:
        """Return the action of the player "greedy": the first action of `plan`.

        If `plan` returns [], return a random action.
        """
        best = self.plan(1, 1) or self.random(1, np.random.default_rng(self.num_actions))
        return best[0]

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return `count` random legal actions, for the player "random"."""
        return rng.choice(self.actions, count).tolist()

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return at most `count` actions for an SFT demonstration, by default those of `plan`."""
        return self.plan(count, self.actions_left)

    def optimal_length(self) -> int:
        """Return how many actions a shortest solution takes if noise replaces no action.

        If the present state has no solution, return 0.
        """
        return len(self.plan(999, 999))


# ---------- finding and building environments


ENVS = {  # maps a name in --env to "module:Class"; `make_env` imports the module
    "bandit": "worlds.bandit:Bandit",
    "frozenlake": "worlds.grids:FrozenLake",
    "sokoban": "worlds.grids:Sokoban",
    "rubik": "worlds.rubik:Rubik",
    "sudoku": "worlds.sudoku:Sudoku",
    "countdown": "worlds.countdown:Countdown",
    "tools": "worlds.text.tool_use:ToolUse",
    "own_data": "worlds.text.tool_use:OwnData",
    "quest": "worlds.text.quest:Quest",
    "household": "worlds.text.household:Household",
    "repair": "worlds.code.repair:Repair",
    "textworld": "worlds.text.textworld:TextWorld",
    "alfworld": "worlds.text.alfworld:ALFWorld",
    "swe": "worlds.code.swe:SWE",
    "gem": "worlds.hubs.gem:Gem",
    "rg": "worlds.hubs.reasoning_gym:ReasoningGym",
    "gymnasium": "worlds.hubs.gymnasium_env:Gymnasium",
}
HUBS = ("gem", "rg", "gymnasium")  # collections of games: 'rg:maze' is short for 'rg:name=maze'
# --observation and --actions_per_traj set these options, so --env cannot set them
COMMON_OPTIONS = ("observation", "max_actions")
REQUIRED = ("draw", "_start", "_move", "observe", "rules")  # methods that a subclass must define
# Matches the names that no action may have: an empty name, a name that holds || or <, and a name
# that begins or ends with white space. A reply holds <answer>NAME || NAME</answer>, and
# `dialogue.parse_response` could misread such a name.
ILLEGAL_NAME = re.compile(r"^$|\|\||<|^\s|\s$")


def make_env(spec: str, *, observation: str = "grid", max_actions: int = 10) -> Env:
    """Build an environment.

    Args:
        spec: 'name', 'name:key=value,key=value' or 'path/to/file.py:Class,key=value'. The
            whole spec, the path or a value may stand in quotes, see utils/quotes.py.
        observation: one of OBSERVATIONS.
        max_actions: the largest number of actions in one game.
    Raises:
        UserError: the environment or an option is unknown, or a value has the wrong type or is
            out of range.
    >>> make_env("frozenlake:size=5,success_rate=1").size
    5
    """
    name, place, options_text = split_spec(spec)
    env_class = find_class(place)
    options = _parse_options(options_text, _options_of(env_class, place), name, spec)
    with as_user_error(f"env={spec!r} cannot be built"):
        env = env_class(**options, observation=observation, max_actions=max_actions)
        env.spec = spec
        if not hasattr(env, "max_actions"):
            raise UserError(f"__init__ of {place} must call super().__init__(**common)")
        check_attributes(env)
    return env


def split_spec(spec: str) -> tuple[str, str, str]:
    """Return the name of an environment, the place of its class, and the text of its options.

    The place is "module:Class" or "path/to/file.py:Class".
    """
    name, _, options_text = unquote(spec).partition(":")
    name = unquote(name)
    if name.endswith(".py"):
        class_name, _, options_text = options_text.partition(",")
        return name, f"{name}:{class_name}", options_text
    if name in HUBS:
        options_text = f"name={options_text}"
    if name in ENVS:
        return name, ENVS[name], options_text
    near = difflib.get_close_matches(name, ENVS, n=3)
    hint = f"did you mean {', '.join(near)}?"
    if not near:
        hint = f"expected {', '.join(ENVS)}, or a class of your own as path/to/file.py:CLASS"
    raise UserError(f"unknown environment {name!r} in env={spec!r}; {hint}")


@contextmanager
def as_user_error(problem: str) -> Iterator[None]:
    """A context manager that turns errors of a user's code, even SystemExit, into a UserError.

    Raises: UserError with `problem` and a description of what the code raised. UserError and
        KeyboardInterrupt pass unchanged."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"{problem}: {describe_error(error)}") from error


@lru_cache
def find_class(place: str) -> type[Env]:
    """Return the class at 'module:Class' or 'path/to/file.py:Class'.

    Raises: UserError if the file cannot be loaded or has no subclass of Env with this name, or if
        the class does not define all methods in REQUIRED.
    """
    source, _, class_name = place.rpartition(":")
    with as_user_error(f"{source} cannot be loaded"):
        is_file = source.endswith(".py")
        module = _load_file(source) if is_file else importlib.import_module(source)
        found = vars(module).get(class_name)
        if not _is_environment(found):
            names = [name for name, value in vars(module).items() if _is_environment(value)]
            raise UserError(
                f"{source} has no environment {class_name!r}; expected {source}:CLASS; "
                f"subclasses of envs.Env in this module: {', '.join(names) or 'none'}"
            )
        missing = [name for name in REQUIRED if not hasattr(found, name)]
        if missing:
            raise UserError(
                f"{place} does not define {', '.join(missing)}; docs/environments.md says what an "
                "environment must define"
            )
    return found


def _load_file(path: str) -> ModuleType:
    """Run a file as a module. While the file runs, it can import other files of its folder."""
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist; expected a file with a subclass of envs.Env")
    module = ModuleType(f"environment {path}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look modules up here
    code = compile(Path(path).read_bytes(), path, "exec")
    folder = str(Path(path).resolve().parent)
    sys.path.append(folder)
    try:
        exec(code, vars(module))
    finally:
        sys.path.remove(folder)
    return module


def _is_environment(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Env) and value is not Env


def _options_of(env_class: type[Env], place: str) -> dict[str, Any]:
    """Return a dict that maps each option to its default.

    The options are the named arguments of `__init__`, except `observation` and `max_actions`.
    """
    defaults = {}
    parameters = list(inspect.signature(env_class.__init__).parameters.values())[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        is_keyword = parameter.kind != parameter.POSITIONAL_ONLY
        if not is_keyword or type(parameter.default) not in (bool, int, float, str):
            raise UserError(
                f"argument {parameter.name} of {place}.__init__ must be a keyword with a default "
                "that is a number, a text, True or False, so that it is an option"
            )
        defaults[parameter.name] = parameter.default
    takes_rest = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    if not takes_rest and not defaults.keys() >= set(COMMON_OPTIONS):
        raise UserError(f"{place}.__init__ must take **common and call super().__init__(**common)")
    return {key: value for key, value in defaults.items() if key not in COMMON_OPTIONS}


def check_attributes(env: Env) -> None:
    """Check that `actions` and `max_reward` of `env` are legal. Raises: UserError if not."""
    if not _are_action_names(env.actions):
        raise UserError(
            f"actions of {name_of(env)} must be a tuple of different names that hold no '||' and "
            f"no '<', and neither begin nor end with a space; got {show(env.actions)}"
        )
    reward = env.max_reward
    is_number = hasattr(type(reward), "__float__")
    if not is_number or not math.isfinite(reward) or reward <= 0:
        raise UserError(
            f"max_reward of {name_of(env)} must be a number above 0, got {show(reward)}"
        )


def _are_action_names(names: Any) -> bool:
    is_sequence = isinstance(names, (tuple, list))
    if not is_sequence or not all(isinstance(name, str) for name in names):
        return False
    distinct = {name.lower() for name in names}
    return len(distinct) == len(names) and not any(map(ILLEGAL_NAME.search, names))


def name_of(env: Env) -> str:
    return type(env).__name__


def show(value: Any) -> str:
    """Return `value` as a short text for an error message. `value` may come from a user's code."""
    return printable(repr(value), limit=100)


def check_uses(env: Env, *uses: str) -> None:
    """Check that `env` defines what each use needs. For example, "greedy" needs `greedy` or `plan`.

    Args: uses: texts such as "greedy"; the docstring of `missing_method` lists all of them.
    Raises: UserError if `env` lacks something that a use needs."""
    for use in uses:
        missing = missing_method(env, use)
        if missing:
            raise UserError(
                f"{use!r} needs {missing}, which {name_of(env)} does not define "
                f"(env={env.spec!r}); docs/environments.md says what to define"
            )


def missing_method(env: Env, use: str) -> str:
    """Return what `env` lacks for a use. If nothing is missing, return "".

    The result "greedy or plan" means that one of these two methods is enough.

    Args: use: "optimal", "greedy", "random", "demonstrations" or "reward_density=plan"."""
    kind = type(env)
    has_plan = kind.plan is not Env.plan
    if use == "optimal" and not has_plan:
        return "plan"
    if use == "greedy" and not has_plan and kind.greedy is Env.greedy:
        return "greedy or plan"
    if use == "demonstrations" and not has_plan and kind.demonstrate is Env.demonstrate:
        return "demonstrate or plan"
    if use == "reward_density=plan" and not has_plan and kind.optimal_length is Env.optimal_length:
        return "optimal_length or plan"
    reads_text = kind._read is not Env._read and not env.actions
    if use == "random" and reads_text and kind.random is Env.random:
        return "random or actions"
    return ""


def check_text(value: Any, method: str, env: Env) -> str:
    """Check and return `value`, the result of a method of `env`.

    Raises: UserError unless `value` is a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise UserError(f"{name_of(env)}.{method} returned {show(value)}; expected a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name_of(env)}.{method} returned a text with the lone surrogate "
            f"{value[error.start]!r}; expected characters that UTF-8 can encode"
        ) from error
    return value


def check_actions(value: Any, player: str, env: Env) -> list[str]:
    """Check the actions that a player chose, and return them as a list.

    Raises: UserError unless `value` is a list or tuple of texts."""
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(action, str) for action in value):
        raise UserError(
            f"the {player} player of {name_of(env)} returned {show(value)}; "
            "expected a list of action texts"
        )
    return list(value)


def _parse_options(text: str, defaults: dict[str, Any], name: str, spec: str) -> dict[str, Any]:
    """Return the options in 'key=value,key=value' as a dict.

    Raises: UserError if a key is not in `defaults`, or if a value does not have the type of the
        key's default.
    """
    options = {}
    for key, value in split_options(text).items():
        if key not in defaults:
            known = ", ".join(defaults) or "no options"
            near = difflib.get_close_matches(key, defaults, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            hint += "; put a value with a comma in quotes" if not value else ""
            raise UserError(f"unknown option {key!r} in env={spec!r}; {name} has {known}{hint}")
        wanted = type(defaults[key])
        options[key] = check_type(key, parse_text(value, wanted), wanted, f"env={spec!r}")
    return options


def split_options(text: str) -> dict[str, str]:
    """Return the options in 'key=value,key=value' as a dict of texts. A value may stand in quotes.

    >>> split_options("file='a,b.jsonl',task=find")
    {'file': 'a,b.jsonl', 'task': 'find'}
    """
    options = {}
    for item in filter(None, split_unquoted(text, ",")):
        key, _, value = item.partition("=")
        options[key] = unquote(value)
    return options


# ---------- instances in disjoint splits


@lru_cache(maxsize=64)  # the members of a group share an instance, so draw it only once
def draw_instance(
    spec: str, seed: tuple[int, ...], split: str, also_reserved: tuple[str, ...] = ()
) -> tuple:
    """Return the instance of a split and seed.

    Args:
        seed: for "train", one or more integers >= 0; for "eval" or "heldout", one index below 256.
        also_reserved: specs of environments. The split "train" avoids the "eval" and "heldout"
            instances of `spec` and of these environments, unless `repeats` of `spec` is True.
    Raises:
        UserError: the index is outside of the split, or hardly any instance is left for "train".
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


@lru_cache(maxsize=256)  # a run has fewer than 256 environments, so it draws each split once
def reserved_instances(spec: str) -> dict[str, tuple]:
    """Return the instances of the splits "eval" and "heldout": 256 each, from fixed seeds.

    All 512 instances are distinct, except in an environment with `repeats`.

    Raises: UserError if the draw of an instance takes longer than DRAW_LIMIT_S, if there are too
        few distinct instances, or if `draw` returns an illegal value.
    """
    env = make_env(spec)
    # Compute and cache `repeats` now. To compute `repeats`, an environment of a hub (see HUBS)
    # begins up to 100 games. These games must not count towards the time limit of the draws below.
    _ = env.repeats
    _check_draw(env)
    taken: set = set()
    splits = {}
    for split in ("eval", "heldout"):
        splits[split] = tuple(drawn_in_time(env, _draw_split(env, split, taken)))
    return splits


def _draw_split(env: Env, split: str, taken: set) -> Iterator[tuple]:
    """Draw the instances of the split "eval" or "heldout", and add their keys to `taken`."""
    rng = np.random.default_rng([EVAL_SEED, SPLITS.index(split)])
    for _ in range(SPLIT_SIZE):
        instance = _draw_outside(env, rng, taken)
        taken.add(env.key(instance))
        yield instance


def drawn_in_time(env: Env, draws: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator (instances or games), each in at most DRAW_LIMIT_S seconds.

    Raises: UserError if an item takes longer, for example because no instance fits the options."""
    try:
        yield from limit_items(DRAW_LIMIT_S, draws)
    except EnvError as error:
        raise UserError(
            f"env={env.spec!r} drew no instance in {DRAW_LIMIT_S:g} s; its options may ask for "
            "something impossible"
        ) from error


@lru_cache(maxsize=64)
def reserved_keys(*specs: str) -> frozenset:
    """Return the keys of all instances in the splits "eval" and "heldout" of these environments."""
    keys = set()
    for spec in specs:
        env = make_env(spec)
        for instances in reserved_instances(spec).values():
            keys.update(map(env.key, instances))
    return frozenset(keys)


def _check_draw(env: Env) -> None:
    """Check that `draw` returns a tuple, and that the key of this tuple depends on `rng` alone.

    For the second check, two draws with equal random numbers must give equal keys.

    Raises: UserError if a check fails, or if the key is not hashable."""
    draws = (env.draw(np.random.default_rng(EVAL_SEED)) for _ in range(2))
    first, second = drawn_in_time(env, draws)
    if not isinstance(first, tuple):
        raise UserError(f"{name_of(env)}.draw returned {show(first)}; expected a tuple")
    try:
        is_repeatable = env.key(first) == env.key(second)
        hash(env.key(first))
    except TypeError as error:
        raise UserError(
            f"{name_of(env)}.draw returned {show(first)}; expected a tuple of numbers, texts and "
            f"tuples, because it must be hashable ({error})"
        ) from error
    if not is_repeatable:
        raise UserError(
            f"{name_of(env)}.draw gave two different instances for the same random numbers; take "
            "all randomness from its argument rng"
        )


def _draw_outside(env: Env, rng: np.random.Generator, taken: set | frozenset) -> tuple:
    """Draw until an instance has a key that is not in `taken`, and return this instance.

    If `env.repeats` is True, `taken` has no effect."""
    for _ in range(MAX_DRAWS):
        instance = env.draw(rng)
        if env.repeats or env.key(instance) not in taken:
            return instance
    raise UserError(
        f"env={env.spec!r} has too few distinct instances: {len(taken)} are reserved, and "
        f"{MAX_DRAWS} draws gave no other instance; if training may share instances with "
        "evaluation, set repeats = True in the class of the environment"
    )
