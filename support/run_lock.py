"""The lock of a run folder, and the graceful end of a run after a signal."""

from configurator import UserError

import fcntl
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import parallel
from utils.files import append_to

# Exit code of a run that a signal interrupted: EX_TEMPFAIL of sysexits.h. A new start continues the
# run.
EXIT_INTERRUPTED = 75
EXIT_CTRL_C = 130  # the code that shells give after Ctrl-C

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
CONTINUES = "start again to continue from the newest checkpoint"


# ---------- the lock of a run folder


@contextmanager
def lock_folder(out_dir: Path) -> Iterator[None]:
    """Lock the folder of a run for this process. Rank 0 holds the lock for all ranks.

    A killed process may leave the file `lock` behind, but no longer holds the lock. If the folder
    is empty at the end of the run, it is removed.

    Raises: UserError if another process uses the folder, or the folder cannot be written.
    """
    if parallel.rank() > 0:
        yield
        return
    path = out_dir / "lock"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        file = append_to(path)
    except OSError as error:
        raise UserError(f"out_dir={str(out_dir)!r} cannot be written ({error})") from error
    with file:
        _take_lock(file, path)
        try:
            with _lock_folder_itself(out_dir):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
                yield
        finally:
            path.unlink(missing_ok=True)
            if not any(out_dir.iterdir()):
                out_dir.rmdir()


def _take_lock(file, path: Path) -> None:
    given = f"out_dir={str(path.parent)!r}"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read()
        raise UserError(f"{given} is in use by {holder}; give another --out_dir") from error
    # Between our open() and flock(), another process may have ended and removed its lock file. In
    # this case we have locked a deleted file.
    same_file = path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino
    if not same_file:
        raise UserError(f"{given} was in use by a process that has just ended; start again")


@contextmanager
def _lock_folder_itself(out_dir: Path) -> Iterator[None]:
    """Lock the folder itself, so that a lock remains if somebody deletes the file `lock`."""
    descriptor = os.open(out_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(
            f"out_dir={str(out_dir)!r} is in use by a process whose lock file was deleted; "
            "end that process, or give another --out_dir"
        ) from error
    except OSError:
        pass  # some network file systems cannot lock folders
    try:
        yield
    finally:
        os.close(descriptor)


# ---------- signals


class Interruption:
    """A context that handles SIGTERM, SIGUSR1 and Ctrl-C.

    After a signal the current iteration has `grace_s` seconds to end. If the iteration takes
    longer, the process exits in the middle of it, with exit code EXIT_INTERRUPTED. If Ctrl-C
    follows a signal, the process exits at once.
    """

    def __init__(self, grace_s: float):
        self.grace_s = grace_s
        self.timer: threading.Timer | None = None  # started by a signal
        self.previous_handlers: dict = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            self.previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        self._stop_timer()
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Whether any rank received a signal. All ranks must call this, because it sums over ranks.

        A signal starts a timer that ends the process after `grace_s` seconds. If any rank received
        a signal, this method stops the timer, because saving the checkpoint may take longer.
        """
        received = torch.tensor(float(self.timer is not None))
        parallel.all_reduce_sum(received)
        if received > 0:
            self._stop_timer()
        return bool(received)

    def _handle(self, number: int, _) -> None:
        if self.timer:
            if number == signal.SIGINT:
                exit_now(f"interrupted twice: ended at once; {CONTINUES}", EXIT_CTRL_C)
            return
        sentence = f"no iteration ended within grace_s ({self.grace_s:g} s); {CONTINUES}"
        self.timer = threading.Timer(self.grace_s, exit_now, [sentence, EXIT_INTERRUPTED])
        self.timer.daemon = True
        self.timer.start()
        name = signal.Signals(number).name
        _write_to_stderr(f"{name}: ending after this iteration, in {self.grace_s:g} s at most")

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()


def exit_now(sentence: str, code: int) -> None:
    """End the process without cleaning up."""
    _write_to_stderr(sentence)
    os._exit(code)


def _write_to_stderr(sentence: str) -> None:
    """Write a line to stderr without print().

    If a signal interrupts a print(), a print() in the signal handler may raise an error."""
    os.write(2, f"\n{sentence}\n".encode())
