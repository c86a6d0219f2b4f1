"""Train one seed of a `Curve` (studies/experiments.py) and keep its results as a row.

A row is one JSON file in studies/STUDY/rows/: the settings, commit, machine, costs and metrics of a
run.
"""

from configurator import Config

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from studies.experiments import (
    COLLAPSE_SIGNS,
    THOUGHTS,
    TRAINING,
    Command,
    Curve,
    settings_of,
    sft_command,
    train_command,
)
from support.collapse_signs import new_warnings
from support.run_folder import FORMER_SETTINGS, load_saved, with_present_names
from support.seed_groups import without_seed
from utils.files import append_to, read_json, read_rows, write_atomically

ROOT = Path(__file__).resolve().parent.parent
STUDIES = Path("studies")
OTHER_ROWS = STUDIES / "imitation" / "rows"  # has files of another format
# Settings that change only what a run records. Rows that differ only in these settings count as
# one run.
ONLY_WRITING = ("sample_every", *FORMER_SETTINGS)
# A row holds the value of each of these metrics in every iteration. Older rows have no valid_frac.
SERIES = (*TRAINING, *COLLAPSE_SIGNS, *THOUGHTS, "valid_frac")


def finished_rows() -> dict[Config, dict]:
    """Map the settings of each run to its row, from the files in studies/*/rows/.

    The files in OTHER_ROWS are left out. The values of settings in ONLY_WRITING are ignored.
    Settings that a row lacks get their defaults. Rows with unknown settings are left out. A row of
    the tiny model is left out if its run started from other weights than those in base/.
    """
    found = {}
    known = {field.name for field in fields(Config)}
    for path in sorted(STUDIES.glob("*/rows/*.json")):
        if path.parent == OTHER_ROWS:
            continue
        row = read_json(path, {"command": str, "settings": {}})
        same_base = row.get("base") == base_of(row["command"].split())
        settings = {**with_present_names(row["settings"]), "out_dir": ""}
        for key in ONLY_WRITING:
            settings.pop(key, None)
        if same_base and settings.keys() <= known:
            found[Config(**settings)] = row
    return found


def rows_of(curves: dict[str, Curve], scale: str) -> dict[str, list[dict]]:
    """Map the label of a curve to the rows of its finished runs, ordered by seed."""
    rows = finished_rows()
    found = {}
    for label, curve in curves.items():
        method = without_seed(settings_of(curve, scale, seed=0))
        configs = [config for config in rows if without_seed(config) == method]
        configs.sort(key=lambda config: config.seed)
        found[label] = [rows[config] for config in configs]
    return found


def base_of(arguments: Sequence[str]) -> str:
    """Return a hash of the weights in base/ if a command reads config/models/tiny.py, else ''."""
    if not any(argument.endswith("/tiny.py") for argument in arguments):
        return ""
    weights = (ROOT / "base" / "model.safetensors").read_bytes()
    return hashlib.sha256(weights).hexdigest()[:12]


def run(curve: Curve, scale: str, seed: int, study: str) -> str:
    """Train one seed of a curve and write its row into studies/STUDY/rows/. Returns: the failure in
    words, or '' after success."""
    command = train_command(curve, scale, seed)
    config = command.config()
    out_dir = command.out_dir
    failure = launch(command)
    if failure:
        return failure
    if load_saved(out_dir) != config:
        return f"{out_dir} holds a run with other settings; remove it"
    row = make_row(command, config, sft_command(curve, scale, seed))
    path = STUDIES / study / "rows" / f"{out_dir.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(row) + "\n")
    print(f"{path}: written", flush=True)
    return ""


def launch(command: Command) -> str:
    """Start or continue a command and wait for its end. Returns: the failure in words, or ''
    after success."""
    out_dir = command.out_dir
    log = Path(f"{out_dir}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    base = base_of(command.arguments)
    started_from = Path(f"{out_dir}.base")  # hash of the weights in base/ at the first launch
    if base and out_dir.exists():
        same_base = started_from.is_file() and started_from.read_text() == base
        if not same_base:
            return f"{out_dir} may have started from other weights than those in base/; remove it"
    write_atomically(started_from, base)
    with append_to(log) as output:
        words = [sys.executable, *command.script, *command.arguments]
        code = subprocess.run(words, stdout=output, stderr=output).returncode
    return f"{out_dir.name}: failed with exit code {code}, see {log}" if code else ""


# ---------- what a row holds


def make_row(command: Command, config: Config, sft: Command | None) -> dict:
    """Return the row of a finished run, from the files in its folder.

    "curve" holds the success at each evaluation. "series" holds the metrics of every iteration.
    "successes" holds a list for each pair of an environment and a player. The players are the
    reference players, the policy before RL and the policy after RL. A list has a number for each
    evaluation prompt: 1 for success, 0 for failure."""
    out_dir = command.out_dir
    steps = read_rows(out_dir / "metrics.jsonl")
    num_steps = max(1, len(steps))
    wall_s = sum(step["rollout_s"] + step["update_s"] for step in steps)
    series = {}
    for key in SERIES:
        series[key] = rounded([step[key] for step in steps])
    return {
        "command": str(command),
        "settings": asdict(config),
        "git_commit": read_json(out_dir / "config.json", {})["git_commit"],
        "base": base_of(command.arguments),
        "machine": describe_machine(),
        "iterations": len(steps),
        "cpu_s_per_iteration": sum(step["cpu_s"] for step in steps) / num_steps,
        "wall_s_per_iteration": wall_s / num_steps,
        "costs": costs_of(config, sft, steps),
        "curve": evaluations_of(steps),
        "series": series,
        "first_warning": first_warning(steps),
        "successes": read_json(out_dir / "scores.json", {str: {str: [int]}}),
    }


def describe_machine() -> str:
    import torch  # slow to import, and not needed for tables

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = f"{os.cpu_count()} cores"
    return ", ".join([cores, platform.machine(), gpu, f"Python {platform.python_version()}"])


def costs_of(config: Config, sft: Command | None, steps: Sequence[dict]) -> dict[str, float]:
    """Return how much data and CPU time a run used.

    "demonstrations" counts each demonstration once. "times shown" counts a demonstration each time
    that SFT trains on it. "instances" counts the initial states, one for each group.
    "tokens, expert" counts a token of a reply each time that SFT trains on it. "tokens, policy"
    counts the tokens of replies in rollouts. With dynamic sampling (sampling_rounds > 1), an
    iteration can sample more than num_groups groups. But "instances", "rollouts" and
    "tokens, policy" are computed as if every iteration sampled exactly num_groups groups. The CPU
    times do not include evaluations.
    """
    shown = 0
    different = 0
    sft_totals = {"response_tokens": 0, "cpu_s": 0.0}
    if sft:
        stage = sft.config()
        shown = stage.sft_steps * stage.sft_batch_size
        different = min(shown, stage.sft_demos or shown)
        sft_totals = read_rows(sft.out_dir / "curve.jsonl")[-1]
    rollouts = config.num_groups * config.group_size  # in an iteration
    return {
        "demonstrations": different,
        "times shown": shown,
        "instances": config.num_groups * len(steps),
        "rollouts": rollouts * len(steps),
        "tokens, expert": sft_totals["response_tokens"],
        "tokens, policy": rollouts * sum(step["response_length"] for step in steps),
        "CPU-s, SFT": sft_totals["cpu_s"],
        "CPU-s, RL": sum(step["cpu_s"] for step in steps),
    }


def evaluations_of(steps: Sequence[dict]) -> dict[int, float]:
    values = {step["step"]: step["eval_success"] for step in steps}
    return {iteration: value for iteration, value in values.items() if value is not None}


def rounded(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is None else float(f"{value:.5g}") for value in values]


def first_warning(steps: Sequence[dict]) -> list | None:
    """Return the iteration and the text of the first warning of collapse, or None."""
    for num_steps, step in enumerate(steps, 1):
        sentences = new_warnings(steps[:num_steps])
        if sentences:
            return [step["step"], sentences[0]]
    return None
