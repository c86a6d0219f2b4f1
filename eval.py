"""Score policies and reference players on fixed prompts, 256 by default.

    python eval.py out/frozenlake_ppo --json=out/scores.json    # the policy of a run
    python eval.py out/A out/B --samples=4 --player=greedy      # all use the settings of out/A
    python eval.py out/A out/A_s1 --player=greedy --against=greedy      # adds paired differences
    python eval.py config/frozenlake_ppo.py --model=PATH,HUB/ID         # any models
    python eval.py config/frozenlake_ppo.py --player=optimal    # players: random, greedy, optimal

A policy samples at eval_temperature (0.5), with the config's limits on turns, actions and tokens.
In the printed table, all rows of one environment have the same instances and transition noise, so
rows can be paired by prompt. Training draws none of the fixed prompts. But in an environment with
too few instances, such as Bandit, `Env.repeats` is True, and training may draw the fixed prompts.

To choose settings, play other fixed prompts with --eval_split=heldout. --samples=N plays every
prompt N times and adds pass@k. --against=NAME prints each row's success minus that of row NAME,
paired by prompt. --json=PATH writes the scores. --jsonl=PATH writes the trajectories, which
`python -m tools.replay` can execute again. `python -m tools.api_models` scores a model behind an
API.
"""

from configurator import Config

from mixtures import scored_envs
from support.arguments import PLAYERS, Job, read_eval
from support.terminal import run_main

if __name__ == "__main__":
    run_main(read_eval)  # reports wrong arguments before the slow imports

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product

import numpy as np

from dialogue import Chat
from engine import Engine, make_engine
from envs import make_env, missing_method
from model import Policy, load_model
from parallel import (
    collect_all,
    forward_sequences,
    init_distributed,
    shut_down,
    sync_weights,
    world_size,
)
from players import reference_reply
from rollout import (
    Rollout,
    Trajectory,
    check_errors,
    make_episode,
    play_all,
    split_by_context,
)
from support.log import progress_bar
from support.no_effect import SCORING, print_unread
from support.scores import Row, ScoreReport, Scores, score

SETTINGS_READ = SCORING
SEED_EVAL = 21  # makes the random streams of evaluation differ from those of training


# ---------- the command


def main(argv: list[str]) -> None:
    job = read_eval(argv)
    report_rows(job, SETTINGS_READ, model_rows(job), player_rows(job))


def report_rows(job: Job, settings_read: str, *sources: Iterable[Row]) -> None:
    """Print the table of all rows, and write the files of --json and --jsonl.

    Args:
        settings_read: the names of the settings that the command of `job` reads, separated by
            blanks. `print_unread` warns of every other setting that the command line gives.
        sources: generators that play games and yield the rows."""
    init_distributed(job.config)
    print_unread(job.command, settings_read, job.sources)
    report = ScoreReport(job.config, job.options, scored_envs(job.config))
    for row in chain(*sources):
        report.add(row)
    report.finish()


def model_rows(job: Job) -> Iterator[Row]:
    """Score each model in every evaluation environment, one model after the other."""
    config = job.config
    for name in job.models:
        # `shut_down` destroys the process group after each model, so create the group again
        device = init_distributed(config)
        model, tokenizer = load_model(name, device=device)
        chat = Chat(tokenizer)
        engine = make_engine(config, model, chat)
        scores_of = evaluate_all(config, engine, chat, Policy(model), job.options["samples"])
        for env, scores in scores_of.items():
            yield Row(env, name, scores, tokenizer)
        shut_down(engine)


def player_rows(job: Job) -> Iterator[Row]:
    """Score the reference players of --player in each evaluation environment."""
    if not job.options["player"]:
        return
    players = job.options["player"].split(",")
    for env in scored_envs(job.config):
        rows = reference_rows(replace(job.config, env=env), players, job.options["samples"])
        for name, scores in rows.items():
            yield Row(env, name, scores)


# ---------- policies


def evaluate_all(
    config: Config, engine: Engine, chat: Chat, policy: Policy, samples: int = 1
) -> dict[str, Scores]:
    """Run `evaluate` in each evaluation environment. Returns: the scores of each environment."""
    return {
        env: evaluate(replace(config, env=env), engine, chat, policy, samples)
        for env in scored_envs(config)
    }


def evaluate(
    config: Config, engine: Engine, chat: Chat, policy: Policy, samples: int = 1
) -> Scores:
    """Play each fixed prompt `samples` times with a policy.

    The sampling noise of each game has its own fixed seed.
    Returns: the metrics, and the trajectories in the order of the prompts. The metrics are those
        that `score` computes, and the entropy. The entropy is the mean over the response tokens, in
        nats, at eval_temperature. If eval_temperature is 0 (greedy decoding), the entropy is
        computed at temperature 1."""
    starts = [((i,), member) for i, member in product(range(config.eval_size), range(samples))]
    sync_weights(engine, policy)
    name = f"eval {config.eval_split}"
    with progress_bar(total=len(starts), desc=name, unit="traj", leave=False) as bar:
        trajectories = collect_all(
            engine,
            policy,
            chat,
            config,
            starts,
            group_size=samples,
            split=config.eval_split,
            noise_seed=(SEED_EVAL,),
            temperature=config.eval_temperature,
            on_done=lambda: bar.update(world_size()),
        )
    check_errors(trajectories, config)
    sampled = [trajectory for trajectory in trajectories if trajectory.num_response_tokens]
    sequences = split_by_context(sampled, config)
    _, entropy = forward_sequences(
        policy, sequences, config, config.eval_temperature or 1.0
    )  # (R,)
    metrics = score(trajectories)
    metrics["entropy"] = entropy.mean().item()
    return Scores(metrics, trajectories)


# ---------- reference players


def play_references(config: Config) -> dict[str, dict[str, Scores]]:
    """For each evaluation environment, score the reference players that it supports.

    Returns: for each environment, a dict that maps the name of a row to its scores."""
    scores = {}
    for env in scored_envs(config):
        players = [player for player in PLAYERS if not missing_method(make_env(env), player)]
        scores[env] = reference_rows(replace(config, env=env), players)
    return scores


def reference_rows(
    config: Config, players: Iterable[str] = PLAYERS, samples: int = 1
) -> dict[str, Scores]:
    """Score the reference players. Return a dict that maps the name of a row to its scores."""
    rows = {}
    for name, settings in reference_settings(config, players).items():
        player = name.split(",")[0]  # "optimal, 2 a turn" -> "optimal"
        trajectories = play_reference(settings, player, samples)
        rows[name] = Scores(score(trajectories), trajectories)
    return rows


def reference_settings(config: Config, players: Iterable[str] = PLAYERS) -> dict[str, Config]:
    """Return a dict that maps the name of a reference player's row to the settings of its games.

    In a "closed loop" row the player has one action a turn and enough turns for all actions, so the
    player sees the result of each action. The optimal player also has rows with the policy's limit
    on turns and at most 1, 2 or 5 actions a turn. A row is omitted if it allows more actions a turn
    than the policy may take."""
    closed_loop = replace(config, max_turns=config.actions_per_traj, actions_per_turn=1)
    rows = {f"{player}, closed loop": closed_loop for player in players}
    if "optimal" in players:
        for num_actions in (1, 2, 5):
            if num_actions <= config.actions_per_turn:
                name = f"optimal, {num_actions} a turn"
                rows[name] = replace(config, actions_per_turn=num_actions)
    return rows


def play_reference(config: Config, player: str, samples: int = 1) -> list[Trajectory]:
    """Play each of the fixed prompts `samples` times with a reference player.

    The replies are parsed like those of a policy.
    Raises: UserError if too many games end in an error, see `rollout.check_errors`."""
    rollouts = []
    players = []
    for index, member in product(range(config.eval_size), range(samples)):
        rng = np.random.default_rng([SEED_EVAL, index, member])
        rollouts.append(Rollout(make_episode(config), (index,), member=member))
        players.append(partial(reference_reply, player, rng))
    trajectories = play_all(rollouts, players, config.eval_split)
    check_errors(trajectories, config)
    return trajectories


if __name__ == "__main__":
    run_main(main)
