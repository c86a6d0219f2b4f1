"""Pure functions for methods that RAGEN's papers and training script do not have.

`starpo.py` has the methods of RAGEN, and explains the letters P, N, B, K and R in shapes. All
methods here are off by default. In the list below, the setting in brackets turns the method on.
The exception is turn_ppo, a value of the setting `estimator`. The first function of each method
states the source in its docstring ("Source"). The words "has an effect if" state the condition
under which the method changes anything. The words "can have an effect if" mean that the condition
alone is not enough. docs/methods.md says where a new estimator goes.

    reward density    replaces the rewards of the turns of a game [reward_density]
    dynamic sampling  samples more groups in place of those without variance [sampling_rounds]
    SimpleTIR         leaves out trajectories with a turn that executed no action [drop_void]
    GiGPO             compares the turns of a group that start in the same state [state_weight]
    Turn-PPO          has one value and one step of GAE for each turn [turn_ppo]
    GSPO              clips the geometric mean of the ratios of a segment [sequence_ratio]
    IcePop            drops tokens with an extreme ratio pi / pi_engine [importance_floor]
    sequence mask     drops segments with mean advantage < 0 and a low mean ratio [sequence_mask]
    DPPO-TV           drops tokens whose pi moved too far in the advantage's direction [tv_bound]
    ECHO              adds a cross-entropy on the observations between replies [observation_coef]

A segment is a trajectory or a turn (setting `segment`). With context_turns a segment is always a
turn. The word "sequence" has three meanings. In papers, and in the names `sequence_ratio` and
`sequence_mask`, it means a segment. In the values of `aggregation` ("seq_mean_..."), it means a
trajectory. Elsewhere in this code, it means the tokens that the model reads as one text.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

import starpo

# ---------- rewards

MAX_UNFINISHED = 0.99  # without a success, "dense" and "balanced" rewards sum to at most this


def shape_rewards(
    rewards: Sequence[float],
    success: bool,
    density: str,
    *,
    max_reward: float = 1.0,
    plan_lengths: Sequence[int] = (),
) -> list[float]:
    """Reward density: replace the rewards of the turns of a finished game.

    The new rewards sum to 1 for a success and to less than 1 otherwise. In the paper's code a
    failure can earn more than a success.

    - "sparse": 1 at the last turn of a success, and 0 elsewhere.
    - "dense": the increase of the progress in each turn. Progress is the sum of the rewards so far,
      divided by `max_reward` and capped at 0.99. A success sets progress to 1.
    - "balanced": the same progress, but each increase is held back until the next payment. Of the
      turns with a positive reward, the 2nd, the 4th, ... have a payment. The last turn of the game
      always has a payment.
    - "plan": (distance before the turn - distance after it) / initial distance. The distance of a
      state is the length of its best plan, and 0 after a success. A first state without a plan
      has distance 1. A later state without a plan has twice the initial distance.

    The method can have an effect if reward_density is not "native". It leaves the rewards of games
    with an error unchanged. If a game's only reward is 1 for a success, only "plan" changes the
    rewards.
    Args:
        rewards: the environment's reward of each turn.
        density: "sparse", "dense", "balanced" or "plan".
        max_reward: the largest total reward of a success.
        plan_lengths: needed only for "plan". The lengths of the best plans: from the first state,
            then from the state after each turn. A state without a plan has length 0.
    Raises: ValueError for an unknown density.
    Source: arXiv 2510.01132. "plan" is not in the paper.
    >>> shape_rewards([1.0, 0.0, 1.0], True, "dense", max_reward=2.0)
    [0.5, 0.0, 0.5]
    >>> shape_rewards([1.0, 1.0, 0.0], False, "balanced", max_reward=4.0)
    [0.0, 0.5, 0.0]
    >>> shape_rewards([0.0, 0.0], False, "plan", plan_lengths=[4, 3, 1])
    [0.25, 0.5]
    """
    if density == "sparse":
        last = len(rewards) - 1
        return [float(success and turn == last) for turn in range(len(rewards))]
    if density == "plan":
        return _shape_by_plan(plan_lengths, success)
    if density not in ("dense", "balanced"):
        raise ValueError(f"reward density must be sparse, dense, balanced or plan, got {density!r}")
    return _shape_by_progress(rewards, success, density, max_reward)


def _shape_by_progress(
    rewards: Sequence[float], success: bool, density: str, max_reward: float
) -> list[float]:
    """Return the rewards of "dense" or "balanced"."""
    last = len(rewards) - 1
    progress = [
        min(sum(rewards[: turn + 1]) / max_reward, MAX_UNFINISHED) for turn in range(len(rewards))
    ]
    if success:
        progress[last] = 1.0
    shaped = []
    paid = 0.0
    num_milestones = 0  # turns so far with a positive reward
    for turn, reached in enumerate(progress):
        is_milestone = rewards[turn] > 0
        if is_milestone:
            num_milestones += 1
        is_even_milestone = is_milestone and num_milestones % 2 == 0
        pays = density == "dense" or turn == last or is_even_milestone
        payment = reached - paid if pays else 0.0
        shaped.append(payment)
        paid += payment
    return shaped


def _shape_by_plan(plan_lengths: Sequence[int], success: bool) -> list[float]:
    """Return the rewards of "plan". A length of 0 means that there is no plan."""
    first = plan_lengths[0] or 1
    distances = [first]
    for length in plan_lengths[1:]:
        distances.append(length or 2 * first)
    if success:
        distances[-1] = 0
    return [(before - after) / first for before, after in pairwise(distances)]


# ---------- groups


def num_missing_groups(std: Tensor, num_groups: int) -> int:
    """Dynamic sampling: return how many groups to sample in the next round, 0 for none.

    In a group without variance, all scores are equal. In GRPO all advantages of the group are then
    0, so the group is of no use. `train.collect_rollouts` therefore samples further groups until
    num_groups groups have variance. Further groups are sampled with every estimator, not only with
    GRPO. There are at most sampling_rounds rounds, the first one included. A further round samples
    only the missing groups. DAPO samples whole batches instead, and drops surplus groups.

    The method has an effect if sampling_rounds is above 1 and a group has an error or no variance.
    Args: std (P,), the std of the scores in each group so far, or 0 if the group has an error;
        num_groups, the wanted number of groups with variance.
    Source: DAPO, arXiv 2503.14476, equation 11. DAPO counts a group if it has right and wrong
        answers; this function counts a group if its scores differ.
    >>> num_missing_groups(torch.tensor([0.5, 0.0, 0.0]), num_groups=3)
    2
    """
    return max(0, num_groups - int((std > 0).sum()))


def candidate_groups(std: Tensor, num_groups: int) -> Tensor:
    """Dynamic sampling: choose at most num_groups groups for the group filter.

    The first groups with variance are chosen. The first groups without variance fill the places
    that are left.
    Returns: the indices of the chosen groups, ascending, (<= num_groups,) int64.
    >>> candidate_groups(torch.tensor([0.5, 0.0, 0.0, 0.7]), num_groups=3).tolist()
    [0, 1, 3]
    """
    indices = torch.arange(len(std), device=std.device)  # (P,)
    ranked = torch.cat([indices[std > 0], indices[std == 0]])  # (P,)
    return ranked[:num_groups].sort().values


def without_void_turns(has_void_turn: Sequence[bool]) -> list[int]:
    """SimpleTIR: return the indices of the trajectories without a void turn, ascending.

    A turn is void if the environment executed no action in it. (In the paper, a void turn has
    neither code nor an answer, and ends the game.) Trajectories with a void turn are not trained
    on, but their scores stay in the baselines of their groups.

    The method has an effect if the filter keeps a trajectory with a void turn.
    Args: has_void_turn, one entry for each trajectory that the filter keeps.
    Source: SimpleTIR, arXiv 2509.02479, the loss mask of the paper's code.
    >>> without_void_turns([False, True, False])
    [0, 2]
    """
    return [index for index, is_void in enumerate(has_void_turn) if not is_void]


# ---------- advantages


def gigpo_advantages(
    rewards: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    group_ids: Tensor,
    states: Sequence[Hashable],
    *,
    estimator: str,
    gamma: float,
) -> Tensor:
    """GiGPO's second advantage: compare the turns of a group that start in the same state.

    A_k = (G_k - mean) / F, where G_k = sum_{j >= k} gamma^(j - k) r_j is the return-to-go of turn
    k. In the group, n turns start in the state of turn k. The mean is over the n returns-to-go of
    these turns. `Config` allows GiGPO with three estimators only, and F depends on the estimator:

        grpo     std of these n returns + 1e-6
        dr_grpo  1
        rloo     (n - 1) / n

    For n = 1, A_k is 0. All tokens of a turn share its A_k. `train.estimate_advantages` adds
    state_weight * A_k to GiGPO's first advantage. The estimator computes one first advantage per
    trajectory, or one per turn if turn_level is True.

    The key of a state (`Episode.state`) does not contain the number of turns left, so turns at
    different times of the game are compared. For the first advantage, the mean and std of a
    group count each trajectory once, as in equation 3 of the paper. The paper's code counts a
    trajectory once for each of its turns.

    The method can have an effect on a turn if another turn of the group starts in the same state.
    First turns always share their state, because a group has one start state.
    Args: states, the keys of the K states in which the turns start; estimator, "grpo", "dr_grpo"
        or "rloo"; gamma, the discount from turn to turn; all other arguments as for
        `starpo.trajectory_advantages`.
    Returns: (R,), at least float32.
    Source: GiGPO, arXiv 2505.10978, equations 5 to 8. The paper has gamma 0.95 and
        state_weight 1.
    >>> rewards, group_ids = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0, 0])
    >>> options = dict(estimator="dr_grpo", gamma=0.5)
    >>> states = ["a", "b", "a"]
    >>> gigpo_advantages(rewards, [1, 1, 1], [2, 1], group_ids, states, **options).tolist()
    [0.25, 0.0, -0.25]
    """
    turn_rewards = starpo.segment_sums(rewards, tokens_per_turn).cpu()  # (K,)
    returns = starpo.returns_to_go(turn_rewards, turns_per_trajectory, gamma)  # (K,)
    group_of_turn = group_ids.repeat_interleave(torch.tensor(turns_per_trajectory))  # (K,)
    numbers: dict[tuple, int] = {}  # maps each (group, state) pair to its number
    state_groups = []
    for key in zip(group_of_turn.tolist(), states, strict=True):
        state_groups.append(numbers.setdefault(key, len(numbers)))
    compared = starpo.group_advantages(returns, torch.tensor(state_groups), estimator)  # (K,)
    return compared.repeat_interleave(torch.tensor(tokens_per_turn)).to(rewards.device)


def turn_ppo_advantages(
    rewards: Tensor,
    values: Tensor,
    tokens_per_turn: list[int],
    turns_per_trajectory: list[int],
    discounts: starpo.Discounts,
) -> tuple[Tensor, Tensor]:
    """Turn-PPO: GAE over turns. All tokens of a turn share its advantage and its return.

    A turn is one step. Its reward is the sum of the rewards of its tokens. Its value is V at its
    first token. There the critic sees the new observation, but nothing of the reply. Turn-PPO does
    not change PPO's ratio and clip: each token has its own ratio. With sequence_ratio=True, each
    segment has its own ratio. A turn of L tokens has L terms in the policy loss, and L terms in the
    value loss. Each term is weighted by `starpo.token_weights`.

    The method has an effect even in games of one turn, but turn_gamma and turn_lam matter only in
    games of two turns or more. Turn-PPO ignores gamma and lam. With mask_observations=False, a turn
    begins with its observation, so V at its first token has not seen the whole observation.
    Args, returns: as for `starpo.token_gae`.
    Source: Turn-PPO, arXiv 2512.17008 (turn_gamma 0.99, turn_lam 0.9).
    >>> rewards, values = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.25, 9.0, 0.5, 9.0])
    >>> discounts = starpo.Discounts(gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0)
    >>> turn_ppo_advantages(rewards, values, [2, 2], [2], discounts)[0].tolist()
    [0.25, 0.25, 0.5, 0.5]
    """
    lengths = torch.tensor(tokens_per_turn)  # (K,)
    turn_starts = lengths.cumsum(0) - lengths  # (K,)
    turn_rewards = starpo.segment_sums(rewards, tokens_per_turn)  # (K,)
    turn_values = values[turn_starts]  # (K,)
    raw, returns = starpo.gae(
        turn_rewards, turn_values, turns_per_trajectory, discounts.turn_gamma, discounts.turn_lam
    )
    lengths = lengths.to(raw.device)
    return raw.repeat_interleave(lengths), returns.repeat_interleave(lengths)


def turn_ppo_values(values: Tensor, turn_ids: Tensor) -> Tensor:
    """Turn-PPO: give each token the value at the first token of its turn.

    Only the value at the first token gets a gradient.
    Args: values (R,), one for each token, with or without gradient; turn_ids (R,) int64, the number
        of each token's turn. The tokens of a turn are consecutive.
    Returns: (R,).
    >>> turn_ppo_values(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4, 4, 7])).tolist()
    [1.0, 1.0, 3.0]
    """
    _, turn_of_token, lengths = torch.unique_consecutive(
        turn_ids, return_inverse=True, return_counts=True
    )
    turn_starts = lengths.cumsum(0) - lengths  # (K,)
    return values[turn_starts[turn_of_token]]


# ---------- losses


def gspo_log_ratio(logprobs: Tensor, old_logprobs: Tensor, segment_ids: Tensor) -> Tensor:
    """GSPO: give each token the log of the ratio s of its segment.

    s = exp(mean_t (log pi(y_t) - log pi_old(y_t))) is the geometric mean of the tokens' ratios in a
    segment. This function computes log s_t, where s_t is the paper's token form of s:

        s_t = sg(s) pi(y_t) / sg(pi(y_t)),  where sg stops gradients.

    The value of s_t is s, and its gradient is s grad log pi(y_t). Under three conditions, the
    loss has the gradient of the paper's sequence-level loss: segments are trajectories, all tokens
    of a trajectory have the same advantage, and aggregation is "seq_mean_token_mean". GSPO has no
    importance weights of single tokens, so `train.clipped_loss` leaves out
    `starpo.importance_weights`.

    In the first optimizer step of an iteration, s is nearly 1, so the ratio usually has an effect
    only from the second step on. By default the engine gives the old log-probs. If engine or
    trainer is in 16 bits, rounding can then push s out of the paper's narrow clip range,
    [1 - 3e-4, 1 + 4e-4], even in the first step. So config/methods/gspo.py lets the trainer give
    the old log-probs (recompute_old_logprobs). With the trainer's log-probs, s does not include the
    difference between engine and trainer. GSPO has no importance weights, so it cannot correct for
    this difference.

    `starpo.bound_log_ratio` clamps log s to [-20, 20] nats. verl caps log s at 10, without a floor.
    Args: logprobs (R,) nats, with gradient; old_logprobs (R,) nats; segment_ids (R,) int64, the
        number of each token's segment. The tokens of a segment are consecutive.
    Returns: (R,), with gradient.
    Source: GSPO, arXiv 2507.18071, equations 7 and 14.
    >>> new, old = torch.tensor([0.5, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.0])
    >>> gspo_log_ratio(new, old, torch.tensor([0, 0, 1])).tolist()
    [0.25, 0.25, 1.0]
    """
    difference = logprobs.detach() - old_logprobs  # (R,)
    mean = _segment_means(difference, segment_ids)  # (R,)
    # log_ratio has the value of `mean` and the gradient of `logprobs`
    log_ratio = mean + (logprobs - logprobs.detach())  # (R,)
    return starpo.bound_log_ratio(log_ratio)


def icepop_mask(logprobs: Tensor, rollout_logprobs: Tensor, floor: float, cap: float) -> Tensor:
    """IcePop: return True where pi / pi_engine is in [floor, cap]. Tokens with False are dropped.

    The method can have an effect if pi and pi_engine differ. By default, pi_old is pi_engine. Then
    PPO's clip already stops the gradient of a high ratio with A > 0 and of a low ratio with A < 0.
    With floor 0.5 and cap 5, the mask stops the gradient in the other two cases: a ratio below 0.5
    with A > 0, and a ratio above 5 with A < 0. INTELLECT-3 also masks by pi / pi_engine, but does
    not clip. Here PPO's clip stays on. Ring-1T masks by the ratio pi_old / pi_engine.
    Args: log-probs (R,), nats; floor in [0, 1]; cap >= 1. Returns: (R,) bool.
    Source: Ring-1T, arXiv 2510.18855, and INTELLECT-3, 2512.16144, equation 1, both with [0.5, 5].
    >>> new, engine = torch.tensor([0.0, 0.0]), torch.tensor([-0.5, 2.0])
    >>> icepop_mask(new, engine, floor=0.5, cap=5.0).tolist()
    [True, False]
    """
    ratio = starpo.log_ratios(logprobs.detach(), rollout_logprobs).exp()  # (R,)
    return (ratio >= floor) & (ratio <= cap)


def sequence_mask(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    segment_ids: Tensor,
    bound: float,
) -> Tensor:
    """Return False for all tokens of a segment that is bad and that the policy has moved away from.

    All other tokens get True. A segment is bad if the mean advantage of its tokens is below 0. The
    policy has moved away from a segment if the geometric mean of pi / pi_engine over its tokens is
    below the bound. Tokens with False are dropped from the sum in `starpo.ppo_loss`, but stay in
    its denominator.

    The method can have an effect if pi and pi_engine differ. They differ after the first optimizer
    step of an iteration, because each step changes pi. If engine or trainer is in 16 bits, rounding
    makes pi and pi_engine differ in the first step, too.
    Args: log-probs (R,), nats; advantages (R,); segment_ids, see `gspo_log_ratio`; bound in (0, 1).
    Returns: (R,) bool.
    Source: DeepSeek-V3.2, arXiv 2512.02556 (off-policy sequence masking). ARLArena, 2602.21534,
        uses pi / pi_old instead, and leaves dropped tokens out of the denominator.
    >>> new, engine = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-0.5, -0.9, -0.9])
    >>> numbers = torch.tensor([0, 0, 1])
    >>> sequence_mask(new, engine, torch.tensor([-1.0, -1.0, -1.0]), numbers, 0.8).tolist()
    [False, False, True]
    """
    difference = logprobs.detach() - rollout_logprobs  # (R,)
    ratio = _segment_means(difference, segment_ids).exp()  # (R,)
    is_bad = _segment_means(advantages, segment_ids) < 0  # (R,)
    return ~(is_bad & (ratio < bound))


def tv_mask(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, bound: float) -> Tensor:
    """DPPO, binary total variation: return False for tokens to drop from the loss, else True.

    A token is dropped if A > 0 and pi - pi_engine > bound, or if A < 0 and pi - pi_engine < -bound.
    Dropped tokens stay in the denominator of the loss. With this mask, `train.clipped_loss` does
    not clip PPO's ratio, but still multiplies it by `starpo.importance_weights`, which have no
    gradient. So the objective of a kept token has the value min(pi / pi_engine, importance_cap) *
    A, and its gradient is this value times grad log pi. The paper has no cap.

    The method can have an effect if pi and pi_engine differ. They differ after the first optimizer
    step of an iteration, because each step changes pi. If engine or trainer is in 16 bits, rounding
    makes pi and pi_engine differ in the first step, too.
    Args: log-probs (R,), nats; advantages (R,); bound in (0, 1], a difference of probabilities.
    Returns: (R,) bool.
    Source: DPPO, arXiv 2602.04879, equation 12.
    >>> new, engine = torch.tensor([0.9, 0.5]).log(), torch.tensor([0.5, 0.9]).log()
    >>> tv_mask(new, engine, torch.tensor([1.0, 1.0]), 0.2).tolist()
    [False, True]
    """
    change = logprobs.detach().exp() - rollout_logprobs.exp()  # (R,)
    too_far_up = (advantages > 0) & (change > bound)  # (R,)
    too_far_down = (advantages < 0) & (change < -bound)  # (R,)
    return ~(too_far_up | too_far_down)


def echo_loss(logprobs: Tensor, num_observation_tokens: int) -> Tensor:
    """ECHO: compute the mean cross-entropy of the tokens between replies.

    All tokens between two replies count, including the marks of the chat format. The first prompt
    does not count. In RAGEN v1 (mask_observations=False), observation tokens are in the policy loss
    instead, and get advantages like response tokens.

    The method has an effect if trajectories have several turns, context_turns is 0 and
    mask_observations is True. With context_turns above 0, each turn is a sequence of its own, so
    every prompt is a first prompt and does not count. With mask_observations=False, no observation
    tokens are left, because they count as response tokens.
    Args: logprobs (O,) nats, of the O observation tokens of a micro-batch, at the sampling
        temperature, with gradient; num_observation_tokens, the number of observation tokens in the
        whole mini-batch. The loss is divided by this number, so the losses of micro-batches add up.
    Returns: scalar, nats, which the caller multiplies by observation_coef (0.1 in prime-rl).
    Source: ECHO, arXiv 2605.24517.
    >>> echo_loss(torch.tensor([-1.0, -3.0]), num_observation_tokens=4).item()
    1.0
    """
    return -logprobs.sum() / max(1, num_observation_tokens)


def _segment_means(x: Tensor, segment_ids: Tensor) -> Tensor:
    """Give each token the mean of x (R,) over the token's segment. Returns: (R,)."""
    _, segment_of_token, lengths = torch.unique_consecutive(
        segment_ids, return_inverse=True, return_counts=True
    )
    sums = x.new_zeros(len(lengths)).index_add(0, segment_of_token, x)
    return (sums / lengths)[segment_of_token]
