"""Benchmarks of whole iterations of train.py: compared with TRL's trainer, and at growing sizes."""

from configurator import Config, UserError

import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rollout import make_episode
from studies.speed.bench_measure import Rows, check, compare, is_installed
from studies.speed.bench_update import make_trl_trainer
from support.training_metrics import Timer
from utils.files import read_rows

OUT_DIR = "out/bench_run"
TRL_ITERATIONS = 4


# ---------- one iteration, compared with TRL


def iteration(config: Config, repeats: int) -> Rows:
    """Measure iterations that sample replies to a Bandit prompt and train one step on all of them.

    A measurement of train.py is the median of three iterations after a warm-up. A measurement of
    TRL is the mean of four iterations. The benchmark stops if train.py and TRL differ by 5 % or
    more in the number of sampled tokens per iteration.
    """
    num_replies = config.num_groups * config.group_size
    num_sampled: list[float] = []  # tokens per iteration, for each measurement of train.py

    def ours() -> dict[str, float]:
        row = run_training(*changes_of(config))
        num_sampled.append(num_replies * row["response_length"])
        return {
            "cpu_s": row["cpu_s"],
            "wall_s": row["wall_s"],
            "sampled tokens": num_sampled[-1],
        }

    variants = {"ours": ours}
    if is_installed("trl"):
        trainer, trl_sampled = make_trl_trainer(
            config,
            bandit_prompt(config),
            per_device_train_batch_size=num_replies,
            max_steps=TRL_ITERATIONS,
        )

        def theirs() -> dict[str, float]:
            times = time_training(trainer)
            tokens = np.mean(trl_sampled[-TRL_ITERATIONS:])
            difference = f"TRL samples {tokens} tokens an iteration, we sample {num_sampled[-1]}"
            check(abs(tokens / num_sampled[-1] - 1) < 0.05, difference)
            return {**times, "sampled tokens": tokens}

        variants["TRL's GRPOTrainer"] = theirs
    return compare(variants, repeats)


def changes_of(config: Config) -> list[str]:
    changes = []
    for key, value in asdict(config).items():
        if value != getattr(Config, key):
            changes.append(f"--{key}={value}")
    return changes


def bandit_prompt(config: Config) -> list[dict[str, str]]:
    system, user = make_episode(config).reset((0,))
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def time_training(trainer) -> dict[str, float]:
    """Return CPU and wall seconds per iteration.

    The set-up in `trainer.train()` takes 1 % of this time.
    """
    timer = Timer()
    trainer.train()
    timer.stop()
    return {"cpu_s": timer.cpu_s / TRL_ITERATIONS, "wall_s": timer.wall_s / TRL_ITERATIONS}


# ---------- growing sizes


def scale(config: Config, repeats: int) -> dict[str, object]:
    """Time iterations of train.py at growing numbers of trajectories, turns and ranks.

    For each of the three numbers, fit an exponent: the slope of log time over log size. The size is
    the number of trajectories, the mean number of turns, or the number of ranks. For trajectories
    and turns, the time is CPU time, and the slope is fitted without the smallest size. For ranks,
    the time is wall time, and the sizes are 1 and 2. Turns are measured on Sokoban. Replies on
    Sokoban are cut at 24 tokens. Without this limit, the tiny base model would write longer replies
    in late turns than in early turns. `config` has no effect.
    """
    lake = ["config/frozenlake_grpo.py", "config/models/tiny.py", "--batch_size=16"]
    room = ["config/sokoban_grpo.py", "config/models/tiny.py", "--batch_size=16"]
    room += ["--num_groups=4", "--actions_per_turn=1"]
    room += ["--max_context_tokens=4000", "--max_response_tokens=24"]
    trajectories = {n: [*lake, f"--num_groups={n // 16}"] for n in (16, 64, 256, 1024)}
    turns = {n: [*room, f"--max_turns={n}", f"--actions_per_traj={n}"] for n in (1, 2, 5, 10, 20)}
    ranks = {1: lake, 2: lake}
    rows: dict[str, object] = {}
    rows |= grow("trajectories", trajectories, repeats)
    rows |= grow("turns", turns, repeats)
    rows |= grow("ranks", ranks, repeats)
    return rows


def grow(quantity: str, runs: dict[int, list[str]], repeats: int) -> dict[str, object]:
    rows: dict[str, object] = {}
    sizes = []
    seconds = []
    for size, arguments in runs.items():
        num_ranks = size if quantity == "ranks" else 1
        row = run_training(*arguments, ranks=num_ranks, iterations=1 + repeats)
        row["n"] = row["num_turns"] if quantity == "turns" else size
        rows[f"{size} {quantity}"] = row
        sizes.append(row["n"])
        seconds.append(row["wall_s" if quantity == "ranks" else "cpu_s"])
        values = [f"{key} {row[key]:.2f}" for key in ("num_turns", "cpu_s", "wall_s")]
        print(f"| {size} {quantity} | {' | '.join(values)}", flush=True)
    first = 1 if len(sizes) > 2 else 0
    slope, _ = np.polyfit(np.log(sizes[first:]), np.log(seconds[first:]), 1)
    rows[f"exponent of {quantity}"] = float(slope)
    print(f"time grows like {quantity}^{slope:.2f}")
    return rows


def run_training(*arguments: str, ranks: int = 1, iterations: int = 4) -> dict[str, float]:
    """Run train.py.

    Returns: the median of each metric over all iterations except the first. "wall_s" is the sum of
    the medians of rollout_s and update_s."""
    shutil.rmtree(OUT_DIR, ignore_errors=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    settings = [f"--num_iterations={iterations}", f"--out_dir={OUT_DIR}", "--filter_keep=1.0"]
    settings += ["--eval_size=1", "--eval_every=0", "--save_every=0"]
    command = [sys.executable, *launcher, "train.py", *arguments, *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stdout[-2000:]}")
    rows = read_rows(Path(OUT_DIR, "metrics.jsonl"))[1:]
    medians = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if all(isinstance(value, float) for value in values):
            medians[key] = float(np.median(values))
    medians["wall_s"] = medians["rollout_s"] + medians["update_s"]
    return medians
