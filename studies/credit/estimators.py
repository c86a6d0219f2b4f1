"""Compute the credit that each advantage estimator assigns to every turn, as train.py would.

The credit of a turn is the mean advantage of its tokens.
"""

from configurator import CRITIC_ESTIMATORS

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

import parallel
import starpo
import train
from learner import Learner
from rollout import Trajectory, rewards_with_density, split_by_context
from studies.credit.play import RecordedGame
from train import count_tokens_per_turn

# Maps the name of an estimator to the settings that replace the run's settings.
ESTIMATORS: dict[str, dict] = {
    "GAE": {"estimator": "gae"},
    "bi-level GAE": {"estimator": "bi_level_gae", "turn_gamma": 0.95},
    "Turn-PPO": {"estimator": "turn_ppo", "turn_gamma": 0.99, "turn_lam": 0.9},
    "Turn-PPO, lambda 0": {"estimator": "turn_ppo", "turn_lam": 0.0},
    "GiGPO": {"estimator": "grpo", "state_weight": 1.0, "turn_gamma": 0.95},
    "GiGPO without std": {"estimator": "dr_grpo", "state_weight": 1.0, "turn_gamma": 0.95},
    "GRPO": {"estimator": "grpo"},
    "RLOO": {"estimator": "rloo"},
    "REINFORCE++": {"estimator": "reinforce_plus_plus"},
    "GRPO by turn": {"estimator": "grpo", "turn_level": True},
    "GRPO by turn, sparse": {
        "estimator": "grpo",
        "turn_level": True,
        "reward_density": "sparse",
    },
    "GRPO by turn, dense": {
        "estimator": "grpo",
        "turn_level": True,
        "reward_density": "dense",
    },
    "GRPO by turn, balanced": {
        "estimator": "grpo",
        "turn_level": True,
        "reward_density": "balanced",
    },
    "GRPO by turn, plan": {
        "estimator": "grpo",
        "turn_level": True,
        "reward_density": "plan",
    },
}
# Settings for every estimator, unless its entry in ESTIMATORS has another value.
NEUTRAL = {
    "turn_level": False,
    "state_weight": 0.0,
    "reward_density": "native",
    "reward_norm": "none",
    "recompute_old_logprobs": False,
}


def estimators_of(learner: Learner) -> dict[str, dict]:
    """Return the entries of ESTIMATORS. If the learner has no critic, leave out the entries that
    need a critic."""
    found = {}
    for name, settings in ESTIMATORS.items():
        if learner.critic or settings["estimator"] not in CRITIC_ESTIMATORS:
            found[name] = settings
    return found


def credits_of(learner: Learner, games: Sequence[RecordedGame], settings: dict) -> np.ndarray:
    """Return the credit that an estimator assigns to each of the K turns, as a (K,) float64 array.

    Args: settings: an entry of ESTIMATORS."""
    config = replace(learner.config, **{**NEUTRAL, **settings})
    variant = copy.copy(learner)
    variant.config = config
    variant.ref = None
    if config.estimator not in CRITIC_ESTIMATORS:
        variant.critic = None
    trajectories = [shaped(game, config.reward_density) for game in games]
    advantages = train.build_experience(variant, trajectories).advantages  # (R,)
    lengths = count_tokens_per_turn(trajectories)  # (K,)
    sums = starpo.segment_sums(advantages.double().cpu(), lengths)  # (K,)
    return (sums / torch.tensor(lengths)).numpy()


def critic_values(learner: Learner, games: Sequence[RecordedGame]) -> np.ndarray:
    """Return the critic's value at the first reply token of each turn, as a (K,) array."""
    trajectories = [game.trajectory for game in games]
    sequences = split_by_context(trajectories, learner.config)
    (values,) = parallel.forward_sequences(learner.critic, sequences, learner.config)  # (R,)
    lengths = count_tokens_per_turn(trajectories)  # (K,)
    starts = np.cumsum([0, *lengths[:-1]])
    return values.cpu().numpy()[starts]


def shaped(game: RecordedGame, density: str) -> Trajectory:
    """Return the trajectory with the rewards that the setting `reward_density=density` gives."""
    trajectory = game.trajectory
    if density == "native":
        return trajectory
    lengths = []
    if density == "plan":
        lengths = [state.env.optimal_length() for state in game.states_and_end()]
    rewards = rewards_with_density(trajectory, density, game.episode.env.max_reward, lengths)
    turns = []
    for turn, reward in zip(trajectory.turns, rewards, strict=True):
        turns.append(replace(turn, reward=reward))
    return replace(trajectory, turns=turns)


# ---------- credit if a game had gone on differently


def credits_of_alternatives(
    learner: Learner,
    games: Sequence[RecordedGame],
    alternatives: Sequence[RecordedGame],
    settings: dict,
) -> np.ndarray:
    """Return the credit that each of K turns gets if its game goes on differently after the reply.

    This function calls `credits_of` several times. In each call, alternatives replace at most
    one game of each group. The other games of the group are the original games.

    Args: alternatives: K games, one for each turn. Each alternative repeats the original game up to
        and including the turn's reply. New random numbers decide the rest: whether the reply's
        moves slip (on FrozenLake), and everything after the reply."""
    starts = first_turns(games)
    credits = np.full(starts[-1], np.nan)
    for changes in rounds_of_turns(games, learner.config.group_size):
        changed = list(games)
        for index, turn in changes:
            changed[index] = alternatives[starts[index] + turn]
        assigned = credits_of(learner, changed, settings)
        changed_starts = first_turns(changed)
        for index, turn in changes:
            credits[starts[index] + turn] = assigned[changed_starts[index] + turn]
    return credits


def first_turns(games: Sequence[RecordedGame]) -> np.ndarray:
    """Return the index at which each game's turns begin, if all turns are in one list.

    The shape is (games + 1,). The last entry is K, the number of all turns."""
    return np.cumsum([0, *(game.num_turns for game in games)])


def rounds_of_turns(games: Sequence[RecordedGame], group_size: int) -> list[list[tuple[int, int]]]:
    """Split all turns into lists. Each list has at most one turn of each group.

    Returns: lists of pairs (index of the game, index of the turn in this game)."""
    queues = []
    for start in range(0, len(games), group_size):
        queue = []
        for index in range(start, start + group_size):
            queue += [(index, turn) for turn in range(games[index].num_turns)]
        queues.append(queue)
    rounds = []
    for i in range(max(len(queue) for queue in queues)):
        rounds.append([queue[i] for queue in queues if i < len(queue)])
    return rounds
