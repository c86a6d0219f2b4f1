"""Score a policy, or a reference player, on the 256 fixed prompts that training never draws (Bandit shares its two).

    python eval.py out/frozenlake_ppo --json=scores.json             # the last policy of a run, or its best so far
    python eval.py config/frozenlake_ppo.py --model=PATH             # any Qwen2-family model
    python eval.py config/frozenlake_ppo.py --player=optimal         # reference players: random, greedy, optimal

Sampling at T=0.5 under the limits of the config (5 turns). `--eval_split=heldout` scores 256 other instances: choose
settings there. `--jsonl=PATH` writes the trajectories, each reward next to the action that earned it. Intervals are
95 % Wilson; instances and transition noise are the same for every policy and player, so rows can be paired.
"""

# before all else: it answers --help, and other imports take seconds
from configurator import Config, fail_clearly, load_config, load_saved

# isort: split

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dialogue import format_response
from engine import make_engine
from envs import stage_of
from model import Policy, load_model
from parallel import collect_all, rank, score_tokens, set_up, synchronize, tear_down, world_size
from rollout import Chat, Trajectory, Turn, make_episode, sequences, summarize, without_errors

SEED_EVAL = 21
PLAYERS = ("random", "greedy", "optimal")
COLUMNS = ("reward", "num_turns", "num_actions", "valid_frac", "effective_frac", "entropy", "response_length")


def wilson_interval(num_success: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927).

    >>> tuple(round(x, 3) for x in wilson_interval(8, 10))
    (0.49, 0.943)
    """
    p, zz = num_success / n, z * z / n
    centre, half = (p + zz / 2) / (1 + zz), z * math.sqrt(p * (1 - p) / n + zz / (4 * n)) / (1 + zz)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_bootstrap(a: np.ndarray, b: np.ndarray, *, draws: int = 10_000, seed: int = 0) -> tuple[float, float, float]:
    """Mean of a - b with a 95 % bootstrap interval over instances (columns) and, where there are several, seeds (rows).

    Args: a, b: (S, n) successes on the same instances; b may be (1, n), a player without seeds."""
    difference = np.asarray(a, float) - np.asarray(b, float)  # (S, n)
    (num_seeds, n), rng = difference.shape, np.random.default_rng(seed)
    means = []
    for _ in range(draws):
        rows = rng.integers(num_seeds, size=num_seeds)
        means.append(difference[rows][:, rng.integers(n, size=n)].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)


def play_reference(config: Config, player: str) -> list[Trajectory]:
    """Let a reference player answer through the same dialogue. `optimal` commits the best plan of at most
    `actions_per_turn` actions; `greedy` and `random` decide every action anew, one a turn (see `closed_loop`)."""
    trajectories = []
    for index in range(config.eval_size):
        trajectory, episode = Trajectory((index,), 0, env=config.env), make_episode(config)
        trajectory.system, user = episode.reset((index,), split=config.eval_split)
        rng = np.random.default_rng([SEED_EVAL, index])
        while not trajectory.status:
            if player == "random":
                actions = episode.env.random(1, rng)
            elif player == "greedy":
                actions = [episode.env.greedy()]
            else:
                plan = episode.env.plan(config.actions_per_turn, config.max_turns - episode.turn_idx)
                actions = plan or [episode.env.greedy()]
            text = format_response("", actions, think=config.think)
            outcome = episode.step(text)
            trajectory.turns.append(Turn([], [], [], outcome.reward, text, user, outcome.info))
            trajectory.status, user = outcome.status or "", outcome.user
        trajectories.append(trajectory)
    return trajectories


def closed_loop(config: Config) -> Config:
    """The same action budget with one action a turn and as many turns as actions: a decision per action."""
    return replace(config, max_turns=config.actions_per_traj, actions_per_turn=1)


def reference_rows(config: Config, players: Sequence[str] = PLAYERS) -> dict[str, list]:
    """Name -> trajectories of the players: each closed-loop, and optimal under the turn limit at 1, 2, 5 actions."""
    rows = {f"{name}, closed loop": play_reference(closed_loop(config), name) for name in players}
    if "optimal" in players:
        for k in sorted({1, 2, 5} & set(range(1, config.actions_per_turn + 1))):
            rows[f"optimal, {k} a turn"] = play_reference(replace(config, actions_per_turn=k), "optimal")
    return rows


def evaluate(config: Config, engine, chat: Chat, policy: Policy) -> tuple[dict[str, float], list[Trajectory]]:
    """Play the fixed prompts once each with the policy's weights; the sampling noise is fixed as well. All ranks share
    the work.

    Returns: the means of `rollout.summarize` with entropy (nats per response token, at the evaluation temperature),
    and the trajectories in the order of the prompts."""
    starts = [((i,), 0) for i in range(config.eval_size)]
    synchronize(engine, policy)
    with tqdm(total=len(starts), desc=f"eval {config.eval_split}", unit="traj", leave=False, mininterval=1,
              disable=rank() > 0) as bar:  # fmt: skip
        played = collect_all(
            engine, policy, chat, config, starts, group_size=1, split=config.eval_split, noise_seed=(SEED_EVAL,),
            temperature=config.eval_temperature, on_done=lambda: bar.update(world_size()),
        )  # fmt: skip
    without_errors(played, config)  # a few count as failures
    _, entropy = score_tokens(policy, sequences(played, config), config, config.eval_temperature or 1.0)
    return summarize(played) | {"entropy": entropy.mean().item()}, played


def scored_envs(config: Config) -> list[str]:
    """The environments that are scored: those of `eval_env`, else of the last stage of training."""
    return list(stage_of(config.eval_env or config.env, None))


def evaluate_all(config: Config, engine, chat: Chat, policy: Policy) -> dict[str, tuple[dict, list[Trajectory]]]:
    """`evaluate` in each of them, by name."""
    return {env: evaluate(replace(config, env=env), engine, chat, policy) for env in scored_envs(config)}


def table(rows: dict[str, tuple[dict[str, float], list[Trajectory]]]) -> str:
    """Markdown: one line per policy or player; success in % with its 95 % interval."""
    head = ["", "success % [95 %]", "reward", "turns", "actions", "valid", "effective", "entropy", "tokens"]
    lines = [head, ["---"] * len(head)]
    for name, (metrics, played) in rows.items():
        low, high = wilson_interval(sum(t.success for t in played), len(played))
        cells = [f"{100 * metrics['success']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
        known = metrics if metrics["response_length"] else {k: v for k, v in metrics.items() if k != "response_length"}
        cells += [f"{known[key]:.2f}" if key in known else "-" for key in COLUMNS]
        lines.append([name, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def trajectory_record(trajectory: Trajectory, tokenizer=None) -> dict:
    """A trajectory as plain data: every turn with the reward that its own actions earned, and the sampled tokens one by
    one with their surprise -log p under the sampler, nats. A token that is no whole character becomes U+FFFD.

    Args: tokenizer: of the policy; a reference player, which samples nothing, needs none."""
    turns = [
        {"observation": t.observation, "response": t.text, **t.info, "reward": t.reward,
         "tokens": [tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in t.response_ids],
         "surprise": [round(-lp, 4) for lp in t.rollout_logprobs]}
        for t in trajectory.turns
    ]  # fmt: skip
    keys = ("env", "seed", "member", "status", "success", "score", "system")
    return {key: getattr(trajectory, key) for key in keys} | {"turns": turns}


def write_jsonl(path: str | Path, rows: dict[str, tuple[dict, list[Trajectory]]], tokenizer=None) -> None:
    records = (trajectory_record(t, tokenizer) for _, played in rows.values() for t in played)
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def policy_of(run: str | Path) -> Path:
    """The policy of a run: the last one when it is over, before that the one of its best evaluation."""
    for name in ("policy", "best"):
        if (folder := Path(run, name)).is_dir():
            return folder
    raise ValueError(f"{run} holds no policy/ or best/, which train.py writes at the end and at the best evaluation")


def main(argv: list[str]) -> None:
    run = argv[0] if argv and Path(argv[0]).is_dir() else ""
    base = replace(load_saved(run), model=str(policy_of(run))) if run else None
    config, options, _ = load_config(argv[bool(run) :], extra={"player": "", "json": "", "jsonl": ""}, base=base)
    if options["player"] not in ("", *PLAYERS):
        raise ValueError(f"player must be one of {', '.join(PLAYERS)}, got {options['player']!r}")
    device, is_first, tokenizer = set_up(config)[0], rank() == 0, None
    began = time.process_time()
    rows, envs = {}, scored_envs(config)
    if options["player"]:
        for env in envs:
            for name, played in reference_rows(replace(config, env=env), [options["player"]]).items():
                rows[f"{env}: {name}"] = summarize(played), played
    else:
        model, tokenizer = load_model(config.model, device=device)
        chat = Chat(tokenizer)
        engine = make_engine(config, model, chat)
        results = evaluate_all(config, engine, chat, Policy(model))
        rows = {f"{env}: {config.model}": result for env, result in results.items()}
        tear_down(engine)
    if len(envs) == 1:
        rows = {name.removeprefix(f"{envs[0]}: "): row for name, row in rows.items()}
    print(table(rows))
    print(f"{', '.join(envs)}, {config.eval_size} {config.eval_split} prompts, T={config.eval_temperature}, "
          f"{time.process_time() - began:.1f} CPU-s")  # fmt: skip
    if options["json"] and is_first:
        scores = {}
        for name, (metrics, played) in rows.items():
            wins, n = [int(t.success) for t in played], len(played)
            scores[name] = metrics | {"n": n, "interval": wilson_interval(sum(wins), n), "successes": wins}
        Path(options["json"]).write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    if options["jsonl"] and is_first:
        write_jsonl(options["jsonl"], rows, tokenizer)


if __name__ == "__main__":
    fail_clearly(main)
