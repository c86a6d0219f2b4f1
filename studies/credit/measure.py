"""Measure how well the credit of each advantage estimator agrees with the true advantage.

The policy of each checkpoint plays --group_size games on each of --num_groups boards of FrozenLake
or Sokoban. For every turn, the script computes

- the true advantage under this policy, estimated by Monte Carlo: the game is continued --draws
  times from the exact state before the turn, and --draws times after the turn's reply;
- the exact advantage under optimal play;
- the credit that each estimator of train.py assigns to the turn (the mean advantage of its tokens).

    python -m studies.credit.measure out/frozenlake_ppo out/sokoban_ppo --checkpoints=start,end
    python -m studies.credit.measure out/A out/A_s1 out/A_s2 --out=out/credit_A  # seeds of a method
    python -m studies.credit.measure out/A --checkpoints=end --draws=64 --num_groups=64

To measure checkpoints between start and end, train with --save_every=20 --keep_checkpoints=99.
"start" is the model before training, and "end" is the newest checkpoint. A checkpoint that has a
file in OUT/cases is not measured again. Results go to OUT/credit.json, .md and .png (explained in
studies/credit/README.md).
"""

from configurator import Config, UserError

from studies.credit.arguments import CreditJob, read_credit
from support.terminal import run_main

if __name__ == "__main__":
    run_main(read_credit)  # reports wrong arguments before the slow imports

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import parallel
from learner import Learner, build_learner
from studies.credit.estimators import (
    credits_of,
    credits_of_alternatives,
    critic_values,
    estimators_of,
)
from studies.credit.optimal import optimal_advantages, planner_rewards, shuffle_within_games
from studies.credit.play import Player, RecordedGame, monte_carlo, play_groups
from studies.credit.report import write_report
from support.checkpoint import load_learner
from utils.files import read_json, write_atomically

SEED_SHUFFLE = 65  # play.py has the seeds of the other random streams
PLANNER = "planner's step reward"
SHUFFLED = "planner's step reward, shuffled"
DIGITS = 6  # decimal places of the numbers in OUT/cases


def main(argv: list[str]) -> None:
    job = read_credit(argv)
    cases = []
    for run, config in job.runs.items():
        cases += measure_run(job, run, config)
    print(write_report(Path(job.options["out"]), cases))


def measure_run(job: CreditJob, run: str, config: Config) -> list[dict]:
    cases = {}  # maps a checkpoint's label to its measurements, or to None if there are none
    for label, folder in job.checkpoints[run].items():
        settings = settings_of_case(job, run, config, folder)
        cases[label] = read_case(case_path(job, run, folder), settings)
    if None in cases.values():
        measure_missing(job, run, config, cases)
    # If training goes on, "end" will mean a later checkpoint. So the files in OUT/cases hold no
    # labels, and the labels are added here.
    return [{**case, "label": label} for label, case in cases.items()]


def measure_missing(
    job: CreditJob, run: str, config: Config, cases: dict[str, dict | None]
) -> None:
    """Measure the checkpoints whose value in `cases` is None. Put the measurements into `cases`."""
    device = parallel.init_distributed(config)
    learner, engine, chat = build_learner(config, device)
    # The checkpoint "start" has no folder: its weights are the initial weights of the learner.
    # `load_learner` overwrites the initial weights, so `job.checkpoints` lists "start" before all
    # other checkpoints.
    for label, folder in job.checkpoints[run].items():
        if cases[label] is not None:
            continue
        if folder:
            load_learner(learner, folder)
        parallel.sync_weights(engine, learner.policy)
        measured = measure_policy(learner, Player(engine, chat, config), job.options["draws"])
        case = {**settings_of_case(job, run, config, folder), **measured}
        path = case_path(job, run, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(case) + "\n")
        print(f"{path}: written, {case['cpu_s']:.0f} CPU-s", flush=True)
        cases[label] = case
    parallel.shut_down(engine)


def case_path(job: CreditJob, run: str, folder: Path | None) -> Path:
    step = folder.name if folder else "start"
    return Path(job.options["out"], "cases", f"{Path(run).name}-{step}.json")


def settings_of_case(job: CreditJob, run: str, config: Config, folder: Path | None) -> dict:
    return {
        "run": str(Path(run)),
        "checkpoint": folder.name if folder else "start",
        "draws": job.options["draws"],
        **asdict(config),
    }


def read_case(path: Path, settings: dict) -> dict | None:
    """Read the file that an earlier call of this script wrote. Return None if there is no file.

    Raises: UserError if the earlier call had other settings."""
    if not path.is_file():
        return None
    case = read_json(path, {"turns": {}})
    differing = [key for key, value in settings.items() if case.get(key) != value]
    if differing:
        raise UserError(
            f"{path} was measured with other settings ({', '.join(differing)}); give another --out"
        )
    return case


# ---------- one policy


def measure_policy(learner: Learner, player: Player, num_draws: int) -> dict:
    """Play games, continue them from every turn, and assign credit.

    Returns:
        "success": share of won games.
        "cpu_s": CPU seconds.
        "turns": maps the name of a quantity, such as "reward", to its values in the K turns of all
            games. "critic" maps to None if the run has no critic.
        "credits": maps the name of an estimator or control (see `controls`) to two lists of K
            credits. The first list has the credits of the turns in the games that were played. The
            second list has the credit that each turn gets if its game goes on differently after
            the turn's reply.
    """
    config = player.config
    began = time.process_time()
    games = play_groups(player, config.num_groups, config.group_size)
    continuations = monte_carlo(player, games, num_draws)
    credits = {}
    for name, settings in estimators_of(learner).items():
        assigned = credits_of(learner, games, settings)
        otherwise = credits_of_alternatives(learner, games, continuations.alternatives, settings)
        credits[name] = [rounded(assigned), rounded(otherwise)]
    credits.update(controls(games, continuations.alternatives, config.seed))
    return {
        "success": float(np.mean([game.trajectory.success for game in games])),
        "cpu_s": time.process_time() - began,
        "turns": {
            **positions(games, config.group_size),
            "reward": rounded([turn.reward for game in games for turn in game.trajectory.turns]),
            "optimal": rounded(optimal_advantages(games)),
            "critic": rounded(critic_values(learner, games)) if learner.critic else None,
            "before": rounded(continuations.before),
            "reply": rounded(continuations.reply),
        },
        "credits": credits,
    }


def positions(games: list[RecordedGame], group_size: int) -> dict[str, list[int]]:
    columns = {"group": [], "game": [], "turn": []}
    for index, game in enumerate(games):
        for turn in range(game.num_turns):
            columns["group"].append(index // group_size)
            columns["game"].append(index)
            columns["turn"].append(turn)
    return columns


def controls(
    games: list[RecordedGame], alternatives: list[RecordedGame], seed: int
) -> dict[str, list]:
    """Return the credits of two controls: the planner's step rewards of K turns, and these rewards
    shuffled within each game.

    Returns: a dict that maps the name of a control to two lists of K credits, like "credits"
        in `measure_policy`."""
    assigned = planner_rewards(games)  # (K,)
    shuffled = shuffle_within_games(assigned, games, np.random.default_rng([seed, SEED_SHUFFLE]))
    rng = np.random.default_rng([seed, SEED_SHUFFLE, 1])
    otherwise = []
    otherwise_shuffled = []
    turns = [turn for game in games for turn in range(game.num_turns)]
    for turn, game in zip(turns, alternatives, strict=True):
        rewards = planner_rewards([game])
        otherwise.append(rewards[turn])
        otherwise_shuffled.append(rng.permutation(rewards)[turn])
    return {
        PLANNER: [rounded(assigned), rounded(otherwise)],
        SHUFFLED: [rounded(shuffled), rounded(otherwise_shuffled)],
    }


def rounded(numbers) -> list:
    return np.round(np.asarray(numbers, float), DIGITS).tolist()


if __name__ == "__main__":
    run_main(main)
