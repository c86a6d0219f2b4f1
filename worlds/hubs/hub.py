"""Hub, the base class of the adapters `gem.py`, `reasoning_gym.py` and `gymnasium_env.py`.

A hub is a package of environments. Its code may print, use the global random generators and change
the logging of the process. `Isolation` hides these effects from all other code and seeds the
generators, so that a seed gives the same game in every process.
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
NUM_SEEDS = 2**31  # seeds of games are below this
PROBES = 100  # number of games that `has_few_starts` begins and compares


class BrokenGame(Exception):
    """A hub's code raised an error when a game began."""


class Isolation:
    """Runs code of a hub with separate global random states, and drops what the code prints."""

    def __init__(self):
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Seed the hub's random generators at the next `run` (0 <= seed < 2**32)."""
        self.new_seed = seed

    def _enter(self) -> None:
        if self.new_seed is None:
            random.setstate(self.states[0])
            np.random.set_state(self.states[1])
        else:
            random.seed(self.new_seed)
            np.random.seed(self.new_seed)
            self.new_seed = None

    @contextmanager
    def run(self) -> Iterator[None]:
        """Open a context for code of a hub.

        Random numbers continue where the last context ended, unless `seed` was called since."""
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
    """An environment of a hub. `draw` returns an instance: a tuple that holds the seed of a game.

    The option `splits` says how games of training and evaluation differ. With `splits=seen`
    training and evaluation games share no first observation, unless the environment has too few
    different first observations (see `has_few_starts`). With `splits=seed` training and evaluation
    games have different seeds, but may have equal first observations. Games that start slowly use
    `splits=seed`, so that `draw` begins no game.

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
        """Return True if the class runs programs, or if a setting is not numeric.

        A hub may execute a text in its settings. So a setting that is not numeric counts as a
        program."""
        settings = parse_settings(options.get("settings", ""))
        return cls.runs_programs or not all(map(is_numeric, settings.values()))

    def begin(self, seed: int) -> str:
        """Start the game of this seed.

        Returns: the part of the first observation that can differ between games."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        return self.splits == "seen" and has_few_starts(self.spec)

    def begin_or_break(self, seed: int) -> str:
        """Call `begin`. Raises: BrokenGame for any error of the hub's code."""
        try:
            return self.begin(seed)
        except UserError:
            raise
        except Exception as error:
            raise BrokenGame(f"the game of seed {seed} cannot begin") from error

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw a seed and return the tuple ("hub", seed, result of `begin`).

        The third element is "" if training and evaluation may share first observations, or if the
        game cannot begin. A game that cannot begin raises its error in `_start`, not in `draw`."""
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
        """Lower the action budget to the game's own limit, if there is one."""
        self.max_actions = self.budget if limit is None else min(self.budget, limit)


def start_or_none(env: Hub, seed: int) -> str | None:
    """Return the result of `begin` for this seed; None if the game cannot begin."""
    try:
        return env.begin_or_break(seed)
    except BrokenGame:
        return None


@lru_cache
def has_few_starts(spec: str) -> bool:
    """Return True if two games of the first 100 seeds have the same first observation.

    The two fixed splits (eval and heldout) take 512 first observations. Training needs further
    first observations. This test rarely overlooks an environment with too few first observations.
    With 1,000 equally likely first observations, all 100 games start differently with probability
    0.6 %.
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
        env.begin(0)  # no game can begin: raise the error of the hub
    return False


def parse_settings(text: str) -> dict[str, Any]:
    """Read 'key=value;key=value'. A value that is not a Python literal stays a string.

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
    """Whether a value is a number, True, False, None, or a list or tuple of such values."""
    if isinstance(value, (list, tuple)):
        return all(map(is_numeric, value))
    return value is None or isinstance(value, (bool, int, float))
