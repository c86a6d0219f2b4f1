"""Metrics of an iteration that are computed from tensors: of its rollouts and of the critic."""

import torch

from starpo import ROUNDING, group_stats


def rollout_metrics(
    scores: torch.Tensor, successes: torch.Tensor, group_size: int
) -> dict[str, float]:
    """Metrics of learning and collapse. A falling in-group std announces a collapse (2504.20073).

    Args: scores (B,) float, raw, group after group; successes (B,) bool or 0/1; group_size N.
    Returns: floats: in_group_* (means over groups, in reward units), zero_std_frac (groups without
        variance), success (successful trajectories), pass@N (groups with a success).
    >>> scores, successes = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 0, 0])
    >>> metrics = rollout_metrics(scores, successes, group_size=2)
    >>> metrics["success"], metrics["pass@2"], metrics["zero_std_frac"]
    (0.25, 0.5, 0.5)
    """
    _check_same_shape(scores=scores, successes=successes)
    mean, std, maximum = group_stats(scores, group_size)  # (P,) each
    grouped_successes = successes.double().view(-1, group_size)  # (P, N)
    return {
        "in_group_reward_mean": mean.mean().item(),
        "in_group_reward_std": std.mean().item(),
        "in_group_reward_max": maximum.mean().item(),
        "zero_std_frac": (std == 0).double().mean().item(),
        "success": grouped_successes.mean().item(),
        f"pass@{group_size}": grouped_successes.amax(1).mean().item(),
    }


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant.

    Args: values (R,), returns (R,). Returns: float <= 1; 0.0 if the returns have no variance.
    Source: CleanRL's PPO metrics, https://docs.cleanrl.dev/rl-algorithms/ppo/.
    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    0.75
    """
    _check_same_shape(values=values, returns=returns)
    values = values.detach().double()
    returns = returns.detach().double()
    if len(returns) < 2 or returns.std() <= ROUNDING * returns.abs().amax():  # CPU-GPU sync point
        return 0.0
    return 1.0 - ((returns - values).var() / returns.var()).item()


def _check_same_shape(**tensors: torch.Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"expected tensors of one shape, got {shapes}")
