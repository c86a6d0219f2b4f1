"""Checksums of the files of a run, to find damaged files.

Each file on the left holds the checksums of the files on the right:

    checkpoint-STEP/manifest.json    all other files of the checkpoint
    checkpoint-STEP/logs.json        the logs of the run, up to the iteration of the checkpoint
    best/checksums.json              the files of the best policy
    policy/checksums.json            the files of the last policy
    model/checksums.json             the files of a model that tools.sft wrote

Checksums do not protect against somebody who changes a file and its checksum.
"""

from configurator import UserError

import hashlib
import json
from pathlib import Path

from utils.files import read_json

# The logs of a run. A run only appends lines to a log, and a restart drops only lines after the
# newest undamaged checkpoint. So the lines up to this checkpoint never change.
LOGS = ("metrics.jsonl", "trajectories.jsonl")
LOG_RECORD = {str: {"bytes": int, "sha256": str}}  # shape of logs.json, see utils/json_shapes.py
OF_MODEL = "checksums.json"  # name of the checksum file in a model's folder
BLOCK = 4 * 2**20  # bytes per read


def sha256_of(path: Path, num_bytes: int | None = None) -> str:
    """The SHA-256 of a file, or of its first `num_bytes` bytes. Raises: OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        _add(digest, file, num_bytes)
    return digest.hexdigest()


def _add(digest, file, num_bytes: int | None) -> None:
    """Add the next `num_bytes` bytes of a file to a digest; if None, add the rest of the file."""
    left = num_bytes
    while left != 0:
        block = file.read(BLOCK if left is None else min(left, BLOCK))
        if not block:
            return
        digest.update(block)
        if left is not None:
            left -= len(block)


def files_in(folder: Path) -> dict[str, Path]:
    """The plain files in a folder and its subfolders. Each key is a path relative to `folder`."""
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def write_checksums(folder: Path, name: str) -> None:
    """Write the file `name` with the checksums of all other files in a folder."""
    checksums = {key: sha256_of(path) for key, path in files_in(folder).items() if key != name}
    (folder / name).write_text(json.dumps(checksums, indent=1), encoding="utf-8")


def wrong_files(folder: Path, expected: dict[str, str]) -> list[str]:
    """The names of expected files that are missing, changed or not plain files. Raises: OSError."""
    files = files_in(folder)
    wrong = []
    for name, checksum in expected.items():
        if name not in files or sha256_of(files[name]) != checksum:
            wrong.append(name)
    return wrong


# ---------- checkpoints


def find_corruption(folder: Path) -> str:
    """How the files of a checkpoint differ from its manifest; "" if there is no difference."""
    try:
        manifest = read_json(folder / "manifest.json", {str: str})
        differing = sorted(manifest.keys() ^ (files_in(folder).keys() - {"manifest.json"}))
        if differing or "state.json" not in manifest:
            return f"manifest.json does not list its files: {', '.join(differing) or 'state.json'}"
        wrong = wrong_files(folder, manifest)
    except (OSError, UserError) as error:
        return str(error)
    return f"wrong checksum of {', '.join(wrong)}" if wrong else ""


# ---------- models


def find_damage(folder: Path) -> str:
    """How the files of a model differ from their checksums; "" if there is no difference.

    The result is also "" if the folder has no checksums. Added files are ignored."""
    path = folder / OF_MODEL
    if not path.exists():
        return ""
    try:
        wrong = wrong_files(folder, read_json(path, {str: str}))
    except (OSError, UserError) as error:
        return str(error)
    return f"missing or changed: {', '.join(wrong)}" if wrong else ""


# ---------- the logs of a run


class LogChecksums:
    """Checksums of the growing logs of a run; each byte is read once."""

    def __init__(self, out_dir: Path):
        self.out_dir = out_dir
        self.digests = {}
        self.num_bytes = dict.fromkeys(LOGS, 0)
        for name in LOGS:
            self.digests[name] = hashlib.sha256()

    def sizes(self) -> dict[str, int]:
        """Map the name of each existing log to its present size in bytes."""
        sizes = {}
        for name in LOGS:
            path = self.out_dir / name
            if path.is_file():
                sizes[name] = path.stat().st_size
        return sizes

    def up_to(self, sizes: dict[str, int]) -> dict[str, dict]:
        """The content of logs.json: size and checksum of the beginning of each log.

        Args:
            sizes: maps the name of a log to the number of its first bytes that the checksum covers.
                This number must not shrink from call to call. `self.digests` already covers the
                bytes read so far, and no byte can be taken out of a digest.
        Raises: OSError.
        """
        record = {}
        for name, size in sizes.items():
            with (self.out_dir / name).open("rb") as file:
                file.seek(self.num_bytes[name])
                _add(self.digests[name], file, max(0, size - self.num_bytes[name]))
            self.num_bytes[name] = size
            record[name] = {"bytes": size, "sha256": self.digests[name].hexdigest()}
        return record


def changed_logs(out_dir: Path, checkpoint: Path) -> list[str]:
    """The names of the logs that no longer match the checksums in a checkpoint.

    A checksum covers the lines of a log up to the iteration of the checkpoint.

    Returns: [] if the checkpoint has no logs.json. Older versions did not write this file.
    Raises: UserError if a file cannot be read, or logs.json names a file that is not in LOGS."""
    path = checkpoint / "logs.json"
    if not path.is_file():
        return []
    changed = []
    for name, known in read_json(path, LOG_RECORD).items():
        log = out_dir / name
        if name not in LOGS:
            raise UserError(f"{path} may name only {' and '.join(LOGS)}, got {name!r}")
        try:
            is_same = log.is_file() and sha256_of(log, known["bytes"]) == known["sha256"]
        except OSError as error:
            raise UserError(f"{log} cannot be read ({error})") from error
        if not is_same:
            changed.append(name)
    return changed
