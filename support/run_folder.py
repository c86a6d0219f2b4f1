"""The folder of a run: its settings, its rows of metrics, and files that are whole or absent."""

from configurator import FIELD_TYPES, Config, UserError, check_type, lookup_type

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

MAY_CHANGE = [
    "num_iterations",
    "eval_every",
    "save_every",
    "num_samples",
    "out_dir",
    "keep_checkpoints",
    "grace_s",
    "step_timeout_s",
    "max_error_frac",
]  # when a run is continued


def save_config(config: Config, sources: dict[str, str], out_dir: str | Path) -> Path:
    """Writes out_dir/config.json: the settings, their sources, the git commit and the command; returns its path."""
    path = Path(out_dir, "config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "config": asdict(config),
        "sources": sources,
        "git_commit": git_commit(),
        "launch": sys.argv,
    }
    write_whole(path, json.dumps(record, indent=1) + "\n")
    return path


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before going on."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there with all of the text or not at all: beside, synced, then renamed."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(path)


def read_rows(path: Path, last: float = math.inf) -> list[dict]:
    """The rows of a JSON-lines file up to the step `last`, [] where there is none. A line that was cut off is none."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [row for row in map(json.loads, lines) if row.get("step", 0) <= last]


def load_saved(path: str | Path) -> Config:
    """Reads back a config.json (or the one in a folder); fields that it lacks take their defaults."""
    path = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not a saved config ({type(error).__name__}: {error})"
        ) from error
    return Config(
        **{
            k: check_type(k, v, lookup_type(k, FIELD_TYPES, str(path)), str(path))
            for k, v in saved.items()
        }
    )


def check_out_dir(config: Config, *, take: bool | None = None) -> None:
    """Raises: UserError unless out_dir is free or holds a run to continue: of these settings, with `take` of any; a
    script without that option gives None."""
    out_dir = Path(config.out_dir)
    if (out_dir / "config.json").is_file():
        saved, wanted = asdict(load_saved(out_dir)), asdict(config)
        changed = [k for k in wanted if wanted[k] != saved[k] and k not in MAY_CHANGE]
        if changed and not take:
            differences = ", ".join(
                f"{k} is {saved[k]!r} there and {wanted[k]!r} here" for k in changed
            )
            advice = "give another --out_dir" + ", or --take_config=True to go on with these" * (
                take is not None
            )
            raise UserError(
                f"out_dir={config.out_dir!r} holds another run ({differences}); {advice}"
            )
    elif out_dir.is_dir() and {path.name for path in out_dir.iterdir()} - {
        "lock",
        "config.json.partial",
    }:
        raise UserError(
            f"out_dir={config.out_dir!r} is not empty and holds no run; give another --out_dir"
        )


def git_commit() -> str | None:
    """Commit of this code, with "-dirty" if tracked files other than results differ from it; None without git."""
    git = ["git", "-C", str(Path(__file__).resolve().parent.parent)]
    try:
        commit = subprocess.check_output(
            [*git, "rev-parse", "HEAD"], stderr=subprocess.DEVNULL, text=True
        ).strip()
        changed = subprocess.check_output(
            [*git, "diff", "--name-only", "HEAD", "--", ":/", ":!/docs/results"]
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit
