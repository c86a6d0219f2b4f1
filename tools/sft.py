"""Supervised learning: the tiny base model from its corpus, and any model from demonstrations.

    torchrun --nproc_per_node=2 sft.py config/base.py                    # pretrain the tiny model; base/ came from this
    python sft.py config/frozenlake_ppo.py --sft_steps=200 --eval_every=100 --out_dir=out/sft      # any model; then
    torchrun train.py config/frozenlake_ppo.py --model=out/sft/model
    python sft.py config/quest_ppo.py --sft_steps=25 --export=quests.jsonl      # only write 25 x 16 demonstrations
    python sft.py config/quest_ppo.py --sft_steps=200 --sft_file=quests.jsonl   # imitate the same tokens, eight times

With model='tiny' (random weights) it reads the documents of `corpus.py`, else demonstrations in the environment of the
config, or those of a file. What is not in a file is made on the fly by step number, so that the order of data does not
depend on the number of processes; these share the work and add up their gradients. An interrupted run continues from
out_dir. What was learned is measured on held-out boards, apart from success too.
"""

from configurator import Config, UserError, load_config, run_main

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import parallel
from engine import make_engine
from envs import env_specs, make_env
from model import Policy, load_model
from packing import micro_batches, pack
from rollout import (
    Chat,
    Trajectory,
    Turn,
    collect,
    next_prompt,
    split_by_context,
    summarize,
)
from support.run_folder import check_out_dir, save_config
from tools.corpus import Drill, as_played, demonstration, documents, num_demonstrations
from tools.tiny_model import build_tiny

SEED_PROBE = 13  # purpose of a random stream
BASE_PROBES = {  # config files: observation modes
    "frozenlake_ppo": "grid coord relations",
    "frozenlake_ppo frozenlake_det": "grid",
    "sokoban_ppo": "grid coord relations",
    "sokoban_ppo sokoban_large": "grid",
    "bandit_ppo": "grid",
}
PROBE_SETTINGS = ("--max_response_tokens=64", "--max_context_tokens=1024", "--eval_size=128")


def make_optimizers(policy: Policy, config: Config) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks where `sft_muon_lr` is set, AdamW for everything else."""
    matrices, others = [], []
    for name, p in policy.named_parameters():
        (matrices if p.ndim == 2 and "layers" in name and config.sft_muon_lr else others).append(p)
    adamw = torch.optim.AdamW(others, lr=config.sft_lr, betas=(0.9, 0.99), weight_decay=0.0)
    return [adamw, Muon(matrices, config.sft_muon_lr)] if matrices else [adamw]


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised (K. Jordan 2024; same constants as torch.optim.Muon). In float32, because
    torch's works in bfloat16, which takes ten times as long on a CPU that has no such instructions."""

    def __init__(self, params, lr: float):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        for p in group["params"]:
            buffer = (
                self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(p.grad, 1 - 0.95)
            )
            x = p.grad.lerp(buffer, 0.95)
            x = x.T if (tall := p.shape[0] > p.shape[1]) else x  # the small side squared
            x = x / x.norm().clamp_min(1e-7)
            for _ in range(5):  # Newton-Schulz: pulls all singular values towards 1
                square = x @ x.T
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            p.sub_(x.T if tall else x, alpha=group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def imitate(
    policy: Policy,
    packs_at: Callable[[int], Sequence[list[Trajectory]]],
    config: Config,
    *,
    state: Path | None = None,
    report: Callable[[int, dict], object] = lambda *_: None,
) -> None:
    """Minimise the token mean of -log p over the response tokens; cosine schedule with a short warm-up. On CUDA in
    bfloat16, with float32 weights.

    Args: packs_at(step): this process's packs of a step, each goes through the model at once; state: where to keep what
        an interrupted run continues from; report(steps done, totals): after every `eval_every` steps and at the end."""
    device, steps = next(policy.parameters()).device, config.sft_steps
    optimizers, first = make_optimizers(policy, config), 0
    totals = {"tokens": 0, "response_tokens": 0, "cpu_s": 0.0, "losses": [], "rows": []}
    if state and state.is_file():
        saved = torch.load(state, weights_only=True, map_location="cpu")
        policy.load_state_dict(saved["policy"])
        for optimizer, values in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        first, totals = saved["step"], saved["totals"]
    bar = tqdm(
        range(first, steps),
        initial=first,
        total=steps,
        desc="sft",
        unit="step",
        mininterval=2,
        disable=True if parallel.rank() else None,
    )
    for step in bar:
        packs, cpu = packs_at(step), time.process_time()
        counts = torch.tensor(
            [(t.num_response_tokens, len(t.ids)) for part in packs for t in part]
        ).sum(0)
        parallel.all_reduce_sum(counts)
        loss = torch.zeros(())
        for part in packs:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                part_loss = -policy(pack(part, device), 1.0)[0].sum() / counts[0]  # (R,) -> ()
            part_loss.backward()
            loss += part_loss.item()
        parallel.all_reduce_sum(loss)
        parallel.all_reduce_sum(*(p.grad for p in policy.parameters()))
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss is {loss.item()} at step {step}; lower sft_lr or sft_muon_lr"
            )
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)
        ramp = min(1.0, (step + 1) / min(20, steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * ramp
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        totals["tokens"] += int(counts[1])
        totals["response_tokens"] += int(counts[0])
        totals["cpu_s"] += time.process_time() - cpu
        totals["losses"].append(loss.item())
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        last = step + 1 == steps
        if last or (config.eval_every and (step + 1) % config.eval_every == 0):
            report(step + 1, totals)
        if (
            state
            and not parallel.rank()
            and (last or (config.save_every and (step + 1) % config.save_every == 0))
        ):
            values, fresh = (
                [optimizer.state_dict() for optimizer in optimizers],
                state.with_suffix(".partial"),
            )
            torch.save(
                dict(step=step + 1, totals=totals, policy=policy.state_dict(), optimizers=values),
                fresh,
            )
            fresh.rename(state)


# ---------- probes


def probe(model, chat: Chat, config: Config) -> dict[str, float]:
    """The environment of `config` on held-out instances (not the evaluation prompts), at the evaluation temperature and
    at T=1: success, well-formed turns, true statements in thoughts, mean -log p of what was sampled."""
    engine, report = (
        make_engine(replace(config, engine="torch"), model, chat),
        {},
    )  # no second vLLM beside a trainer's
    for temperature in (config.eval_temperature, 1.0):
        played = collect(
            engine,
            chat,
            config,
            [((i,), 0) for i in range(config.eval_size)],
            split="heldout",
            temperature=temperature,
            noise_seed=(config.seed, SEED_PROBE),
        )
        logprobs = [lp for t in played for lp in t.rollout_logprobs]
        metrics = summarize(played) | {"entropy": -sum(logprobs) / len(logprobs)}
        report |= {
            f"{key}_T{temperature:g}": round(metrics[key], 4)
            for key in ("success", "valid_frac", "thought_true_frac", "entropy")
        }
    return report


def probe_reading(model, chat: Chat, config: Config) -> dict[str, float]:
    """Right answers to the questions of `corpus.Drill` about held-out boards, greedy decoding; see `score_reading`."""
    config = replace(
        config,
        engine="torch",
        max_response_tokens=100,
        max_context_tokens=2048,
        reward_density="native",
    )
    drills = []
    for i in range(config.eval_size):
        env = make_env(config.env, observation=config.observation)
        questions = [
            "Where",
            f"Row {1 + i % env.size}",
            f"Column {1 + i // 2 % env.size}",
            env.actions[i % 4],
        ]
        drills.append(Drill(env, questions, np.random.default_rng(i)))
    starts = [((i,), 0) for i in range(config.eval_size)]
    options = dict(split="heldout", temperature=0.0, noise_seed=(0,), episodes=drills)
    return score_reading(collect(make_engine(config, model, chat), chat, config, starts, **options))


def score_reading(drills: Sequence[Trajectory]) -> dict[str, float]:
    """Share of right answers by kind: the places of the player, the goal or target, all holes or boxes; every cell of a
    row or column, and the walls among these; the whole board after a move."""
    right, parts_of = (
        defaultdict(list),
        {"Where": lambda text: text.rstrip(".").split(". "), "Row": str.split},
    )
    for info in (turn.info for drill in drills for turn in drill.turns):
        kind = info["question"].split()[0].replace("Column", "Row")
        truth, given = (
            parts_of.get(kind, lambda board: [board])(info[key]) for key in ("truth", "answer")
        )
        for i, part in enumerate(truth):
            names = {
                "Where": [part.split()[0].lower()],
                "Row": ["cell", *["wall"] * (part == "wall")],
            }
            for name in names.get(kind, ["next_board"]):
                right[name].append(given[i : i + 1] == [part])
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(right.items())}


def base_report(model, chat: Chat) -> dict[str, dict]:
    """All probes of the base model, by environment and observation mode; the ranks share them."""
    tasks = [(files, mode) for files, modes in BASE_PROBES.items() for mode in modes.split()]
    rows = {}
    for files, mode in tasks[parallel.rank() :: parallel.world_size()]:
        paths = [f"{Path(__file__).parent.parent}/config/{file}.py" for file in files.split()]
        task = load_config([*paths, *PROBE_SETTINGS, f"--observation={mode}"])[0]
        reading = {} if task.env.startswith("bandit") else probe_reading(model, chat, task)
        rows[f"{task.env} {mode}"] = probe(model, chat, task) | reading
    return dict(sorted(chain(*parallel.all_gather_lists(list(rows.items())))))


# ---------- demonstrations as text


def write_demonstrations(path: str, config: Config, chat: Chat) -> int:
    """Write those of a run with these settings, a line of JSON each: keys that eval.py, too, writes of what was played.
    Returns how many there are."""
    count = num_demonstrations(config)
    with Path(path).open("w", encoding="utf-8") as file:
        for i in range(count):
            t = demonstration(config, chat, i)
            turns = [{"observation": turn.observation, "response": turn.text} for turn in t.turns]
            record = {
                "env": config.env,
                "seed": t.seed,
                "status": t.status,
                "system": t.system,
                "turns": turns,
            }
            file.write(json.dumps(record) + "\n")
    return count


@lru_cache(maxsize=1)
def read_demonstrations(path: str, chat: Chat, config: Config) -> list[Trajectory]:
    """Text -> the tokens that `corpus.recite` had made: with the same tokenizer the same ones.

    Raises: UserError with the line that is no demonstration or breaks a limit of rollouts, or if there is none."""
    demos = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        if not line:
            continue
        try:
            record = json.loads(line)
            t = Trajectory(
                tuple(record["seed"]), 0, status=record["status"], system=record["system"]
            )
            for turn in record["turns"]:
                user, text = turn["observation"], turn["response"]
                prompt = (
                    next_prompt(chat, t, user, config.context_turns)
                    if t.turns
                    else chat.opening(t.system, user)
                )
                t.turns.append(
                    Turn(prompt, [*chat.encode(text), chat.end], [], text=text, observation=user)
                )
            t.turns[0]  # an IndexError without one
            demos.append(as_played(t, config))
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{path}:{number} is no demonstration ({type(error).__name__}: {error})"
            ) from error
    if not demos:
        raise UserError(f"{path} holds no demonstrations; sft.py --export={path} writes some")
    return demos


# ---------- a run


def packs_of(config: Config, chat: Chat, step: int) -> list[list[Trajectory]]:
    """This process's part of a step: packs of documents for the tiny model, else a pack of demonstrations."""
    mine = range(parallel.rank(), config.sft_batch_size, parallel.world_size())
    if config.model != "tiny":
        indices = [
            (step * config.sft_batch_size + i) % (config.sft_demos or sys.maxsize) for i in mine
        ]
        known = config.sft_file and read_demonstrations(config.sft_file, chat, config)
        demos = split_by_context(
            [known[i % len(known)] if known else demonstration(config, chat, i) for i in indices],
            config,
        )
        return [
            [demos[i] for i in part] for part in micro_batches(demos, config.micro_batch_tokens)
        ]
    return [list(documents(config, chat, step, i, step / config.sft_steps)) for i in mine]


def main(argv: list[str]) -> None:
    config, options, sources = load_config(argv, extra={"export": ""})
    if not config.sft_steps:
        raise UserError(
            "nothing to do: sft_steps is 0; give --sft_steps=N, or config/base.py for the tiny model"
        )
    if len(env_specs(config.env)) > 1:
        raise UserError(f"supervised learning takes one environment, got env={config.env!r}")
    if options["export"]:
        count = write_demonstrations(options["export"], config, Chat(load_model(config.model)[1]))
        print(f"wrote {options['export']}: {count} demonstrations")
        return
    device, _ = parallel.init_distributed(config)
    if config.sft_batch_size < (ranks := parallel.world_size()):
        raise UserError(
            f"sft_batch_size ({config.sft_batch_size}) is less than the number of processes ({ranks})"
        )
    check_out_dir(config)
    is_tiny, out_dir = config.model == "tiny", Path(config.out_dir)
    model, tokenizer = (
        build_tiny(config.seed, config.tiny_shape) if is_tiny else load_model(config.model)
    )
    policy, chat = Policy(model.to(device)), Chat(tokenizer)
    packs_of(
        config, chat, 0
    )  # what is wrong with the first demonstrations is said before anything is written
    if not parallel.rank():
        save_config(config, sources, out_dir)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    def report(step: int, totals: dict) -> None:
        row = {"step": step} | {key: totals[key] for key in ("tokens", "response_tokens", "cpu_s")}
        row |= {"loss": float(np.mean(totals["losses"][-config.eval_every :]))}
        row |= base_report(model, chat) if is_tiny else probe(model, chat, config)
        totals["rows"].append(row)
        if not parallel.rank():
            if is_tiny:
                model.save_pretrained(out_dir / f"model-{step}")
                tokenizer.save_pretrained(out_dir / f"model-{step}")
            (out_dir / "curve.jsonl").write_text(
                "".join(json.dumps(r) + "\n" for r in totals["rows"])
            )
            tqdm.write(json.dumps(row))

    imitate(
        policy, partial(packs_of, config, chat), config, state=out_dir / "state.pt", report=report
    )
    if not parallel.rank():
        model.save_pretrained(out_dir / "model")
        tokenizer.save_pretrained(out_dir / "model")
        print(f"wrote {out_dir}/: curve.jsonl, and model in Hugging Face format")


if __name__ == "__main__":
    run_main(main)
