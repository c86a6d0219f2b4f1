"""Metrics of an iteration: time, rollouts, optimizer steps and critic."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rollout import Trajectory
from starpo import ROUNDING, GroupStats
from support.metrics import metric_names
from support.scores import summarize

if TYPE_CHECKING:
    from learner import Learner


class Timer:
    """Wall time and CPU time of a part of an iteration, in seconds."""

    def __init__(self):
        self.wall_start = time.perf_counter()
        self.cpu_start = time.process_time()

    def stop(self) -> None:
        self.wall_s = time.perf_counter() - self.wall_start
        self.cpu_s = time.process_time() - self.cpu_start


def iteration_metrics(
    learner: Learner,
    sampled: Sequence[Trajectory],
    trajectories: Sequence[Trajectory],
    stats: GroupStats,
    num_kept: int,
    rollout_timer: Timer,
    update_timer: Timer,
) -> dict:
    """The metrics of an iteration, except those of `train.update`, `measure_collapse` and the
    evaluations.

    Args:
        sampled: all trajectories of the iteration.
        trajectories: the trajectories of the groups without an error.
        stats: statistics of the scores in the groups of `trajectories`.
        num_kept: how many of `trajectories` the filter kept.
    Returns: a dict with all `metric_names`. The metrics that the caller adds later are None."""
    config = learner.config
    num_errors = sum(trajectory.status == "error" for trajectory in sampled)
    successes = torch.tensor([float(trajectory.success) for trajectory in trajectories])  # (B,)
    return {
        **dict.fromkeys(metric_names(config)),
        "step": learner.step,
        "error_frac": num_errors / len(sampled),
        "kept_groups": num_kept // config.group_size,
        "kept_trajectories": num_kept,
        "bad_steps": learner.bad_steps,
        "sampled_groups": len(sampled) // config.group_size,
        "rollout_s": rollout_timer.wall_s,
        "update_s": update_timer.wall_s,
        "cpu_s": rollout_timer.cpu_s + update_timer.cpu_s,
        "memory_gib": peak_memory(learner.device),
        **summarize(trajectories),
        **rollout_metrics(stats, successes, config.group_size),
    }


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in GiB.

    On a GPU it is the memory that torch allocated; on a CPU, the resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit / 2**30


def rollout_metrics(
    stats: GroupStats, successes: torch.Tensor, group_size: int
) -> dict[str, float]:
    """Metrics of scores and successes inside groups.

    Args:
        stats: statistics of the scores of P groups, before reward_norm changes rewards.
        successes: (B,) bool or 0/1, one for each trajectory, group after group.
        group_size: N, the number of trajectories in a group.
    Returns: in_group_* average each group's mean, std and maximum over the groups, in reward
        units. zero_std_frac is the fraction of groups with std 0. pass@N is the fraction of groups
        with a success.
    >>> stats = GroupStats(torch.tensor([0.5, 0.0]), torch.tensor([0.7, 0.0]), torch.ones(2))
    >>> metrics = rollout_metrics(stats, torch.tensor([0, 1, 0, 0]), group_size=2)
    >>> metrics["pass@2"], metrics["zero_std_frac"]
    (0.5, 0.5)
    """
    grouped_successes = successes.double().view(-1, group_size)  # (P, N)
    return {
        "in_group_reward_mean": stats.mean.mean().item(),
        "in_group_reward_std": stats.std.mean().item(),
        "in_group_reward_max": stats.maximum.mean().item(),
        "zero_std_frac": (stats.std == 0).double().mean().item(),
        f"pass@{group_size}": grouped_successes.amax(1).mean().item(),
    }


def mean_over_steps(
    steps: Sequence[dict[str, float]], tokens_per_step: Sequence[int]
) -> dict[str, float]:
    """Average metrics over the optimizer steps of an iteration.

    Each step trains on one mini-batch. The weight of a step is the number of response tokens in its
    mini-batch. So a mean over the tokens of each mini-batch becomes a mean over all tokens.
    observation_nll gets the same weights, although it is a mean over observation tokens. For
    gradient norms all steps have equal weight. logprob_diff_* are taken from the first step alone,
    because the engine and the trainer have the same model weights only in the first step.
    >>> steps = [{"entropy": 3.0, "grad_norm": 1.0}, {"entropy": 1.0, "grad_norm": 2.0}]
    >>> mean_over_steps(steps, tokens_per_step=[1, 3])
    {'entropy': 1.5, 'grad_norm': 1.5}
    """
    num_tokens = sum(tokens_per_step)
    means = {}
    for key in steps[0]:
        if key.startswith("logprob_diff"):
            means[key] = steps[0][key]
        elif key.startswith("grad_norm"):
            means[key] = sum(step[key] for step in steps) / len(steps)
        else:
            parts = zip(steps, tokens_per_step, strict=True)
            means[key] = sum(step[key] * tokens for step, tokens in parts) / num_tokens
    return means


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """Return 1 - Var(returns - values) / Var(returns).

    The result is 1 for a perfect critic, and 0 for a critic that always predicts the same value.

    Args: values, returns: (R,), one number for each response token.
    Returns: float <= 1; 0.0 if the returns have no variance.
    Source: CleanRL's PPO metrics, https://docs.cleanrl.dev/rl-algorithms/ppo/.
    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    0.75
    """
    values = values.detach().double()
    returns = returns.detach().double()
    if len(returns) < 2 or returns.std() <= ROUNDING * returns.abs().amax():  # CPU-GPU sync point
        return 0.0
    return 1.0 - ((returns - values).var() / returns.var()).item()
