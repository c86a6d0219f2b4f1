"""One seed of a speedrun entry: its steps in one process on the clock, then the scores off it.

    python -m tools.speedrun_seed train docs/speedrun/paper.py frozenlake 0     # 10 CPU-minutes
    python -m tools.speedrun_seed score docs/speedrun/paper.py frozenlake 0 eval

`python -m tools.speedrun` starts both. The clock counts the CPU time of the process since its
start, with all of its threads and child processes. A killed seed continues from its newest
checkpoint, and its clock continues from the last row in clock.jsonl: repeated iterations count
twice.
"""

from configurator import Config, run_main

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import parallel
from dialogue import Chat
from engine import make_engine
from eval import evaluate
from learner import build_learner
from model import Policy, load_model
from rollout import Trajectory
from support import checkpoint
from support.checkpoint import Saver, newest
from support.process import EXIT_INTERRUPTED, Interruption, lock_folder
from support.run_folder import append_to, read_json, read_rows, write_atomically, write_rows
from tools.sft import imitate, make_policy, packs_of
from tools.speedrun_rules import (
    GAMES_PER_PROMPT,
    SFT,
    TRACKS,
    Entry,
    crossing,
    is_trained,
    policy_folder,
    read_entry,
    seed_folder,
)
from train import iterate

PROC = Path("/proc")
CLOCK_ROW = {  # of clock.jsonl, see support/shapes.py
    "stage": int,
    "iteration": int,
    "cpu_s": float,
    "sampled": int,
    "imitated": int,
}


def main(argv: list[str]) -> None:
    action, path, track, seed, *split = argv
    entry = read_entry(Path(path), track)
    folder = seed_folder(entry, int(seed))
    with lock_folder(folder):
        if action == "train":
            train_seed(entry, int(seed), folder)
        else:
            score_seed(entry, folder, split[0])


# ---------- the clock


class Clock:
    """CPU seconds and tokens of a seed since the start of its first process.

    Every row is written to clock.jsonl at once, so a kill does not turn the clock back."""

    def __init__(self, path: Path):
        self.path = path
        rows = read_rows(path, shape=CLOCK_ROW)
        write_rows(path, rows)  # without a line that a crash cut off
        last = rows[-1] if rows else {"cpu_s": 0.0, "sampled": 0, "imitated": 0}
        self.earlier_cpu_s = last["cpu_s"]  # of earlier processes
        self.sampled = last["sampled"]  # tokens of the policy's replies
        self.imitated = last["imitated"]  # tokens of the replies in demonstrations

    def write(self, stage: int, iteration: int) -> None:
        """Write the time after an iteration of a step. Args: stage: the number of the step."""
        row = {
            "stage": stage,
            "iteration": iteration,
            "cpu_s": round(self.earlier_cpu_s + cpu_seconds(), 3),
            "sampled": self.sampled,
            "imitated": self.imitated,
        }
        with append_to(self.path) as file:
            file.write(json.dumps(row) + "\n")


def cpu_seconds() -> float:
    """CPU time of this process since its start, with all of its child processes, seconds."""
    times = os.times()  # with the children that have ended
    return time.process_time() + times.children_user + times.children_system + children_seconds()


def children_seconds() -> float:
    """CPU time of the living descendants of this process, from /proc.

    A system without /proc has none. (The engine vLLM starts processes; nothing else does.)"""
    ticks = {}
    children = defaultdict(list)
    for path in PROC.glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the process has just ended
        # Fields follow the name of the program, which may hold spaces and brackets: state, parent,
        # nine others, then the ticks of the process and of its ended children, user and system.
        fields = text.rpartition(")")[2].split()
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    parents = [os.getpid()]
    while parents:
        for pid in children[parents.pop()]:
            total += ticks[pid]
            parents.append(pid)
    return total / os.sysconf("SC_CLK_TCK")


# ---------- training, on the clock


def train_seed(entry: Entry, seed: int, folder: Path) -> None:
    """Run the steps that are not finished, and save the policy at each check."""
    if is_trained(folder, entry.checks):
        return
    clock = Clock(folder / "clock.jsonl")
    for number, (script, config) in enumerate(entry.stages_of_seed(seed, folder)):
        if script == SFT:
            run_sft(config, clock, number)
        else:
            run_rl(config, clock, number, entry.checks, folder)


def run_sft(config: Config, clock: Clock, stage: int) -> None:
    """Supervised learning without probes. It writes out_dir/model."""
    out_dir = Path(config.out_dir)
    if (out_dir / "model").is_dir():
        return
    device, _ = parallel.init_distributed(config)
    model, tokenizer = load_model(config.model, device=device)
    policy = make_policy(config, model)
    chat = Chat(tokenizer)

    def packs_at(step: int) -> list[list[Trajectory]]:
        packs = packs_of(config, chat, step)
        for pack in packs:
            clock.imitated += sum(demonstration.num_response_tokens for demonstration in pack)
        return packs

    with Saver(out_dir, config.keep_checkpoints) as saver:
        imitate(
            policy,
            packs_at,
            replace(config, eval_every=config.save_every),  # a row of the clock a checkpoint
            saver=saver,
            report=lambda step, _: clock.write(stage, step),
        )
    checkpoint.export(out_dir / "model", policy, tokenizer)


def run_rl(config: Config, clock: Clock, stage: int, checks: Sequence[int], folder: Path) -> None:
    """The iterations of train.py without evaluations, up to the last check.

    The process exits with EXIT_INTERRUPTED if a signal interrupts it."""
    out_dir = Path(config.out_dir)
    device, dtype = parallel.init_distributed(config)
    with (
        Saver(out_dir, config.keep_checkpoints) as saver,
        Interruption(config.grace_s) as interruption,
    ):
        learner, engine, chat = build_learner(config, device, dtype)
        saved = newest(out_dir)
        if saved:
            learner.load(saved)
        elif 0 in checks:
            clock.write(stage, 0)
            save_policy(folder, learner)
        history: list[dict] = []
        while learner.step < checks[-1]:
            row, trajectories = iterate(learner, engine, chat, history)
            history.append(row)
            clock.sampled += sum(trajectory.num_response_tokens for trajectory in trajectories)
            clock.write(stage, learner.step)
            print(f"iteration {learner.step}: success {row['success']:.2f}", flush=True)
            is_check = learner.step in checks
            if is_check:
                save_policy(folder, learner)
            stop_requested = interruption.requested()
            is_due = config.save_every and learner.step % config.save_every == 0
            if is_check or is_due or stop_requested:
                learner.save(saver)
            if stop_requested:
                saver.wait()
                sys.exit(EXIT_INTERRUPTED)
        saver.wait()
    parallel.shut_down(engine)


def save_policy(folder: Path, learner) -> None:
    checkpoint.export(policy_folder(folder, learner.step), learner.policy, learner.tokenizer)


# ---------- scoring, off the clock


def score_seed(entry: Entry, folder: Path, split: str) -> None:
    """Score the checks in their order, until two in a row reach the threshold.

    It writes won games by iteration to scores-SPLIT.json, where an interrupted call continues.
    Args: split: "eval" or "heldout"."""
    track = TRACKS[entry.track]
    config = track.scoring(split)
    path = folder / f"scores-{split}.json"
    wins = read_json(path, {str: int}) if path.is_file() else {}
    games = config.eval_size * GAMES_PER_PROMPT
    for iteration in entry.checks:
        scored = [wins.get(str(check)) for check in entry.checks]
        if crossing(scored, games, track.threshold) is not None:
            return
        if str(iteration) not in wins:
            wins[str(iteration)] = count_wins(config, policy_folder(folder, iteration))
            write_atomically(path, json.dumps(wins) + "\n")


def count_wins(config: Config, model_folder: Path) -> int:
    """Games that a policy wins, of `config.eval_size` prompts with 16 games each."""
    device, _ = parallel.init_distributed(config)
    model, tokenizer = load_model(str(model_folder), device=device)
    chat = Chat(tokenizer)
    engine = make_engine(config, model, chat)
    scores = evaluate(config, engine, chat, Policy(model), GAMES_PER_PROMPT)
    parallel.shut_down(engine)
    return sum(trajectory.success for trajectory in scores.trajectories)


if __name__ == "__main__":
    run_main(main)
