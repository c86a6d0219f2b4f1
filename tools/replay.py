"""Play recorded games again with the same replies, and check that the same trajectories result.

    python -m tools.replay out/frozenlake_ppo --record=out/frozenlake_ppo/eval_final.jsonl

A record is a file with the trajectories of evaluations. A run writes two records, eval_start.jsonl
and eval_final.jsonl. The option --jsonl=PATH of eval.py, tools.api_models and tools.replay also
writes a record. Replay needs no model, because the record holds the replies. The command fails if a
new trajectory differs from the recorded trajectory. --json, --jsonl and --against work as in
eval.py.
"""

from configurator import Config, UserError

from pathlib import Path

from mixtures import scored_envs
from support.arguments import SCORING_OPTIONS, Job, read_scoring
from support.terminal import run_main
from utils.text import printable


def read_replay(argv: list[str]) -> Job:
    """Read the command line."""
    options = {**SCORING_OPTIONS, "record": ""}
    job = read_scoring(argv, options, "tools.replay", default_model=False, score_runs=False)
    if not job.options["record"]:
        given = " ".join(argv) or "nothing"
        raise UserError(
            "give --record=PATH, a file of trajectories that a run or eval.py --jsonl wrote; "
            f"got {given}"
        )
    if job.models or job.options["player"] or job.options["samples"] > 1:
        raise UserError("tools.replay takes no model, player or samples; it only plays the record")
    if not Path(job.options["record"]).is_file():
        raise UserError(f"record={job.options['record']!r} is not a file")
    return job


if __name__ == "__main__":
    run_main(read_replay)  # reports wrong arguments before the slow imports

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from eval import reference_settings, report_rows
from rollout import Reply, Rollout, Trajectory, make_episode, play
from support.no_effect import GAME, REWARDS
from support.records import read_records, trajectory_record
from support.scores import Row, Scores, score
from utils.time_limit import is_time_out

SETTINGS_READ = f"{GAME} {REWARDS} device num_threads eval_env eval_split eval_temperature"
RECORD = {  # keys and types of a line of a record, in the notation of utils/json_shapes.py
    "env": str,
    "seed": [int],
    "member": int,
    "turns": [
        {
            "response": str,
            "tokens": [str],
            "surprise": [float],
            "error": (str, ...),
            "cut_by": (str, ...),
        }
    ],
    "policy": (str, ...),
    "entropy": ((float, None), ...),
}

# keys that a turn in an older record may lack
NEW_FACTS = ("moves", "faults", "out_of_actions", "cut_by", "false_statements", "why_lost")


def main(argv: list[str]) -> None:
    job = read_replay(argv)
    report_rows(job, SETTINGS_READ, replayed_rows(job))


def replayed_rows(job: Job) -> Iterator[Row]:
    """Play every recorded trajectory again. Yield a row of scores for each evaluation of a policy
    in an environment.

    Raises: UserError before the first row, if the environment of a recorded game is not in
        `scored_envs(job.config)`. UserError after the last row, if a new trajectory differs from
        the record.
    """
    path = job.options["record"]
    # Maps (row, number of an evaluation) to the trajectories of the evaluation. A row is
    # (env, policy, entropy). The evaluations of a row are numbered from 1.
    groups = defaultdict(list)
    # Maps each game to the number of its trajectories read so far. An evaluation plays a game once,
    # so the second trajectory of a game belongs to a second evaluation.
    num_seen = Counter()
    # Both lists name games that differ from the record. A game is in `late` if the recorded game or
    # the replayed game timed out, otherwise in `different`.
    different = []
    late = []
    for record in read_replayable(path, scored_envs(job.config)):
        trajectory = replay(job.config, record)
        row = (record["env"], record["policy"], record["entropy"])
        game = (row, trajectory.seed, trajectory.member)
        num_seen[game] += 1
        groups[row, num_seen[game]].append(trajectory)
        played = json.loads(json.dumps(trajectory_record(trajectory)))
        if differs(record, played):
            name = f"prompt {trajectory.seed[0]} of {record['policy']} in {trajectory.env}"
            is_late = is_time_out(record["turns"][-1].get("error")) or is_time_out(trajectory.error)
            (late if is_late else different).append(name)
    for ((env, policy, entropy), _), trajectories in groups.items():
        metrics = score(trajectories)
        if entropy is not None:
            metrics["entropy"] = entropy
        yield Row(env, printable(policy, limit=80), Scores(metrics, trajectories))
    problems = []
    if different:
        problems.append(
            f"{len(different)} of the trajectories of {path} differ from their records, "
            f"the first: {different[0]}"
        )
    if late:
        problems.append(
            f"{len(late)} of the trajectories of {path} cannot be compared with their records, "
            "because the time limit of a turn was exceeded in one of the two, "
            f"the first: {late[0]}; "
            f"step_timeout_s is {job.config.step_timeout_s:g}"
        )
    if problems:
        raise UserError("; ".join(problems))


def read_replayable(path: str, legal_envs: list[str]) -> list[dict]:
    """Return the trajectories of a record, one dict for each line.

    Raises: UserError if a line is no trajectory, or if a game's environment is not in
        `legal_envs`."""
    records = []
    for record in read_records(path, RECORD):
        records.append({"policy": "recorded", "entropy": None, **record})
        # `env` may name a Python file. Somebody else may have written the record, so the record
        # must not decide which code runs. Only environments from the settings are played.
        if record["env"] not in legal_envs:
            raise UserError(
                f"{path} has games of {record['env']!r}; add --env={record['env']} to play these"
            )
    return records


def differs(record: dict, played: dict) -> bool:
    """Whether a replayed game differs from its record."""
    facts = {key: value for key, value in played.items() if key != "turns"}
    if "split" not in record:  # an older record
        del facts["split"]
    if {**record, **facts} != record or len(played["turns"]) != len(record["turns"]):
        return True
    for old, new in zip(record["turns"], played["turns"], strict=True):
        known = {key: value for key, value in new.items() if key in old or key not in NEW_FACTS}
        is_missing = any(key in old and key not in new for key in NEW_FACTS)
        if is_missing or {**old, **known} != old:
            return True
    return False


def replay(config: Config, record: dict) -> Trajectory:
    """Play a recorded trajectory again."""
    settings = reference_settings(config).get(record["policy"], config)
    settings = replace(settings, env=record["env"])
    rollout = Rollout(make_episode(settings), record["seed"], member=record["member"])
    rollout.reset(settings.eval_split)

    def recorded_reply(rollout: Rollout) -> Reply | None:
        turn_idx = len(rollout.trajectory.turns)
        if turn_idx == len(record["turns"]):
            return None
        turn = record["turns"][turn_idx]
        return Reply(
            turn["response"],
            response_ids=turn["tokens"],
            rollout_logprobs=[-nats for nats in turn["surprise"]],
            error=turn.get("error"),
            cut_by=turn.get("cut_by"),
        )

    return play(rollout, recorded_reply)


if __name__ == "__main__":
    run_main(main)
