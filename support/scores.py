"""Scores of policies and players: metrics, a table, and differences between rows."""

from configurator import Config, UserError

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel import rank
from rollout import Trajectory
from support.budget_warnings import budget_note
from support.records import write_jsonl
from support.seed_groups import pool_seeds
from support.statistics import (
    difference_text,
    pass_at_k,
    rate_in_percent,
    rate_interval,
)
from utils.files import write_atomically

# Maps metrics to headings of the table. These columns stand to the right of success and pass@k.
COLUMNS = {
    "reward": "reward",
    "num_turns": "turns",
    "num_actions": "actions",
    "valid_frac": "valid",
    "effective_frac": "effective",
    "entropy": "entropy",
    "response_length": "tokens",
}


class Scores(NamedTuple):
    """The result of one policy or player: metrics by name, and the trajectories."""

    metrics: dict[str, float]
    trajectories: list[Trajectory]


class Row(NamedTuple):
    """A row of the table."""

    env: str
    name: str
    scores: Scores
    tokenizer: object | None = None  # of a loaded model, else None


def score(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute error_frac, pass@k, and the metrics of `summarize`.

    pass@k is a mean over prompts. Let n be the number of samples of the prompt with the fewest
    samples. Then k is 2, 4, 8, ... up to n, and n itself if n > 1."""
    successes = successes_by_prompt(trajectories)
    # pass@k needs at least k samples of each prompt. In a replay, some prompts can have more
    # samples than others, so the smallest number counts.
    samples = min(len(won) for won in successes.values())
    metrics = summarize(trajectories)
    num_errors = sum(trajectory.status == "error" for trajectory in trajectories)
    metrics["error_frac"] = num_errors / len(trajectories)
    ks = [2**i for i in range(1, samples.bit_length())]  # 2, 4, 8, ...
    if samples not in (1, *ks):
        ks.append(samples)
    for k in ks:
        chances = [pass_at_k(len(won), sum(won), k) for won in successes.values()]
        metrics[f"pass@{k}"] = sum(chances) / len(successes)
    return metrics


def successes_by_prompt(trajectories: Sequence[Trajectory]) -> dict[tuple[int, ...], list[bool]]:
    """Map the seed of each prompt to a list with the success of each sample."""
    successes = defaultdict(list)
    for trajectory in trajectories:
        successes[trajectory.seed].append(trajectory.success)
    return successes


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute metrics that support/metrics.py lists in the group "rollout".

    thought_true_frac is the share of true sentences among the checked sentences of thoughts. All
    other metrics are means over trajectories or turns.
    """
    num_trajectories = len(trajectories)
    records = [turn.record for trajectory in trajectories for turn in trajectory.turns]
    num_turns = len(records)
    num_checked = sum(record.statements_checked for record in records)
    num_true = sum(record.statements_true for record in records)
    num_tokens = sum(trajectory.num_response_tokens for trajectory in trajectories)
    ends = Counter(trajectory.end for trajectory in trajectories)
    cuts = Counter(record.cut_by for record in records)
    num_cut = num_turns - cuts[None]
    return {
        "success": sum(trajectory.success for trajectory in trajectories) / num_trajectories,
        "reward": sum(trajectory.score for trajectory in trajectories) / num_trajectories,
        "void_frac": sum(trajectory.has_void_turn for trajectory in trajectories)
        / num_trajectories,
        "num_turns": num_turns / num_trajectories,
        "num_actions": sum(record.num_actions for record in records) / num_trajectories,
        "valid_frac": sum(record.format_ok for record in records) / num_turns,
        "effective_frac": sum(record.effective for record in records) / num_turns,
        "thought_true_frac": num_true / max(num_checked, 1),
        "thoughts_per_turn": num_checked / num_turns,
        "response_length": num_tokens / num_trajectories,
        "lost_frac": ends["lost"] / num_trajectories,
        "out_of_actions_frac": ends["out_of_actions"] / num_trajectories,
        "out_of_turns_frac": ends["out_of_turns"] / num_trajectories,
        "out_of_tokens_frac": ends["out_of_tokens"] / num_trajectories,
        "cut_frac": num_cut / num_turns,
        "cut_by_context_frac": cuts["max_context_tokens"] / num_turns,
    }


# ---------- the table


def score_table(rows: dict[str, Scores]) -> str:
    """A Markdown table with a line for each policy or player; success and pass@k are in %."""
    pass_keys = []
    for scores in rows.values():
        pass_keys += [key for key in scores.metrics if key.startswith("pass@")]
    pass_keys = list(dict.fromkeys(pass_keys))
    head = ["", "success % [95 %]", *pass_keys, *COLUMNS.values()]
    lines = [head, ["---"] * len(head)]
    for name, (metrics, trajectories) in rows.items():
        low, high = success_interval(trajectories)
        cells = [name, rate_in_percent(metrics["success"], low, high)]
        for key in pass_keys:
            cells.append(f"{100 * metrics[key]:.1f}" if key in metrics else "-")
        for key in COLUMNS:
            known = key in metrics
            if key == "response_length":  # 0 for a reference player: it samples no tokens
                known = metrics[key] > 0
            cells.append(f"{metrics[key]:.2f}" if known else "-")
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        texts.append(f"| {' | '.join(padded)} |")
    return "\n".join(texts)


def budget_notes(rows: dict[str, Scores]) -> str:
    """Return a line for each row that gets a `budget_note`, or "" if no row gets one."""
    lines = []
    for name, scores in rows.items():
        note = budget_note(scores.metrics)
        if note:
            lines.append(f"{name}: {note}")
    return "\n".join(lines)


def success_interval(trajectories: list[Trajectory]) -> tuple[float, float]:
    """95 % interval of the success rate, from `statistics.rate_interval`.

    Each prompt counts as one value, the mean over its samples."""
    low, high = rate_interval(rates_by_prompt(trajectories)[None])
    return float(low), float(high)


def rates_by_prompt(trajectories: list[Trajectory]) -> np.ndarray:
    """Return the success rates of the n prompts as an array (n,), in the order of their seeds."""
    successes = sorted(successes_by_prompt(trajectories).items())
    return np.array([np.mean(won) for _, won in successes])


def differences(
    rows: dict[str, Scores], reference: str, policies: dict[str, str] | None = None
) -> str:
    """The success of each row minus the success of a reference row in the same environment.

    The rows are paired by prompt. The differences are in %, each with a 95 % interval
    (`statistics.difference_interval`). `pool_seeds` pools models if their training differs only in
    the seed. After the lines of the rows, each pool gets a line for all its seeds together. The
    last lines say which models are not pooled with others, and why.

    Args:
        reference: the beginning of a row's name. A leading "ENV: " may be left out.
        policies: maps the name of a row to the folder of a model, or to the name of a player. If a
            row has no entry, the row's name is used instead.
    Raises: UserError if no row's name begins with `reference`, or if rows of one environment differ
        in their prompts."""
    texts = []
    for env in dict.fromkeys(scores.trajectories[0].env for scores in rows.values()):
        of_env = {}
        for name, scores in rows.items():
            if scores.trajectories[0].env == env:
                of_env[name] = scores
        matches = []
        for name in of_env:
            without_env = name.removeprefix(f"{env}: ")
            if name.startswith(reference) or without_env.startswith(reference):
                matches.append(name)
        if matches:
            texts.append(_differences_in_one_environment(of_env, matches[0], policies or {}))
    if not texts:
        names = " or ".join(repr(name) for name in rows)
        raise UserError(f"--against must be the beginning of {names}, got {reference!r}")
    return "\n".join(texts)


def _differences_in_one_environment(
    rows: dict[str, Scores], reference: str, policies: dict[str, str]
) -> str:
    """The lines of `differences` for one environment; `reference` is a row's full name."""
    prompts = {tuple(sorted(successes_by_prompt(row.trajectories))) for row in rows.values()}
    if len(prompts) > 1:
        raise UserError("rows of different prompts cannot be paired; leave out --against")
    rates = {name: rates_by_prompt(scores.trajectories) for name, scores in rows.items()}
    # Maps the label of an output line to the names of the rows that the line compares.
    compared = {name: [name] for name in rates if name != reference}
    models = [name for name in compared if "entropy" in rows[name].metrics]  # not players
    pools = pool_seeds({name: policies.get(name, name) for name in models})
    for seeds in pools.seeds:
        compared[f"{len(seeds)} seeds: {', '.join(seeds)}"] = seeds
    lines = [f"success - {reference}, paired by prompt, % [95 %]:"]
    for label, names in compared.items():
        seeds = np.stack([rates[name] for name in names])  # (S, n)
        base = rates[reference][None]  # (1, n)
        lines.append(f"  {label}: {difference_text(seeds, base)}")
    if len(models) > 1:
        lines += [f"  {note}" for note in pools.notes]
    return "\n".join(lines)


class ScoreReport:
    """Collects rows of an evaluation, prints the table, writes the files of --json and --jsonl."""

    def __init__(self, config: Config, options: dict, envs: list[str]):
        self.config = config
        self.options = options
        self.envs = envs
        self.rows: dict[str, Scores] = {}
        # Maps a row's title to a model's folder or a player's name.
        self.policies: dict[str, str] = {}
        self.start_cpu_s = time.process_time()

    def add(self, row: Row) -> None:
        """Add a row to the table, and write its trajectories to the file of --jsonl."""
        title = row.name if len(self.envs) == 1 else f"{row.env}: {row.name}"
        if title in self.rows:  # possible in tools.replay
            title += f" ({len(self.rows) + 1})"
        self.rows[title] = row.scores
        self.policies[title] = row.name
        if self.options["jsonl"] and rank() == 0:
            mode = "w" if len(self.rows) == 1 else "a"
            write_jsonl(self.options["jsonl"], {row.name: row.scores}, row.tokenizer, mode)

    def finish(self) -> None:
        """Print the table, write the file of --json, and print the differences of --against."""
        print(score_table(self.rows))
        notes = budget_notes(self.rows)
        if notes:
            print(notes)
        prompts = set()
        for scores in self.rows.values():
            prompts.update(trajectory.seed for trajectory in scores.trajectories)
        cpu_s = time.process_time() - self.start_cpu_s
        print(
            f"{', '.join(self.envs)}, {len(prompts)} {self.config.eval_split} prompts, "
            f"T={self.config.eval_temperature}, {cpu_s:.1f} CPU-s"
        )
        if self.options["json"] and rank() == 0:
            self._write_json(Path(self.options["json"]))
        for option in ("json", "jsonl"):
            if self.options[option]:
                print(f"wrote {self.options[option]}")
        # If --against names no row, `differences` raises an error. `differences` is called last,
        # so that this error loses no results.
        if self.options["against"]:
            print(differences(self.rows, self.options["against"], self.policies))

    def _write_json(self, path: Path) -> None:
        rows = {}
        for name, (metrics, trajectories) in self.rows.items():
            successes = [int(trajectory.success) for trajectory in trajectories]
            rows[name] = {
                **metrics,
                "n": len(successes),
                "interval": success_interval(trajectories),
                "successes": successes,
            }
        write_atomically(path, json.dumps(rows, indent=1) + "\n")
