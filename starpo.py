"""StarPO and StarPO-S as pure functions on tensors: filter, advantages, losses, KL estimators, metrics.

StarPO maximises the expected return E[sum_k r_k] of whole trajectories tau = (s_0, a_0, r_0, s_1, ...), which alternate
observations s_k and sampled texts a_k, with the clipped surrogate over the response tokens y_t, t = 1..R:

    ratio_t  = pi_theta(y_t | everything before it) / pi_old(y_t | everything before it)
    L_policy = -1/R sum_t min(ratio_t A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) A_t)
    PPO:  A_t = whitened sum_l (gamma lam)^l delta_{t+l},  delta_t = r_t + gamma V_{t+1} - V_t  (gae, whiten)
    GRPO: A_t = (R(tau) - mean_group R) / (std_group R + 1e-6), the same for every token of tau (grpo_advantages)

StarPO-S adds the uncertainty filter (only the share `keep` of the prompts with the largest std of R(tau) over their
N rollouts is trained on), a larger clip_high and no KL term. Source: RAGEN, https://arxiv.org/abs/2504.20073.

Layout: whatever belongs to tokens is a flat (R,) tensor over RESPONSE tokens only, those the policy sampled (its
end-of-sequence tokens included), trajectories one after the other; `lengths` says how many belong to each. Index r
of logprobs scores response token r. Observation tokens do not occur, so there is no mask to get wrong. Letters:
P prompt groups, N rollouts per group (group_size), B = P * N trajectories, R response tokens.

What differs from the paper and from RAGEN's code:
- Response tokens only. The paper optimises every token; RAGEN's first default trained on the environment's text.
- One token-level denominator for the whole mini-batch, passed in. The paper averages per trajectory first (eq. 4);
  RAGEN averages per micro-batch, so that its result depends on the micro-batch size.
- GAE steps over the observation between two turns, so gamma and lam count sampled tokens; rewards sit on the last
  token of their turn, not of the trajectory.
- The filter ranks raw scores; RAGEN ranks scores after its in-group normalisation, if that is on.
- With keep < 1 a group without variance is never kept, so fewer groups (even none) may remain.
- GAE advantages are whitened once over all kept response tokens of the iteration, not per mini-batch.
- No dual clip (RAGEN's backend has it, c = 3): for A < 0 the loss is not bounded when the ratio grows.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats; exp(20) = 5e8 is far outside every clip range and still finite
NOISE = 1e-6  # spread below NOISE * scale is rounding of float sums (0.1 + 0.2 against 0.3), not signal


def _check_vectors(num_tokens: int = 1, **tensors: Tensor) -> None:
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1:
        raise ValueError(f"expected 1-D tensors of one length, got {shapes}")


def _as_groups(scores: Tensor, group_size: int) -> Tensor:
    _check_vectors(scores=scores)
    if group_size < 1 or len(scores) == 0 or len(scores) % group_size:
        raise ValueError(f"cannot divide {len(scores)} scores into groups of group_size={group_size}")
    if not scores.is_floating_point() or not torch.isfinite(scores).all():
        raise ValueError(f"scores must be finite floats, got {scores.dtype} {scores.tolist()}")
    return scores.detach().double().view(-1, group_size)  # (P, N)


def _full_precision(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def group_stats(scores: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased standard deviation and maximum of the trajectory scores in each group.

    Args: scores (B,) float, sum of rewards of each trajectory, group after group; group_size N, divides B.
    Returns: mean (P,), std (P,), max (P,), dtype of scores, in reward units. std is exactly 0 for N = 1 and for
        groups that differ only by float rounding, std <= 1e-6 * max(1, largest |score| of the group).
    Raises: ValueError if B is 0 or not a multiple of group_size, or scores are not finite floats.
    Source: U(x) of StarPO-S, arXiv 2504.20073.
    >>> mean, std, best = group_stats(torch.tensor([0.0, 2.0, 1.0, 1.0]), group_size=2)
    >>> mean.tolist(), [round(s, 3) for s in std.tolist()], best.tolist()
    ([1.0, 1.0], [1.414, 0.0], [2.0, 1.0])
    """
    groups = _as_groups(scores, group_size)  # (P, N)
    mean, best = groups.mean(1), groups.amax(1)  # (P,), (P,)
    std = groups.std(1) if group_size > 1 else torch.zeros_like(mean)  # (P,), torch.std of one number is NaN
    std = torch.where(std > NOISE * groups.abs().amax(1).clamp(min=1.0), std, 0.0)  # (P,)
    return mean.to(scores.dtype), std.to(scores.dtype), best.to(scores.dtype)


def filter_groups(scores: Tensor, group_size: int, keep: float) -> Tensor:
    """The uncertainty filter of StarPO-S: keep the groups whose rollouts disagree most.

    Ranks by in-group std of the raw scores, the lower index first among equals (to 1e-6), and keeps the first
    max(1, int(keep * P)), less those with std 0. keep = 1 is vanilla StarPO: no filter, std 0 is kept too.

    Args: scores (B,) float, raw (not normalised) trajectory scores; group_size N; keep, share of groups in (0, 1].
    Returns: (<= P,) int64 indices of the kept groups, ascending; empty if keep < 1 and no group has variance.
    Raises: ValueError if keep is not in (0, 1], and as group_stats. Source: StarPO-S, arXiv 2504.20073 (keep = 0.25).
    >>> filter_groups(torch.tensor([0.0, 1.0, 5.0, 5.0, 0.0, 9.0]), group_size=2, keep=0.67).tolist()
    [0, 2]
    """
    if not 0.0 < keep <= 1.0:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    std = group_stats(scores, group_size)[1]  # (P,)
    if keep == 1.0:
        return torch.arange(len(std), device=scores.device)
    num_keep = max(1, int(keep * len(std) + 1e-9))  # 1e-9: 0.29 * 100 is 28.999999999999996 and means 29
    order = torch.sort((std / NOISE).round(), descending=True, stable=True).indices[:num_keep]  # (num_keep,)
    return order[std[order] > 0].sort().values


def grpo_advantages(scores: Tensor, group_size: int) -> Tensor:
    """Group-relative advantages, (score - group mean) / (group std + 1e-6).

    Args: scores (B,) float, trajectory scores; group_size N.
    Returns: (B,) dtype of scores, no unit; 0 for N = 1 and for groups without variance.
    Raises: ValueError as group_stats. Source: GRPO, https://arxiv.org/abs/2402.03300 (outcome supervision).
    >>> grpo_advantages(torch.tensor([0.0, 1.0, 2.0]), group_size=3).tolist()  # mean 1, std 1
    [-0.9999989867210388, 0.0, 0.9999989867210388]
    """
    mean, std, _ = group_stats(scores.double() if scores.is_floating_point() else scores, group_size)  # (P,), (P,)
    mean, std = (x.repeat_interleave(group_size) for x in (mean, std))  # (B,), (B,)
    advantages = (scores.detach() - mean) / (std + 1e-6)  # (B,)
    return torch.where(std > 0, advantages, 0.0).to(scores.dtype)


def gae(rewards: Tensor, values: Tensor, lengths: list[int], gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation along the response tokens of each trajectory.

    The step after the last token of a turn is the first token of the next turn. Nothing is bootstrapped past the end:
    turn and action limits are part of the task and shown in the prompt, so running out is a real end.

    Args: rewards (R,), values (R,) float, V of the state in which the token was sampled, reward units; lengths, B
        counts summing to R; gamma, lam in [0, 1], per response token.
    Returns: advantages (R,), returns (R,) = advantages + values, without gradient, at least float32.
    Raises: ValueError if shapes or lengths do not match, or gamma or lam is outside [0, 1].
    Source: https://arxiv.org/abs/1506.02438, equation 16.
    >>> advantages, returns = gae(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25]), [2], gamma=1.0, lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([0.5, 0.75], [1.0, 1.0])
    """
    _check_vectors(rewards=rewards, values=values)
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(f"lengths {lengths} must be counts that sum to the {len(values)} response tokens")
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ValueError(f"gamma and lam must be in [0, 1], got gamma={gamma}, lam={lam}")
    values = _full_precision(values.detach())
    B, T = len(lengths), max(lengths, default=0)
    steps = torch.arange(T, device=values.device)
    mask = steps < torch.tensor(lengths, device=values.device)[:, None]  # (B, T)
    padded_values, padded_rewards = values.new_zeros(B, T + 1), values.new_zeros(B, T)
    padded_values[:, :T][mask] = values  # zeros behind the end: V = 0 there, hence delta = advantage = 0 too
    padded_rewards[mask] = rewards.detach().to(values.dtype)
    deltas = padded_rewards + gamma * padded_values[:, 1:] - padded_values[:, :-1]  # (B, T)
    padded_advantages = values.new_zeros(T + 1, B)  # time first: the loop walks over contiguous rows
    for t in reversed(range(T)):
        padded_advantages[t] = deltas[:, t] + gamma * lam * padded_advantages[t + 1]  # (B,)
    advantages = padded_advantages[:T].T[mask]  # (R,)
    return advantages, advantages + values


def whiten(x: Tensor) -> Tensor:
    """Shift to zero mean and scale to unit (unbiased) standard deviation over all entries.

    Args: x (R,) float, for GAE the advantages of all kept response tokens of the iteration (of all ranks).
    Returns: (R,) dtype of x, (x - mean) / (std + 1e-8); only x - mean if R < 2 or x has no variance.
    Raises: ValueError if x is not 1-D. Source: detail 7 of https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    >>> whiten(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    _check_vectors(x=x)
    centred = x.double() - x.double().mean()  # (R,)
    if len(x) > 1:
        std = centred.std()
        centred = centred / torch.where(std > NOISE * x.abs().amax(), std + 1e-8, 1.0)  # do not blow up rounding
    return centred.to(x.dtype)


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, num_tokens: int,
    importance: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """PPO's clipped objective, -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), summed / num_tokens.

    Args: logprobs (R,) nats, with gradient; old_logprobs (R,) before the update; advantages (R,); num_tokens >= 1,
        response tokens of the whole mini-batch, so that losses and gradients of micro-batches (and ranks) add up;
        importance (R,), factors without gradient, from `importance_weights`.
    Returns: loss, scalar; metrics, SUMS over the R tokens without gradient, to be divided once by the caller:
        clipfrac (tokens whose clipped term is strictly smaller), approx_kl (k3 of KL(old || new), nats).
    Raises: ValueError if shapes differ, clip_low is not in [0, 1], clip_high < 0 or num_tokens < 1.
    Source: https://arxiv.org/abs/1707.06347, equation 7; separate bounds: DAPO, https://arxiv.org/abs/2503.14476.
    >>> new, old, A = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0])
    >>> loss, metrics = policy_loss(new, old, A, clip_low=0.25, clip_high=0.5, num_tokens=2)
    >>> loss.item(), metrics["clipfrac"].item()  # -(1 * 1 + 1.5 * 2) / 2
    (-2.0, 1.0)
    """
    _check_vectors(num_tokens, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"need 0 <= clip_low <= 1 and clip_high >= 0, got clip_low={clip_low}, clip_high={clip_high}")
    log_ratio = _full_precision(logprobs) - _full_precision(old_logprobs.detach())  # (R,)
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio, advantages = log_ratio.exp(), advantages.detach()  # (R,), (R,)
    unclipped = ratio * advantages  # (R,)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages  # (R,)
    objective = torch.minimum(unclipped, clipped)  # (R,)
    loss = -(objective if importance is None else objective * importance.detach()).sum() / num_tokens
    clipfrac, approx_kl = (clipped < unclipped).sum().to(loss.dtype), (torch.expm1(log_ratio) - log_ratio).sum()
    return loss, {"clipfrac": clipfrac, "approx_kl": approx_kl.detach()}


def importance_weights(logprobs: Tensor, old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float) -> Tensor:
    """What turns PPO's ratio into the truncated importance weight of the sampler: min(pi / pi_rollout, cap) / ratio.

    Samples come from the engine, whose numbers differ a little from the trainer's. With old_logprobs = rollout_logprobs
    the weight is 1 until a ratio exceeds the cap; with recomputed ones it is pi_old / pi_rollout, truncated.

    Args: logprobs, old_logprobs, rollout_logprobs (R,), nats; cap >= 1. Returns: (R,) without gradient.
    Raises: ValueError if shapes differ or cap < 1. Source: truncated importance sampling, Yao et al. 2025, "Your
        efficient RL framework secretly brings you off-policy RL training".
    >>> importance_weights(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]), torch.tensor([-0.5, 0.0]), 2.0)[0].item()
    1.6487212181091309
    """
    _check_vectors(logprobs=logprobs, old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    if cap < 1.0:
        raise ValueError(f"cap must be at least 1, got {cap}")
    new, old, rollout = (_full_precision(x.detach()) for x in (logprobs, old_logprobs, rollout_logprobs))
    total = (new - rollout).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp_max(cap)  # (R,)
    return total / (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float, num_tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss, 0.5 max((v - R)^2, (clip(v, old - value_clip, old + value_clip) - R)^2), / num_tokens.

    Args: values (R,) with gradient, old_values (R,) before the update, returns (R,), all in reward units;
        value_clip > 0 in reward units, float("inf") for no clip; num_tokens as in policy_loss.
    Returns: loss, scalar; metrics, SUMS without gradient: vf_clipfrac (tokens whose clipped term is larger).
    Raises: ValueError if shapes differ, value_clip <= 0 or num_tokens < 1.
    Source: detail 9 of https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    >>> v, old, returns = torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0])
    >>> loss, metrics = value_loss(v, old, returns, value_clip=0.5, num_tokens=1)
    >>> loss.item(), metrics["vf_clipfrac"].item()  # v is held at 0.5: 0.5 * 2.5^2
    (3.125, 1.0)
    """
    _check_vectors(num_tokens, values=values, old_values=old_values, returns=returns)
    if not value_clip > 0.0:
        raise ValueError(f"value_clip must be > 0, got {value_clip}")
    values, old_values = _full_precision(values), _full_precision(old_values.detach())  # (R,), (R,)
    held = values.clamp(old_values - value_clip, old_values + value_clip)  # (R,)
    unclipped, clipped = (values - returns.detach()) ** 2, (held - returns.detach()) ** 2  # (R,), (R,)
    loss = 0.5 * torch.maximum(unclipped, clipped).sum() / num_tokens
    return loss, {"vf_clipfrac": (clipped > unclipped).sum().to(loss.dtype)}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Estimate KL(policy || reference) per token from tokens that the policy sampled.

    With d = logprobs - ref_logprobs: "k1" d, "k2" d^2 / 2, "k3" exp(-d) - 1 + d. As a LOSS k1 has no expected gradient
    and only fits into the reward; k2 has the gradient of KL(policy || reference), k3 that of KL(reference || policy).

    Args: logprobs (R,), ref_logprobs (R,), nats; estimator "k1", "k2" or "k3".
    Returns: (R,) nats, with gradient in logprobs; d is clamped to [-20, 20] so that exp stays finite.
    Raises: ValueError if shapes differ or the estimator is unknown. Source: http://joschu.net/blog/kl-approx.html
        (Schulman, "Approximating KL divergence").
    >>> kl_penalty(torch.tensor([-1.0]), torch.tensor([-3.0]), "k2").tolist()
    [2.0]
    """
    _check_vectors(logprobs=logprobs, ref_logprobs=ref_logprobs)
    d = _full_precision(logprobs) - _full_precision(ref_logprobs.detach())  # (R,)
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d**2
    if estimator == "k3":
        return torch.expm1(-d) + d
    raise ValueError(f"estimator must be 'k1', 'k2' or 'k3', got {estimator!r}")


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 no better than a constant.

    Args: values (R,), returns (R,), reward units. Returns: float <= 1; 0.0 (never NaN) without variance in returns.
    Raises: ValueError if shapes differ. Source: CleanRL's PPO metrics, https://docs.cleanrl.dev/rl-algorithms/ppo/.
    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    0.75
    """
    _check_vectors(values=values, returns=returns)
    values, returns = values.detach().double(), returns.detach().double()
    if len(returns) < 2 or returns.std() <= NOISE * returns.abs().amax():  # sync point
        return 0.0
    return 1.0 - ((returns - values).var() / returns.var()).item()


def rollout_metrics(scores: Tensor, successes: Tensor, group_size: int) -> dict[str, float]:
    """What the scores of one iteration say about learning and about collapse (a falling in-group std).

    Args: scores (B,) float, raw trajectory scores; successes (B,) bool or 0/1; group_size N.
    Returns: floats: in_group_reward_mean / _std / _max, averaged over groups, reward units; zero_std_frac, groups
        without variance; success, share of trajectories; pass@N, share of groups with any success.
    Raises: ValueError if the shapes differ, and as group_stats.
    Source: collapse indicators of arXiv 2504.20073; pass@N is RAGEN's "any of the group succeeds".
    >>> metrics = rollout_metrics(torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([False, True, False, False]), 2)
    >>> metrics["success"], metrics["pass@2"], metrics["zero_std_frac"]
    (0.25, 0.5, 0.5)
    """
    _check_vectors(scores=scores, successes=successes)
    mean, std, best = group_stats(scores, group_size)  # (P,) each
    solved = successes.double().view(-1, group_size)  # (P, N)
    return {
        "in_group_reward_mean": mean.mean().item(),
        "in_group_reward_std": std.mean().item(),
        "in_group_reward_max": best.mean().item(),
        "zero_std_frac": (std == 0).double().mean().item(),
        "success": solved.mean().item(),
        f"pass@{group_size}": solved.amax(1).mean().item(),
    }
