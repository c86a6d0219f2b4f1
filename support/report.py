"""The texts of a run: success at its start, a line per iteration, tables and hints at its end."""

from configurator import Config

import json
import math
import shlex
import shutil
from pathlib import Path

from mixtures import scored_envs, specs_that_run_programs
from support.budget_warnings import budget_note
from support.records import write_jsonl
from support.scores import Scores, budget_notes, score_table
from utils.files import read_text, write_atomically
from utils.text import printable

# Maps each metric in the printed line of an iteration to the width and decimal places of its value.
PRINTED = {
    "reward": "5.2",
    "success": "4.2",
    "in_group_reward_std": "4.2",
    "kept_groups": "3.0",
    "entropy": "5.3",
    "grad_norm": "5.2",
    "response_length": "3.0",
    "rollout_s": "5.2",
    "update_s": "5.2",
    "cpu_s": "5.2",
    "eval_success": "5.3",
}
EVAL_KEYS = (  # metrics of an evaluation; metrics.jsonl names them eval_NAME
    "success",
    "reward",
    "valid_frac",
    "entropy",
    "response_length",
    "error_frac",
    "lost_frac",
    "out_of_actions_frac",
    "out_of_turns_frac",
    "out_of_tokens_frac",
    "cut_frac",
    "cut_by_context_frac",
)
SHOWN_REPORT = 100_000  # at most this many characters of scores.md are printed
NEXT_STEPS = """
next steps, for example:
  python -m tools.view {run}    # a page with every turn; --panel: curves that warn of a collapse
  python eval.py {run}{env} --samples=4    # pass@k on the fixed prompts
  tensorboard --logdir {runs}"""


# ---------- while it runs


def print_start(config: Config, scores: dict[str, Scores]) -> None:
    """For each environment, print the success of the model before training."""
    for env, (metrics, _) in scores.items():
        prompts = f"{config.eval_size} {config.eval_split} prompts of {env}"
        sampled = f"T={config.eval_temperature:g}"
        note = budget_note(metrics)
        end = f"; {note}" if note else ""
        print(f"start: success {metrics['success']:.3f} on {prompts}, {sampled}{end}", flush=True)


def eval_metrics(config: Config, scores: dict[str, Scores] | None) -> dict[str, float | None]:
    """The metrics eval_* of the first evaluated environment, and eval_success/ENV of the others.

    `scored_envs` lists the evaluated environments. If `scores` is None, all values are None."""
    first, *others = scored_envs(config)
    row = {}
    for key in EVAL_KEYS:
        row[f"eval_{key}"] = scores[first].metrics[key] if scores else None
    for env in others:
        row[f"eval_success/{env}"] = scores[env].metrics["success"] if scores else None
    return row


def describe_step(row: dict, num_iterations: int, left_s: float) -> str:
    """The printed line of an iteration. Args: left_s: estimated seconds until the run ends."""
    parts = []
    for key, form in PRINTED.items():
        value = math.nan if row[key] is None else row[key]
        parts.append(f"{key} {value:{form}f}")
    if row["regime"]:
        parts.append(row["regime"])
    if left_s > 0:
        parts.append(f"{left_s / 60:.0f} min left")
    line = " | ".join(parts).replace("nan", "  -")
    return f"{row['step']:4d}/{num_iterations} {line}"


# ---------- at the end


def write_report(
    config: Config,
    stages: dict[str, dict[str, Scores]],
    references: dict[str, dict[str, Scores]],
    tokenizer,
) -> None:
    """Write eval_final.jsonl, scores.json and scores.md, and print the tables and hints.

    Args:
        stages: maps "start" and "after RL" to a dict from environments to the policy's scores.
        references: maps each environment to a dict from reference players to scores."""
    out_dir = Path(config.out_dir)
    write_jsonl(out_dir / "eval_final.jsonl", stages["after RL"], tokenizer)
    texts = []
    successes = {}
    for env in stages["start"]:
        rows = dict(references[env])
        for stage, scores in stages.items():
            rows[stage] = scores[env]
        prompts = f"{config.eval_size} fixed prompts ({config.eval_split})"
        texts.append(f"{env}: {prompts}, T={config.eval_temperature}\n{score_table(rows)}\n")
        notes = budget_notes(rows)
        if notes:
            texts.append(f"{notes}\n")
        successes[env] = {}
        for name, scores in rows.items():
            wins = [int(trajectory.success) for trajectory in scores.trajectories]
            successes[env][name] = wins
    text = "\n".join(texts)
    write_atomically(out_dir / "scores.json", json.dumps(successes) + "\n")
    write_atomically(out_dir / "scores.md", text)  # last, because it marks the run as finished
    print(f"\n{text}")
    files = sorted(path.name for path in out_dir.iterdir() if path.name != "lock")
    print(f"wrote {out_dir}/: {', '.join(files)}; policy and best are Hugging Face folders")
    print(next_steps_hint(config))


def remove_final_outputs(out_dir: Path) -> None:
    """If a finished run continues, remove the results that were written when it finished.

    The continued run makes these results out of date. If scores.md stayed, `show_if_finished` could
    take the continued run for finished before its new results are written."""
    for name in ("scores.md", "scores.json", "eval_final.jsonl"):
        (out_dir / name).unlink(missing_ok=True)
    shutil.rmtree(out_dir / "policy", ignore_errors=True)


def show_if_finished(config: Config, num_rows: int, early_stop_reason: str | None) -> bool:
    """If a run is finished, print its report and how to continue.

    Returns: whether the run is finished.
    """
    report = Path(config.out_dir, "scores.md")
    out_of_iterations = num_rows >= config.num_iterations
    if not report.is_file() or not (early_stop_reason or out_of_iterations):
        return False
    options = []
    if out_of_iterations:
        options.append("--num_iterations=N")
    if early_stop_reason:
        options.append("--early_stop=False")
    # A change of early_stop needs --take_config. If final_lr is not 1, the learning rates depend on
    # num_iterations, so a change of num_iterations needs --take_config, too.
    if early_stop_reason or config.final_lr != 1:
        options.append("--take_config=True")
    because = f", because {early_stop_reason}" if early_stop_reason else ""
    print(printable(read_text(report), limit=SHOWN_REPORT, keep="\n"))
    print(
        f"{config.out_dir} is finished at iteration {num_rows}{because}. "
        f"To start a new run, give --seed=N or --out_dir=PATH; to continue, {' '.join(options)}."
    )
    print(next_steps_hint(config))
    return True


def next_steps_hint(config: Config) -> str:
    """Commands that show or score the finished run."""
    env = ""
    for key in ("env", "eval_env"):
        value = getattr(config, key)
        # Somebody else may have written the saved settings of a run. If an environment in these
        # settings can run programs or read files, eval.py refuses the run unless its command
        # line names this environment. So the printed command names this environment.
        if specs_that_run_programs(value):
            env += f" --{key}={shlex.quote(value)}"
    return NEXT_STEPS.format(run=config.out_dir, runs=Path(config.out_dir).parent, env=env)
