"""Play recorded replies through parser and environments again, and check that nothing differs.

    python -m tools.replay out/frozenlake_ppo --record=out/frozenlake_ppo/eval_final.jsonl

It needs no model: the scores come from the replies in the record, which eval.py --jsonl or a run
wrote. The entropy is copied from the record. It fails if a trajectory differs from its record.
"""

from configurator import Config, UserError, run_main

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from eval import OPTIONS, Job, read_arguments, reference_settings, scored_envs
from parallel import init_distributed
from rollout import Conversation, Reply, Trajectory, make_episode, play
from support.records import trajectory_record
from support.scores import Row, ScoreReport, Scores, score

RECORD_KEYS = {"env", "seed", "member"}
TURN_KEYS = {"response", "tokens", "surprise"}


def main(argv: list[str]) -> None:
    job = read_arguments(argv, {**OPTIONS, "record": ""}, default_model=False, score_runs=False)
    if not job.options["record"]:
        raise UserError(f"--record=PATH is missing; got {argv}")
    if job.models or job.options["player"] or job.options["samples"] > 1:
        raise UserError("replay plays a record and nothing else: without model, player and samples")
    init_distributed(job.config)
    report = ScoreReport(job.config, job.options, scored_envs(job.config))
    for row in replayed_rows(job):
        report.add(row)
    report.finish()


def replayed_rows(job: Job) -> Iterator[Row]:
    """Play every trajectory of the record again; a row for each policy in it.

    Raises: UserError for games of an environment that is not scored here; after the last row, if
        a trajectory differs from its record."""
    path = job.options["record"]
    groups = defaultdict(list)  # (env, policy, entropy, evaluation) -> trajectories
    num_seen = Counter()  # how often a record repeats a game: it may hold several evaluations
    different = []
    for record in read_records(path, scored_envs(job.config)):
        trajectory = replay(job.config, record)
        row = (record["env"], record["policy"], record["entropy"])
        game = (row, trajectory.seed, trajectory.member)
        num_seen[game] += 1
        groups[row, num_seen[game]].append(trajectory)
        played = json.loads(json.dumps(trajectory_record(trajectory)))
        if {**record, **played} != record:
            name = f"prompt {trajectory.seed[0]} of {record['policy']} in {trajectory.env}"
            different.append(name)
    for ((env, policy, entropy), _), trajectories in groups.items():
        metrics = score(trajectories)
        if entropy is not None:
            metrics["entropy"] = entropy
        yield Row(env, policy, Scores(metrics, trajectories))
    if different:
        raise UserError(
            f"{len(different)} trajectories of {path} differ from their records, "
            f"the first: {different[0]}"
        )


def read_records(path: str, legal_envs: list[str]) -> list[dict]:
    """The lines of a record. Raises: UserError for a file that holds something else."""
    if not Path(path).is_file():
        raise UserError(f"record={path!r} does not exist")
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        records = [json.loads(line) for line in lines if line]
        is_whole = bool(records)
        for record in records:
            is_whole = is_whole and record.keys() >= RECORD_KEYS
            for turn in record["turns"]:
                is_whole = is_whole and turn.keys() >= TURN_KEYS
    except (ValueError, LookupError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise UserError(f"{path} does not hold trajectories as --jsonl writes them")
    for record in records:
        if record["env"] not in legal_envs:  # a name may be a file of code: a record cannot run it
            raise UserError(
                f"{path} has games of {record['env']!r}; add --env={record['env']} to play these"
            )
    return [{"policy": "recorded", "entropy": None, **record} for record in records]


def replay(config: Config, record: dict) -> Trajectory:
    """Play one recorded trajectory again."""
    settings = reference_settings(config).get(record["policy"], config)
    settings = replace(settings, env=record["env"])
    conversation = Conversation(make_episode(settings), record["seed"], member=record["member"])
    conversation.reset(settings.eval_split)

    def recorded_reply(conversation: Conversation) -> Reply | None:
        turn_idx = len(conversation.trajectory.turns)
        if turn_idx == len(record["turns"]):
            return None
        turn = record["turns"][turn_idx]
        return Reply(
            turn["response"],
            response_ids=turn["tokens"],
            rollout_logprobs=[-nats for nats in turn["surprise"]],
            error=turn.get("error"),
        )

    return play(conversation, recorded_reply)


if __name__ == "__main__":
    run_main(main)
