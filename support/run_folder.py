"""The folder of a run: its settings, JSON-lines files, and writes that survive a crash."""

from configurator import FIELD_TYPES, Config, UserError, check_type, lookup_type

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# the settings that may change when a run continues
MAY_CHANGE_ON_RESUME = (
    "num_iterations",
    "eval_every",
    "save_every",
    "num_samples",
    "out_dir",
    "keep_checkpoints",
    "grace_s",
    "step_timeout_s",
    "max_error_frac",
)

# the advice in errors about a full or read-only disk
DISK_ADVICE = "make room and start again: the run continues from its last complete checkpoint"


# ---------- settings


def check_out_dir(config: Config, *, accept_changes: bool = False, flag: str = "") -> None:
    """Check that a run with these settings may use its out_dir.

    Args:
        accept_changes: continue a run even if its settings differ from those of `config`.
        flag: the command-line option that accepts changes, for the message; "" if there is none.
    Raises: UserError if out_dir holds other files, or a run with other settings.
    """
    out_dir = Path(config.out_dir)
    if (out_dir / "config.json").is_file():
        differences = _changed_settings(load_saved(out_dir), config)
        if differences and not accept_changes:
            advice = "give another --out_dir"
            if flag:
                advice += f", or {flag} to continue with the new settings"
            raise UserError(
                f"out_dir={config.out_dir!r} holds a run with other settings "
                f"({', '.join(differences)}); {advice}"
            )
    elif out_dir.is_dir():
        names = {path.name for path in out_dir.iterdir()}
        if names - {"lock", "config.json.partial"}:
            raise UserError(
                f"out_dir={config.out_dir!r} is not empty and holds no run; give another --out_dir"
            )


def _changed_settings(saved: Config, wanted: Config) -> list[str]:
    """A phrase for each setting that differs and that a run may not change when it continues."""
    phrases = []
    for key, value in asdict(wanted).items():
        before = getattr(saved, key)
        if value != before and key not in MAY_CHANGE_ON_RESUME:
            phrases.append(f"{key} was {before!r} and is now {value!r}")
    return phrases


def save_config(config: Config, sources: dict[str, str], out_dir: str | Path) -> Path:
    """Write out_dir/config.json: settings, their sources, git commit and command line.

    Returns: the path of the file.
    """
    path = Path(out_dir, "config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "config": asdict(config),
        "sources": sources,
        "git_commit": git_commit(),
        "launch": sys.argv,
    }
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    return path


def load_saved(path: str | Path) -> Config:
    """Read the settings of a run.

    Args: path: a config.json, or the folder of a run.
    Returns: the settings. Those that the file lacks have their defaults.
    Raises: UserError if the file cannot be read, or a setting is unknown or illegal.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected the folder of a run, or its config.json")
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not a saved config ({type(error).__name__}: {error})"
        ) from error
    settings = {}
    for key, value in saved.items():
        wanted = lookup_type(key, FIELD_TYPES, str(path))
        settings[key] = check_type(key, value, wanted, str(path))
    return Config(**settings)


def git_commit() -> str | None:
    """Commit of this code, with "-dirty" if a tracked file outside docs/results/ has changed.

    Returns: None without git.
    """
    git = ["git", "-C", str(Path(__file__).resolve().parent.parent)]
    head = [*git, "rev-parse", "HEAD"]
    diff = [*git, "diff", "--name-only", "HEAD", "--", ":/", ":!/docs/results"]
    try:
        commit = subprocess.check_output(head, stderr=subprocess.DEVNULL, text=True).strip()
        changed = subprocess.check_output(diff)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


# ---------- files


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def check_writable(path: str) -> None:
    """Check that a file can be written, before the work that makes its content.

    Raises: UserError if the folder of the file does not exist, or `path` is a folder.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {folder}")
    if Path(path).is_dir():
        raise UserError(f"{path} cannot be written: it is a folder")


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a crash leaves either the old content or the complete new content."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    fsync_path(partial)
    partial.replace(path)


def read_rows(path: Path, last_step: float = math.inf) -> list[dict]:
    """The rows of a JSON-lines file up to a step; [] if there is no file.

    A last line without a line break is left out, because a crash cut it off.
    Raises: UserError for a line that is no JSON object.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parse_object(line)
        if row is None:
            raise UserError(f"{path}:{number} must be a JSON object, got {line[:80]!r}")
        if row.get("step", 0) <= last_step:
            rows.append(row)
    return rows


def _parse_object(line: str) -> dict | None:
    """The JSON object in a line; None if the line holds something else."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    """Replace a JSON-lines file."""
    lines = [json.dumps(row) + "\n" for row in rows]
    write_atomically(path, "".join(lines))
