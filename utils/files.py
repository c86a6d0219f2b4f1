"""Reads text, JSON and JSON-lines files. Replaces files so that a crash damages none of them."""

from configurator import UserError

import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from utils.json_shapes import check_shape

COMPARISONS = Path("out/comparisons")  # where tools.compare writes
PARTIAL = ".partial"  # ending of the name of an incomplete file


# ---------- writing files
# Other users may be able to put links into a folder. So no file is written through a link.


@contextmanager
def replace_file(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Yield a file to write to, which then replaces the file at `path`.

    A crash leaves either the old content or the complete new content.
    Raises: UserError if the file cannot be written, or if `path` is a link, a folder or a device.
    """
    path = Path(path)
    encoding = None if "b" in mode else "utf-8"
    try:
        _check_replaceable(path)
        partial, descriptor = _create_partial(path)
        try:
            with os.fdopen(descriptor, mode, encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"{path} could not be written ({error})") from error


def _create_partial(path: Path) -> tuple[Path, int]:
    """Create an empty file beside `path`, under a name that nobody can guess."""
    # The name of a file has at most 255 bytes. The 50 characters of `start` take at most 200 bytes,
    # and the rest of the name takes 25 bytes.
    start = path.name[:50]
    partial = path.with_name(f"{start}.{secrets.token_hex(8)}{PARTIAL}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return partial, os.open(partial, flags, 0o666)


def remove_partial_files(folder: Path) -> None:
    """Remove the incomplete files of `replace_file` that a crash left in a folder."""
    for path in folder.glob(f"*{PARTIAL}"):
        if path.is_symlink() or not path.is_dir():
            path.unlink()


def append_to(path: Path) -> IO[str]:
    """Open a text file for appending and reading.

    Raises: UserError if `path` is a link, or not a regular file. OSError if it cannot be opened.
    """
    # Without O_NONBLOCK, opening a device may block.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # O_NOFOLLOW gives this error for a link
            raise _not_plain(path) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _not_plain(path)
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def check_writable(path: str | Path) -> None:
    """Check that a file can be written, before its content is computed.

    A missing parent folder is created if it is out/ or out/comparisons/.
    Raises: UserError if the file cannot be written.
    """
    path = Path(path)
    try:
        if path.parent in (Path("out"), COMPARISONS):
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            raise UserError(f"{path} cannot be written: there is no folder {path.parent}")
        if path.is_dir():
            raise UserError(f"{path} cannot be written: it is a folder")
        _check_replaceable(path)
        partial, descriptor = _create_partial(path)
        os.close(descriptor)
        partial.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error})") from error


def _check_replaceable(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise _not_plain(path)
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written: it is write-protected")


def _not_plain(path: Path) -> UserError:
    return UserError(
        f"{path} cannot be written: it is a link or not a regular file; remove it, or give another "
        "path"
    )


def write_atomically(path: str | Path, text: str) -> None:
    """Replace a text file. A crash leaves either the old text or the complete new text."""
    with replace_file(path) as file:
        file.write(text)


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    """Replace a JSON-lines file."""
    with replace_file(path) as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# ---------- reading files


def read_text(path: Path) -> str:
    """Read a text file.

    Raises: UserError if it cannot be read, is not in UTF-8, or is a device or a named pipe."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError("it is not a regular file")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error


def parse_json(text: str, shape: Any, source: str) -> Any:
    """Parse a JSON text, and check its shape (utils/json_shapes.py). Raises: UserError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} must be JSON, got {text[:80]!r}") from error
    check_shape(value, shape, source)
    return value


def read_json(path: Path, shape: Any) -> Any:
    """Read a JSON file. Raises: UserError if it is unreadable, not JSON, or not of this `shape`."""
    return parse_json(read_text(path), shape, str(path))


def read_rows(path: Path, last_step: float = math.inf, shape: dict | None = None) -> list[dict]:
    """The rows of a JSON-lines file; [] if there is no file.

    A row is left out if its "step" is above `last_step`. A last line without a line break is also
    left out, because a crash has cut it off.

    Args:
        shape: the shape of each row, see utils/json_shapes.py.
    Raises: UserError if a line is not a JSON object or does not have this shape.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(read_text(path).split("\n")[:-1], start=1):
        source = f"{path}:{number}"
        row = parse_json(line, shape or {}, source)
        if "step" in row:
            check_shape(row, {"step": int}, source)
        if row.get("step", 0) <= last_step:
            rows.append(row)
    return rows
