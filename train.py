"""StarPO: multi-turn reinforcement learning of a language-model agent on whole trajectories.

One iteration samples P groups of N trajectories, keeps the groups whose scores vary most, computes
advantages from the rewards, and takes clipped policy-gradient steps. `starpo.py` has the formulas
and lists the differences from the StarPO paper (RAGEN, arXiv 2504.20073). `methods.py` has methods
of other papers. docs/methods.md says how to add an estimator.

Letters of shapes: There are P groups of N trajectories, and N is group_size. In all, there are
B trajectories, K turns and R response tokens. Response tokens are the tokens that the policy
sampled. With mask_observations=False, they are all tokens after the system message. After the
filter, B, K and R count only what was kept. In the update, B, K and R are the numbers in one
mini-batch or micro-batch.

    torchrun --standalone train.py config/frozenlake_ppo.py  # Qwen2.5-0.5B-Instruct on one GPU
    torchrun --standalone --nproc_per_node=8 train.py config/frozenlake_ppo.py     # eight GPUs
    python train.py config/frozenlake_ppo.py config/models/tiny.py                 # a laptop CPU
    python train.py config/sokoban_grpo.py config/models/tiny.py --seed=1 --learning_rate=5e-5

A second start with the same out_dir continues from the newest checkpoint. Most settings can then
be changed only with --take_config=True. SIGTERM, SIGUSR1 and Ctrl-C end the run after the current
iteration, or after grace_s seconds if that is sooner. The process then exits with code 75, but
torchrun exits with 1 (docs/faults.md).
"""

from configurator import WHITENED_ESTIMATORS, Config

from support.arguments import read_train
from support.terminal import run_main

if __name__ == "__main__":
    # This first call only answers --help and checks the command line. It stands before the import
    # of torch, which takes seconds. The last line of this file starts the training.
    run_main(read_train)

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

import methods
import parallel
import starpo
from dialogue import Chat
from engine import Engine, dtype_of_engine
from eval import evaluate_all, play_references
from learner import Learner, build_learner
from mixtures import mixture_at
from packing import PackedBatch, pack
from rollout import (
    Trajectory,
    check_errors,
    groups_with_errors,
    split_by_context,
    unmask,
    without_errors,
)
from starpo import GroupStats
from support.mutual_information import measure_collapse
from support.records import note_credit, note_filter
from support.run import Run, open_run
from support.training_metrics import (
    Timer,
    explained_variance,
    iteration_metrics,
    mean_over_steps,
)

# The seed of each random stream of this file contains a number of its own, so no two streams are
# equal. The constants SEED_... of other files have other numbers.
SEED_INSTANCES = 31
SEED_SAMPLING = 32
SEED_SHUFFLE = 33
SEED_MIXTURE = 34
SEED_COLLAPSE = 35

# Maps a dtype to the limit, in nats, of the mean absolute difference between the log-probs of
# engine and trainer. The mean is over the response tokens of the first mini-batch. Training warns
# if the mean exceeds the limit. If engine and trainer have different dtypes, the larger limit
# counts.
MAX_LOGPROB_DIFF = {torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}


# ---------- the run


def main(argv: list[str]) -> None:
    config, _options, sources = read_train(argv)  # sources: where each setting was set
    device = parallel.init_distributed(config)  # from here on, only rank 0 prints
    with open_run(config, sources) as run:
        if not run.report_if_finished():
            train(run, device)


def train(run: Run, device: torch.device) -> None:
    """Train until the run is over or interrupted."""
    config = run.config
    learner, engine, chat = build_learner(config, device)
    # The report needs the scores of the initial model, so this model is evaluated at every start.
    # Then `run.start` loads the newest checkpoint, if there is one.
    start_scores = evaluate_all(config, engine, chat, learner.policy)
    run.start(learner, start_scores)
    scores = None  # scores of the present policy, or None if it was not evaluated
    while run.should_continue():
        metrics, trajectories = iterate(learner, engine, chat, run.history)
        scores = None
        # An evaluation is due every eval_every iterations, and after the last iteration. With
        # early_stop, bad metrics can make this iteration the last one.
        if run.evaluation_due(metrics):
            scores = evaluate_all(config, engine, chat, learner.policy)
        run.add(metrics, trajectories, scores)
    # If this process did the last iteration, the loop has evaluated the policy. If the run was over
    # before the loop, the loop did no iteration, and the policy is evaluated here. A run can be
    # over before the loop because num_iterations is 0 or was lowered, because early_stop was
    # switched on, or because an earlier process ended between the last checkpoint and the report.
    if run.is_over() and scores is None:
        scores = evaluate_all(config, engine, chat, learner.policy)
    # `finish` writes the policy and a report that compares it with reference players. If the run
    # was interrupted, `finish` only says so, and `scores` may be None.
    run.finish(scores, play_references)
    parallel.shut_down(engine)


# ---------- one iteration


def iterate(
    learner: Learner, engine: Engine, chat: Chat, history: Sequence[dict]
) -> tuple[dict, list[Trajectory]]:
    """Do one iteration: rollouts, filter, advantages and update.

    Args: history: metrics of earlier iterations, for the moving averages of `measure_collapse`.
    Returns: the metrics by name (None if a metric was not measured), and the trajectories of the
        groups without an error."""
    config = learner.config

    # -- collect: num_groups groups of N trajectories; dynamic sampling may add groups
    rollout_timer = Timer()
    sampled = collect_rollouts(learner, engine, chat)
    rollout_timer.stop()

    # -- drop the groups with an error: P groups are left. Too many errors stop the run
    check_errors(sampled, config, config.group_size)
    trajectories = without_errors(sampled, config.group_size)

    # -- measure collapse (not timed): do thoughts still depend on the prompt?
    collapse = {}
    if config.collapse_every and learner.step % config.collapse_every == 0:
        rng = np.random.default_rng([config.seed, SEED_COLLAPSE, learner.step])
        collapse = measure_collapse(learner.policy, trajectories, chat, config, rng, history)

    # -- filter: by default, keep the groups whose scores (sums of rewards) vary most
    update_timer = Timer()
    stats = stats_of_groups(trajectories, config.group_size)  # (P,) each
    rank_by = ranking_values(config, trajectories, stats)  # (P,) the values chosen by filter_by
    # If dynamic sampling made P larger than num_groups, the filter sees num_groups of the P groups:
    # all groups with variance, filled up with other groups. Otherwise it sees all P groups.
    candidates = filter_candidates(config, stats)  # group indices, 1 to P of them
    kept_groups = select_groups(config, candidates, rank_by, stats)  # group indices, 0 to P of them
    kept_fraction = len(kept_groups) / len(candidates)  # for filter_loss_scale
    note_filter(trajectories, rank_by, kept_groups, config.group_size)  # for trajectories.jsonl
    kept = members_of(kept_groups, trajectories, config.group_size)

    if not config.mask_observations:  # RAGEN v1: observations become response tokens, too
        kept = [unmask(trajectory, chat) for trajectory in kept]

    # -- advantages, then update
    update_metrics = {}
    if kept:
        experience = build_experience(learner, kept, kept_fraction)
        note_credit(kept, experience.advantages, experience.old_values)  # for trajectories.jsonl
        # SimpleTIR: do not train on trajectories with a void turn. A void turn executed no action.
        if config.drop_void:  # here and not earlier, because the advantages need whole groups
            to_train = methods.without_void_turns([t.has_void_turn for t in kept])
            experience = experience.of_trajectories(to_train) if to_train else None
        if experience:
            update_metrics = update(learner, experience)
    if not update_metrics:
        tqdm.write(skipped_update(learner.step + 1, num_kept=len(kept)))
    learner.step += 1  # counts iterations, not optimizer steps
    update_timer.stop()

    metrics = iteration_metrics(
        learner, sampled, trajectories, stats, len(kept), rollout_timer, update_timer
    )
    return {**metrics, **update_metrics, **collapse}, trajectories


def collect_rollouts(learner: Learner, engine: Engine, chat: Chat) -> list[Trajectory]:
    """Sample groups of N trajectories, and return all trajectories, group after group.

    Every rank plays a part of the trajectories and returns all of them. The first round samples
    num_groups groups. With dynamic sampling (sampling_rounds > 1), further rounds sample more
    groups, until num_groups groups have variance in their scores. There are at most sampling_rounds
    rounds. The result also holds the groups without variance, so it may have more than num_groups
    groups."""
    config = learner.config
    rng = np.random.default_rng([config.seed, SEED_MIXTURE, learner.step])
    parallel.sync_weights(engine, learner.policy)
    trajectories = collect_groups(
        learner, engine, chat, rng, first_group=0, num_groups=config.num_groups
    )
    for _ in range(config.sampling_rounds - 1):  # dynamic sampling
        std = stats_of_groups(trajectories, config.group_size).std  # (P,)
        # Groups with errors are dropped later, so here they count as groups without variance.
        std[groups_with_errors(trajectories, config.group_size)] = 0.0
        num_missing = methods.num_missing_groups(std, config.num_groups)
        if num_missing == 0:
            break
        trajectories += collect_groups(
            learner, engine, chat, rng, first_group=len(std), num_groups=num_missing
        )
    return trajectories


def collect_groups(
    learner: Learner,
    engine: Engine,
    chat: Chat,
    rng: np.random.Generator,
    first_group: int,
    num_groups: int,
) -> list[Trajectory]:
    """Sample `num_groups` groups of N trajectories.

    The members of a group start from the same instance of an environment, but their transition
    noise and sampling noise differ. If the setting `env` is a mixture ("A + 2*B"), the environment
    of each group is drawn at random. "A @50 > B" means A in the first 50 iterations, and then B.

    Args:
        rng: draws the environments.
        first_group: the index of the first group. Instance seeds contain the index of the group."""
    config = learner.config
    step = learner.step
    starts = []  # (instance seed, member) of each trajectory
    group_numbers = range(first_group, first_group + num_groups)
    for group, member in product(group_numbers, range(config.group_size)):
        starts.append(((config.seed, SEED_INSTANCES, step, group), member))
    mixture = mixture_at(config.env, step)
    env_of_group = rng.choice(list(mixture.keys()), size=num_groups, p=list(mixture.values()))
    return parallel.collect_all(
        engine,
        learner.policy,  # used only to check that the engine has the policy's weights
        chat,
        config,
        starts,
        envs=np.repeat(env_of_group, config.group_size).tolist(),
        group_size=config.group_size,  # a rank plays whole groups
        split="train",
        temperature=config.temperature,
        # rollout.collect adds instance, member and turn to this seed
        noise_seed=(config.seed, SEED_SAMPLING, step),
    )


def stats_of_groups(trajectories: Sequence[Trajectory], group_size: int) -> GroupStats:
    """Return the statistics of the scores in each group, as tensors (P,)."""
    scores = torch.tensor([t.score for t in trajectories], dtype=torch.float64)  # (B,)
    return starpo.group_stats(scores, group_size)


def ranking_values(config: Config, trajectories: Sequence[Trajectory], stats: GroupStats) -> Tensor:
    """Return the P numbers by which the filter ranks the groups, as the setting filter_by says."""
    size = config.group_size
    token_counts = []
    logprob_sums = []
    for start in range(0, len(trajectories), size):
        group = trajectories[start : start + size]
        token_counts.append(sum(trajectory.num_response_tokens for trajectory in group))
        # NaN if the engine gives no log-probs. Config refuses filter_by="entropy" in this case.
        logprob_sums.append(sum(lp for member in group for lp in member.rollout_logprobs))
    group_lengths = torch.tensor(token_counts)  # (P,) response tokens
    ranked_by = {
        "reward_std": stats.std,
        "reward_mean": stats.mean,
        # an estimate in nats per token: the mean of -log pi_engine over a group's sampled tokens
        "entropy": -torch.tensor(logprob_sums) / group_lengths,
        "length": group_lengths / size,
    }
    return ranked_by[config.filter_by]


def filter_candidates(config: Config, stats: GroupStats) -> Tensor:
    """Return the indices of the groups that the filter sees: 1 to P numbers, int64, ascending."""
    if config.sampling_rounds > 1:  # dynamic sampling can sample more than num_groups groups
        return methods.candidate_groups(stats.std, config.num_groups)
    return torch.arange(len(stats.std))


def select_groups(config: Config, candidates: Tensor, rank_by: Tensor, stats: GroupStats) -> Tensor:
    """Use `starpo.filter_groups` to choose the groups to train on.

    Args:
        candidates: the indices that `filter_candidates` returned.
        rank_by: (P,) the values that `ranking_values` returned.
    Returns: the indices of the chosen groups, ascending; at most P indices, perhaps none."""
    chosen = starpo.filter_groups(
        rank_by[candidates].double(),
        stats.std[candidates],
        keep=config.filter_keep,
        strategy=config.filter_strategy,
        smallest=config.filter_smallest,
        zero_std=config.filter_zero_std,
    )
    return candidates[chosen]


def members_of(
    kept_groups: Tensor, trajectories: Sequence[Trajectory], size: int
) -> list[Trajectory]:
    """Return the trajectories of the kept groups, group after group."""
    members = []
    for group in kept_groups.tolist():
        members += trajectories[group * size : (group + 1) * size]
    return members


def skipped_update(iteration: int, num_kept: int) -> str:
    """Return the message for an iteration that has no trajectory to train on."""
    reason = "each kept trajectory has a void turn"
    if num_kept == 0:
        # Each filter strategy keeps a group if any group has variance. Here the filter kept none,
        # so no group has variance.
        reason = "the filter kept no group, because the scores in each group are equal"
    return f"iteration {iteration}: {reason}; update skipped"


# ---------- advantages


@dataclass
class Experience:
    """The kept trajectories (`kept`) as inputs of the model, and the numbers that the losses need.

    A sequence is one input of the model. Without context_turns, each trajectory is a sequence. The
    setting context_turns limits the turns that the policy sees. With context_turns, each turn is a
    sequence, and the prompt of the turn repeats the visible turns. A tensor (R,) has one number for
    each response token, in the order of the sequences."""

    sequences: list[Trajectory]  # S sequences; with context_turns, each has only one turn
    trajectory_ids: list[int]  # S numbers: the index of each sequence's trajectory in `kept`
    advantages: Tensor  # (R,) float32
    old_logprobs: Tensor  # (R,) nats; log pi_old in PPO's ratio
    rollout_logprobs: Tensor  # (R,) nats; log pi_engine, or old_logprobs if the engine gave none
    turn_ids: Tensor  # (R,) int64; the index of each token's turn among all turns of `kept`
    # (R,) int64; the segment of each token, for GSPO and sequence_mask. A segment is a trajectory
    # or a turn, as the setting `segment` says. With context_turns it is always a turn.
    segment_ids: Tensor
    ref_logprobs: Tensor | None = None  # (R,) nats, of the frozen reference; None if kl_coef is 0
    # (R,) the critic's values before the update, in reward units; None without a critic
    old_values: Tensor | None = None
    returns: Tensor | None = None  # (R,) float, in reward units; only with a critic
    # (R,) the weight of each token in the losses, see starpo.token_weights. `update` computes the
    # weights for each mini-batch.
    token_weights: Tensor | None = None

    def select(self, indices: Sequence[int]) -> "Experience":
        """Return the experience of the sequences at `indices`."""
        chosen = {
            "sequences": [self.sequences[i] for i in indices],
            "trajectory_ids": [self.trajectory_ids[i] for i in indices],
        }
        lengths = [sequence.num_response_tokens for sequence in self.sequences]
        tokens_of = torch.arange(len(self.advantages)).split(lengths)  # S tensors of indices
        tokens = torch.cat([tokens_of[i] for i in indices])
        tokens = tokens.to(self.advantages.device)
        for field in fields(Experience):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):  # lists are handled above, and None stays None
                chosen[field.name] = value[tokens]
        return Experience(**chosen)

    def of_trajectories(self, trajectory_ids: Sequence[int]) -> "Experience":
        """Return the experience of these trajectories, in the order of `trajectory_ids`."""
        sequences_of: dict[int, list[int]] = {}
        for index, trajectory_id in enumerate(self.trajectory_ids):
            sequences_of.setdefault(trajectory_id, []).append(index)
        return self.select([index for i in trajectory_ids for index in sequences_of[i]])

    def tokens_per_trajectory(self) -> list[int]:
        """Return B counts: the response tokens of each trajectory, in the order of trajectory_ids.

        The sequences of a trajectory are neighbours in `sequences`. So the numbers of a trajectory
        are contiguous in each tensor (R,)."""
        counts: dict[int, int] = {}
        for trajectory_id, sequence in zip(self.trajectory_ids, self.sequences, strict=True):
            earlier = counts.get(trajectory_id, 0)
            counts[trajectory_id] = earlier + sequence.num_response_tokens
        return list(counts.values())


class Layout(NamedTuple):
    """How the kept trajectories divide into groups, turns and response tokens."""

    tokens_per_turn: list[int]  # K
    turns_per_trajectory: list[int]  # B
    group_ids: Tensor  # (B,) int64; the index of each trajectory's group among the kept groups


def layout_of(kept: Sequence[Trajectory], group_size: int) -> Layout:
    """Return the layout of trajectories that form whole groups of `group_size`."""
    tokens_per_turn = count_tokens_per_turn(kept)
    turns_per_trajectory = [len(trajectory.turns) for trajectory in kept]
    group_ids = torch.arange(len(kept)) // group_size
    return Layout(tokens_per_turn, turns_per_trajectory, group_ids)


def count_tokens_per_turn(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return K counts: the response tokens of each turn."""
    return [len(turn.response_ids) for trajectory in trajectories for turn in trajectory.turns]


def build_experience(
    learner: Learner,
    kept: Sequence[Trajectory],
    kept_fraction: float = 1.0,
) -> Experience:
    """Compute what the update needs: log-probs, values, advantages and returns.

    Args: kept_fraction: the fraction of the groups that the filter kept, for filter_loss_scale."""
    config = learner.config
    sequences = []
    trajectory_ids = []
    for trajectory_id, trajectory in enumerate(kept):
        # With context_turns, split_by_context cuts a trajectory between its turns. The response
        # tokens and their order stay the same, so a tensor (R,) fits both `kept` and `sequences`.
        parts = split_by_context([trajectory], config)
        sequences += parts
        trajectory_ids += [trajectory_id] * len(parts)
    layout = layout_of(kept, config.group_size)
    tokens_per_turn = torch.tensor(layout.tokens_per_turn, device=learner.device)  # (K,)
    turn_ids = torch.repeat_interleave(tokens_per_turn)  # (R,) 0, 0, 1, 1, 1 for [2, 3] tokens
    segment_ids = turn_ids
    if config.segment == "trajectory":
        # Each sequence is a segment. So a segment is a trajectory or, with context_turns, a turn.
        lengths = [sequence.num_response_tokens for sequence in sequences]
        segment_ids = torch.repeat_interleave(torch.tensor(lengths, device=learner.device))  # (R,)

    rollout_logprobs, old_logprobs = logprobs_before_update(learner, sequences)  # (R,) each
    # forward_sequences returns (logprobs, entropy) for a policy and (values,) for a critic. It
    # computes no gradient. The ranks share the work, and each rank gets all R numbers.
    ref_logprobs = None
    if learner.ref:  # kl_coef > 0
        ref_logprobs, _entropy = parallel.forward_sequences(
            learner.ref, sequences, config, config.temperature
        )  # (R,)
    old_values = None
    if learner.critic:
        (old_values,) = parallel.forward_sequences(learner.critic, sequences, config)  # (R,)
        if config.estimator == "turn_ppo":
            # each token gets the value at the first token of its turn
            old_values = methods.turn_ppo_values(old_values, turn_ids)  # (R,)

    rewards = token_rewards(learner, kept, layout, old_logprobs, ref_logprobs)  # (R,)
    advantages, returns = estimate_advantages(learner, kept, layout, rewards, old_values)
    # filter_loss_scale scales the advantages, but not the entropy bonus, KL loss and value loss.
    advantage_scale = {"none": 1.0, "linear": kept_fraction, "sqrt": kept_fraction**0.5}
    return Experience(
        sequences=sequences,
        trajectory_ids=trajectory_ids,
        advantages=advantages.float() * advantage_scale[config.filter_loss_scale],
        old_logprobs=old_logprobs,
        rollout_logprobs=rollout_logprobs,
        turn_ids=turn_ids,
        segment_ids=segment_ids,
        ref_logprobs=ref_logprobs,
        old_values=old_values,
        returns=returns,
    )


def logprobs_before_update(
    learner: Learner, sequences: Sequence[Trajectory]
) -> tuple[Tensor, Tensor]:
    """Return log-probs of the response tokens under pi_engine and under pi_old, (R,) each, nats.

    pi_engine is the policy as the engine computes it. By default pi_old is pi_engine, which saves a
    forward pass. With recompute_old_logprobs=True, mask_observations=False or a KL in the reward,
    pi_old is the policy before the update, as the trainer computes it. The trainer's numbers differ
    a little from the engine's. The importance weights in `clipped_loss` correct for this
    difference, except with GSPO and at tokens without a log-prob of the engine."""
    config = learner.config
    sampled = torch.tensor(
        [logprob for sequence in sequences for logprob in sequence.rollout_logprobs],
        device=learner.device,
    )  # (R,)
    if not config.trainer_gives_old_logprobs():
        return sampled, sampled
    old, _entropy = parallel.forward_sequences(
        learner.policy, sequences, config, config.temperature
    )  # (R,)
    # `sampled` is NaN where the engine gave no log-prob. With mask_observations=False, the engine
    # gave no log-probs of the prompt tokens. With recompute_old_logprobs=True, vLLM gave no
    # log-probs at all, because it was not asked for them. In both cases the old log-prob takes the
    # place of the NaN.
    return torch.where(sampled.isnan(), old, sampled), old


def token_rewards(
    learner: Learner,
    kept: Sequence[Trajectory],
    layout: Layout,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
) -> Tensor:
    """Return the rewards of the response tokens, (R,) float64.

    The last token of a turn gets the reward of the turn, normalised as reward_norm says. With
    kl_in="reward", kl_coef times the KL of each token is subtracted from its reward."""
    config = learner.config
    rewards = torch.tensor(
        [turn.reward for trajectory in kept for turn in trajectory.turns], dtype=torch.float64
    )  # (K,)
    if config.reward_norm != "none":
        names = [trajectory.env for trajectory in kept]
        # Each tensor in `peers` has a number for each trajectory, (B,). Trajectories with the same
        # number share a mean and a standard deviation.
        peers = {
            "group": layout.group_ids,
            "batch": torch.zeros_like(layout.group_ids),
            # the number is the index of the first trajectory in the same environment
            "env": torch.tensor([names.index(name) for name in names]),
        }
        rewards = starpo.normalize_rewards(
            rewards, layout.turns_per_trajectory, peers[config.reward_norm_over], config.reward_norm
        )  # (K,)
    tokens_per_turn = torch.tensor(layout.tokens_per_turn)  # (K,)
    per_token = torch.zeros(int(tokens_per_turn.sum()), dtype=torch.float64)  # (R,)
    per_token[tokens_per_turn.cumsum(0) - 1] = rewards  # each turn has at least one response token
    if learner.ref and config.kl_in == "reward":
        kl = starpo.kl_penalty(old_logprobs, ref_logprobs, config.kl_estimator)  # (R,)
        per_token -= config.kl_coef * kl.cpu()
    return per_token.to(learner.device)


def estimate_advantages(
    learner: Learner,
    kept: Sequence[Trajectory],
    layout: Layout,
    rewards: Tensor,
    values: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Estimate advantages with the estimator that the settings name.

    If you add an estimator, it may keep state in `learner.estimator_state`. Checkpoints save this
    state. An example is examples/running_mean.patch. All ranks get the same arguments, so their
    states are equal.

    Args: rewards (R,) of the response tokens of `kept`; values (R,), or None without a critic.
    Returns: advantages (R,) and returns (R,). The returns are the critic's targets, and None
        without a critic."""
    config = learner.config
    estimator = config.estimator
    counts = (layout.tokens_per_turn, layout.turns_per_trajectory)  # K and B numbers
    group_ids = layout.group_ids  # (B,)
    turn_gamma = config.turn_gamma
    discounts = starpo.Discounts(config.gamma, config.lam, turn_gamma, config.turn_lam)
    returns = None
    if estimator == "gae":
        advantages, returns = starpo.token_gae(rewards, values, *counts, discounts)
    elif estimator == "bi_level_gae":
        advantages, returns = starpo.bi_level_gae(rewards, values, *counts, discounts)
    elif estimator == "turn_ppo":
        advantages, returns = methods.turn_ppo_advantages(rewards, values, *counts, discounts)
    elif estimator == "reinforce_plus_plus":
        advantages = starpo.token_returns(rewards, *counts, discounts)
    elif config.turn_level:
        advantages = starpo.turn_advantages(rewards, *counts, group_ids, estimator, turn_gamma)
    else:
        advantages = starpo.trajectory_advantages(rewards, *counts, group_ids, estimator)
    if estimator in WHITENED_ESTIMATORS:  # all but grpo, dr_grpo and rloo
        advantages = starpo.whiten(advantages)
    if config.state_weight:  # GiGPO
        states = [turn.state for trajectory in kept for turn in trajectory.turns]  # K
        advantages = advantages + config.state_weight * methods.gigpo_advantages(
            rewards, *counts, group_ids, states, estimator=estimator, gamma=turn_gamma
        )
    return advantages, returns


# ---------- update


def update(learner: Learner, experience: Experience) -> dict[str, float | None]:
    """Take an optimizer step on each mini-batch.

    Returns: a dict with the metrics of `mean_over_steps`, the learning rates and, with a critic,
        explained_variance. logprob_diff_* are None if the engine gives no log-probs."""
    config = learner.config
    rates = learner.schedule_learning_rates()
    # List each id once. With context_turns, all sequences of a trajectory have the same id. The ids
    # may have gaps, because drop_void leaves trajectories out.
    trajectory_ids = list(dict.fromkeys(experience.trajectory_ids))
    max_trajectory_tokens = config.max_turns * config.max_response_tokens
    steps = []  # metrics of each optimizer step
    tokens_per_step = []
    for indices in mini_batches(config, learner.step, len(trajectory_ids)):
        mini_batch = experience.of_trajectories([trajectory_ids[i] for i in indices])
        token_weights = starpo.token_weights(
            mini_batch.tokens_per_trajectory(), config.aggregation, max_trajectory_tokens
        )  # (R,)
        mini_batch.token_weights = token_weights.to(learner.device)
        batch_metrics = backward(learner, mini_batch)
        norms = optimizer_step(learner, batch_metrics)
        numbers = {name: value.item() for name, value in batch_metrics.items()}
        steps.append({**numbers, **norms})
        tokens_per_step.append(len(token_weights))

    # mean_over_steps takes logprob_diff_* from the first step, where engine and trainer have the
    # same weights. It averages all other metrics.
    metrics = {**mean_over_steps(steps, tokens_per_step), **rates}
    if learner.critic:
        metrics["explained_variance"] = explained_variance(
            experience.old_values, experience.returns
        )
    if not config.engine_gives_logprobs():
        return {**metrics, "logprob_diff_mean": None, "logprob_diff_max": None}
    warn_of_mismatch(learner, metrics["logprob_diff_mean"])
    return metrics


def mini_batches(config: Config, step: int, num_trajectories: int) -> Iterator[np.ndarray]:
    """Shuffle the trajectories in each epoch and cut them into mini-batches of batch_size.

    Yields: the indices of each mini-batch's trajectories. The last mini-batch of an epoch may be
        smaller."""
    for epoch in range(config.num_epochs):
        rng = np.random.default_rng([config.seed, SEED_SHUFFLE, step, epoch])
        order = rng.permutation(num_trajectories)
        for start in range(0, num_trajectories, config.batch_size):
            yield order[start : start + config.batch_size]


def backward(learner: Learner, mini_batch: Experience) -> dict[str, Tensor]:
    """Accumulate the gradients of one mini-batch, which is split over ranks and micro-batches.

    A micro-batch divides its losses and metrics by the number of response tokens in the whole
    mini-batch. Only ECHO's loss, a cross-entropy on observation tokens, is divided by the number of
    observation tokens in the whole mini-batch. So the losses and metrics of all micro-batches add
    up to those of the mini-batch, and the split does not change the gradients.

    Returns: the metrics of `policy_loss` and `critic_loss`, summed over the micro-batches of all
        ranks. logprob_diff_max is not summed: it is the maximum over these micro-batches."""
    config = learner.config
    num_tokens = len(mini_batch.advantages)
    num_observation_tokens = sum(
        sum(sequence.observation_mask) for sequence in mini_batch.sequences
    )
    micro_batches = parallel.local_micro_batches(mini_batch.sequences, config.micro_batch_tokens)
    sums: dict[str, Tensor] = {}
    largest_diff = torch.zeros((), device=learner.device)
    # All ranks need the same number of micro-batches. So a rank with fewer micro-batches than
    # another rank gets surplus micro-batches, whose is_real is 0.0.
    for number, (indices, is_real) in enumerate(micro_batches):
        # Gradient sync reduces the gradients over the ranks and frees the unsharded gradients. With
        # several ranks it costs traffic, so it is on only in the last micro-batch. With one rank it
        # costs nothing, so it is always on.
        is_last = number == len(micro_batches) - 1
        for module in learner.modules.values():
            module.set_requires_gradient_sync(is_last or parallel.world_size() == 1)
        micro_batch = mini_batch.select(indices)
        packed = pack(
            micro_batch.sequences, learner.device, observations=config.observation_coef > 0
        )
        # FSDP2 averages gradients over the ranks. The factor world_size makes the average a sum.
        # learner.clip_gradients undoes loss_scale (1 unless dtype is float16).
        scale = is_real * parallel.world_size() * learner.loss_scale
        loss, metrics = policy_loss(
            learner, packed, micro_batch, num_tokens, num_observation_tokens
        )
        (loss * scale).backward()
        if learner.critic:
            # The critic runs after the policy's backward, so that only one model's activations
            # are in memory.
            loss, value_metrics = critic_loss(learner, packed, micro_batch, num_tokens)
            (loss * scale).backward()
            metrics.update(value_metrics)
        # a surplus micro-batch repeats real sequences, so it does not change the maximum
        largest_diff = torch.maximum(largest_diff, metrics.pop("logprob_diff_max"))
        for key, value in metrics.items():
            sums[key] = sums.get(key, 0.0) + value * is_real
    if parallel.world_size() > 1:
        parallel.all_reduce_sum(*sums.values())
        dist.all_reduce(largest_diff, dist.ReduceOp.MAX)
    return {**sums, "logprob_diff_max": largest_diff}


def policy_loss(
    learner: Learner,
    packed: PackedBatch,
    micro_batch: Experience,
    num_tokens: int,
    num_observation_tokens: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the policy's loss: clipped PPO loss, entropy bonus, KL, and ECHO's cross-entropy.

    Args:
        packed: the tokens of the micro-batch.
        num_tokens: the number of response tokens in the whole mini-batch. Losses and metrics are
            divided by num_tokens.
        num_observation_tokens: the number of observation tokens in the whole mini-batch. ECHO's
            cross-entropy is divided by num_observation_tokens.
    Returns: loss and metrics of this micro-batch. The sums of these numbers over all micro-batches
        are loss and metrics of the mini-batch. But logprob_diff_max is not summed: it is the
        maximum in this micro-batch.
    """
    config = learner.config
    token_weights = micro_batch.token_weights  # (R,)
    # The R response tokens come first, then O observation tokens. O is 0 without ECHO.
    all_logprobs, all_entropy = learner.policy(packed, config.temperature)  # (R + O,) each
    logprobs = all_logprobs[: len(token_weights)]  # (R,)
    entropy = all_entropy[: len(token_weights)]  # (R,)
    loss, metrics = clipped_loss(config, logprobs, micro_batch, num_tokens)
    difference = (logprobs.detach() - micro_batch.rollout_logprobs).abs()  # (R,)
    metrics["pg_loss"] = loss.detach()
    metrics["entropy"] = entropy.detach().sum() / num_tokens
    metrics["logprob_diff_mean"] = difference.sum() / num_tokens
    metrics["logprob_diff_max"] = difference.max()
    loss = loss - config.entropy_coef * (entropy * token_weights).sum() / num_tokens
    if config.observation_coef:  # ECHO
        nll = methods.echo_loss(all_logprobs[len(token_weights) :], num_observation_tokens)
        loss = loss + config.observation_coef * nll
        metrics["observation_nll"] = nll.detach()
    if learner.ref:
        kl = starpo.kl_penalty(logprobs, micro_batch.ref_logprobs, config.kl_estimator)  # (R,)
        metrics["kl_ref"] = kl.detach().sum() / num_tokens
        if config.kl_in == "loss":
            loss = loss + config.kl_coef * (kl * token_weights).sum() / num_tokens
    return loss, metrics


def clipped_loss(
    config: Config, logprobs: Tensor, micro_batch: Experience, num_tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute PPO's loss with the ratio, importance weights and clip range that the settings name.

    Args: logprobs: (R,) nats, with gradient.
    Returns: loss and metrics of `starpo.ppo_loss`, and the metric masked_frac."""
    old_logprobs = micro_batch.old_logprobs  # (R,)
    rollout_logprobs = micro_batch.rollout_logprobs  # (R,)
    advantages = micro_batch.advantages  # (R,)
    segment_ids = micro_batch.segment_ids  # (R,)
    clip_low, clip_high = config.clip_low, config.clip_high
    if config.sequence_ratio:  # GSPO: one ratio for each segment, and no importance weights
        segment_log_ratio = methods.gspo_log_ratio(logprobs, old_logprobs, segment_ids)  # (R,)
        weights = torch.ones_like(old_logprobs)  # (R,)
    else:
        segment_log_ratio = None  # each token has its own ratio, exp(logprobs - old_logprobs)
        # PPO's ratio is pi / pi_old, but pi_engine sampled the tokens. The weight pi_old /
        # pi_engine corrects the ratio: weight * ratio is pi / pi_engine. By default pi_old is
        # pi_engine, and the weight is 1. If pi / pi_engine exceeds importance_cap, the weight is
        # smaller, so that weight * ratio equals the cap. The weight has no gradient.
        weights = starpo.importance_weights(
            logprobs, old_logprobs, rollout_logprobs, config.importance_cap
        )  # (R,)
        if config.importance_floor:  # IcePop
            weights = weights * methods.icepop_mask(
                logprobs, rollout_logprobs, config.importance_floor, config.importance_cap
            )
    if config.sequence_mask:  # DeepSeek-V3.2
        weights = weights * methods.sequence_mask(
            logprobs, rollout_logprobs, advantages, segment_ids, config.sequence_mask
        )
    if config.tv_bound:  # DPPO-TV
        weights = weights * methods.tv_mask(logprobs, rollout_logprobs, advantages, config.tv_bound)
        # the clip range [1 - clip_low, 1 + clip_high] is now [0, inf), so PPO's clip has no effect
        clip_low, clip_high = 1.0, float("inf")
    loss, metrics = starpo.ppo_loss(
        logprobs,
        old_logprobs,
        advantages,
        num_tokens=num_tokens,
        weights=weights * micro_batch.token_weights,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=config.dual_clip,
        segment_log_ratio=segment_log_ratio,
    )
    is_masked = (weights == 0).to(loss.dtype)  # (R,) 0 or 1
    metrics["masked_frac"] = is_masked.sum() / num_tokens
    return loss, metrics


def critic_loss(
    learner: Learner, packed: PackedBatch, micro_batch: Experience, num_tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the clipped value loss times value_coef.

    Returns: loss and metrics of this micro-batch. The sums of these numbers over all micro-batches
        are loss and metrics of the mini-batch."""
    config = learner.config
    values = learner.critic(packed)  # (R,) even with ECHO's observations in the batch
    if config.estimator == "turn_ppo":
        values = methods.turn_ppo_values(values, micro_batch.turn_ids)  # (R,)
    loss, metrics = starpo.value_loss(
        values,
        micro_batch.old_values,
        micro_batch.returns,
        value_clip=config.value_clip,
        num_tokens=num_tokens,
        weights=micro_batch.token_weights,
    )
    metrics["vf_loss"] = loss.detach()
    return config.value_coef * loss, metrics


def optimizer_step(learner: Learner, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Clip the gradients and step the optimizers of policy and critic.

    If a gradient norm or a metric is not finite, the step is skipped.

    Returns: the gradient norms before clipping, as grad_norm and, with a critic, grad_norm_critic.
    Raises: UserError after max_bad_steps skipped steps in a row. Skipped steps that lower the loss
        scale of float16 do not count."""
    norms = learner.clip_gradients()
    metrics_are_finite = all(torch.isfinite(value).all() for value in metrics.values())
    gradient_is_finite = all(torch.isfinite(norm) for norm in norms.values())
    finite = metrics_are_finite and gradient_is_finite
    if finite:
        learner.bad_steps = 0
    else:
        # If only the gradient is not finite and the loss scale is above 1, the scaled gradient has
        # overflowed in float16, and the scale is halved. Any other skipped step counts as bad.
        learner.handle_skipped_step(metrics_are_finite)
    for optimizer in learner.optimizers.values():
        if finite:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.policy.bump_version()  # so sync_weights loads the weights into the engine again
    names = {"policy": "grad_norm", "critic": "grad_norm_critic"}
    return {names[name]: norm.item() for name, norm in norms.items()}


def warn_of_mismatch(learner: Learner, difference: float) -> None:
    """Warn if the log-probs of engine and trainer differ by more than MAX_LOGPROB_DIFF."""
    dtypes = (learner.dtype, dtype_of_engine(learner.config, learner.device))
    if difference > max(MAX_LOGPROB_DIFF[dtype] for dtype in dtypes):
        tqdm.write(
            f"warning: the log-probs of engine and trainer differ by {difference:.4f} nats a token"
        )


if __name__ == "__main__":
    run_main(main)
