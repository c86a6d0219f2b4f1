"""StarPO (RAGEN, https://arxiv.org/abs/2504.20073) as pure functions on tensors.

StarPO trains a language model on whole trajectories tau = (s_0, a_0, r_0, s_1, ...) of observations
s_k, sampled replies a_k and rewards r_k. It maximises the expected score sum_k r_k with PPO's
clipped objective over the response tokens y_t, t = 1..R:

    ratio_t  = pi_theta(y_t | all tokens before it) / pi_old(y_t | all tokens before it)
    L_policy = -1/R sum_t w_t min(ratio_t A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) A_t)

L_policy is the loss of a mini-batch with R response tokens. A call of `ppo_loss` computes the share
of one micro-batch in L_policy: the sum over the tokens of the micro-batch, divided by R
(num_tokens). The weight w_t has no gradient. It is the product of an importance weight and a token
weight. (Methods of other papers multiply w_t by masks, too.) The importance weight corrects for the
difference between the log-probs of engine and trainer (`importance_weights`). The token weight
determines how the losses of tokens are averaged (`token_weights`). By default the token weight is 1
and pi_old is the engine's policy. Then w_t is min(1, importance_cap / ratio_t), so w_t ratio_t
never exceeds the cap.

The setting `estimator` says what A_t is. The estimators gae, bi_level_gae and turn_ppo need a
critic.

    gae                           PPO's generalised advantage estimation over tokens, whitened
    bi_level_gae                  GAE over turns, then over the tokens of each turn, whitened
    turn_ppo                      GAE over turns, whitened (`methods.py`)
    reinforce_plus_plus           the discounted sum of rewards from token t on, whitened
    grpo                          (score - mean of the group) / std of the group
    dr_grpo                       score - mean of the group
    rloo                          score - mean of the other scores of the group
    reinforce_plus_plus_baseline  the same as dr_grpo, whitened

The last four compare the scores of a group's trajectories (`group_advantages`), and all tokens of a
trajectory get the same advantage. With turn_level=True, they compare returns-to-go of turns, and
all tokens of a turn get the same advantage.

StarPO-S trains only on the groups with the largest score std (`filter_groups`). It uses a larger
clip_high than StarPO, and no KL penalty. In the paper StarPO-S has a critic; here it can use any
estimator.

This file has the methods of RAGEN's papers and training script, and truncated importance sampling
(`importance_weights`). Methods of other papers are in `methods.py`.

Shapes: P prompt groups, N rollouts per group (group_size), B trajectories (P * N before the
filter), K turns and R response tokens in all. Response tokens are the tokens that the policy
sampled, including its end-of-turn tokens. With mask_observations=False, all tokens after the system
message count as response tokens. A tensor of shape (R,) has one number for each response token,
trajectory after trajectory. So the losses need no mask for observations or padding. Lists of
counts, such as `tokens_per_turn`, give the lengths of consecutive pieces of a tensor.

Differences from the paper and from RAGEN's code:
- By default only sampled tokens are trained on. RAGEN v1, RAGEN's first code, trains on all tokens
  after the system message (mask_observations=False).
- By default the loss of a mini-batch is a mean over its response tokens. The paper averages within
  each trajectory first (equation 4). In RAGEN's code the size of the micro-batches changes the
  loss.
- By default `token_gae` goes from the last token of a turn directly to the first token of the next
  turn. RAGEN v1 also goes through the observation tokens between the turns, and gives them values
  of 0. With mask_observations=False, `token_gae` goes through these tokens, too, but they have the
  critic's values.
- The reward of a turn is on its last token. This code finds the last token from the lengths of the
  turns. RAGEN takes each token with a nonzero reward as the end of a turn, so it misses turns with
  reward 0.
- By default the filter ranks groups by the std of raw scores, and excludes groups without variance.
  If normalisation within groups is on, RAGEN takes the std of the normalised scores. RAGEN-2
  excludes groups whose ranking value is 0.
- The filter strategy top_p keeps groups until the sum of their values reaches a target. Here the
  sum may be below the target by up to 1e-6. In RAGEN-2 it may be below the target by up to 0.01.
- Advantages are whitened once over all kept response tokens of an iteration, not per mini-batch.
- Dual clip, a bound on the loss of tokens with A_t < 0, is off by default. RAGEN's backend uses
  it with a factor of 3 (here dual_clip=3).
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats; log ratios are clamped to [-20, 20], so that ratios stay below 5e8
ROUNDING = 1e-6  # smaller differences count as rounding errors


# ---------- filter


class GroupStats(NamedTuple):
    """Statistics of the scores of each group, in reward units."""

    mean: Tensor  # (P,)
    std: Tensor  # (P,) unbiased; exactly 0 if the scores of a group are equal
    maximum: Tensor  # (P,)


def group_stats(scores: Tensor, group_size: int) -> GroupStats:
    """Compute mean, unbiased standard deviation and maximum of the scores of each group.

    StarPO-S calls the standard deviation U(x). U(x) is set to 0 if it is at most 1e-6 * max(1,
    largest absolute score of the group), because so small a U(x) may be a rounding error. For N = 1
    U(x) is 0.

    Args:
        scores: (B,) finite floats, the sums of rewards of the trajectories, group after group.
        group_size: N, which divides B.
    >>> mean, std, maximum = group_stats(torch.tensor([0.0, 2.0, 1.0, 1.0]), group_size=2)
    >>> mean.tolist(), [round(s, 3) for s in std.tolist()], maximum.tolist()
    ([1.0, 1.0], [1.414, 0.0], [2.0, 1.0])
    """
    _check_vectors(scores=scores)
    if group_size < 1 or len(scores) == 0 or len(scores) % group_size:
        raise ValueError(f"cannot split {len(scores)} scores into groups of {group_size=}")
    if not scores.is_floating_point() or not torch.isfinite(scores).all():
        raise ValueError(f"scores must be finite floats, got {scores.dtype} {scores.tolist()}")
    grouped = scores.detach().double().view(-1, group_size)  # (P, N)
    mean = grouped.mean(1)  # (P,)
    maximum = grouped.amax(1)  # (P,)
    std = grouped.std(1) if group_size > 1 else torch.zeros_like(mean)  # (P,)
    scale = grouped.abs().amax(1).clamp(min=1.0)  # (P,)
    std = torch.where(std > ROUNDING * scale, std, 0.0)  # (P,)
    return GroupStats(
        mean=mean.to(scores.dtype), std=std.to(scores.dtype), maximum=maximum.to(scores.dtype)
    )


def filter_groups(
    values: Tensor,
    std: Tensor,
    *,
    keep: float,
    strategy: str = "fraction",
    smallest: bool = False,
    zero_std: bool = False,
) -> Tensor:
    """Choose the groups to train on.

    If strategy is "fraction" and keep is 1, all groups are kept, as in StarPO. Otherwise groups
    without variance (std 0) are excluded by default. The remaining groups are ranked by `values`,
    rounded to 1e-6, from largest to smallest. Of groups with equal values, the group with the lower
    index comes first.

    Args:
        values: (P,) float, the values that rank the groups; >= 0 if strategy is top_p or min_p.
        std: (P,) float, of the raw scores of each group.
        keep, strategy: see `_num_groups_to_keep`.
        smallest: True to rank from smallest to largest, only for the strategies fraction and count.
        zero_std: True to rank groups without variance, too.
    Returns: the indices of the chosen groups, int64, ascending; at most P indices, perhaps none.
    Source: StarPO-S, arXiv 2504.20073 (fraction 0.25); RAGEN-2's rollout_filter_strategy.
    >>> std = torch.tensor([0.7, 0.0, 6.4])
    >>> filter_groups(std, std, keep=0.67).tolist()
    [0, 2]
    """
    _check_vectors(values=values, std=std)
    if strategy == "fraction" and keep == 1.0:
        return torch.arange(len(std), device=std.device)
    candidates = torch.arange(len(std), device=std.device)  # (P,)
    if not zero_std:
        candidates = candidates[std > 0]  # (C,)
    rounded = (values[candidates].double() / ROUNDING).round()  # (C,), integers
    if smallest:
        rounded = -rounded
    ranked = candidates[torch.sort(rounded, descending=True, stable=True).indices]  # (C,)
    num_kept = _num_groups_to_keep(values[ranked].double(), keep, strategy, num_groups=len(std))
    return ranked[:num_kept].sort().values


def _num_groups_to_keep(values: Tensor, keep: float, strategy: str, num_groups: int) -> int:
    """Return how many of the C ranked groups to keep. A number above C means all of them.

    Args:
        values: (C,), of the ranked groups, in the order of their ranks.
        keep: in (0, 1], or >= 1 for "count".
        num_groups: P, the number of all groups, ranked or excluded. "fraction" keeps a fraction
            of P, not of C.
    """
    if strategy == "fraction":  # + 1e-9, because 0.29 * 100 is 28.999999999999996
        return max(1, int(keep * num_groups + 1e-9))
    if strategy == "count":
        return int(keep)
    if strategy == "min_p":  # keep each group with a value >= keep * (the largest value)
        largest = values[:1]  # (1,), or (0,) if all groups were excluded
        return int((values >= keep * largest - ROUNDING).sum())
    # Both top_p strategies give each group a mass. They keep the fewest groups whose masses sum to
    # at least the target, keep * mass.sum().
    if strategy == "top_p":
        mass = values  # (C,)
    elif strategy == "top_p_softmax":
        mass = values.softmax(0)  # (C,)
    else:
        names = "fraction, count, top_p, top_p_softmax or min_p"
        raise ValueError(f"strategy must be {names}, got {strategy!r}")
    # is_too_short[i] is True if the masses of the first i + 1 groups sum to less than the target.
    # No mass is negative, so the True entries come first. Keep the groups of the True entries and
    # one more group, whose mass brings the sum to the target.
    is_too_short = mass.cumsum(0) < keep * mass.sum() - ROUNDING  # (C,)
    return 1 + int(is_too_short.sum())


# ---------- rewards and advantages


def normalize_rewards(
    rewards: Tensor, turns_per_trajectory: list[int], group_ids: Tensor, method: str
) -> Tensor:
    """Normalise scores among trajectories with equal group_ids, and change turn rewards to match.

    If all scores with the same group id are equal, they become 0. Otherwise `method` says what a
    score s becomes:

    mean       s - mean
    mean_std   (s - mean) / (std + 1e-6)
    asym_clip  (s - mean) / (std + 1e-6), clipped to [-1, 3]

    The rewards of a trajectory are changed so that they sum to its new score, in two steps. First,
    "mean_std" and "asym_clip" divide each reward by std + 1e-6, or set it to 0 if all scores with
    the same group id are equal. Then every method adds what is missing to the reward of the last
    turn.

    Args: rewards (K,) float, of turns; turns_per_trajectory, B counts that sum to K; group_ids
        (B,) int64. Trajectories with equal group ids share mean and std.
    Returns: (K,), with the dtype of rewards.
    Source: RAGEN's reward_normalization. The groupings of the setting reward_norm_over are "group"
        (RAGEN's "state"), "env" (RAGEN's "inductive") and "batch" (the same name in RAGEN).
    >>> rewards, group_ids = torch.tensor([1.0, 2.0, 1.0]), torch.tensor([0, 0])
    >>> normalize_rewards(rewards, [2, 1], group_ids, "mean").tolist()
    [1.0, 0.0, -1.0]
    """
    scores = segment_sums(rewards, turns_per_trajectory)  # (B,)
    mean, std, _ = _stats_within_groups(scores, group_ids)  # (B,) each
    if method == "mean":
        scale = torch.ones_like(std)  # (B,)
    else:
        scale = torch.where(std > 0, 1 / (std + 1e-6), 0.0)  # (B,)
    new_scores = torch.where(std > 0, scores - mean, 0.0) * scale  # (B,)
    if method == "asym_clip":
        new_scores = new_scores.clamp(-1.0, 3.0)
    counts = torch.tensor(turns_per_trajectory)  # (B,)
    last_turns = counts.cumsum(0) - 1  # (B,)
    rewards = rewards * scale.repeat_interleave(counts)  # (K,)
    rewards[last_turns] += new_scores - segment_sums(rewards, turns_per_trajectory)
    return rewards


class Discounts(NamedTuple):
    """Discounts (gamma) and lambdas of GAE, all in [0, 1].

    gamma and lam act between the tokens of a turn. turn_gamma and turn_lam act between turns."""

    gamma: float
    lam: float
    turn_gamma: float
    turn_lam: float


def trajectory_advantages(
    rewards: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    group_ids: Tensor,
    estimator: str,
) -> Tensor:
    """Compute the advantage of each trajectory from the scores of its group.

    All tokens of a trajectory get its advantage.
    Args: rewards (R,) float; tokens_per_turn, K counts that sum to R; turns_per_trajectory, B
        counts that sum to K; group_ids (B,) int64, equal within a group; estimator, see
        `group_advantages`.
    Returns: advantages (R,), with the dtype of rewards.
    >>> rewards, group_ids = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([0, 0])
    >>> trajectory_advantages(rewards, [1, 1, 1], [2, 1], group_ids, "dr_grpo").tolist()
    [0.25, 0.25, -0.25]
    """
    _check_counts(tokens_per_turn, total=len(rewards))
    lengths = _tokens_per_trajectory(tokens_per_turn, turns_per_trajectory)  # B
    scores = segment_sums(rewards, lengths).cpu()  # (B,)
    advantages = group_advantages(scores, group_ids, estimator)  # (B,)
    return advantages.repeat_interleave(torch.tensor(lengths)).to(rewards.device)


def turn_advantages(
    rewards: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    group_ids: Tensor,
    estimator: str,
    turn_gamma: float,
) -> Tensor:
    """Compute the advantage of each turn from the returns-to-go of its group's turns.

    The first turns of a group's trajectories are compared with each other, then the second turns,
    and so on. All tokens of a turn get its advantage.
    Args: turn_gamma, discount from turn to turn; other arguments as for `trajectory_advantages`.
    Returns: advantages (R,), at least float32.
    >>> rewards, group_ids = torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0, 0])
    >>> turn_advantages(rewards, [1, 1, 1], [2, 1], group_ids, "dr_grpo", turn_gamma=1.0).tolist()
    [0.75, 0.0, -0.75]
    """
    turn_rewards = segment_sums(rewards, tokens_per_turn).cpu()  # (K,)
    returns = returns_to_go(turn_rewards, turns_per_trajectory, turn_gamma)  # (K,)
    compared_with = _group_ids_of_turns(group_ids, turns_per_trajectory)  # (K,)
    advantages = group_advantages(returns, compared_with, estimator)  # (K,)
    return advantages.repeat_interleave(torch.tensor(tokens_per_turn)).to(rewards.device)


def group_advantages(scores: Tensor, group_ids: Tensor, estimator: str) -> Tensor:
    """Compute advantages from each score s and the scores of its group.

    "grpo" is (s - mean) / (std + 1e-6). "dr_grpo" and "reinforce_plus_plus_baseline" are s - mean.
    "rloo" is s - (mean of the other scores). All are 0 in a group without variance.
    Args: scores (M,) float, of trajectories or turns; group_ids (M,) int64, equal within a group.
    Returns: (M,), with the dtype of scores.
    Source: GRPO, arXiv 2402.03300; Dr. GRPO, 2503.20783; RLOO, 2402.14740; REINFORCE++, 2501.03262.
    >>> group_advantages(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 0, 0]), "rloo").tolist()
    [-1.5, 0.0, 1.5]
    """
    mean, std, count = _stats_within_groups(scores.detach().double(), group_ids)  # (M,) each
    # In a group without variance, s - mean is a rounding error, which whitening would enlarge.
    centred = torch.where(std > 0, scores.detach() - mean, 0.0)  # (M,)
    if estimator == "grpo":
        centred = centred / (std + 1e-6)
    elif estimator == "rloo":
        # s - (mean of the other scores) = (s - mean) * count / (count - 1)
        centred = centred * count / (count - 1).clamp(min=1)
    elif estimator in ("dr_grpo", "reinforce_plus_plus_baseline"):
        pass  # the advantage is s - mean
    else:
        raise ValueError(f"no group baseline for estimator {estimator!r}")
    return centred.to(scores.dtype)


def gae(
    rewards: Tensor,
    values: Tensor,
    lengths: list[int],
    gamma: float | Tensor,
    lam: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the steps of each piece (a trajectory or a turn).

    A_t = delta_t + gamma_t lam_t A_{t+1}, delta_t = r_t + gamma_t V_{t+1} - V_t. V is 0 after the
    last step of a piece, even if a limit ended the trajectory. If the limit is on turns or actions,
    the critic can foresee the end, because the prompt shows how many turns and actions are left. If
    the limit is max_context_tokens, the critic cannot foresee the end. The estimators with a critic
    use these steps and pieces:

    token_gae                  steps are tokens, pieces are trajectories
    bi_level_gae, first pass   steps are turns, pieces are trajectories
    bi_level_gae, second pass  steps are tokens, pieces are turns
    Turn-PPO                   steps are turns, pieces are trajectories

    Args:
        rewards: (S,) float, of S steps.
        values: (S,) float, V of the state before each step, in reward units. (In the first pass of
            bi-level GAE, the value of a turn is V at the last token of the turn instead.)
        lengths: the number of steps of each piece. They sum to S.
        gamma, lam: discount and lambda in [0, 1] from each step to the next. Each is one number or
            has shape (S,).
    Returns: advantages (S,) and returns (S,). The returns are advantages + values. Both have no
        gradient and are at least float32.
    Source: arXiv 1506.02438, equation 16.
    >>> rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25])
    >>> advantages, returns = gae(rewards, values, [2], gamma=1.0, lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([0.5, 0.75], [1.0, 1.0])
    """
    _check_vectors(rewards=rewards, values=values)
    _check_counts(lengths, total=len(values))
    values = _at_least_float32(values.detach())
    # gamma and lam are multiplied in float64, so that rounding to values.dtype comes last.
    gamma = torch.as_tensor(gamma, dtype=torch.float64, device=values.device).expand(len(values))
    lam = torch.as_tensor(lam, dtype=torch.float64, device=values.device).expand(len(values))
    num_steps = torch.tensor(lengths, device=values.device)  # (B,); here B is the number of pieces
    T = max(lengths, default=0)
    # `_pad` fills up with zeros, and column T is all zeros. So V is 0 after the end of every piece.
    mask = torch.arange(T + 1, device=values.device) < num_steps[:, None]  # (B, T + 1)
    V = _pad(values, mask)  # (B, T + 1)
    r = _pad(rewards.detach().to(values.dtype), mask)  # (B, T + 1)
    discount = _pad(gamma.to(values.dtype), mask)  # (B, T + 1)
    decay = _pad((gamma * lam).to(values.dtype), mask)  # (B, T + 1)
    deltas = r[:, :-1] + discount[:, :-1] * V[:, 1:] - V[:, :-1]  # (B, T)
    padded_advantages = torch.zeros_like(deltas)  # (B, T)
    running = values.new_zeros(len(lengths))  # (B,)
    for t in reversed(range(T)):
        running = deltas[:, t] + decay[:, t] * running  # (B,)
        padded_advantages[:, t] = running
    flat_advantages = padded_advantages[mask[:, :-1]]  # (S,)
    return flat_advantages, flat_advantages + values


def token_gae(
    rewards: Tensor,
    values: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    discounts: Discounts,
) -> tuple[Tensor, Tensor]:
    """GAE over the tokens of each trajectory.

    Args: rewards and values (R,) float; tokens_per_turn, K counts that sum to R;
        turns_per_trajectory, B counts that sum to K.
    Returns: advantages (R,), not whitened; returns (R,).
    >>> rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.0])
    >>> discounts = Discounts(gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0)
    >>> token_gae(rewards, values, [2, 1], [2], discounts)[0].tolist()
    [0.5, 0.5, 1.0]
    """
    gamma, lam, turn_gamma, turn_lam = discounts
    lengths = _tokens_per_trajectory(tokens_per_turn, turns_per_trajectory)  # B
    _check_counts(tokens_per_turn, total=len(rewards))
    # The step from the last token of a turn to the next turn uses turn_gamma and turn_lam.
    turn_ends = torch.tensor(tokens_per_turn).cumsum(0) - 1  # (K,)
    token_gamma = torch.full_like(rewards, gamma)  # (R,)
    token_gamma[turn_ends] = turn_gamma
    token_lam = torch.full_like(rewards, lam)  # (R,)
    token_lam[turn_ends] = turn_lam
    return gae(rewards, values, lengths, token_gamma, token_lam)


def bi_level_gae(
    rewards: Tensor,
    values: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    discounts: Discounts,
) -> tuple[Tensor, Tensor]:
    """GAE over the turns of each trajectory, then over the tokens of each turn.

    In the first pass a turn is one step. The reward of a turn is the sum of the rewards of its
    tokens, and the value of a turn is the value at its last token. In the second pass each turn is
    a trajectory of its own. Before the second pass, the reward of each turn's last token is
    changed, so that the rewards of the turn's tokens sum to the turn's return from the first pass.

    Args: as for `token_gae`. In the first pass, the discount is turn_gamma and lambda is turn_lam.
    Returns: advantages (R,), not whitened; returns (R,).
    Source: RAGEN's compute_bi_level_gae_advantage_return.
    >>> rewards, values = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.25, 0.25, 0.5, 0.5])
    >>> discounts = Discounts(gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0)
    >>> bi_level_gae(rewards, values, [2, 2], [2], discounts)[0].tolist()
    [0.25, 0.25, 0.5, 0.5]
    """
    gamma, lam, turn_gamma, turn_lam = discounts
    turn_ends = torch.tensor(tokens_per_turn).cumsum(0) - 1  # (K,)
    turn_rewards = segment_sums(rewards, tokens_per_turn)  # (K,)
    turn_values = values[turn_ends]  # (K,)
    _, turn_returns = gae(turn_rewards, turn_values, turns_per_trajectory, turn_gamma, turn_lam)
    rewards = rewards.clone()
    rewards[turn_ends] += (turn_returns - turn_rewards).to(rewards.dtype)
    return gae(rewards, values, tokens_per_turn, gamma, lam)


def whiten(x: Tensor) -> Tensor:
    """Shift x to mean 0 and scale it to (unbiased) standard deviation 1.

    Args: x (R,) float, the advantages of one iteration, for all response tokens of the groups that
        the filter kept. Every rank passes the same x.
    Returns: (R,), (x - mean) / (std + 1e-8). If R < 2 or std <= 1e-6 max |x|, it is x - mean.
    Source: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 7.
    >>> whiten(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    _check_vectors(x=x)
    centred = x.double() - x.double().mean()  # (R,)
    if len(x) > 1:
        std = centred.std()
        has_variance = std > ROUNDING * x.abs().amax()
        centred = centred / torch.where(has_variance, std + 1e-8, 1.0)
    return centred.to(x.dtype)


def returns_to_go(rewards: Tensor, counts: list[int], gamma: float) -> Tensor:
    """Sum the discounted rewards from each turn to the end of its trajectory.

    Args: rewards (K,), of turns; counts, the number of turns of each trajectory.
    >>> returns_to_go(torch.tensor([1.0, 2.0, 4.0]), [2, 1], gamma=0.5).tolist()
    [2.0, 2.0, 4.0]
    """
    return gae(rewards, torch.zeros_like(rewards), counts, gamma, lam=1.0)[0]


def token_returns(
    rewards: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    discounts: Discounts,
) -> Tensor:
    """Sum the discounted rewards from each token to the end of its trajectory.

    This is GAE without a critic and with lambdas of 1, so the lambdas of `discounts` do not matter.
    Args: as for `token_gae`. Returns: (R,), not whitened.
    Source: REINFORCE++, arXiv 2501.03262.
    >>> discounts = Discounts(gamma=1.0, lam=0.0, turn_gamma=0.5, turn_lam=0.0)
    >>> token_returns(torch.tensor([0.0, 0.0, 1.0]), [2, 1], [2], discounts).tolist()
    [0.5, 0.5, 1.0]
    """
    values = torch.zeros_like(rewards)  # (R,)
    discounts = discounts._replace(lam=1.0, turn_lam=1.0)
    return token_gae(rewards, values, tokens_per_turn, turns_per_trajectory, discounts)[0]


def _tokens_per_trajectory(
    tokens_per_turn: list[int], turns_per_trajectory: list[int]
) -> list[int]:
    return segment_sums(torch.tensor(tokens_per_turn), turns_per_trajectory).tolist()


def _group_ids_of_turns(group_ids: Tensor, turns_per_trajectory: list[int]) -> Tensor:
    """Return group ids (K,), one for each turn.

    Two turns share an id if they have the same index in trajectories of the same group."""
    turn_indices = [torch.arange(count) for count in turns_per_trajectory]
    group_of_turn = group_ids.repeat_interleave(torch.tensor(turns_per_trajectory))  # (K,)
    return group_of_turn * max(turns_per_trajectory) + torch.cat(turn_indices)


def _pad(x: Tensor, mask: Tensor) -> Tensor:
    """Put the S entries of x, in order, where mask (B, T + 1) is True, and zeros elsewhere."""
    padded = x.new_zeros(mask.shape)
    padded[mask] = x
    return padded


# ---------- losses, KL


def ppo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    num_tokens: int,
    weights: Tensor | None = None,
    dual_clip: float = 0.0,
    segment_log_ratio: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss: sum of -w min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) / num_tokens.

    Args:
        logprobs: (R,) nats, with gradient.
        old_logprobs: (R,) nats, before the update.
        advantages: (R,).
        clip_low: in [0, 1].
        clip_high: >= 0.
        num_tokens: the number of response tokens in the whole mini-batch, so that the losses of
            micro-batches and ranks sum to the loss of the mini-batch.
        weights: (R,), w without gradient. w is the product of importance weight, token weight and
            masks of `methods.py`. None means that w is 1.
        dual_clip: above 1, or 0 for no dual clip. Dual clip raises the min(...) of each token with
            A < 0 to at least dual_clip * A.
        segment_log_ratio: (R,), GSPO's log ratio, with gradient. None: each token has its own.
    Returns: the loss, a scalar, and two metrics without gradient. Each metric is a sum over the R
        tokens, divided by num_tokens. clipfrac counts the tokens whose clipped term is below the
        unclipped term. approx_kl sums the k3 estimates of KL(old || new), nats.
    Source: PPO, arXiv 1707.06347, equation 7; clip_high: DAPO, 2503.14476; dual clip: 1912.09729.
    >>> new, old, A = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0])
    >>> loss, metrics = ppo_loss(new, old, A, clip_low=0.25, clip_high=0.5, num_tokens=2)
    >>> loss.item(), metrics["clipfrac"].item()  # -(1 * 1 + 1.5 * 2) / 2; one of two is clipped
    (-2.0, 0.5)
    """
    _check_denominator(num_tokens)
    _check_vectors(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"clip_low must be in [0, 1], clip_high >= 0, got {clip_low}, {clip_high}")
    advantages = advantages.detach()  # (R,)
    token_log_ratio = log_ratios(logprobs, old_logprobs)  # (R,)
    log_ratio = token_log_ratio if segment_log_ratio is None else segment_log_ratio  # (R,)
    ratio = log_ratio.exp()  # (R,)
    unclipped = ratio * advantages  # (R,)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages  # (R,)
    objective = torch.minimum(unclipped, clipped)  # (R,)
    if dual_clip:
        bounded = torch.maximum(objective, dual_clip * advantages)  # (R,)
        objective = torch.where(advantages < 0, bounded, objective)
    if weights is not None:
        objective = objective * weights.detach()
    loss = -objective.sum() / num_tokens
    is_clipped = (clipped < unclipped).to(loss.dtype)  # (R,) 0 or 1
    # approx_kl uses each token's own ratio, even with GSPO
    kl = torch.expm1(token_log_ratio) - token_log_ratio  # (R,)
    return loss, {
        "clipfrac": is_clipped.sum() / num_tokens,
        "approx_kl": kl.detach().sum() / num_tokens,
    }


def importance_weights(
    logprobs: Tensor, old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float
) -> Tensor:
    """Compute the importance weight min(pi / pi_engine, cap) / (pi / pi_old).

    The weight corrects PPO's ratio pi / pi_old, because pi_engine sampled the tokens. If the engine
    gave old_logprobs, pi_old is pi_engine. Then the weight is 1 until pi / pi_old exceeds the cap.
    If the trainer gave old_logprobs, the weight is pi_old / pi_engine until pi / pi_engine exceeds
    the cap.

    Args: logprobs of pi, old_logprobs of pi_old and rollout_logprobs of pi_engine, (R,) each, nats;
        cap >= 1.
    Returns: (R,), without gradient.
    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL". They
        cap pi_old / pi_engine. Here the cap is on pi / pi_engine, so weight * ratio is at most
        cap. The reason: if A < 0 and the optimizer steps increase pi, the loss of the token grows.
        PPO's clip does not bound this loss, but the cap on pi / pi_engine does.
    >>> new, old, rollout = torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([-0.5])
    >>> importance_weights(new, old, rollout, cap=2.0).item()
    1.6487212181091309
    """
    _check_vectors(logprobs=logprobs, old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    if cap < 1.0:
        raise ValueError(f"cap must be at least 1, got {cap}")
    logprobs = logprobs.detach()
    mismatch = log_ratios(logprobs, rollout_logprobs).exp()  # (R,)
    return mismatch.clamp_max(cap) / log_ratios(logprobs, old_logprobs).exp()  # (R,)


def token_weights(
    tokens_per_trajectory: list[int], aggregation: str, max_trajectory_tokens: int
) -> Tensor:
    """Compute token weights w, so that sum(w * loss) / R is the average that `aggregation` names.

    "token_mean" is the mean over all tokens. The other aggregations compute one number per
    trajectory and average these numbers:

    seq_mean_token_mean  the mean over its tokens (equation 4 of arXiv 2504.20073)
    seq_mean_token_sum   the sum over its tokens
    constant             the sum over its tokens, divided by max_trajectory_tokens (Dr. GRPO)

    Args:
        tokens_per_trajectory: the number of response tokens in each of the mini-batch's B
            trajectories.
        max_trajectory_tokens: max_turns * max_response_tokens.
    Returns: (R,) float32.
    >>> token_weights([1, 3], "seq_mean_token_mean", 10).tolist()
    [2.0, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816]
    """
    # mean_tokens is R / B. The loss is a sum divided by R. A weight with the factor R / B makes the
    # loss a sum divided by B.
    mean_tokens = sum(tokens_per_trajectory) / len(tokens_per_trajectory)
    if aggregation == "token_mean":
        weights = [1.0 for _ in tokens_per_trajectory]
    elif aggregation == "seq_mean_token_mean":
        weights = [mean_tokens / tokens for tokens in tokens_per_trajectory]
    elif aggregation == "seq_mean_token_sum":
        weights = [mean_tokens for _ in tokens_per_trajectory]
    elif aggregation == "constant":
        weights = [mean_tokens / max_trajectory_tokens for _ in tokens_per_trajectory]
    else:
        names = "token_mean, seq_mean_token_mean, seq_mean_token_sum or constant"
        raise ValueError(f"aggregation must be {names}, got {aggregation!r}")
    return torch.tensor(weights).repeat_interleave(torch.tensor(tokens_per_trajectory))


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    value_clip: float,
    num_tokens: int,
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss 0.5 max((v - G)^2, (clip(v, old - value_clip, old + value_clip) - G)^2).

    Args:
        values: v (R,), with gradient.
        old_values: (R,), before the update.
        returns: G (R,), reward units.
        value_clip: above 0; float("inf") for no clip.
        num_tokens: the loss is the sum over the tokens, divided by num_tokens.
        weights: (R,), the factor of each token's loss, from `token_weights`.
    Returns: the loss, a scalar, and a dict with one metric. vf_clipfrac is the number of tokens
        whose clipped term is larger than the unclipped term, divided by num_tokens.
    Source: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 9.
    >>> values, old, returns = torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0])
    >>> loss, metrics = value_loss(values, old, returns, value_clip=0.5, num_tokens=1)
    >>> loss.item(), metrics["vf_clipfrac"].item()  # v is clipped to 0.5: loss 0.5 * (0.5 - 3)^2
    (3.125, 1.0)
    """
    _check_denominator(num_tokens)
    _check_vectors(values=values, old_values=old_values, returns=returns)
    if not value_clip > 0.0:
        raise ValueError(f"value_clip must be > 0, got {value_clip}")
    values = _at_least_float32(values)  # (R,)
    old_values = _at_least_float32(old_values.detach())  # (R,)
    returns = returns.detach()  # (R,)
    clipped_values = values.clamp(old_values - value_clip, old_values + value_clip)  # (R,)
    unclipped = (values - returns) ** 2  # (R,)
    clipped = (clipped_values - returns) ** 2  # (R,)
    errors = torch.maximum(unclipped, clipped)  # (R,)
    if weights is not None:
        errors = errors * weights
    loss = 0.5 * errors.sum() / num_tokens
    is_clipped = (clipped > unclipped).to(loss.dtype)  # (R,) 0 or 1
    return loss, {"vf_clipfrac": is_clipped.sum() / num_tokens}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Estimate KL(policy || reference) for each response token.

    Let d be logprobs - ref_logprobs, clamped to [-20, 20]. "k1" is d, "k2" is d^2 / 2, and "k3" is
    exp(-d) - 1 + d. On policy, the estimators have these expected gradients:

    k1  0, so k1 is useless as a term of the loss, and is for the reward only
    k2  the gradient of KL(policy || reference)
    k3  the gradient of KL(reference || policy)

    Args: logprobs (R,), ref_logprobs (R,), nats. Returns: (R,) nats, with gradient in logprobs.
    Source: Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    >>> kl_penalty(torch.tensor([-1.0]), torch.tensor([-3.0]), "k2").tolist()
    [2.0]
    """
    _check_vectors(logprobs=logprobs, ref_logprobs=ref_logprobs)
    log_ratio = log_ratios(logprobs, ref_logprobs)  # (R,)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    if estimator == "k3":
        return torch.expm1(-log_ratio) + log_ratio
    raise ValueError(f"estimator must be 'k1', 'k2' or 'k3', got {estimator!r}")


# ---------- helpers


def _stats_within_groups(scores: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, std (see `group_stats`) and size of each score's group, (M,) each."""
    _check_vectors(scores=scores, group_ids=group_ids)
    mean = torch.zeros_like(scores)  # (M,)
    std = torch.zeros_like(scores)  # (M,)
    size = torch.zeros_like(group_ids)  # (M,)
    for group in group_ids.unique():
        members = group_ids == group  # (M,)
        size[members] = members.sum()
        group_mean, group_std, _ = group_stats(scores[members], int(members.sum()))  # (1,) each
        mean[members] = group_mean
        std[members] = group_std
    return mean, std, size


def segment_sums(x: Tensor, counts: list[int]) -> Tensor:
    """Split x into consecutive pieces of lengths `counts`. Return the sum of each, (len(counts),).

    >>> segment_sums(torch.tensor([1.0, 2.0, 3.0]), [2, 1]).tolist()
    [3.0, 3.0]
    """
    _check_counts(counts, total=len(x))
    return torch.stack([piece.sum() for piece in x.split(counts)])


def log_ratios(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Return log(pi / pi_other), clamped so that its exp stays finite.

    Args: both tensors are (R,), nats; only logprobs gets a gradient. Returns: (R,), in [-20, 20].
    >>> log_ratios(torch.tensor([-1.0, -1.0]), torch.tensor([-3.0, -99.0])).tolist()
    [2.0, 20.0]
    """
    difference = _at_least_float32(logprobs) - _at_least_float32(other_logprobs.detach())
    return bound_log_ratio(difference)


def bound_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp a log ratio, in nats, to [-MAX_LOG_RATIO, MAX_LOG_RATIO], so that its exp stays finite.

    Outside of the range the result is constant, so its gradient is 0.
    >>> bound_log_ratio(torch.tensor([-1.0, 25.0])).tolist()
    [-1.0, 20.0]
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check_denominator(num_tokens: int) -> None:
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")


def _check_vectors(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"expected 1-D tensors of one length, got {shapes}")


def _check_counts(counts: list[int], total: int) -> None:
    if sum(counts) != total or min(counts, default=1) < 1:
        raise ValueError(f"the counts must be >= 1 and sum to {total}, got {counts}")
