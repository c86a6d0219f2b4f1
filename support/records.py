"""Trajectories as texts and in JSON-lines files.

A run writes trajectories.jsonl, eval_start.jsonl and eval_final.jsonl. eval.py and scripts
that share its options write the file named by --jsonl.
"""

from __future__ import annotations

from configurator import UserError

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dialogue import cut_fault
from rollout import Trajectory, Turn
from utils.files import append_to, parse_json, read_text, replace_file
from utils.text import printable

if TYPE_CHECKING:  # torch is slow to import
    from torch import Tensor

TURN = {  # the shape of a turn, see utils/json_shapes.py
    "observation": str,
    "response": str,
    "actions": [str],
    "format_ok": bool,
    "reward": float,
    "tokens": [str],
    "surprise": [float],
    "closing": (str, ...),
    "error": (str, ...),
    "moves": ([str], ...),
    "faults": ([str], ...),
    "out_of_actions": (bool, ...),
    "cut_by": (str, ...),
    "statements_checked": (int, ...),
    "statements_true": (int, ...),
    "false_statements": ({str: str}, ...),
    "why_lost": (str, ...),
    "advantage": (float, ...),
    "value": (float, ...),
}
TRAJECTORY = {  # the shape of a line in a file of trajectories
    "env": str,
    "seed": [int],
    "split": (str, ...),
    "member": int,
    "status": str,
    "success": bool,
    "score": float,
    "system": str,
    "turns": [TURN],
    "kept": (bool, ...),
    "filter_value": (float, ...),
}


LOST = "the game was lost"
# Maps a status to the reason why a trajectory ended without a success. "error" is not a key,
# because each error has its own text.
REASONS = {
    "failure": "the game ended, or its last action was used, without a success",
    "out_of_turns": "the game was not over after max_turns replies",
    "out_of_tokens": "max_context_tokens had no room for another reply",
}


def why_ended(status: str, last: Mapping) -> str:
    """Why a trajectory ended, in words; "" for a success.

    Args: last: the facts of the last turn (`TurnRecord`). Old records lack some facts."""
    if status == "success":
        return ""
    if status == "error":
        return printable(last.get("error") or "the environment or the player failed")
    why_lost = printable(last.get("why_lost") or "")
    out_of_actions = last.get("out_of_actions")
    if status != "failure" or out_of_actions is None:
        reasons = [REASONS.get(status, ""), why_lost]
    elif out_of_actions:
        reasons = ["its last action was used", why_lost]
    else:
        reasons = [why_lost or LOST]
    if last.get("cut_by"):
        reasons.append(f"its last reply was cut off by {printable(last['cut_by'])}")
    return "; ".join(filter(None, reasons))


def transcript(trajectory: Trajectory) -> str:
    """A trajectory as text: dialogue, false sentences in thoughts, cut-offs, rewards and end."""
    parts = [trajectory.env]
    for turn in trajectory.turns:
        parts += [turn.observation, turn.text]
        false_statements = turn.record.false_statements or {}
        for sentence, fact in false_statements.items():
            parts.append(f"false: {sentence} The fact: {fact}")
        if turn.record.cut_by:
            parts.append(cut_fault(len(turn.response_ids), turn.record.cut_by))
        parts.append(f"reward {turn.reward:g}")
    reason = why_ended(trajectory.status, vars(trajectory.turns[-1].record))
    end = f"{trajectory.status} ({reason})" if reason else trajectory.status
    parts.append(f"{end}, score {trajectory.score:g}")
    return "\n\n".join(parts)


def trajectory_record(trajectory: Trajectory, tokenizer=None) -> dict:
    """Convert a trajectory into a dict for JSON.

    Args: tokenizer: decodes the response tokens; None if the tokens are texts (models behind an
        API) or if there are no tokens (scripted players)."""
    record = {
        "env": trajectory.env,
        "seed": trajectory.seed,
        "split": trajectory.split,
        "member": trajectory.member,
        "status": trajectory.status,
        "success": trajectory.success,
        "score": trajectory.score,
        "system": trajectory.system,
        "turns": [turn_record(turn, tokenizer) for turn in trajectory.turns],
    }
    for key in ("kept", "filter_value"):
        if getattr(trajectory, key) is not None:
            record[key] = getattr(trajectory, key)
    return record


def turn_record(turn: Turn, tokenizer) -> dict:
    """Convert a turn into a dict.

    "surprise" lists -log p of each response token under the rollout engine, in nats."""
    facts = {**asdict(turn.record), **asdict(turn.credit)}
    known = {key: value for key, value in facts.items() if value is not None}
    if tokenizer:
        tokens = [
            tokenizer.decode([token], clean_up_tokenization_spaces=False)
            for token in turn.response_ids
        ]
    else:
        tokens = list(turn.response_ids)
    surprise = [round(-logprob, 4) for logprob in turn.rollout_logprobs]
    if any(math.isnan(nats) for nats in surprise):
        surprise = []  # vLLM returned no log-probs
    return {
        "observation": turn.observation,
        "response": turn.text,
        **known,
        "reward": turn.reward,
        "tokens": tokens,
        "surprise": surprise,
    }


def note_filter(
    trajectories: Sequence[Trajectory], values: Tensor, groups: Tensor, group_size: int
) -> None:
    """Store in each trajectory whether the filter kept its group, and the group's filter value.

    Args:
        values: (P,), the filter value of each group. The filter ranks the groups by these values.
        groups: indices of the kept groups."""
    kept = set(groups.tolist())
    for index, trajectory in enumerate(trajectories):
        group = index // group_size
        trajectory.kept = group in kept
        trajectory.filter_value = round(values[group].item(), 6)


def note_credit(kept: Sequence[Trajectory], advantages: Tensor, values: Tensor | None) -> None:
    """Store in each turn its mean advantage, and the critic's value at the first response token.

    Args: advantages, values: (R,), one per response token; values is None without a critic."""
    turns = [turn for trajectory in kept for turn in trajectory.turns]
    lengths = [len(turn.response_ids) for turn in turns]
    for turn, of_turn in zip(turns, advantages.cpu().split(lengths), strict=True):
        turn.credit.advantage = round(of_turn.mean().item(), 6)
    if values is None:
        return
    for turn, of_turn in zip(turns, values.cpu().split(lengths), strict=True):
        turn.credit.value = round(of_turn[0].item(), 6)


def write_jsonl(path: str | Path, rows: dict, tokenizer=None, mode: str = "w") -> None:
    """Write a line for each trajectory in `rows`.

    A line has the keys of `trajectory_record`, and also "policy" and "entropy". "policy" is the
    key in `rows` of the `Scores` that hold the trajectory. "entropy" is the metric "entropy" of
    these `Scores`.

    Args: rows: maps names to `Scores` (support/scores.py). The names are environments in
        train.py, and policies or players in eval.py and scripts that share its options."""
    with replace_file(path) if mode == "w" else append_to(Path(path)) as file:
        for name, scores in rows.items():
            head = {"policy": name, "entropy": scores.metrics.get("entropy")}
            for trajectory in scores.trajectories:
                record = {**head, **trajectory_record(trajectory, tokenizer)}
                file.write(json.dumps(record) + "\n")


def write_samples(
    path: Path, step: int, trajectories: Sequence[Trajectory], group_size: int, tokenizer
) -> None:
    """Append trajectories of a training iteration to a file."""
    with append_to(path) as file:
        for index, trajectory in enumerate(trajectories):
            head = {"step": step, "group": index // group_size}
            record = {**head, **trajectory_record(trajectory, tokenizer)}
            file.write(json.dumps(record) + "\n")


def read_records(path: str | Path, shape: dict) -> list[dict]:
    """Read the lines of a file of trajectories.

    Args: shape: the shape of each line, see utils/json_shapes.py.
    Raises: UserError if a line does not have this shape, if its seed or its list of turns is
        empty, or if the file has no trajectories.
    """
    records = []
    for number, line in enumerate(read_text(Path(path)).split("\n"), start=1):
        if not line:
            continue
        source = f"{path}:{number}"
        record = parse_json(line, shape, source)
        for key in ("seed", "turns"):
            if not record[key]:
                raise UserError(f"{source} holds no trajectory: {key!r} is empty")
        records.append(record)
    if not records:
        raise UserError(f"{path} holds no trajectories")
    return records
