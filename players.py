"""Reference players: scripted players that are scored on the same games as a policy.

`random` draws an action. `greedy` follows `Env.greedy`, which is a simple rule in most
environments. `optimal` follows the environment's plan (`Env.plan`). All players obey the limits on
actions and turns.
"""

import numpy as np

from dialogue import Episode, format_response
from envs import check_actions
from rollout import Reply, Rollout
from utils.time_limit import EnvError, call_with_timeout


def reference_reply(player: str, rng: np.random.Generator, rollout: Rollout) -> Reply:
    """Return a reply with the actions of a reference player and an empty thought.

    `rollout.play` calls this function, after functools.partial has bound `player` and `rng`."""
    config = rollout.config
    try:
        actions = call_with_timeout(
            config.step_timeout_s, reference_actions, rollout.episode, player, rng
        )
    except EnvError as error:
        return Reply("", error=str(error))
    return Reply(format_response("", actions, think=config.think))


def reference_actions(episode: Episode, player: str, rng: np.random.Generator) -> list[str]:
    """Return the actions that a reference player chooses in the present state.

    `optimal` chooses the best next actions, at most `actions_per_turn`. If no plan exists,
    `optimal` chooses the action of `greedy`. `greedy` and `random` choose one action."""
    env = episode.env
    actions = []
    if player == "random":
        actions = env.random(1, rng)
    elif player == "optimal":
        turns_left = episode.config.max_turns - episode.turn_idx
        actions = env.plan(episode.config.actions_per_turn, turns_left)
    return check_actions(actions or [env.greedy()], player, env)
