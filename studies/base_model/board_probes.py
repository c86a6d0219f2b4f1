"""During pretraining, measure how well the tiny model reads held-out boards and plays on them."""

from configurator import Config, load_config

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

import parallel
from dialogue import Chat
from engine import make_engine
from envs import make_env
from rollout import Rollout, RolloutScheduler
from studies.base_model.drills import Drill, score_reading
from tools.probes import probe

BASE_PROBES = {  # maps the config files of an environment to the observation modes to probe
    "frozenlake_ppo": "grid coord relations",
    "frozenlake_ppo envs/frozenlake_det": "grid",
    "sokoban_ppo": "grid coord relations",
    "sokoban_ppo envs/sokoban_large": "grid",
    "bandit_ppo": "grid",
}
CONFIGS = Path(__file__).resolve().parents[2] / "config"
PROBE_SETTINGS = ("--max_response_tokens=64", "--max_context_tokens=1024", "--eval_size=128")


def probe_reading(model, chat: Chat, config: Config) -> dict[str, float]:
    """Ask the model questions about held-out boards, with greedy decoding.

    Returns: the share of right answers for each thing asked, such as "player" or "next_board"."""
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
    """Run all probes, distributed over the ranks.

    Returns: a dict that maps each probe to its metrics. Each key is an environment, a space and an
        observation mode, such as "bandit:pair=phoenix grid"."""
    tasks = []
    for files, modes in BASE_PROBES.items():
        for mode in modes.split():
            tasks.append((files.split(), mode))
    rows = {}
    for files, mode in tasks[parallel.rank() :: parallel.world_size()]:
        paths = [f"{CONFIGS}/{file}.py" for file in files]
        config, _, _ = load_config([*paths, *PROBE_SETTINGS, f"--observation={mode}"])
        row = probe(model, chat, config)
        if not config.env.startswith("bandit"):
            row.update(probe_reading(model, chat, config))
        rows[f"{config.env} {mode}"] = row
    return dict(sorted(chain(*parallel.all_gather_lists(list(rows.items())))))
