"""Collect what the page of tools/view.py shows of one or two runs, as data for JSON."""

from configurator import Config, UserError

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from dialogue import IM_END, cut_fault, parse_response, sentences_of
from support.records import LOST, TRAJECTORY, read_records, why_ended
from support.run_folder import load_saved
from support.settings_history import (
    evaluations_changed_at,
    read_earlier,
    without_old_evaluations,
)
from tools.viewer.pictures import COLORS, LAYERS, cells_of, split_message
from utils.files import read_json, read_rows
from utils.text import printable

STAGES = {  # maps a file of a run to the stage of its trajectories; None means training
    "eval_start.jsonl": "before RL",
    "trajectories.jsonl": None,
    "eval_final.jsonl": "after RL",
}
# Maps a metric in metrics.jsonl to its name on the page.
CURVES = {
    "success": "success",
    "reward": "reward",
    "in_group_reward_std": "spread of the scores in a group",
    "entropy": "entropy, nats a token",
    "valid_frac": "valid replies",
    "response_length": "tokens in a trajectory",
    "cut_frac": "replies that were cut off",
    "out_of_tokens_frac": "games that ran out of tokens",
    "grad_norm": "gradient norm",
}
NUMBER = (float, None)
ROW = {
    "step": int,
    "eval_success": (NUMBER, ...),
    "kept_groups": (NUMBER, ...),
    **dict.fromkeys(CURVES, (NUMBER, ...)),
}
OUTCOMES = {  # maps a status to words for how the trajectory ended
    "success": "success",
    "out_of_turns": "out of turns",
    "out_of_tokens": "out of tokens",
    "error": "error",
}
RANKED_BY = {  # maps a value of filter_by to words for the quantity that ranks the groups
    "reward_std": "the standard deviation of its scores",
    "reward_mean": "its mean score",
    "entropy": "its entropy",
    "length": "its mean length",
}
NOT_IN_FORM = "The reply was not in the required form."
REWARD_SENTENCE = re.compile(r"Reward \S+\.\s*")  # a report on a reply begins with this sentence
SHOWN_OUTSIDE = 40  # at most this many characters outside of a reply's tags are quoted


def load_runs(runs: Sequence[Path]) -> dict:
    """Collect what the page shows of one run, or of two runs to compare.

    Args:
        runs: folders of runs, or files of trajectories that --jsonl of eval.py,
            tools.api_models or tools.replay wrote.

    Returns:
        runs: for each run, its name, reference players and the result of `describe_curves`.
        trajectories: list of dicts from `describe_trajectory`.
        texts: tokens and system messages; trajectories hold indices into this list.
        cells, layers, colors: how to draw boards; see tools/viewer/pictures.py.

    Raises:
        UserError: a folder has no trajectories, or a line of a file is not a trajectory.
    """
    text_ids: dict[str, int] = {}
    prompt_ids: dict[tuple, int] = {}
    described = []
    trajectories = []
    names = name_runs(runs)
    for number, run in enumerate(runs):
        config = Config()
        rows = []
        players = []
        if run.is_file():
            records = read_file(run)
        else:
            config = load_saved(run)
            rows = read_rows(run / "metrics.jsonl", shape=ROW)
            last_old = evaluations_changed_at(read_earlier(run), config)
            rows = without_old_evaluations(rows, last_old)
            records = read_trajectories(run)
            players = read_players(run / "scores.json")
        described.append(
            {"name": names[number], "players": players, **describe_curves(rows, records)}
        )
        for record, stage in records:
            # A file has no settings, so the system message tells whether replies have a thought.
            think = "<think>" in record["system"] if run.is_file() else config.think
            trajectory = describe_trajectory(record, stage, think, text_ids)
            trajectory["policy"] = stage if run.is_file() else None
            trajectory["run"] = number
            trajectory["filter"] = explain_filter(record, config, rows)
            trajectory["prompt"] = number_prompt(record, trajectory, prompt_ids)
            trajectories.append(trajectory)
    envs = {trajectory["env"] for trajectory in trajectories}
    layers = {}
    for name, shapes in LAYERS.items():
        layers[name] = [asdict(shape) for shape in shapes]
    return {
        "runs": described,
        "texts": list(text_ids),
        "cells": {env: cells_of(env) for env in envs},
        "layers": layers,
        "colors": {name: color._asdict() for name, color in COLORS.items()},
        "trajectories": trajectories,
    }


def read_trajectories(run: Path) -> list[tuple[dict, str | None]]:
    """Return the trajectories of a run, each with its stage (see STAGES).

    Raises: UserError if there are no trajectories, or if a line of a file is not a trajectory."""
    records = []
    for file, stage in STAGES.items():
        shape = TRAJECTORY if stage else {"step": int, "group": int, **TRAJECTORY}
        for line, record in enumerate(read_rows(run / file, shape=shape), start=1):
            if not record["turns"]:
                raise UserError(f"{run / file} holds a trajectory without turns")
            records.append(({**record, "file": file, "line": line}, stage))
    if not records:
        raise UserError(
            f"{run} holds no trajectories; expected a folder with one of {', '.join(STAGES)}"
        )
    return records


def read_file(path: Path) -> list[tuple[dict, str | None]]:
    """Return the trajectories of a file, each with the name of its policy.

    The name is None for a trajectory of training, and "recorded" if the file does not name the
    policy.

    Raises: UserError if there are no trajectories, or if a line of the file is not a trajectory."""
    shape = {"policy": (str, ...), "step": (int, ...), "group": (int, ...), **TRAJECTORY}
    records = []
    for line, record in enumerate(read_records(path, shape), start=1):
        is_training = "step" in record and "group" in record
        policy = record.get("policy", "recorded")
        # In eval_start.jsonl and eval_final.jsonl, train.py writes the environment under "policy".
        # So if "policy" is the environment, the file does not name the policy.
        if policy == record["env"]:
            policy = "recorded"
        stage = None if is_training else shown(policy)
        records.append(({**record, "file": path.name, "line": line}, stage))
    return records


# ---------- a run


def name_runs(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders or files.

    If two names are equal, each name starts with the name of its parent folder.

    Raises: UserError if a run is given twice."""
    folders = [run.resolve() for run in runs]
    if len(set(folders)) < len(folders):
        raise UserError(f"{runs[0]} is given twice; expected two runs or files to compare")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    return [shown(name) for name in names]


def describe_curves(rows: list[dict], records: list[tuple[dict, str | None]]) -> dict:
    """Return the data of the curves on the page.

    Args:
        rows: the rows of metrics.jsonl.
        records: the result of `read_trajectories` or `read_file`.

    Returns:
        steps: the iterations.
        curves: maps a metric of CURVES to its name and its values. Each iteration has one value,
            which is None if unknown.
        eval: (iteration, success rate in the first environment) for each evaluation. Iteration 0
            is the model before RL."""
    curves = {}
    for key, label in CURVES.items():
        values = [row.get(key) for row in rows]
        if any(value is not None for value in values):
            curves[key] = {"label": label, "values": values}
    evaluations = []
    started = [record for record, stage in records if stage == "before RL"]
    if started:
        first_env = started[0]["env"]
        evaluations.append((0, fmean(r["success"] for r in started if r["env"] == first_env)))
    for row in rows:
        if row.get("eval_success") is not None:
            evaluations.append((row["step"], row["eval_success"]))
    return {"steps": [row["step"] for row in rows], "curves": curves, "eval": evaluations}


def read_players(path: Path) -> list[tuple[str, float]]:
    """Return (name, success rate) for the greedy and the optimal player.

    The rates are those in the first environment of scores.json. If the file does not exist, the
    list is empty."""
    if not path.is_file():
        return []
    scores = next(iter(read_json(path, {str: {str: [int]}}).values()), {})
    players = []
    for name, successes in scores.items():
        player, _, way = name.partition(", ")
        if player in ("greedy", "optimal") and way in ("", "closed loop") and successes:
            players.append((player, fmean(successes)))
    return players


# ---------- a trajectory


def describe_trajectory(
    record: dict, stage: str | None, think: bool, text_ids: dict[str, int]
) -> dict:
    """Select and label what the page shows of a trajectory.

    Args:
        record, stage: a pair from `read_trajectories` or `read_file`.
        think: whether responses have a thought.
        text_ids: maps a text to its number; new texts are added.

    Returns:
        The dict in the `return` statement. Links to a trajectory contain its "address".
    """
    if stage is None:
        when = f"iteration {record['step']}"
        group = f"{when}, group {record['group']}"
        member = f"member {record['member']}"
        address = [str(record["step"]), str(record["group"]), str(record["member"])]
    else:
        when = stage
        group = f"prompt {', '.join(map(str, record['seed']))}"
        member = stage if not record["member"] else f"{stage}, member {record['member']}"
        address = [stage, "-".join(map(str, record["seed"])), str(record["member"])]
    env = shown(record["env"])
    last = record["turns"][-1]
    reason = why_ended(record["status"], last)
    turns = []
    for turn, following in zip(record["turns"], [*record["turns"][1:], None], strict=True):
        turns.append(describe_turn(turn, following, env, think, text_ids))
    return {
        "env": env,
        "status": record["status"],
        "outcome": name_outcome(record["status"], last.get("out_of_actions")),
        "reason": "" if reason == LOST else reason,  # the field "outcome" says "lost" already
        "success": record["success"],
        "score": record["score"],
        "when": when,
        "group": group,
        "member": member,
        "address": address,
        "is_training": stage is None,
        "file": record["file"],
        "line": record["line"],
        "seed": record["seed"],
        "kept": record.get("kept"),
        "system": number_text(record["system"], text_ids),
        "turns": turns,
    }


def name_outcome(status: str, out_of_actions: bool | None) -> str:
    if status == "failure" and out_of_actions is not None:
        return "out of actions" if out_of_actions else "lost"
    return OUTCOMES.get(status, "failure")


def number_prompt(record: dict, trajectory: dict, prompt_ids: dict[tuple, int]) -> int:
    """Return the number of a trajectory's prompt. Trajectories of one run or of two runs share a
    number if their iteration, environment, first observation and seed are equal."""
    first = trajectory["turns"][0]
    start = (trajectory["env"], first["board"], first["text"], *record["seed"])
    key = (record.get("step"), *start)
    return prompt_ids.setdefault(key, len(prompt_ids))


def explain_filter(record: dict, config: Config, rows: list[dict]) -> str:
    """Return a sentence on what the filter did with the trajectory's group; "" if unknown."""
    if "kept" not in record:
        return ""
    verb = "kept" if record["kept"] else "dropped"
    sentence = f"The filter {verb} this group"
    if "filter_value" in record:
        value = f"{record['filter_value']:.3g}"
        sentence += f": {RANKED_BY[config.filter_by]} is {value}"
    for row in rows:
        if row["step"] == record["step"] and row.get("kept_groups") is not None:
            num_kept = round(row["kept_groups"])
            sentence += f". It kept {num_kept} of {config.num_groups} groups"
    return f"{sentence}."


# ---------- a turn


def describe_turn(
    turn: dict, following: dict | None, env: str, think: bool, text_ids: dict[str, int]
) -> dict:
    """Select what the page shows of a turn.

    Args:
        following: the next turn, whose message reports on this turn; None for the last turn.
        env: the environment with its options.
        think, text_ids: as for `describe_trajectory`.

    Returns: the dict `described`. If a reply is in the required format, "reply" is empty, and the
        page shows the thought instead."""
    cells = cells_of(env)
    message = split_message(shown(turn["observation"]), cells)
    last_message = split_message(shown(turn.get("closing") or ""), cells)
    parsed = parse_response(turn["response"], think=think)
    # A reference player samples no tokens: the page shows its response as one token.
    tokens = turn["tokens"] or [turn["response"]]
    described = {
        **message._asdict(),  # the fields report, budget, board and text
        "final_board": last_message.board,  # after the last action of the trajectory
        "final_text": last_message.text,
        "thought": shown(parsed.thought),
        "reply": "" if parsed.well_formed else shown(turn["response"]),
        "actions": [shown(action) for action in turn["actions"]],
        "reward": turn["reward"],
        "well_formed": turn["format_ok"],
        "faults": explain_faults(turn, following, think),
        "cut": explain_cut(turn),
        "tokens": [number_text(token, text_ids) for token in tokens],
        "surprise": [round(100 * nats) for nats in turn["surprise"]],  # in 1/100 nat
        "statements": [turn.get("statements_checked", 0), turn.get("statements_true", 0)],
        "sentences": len(sentences_of(parsed.thought)),
    }
    if turn.get("false_statements"):
        described["marked_thought"] = mark_false(parsed.thought, turn["false_statements"])
    moves = [shown(move) for move in turn.get("moves", [])]
    if moves and len(moves) == len(turn["actions"]):
        described["moves"] = moves
    for key in ("advantage", "value"):
        if key in turn:
            described[key] = turn[key]
    return described


def mark_false(thought: str, false_statements: dict[str, str]) -> list[tuple[str, str]]:
    """Return (sentence, fact) for each sentence of a thought.

    `false_statements` maps each false sentence to the fact that the sentence contradicts. For every
    other sentence, the fact is "".

    >>> mark_false("Goal up. Go.", {"Goal up.": "Goal down."})
    [('Goal up.', 'Goal down.'), (' Go.', '')]
    """
    parts = []
    for sentence in re.findall(r"[^.]*\.|[^.]+", thought):
        stated = sentence.rstrip(".").strip() + "."
        parts.append((shown(sentence), shown(false_statements.get(stated, ""))))
    return parts


def explain_faults(turn: dict, following: dict | None, think: bool) -> list[str]:
    """Return sentences on why a reply is not valid; [] for a valid reply.

    Records of older versions lack the field "faults". For these records, the sentences come from
    the report on the reply, which is in the next message."""
    if turn["format_ok"]:
        return []
    faults = [shown(fault) for fault in turn.get("faults", [])]
    if not faults and following:
        report = split_message(shown(following["observation"]), {}).report
        rest = REWARD_SENTENCE.sub("", report, count=1)
        faults = [rest] if rest else []
    explanation = explain_form(turn["response"], think)
    if explanation:
        detailed = f"{NOT_IN_FORM[:-1]}: {shown(explanation)}."
        if any(NOT_IN_FORM in fault for fault in faults):
            faults = [fault.replace(NOT_IN_FORM, detailed) for fault in faults]
        else:
            faults.insert(0, detailed)
    cut = explain_cut(turn)
    if cut and cut not in faults:  # an older record
        faults.append(cut)
    return faults or ["The record does not say why the reply is not valid."]


def explain_cut(turn: dict) -> str:
    """Return a sentence on where a reply was cut off; "" for a complete reply.

    Records of older versions lack the field "cut_by". In these records, only a missing end-of-turn
    token shows that a reply was cut off."""
    num_tokens = len(turn["tokens"])
    if turn.get("cut_by"):
        return cut_fault(num_tokens, shown(turn["cut_by"]))
    was_sampled = bool(turn["surprise"])
    if was_sampled and num_tokens and turn["tokens"][-1] != IM_END:
        return f"The reply was cut off at {num_tokens} tokens."
    return ""


def explain_form(response: str, think: bool) -> str:
    """Say how a response violates the required format; "" for a response in this format.

    >>> explain_form("<think>go</think>Up", think=True)
    'it has no <answer>'
    """
    outside = ""
    rest = response
    for tag in ("think", "answer") if think else ("answer",):
        before, opened, rest = rest.partition(f"<{tag}>")
        if not opened:
            return f"it has no <{tag}>"
        _, closed, rest = rest.partition(f"</{tag}>")
        if not closed:
            return f"<{tag}> is not closed"
        outside += before
    outside = " ".join((outside + rest).split())
    if not outside:
        return ""
    if len(outside) > SHOWN_OUTSIDE:
        outside = f"{outside[:SHOWN_OUTSIDE]}..."
    return f'it has text outside of the tags, "{outside}"'


# ---------- texts


def shown(text: str) -> str:
    """Escape control characters and marks of writing direction, which could hide text."""
    if text.replace("\n", "").isprintable():
        return text
    # An escape has at most 10 characters, so `limit` cuts nothing.
    return printable(text, limit=10 * len(text) + 10, keep="\n\t")


def number_text(text: str, text_ids: dict[str, int]) -> int:
    """Return the number of a text. A new text gets the next number."""
    return text_ids.setdefault(shown(text), len(text_ids))
