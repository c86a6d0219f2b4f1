"""What the losses need to know about response tokens, and the training samples that hold it."""

from configurator import Config

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

import starpo
from rollout import Trajectory
from support.learner import Learner


@dataclass
class Targets:
    """What the losses need for R response tokens, one trajectory after the other."""

    advantages: Tensor  # (R,) float32
    old_logprobs: Tensor  # (R,) nats; the denominator of PPO's ratio
    rollout_logprobs: Tensor  # (R,) nats; under the engine that sampled
    turn_ids: Tensor | None = None  # (R,) int64; the number of the turn of each token
    sequence_ids: Tensor | None = None  # (R,) int64; of its trajectory or turn, see `sequence`
    ref_logprobs: Tensor | None = None  # (R,) nats; under the frozen reference; only with KL
    old_values: Tensor | None = None  # (R,) reward units; only with a critic
    returns: Tensor | None = None  # (R,) reward units; only with a critic

    def split(self, lengths: list[int]) -> list["Targets"]:
        """Cut into consecutive parts. `lengths` are their numbers of tokens."""
        parts = [Targets(None, None, None) for _ in lengths]
        for field in fields(Targets):
            tensor = getattr(self, field.name)  # (R,)
            if tensor is None:
                continue
            for part, piece in zip(parts, tensor.split(lengths), strict=True):
                setattr(part, field.name, piece)
        return parts

    @staticmethod
    def join(parts: Sequence["Targets"]) -> "Targets":
        """The inverse of `split`."""
        joined = {}
        for field in fields(Targets):
            pieces = [getattr(part, field.name) for part in parts]
            joined[field.name] = None if pieces[0] is None else torch.cat(pieces)
        return Targets(**joined)


@dataclass
class TrainSample:
    """One input sequence of the model and its targets.

    A trajectory is one sequence. With context_turns, each of its turns is one."""

    sequence: Trajectory
    targets: Targets  # of the sequence's response tokens


def trainer_scores_rollouts(config: Config) -> bool:
    """Whether the trainer computes the old log-probs. Otherwise they are the engine's.

    With mask_observations=False, tokens of observations have no log-prob from the engine. With KL
    in the reward, the engine/trainer mismatch would count as KL."""
    kl_in_reward = config.kl_coef > 0 and config.kl_in == "reward"
    return config.recompute_old_logprobs or not config.mask_observations or kl_in_reward


def token_rewards(
    learner: Learner,
    kept: Sequence[Trajectory],
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
) -> Tensor:
    """Rewards of the response tokens, (R,) float64: a turn's reward sits on its last token."""
    config = learner.config
    rewards = torch.tensor(
        [turn.reward for trajectory in kept for turn in trajectory.turns], dtype=torch.float64
    )  # (K,)
    if config.reward_norm != "none":
        names = [trajectory.env for trajectory in kept]
        groups = groups_of(kept, config)  # (B,)
        peers = {  # equal numbers share a mean and a standard deviation
            "group": groups,
            "batch": torch.zeros_like(groups),
            "env": torch.tensor([names.index(name) for name in names]),
        }
        num_turns = [len(trajectory.turns) for trajectory in kept]
        rewards = starpo.normalize_rewards(
            rewards, num_turns, peers[config.reward_norm_over], config.reward_norm
        )  # (K,)
    lengths = torch.tensor(tokens_per_turn(kept))  # (K,)
    per_token = torch.zeros(int(lengths.sum()), dtype=torch.float64)  # (R,)
    per_token[lengths.cumsum(0) - 1] = rewards
    if learner.ref and config.kl_in == "reward":
        kl = starpo.kl_penalty(old_logprobs, ref_logprobs, config.kl_estimator)  # (R,)
        per_token -= config.kl_coef * kl.cpu()
    return per_token.to(learner.device)


def tokens_per_turn(trajectories: Sequence[Trajectory]) -> list[int]:
    return [len(turn.response_ids) for trajectory in trajectories for turn in trajectory.turns]


def groups_of(kept: Sequence[Trajectory], config: Config) -> Tensor:
    """The number of the group of each kept trajectory, (B,). The filter keeps whole groups."""
    return torch.arange(len(kept)) // config.group_size


def number_tokens(lengths: list[int]) -> Tensor:
    """The number of the piece of each token, (sum of lengths,) int64.

    >>> number_tokens([2, 1]).tolist()
    [0, 0, 1]
    """
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


def without_void_turns(
    kept: Sequence[Trajectory], targets: Targets, config: Config
) -> tuple[Sequence[Trajectory], Targets]:
    """With drop_void, the trajectories in which each turn executed an action, and their targets.

    A turn without an action that the environment took is void. In the paper, a turn is void if it
    has neither code nor an answer; code that fails is not void, and a void turn ends the game. Here
    the game goes on. The dropped trajectories stay in the baselines of their groups, because the
    advantages are computed before. Acts if a kept trajectory has a void turn (metric `void_frac`).
    Args: kept: B trajectories; targets: of their R response tokens.
    Returns: fewer trajectories, perhaps none, and their targets.
    Source: SimpleTIR, arXiv 2509.02479: the loss mask of its code, which leaves rewards alone.
    """
    if not config.drop_void:
        return kept, targets
    parts = targets.split([trajectory.num_response_tokens for trajectory in kept])
    trained = []
    parts_of_trained = []
    for trajectory, part in zip(kept, parts, strict=True):
        if not trajectory.has_void_turn:
            trained.append(trajectory)
            parts_of_trained.append(part)
    if not trained:
        return [], targets
    return trained, Targets.join(parts_of_trained)
