"""Checks before a run: vLLM, W&B, and the first turn of each environment."""

from configurator import Config, UserError

import importlib.util
import platform
import sys
from collections.abc import Hashable
from functools import lru_cache, partial

import numpy as np

from envs import EVAL_SEED, Env, make_env, missing_method, show
from utils.machine import VLLM_HINT
from utils.threads import call_all
from utils.time_limit import EnvError, call_with_timeout

# Building an environment must not be random. To check this, NUM_BUILDS builds are compared. If a
# build is one of two equally likely variants, 4 builds reveal this in 7 of 8 cases.
NUM_BUILDS = 4
NUM_GAMES = 3  # at most this many evaluation games are tried until a first turn can be played


def check_installed(config: Config) -> None:
    """Check that vLLM is installed if the config selects it. Raises: UserError."""
    if config.engine != "vllm" or importlib.util.find_spec("vllm") is not None:
        return
    if sys.version_info < (3, 11):
        version = platform.python_version()
        raise UserError(
            f"engine='vllm' needs Python 3.11 or newer, and this is {version}; make a new .venv "
            "with make clean and make PYTHON=python3.12, or use --engine=torch"
        )
    raise UserError(f"engine='vllm', but vLLM is not installed; {VLLM_HINT}")


def check_wandb(project: str) -> None:
    """If a W&B project is given, check its name and that wandb is installed. Raises: UserError."""
    if not project:
        return
    illegal = set(project) & set("/\\#?%:")
    if illegal or len(project) > 128 or not project.isprintable():
        raise UserError(
            f"wandb must be the name of a project, got {project!r}; a name has at most 128 "
            "characters and must not contain / \\ # ? % : or invisible characters; "
            "WANDB_ENTITY=NAME selects a team"
        )
    found = importlib.util.find_spec("wandb")
    # W&B writes its data to a folder wandb/. If wandb is not installed, Python can take this folder
    # for a package. The origin of this package is None, because the folder has no __init__.py.
    if found is None or found.origin is None:
        raise UserError(
            f"wandb={project!r}, but wandb is not installed; pip install -r requirements/wandb.txt"
        )


# ---------- environments


# Scripts read their command line twice (see `run_main`). `lru_cache` skips the second check.
@lru_cache(maxsize=256)
def check_first_turn(spec: str, observation: str, max_actions: int, limit_s: float) -> None:
    """Start a game in several builds of an environment, and try an action in the first game.

    An environment must not draw random numbers when it is built. Otherwise the members of a group
    would play different games. `python -m tools.check_env` checks more.

    Args:
        spec: the environment, as in the setting `env`.
        observation, max_actions: as for `make_env`.
        limit_s: the time limit of a turn, in seconds.
    Raises: UserError if the builds start differently, or if no first turn can be played."""
    envs = []
    for _ in range(NUM_BUILDS):
        envs.append(make_env(spec, observation=observation, max_actions=max_actions))
    for index in range(NUM_GAMES):
        starts = [partial(call_with_timeout, limit_s, _start_game, env, index) for env in envs]
        try:
            views = call_all(starts, at_once=envs[0].blocking)
            call_with_timeout(limit_s, _try_action, envs[0])
        except EnvError as error:
            reason = error
            continue
        _compare_builds(views, spec)
        return
    raise UserError(
        f"env={spec!r} could not play the first turn of {NUM_GAMES} evaluation games; the last "
        f"one ended with: {reason}"
    )


def _start_game(env: Env, index: int) -> tuple[Hashable, ...]:
    """Start evaluation game `index`, and draw another instance, which is not played.

    `reset` takes the instance of the game from a cache, so all builds of an environment play the
    same instance. Only the instance drawn here shows whether `draw` differs between the builds.

    Returns: values that must be equal in all builds."""
    instance = env.draw(np.random.default_rng(EVAL_SEED))
    observation = env.reset(index, split="eval")
    return observation, tuple(env.actions), instance


def _try_action(env: Env) -> None:
    if env.actions:
        env.step(env.actions[0])
    elif not missing_method(env, "random"):
        env.step(env.random(1, np.random.default_rng(0))[0])


def _compare_builds(views: list[tuple[Hashable, ...]], spec: str) -> None:
    for view in views:
        for first, other in zip(views[0], view, strict=True):
            if first != other:
                raise UserError(
                    f"env={spec!r} is random when it is built: with equal seeds, one environment "
                    f"gave {show(first)} and another {show(other)}; take all randomness from the "
                    "argument rng of draw(), or from self.rng in a game"
                )
