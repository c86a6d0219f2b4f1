"""StarPO: multi-turn reinforcement learning of a language-model agent, whole trajectories as the unit.

One iteration: play P groups of N trajectories, keep the groups whose outcomes vary most, turn rewards into advantages,
take clipped policy-gradient steps. How this differs from the paper (arXiv 2504.20073): see starpo.py.

    torchrun train.py config/frozenlake_ppo.py                                 # Qwen2.5-0.5B-Instruct, on a GPU
    torchrun --standalone --nproc_per_node=8 train.py config/frozenlake_ppo.py     # on eight
    torchrun --standalone train.py config/frozenlake_ppo.py config/tiny.py     # the same on a laptop CPU
    python train.py config/sokoban_grpo.py config/tiny.py --seed=1 --clip_high=0.2

A run continues from its newest checkpoint when it is started again with the same out_dir; with other settings it is
refused, unless --take_config=True says that they are meant. SIGTERM, SIGUSR1 and Ctrl-C end it after the iteration
under way, with exit code 75 (docs/reliability.md).
"""

from configurator import Config, UserError, describe, load_config, run_main

import copy
import errno
import json
import math
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

import parallel
import starpo
from engine import check_installed, make_engine
from envs import mixture_at
from eval import (
    evaluate_all,
    progress,
    reference_rows,
    scored_envs,
    table,
    trajectory_record,
    write_jsonl,
)
from model import Critic, Policy, add_lora, compile_blocks, load_model
from rollout import (
    Chat,
    Trajectory,
    make_episode,
    pack,
    split_by_context,
    summarize,
    unmask,
    without_errors,
)
from support import checkpoint
from support.checkpoint import Interruption, Saver, locked, states_of, trained
from support.collapse import KEYS, measure, regime, stop_reason, warnings_of
from support.log import METRICS_OF_UPDATE, Log, write_rows
from support.run_folder import check_out_dir, read_rows, save_config, write_whole

# purposes of the random streams
SEED_INSTANCES, SEED_SAMPLING, SEED_SHUFFLE, SEED_MIXTURE, SEED_COLLAPSE = 31, 32, 33, 34, 35
MAX_LOGPROB_DIFF = {
    torch.float32: 1e-3,
    torch.bfloat16: 0.05,
}  # warn where engine and trainer differ more, nats, mean over tokens
NEXT = """
next, for instance:
  python view.py {run}    # every turn of its trajectories, in a browser; --panel: the curves that warn of a collapse
  python eval.py {run}{env} --samples=4    # pass@k on the fixed prompts
  tensorboard --logdir {runs}"""
EVAL_KEYS = ("success", "reward", "valid_frac", "entropy", "response_length")


# ---------- set-up


class Learner:
    """Everything that training changes, and the frozen reference where KL is on. Sharded over the ranks by FSDP2."""

    def __init__(
        self,
        config: Config,
        model,
        tokenizer,
        device: torch.device,
        dtype: torch.dtype,
        ref_model=None,
    ):
        self.config, self.tokenizer, self.device, self.dtype = config, tokenizer, device, dtype
        if config.lora_rank:
            add_lora(model, config.lora_rank, config.seed)  # the critic gets a copy
        critic = (
            Critic(copy.deepcopy(model.model)).to(device) if "gae" in config.estimator else None
        )
        self.mesh = parallel.make_mesh(device)
        self.policy = self._shard(Policy(model), model.model)
        self.critic = self._shard(critic, critic.backbone) if critic else None
        self.ref = (
            self._shard(Policy(ref_model).requires_grad_(False), ref_model.model)
            if ref_model
            else None
        )
        self.modules = {"policy": self.policy} | ({"critic": self.critic} if self.critic else {})
        rates = {"policy": config.learning_rate, "critic": config.critic_lr}
        options = dict(
            betas=(config.adam_beta1, config.adam_beta2), weight_decay=config.weight_decay
        )
        adam = partial(torch.optim.AdamW, fused=device.type == "cuda", **options)
        self.optimizers = {
            name: adam(trained(module).values(), rates[name])
            for name, module in self.modules.items()
        }
        self.step = self.bad_steps = 0

    def _shard(self, module, backbone):
        if self.config.compile:
            compile_blocks(backbone.layers)
        return parallel.shard(module, backbone.layers, self.mesh, self.dtype)

    def save(self, saver: Saver) -> None:
        """Have a checkpoint written, see checkpoint.py."""
        saver.save(
            states_of(self.modules, self.optimizers),
            {"step": self.step, "bad_steps": self.bad_steps},
        )

    def load(self, folder: Path) -> None:
        """Continue from `save`."""
        counts = checkpoint.load(folder, self.modules, self.optimizers)
        self.step, self.bad_steps = counts["step"], counts["bad_steps"]
        self.policy.bump_version()
        print(f"continuing {folder.parent} from iteration {self.step}", flush=True)


# ---------- one iteration


def collect_rollouts(learner: Learner, engine, chat: Chat) -> list[Trajectory]:
    """P groups of N trajectories: members share the instance, and differ in transition and sampling noise. Where the
    config mixes environments, each group draws its own."""
    config = learner.config
    places = product(range(config.num_groups), range(config.group_size))
    starts = [
        ((config.seed, SEED_INSTANCES, learner.step, group), member) for group, member in places
    ]
    specs, weights = zip(*mixture_at(config.env, learner.step).items(), strict=True)
    rng = np.random.default_rng([config.seed, SEED_MIXTURE, learner.step])
    envs = np.repeat(
        rng.choice(specs, size=config.num_groups, p=weights), config.group_size
    ).tolist()
    parallel.synchronize(engine, learner.policy)
    options = dict(
        split="train",
        temperature=config.temperature,
        noise_seed=(config.seed, SEED_SAMPLING, learner.step),
    )
    options |= dict(envs=envs, group_size=config.group_size)
    return parallel.collect_all(engine, learner.policy, chat, config, starts, **options)


def select_groups(config: Config, trajectories: Sequence[Trajectory], scores: Tensor) -> Tensor:
    """Indices of the groups that the filter keeps, (<= P,); see `starpo.filter_groups`."""
    size = config.group_size
    mean, std, _ = starpo.group_stats(scores, size)  # (P,) each
    groups = [trajectories[i : i + size] for i in range(0, len(trajectories), size)]
    tokens = torch.tensor([sum(t.num_response_tokens for t in group) for group in groups])
    surprise = torch.tensor(
        [-sum(lp for t in group for lp in t.rollout_logprobs) for group in groups]
    )
    values = {
        "reward_std": std,
        "reward_mean": mean,
        "entropy": surprise / tokens,
        "length": tokens / size,
    }
    options = dict(
        strategy=config.filter_strategy,
        smallest=config.filter_smallest,
        zero_std=config.filter_zero_std,
    )
    keep = min(config.filter_keep, len(groups))  # a count may be more than are left
    return starpo.filter_groups(values[config.filter_by].double(), std, keep=keep, **options)


def token_targets(
    learner: Learner, kept: Sequence[Trajectory], share: float = 1.0
) -> dict[str, Tensor]:
    """Advantages and what else the losses need, per response token of the kept trajectories, each (R,).

    old_logprobs are the engine's, which saves a forward; the trainer's with recompute_old_logprobs, KL in the reward or
    text that nobody sampled (see `starpo.importance_weights` for where they differ).
    Args: share: of all groups, the kept ones'."""
    config, scored = learner.config, split_by_context(kept, learner.config)
    sampled = torch.tensor(
        [lp for t in kept for lp in t.rollout_logprobs], device=learner.device
    )  # (R,)
    targets = {"rollout_logprobs": sampled, "old_logprobs": sampled}
    exact = (
        learner.ref and config.kl_in == "reward"
    )  # or differences to the engine's, whitened, would pass for KL
    if config.recompute_old_logprobs or not config.mask_observations or exact:
        old = parallel.score_tokens(learner.policy, scored, config, config.temperature)[0]
        targets = {
            "rollout_logprobs": torch.where(sampled.isnan(), old, sampled),
            "old_logprobs": old,
        }
    if learner.ref:
        targets["ref_logprobs"] = parallel.score_tokens(
            learner.ref, scored, config, config.temperature
        )[0]
    if learner.critic:
        targets["old_values"] = parallel.score_tokens(learner.critic, scored, config)[0]

    turns, turn_lengths = (
        [len(t.turns) for t in kept],
        [len(turn.response_ids) for t in kept for turn in t.turns],
    )
    groups = torch.arange(len(kept)) // config.group_size  # kept ones are whole groups
    rewards = torch.tensor(
        [turn.reward for t in kept for turn in t.turns], dtype=torch.float64
    )  # (K,)
    if config.reward_norm != "none":
        names = [t.env for t in kept]
        owners = {
            "group": groups,
            "batch": groups * 0,
            "env": torch.tensor([names.index(name) for name in names]),
        }
        rewards = starpo.normalize_rewards(
            rewards, turns, owners[config.reward_norm_over], config.reward_norm
        )
    per_token = torch.zeros(sum(turn_lengths), dtype=torch.float64)
    per_token[torch.tensor(turn_lengths).cumsum(0) - 1] = rewards
    if learner.ref and config.kl_in == "reward":
        kl = starpo.kl_penalty(
            targets["old_logprobs"], targets["ref_logprobs"], config.kl_estimator
        )  # (R,)
        per_token -= config.kl_coef * kl.cpu()
    per_token, values = per_token.to(learner.device), targets.get("old_values")
    advantages, returns = starpo.advantages(
        per_token,
        values,
        turn_lengths,
        turns,
        groups,
        estimator=config.estimator,
        turn_level=config.turn_level,
        gamma=config.gamma,
        lam=config.lam,
        turn_gamma=config.turn_gamma,
        turn_lam=config.turn_lam,
    )
    scale = {"none": 1.0, "linear": share, "sqrt": share**0.5}[config.filter_loss_scale]
    targets["advantages"] = advantages.float() * scale
    return targets | ({} if returns is None else {"returns": returns})


def losses(
    learner: Learner, batch, t: dict[str, Tensor], num_tokens: int
) -> Iterator[tuple[Tensor, dict]]:
    """The policy's loss, then the critic's: whoever goes backward in between holds the activations of one model only.

    Losses are already divided by the `num_tokens` of the mini-batch; metrics are sums over tokens."""
    config = learner.config
    logprobs, entropy = learner.policy(batch, config.temperature)  # (R,)
    importance = starpo.importance_weights(
        logprobs, t["old_logprobs"], t["rollout_logprobs"], config.importance_cap
    )
    options = dict(clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip)
    loss, metrics = starpo.policy_loss(
        logprobs,
        t["old_logprobs"],
        t["advantages"],
        num_tokens=num_tokens,
        weights=importance * t["weights"],
        **options,
    )
    difference = (logprobs.detach() - t["rollout_logprobs"]).abs()  # (R,)
    metrics |= {"pg_loss": loss.detach() * num_tokens, "entropy": entropy.detach().sum()}
    metrics |= {"logprob_diff_mean": difference.sum(), "logprob_diff_max": difference.max()}
    loss = loss - config.entropy_coef * (entropy * t["weights"]).sum() / num_tokens
    if learner.ref:
        kl = starpo.kl_penalty(logprobs, t["ref_logprobs"], config.kl_estimator)  # (R,)
        if config.kl_in == "loss":
            loss = loss + config.kl_coef * (kl * t["weights"]).sum() / num_tokens
        metrics["kl_ref"] = kl.detach().sum()
    yield loss, metrics
    if learner.critic:
        values = learner.critic(batch)  # (R,)
        options = dict(value_clip=config.value_clip, num_tokens=num_tokens)
        loss, metrics = starpo.value_loss(values, t["old_values"], t["returns"], **options)
        yield config.value_coef * loss, metrics | {"vf_loss": loss.detach() * num_tokens}


def optimizer_step(learner: Learner, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Clip and step policy and critic; a non-finite gradient or loss skips the step and is counted."""
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=learner.config.grad_clip)
    norms = {
        name: parallel.full_tensor(clip(module.parameters()))
        for name, module in learner.modules.items()
    }
    finite = all(torch.isfinite(x).all() for x in (*norms.values(), *metrics.values()))
    learner.bad_steps = 0 if finite else learner.bad_steps + 1
    if not finite:
        tqdm.write(
            f"iteration {learner.step + 1}: the loss or the gradient is not finite; optimizer step skipped"
        )
    if learner.bad_steps >= learner.config.max_bad_steps:
        steps = f"{learner.bad_steps} optimizer steps in a row (iteration {learner.step + 1})"
        raise UserError(
            f"the loss or the gradient was not finite in {steps}; lower learning_rate or critic_lr, with "
            "another --out_dir."
        )
    for optimizer in learner.optimizers.values():
        if finite:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.policy.bump_version()
    return {
        f"grad_norm_{name}" if name != "policy" else "grad_norm": norm.item()
        for name, norm in norms.items()
    }


def backward(
    learner: Learner, kept: Sequence[Trajectory], pieces: dict[str, Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Gradients of one mini-batch: this rank's micro-batches, one denominator for those of all ranks.

    Args: pieces: the targets of each sequence. Returns: metrics, sums over the tokens of all ranks but the largest
    log-prob difference."""
    config, num_tokens = learner.config, sum(t.num_response_tokens for t in kept)
    work, sums, largest = (
        parallel.local_micro_batches(kept, config.micro_batch_tokens),
        {},
        torch.zeros((), device=learner.device),
    )
    for number, (indices, weight) in enumerate(work):
        for (
            module
        ) in learner.modules.values():  # ranks add up their gradients once, in the last micro-batch
            module.set_requires_gradient_sync(number == len(work) - 1 or parallel.world_size() == 1)
        part = {key: torch.cat([piece[i] for i in indices]) for key, piece in pieces.items()}
        batch = pack(
            [kept[i] for i in indices],
            learner.device,
            pad_to=config.compile * config.micro_batch_tokens,
        )
        metrics: dict[str, Tensor] = {}
        for loss, of_module in losses(learner, batch, part, num_tokens):
            (
                loss * weight * parallel.world_size()
            ).backward()  # FSDP2 divides by the number of ranks
            metrics |= of_module
        largest = torch.maximum(largest, metrics.pop("logprob_diff_max"))
        sums = {key: sums.get(key, 0.0) + value * weight for key, value in metrics.items()}
    if parallel.world_size() > 1:
        parallel.all_reduce_sum(*sums.values())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return sums | {"logprob_diff_max": largest}


def update(
    learner: Learner, kept: Sequence[Trajectory], targets: dict[str, Tensor]
) -> dict[str, float]:
    """Shuffled mini-batches of `batch_size` trajectories, micro-batches by tokens, one denominator per mini-batch.

    Returns: means over the response tokens of all steps; gradient norms are means over steps, differences between the
    log-probs of engine and trainer those of the first step, before which no weight has changed."""
    config, lengths = learner.config, [t.num_response_tokens for t in kept]
    pieces = {key: value.split(lengths) for key, value in targets.items()}
    sums, norms, tokens, drift = {}, [], 0, {}
    most = config.max_turns * config.max_response_tokens
    for epoch in range(config.num_epochs):
        order = np.random.default_rng([config.seed, SEED_SHUFFLE, learner.step, epoch]).permutation(
            len(kept)
        )
        for mini in np.array_split(order, range(config.batch_size, len(order), config.batch_size)):
            parts, counts = (
                split_by_context([kept[i] for i in mini], config),
                [lengths[i] for i in mini],
            )
            batch = {key: torch.cat([piece[i] for i in mini]) for key, piece in pieces.items()}
            batch["weights"] = starpo.token_weights(counts, config.aggregation, most).to(
                learner.device
            )
            split = {
                key: value.split([t.num_response_tokens for t in parts])
                for key, value in batch.items()
            }
            metrics, num_tokens = backward(learner, parts, split), sum(counts)
            norms.append(optimizer_step(learner, metrics))
            metrics = {key: value.item() for key, value in metrics.items()}
            mean, largest = (
                metrics.pop("logprob_diff_mean") / num_tokens,
                metrics.pop("logprob_diff_max"),
            )
            drift = drift or {"logprob_diff_mean": mean, "logprob_diff_max": largest}
            tokens += num_tokens
            sums = {key: sums.get(key, 0.0) + value for key, value in metrics.items()}
    means = {key: value / tokens for key, value in sums.items()} | drift
    means |= {key: sum(norm[key] for norm in norms) / len(norms) for key in norms[0]}
    if learner.critic:
        means["explained_variance"] = starpo.explained_variance(
            targets["old_values"], targets["returns"]
        )
    return means


# ---------- the run


PRINTED = {  # key: width and digits
    "reward": "5.2",
    "success": "4.2",
    "in_group_reward_std": "4.2",
    "kept_groups": "3.0",
    "entropy": "5.3",
    "grad_norm": "5.2",
    "response_length": "3.0",
    "rollout_s": "5.2",
    "update_s": "5.2",
    "cpu_s": "5.2",
    "eval_success": "5.3",
}


def describe_step(row: dict, total: int, left_s: float) -> str:
    """The printed line of an iteration, with the time that is left until the last one."""
    parts = [
        f"{key} {math.nan if row[key] is None else row[key]:{form}f}"
        for key, form in PRINTED.items()
    ]
    parts += filter(None, (row["regime"], left_s > 0 and f"{left_s / 60:.0f} min left"))
    return f"{row['step']:4d}/{total} {' | '.join(parts).replace('nan', '  -')}"


def write_trajectories(
    path: Path, step: int, trajectories: Sequence[Trajectory], config: Config, tokenizer
) -> None:
    """Append `num_samples` trajectories, members of as few groups as possible; view.py shows them."""
    with path.open("a", encoding="utf-8") as file:
        for i, trajectory in enumerate(trajectories[: config.num_samples]):
            row = {"step": step, "group": i // config.group_size} | trajectory_record(
                trajectory, tokenizer
            )
            file.write(json.dumps(row) + "\n")


def stopped(config: Config, history: Sequence[dict]) -> str | None:
    """Why the run ends early, if it does."""
    return stop_reason(history) if config.early_stop else None


def eval_metrics(config: Config, results: dict[str, tuple] | None) -> dict[str, float | None]:
    """eval_* of the first environment that is scored, and eval_success/NAME of the others; None without results."""
    first, *others = scored_envs(config)
    metrics = (
        {env: results[env][0] for env in results}
        if results
        else defaultdict(lambda: defaultdict(lambda: None))
    )
    row = {f"eval_{key}": metrics[first][key] for key in EVAL_KEYS}
    return row | {f"eval_success/{env}": metrics[env]["success"] for env in others}


def finish(learner: Learner, stages: dict[str, dict[str, tuple]]) -> None:
    """Export the policy; write the evaluation tables with the reference players, one for each environment."""
    config, out_dir, texts, successes = learner.config, Path(learner.config.out_dir), [], {}
    checkpoint.export(out_dir / "policy", learner.policy, learner.tokenizer)
    if parallel.rank():
        return
    write_jsonl(out_dir / "eval_final.jsonl", stages["after RL"], learner.tokenizer)
    for env in stages["start"]:
        players = reference_rows(replace(config, env=env))
        rows = {name: (summarize(played), played) for name, played in players.items()}
        rows |= {stage: results[env] for stage, results in stages.items()}
        head = f"{env}: {config.eval_size} fixed prompts ({config.eval_split}), T={config.eval_temperature}"
        texts.append(f"{head}\n{table(rows)}\n")
        successes[env] = {
            name: [int(t.success) for t in played] for name, (_, played) in rows.items()
        }
    text = "\n".join(texts)
    write_whole(out_dir / "scores.json", json.dumps(successes) + "\n")
    write_whole(out_dir / "scores.md", text)  # the last: with it the run is over
    print(f"\n{text}")
    files = ", ".join(sorted(p.name for p in out_dir.iterdir() if p.name != "lock"))
    print(f"wrote {out_dir}/: {files}; policy and best are Hugging Face folders")
    print(next_steps_hint(config))


def next_steps_hint(config: Config) -> str:
    """Commands to go on with. eval.py wants to be told which file of code it may run."""
    key = "eval_env" if config.eval_env else "env"
    env = f" --{key}={shlex.quote(getattr(config, key))}" if ".py" in getattr(config, key) else ""
    return NEXT.format(run=config.out_dir, runs=Path(config.out_dir).parent, env=env)


def set_up(
    config: Config, device: torch.device, dtype: torch.dtype
) -> tuple[Learner, object, Chat]:
    """The learner before its first iteration, its engine, and the chat format of its tokenizer."""
    model, tokenizer = load_model(config.model, device=device)
    ref_model = load_model(config.model, device=device)[0] if config.kl_coef else None
    chat = Chat(tokenizer)
    engine = make_engine(config, model, chat)  # before FSDP2 takes the model apart
    learner = Learner(config, model, tokenizer, device, dtype, ref_model)
    if parallel.world_size() > 1:
        sizes = zip(learner.mesh.mesh_dim_names, learner.mesh.shape, strict=True)
        print(
            f"{parallel.world_size()} ranks as {', '.join(f'{name}={size}' for name, size in sizes)}",
            flush=True,
        )
    for name, module in learner.modules.items():
        counts = (
            sum(p.numel() for p in group)
            for group in (trained(module).values(), module.parameters())
        )
        print("{}: {:,} of {:,} parameters are trained".format(name, *counts), flush=True)
    return learner, engine, chat


def iterate(
    learner: Learner, engine, chat: Chat, history: Sequence[dict]
) -> tuple[dict, list[Trajectory]]:
    """One round of rollout and update. Returns: its metrics, those of an evaluation None, and what was played."""
    config, clock, cpu = learner.config, time.perf_counter(), time.process_time()

    # -- collect
    trajectories = collect_rollouts(learner, engine, chat)
    rollout_s, rollout_cpu_s = time.perf_counter() - clock, time.process_time() - cpu
    error_frac = sum(t.status == "error" for t in trajectories) / len(trajectories)
    trajectories = without_errors(trajectories, config, config.group_size)
    collapse = dict.fromkeys(KEYS)
    if (
        config.collapse_every and learner.step % config.collapse_every == 0
    ):  # with the weights that sampled
        rng = np.random.default_rng([config.seed, SEED_COLLAPSE, learner.step, 1])
        collapse = measure(learner.policy, trajectories, chat, config, rng=rng, history=history)
    clock, cpu = (
        time.perf_counter(),
        time.process_time() - rollout_cpu_s,
    )  # which is measured is in neither

    # -- filter: the groups whose raw scores vary most
    scores = torch.tensor([t.score for t in trajectories], dtype=torch.float64)
    successes = torch.tensor([float(t.success) for t in trajectories])
    groups = select_groups(config, trajectories, scores)
    members = (groups[:, None] * config.group_size + torch.arange(config.group_size)).flatten()
    kept = [
        trajectories[i] if config.mask_observations else unmask(trajectories[i], chat.end)
        for i in members
    ]

    # -- advantages and update; a filter that keeps nothing leaves nothing to learn from
    step_metrics = dict.fromkeys(METRICS_OF_UPDATE.split())
    if kept:
        step_metrics |= update(
            learner, kept, token_targets(learner, kept, len(kept) / len(trajectories))
        )
        if (drift := step_metrics["logprob_diff_mean"]) > MAX_LOGPROB_DIFF[learner.dtype]:
            tqdm.write(
                f"warning: the log-probs of engine and trainer differ by {drift:.4f} nats a token"
            )
    else:
        tqdm.write(
            f"iteration {learner.step + 1}: scores differ in no group that the filter picks; update skipped"
        )
    learner.step += 1
    row = {
        "step": learner.step,
        "error_frac": error_frac,
        "kept_groups": len(groups),
        "kept_trajectories": len(kept),
    }
    row |= summarize(trajectories) | starpo.rollout_metrics(scores, successes, config.group_size)
    row |= step_metrics | collapse | {"bad_steps": learner.bad_steps, "rollout_s": rollout_s}
    row |= {"memory_gib": parallel.peak_memory(learner.device)} | eval_metrics(config, None)
    return row | {
        "update_s": time.perf_counter() - clock,
        "cpu_s": time.process_time() - cpu,
    }, trajectories


def main(argv: list[str]) -> None:
    config, options, sources = load_config(argv, extra={"take_config": False})
    machine = parallel.set_up(config)
    check_installed(config)
    for env in (*mixture_at(config.env, 0), *scored_envs(config)):
        make_episode(config, env)  # what is wrong with it is said before the long part
    check_out_dir(config, take=options["take_config"])
    out_dir, keep = Path(config.out_dir), config.keep_checkpoints
    with (
        locked(out_dir),
        Saver(out_dir, keep) as saver,
        Interruption(config.grace_s) as interruption,
    ):
        try:
            interrupted = run(config, sources, machine, saver, interruption)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            advice = "what was saved before is whole: make room, and start again to go on from it"
            raise UserError(f"{out_dir} could not be written ({error}); {advice}") from error
        if interrupted:
            sys.exit(checkpoint.EXIT_INTERRUPTED)


def is_finished(config: Config, history: Sequence[dict]) -> bool:
    """Whether nothing is left to do in out_dir; then the report is shown."""
    report, reason = Path(config.out_dir, "scores.md"), stopped(config, history)
    if not (report.is_file() and (reason or len(history) >= config.num_iterations)):
        return False
    more = ["--num_iterations=N"] * (len(history) >= config.num_iterations)
    more += ["--early_stop=False --take_config=True"] * bool(reason)
    ended = f"finished at iteration {len(history)}{f', because {reason}' if reason else ''}"
    hint = f"To start a new run, give --seed=N or --out_dir=PATH; to go on, {' '.join(more)}."
    print(f"{report.read_text()}\n{config.out_dir} is {ended}. {hint}")
    print(next_steps_hint(config))
    return True


def score_start(learner: Learner, engine, chat: Chat) -> dict[str, tuple]:
    """Evaluate the model that the run begins with: again after a restart, for it is cheap and not stored."""
    config, results = learner.config, evaluate_all(learner.config, engine, chat, learner.policy)
    for env, (metrics, _) in results.items():
        prompts = f"{config.eval_size} {config.eval_split} prompts of {env}"
        print(f"start: success {metrics['success']:.3f} on {prompts}", flush=True)
    return results


def remove_final_outputs(out_dir: Path) -> None:
    """Remove what an earlier end of the run wrote, if there was one."""
    for name in ("scores.md", "scores.json", "eval_final.jsonl"):
        (out_dir / name).unlink(missing_ok=True)
    shutil.rmtree(out_dir / "policy", ignore_errors=True)


def run(
    config: Config, sources: dict, machine: tuple, saver: Saver, interruption: Interruption
) -> bool:
    """Start or continue in a folder that is ours; returns whether it was interrupted."""
    out_dir, saved = saver.out_dir, checkpoint.newest(saver.out_dir)
    print(describe(config, sources), flush=True)
    history = read_rows(out_dir / "metrics.jsonl", int(saved.name[-6:]) if saved else 0)
    if saved and is_finished(config, history):
        return False
    learner, engine, chat = set_up(config, *machine)
    stages = {"start": score_start(learner, engine, chat)}
    if saved:
        learner.load(saved)
    if parallel.rank() == 0:
        save_config(
            config, sources, out_dir
        )  # only now: what fails before leaves no trace in out_dir
        remove_final_outputs(out_dir)
        write_jsonl(out_dir / "eval_start.jsonl", stages["start"], learner.tokenizer)
        log, played = Log(out_dir, history, config), out_dir / "trajectories.jsonl"
        write_rows(played, read_rows(played, learner.step))

    evaluated, told, began, first = -1, interruption.wanted(), time.perf_counter(), learner.step
    bar = progress(total=config.num_iterations, initial=learner.step, desc="starpo", unit="it")
    while learner.step < config.num_iterations and not stopped(config, history) and not told:
        row, trajectories = iterate(learner, engine, chat, history)
        last = learner.step == config.num_iterations or bool(stopped(config, [*history, row]))
        due = last or (config.eval_every and learner.step % config.eval_every == 0)
        if due:
            stages["after RL"], evaluated = (
                evaluate_all(config, engine, chat, learner.policy),
                learner.step,
            )
            row |= eval_metrics(config, stages["after RL"])
        row = {
            key: None if isinstance(x, float) and not math.isfinite(x) else x
            for key, x in row.items()
        }
        row["regime"] = regime(row, history)
        best = max(
            (old["eval_success"] for old in history if old["eval_success"] is not None),
            default=-1.0,
        )
        history.append(row)
        for sentence in warnings_of(history):
            tqdm.write(f"iteration {learner.step}: {sentence}")
        if due and row["eval_success"] > best:
            saver.wait()
            checkpoint.export(out_dir / "best", learner.policy, learner.tokenizer)
        if parallel.rank() == 0:
            # before the checkpoint: a row without its checkpoint is dropped and made again on restart
            log.write(row, trajectories[: config.num_samples] if due else ())
            if due:
                write_trajectories(played, learner.step, trajectories, config, learner.tokenizer)
        told = interruption.wanted()
        if (
            last
            or told
            or stopped(config, history)
            or (config.save_every and learner.step % config.save_every == 0)
        ):
            learner.save(saver)
        seconds = (time.perf_counter() - began) / (
            learner.step - first
        )  # of an iteration, evaluations included
        tqdm.write(
            describe_step(
                row, config.num_iterations, seconds * (config.num_iterations - learner.step)
            )
        )
        bar.update()
    bar.close()
    saver.wait()
    if interrupted := learner.step < config.num_iterations and not stopped(config, history):
        print(
            f"interrupted at iteration {learner.step}; started again, the run continues", flush=True
        )
    else:
        if reason := stopped(config, history):
            print(f"stopped at iteration {learner.step}: {reason}", flush=True)
        if evaluated != learner.step:  # everything was done before an interruption but the report
            stages["after RL"] = evaluate_all(config, engine, chat, learner.policy)
        finish(learner, stages)
    parallel.tear_down(engine)
    return interrupted


if __name__ == "__main__":
    run_main(main)
