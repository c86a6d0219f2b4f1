"""Starts a game of each environment before a run begins, to find two errors early.

A run would notice them late or never. If an environment draws random numbers when it is built, the
members of a group play different games, and the fixed evaluation prompts differ between
evaluations. If the options of an environment demand something impossible, each game may last
until the time limit of its first turn, and end in an error. `python -m tools.check_env` checks
more.
"""

from configurator import UserError

from collections.abc import Hashable
from functools import lru_cache, partial

import numpy as np

from envs import EVAL_SEED, Env, make_env, missing_method, show
from support.threads import call_all
from support.time_limit import EnvError, call_with_timeout

# Builds to compare. If each is one of two equally likely variants, 4 builds differ in 7 of 8 cases.
NUM_BUILDS = 4
NUM_GAMES = 3  # evaluation games that are tried before the environment counts as broken


@lru_cache(maxsize=256)  # scripts read their command line twice
def check_first_turn(spec: str, observation: str, max_actions: int, limit_s: float) -> None:
    """Start an evaluation game in several builds of an environment, and try an action in one.

    Args: spec: the environment, as in the setting `env`; observation, max_actions: as for
        `make_env`; limit_s: the time limit of a turn, in seconds.
    Raises: UserError if the builds start differently, or if no first turn can be played."""
    envs = []
    for _ in range(NUM_BUILDS):
        envs.append(make_env(spec, observation=observation, max_actions=max_actions))
    for index in range(NUM_GAMES):
        starts = [partial(call_with_timeout, limit_s, start, env, index) for env in envs]
        try:
            views = call_all(starts, at_once=envs[0].blocking)
            call_with_timeout(limit_s, act, envs[0])
        except EnvError as error:
            reason = error
            continue
        compare(views, spec)
        return
    raise UserError(
        f"env={spec!r} could not play the first turn of {NUM_GAMES} evaluation games; the last "
        f"one ended with: {reason}"
    )


def start(env: Env, index: int) -> tuple[Hashable, ...]:
    """Draw an instance and start an evaluation game. Returns: what must be equal in all builds."""
    instance = env.draw(np.random.default_rng(EVAL_SEED))
    observation = env.reset(index, split="eval")
    return observation, tuple(env.actions), instance


def act(env: Env) -> None:
    """Try an action, if the environment has names of actions or a random player."""
    if env.actions:
        env.step(env.actions[0])
    elif not missing_method(env, "random"):
        env.step(env.random(1, np.random.default_rng(0))[0])


def compare(views: list[tuple[Hashable, ...]], spec: str) -> None:
    """Check that `start` returned the same for all builds. Raises: UserError."""
    for view in views:
        for first, other in zip(views[0], view, strict=True):
            if first != other:
                raise UserError(
                    f"env={spec!r} is random when it is built: with equal seeds, one environment "
                    f"gave {show(first)} and another {show(other)}; take all randomness from the "
                    "argument rng of draw(), or from self.rng in a game"
                )
