"""The base class of the adapters to hubs of environments: `gem.py`, `reasoning_gym.py`, ...

Code of a hub may print, seed the global random generators or draw from them, and change the logging
of the process. `Isolation` hides these effects from the rest of the run, and lets a seed give the
same game in every process and order.
"""

from configurator import UserError

import ast
import io
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from typing import Any

import numpy as np

from envs import Env, drawn_in_time, make_env

REQUIREMENTS = "requirements/hubs.txt"
NUM_SEEDS = 2**31
PROBES = 100  # seeds whose starts are compared: if two are equal, the game has few starts


class BrokenGame(Exception):
    """The code of a hub fails to begin a game."""


class Isolation:
    """Runs code of a hub with its own states of the global random generators. Drops its output."""

    def __init__(self):
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Seed the generators of the hub. Args: seed: at least 0 and below 2**32."""
        self.new_seed = seed

    def _enter(self) -> None:
        """Set the global generators to those of the hub."""
        if self.new_seed is None:
            random.setstate(self.states[0])
            np.random.set_state(self.states[1])
        else:
            random.seed(self.new_seed)
            np.random.seed(self.new_seed)
            self.new_seed = None

    @contextmanager
    def run(self) -> Iterator[None]:
        """A context for code of a hub. Its generators continue where they stopped last time."""
        outside = random.getstate(), np.random.get_state()
        handlers = list(logging.root.handlers)
        level = logging.root.level
        self._enter()
        nowhere = io.StringIO()
        try:
            with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.states = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)


class Hub(Env):
    """An environment of a hub. Its instances are seeds.

    With `splits=seen`, games of different splits look different at the start. If the environment
    has too few different starts for that, the splits share them. With `splits=seed`, which is for
    games that take long to make, no game is made in advance, and only the seeds of splits differ.

    A subclass defines `begin`, and calls it in `_start`.
    """

    def __init__(self, *, splits: str, **common):
        super().__init__(**common)
        if splits not in ("seen", "seed"):
            raise UserError(f"splits must be seen or seed, got {splits!r}")
        self.splits = splits
        self.isolation = Isolation()
        self.budget = self.max_actions

    @classmethod
    def can_run_programs(cls, options: dict[str, str]) -> bool:
        """Also True if a setting is a text: a hub may execute it, such as a name of a variable."""
        settings = parse_settings(options.get("settings", ""))
        return cls.runs_programs or not all(map(is_numeric, settings.values()))

    def begin(self, seed: int) -> str:
        """Start the game of this seed. Returns: the facts about it that a player sees first."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        return self.splits == "seen" and has_few_starts(self.spec)

    def begin_or_break(self, seed: int) -> str:
        """Like `begin`, but any error of the hub's code is a BrokenGame."""
        try:
            return self.begin(seed)
        except UserError:
            raise
        except Exception as error:
            raise BrokenGame(f"the game of seed {seed} cannot begin") from error

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw ("hub", seed, what is seen first).

        The third part is "" if the splits do not compare starts, or if the game cannot begin. Such
        a game ends with an error of the environment when it is played."""
        seed = int(rng.integers(NUM_SEEDS))
        seen = ""
        if self.splits == "seen" and not self.repeats:
            with suppress(BrokenGame):
                seen = self.begin_or_break(seed)
        return ("hub", seed, seen)

    def key(self, instance: tuple) -> str | int:
        _, seed, seen = instance
        return seen or seed

    def limit_actions(self, limit: int | None) -> None:
        """Lower the budget of actions to the game's own limit. None: it has no limit."""
        self.max_actions = self.budget if limit is None else min(self.budget, limit)


def start_or_none(env: Hub, seed: int) -> str | None:
    """What is seen first in the game of this seed; None if it cannot begin."""
    try:
        return env.begin_or_break(seed)
    except BrokenGame:
        return None


@lru_cache
def has_few_starts(spec: str) -> bool:
    """Whether two of the first 100 seeds look the same at the start.

    Then there are few different starts: even 100 draws from 1,000 starts are all different only
    with a probability of 0.6 %. The fixed splits need 512 starts that training does not draw.
    """
    env = make_env(spec)
    seen = set()
    for start in drawn_in_time(env, (start_or_none(env, seed) for seed in range(PROBES))):
        if start is None:
            continue
        if start in seen:
            return True
        seen.add(start)
    if not seen:
        env.begin(0)  # raises the error of the hub
    return False


def parse_settings(text: str) -> dict[str, Any]:
    """Read 'key=value;key=value'. Values are Python literals or texts.

    >>> parse_settings("size=8;map_name=8x8")
    {'size': 8, 'map_name': '8x8'}
    """
    settings = {}
    for item in filter(None, text.split(";")):
        key, equals, value = item.partition("=")
        if not key.isidentifier() or not equals:
            raise UserError(f"settings must be key=value;key=value, got {text!r}")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            settings[key] = value
    return settings


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, True, False, None, or a list of them."""
    if isinstance(value, (list, tuple)):
        return all(map(is_numeric, value))
    return value is None or isinstance(value, (bool, int, float))
