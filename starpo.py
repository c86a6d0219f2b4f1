"""StarPO and its relatives as pure functions on tensors: filters, advantages, losses, KL estimators, metrics.

StarPO maximises the expected return E[sum_k r_k] of whole trajectories tau = (s_0, a_0, r_0, s_1, ...), which alternate
observations s_k and sampled texts a_k, with the clipped surrogate over the response tokens y_t, t = 1..R:

    ratio_t  = pi_theta(y_t | everything before it) / pi_old(y_t | everything before it)
    L_policy = -1/R sum_t min(ratio_t A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) A_t)
    gae (PPO):  A_t = whitened sum_l (gamma lam)^l delta_{t+l},  delta_t = r_t + gamma V_{t+1} - V_t
    grpo:       A_t = (R(tau) - mean_group R) / (std_group R + 1e-6), the same for every token of tau

StarPO-S adds the uncertainty filter (only the prompts with the largest std of R(tau) over their N rollouts are trained
on), a larger clip_high and no KL term. Source: RAGEN, https://arxiv.org/abs/2504.20073. README has a table of methods.

Whatever belongs to tokens is a flat (R,) tensor over RESPONSE tokens only, those the policy sampled (its end-of-turn
tokens included), trajectories one after the other; `lengths` says how many belong to each. There is no mask to get
wrong. P prompt groups, N rollouts per group (group_size), B = P * N trajectories, K turns of all, R response tokens.

What differs from the paper and from RAGEN's code:
- Response tokens only: the paper optimises every token, as mask_observations=False does.
- One token-level denominator for the whole mini-batch, passed in. The paper averages per trajectory first (eq. 4);
  RAGEN averages per micro-batch, so that its result depends on the micro-batch size.
- GAE steps over the observation between two turns, so gamma and lam count sampled tokens; rewards sit on the last
  token of their turn, not of the trajectory. Turns are known by their tokens, not by a reward that differs from zero.
- The filter ranks raw scores, RAGEN in-group normalised ones where that is on; it keeps no group without variance.
- GAE advantages are whitened once over all kept response tokens of the iteration, not per mini-batch.
- Dual clip (RAGEN's backend has it, c = 3) is off by default.
"""

from configurator import Config

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats; exp(20) = 5e8 is far outside every clip range and still finite
NOISE = (
    1e-6  # spread below NOISE * scale is rounding of float sums (0.1 + 0.2 against 0.3), not signal
)


def _check_vectors(num_tokens: int = 1, **tensors: Tensor) -> None:
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1:
        raise ValueError(f"expected 1-D tensors of one length, got {shapes}")


def _full_precision(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_ratio(logprobs: Tensor, others: Tensor) -> Tensor:
    """log of pi / pi_other, with gradient in pi only, held in [-20, 20] so that its exp stays finite."""
    return (_full_precision(logprobs) - _full_precision(others.detach())).clamp(
        -MAX_LOG_RATIO, MAX_LOG_RATIO
    )


def group_stats(scores: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased standard deviation (U(x) of StarPO-S) and maximum of the trajectory scores in each group.

    Args: scores (B,) float, sum of rewards of each trajectory, group after group; group_size N, divides B.
    Returns: mean (P,), std (P,), max (P,), dtype of scores, in reward units. std is exactly 0 for N = 1 and for
        groups that differ only by float rounding, std <= 1e-6 * max(1, largest |score| of the group).
    Raises: ValueError if B is 0 or not a multiple of group_size, or scores are not finite floats.
    >>> mean, std, best = group_stats(torch.tensor([0.0, 2.0, 1.0, 1.0]), group_size=2)
    >>> mean.tolist(), [round(s, 3) for s in std.tolist()], best.tolist()
    ([1.0, 1.0], [1.414, 0.0], [2.0, 1.0])
    """
    _check_vectors(scores=scores)
    if group_size < 1 or len(scores) == 0 or len(scores) % group_size:
        raise ValueError(
            f"cannot divide {len(scores)} scores into groups of group_size={group_size}"
        )
    if not scores.is_floating_point() or not torch.isfinite(scores).all():
        raise ValueError(f"scores must be finite floats, got {scores.dtype} {scores.tolist()}")
    groups = scores.detach().double().view(-1, group_size)  # (P, N)
    mean, best = groups.mean(1), groups.amax(1)  # (P,), (P,)
    std = (
        groups.std(1) if group_size > 1 else torch.zeros_like(mean)
    )  # (P,), torch.std of one number is NaN
    std = torch.where(std > NOISE * groups.abs().amax(1).clamp(min=1.0), std, 0.0)  # (P,)
    return mean.to(scores.dtype), std.to(scores.dtype), best.to(scores.dtype)


def filter_groups(
    values: Tensor,
    std: Tensor,
    *,
    keep: float,
    strategy: str = "fraction",
    smallest: bool = False,
    zero_std: bool = False,
) -> Tensor:
    """The uncertainty filter of StarPO-S and those of RAGEN-2: which groups are trained on.

    Groups are ranked by their value, the lower index first among equals (to 1e-6). "fraction" keeps the first
    max(1, int(keep * P)), "count" the first int(keep); "top_p" the shortest list whose values sum to at least keep of
    the total, "top_p_softmax" the same with softmax(values) for values; "min_p" all of at least keep * the largest.
    Groups without variance are then dropped unless `zero_std`. fraction 1 is vanilla StarPO: no filter at all.

    Args: values (P,) float, >= 0 for top_p and min_p; std (P,) of raw scores, from `group_stats`; smallest: rank from
        the smallest value, for fraction and count. Returns: (<= P,) int64, the kept groups, ascending, or none.
    Raises: ValueError if keep or strategy is not legal, or a strategy cannot work with these values.
    Source: StarPO-S, arXiv 2504.20073 (fraction 0.25); RAGEN-2's rollout_filter_strategy (top_p 0.9).
    >>> filter_groups(torch.tensor([0.7, 0.0, 6.4]), torch.tensor([0.7, 0.0, 6.4]), keep=0.67).tolist()
    [0, 2]
    """
    _check_vectors(values=values, std=std)
    if not (1 <= keep <= len(std) if strategy == "count" else 0.0 < keep <= 1.0):
        raise ValueError(
            f"keep must be in (0, 1], for count in [1, {len(std)}], got {keep} for {strategy}"
        )
    if (smallest and strategy not in ("fraction", "count")) or (
        strategy in ("top_p", "min_p") and values.min() < 0
    ):
        raise ValueError(
            f"{strategy} ranks from the largest and wants values >= 0, got {values.tolist()}"
        )
    if strategy == "fraction" and keep == 1.0:
        return torch.arange(len(std), device=std.device)
    values = values.double()
    ranks = (values / NOISE).round()
    order = torch.sort(-ranks if smallest else ranks, descending=True, stable=True).indices  # (P,)
    if strategy in ("fraction", "count"):  # 1e-9: 0.29 * 100 is 28.999999999999996 and means 29
        num_keep = max(1, int(keep * (len(std) if strategy == "fraction" else 1) + 1e-9))
    elif strategy == "min_p":
        num_keep = int((values >= keep * values.max() - NOISE).sum())
    elif strategy in ("top_p", "top_p_softmax"):
        mass = (values.softmax(0) if strategy == "top_p_softmax" else values)[order]  # (P,)
        num_keep = 1 + int((mass.cumsum(0) < keep * mass.sum() - NOISE).sum())
    else:
        raise ValueError(
            f"strategy must be fraction, count, top_p, top_p_softmax or min_p, got {strategy!r}"
        )
    order = order[:num_keep]
    return order[(std[order] > 0) | zero_std].sort().values


def normalize_rewards(rewards: Tensor, turns: list[int], owners: Tensor, method: str) -> Tensor:
    """Normalise trajectory scores among those with the same owner, and turn rewards with them.

    Scores become s - mean ("mean") or (s - mean) / (std + 1e-6) ("mean_std"), held in [-1, 3] ("asym_clip"), and 0
    without variance. Turn rewards are divided by the same number, and their last takes what the sum lacks.

    Args: rewards (K,) of turns; turns, B counts summing to K; owners (B,) int64, group, batch or environment.
    Returns: (K,) dtype of rewards. Source: RAGEN's reward_normalization (grouping state, batch, inductive).
    >>> normalize_rewards(torch.tensor([1.0, 2.0, 1.0]), [2, 1], torch.tensor([0, 0]), "mean").tolist()
    [1.0, 0.0, -1.0]
    """
    scores = segment_sums(rewards, turns)  # (B,)
    mean, std, _ = owner_stats(scores, owners)  # (B,)
    scale = (
        torch.where(std > 0, 1 / (std + 1e-6), 0.0) if method != "mean" else torch.ones_like(std)
    )
    wanted = torch.where(std > 0, scores - mean, 0.0) * scale  # (B,)
    wanted = wanted.clamp(-1.0, 3.0) if method == "asym_clip" else wanted
    counts, ends = torch.tensor(turns), torch.tensor(turns).cumsum(0) - 1
    rewards = rewards * scale.repeat_interleave(counts)  # (K,)
    rewards[ends] += wanted - segment_sums(rewards, turns)
    return rewards


def segment_sums(x: Tensor, lengths: list[int]) -> Tensor:
    """Sums over consecutive pieces, (len(lengths),).
    >>> segment_sums(torch.tensor([1.0, 2.0, 3.0]), [2, 1]).tolist()
    [3.0, 3.0]
    """
    return torch.stack([piece.sum() for piece in x.split(lengths)])


def owner_stats(scores: Tensor, owners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and unbiased std of the scores with the same owner, and their number, each (M,) for M scores.

    std is 0 for a single score and where scores differ by float rounding only, as in group_stats.
    >>> mean, std, count = owner_stats(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([7, 7, 3]))
    >>> mean.tolist(), count.tolist()
    ([1.0, 1.0, 5.0], [2, 2, 1])
    """
    mean, std, count = torch.zeros_like(scores), torch.zeros_like(scores), torch.zeros_like(owners)
    for owner in owners.unique():
        own = owners == owner
        stats = group_stats(scores[own], int(own.sum()))
        mean[own], std[own], count[own] = stats[0], stats[1], own.sum()
    return mean, std, count


def group_advantages(scores: Tensor, owners: Tensor, estimator: str) -> Tensor:
    """Advantages against the other scores of the same owner, without a critic.

    "grpo" (s - mean) / (std + 1e-6), 0 without variance; "dr_grpo" and "reinforce_plus_plus_baseline" s - mean; "rloo"
    s - mean of the others, 0 for a single score.

    Args: scores (M,) float, of trajectories or turns; owners (M,) int64. Returns: (M,) dtype of scores.
    Raises: ValueError for another estimator. Sources: GRPO, https://arxiv.org/abs/2402.03300; Dr. GRPO,
        https://arxiv.org/abs/2503.20783; RLOO, https://arxiv.org/abs/2402.14740.
    >>> group_advantages(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 0, 0]), "rloo").tolist()
    [-1.5, 0.0, 1.5]
    """
    mean, std, count = owner_stats(scores.detach().double(), owners)  # (M,) each
    centred = torch.where(
        std > 0, scores.detach() - mean, 0.0
    )  # (M,), rounding would be blown up by whitening
    if estimator == "grpo":
        centred = centred / (std + 1e-6)
    elif estimator == "rloo":
        centred = centred * count / (count - 1).clamp(min=1)
    elif estimator not in ("dr_grpo", "reinforce_plus_plus_baseline"):
        raise ValueError(f"no group baseline for estimator {estimator!r}")
    return centred.to(scores.dtype)


def advantages(
    rewards: Tensor,
    values: Tensor | None,
    turn_lengths: list[int],
    turns: list[int],
    groups: Tensor,
    config: Config,
) -> tuple[Tensor, Tensor | None]:
    """What the config's estimator makes of the rewards.

    gae, bi_level_gae: whitened, see there. grpo, dr_grpo, rloo: `group_advantages` of the trajectories' scores, one for
    all tokens of each; with turn_level of the turns' returns-to-go, against the same turn of the other members.
    reinforce_plus_plus (https://arxiv.org/abs/2501.03262): returns-to-go of the tokens, whitened over the batch; its
    _baseline form: scores less the mean of their group, whitened over the batch.

    Args: rewards (R,) of tokens; values (R,), None without critic; turn_lengths, K counts of tokens; turns, B counts of
        turns; groups (B,) int64; config: estimator, turn_level, gamma, lam, turn_gamma, turn_lam.
    Returns: advantages (R,); returns (R,) for the critic, None without one.
    >>> half, groups = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([0, 0])
    >>> advantages(half, None, [1, 1, 1], [2, 1], groups, Config(estimator="dr_grpo"))[0].tolist()
    [0.25, 0.25, -0.25]
    """
    ends, device = torch.tensor(turn_lengths).cumsum(0) - 1, rewards.device
    lengths = segment_sums(torch.tensor(turn_lengths), turns).tolist()
    gamma, lam = (torch.full_like(rewards, x) for x in (config.gamma, config.lam))  # (R,)
    gamma[ends], lam[ends] = config.turn_gamma, config.turn_lam
    if config.estimator == "bi_level_gae":
        raw, returns = bi_level_gae(rewards, values, turn_lengths, turns, config)
        return whiten(raw), returns
    if config.estimator in ("gae", "reinforce_plus_plus"):
        none = torch.zeros_like(rewards) if values is None else values
        raw, returns = gae(rewards, none, lengths, gamma, lam if values is not None else 1.0)
        return whiten(raw), returns if values is not None else None
    scores, owners, counts = segment_sums(rewards, lengths), groups, lengths
    if config.turn_level:
        per_turn = segment_sums(rewards, turn_lengths)  # (K,)
        scores = gae(per_turn, torch.zeros_like(per_turn), turns, config.turn_gamma, 1.0)[
            1
        ]  # returns-to-go
        places = torch.cat([torch.arange(n) for n in turns])
        owners, counts = (
            groups.repeat_interleave(torch.tensor(turns)) * max(turns) + places,
            turn_lengths,
        )
    each = group_advantages(scores.cpu(), owners, config.estimator).to(device)  # (B,) or (K,)
    result = each.repeat_interleave(torch.tensor(counts, device=device))  # (R,)
    return whiten(result) if config.estimator == "reinforce_plus_plus_baseline" else result, None


def gae(
    rewards: Tensor, values: Tensor, lengths: list[int], gamma: float | Tensor, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation along the response tokens of each trajectory.

    The step after the last token of a turn is the first token of the next turn. Nothing is bootstrapped past the end:
    turn and action limits are part of the task and shown in the prompt, so running out is a real end.

    Args: rewards (R,), values (R,) float, V of the state in which the token was sampled, reward units; lengths, B
        counts summing to R; gamma, lam in [0, 1], per response token, (R,) where they differ at the end of a turn.
    Returns: advantages (R,), returns (R,) = advantages + values, without gradient, at least float32. Raises: ValueError
        for shapes or lengths that do not match, gamma or lam outside [0, 1]. Source: arXiv 1506.02438, equation 16.
    >>> advantages, returns = gae(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25]), [2], gamma=1.0, lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([0.5, 0.75], [1.0, 1.0])
    """
    _check_vectors(rewards=rewards, values=values)
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(
            f"lengths {lengths} must be counts that sum to the {len(values)} response tokens"
        )
    values = _full_precision(values.detach())
    of_tokens = dict(dtype=torch.float64, device=values.device)
    gamma, lam = (
        torch.as_tensor(x, **of_tokens).expand(len(values)) for x in (gamma, lam)
    )  # (R,), (R,)
    if not all(((x >= 0.0) & (x <= 1.0)).all() for x in (gamma, lam)):
        raise ValueError(
            f"gamma and lam must be in [0, 1], got {gamma.unique().tolist()}, {lam.unique().tolist()}"
        )
    B, T = len(lengths), max(lengths, default=0)
    steps = torch.arange(T, device=values.device)
    mask = steps < torch.tensor(lengths, device=values.device)[:, None]  # (B, T)
    padded = values.new_zeros(
        4, B, T + 1
    )  # zeros behind the end: V = 0 there, hence delta = advantage = 0 too
    for row, x in zip(padded, (values, rewards.detach(), gamma, gamma * lam), strict=True):
        row[:, :T][mask] = x.to(values.dtype)
    v, r, discount, decay = padded  # (B, T + 1) each
    deltas = r[:, :-1] + discount[:, :-1] * v[:, 1:] - v[:, :-1]  # (B, T)
    padded_advantages = values.new_zeros(
        T + 1, B
    )  # time first: the loop walks over contiguous rows
    for t in reversed(range(T)):
        padded_advantages[t] = deltas[:, t] + decay[:, t] * padded_advantages[t + 1]  # (B,)
    raw = padded_advantages[:T].T[mask]  # (R,)
    return raw, raw + values


def bi_level_gae(
    rewards: Tensor, values: Tensor, turn_lengths: list[int], turns: list[int], config: Config
) -> tuple[Tensor, Tensor]:
    """GAE over turns, then inside each: a turn's return takes the place of its reward, and nothing follows it.

    Over turns: rewards are sums of the turn, values those at its last token, with turn_gamma and turn_lam. Inside, with
    gamma and lam: what the turn's return exceeds its own rewards by is added to the reward of its last token. Args,
    returns: as `advantages`, not whitened. Source: RAGEN's compute_bi_level_gae_advantage_return, which loses turns
    without reward, because it finds the ends of turns by rewards.
    >>> r, v = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.25, 0.25, 0.5, 0.5])
    >>> bi_level_gae(r, v, [2, 2], [2], Config(turn_gamma=0.5))[0].tolist()
    [0.25, 0.25, 0.5, 0.5]
    """
    ends = torch.tensor(turn_lengths).cumsum(0) - 1
    own = segment_sums(rewards, turn_lengths)  # (K,)
    _, returns = gae(own, values[ends], turns, config.turn_gamma, config.turn_lam)
    rewards = rewards.clone()
    rewards[ends] += (returns - own).to(rewards.dtype)
    return gae(rewards, values, turn_lengths, config.gamma, config.lam)


def whiten(x: Tensor) -> Tensor:
    """Shift to zero mean and scale to unit (unbiased) standard deviation over all entries.

    Args: x (R,) float, for GAE the advantages of all kept response tokens of the iteration (of all ranks). Raises:
        ValueError if x is not 1-D. Returns: (R,), (x - mean) / (std + 1e-8), x - mean if R < 2 or x has no variance.
    Source: detail 7 of https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    >>> whiten(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    _check_vectors(x=x)
    centred = x.double() - x.double().mean()  # (R,)
    if len(x) > 1:
        std = centred.std()
        centred = centred / torch.where(
            std > NOISE * x.abs().amax(), std + 1e-8, 1.0
        )  # do not blow up rounding
    return centred.to(x.dtype)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    num_tokens: int,
    weights: Tensor | None = None,
    dual_clip: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped objective, -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), summed / num_tokens.

    Args: logprobs (R,) nats, with gradient; old_logprobs (R,) before the update; advantages (R,); num_tokens >= 1,
        response tokens of the whole mini-batch, so that losses and gradients of micro-batches (and ranks) add up;
        weights (R,), factors without gradient, of `importance_weights` and `token_weights`; dual_clip: 0, or c > 1,
        which holds the objective of tokens with A < 0 above c A (https://arxiv.org/abs/1912.09729).
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
        raise ValueError(
            f"need 0 <= clip_low <= 1 and clip_high >= 0, got clip_low={clip_low}, clip_high={clip_high}"
        )
    log_ratio = _log_ratio(logprobs, old_logprobs)  # (R,)
    ratio, advantages = log_ratio.exp(), advantages.detach()  # (R,), (R,)
    unclipped = ratio * advantages  # (R,)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages  # (R,)
    objective = torch.minimum(unclipped, clipped)  # (R,)
    if dual_clip:
        objective = torch.where(
            advantages < 0, torch.maximum(objective, dual_clip * advantages), objective
        )
    loss = -(objective if weights is None else objective * weights.detach()).sum() / num_tokens
    clipfrac, approx_kl = (
        (clipped < unclipped).sum().to(loss.dtype),
        (torch.expm1(log_ratio) - log_ratio).sum(),
    )
    return loss, {"clipfrac": clipfrac, "approx_kl": approx_kl.detach()}


def token_weights(lengths: list[int], aggregation: str, most_tokens: int) -> Tensor:
    """Factors that turn the mean over the tokens of a mini-batch into another aggregation.

    "token_mean" 1 / R sum over tokens; "seq_mean_token_mean" mean over trajectories of their token means (eq. 4 of
    arXiv 2504.20073); "seq_mean_token_sum" mean over trajectories of sums; "constant" the same / most_tokens.

    Args: lengths, tokens of each of the B trajectories of the mini-batch; most_tokens: of the longest possible one.
    Returns: (R,) float32. Raises: ValueError for another aggregation. "constant" is that of Dr. GRPO, arXiv 2503.20783.
    >>> token_weights([1, 3], "seq_mean_token_mean", 10).tolist()
    [2.0, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816]
    """
    share = sum(lengths) / len(lengths)
    factors = {
        "token_mean": lambda n: 1.0,
        "seq_mean_token_mean": lambda n: share / n,
        "seq_mean_token_sum": lambda n: share,
        "constant": lambda n: share / most_tokens,
    }
    if aggregation not in factors:
        raise ValueError(f"aggregation must be one of {', '.join(factors)}, got {aggregation!r}")
    return torch.tensor([factors[aggregation](n) for n in lengths]).repeat_interleave(
        torch.tensor(lengths)
    )


def importance_weights(
    logprobs: Tensor, old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float
) -> Tensor:
    """What turns PPO's ratio into the truncated importance weight of the sampler: min(pi / pi_rollout, cap) / ratio.

    Samples come from the engine, whose numbers differ a little from the trainer's. With old_logprobs = rollout_logprobs
    the weight is 1 until a ratio exceeds the cap; with recomputed ones it is pi_old / pi_rollout, truncated.

    Args: logprobs, old_logprobs, rollout_logprobs (R,), nats; cap >= 1. Returns: (R,) without gradient. Raises:
        ValueError if shapes differ or cap < 1. Source: Yao et al. 2025, "Your efficient RL framework secretly brings
        you off-policy RL training".
    >>> importance_weights(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]), torch.tensor([-0.5, 0.0]), 2.0)[0].item()
    1.6487212181091309
    """
    _check_vectors(logprobs=logprobs, old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    if cap < 1.0:
        raise ValueError(f"cap must be at least 1, got {cap}")
    total = _log_ratio(logprobs.detach(), rollout_logprobs).exp().clamp_max(cap)  # (R,)
    return total / _log_ratio(logprobs.detach(), old_logprobs).exp()


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float, num_tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss, 0.5 max((v - R)^2, (clip(v, old - value_clip, old + value_clip) - R)^2), / num_tokens.

    Args: values (R,) with gradient, old_values (R,) before the update, returns (R,), all in reward units, as value_clip
        > 0 is, float("inf") for no clip; num_tokens as in policy_loss. Raises: ValueError for other values or shapes.
    Returns: loss, scalar; metrics, SUMS without gradient: vf_clipfrac (tokens whose clipped term is larger).
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
    unclipped, clipped = (
        (values - returns.detach()) ** 2,
        (held - returns.detach()) ** 2,
    )  # (R,), (R,)
    loss = 0.5 * torch.maximum(unclipped, clipped).sum() / num_tokens
    return loss, {"vf_clipfrac": (clipped > unclipped).sum().to(loss.dtype)}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Estimate KL(policy || reference) per token from tokens that the policy sampled.

    With d = logprobs - ref_logprobs, in [-20, 20]: "k1" d, "k2" d^2 / 2, "k3" exp(-d) - 1 + d. As a LOSS k1 has no
    expected gradient and only fits into the reward; k2 has the gradient of KL(policy || reference), k3 that of
    KL(reference || policy). Source: Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.

    Args: logprobs (R,), ref_logprobs (R,), nats; estimator "k1", "k2" or "k3".
    Returns: (R,) nats, with gradient in logprobs. Raises: ValueError if shapes differ or the estimator is unknown.
    >>> kl_penalty(torch.tensor([-1.0]), torch.tensor([-3.0]), "k2").tolist()
    [2.0]
    """
    _check_vectors(logprobs=logprobs, ref_logprobs=ref_logprobs)
    d = _log_ratio(logprobs, ref_logprobs)  # (R,)
    estimates = {"k1": d, "k2": 0.5 * d**2, "k3": torch.expm1(-d) + d}
    if estimator not in estimates:
        raise ValueError(f"estimator must be 'k1', 'k2' or 'k3', got {estimator!r}")
    return estimates[estimator]


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 no better than a constant.

    Args: values (R,), returns (R,), reward units; ValueError if shapes differ. Returns: float <= 1; 0.0 (never NaN)
        without variance in returns. Source: CleanRL's PPO metrics, https://docs.cleanrl.dev/rl-algorithms/ppo/.
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
    Raises: ValueError if the shapes differ, and as group_stats. Source: collapse indicators of arXiv 2504.20073.
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
