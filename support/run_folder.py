"""The folder of a run: its settings, and the files and folders that it may hold."""

from configurator import (
    RENAMED_SETTINGS,
    SFT_PREFIX,
    Config,
    UserError,
    check_type,
    is_only_for_sft,
    lookup_type,
    types_of,
)

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from utils import code_version
from utils.files import PARTIAL, read_json, write_atomically

# A run may continue with other values of these settings, because these settings normally do not
# affect updates. For some of them, the dict CHANGES_THROUGH below sets a condition.
MAY_CHANGE_ON_RESUME = (
    "num_iterations",
    "eval_every",
    "save_every",
    "sample_every",
    "out_dir",
    "keep_checkpoints",
    "grace_s",
    "step_timeout_s",
    "max_error_frac",
    "wandb",
)

FORMER_SETTINGS = ("num_samples",)  # settings that only older runs have

# Maps a setting in MAY_CHANGE_ON_RESUME to (other setting, value). The setting may change only if
# the other setting has this value. If final_lr is not 1, num_iterations also sets the learning
# rates. If early_stop is True, eval_every also decides when a run stops.
CHANGES_THROUGH = {"num_iterations": ("final_lr", 1.0), "eval_every": ("early_stop", False)}

# Files that train.py and tools.sft open in the folder of a run. Both commands refuse links with
# these names.
OPENED_FILES = (
    "config.json",
    "code.diff",
    "lock",
    "metrics.jsonl",
    "trajectories.jsonl",
    "eval_start.jsonl",
    "eval_final.jsonl",
    "curve.jsonl",
    "scores.json",
    "scores.md",
    "wandb_id",
    "view.html",
)
MODELS = ("model", "model-[0-9]*")  # glob patterns: model folders of tools.sft and pretrain.py
CHECKPOINTS = "checkpoint-" + 6 * "[0-9]"  # glob pattern; the digits are the iteration
OPENED_FOLDERS = ("best", "policy", CHECKPOINTS, "partial", "old", "tensorboard", *MODELS)

DISK_ADVICE = "make room and start again: the run continues from its last complete checkpoint"


# ---------- settings


def check_out_dir(config: Config, *, accept_changes: bool = False, flag: str = "") -> None:
    """Check that a run with these settings may use its out_dir.

    Args:
        accept_changes: True if the run in out_dir may have other settings than `config`.
        flag: the option that accepts changes, named in the error message; "" if there is none.
    Raises: UserError if out_dir cannot be a folder or cannot be written. UserError if out_dir holds
        a run of another command, or holds files but no run. UserError if `_check_entries` refuses a
        link, file or folder in out_dir. UserError if `changed_settings` finds changes to the
        settings of the run in out_dir, and `accept_changes` is False.
    """
    out_dir = Path(config.out_dir)
    try:
        existing = next(path for path in (out_dir, *out_dir.parents) if path.exists())
    except OSError as error:
        raise UserError(f"out_dir={config.out_dir!r} cannot be a folder ({error})") from error
    if not existing.is_dir():
        raise UserError(f"out_dir={config.out_dir!r} cannot be a folder: {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"out_dir={config.out_dir!r} cannot be written: you may not write to {existing}"
        )
    _check_entries(out_dir)
    if (out_dir / "config.json").is_file():
        saved = load_saved(out_dir, type(config))
        is_sft_run = bool(load_sft_settings(out_dir / "config.json"))
        if is_sft_run != bool(sft_settings(asdict(config))):
            owner = "supervised learning" if is_sft_run else "train.py"
            raise UserError(
                f"out_dir={config.out_dir!r} holds a run of {owner}; give another --out_dir"
            )
        differences = changed_settings(saved, config)
        if differences and not accept_changes:
            advice = "give another --out_dir"
            if flag:
                advice += f", or {flag} to continue with the new settings"
            raise UserError(
                f"out_dir={config.out_dir!r} holds a run with other settings "
                f"({', '.join(differences)}); {advice}"
            )
    elif out_dir.is_dir():
        names = [path.name for path in out_dir.iterdir()]
        if not all(name == "lock" or name.endswith(PARTIAL) for name in names):
            raise UserError(
                f"out_dir={config.out_dir!r} is not empty and holds no run; give another --out_dir"
            )


def _check_entries(out_dir: Path) -> None:
    """Check the files and folders in out_dir that a run would open.

    Raises: UserError if one of these files and folders is a link, or if a model folder (MODELS)
        contains a link. UserError if one of OPENED_FILES is not a plain file, or one of
        OPENED_FOLDERS is not a folder."""
    for path in sorted(out_dir.iterdir()) if out_dir.is_dir() else ():
        is_folder = any(path.match(pattern) for pattern in OPENED_FOLDERS)
        if not is_folder and path.name not in OPENED_FILES:
            continue
        _check_no_link(path)
        if is_folder and not path.is_dir():
            raise UserError(f"{path} must be a folder, because a run writes to it; remove it")
        if not is_folder and not path.is_file():
            raise UserError(f"{path} must be a plain file, because a run writes to it; remove it")
    # `save_pretrained` of transformers writes through links in its target folder. But
    # `checkpoint.export` saves a model into a new folder, which then replaces the old folder. So
    # links in an old model folder do no harm, and the check below is only a second guard.
    for pattern in MODELS:
        for path in sorted(out_dir.glob(f"{pattern}/*")):
            _check_no_link(path)


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(
            f"{path} is a symbolic link, and a run does not write through links; remove it"
        )


def changed_settings(saved: Config, wanted: Config) -> list[str]:
    """Describe each setting that has changed, although a continued run must keep it."""
    phrases = []
    for key, value in asdict(wanted).items():
        before = getattr(saved, key)
        if value == before:
            continue
        phrase = f"{key} was {before!r} and is now {value!r}"
        reader, unread = CHANGES_THROUGH.get(key, ("", None))
        if key not in MAY_CHANGE_ON_RESUME:
            phrases.append(phrase)
        elif reader and getattr(wanted, reader) != unread:
            phrases.append(f"{phrase}, on which {reader}={getattr(wanted, reader)!r} depends")
    return phrases


def save_config(
    config: Config,
    sources: dict[str, str],
    out_dir: str | Path,
    earlier: Sequence[tuple[int, Config]] = (),
) -> Path:
    """Write the settings to out_dir/config.json, and changes of the code to out_dir/code.diff.

    Args: earlier: pairs (until, old); the run had the settings `old` up to iteration `until`.
    """
    path = Path(out_dir, "config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "config": asdict(config),
        "sources": sources,
        "git_commit": code_version.git_commit(),
        "launch": sys.argv,
    }
    if earlier:
        record["earlier"] = [{"until": until, "config": asdict(old)} for until, old in earlier]
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    save_code_diff(path.with_name(code_version.NAME))
    return path


def save_code_diff(path: Path) -> None:
    """Write to `path` how the code differs from its git commit.

    If the code does not differ, or git fails, remove any file at `path` from an earlier start."""
    diff = code_version.code_diff()
    if not diff:
        path.unlink(missing_ok=True)
        return
    write_atomically(path, diff)
    if code_version.is_cut(diff):
        print(f"{path} is not complete: {diff.splitlines()[-1]}", flush=True)


def load_saved(path: str | Path, kind: type[Config] = Config) -> Config:
    """Read the settings of a run.

    Args:
        path: a config.json, or the folder of a run.
        kind: the class of the result. If `kind` is Config, settings whose names begin with
            SFT_PREFIX are left out.
    Raises: UserError if the file cannot be read, or a setting is unknown or illegal.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected the folder of a run, or its config.json")
    saved = read_json(path, {"config": {}})["config"]
    try:
        return settings_from(saved, str(path), kind)
    except UserError as error:
        changes = path.parent / "code.diff"
        if not changes.is_file():
            raise
        raise UserError(
            f"{error}; the run was made with changed code: to restore this code, "
            f"run git apply {changes}"
        ) from error


def load_sft_settings(path: Path) -> dict[str, Any]:
    """From a config.json, read the settings that only tools.sft has. Their values are not checked.

    Returns: {} for a run of train.py.
    Raises: UserError if the file cannot be read."""
    return sft_settings(read_json(path, {"config": {}})["config"])


def sft_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that only tools.sft has."""
    return {key: value for key, value in settings.items() if key.startswith(SFT_PREFIX)}


def with_present_names(settings: dict) -> dict:
    """Replace former names of settings by present names."""
    return {RENAMED_SETTINGS.get(key, key): value for key, value in settings.items()}


def settings_from(saved: dict, source: str, kind: type[Config] = Config) -> Config:
    """Settings from a JSON object. Missing settings have their defaults.

    Args: kind: see `load_saved`.
    Raises: UserError if a setting is unknown or illegal.
    """
    types_by_key = types_of(kind)
    settings = {}
    for key, value in with_present_names(saved).items():
        if key in FORMER_SETTINGS or is_only_for_sft(key, types_by_key):
            continue
        wanted = lookup_type(key, types_by_key, source)
        settings[key] = check_type(key, value, wanted, source)
    return kind(**settings)
