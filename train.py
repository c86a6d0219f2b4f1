"""StarPO: multi-turn reinforcement learning of a language-model agent on whole trajectories.

One iteration samples P groups of N trajectories, keeps the groups whose scores vary most, computes
advantages from the rewards, and takes clipped policy-gradient steps. `starpo.py` has the formulas
and the differences from the paper (arXiv 2504.20073).

    torchrun train.py config/frozenlake_ppo.py               # Qwen2.5-0.5B-Instruct on one GPU
    torchrun --standalone --nproc_per_node=8 train.py config/frozenlake_ppo.py     # eight GPUs
    torchrun --standalone train.py config/frozenlake_ppo.py config/models/tiny.py  # a laptop CPU
    python train.py config/sokoban_grpo.py config/models/tiny.py --seed=1 --learning_rate=5e-5

A second start with the same out_dir continues from the newest checkpoint. It refuses changed
settings unless --take_config=True confirms them. SIGTERM, SIGUSR1 and Ctrl-C end the run after the
current iteration, with exit code 75 (docs/faults.md).
"""

from configurator import Config, run_main

from support.arguments import read_train

if __name__ == "__main__":
    run_main(read_train)  # answers mistakes before the slow imports

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

import parallel
import starpo
from dialogue import Chat
from engine import Engine, dtype_of_engine
from eval import evaluate_all
from packing import PackedBatch, pack
from rollout import (
    Trajectory,
    groups_with_errors,
    split_by_context,
    summarize,
    unmask,
    without_errors,
)
from support import methods
from support.collapse import measure_collapse
from support.learner import Learner, build_learner
from support.metrics import metric_names
from support.mixtures import mixture_at
from support.records import note_credit, note_filter
from support.run import Run, open_run
from support.targets import (
    Targets,
    TrainSample,
    groups_of,
    number_tokens,
    token_rewards,
    tokens_per_turn,
    trainer_scores_rollouts,
    without_void_turns,
)
from support.timer import Timer
from support.training_metrics import explained_variance, rollout_metrics

# The seed of each random stream contains its purpose number, so that no two streams are equal.
SEED_INSTANCES = 31
SEED_SAMPLING = 32
SEED_SHUFFLE = 33
SEED_MIXTURE = 34
SEED_COLLAPSE = 35

# Largest accepted difference between the log-probs of engine and trainer, in nats: the mean over
# the response tokens. The trainer warns above it. If they compute in different types, the larger
# limit counts.
MAX_LOGPROB_DIFF = {torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}


# ---------- the run


def main(argv: list[str]) -> None:
    config, _, sources = read_train(argv)
    device, dtype = parallel.init_distributed(config)
    with open_run(config, sources) as run:
        if not run.is_finished():
            train(run, device, dtype)


def train(run: Run, device: torch.device, dtype: torch.dtype) -> None:
    """Train until the run is over or interrupted. `run` writes metrics, checkpoints and reports."""
    config = run.config
    learner, engine, chat = build_learner(config, device, dtype)
    # The starting model is evaluated again after a restart: that is cheaper than to store it.
    start_scores = evaluate_all(config, engine, chat, learner.policy)
    run.start(learner, start_scores)  # loads the newest checkpoint
    while run.should_continue():
        row, trajectories = iterate(learner, engine, chat, run.history)
        eval_scores = None
        if run.evaluation_due(row):
            eval_scores = evaluate_all(config, engine, chat, learner.policy)
        run.add(row, trajectories, eval_scores)
    if run.is_over() and not run.scores:  # an earlier process made the last iteration
        run.scores = evaluate_all(config, engine, chat, learner.policy)
    run.finish()
    parallel.shut_down(engine)


# ---------- one iteration


def iterate(
    learner: Learner, engine: Engine, chat: Chat, history: Sequence[dict]
) -> tuple[dict, list[Trajectory]]:
    """Do one round of rollout and update.

    Args: history: the metrics of earlier iterations.
    Returns: the metrics of this iteration, and its trajectories. A metric that was not measured is
        None. `Run.add` fills in the metrics of an evaluation."""
    config = learner.config

    # -- collect
    rollout_timer = Timer()
    trajectories = collect_rollouts(learner, engine, chat)
    rollout_timer.stop()
    sampled_groups = len(trajectories) // config.group_size
    num_errors = sum(trajectory.status == "error" for trajectory in trajectories)
    error_frac = num_errors / len(trajectories)
    trajectories = without_errors(trajectories, config, config.group_size)

    # -- diagnose, before the update changes the weights; excluded from both timers
    collapse = {}
    if config.collapse_every and learner.step % config.collapse_every == 0:
        rng = np.random.default_rng([config.seed, SEED_COLLAPSE, learner.step, 1])
        collapse = measure_collapse(
            learner.policy, trajectories, chat, config, rng=rng, history=history
        )

    # -- filter: keep the groups whose scores (sums of rewards) vary most
    update_timer = Timer()
    scores = torch.tensor([t.score for t in trajectories], dtype=torch.float64)  # (B,)
    successes = torch.tensor([float(t.success) for t in trajectories])  # (B,)
    groups = select_groups(config, trajectories, scores)  # (<= P,)
    kept = members_of(groups, trajectories, config.group_size)
    if not config.mask_observations:
        kept = [unmask(trajectory, chat.end) for trajectory in kept]

    # -- advantages and update
    num_candidates = min(config.num_groups, len(trajectories) // config.group_size)
    update_metrics = learn(learner, kept, len(groups) / num_candidates)
    learner.step += 1
    update_timer.stop()

    row = {
        **dict.fromkeys(metric_names(config)),  # None: not measured
        "step": learner.step,
        "error_frac": error_frac,
        "kept_groups": len(groups),
        "kept_trajectories": len(kept),
        "bad_steps": learner.bad_steps,
        "sampled_groups": sampled_groups,
        "rollout_s": rollout_timer.wall_s,
        "update_s": update_timer.wall_s,
        "cpu_s": rollout_timer.cpu_s + update_timer.cpu_s,
        "memory_gib": parallel.peak_memory(learner.device),
        **summarize(trajectories),
        **rollout_metrics(scores, successes, config.group_size),
        **update_metrics,
        **collapse,
    }
    return row, trajectories


def collect_rollouts(learner: Learner, engine: Engine, chat: Chat) -> list[Trajectory]:
    """Sample P groups of N trajectories, group after group.

    With dynamic sampling (sampling_rounds > 1), further rounds sample a group for each that has no
    variance, see `methods.num_missing_groups`. All sampled groups are returned."""
    config = learner.config
    rng = np.random.default_rng([config.seed, SEED_MIXTURE, learner.step])
    parallel.sync_weights(engine, learner.policy)
    trajectories = collect_groups(learner, engine, chat, rng, 0, config.num_groups)
    for _ in range(config.sampling_rounds - 1):
        scores = torch.tensor([t.score for t in trajectories], dtype=torch.float64)  # (B,)
        _, std, _ = starpo.group_stats(scores, config.group_size)  # (P,)
        std[groups_with_errors(trajectories, config.group_size)] = 0.0  # they are dropped later
        num_missing = methods.num_missing_groups(std, config.num_groups)
        if num_missing == 0:
            break
        trajectories += collect_groups(learner, engine, chat, rng, len(std), num_missing)
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

    The members of a group start from the same instance. Their transition noise and sampling noise
    differ. In a mixture of environments, each group draws its environment.

    Args: rng: draws the environments; first_group: the number of the first group, for seeds."""
    config = learner.config
    step = learner.step
    starts = []  # (instance seed, member) of each trajectory
    groups = range(first_group, first_group + num_groups)
    for group, member in product(groups, range(config.group_size)):
        starts.append(((config.seed, SEED_INSTANCES, step, group), member))
    mixture = mixture_at(config.env, step)
    env_of_group = rng.choice(list(mixture.keys()), size=num_groups, p=list(mixture.values()))
    return parallel.collect_all(
        engine,
        learner.policy,
        chat,
        config,
        starts,
        envs=np.repeat(env_of_group, config.group_size).tolist(),
        group_size=config.group_size,
        split="train",
        temperature=config.temperature,
        noise_seed=(config.seed, SEED_SAMPLING, step),
    )


def select_groups(config: Config, trajectories: Sequence[Trajectory], scores: Tensor) -> Tensor:
    """Choose the groups to train on with `starpo.filter_groups`.

    Args: scores: (B,), group after group, of all rounds of sampling.
    Returns: indices of groups (<= P,)."""
    size = config.group_size
    mean, std, _ = starpo.group_stats(scores, size)  # (P,) each
    group_tokens = []
    group_logprobs = []
    for start in range(0, len(trajectories), size):
        group = trajectories[start : start + size]
        group_tokens.append(sum(trajectory.num_response_tokens for trajectory in group))
        group_logprobs.append(sum(lp for member in group for lp in member.rollout_logprobs))
    num_tokens = torch.tensor(group_tokens)  # (P,)
    values = {
        "reward_std": std,
        "reward_mean": mean,
        "entropy": -torch.tensor(group_logprobs) / num_tokens,  # estimate from the sampled tokens
        "length": num_tokens / size,
    }
    candidates = methods.candidate_groups(std, config.num_groups)  # (<= P,)
    chosen = starpo.filter_groups(
        values[config.filter_by][candidates].double(),
        std[candidates],
        keep=min(config.filter_keep, len(candidates)),  # errors may leave fewer than filter_keep
        strategy=config.filter_strategy,
        smallest=config.filter_smallest,
        zero_std=config.filter_zero_std,
    )
    groups = candidates[chosen]  # (<= P,)
    note_filter(trajectories, values[config.filter_by], groups, size)
    return groups


def members_of(groups: Tensor, trajectories: Sequence[Trajectory], size: int) -> list[Trajectory]:
    """The trajectories of these groups, group after group."""
    members = []
    for group in groups.tolist():
        members += trajectories[group * size : (group + 1) * size]
    return members


def learn(learner: Learner, kept: Sequence[Trajectory], kept_fraction: float) -> dict[str, float]:
    """Update policy and critic on the kept trajectories. Returns: metrics; {} if none was kept."""
    iteration = learner.step + 1
    if not kept:
        tqdm.write(
            f"iteration {iteration}: the filter kept no group, because the scores in each group "
            "are equal; update skipped"
        )
        return {}
    targets = compute_targets(learner, kept, kept_fraction)
    note_credit(kept, targets.advantages, targets.old_values)
    trained, targets = without_void_turns(kept, targets, learner.config)
    if not trained:
        tqdm.write(f"iteration {iteration}: each kept trajectory has a void turn; update skipped")
        return {}
    metrics = update(learner, trained, targets)
    if not learner.config.engine_gives_logprobs():
        return {**metrics, "logprob_diff_mean": None, "logprob_diff_max": None}
    difference = metrics["logprob_diff_mean"]
    dtypes = (learner.dtype, dtype_of_engine(learner.config, learner.device))
    if difference > max(MAX_LOGPROB_DIFF[dtype] for dtype in dtypes):
        tqdm.write(
            f"warning: the log-probs of engine and trainer differ by {difference:.4f} nats a token"
        )
    return metrics


# ---------- advantages


def compute_targets(
    learner: Learner, kept: Sequence[Trajectory], kept_fraction: float = 1.0
) -> Targets:
    """Compute log-probs, values and advantages before the update.

    Args: kept: the members of whole groups; kept_fraction: the fraction of the trajectories that
        the filter kept, for filter_loss_scale."""
    config = learner.config
    sequences = split_by_context(kept, config)  # their response tokens have the order of `kept`
    rollout_logprobs, old_logprobs = logprobs_before_update(learner, sequences)  # (R,) each
    turn_ids = number_tokens(tokens_per_turn(kept)).to(learner.device)  # (R,)
    sequence_ids = number_tokens([sequence.num_response_tokens for sequence in sequences])  # (R,)
    ref_logprobs = None
    if learner.ref:  # kl_coef > 0
        ref_logprobs, _ = parallel.score_tokens(
            learner.ref, sequences, config, config.temperature
        )  # (R,)
    old_values = None
    if learner.critic:  # of one of CRITIC_ESTIMATORS
        (token_values,) = parallel.score_tokens(learner.critic, sequences, config)  # (R,)
        old_values = methods.share_values(token_values, turn_ids, config.estimator)  # (R,)

    rewards = token_rewards(learner, kept, old_logprobs, ref_logprobs)  # (R,)
    advantages, returns = methods.compute_advantages(
        rewards,
        old_values,
        tokens_per_turn(kept),
        [len(trajectory.turns) for trajectory in kept],
        groups_of(kept, config),
        [turn.state for trajectory in kept for turn in trajectory.turns],
        estimator=config.estimator,
        state_weight=config.state_weight,
        turn_level=config.turn_level,
        gamma=config.gamma,
        lam=config.lam,
        turn_gamma=config.turn_gamma,
        turn_lam=config.turn_lam,
    )
    scales = {"none": 1.0, "linear": kept_fraction, "sqrt": kept_fraction**0.5}
    return Targets(
        advantages=advantages.float() * scales[config.filter_loss_scale],
        old_logprobs=old_logprobs,
        rollout_logprobs=rollout_logprobs,
        turn_ids=turn_ids,
        sequence_ids=turn_ids if config.sequence == "turn" else sequence_ids.to(learner.device),
        ref_logprobs=ref_logprobs,
        old_values=old_values,
        returns=returns,
    )


def logprobs_before_update(
    learner: Learner, sequences: Sequence[Trajectory]
) -> tuple[Tensor, Tensor]:
    """The rollout log-probs and the old log-probs of the response tokens, (R,) each, nats.

    The rollout log-probs come from the engine. By default the old log-probs are the same, which
    saves a forward pass. `starpo.importance_weights` corrects the engine/trainer mismatch."""
    config = learner.config
    sampled = torch.tensor(
        [logprob for sequence in sequences for logprob in sequence.rollout_logprobs],
        device=learner.device,
    )  # (R,)
    if not trainer_scores_rollouts(config):
        return sampled, sampled
    old, _ = parallel.score_tokens(learner.policy, sequences, config, config.temperature)  # (R,)
    return torch.where(sampled.isnan(), old, sampled), old  # NaN: not sampled by the engine


# ---------- update


def update(learner: Learner, kept: Sequence[Trajectory], targets: Targets) -> dict[str, float]:
    """Take an optimizer step on each mini-batch.

    Returns: metrics, means over the response tokens of all steps. Gradient norms are means over
        steps. logprob_diff_* are from the first step, because engine and trainer have the same
        weights only in its forward pass."""
    config = learner.config
    rates = learner.schedule_learning_rates()
    lengths = [trajectory.num_response_tokens for trajectory in kept]
    max_trajectory_tokens = config.max_turns * config.max_response_tokens
    samples_of = train_samples(kept, targets, config)
    steps = []  # metrics of each optimizer step
    num_tokens = 0  # response tokens of all steps
    for mini_batch in mini_batches(config, learner.step, len(kept)):
        samples = [sample for i in mini_batch for sample in samples_of[i]]
        mini_lengths = [lengths[i] for i in mini_batch]
        mini_tokens = sum(mini_lengths)
        weights = starpo.token_weights(mini_lengths, config.aggregation, max_trajectory_tokens)
        sums = backward(learner, samples, weights.to(learner.device), mini_tokens)
        norms = optimizer_step(learner, sums)
        values = {key: value.item() for key, value in sums.items()}
        values["logprob_diff_mean"] /= mini_tokens
        steps.append({**values, **norms})
        num_tokens += mini_tokens

    means = {}
    for key in steps[0]:
        if key.startswith("logprob_diff"):
            means[key] = steps[0][key]
        elif key.startswith("grad_norm"):
            means[key] = sum(step[key] for step in steps) / len(steps)
        else:
            means[key] = sum(step[key] for step in steps) / num_tokens
    if learner.critic:
        means["explained_variance"] = explained_variance(targets.old_values, targets.returns)
    return {**means, **rates}


def train_samples(
    kept: Sequence[Trajectory], targets: Targets, config: Config
) -> list[list[TrainSample]]:
    """The training samples of each kept trajectory."""
    lengths = [sequence.num_response_tokens for sequence in split_by_context(kept, config)]
    parts = iter(targets.split(lengths))
    samples_of = []
    for trajectory in kept:
        samples = []
        for sequence in split_by_context([trajectory], config):
            samples.append(TrainSample(sequence, next(parts)))
        samples_of.append(samples)
    return samples_of


def mini_batches(config: Config, step: int, num_kept: int) -> Iterator[np.ndarray]:
    """Shuffle the kept trajectories in each epoch and cut them into mini-batches of batch_size.

    Yields: their indices. The last mini-batch of an epoch may be smaller."""
    for epoch in range(config.num_epochs):
        rng = np.random.default_rng([config.seed, SEED_SHUFFLE, step, epoch])
        order = rng.permutation(num_kept)
        for start in range(0, num_kept, config.batch_size):
            yield order[start : start + config.batch_size]


def backward(
    learner: Learner, samples: Sequence[TrainSample], weights: Tensor, num_tokens: int
) -> dict[str, Tensor]:
    """Accumulate the gradients of one mini-batch, which is split over ranks and micro-batches.

    Every loss is divided by the tokens of the whole mini-batch, so the split does not change the
    gradients.

    Args: weights: (R,) from `starpo.token_weights`; num_tokens: R, the response tokens of the
        mini-batch. Returns: metrics, sums over the R tokens; logprob_diff_max is a maximum."""
    config = learner.config
    weights_of = weights.split([sample.sequence.num_response_tokens for sample in samples])
    sequences = [sample.sequence for sample in samples]
    num_observations = sum(sum(sequence.observation_mask) for sequence in sequences)
    micro_batches = parallel.local_micro_batches(sequences, config.micro_batch_tokens)
    sums: dict[str, Tensor] = {}
    largest_diff = torch.zeros((), device=learner.device)
    for number, (indices, batch_weight) in enumerate(micro_batches):
        # Ranks reduce their gradients once, in the last micro-batch.
        is_last = number == len(micro_batches) - 1
        for module in learner.modules.values():
            module.set_requires_gradient_sync(is_last or parallel.world_size() == 1)
        batch = pack(
            [sequences[i] for i in indices],
            learner.device,
            observations=config.observation_coef > 0,
        )
        targets = Targets.join([samples[i].targets for i in indices])
        token_weights = torch.cat([weights_of[i] for i in indices])  # (R,)
        # FSDP2 averages gradients over the ranks, and their sum is needed. A micro-batch that only
        # fills up the number of micro-batches of this rank has batch_weight 0.
        scale = batch_weight * parallel.world_size() * learner.loss_scale
        loss, metrics = policy_loss(
            learner, batch, targets, token_weights, num_tokens, num_observations
        )
        (loss * scale).backward()
        if learner.critic:
            # After the policy's backward, so that the activations of only one model are alive.
            loss, value_metrics = critic_loss(learner, batch, targets, token_weights, num_tokens)
            (loss * scale).backward()
            metrics.update(value_metrics)
        largest_diff = torch.maximum(largest_diff, metrics.pop("logprob_diff_max"))
        for key, value in metrics.items():
            sums[key] = sums.get(key, 0.0) + value * batch_weight
    if parallel.world_size() > 1:
        parallel.all_reduce_sum(*sums.values())
        dist.all_reduce(largest_diff, dist.ReduceOp.MAX)
    return {**sums, "logprob_diff_max": largest_diff}


def policy_loss(
    learner: Learner,
    batch: PackedBatch,
    targets: Targets,
    weights: Tensor,
    num_tokens: int,
    num_observations: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped policy loss with entropy bonus and KL, and the cross-entropy on observations.

    Args: batch: one micro-batch with R response tokens; weights: (R,) from `starpo.token_weights`;
        num_tokens, num_observations: the response tokens and the tokens of observations in the
        whole mini-batch, the denominators of the losses.
    Returns: loss; metrics, sums over the R tokens."""
    config = learner.config
    # R response tokens, then O tokens of observations; O is 0 without ECHO
    scored, entropy = learner.policy(batch, config.temperature)  # (R + O,), (R + O,)
    num_response_tokens = len(targets.advantages)
    logprobs = scored[:num_response_tokens]  # (R,)
    entropy = entropy[:num_response_tokens]  # (R,)
    region = methods.trust_region(
        config,
        logprobs,
        targets.old_logprobs,
        targets.rollout_logprobs,
        targets.advantages,
        targets.sequence_ids,
    )
    loss, metrics = starpo.policy_loss(
        logprobs,
        targets.old_logprobs,
        targets.advantages,
        num_tokens=num_tokens,
        weights=region.weights * weights,
        clip_low=region.clip_low,
        clip_high=region.clip_high,
        dual_clip=config.dual_clip,
        log_ratio=region.log_ratio,
    )
    metrics["masked_frac"] = (region.weights == 0).sum().to(loss.dtype)
    difference = (logprobs.detach() - targets.rollout_logprobs).abs()  # (R,)
    metrics["pg_loss"] = loss.detach() * num_tokens
    metrics["entropy"] = entropy.detach().sum()
    metrics["logprob_diff_mean"] = difference.sum()
    metrics["logprob_diff_max"] = difference.max()
    loss = loss - config.entropy_coef * (entropy * weights).sum() / num_tokens
    observation_loss, observation_metrics = methods.echo_loss(
        scored[num_response_tokens:], config.observation_coef, num_observations, num_tokens
    )
    loss = loss + observation_loss
    metrics.update(observation_metrics)
    if learner.ref:
        kl = starpo.kl_penalty(logprobs, targets.ref_logprobs, config.kl_estimator)  # (R,)
        metrics["kl_ref"] = kl.detach().sum()
        if config.kl_in == "loss":
            loss = loss + config.kl_coef * (kl * weights).sum() / num_tokens
    return loss, metrics


def critic_loss(
    learner: Learner, batch: PackedBatch, targets: Targets, weights: Tensor, num_tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped value loss times value_coef. Args and returns are those of `policy_loss`."""
    config = learner.config
    token_values = learner.critic(batch)  # (R,)
    values = methods.share_values(token_values, targets.turn_ids, config.estimator)  # (R,)
    loss, metrics = starpo.value_loss(
        values,
        targets.old_values,
        targets.returns,
        value_clip=config.value_clip,
        num_tokens=num_tokens,
        weights=weights,
    )
    metrics["vf_loss"] = loss.detach() * num_tokens
    return config.value_coef * loss, metrics


def optimizer_step(learner: Learner, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Clip the gradients and step the optimizers of policy and critic.

    A non-finite gradient norm or metric skips the step.

    Returns: gradient norms before clipping.
    Raises: UserError after max_bad_steps skipped steps in a row."""
    norms = learner.clip_gradients()
    loss_is_finite = all(torch.isfinite(value).all() for value in metrics.values())
    gradient_is_finite = all(torch.isfinite(norm) for norm in norms.values())
    finite = loss_is_finite and gradient_is_finite
    if finite:
        learner.bad_steps = 0
    else:
        learner.count_skipped_step(loss_is_finite)
    for optimizer in learner.optimizers.values():
        if finite:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.policy.bump_version()
    names = {"policy": "grad_norm", "critic": "grad_norm_critic"}
    return {names[name]: norm.item() for name, norm in norms.items()}


if __name__ == "__main__":
    run_main(main)
