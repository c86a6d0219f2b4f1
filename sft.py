"""Supervised fine-tuning on scripted demonstrations; the warm start of the tiny model.

Demonstrations are whole dialogues in the exact format of the rollouts. The `<think>` text states what is true of the
board; the answer follows a path to the goal, in Bandit it takes any arm. Two phases:
1. clean (`sft_steps`): until the board is read. A cautious player, who mostly commits one action a turn;
2. noisy (`sft_noisy_steps`), where RL starts: with probability `sft_noise` a turn commits 1 to `sft_actions` actions at
   random, with half of it its actions are random, whatever their number. Noise spoils the action, not the features.
Measured on held-out instances apart from success: well-formed turns, and true statements in `<think>`.

    python sft.py config/frozenlake_ppo.py config/tiny.py                    # what `make train` does first
    python sft.py config/sokoban_ppo.py --model=PATH --sft_steps=200         # plain SFT of any Qwen2-family model
"""

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from configurator import Config, fail_clearly, load_config
from dialogue import format_response, parse_response
from engine import make_engine
from model import Policy, build_tiny, load_model, pick_device
from rollout import Chat, Trajectory, Turn, collect, make_episode, pack, summarize

COMMIT_ONE = 0.75  # a clean turn means to commit one action in 75 % of cases, two in 19 %, more in 6 %
SEED_DEMOS, SEED_ORDER, SEED_PROBE = 11, 12, 13  # purposes of the random streams
CACHE_KEYS = (  # with sft_*: the settings that the start depends on
    "seed", "env", "observation", "think", "max_turns", "actions_per_turn", "actions_per_traj", "format_penalty",
    "model", "device", "num_threads", "max_response_tokens", "max_context_tokens", "grad_clip", "eval_temperature",
)  # fmt: skip


def demonstration(config: Config, chat: Chat, index: int, *, noise: float) -> Trajectory:
    """Play training instance `index` as `Env.demonstrate` says, with `noise` as described at the top of this file; the
    response tokens are what a policy would have sampled."""
    seed = (config.seed, SEED_DEMOS, index)
    # the last number is not 0, because numpy seeds [a, b, c] and [a, b, c, 0] alike, and the first draws the instance
    episode, rng = make_episode(config), np.random.default_rng([*seed, 1 + (noise > 0)])
    trajectory = Trajectory(seed, 0)
    trajectory.system, user = episode.reset(seed)
    prompt = chat.opening(trajectory.system, user)
    while not trajectory.status:
        most = min(config.sft_actions, config.actions_per_turn, episode.env.actions_left)
        thought = " ".join(episode.env.statements()) if config.think else ""
        count = min(int(rng.integers(1, most + 1) if rng.random() < noise else rng.geometric(COMMIT_ONE)), most)
        actions = episode.env.demonstrate(count, rng)
        if not actions or rng.random() < noise / 2:
            actions = rng.choice(episode.env.actions, count).tolist()
        text = format_response(thought, actions, think=config.think)
        outcome = episode.step(text)
        ids = [*chat.encode(text), chat.end]
        trajectory.turns.append(Turn(prompt, ids, [], outcome.reward, text, user, outcome.info))
        trajectory.status, user = outcome.status or "", outcome.user
        prompt = chat.following(user, closed=True)
        if len(trajectory.ids) + len(prompt) > config.max_context_tokens:
            trajectory.status = trajectory.status or "out_of_tokens"
    return trajectory


def sampling_weights(demos: list[Trajectory]) -> np.ndarray:
    """Probability (n,) of each demonstration, by the inverse root of how often its kind of thoughts (the words that its
    sentences begin with) occurs. Otherwise a thought that few boards ask for, such as a detour, is never learned."""
    thoughts = (" ".join(parse_response(turn.text).thought for turn in demo.turns) for demo in demos)
    kinds = [frozenset(re.findall(r"(?:^|[.] )(\w+)", thought)) for thought in thoughts]
    counts = Counter(kinds)
    weights = np.array([counts[kind] ** -0.5 for kind in kinds])
    return weights / weights.sum()


def make_optimizers(policy: Policy, config: Config, scale: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks where `sft_muon_lr` is set, AdamW for everything else."""
    matrices = [p for n, p in policy.named_parameters() if p.ndim == 2 and "layers" in n and config.sft_muon_lr]
    chosen = {id(p) for p in matrices}
    others = [p for p in policy.parameters() if id(p) not in chosen]
    adamw = torch.optim.AdamW(others, lr=config.sft_lr * scale, betas=(0.9, 0.99), weight_decay=0.0)
    return [adamw, *([Muon(matrices, config.sft_muon_lr * scale)] if matrices else [])]


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised (K. Jordan 2024; same constants as torch.optim.Muon). In float32, because
    torch's works in bfloat16, which takes ten times as long on a CPU that has no such instructions."""

    def __init__(self, params, lr: float, momentum: float = 0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(buffer, group["momentum"])
                x = x.T if (tall := p.shape[0] > p.shape[1]) else x  # the small side squared
                x = x / x.norm().clamp_min(1e-7)
                for _ in range(5):  # Newton-Schulz: pulls all singular values towards 1
                    square = x @ x.T
                    x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
                p.sub_(x.T if tall else x, alpha=group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def imitate(policy: Policy, demos: list[Trajectory], config: Config, *, steps: int, scale: float, name: str) -> float:
    """Minimise the token mean of -log p over the response tokens; cosine schedule with a short warm-up.

    Returns: loss of the last tenth of the steps, nats per token."""
    device = next(policy.parameters()).device
    optimizers = make_optimizers(policy, config, scale)
    peaks = [group["lr"] for o in optimizers for group in o.param_groups]
    rng = np.random.default_rng([config.seed, SEED_ORDER, len(demos)])
    order = rng.choice(len(demos), (steps, config.sft_batch_size), p=sampling_weights(demos))
    losses = []
    bar = tqdm(range(steps), desc=name, unit="step", mininterval=2)
    for step in bar:
        ramp = min(1.0, (step + 1) / min(20, steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group, peak in zip((g for o in optimizers for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * ramp
        logprobs, _ = policy(pack([demos[i] for i in order[step]], device), 1.0)  # (R,)
        loss = -logprobs.mean()
        if not torch.isfinite(loss):
            raise ValueError(f"{name}: the loss is {loss.item()} at step {step}; lower sft_lr or sft_muon_lr")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return float(np.mean(losses[-max(1, steps // 10) :]))


def probe(model, chat: Chat, config: Config, size: int = 256) -> dict[str, float]:
    """Held-out instances (not the evaluation prompts) at the evaluation temperature and at T=1."""
    engine, report = make_engine(replace(config, engine="torch"), model, chat), {}  # no second vLLM beside a trainer's
    for temperature in (config.eval_temperature, 1.0):
        played = collect(engine, chat, config, [((i,), 0) for i in range(size)], split="heldout",
                         temperature=temperature, noise_seed=(config.seed, SEED_PROBE))  # fmt: skip
        keys = ("success", "valid_frac", "thought_true_frac", "num_turns", "num_actions")
        report |= {f"{k}@T={temperature:g}": round(v, 4) for k, v in summarize(played).items() if k in keys}
    return report


def warm_start(config: Config, *, root: str = "out/warm_start") -> Path:
    """Train (or find in the cache) the supervised start of a config; returns the folder with `clean/`, `start/`
    (Hugging Face models) and report.json. The key covers every setting and source file that the result depends on."""
    used = {key: value for key, value in asdict(config).items() if key.startswith("sft_") or key in CACHE_KEYS}
    here = Path(__file__).parent
    sources = [(here / f"{f}.py").read_bytes() for f in ("envs", "dialogue", "model", "engine", "rollout", "sft")]
    digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode() + b"".join(sources) + torch.__version__.encode())
    folder = Path(root) / digest.hexdigest()[:12]
    if (folder / "report.json").is_file():
        print(f"warm start: found in {folder}")
        return folder
    began, partial = time.process_time(), folder.with_suffix(f".{os.getpid()}")
    model, tokenizer = build_tiny(config.seed) if config.model == "tiny" else load_model(config.model)
    policy, chat = Policy(model.to(pick_device(config.device))), Chat(tokenizer)
    report = {"config": used, "parameters": sum(p.numel() for p in model.parameters())}
    shutil.rmtree(partial, ignore_errors=True)
    for stage, steps, noise, scale in (
        ("clean", config.sft_steps, 0.0, 1.0),
        ("start", config.sft_noisy_steps, config.sft_noise, config.sft_noisy_lr_scale),
    ):
        if steps:
            count = min(config.sft_demos, steps * config.sft_batch_size)
            numbers = tqdm(range(count), desc=f"demonstrations {stage}", mininterval=2)
            demos = [demonstration(config, chat, i, noise=noise) for i in numbers]
            report[f"{stage}_demo_success"] = sum(d.success for d in demos) / len(demos)
            report[f"{stage}_loss"] = imitate(policy, demos, config, steps=steps, scale=scale, name=f"sft {stage}")
        report[stage] = probe(model, chat, config)
        print(f"warm start, {stage}: {report[stage]}", flush=True)
        model.save_pretrained(partial / stage)
        tokenizer.save_pretrained(partial / stage)
    report["cpu_s"] = round(time.process_time() - began, 1)
    (partial / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not folder.is_dir():  # another run may have made the same start in the meantime
        partial.rename(folder)
    print(f"warm start: {report['parameters']:,} parameters, {report['cpu_s']} CPU-seconds, written to {folder}")
    return folder


def main(argv: list[str]) -> None:
    config, _, _ = load_config(argv)
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    if not config.sft_steps + config.sft_noisy_steps:
        raise ValueError("nothing to do: sft_steps and sft_noisy_steps are 0; give --sft_steps=N or add config/tiny.py")
    warm_start(config)


if __name__ == "__main__":
    fail_clearly(main)
