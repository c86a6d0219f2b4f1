"""The settings that a run had before they were changed with --take_config=True.

config.json of a run holds its present settings. The list "earlier" in config.json holds the
settings of earlier iterations:

    [{"until": 4, "config": {...}}, ...]    settings of iterations 1 to 4, and so on

`pool_seeds` in support/seed_groups.py pools runs of one method with different seeds. Runs with
different earlier settings do not count as runs of one method, and are not pooled. Some settings may
change without --take_config, because they do not change training (`changed_settings` in
support/run_folder.py). A change of only these settings adds nothing to the list "earlier".
"""

from configurator import Config

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.run_folder import changed_settings, load_saved, settings_from
from utils.files import read_json

EARLIER = {"earlier": ([{"until": int, "config": {}}], ...)}  # shape, see utils/json_shapes.py

# Two evaluations can be compared if both have the same environments and the same values of the
# settings below.
EVALUATION_READS = (
    "eval_split",
    "eval_size",
    "eval_temperature",
    "observation",
    "think",
    "max_turns",
    "actions_per_turn",
    "actions_per_traj",
    "context_turns",
    "max_response_tokens",
    "max_context_tokens",
)


class Earlier(NamedTuple):
    """The settings that a run had until they were changed."""

    until: int  # the last iteration before the change
    settings: Config


def read_earlier(out_dir: Path) -> list[Earlier]:
    """The earlier settings of a run, from its config.json; [] if they never changed.

    Raises: UserError if the file is damaged."""
    path = out_dir / "config.json"
    found = []
    for entry in read_json(path, EARLIER).get("earlier", []):
        found.append(Earlier(entry["until"], settings_from(entry["config"], str(path))))
    return found


def earlier_when_continued(out_dir: Path, config: Config, step: int) -> list[Earlier]:
    """The earlier settings of a run that continues with `config` after iteration `step`.

    Iterations after `step` are made again, so their settings are dropped."""
    if not (out_dir / "config.json").is_file():
        return []
    stretches = [*read_earlier(out_dir), Earlier(step, load_saved(out_dir))]
    kept: list[Earlier] = []
    for until, settings in stretches:
        until = min(until, step)
        first = kept[-1].until if kept else 0
        if until > first:
            kept.append(Earlier(until, settings))
    while kept and not changed_settings(kept[-1].settings, config):
        kept.pop()
    return kept


def describe_earlier(earlier: Sequence[Earlier], config: Config) -> list[str]:
    """One sentence for each item of `earlier`.

    Example: "until iteration 4: clip_high was 0.2 and is now 0.4"."""
    sentences = []
    for until, settings in earlier:
        phrases = changed_settings(settings, config) or ["the settings were the present ones"]
        sentences.append(f"until iteration {until}: {', '.join(phrases)}")
    return sentences


def evaluations_changed_at(earlier: Sequence[Earlier], config: Config) -> int:
    """The last iteration whose evaluation settings differ from those of `config`; 0 if none.

    Evaluation settings decide the prompts and the rules of an evaluation (`_evaluation_of`).
    """
    present = _evaluation_of(config)
    last = 0
    for until, settings in earlier:
        if _evaluation_of(settings) != present:
            last = until
    return last


def _evaluation_of(config: Config) -> tuple:
    """The settings that decide the prompts and the rules of an evaluation.

    Environments are compared as text, because building an environment could run a program.
    """
    last_stage = (config.eval_env or config.env).split(">")[-1].strip()
    return last_stage, *(getattr(config, key) for key in EVALUATION_READS)


def without_old_evaluations(rows: Sequence[dict], last_old: int) -> list[dict]:
    """Return the rows of metrics, but set eval_success to None up to iteration `last_old`.

    Evaluations up to iteration `last_old` may have had other prompts or rules than later
    evaluations, so their success is not compared with later success."""
    kept = []
    for row in rows:
        kept.append({**row, "eval_success": None} if row["step"] <= last_old else row)
    return kept
