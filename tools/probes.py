"""Probes of supervised learning: how well a model plays and reads held-out boards."""

from configurator import Config, load_config

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

import parallel
from dialogue import Chat
from engine import make_engine
from envs import make_env
from rollout import Rollout, RolloutScheduler, collect, summarize, without_errors
from tools.drills import Drill, score_reading

SEED_PROBE = 13  # purpose number of the random streams
BASE_PROBES = {  # config files: observation modes
    "frozenlake_ppo": "grid coord relations",
    "frozenlake_ppo frozenlake_det": "grid",
    "sokoban_ppo": "grid coord relations",
    "sokoban_ppo sokoban_large": "grid",
    "bandit_ppo": "grid",
}
PROBE_SETTINGS = ("--max_response_tokens=64", "--max_context_tokens=1024", "--eval_size=128")
PROBE_KEYS = (
    "success",
    "valid_frac",
    "thought_true_frac",
    "entropy",
    "cut_frac",
    "out_of_tokens_frac",
)


def probe(model, chat: Chat, config: Config) -> dict[str, float]:
    """Play the config's environment on held-out instances, at eval_temperature and at T=1.

    Returns: the metrics of PROBE_KEYS at each temperature. Entropy is the mean -log p of the
        sampled tokens, in nats."""
    # Always the torch engine: a second vLLM does not fit into one process.
    engine = make_engine(replace(config, engine="torch"), model, chat)
    starts = [((i,), 0) for i in range(config.eval_size)]
    report = {}
    for temperature in (config.eval_temperature, 1.0):
        trajectories = collect(
            engine,
            chat,
            config,
            starts,
            split="heldout",
            temperature=temperature,
            noise_seed=(config.seed, SEED_PROBE),
        )
        without_errors(trajectories, config)  # raises for many errors; a few count as failures
        logprobs = [logprob for t in trajectories for logprob in t.rollout_logprobs]
        metrics = summarize(trajectories)
        metrics["entropy"] = -sum(logprobs) / len(logprobs)
        for key in PROBE_KEYS:
            report[f"{key}_T{temperature:g}"] = round(metrics[key], 4)
    return report


def probe_reading(model, chat: Chat, config: Config) -> dict[str, float]:
    """Ask questions about held-out boards, with greedy decoding; see `drills.score_reading`."""
    config = replace(
        config,
        engine="torch",
        max_response_tokens=100,
        max_context_tokens=2048,
        reward_density="native",
    )
    rollouts = []
    for i in range(config.eval_size):
        env = make_env(config.env, observation=config.observation)
        row = f"Row {1 + i % env.size}"
        column = f"Column {1 + i // 2 % env.size}"
        questions = ["Where", row, column, env.actions[i % 4]]
        drill = Drill(env, questions, np.random.default_rng(i))
        rollout = Rollout(drill, (i,))
        rollout.reset("heldout")
        rollouts.append(rollout)
    engine = make_engine(config, model, chat)
    scheduler = RolloutScheduler(engine, chat, config, rollouts, temperature=0.0, noise_seed=(0,))
    scheduler.run()
    return score_reading([rollout.trajectory for rollout in rollouts])


def base_report(model, chat: Chat) -> dict[str, dict]:
    """All probes of the tiny base model, by environment and observation mode.

    The ranks share the probes."""
    tasks = []
    for files, modes in BASE_PROBES.items():
        for mode in modes.split():
            tasks.append((files.split(), mode))
    rows = {}
    for files, mode in tasks[parallel.rank() :: parallel.world_size()]:
        folder = Path(__file__).parent.parent / "config"
        paths = [f"{folder}/{file}.py" for file in files]
        config, _, _ = load_config([*paths, *PROBE_SETTINGS, f"--observation={mode}"])
        row = probe(model, chat, config)
        if not config.env.startswith("bandit"):
            row.update(probe_reading(model, chat, config))
        rows[f"{config.env} {mode}"] = row
    return dict(sorted(chain(*parallel.all_gather_lists(list(rows.items())))))
