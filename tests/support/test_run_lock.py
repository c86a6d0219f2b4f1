"""Tests of support/run_lock.py: the lock of a run folder, and signals.

One test forks its process, because a new process would have to import torch again.
"""

import os
import signal
import time

import pytest
import torch
from shared_fixtures import small_config

import parallel
from support.run_lock import EXIT_INTERRUPTED, Interruption, lock_folder


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


# ---------- the lock


def test_two_runs_in_one_folder_are_refused(tmp_path):
    out_dir = tmp_path / "out"
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    with lock_folder(out_dir):
        with pytest.raises(ValueError) as error, lock_folder(out_dir):
            pass
        assert str(error.value) == (
            f"out_dir={str(out_dir)!r} is in use by {holder}; give another --out_dir"
        )
    assert not out_dir.exists()


def test_the_lock_of_a_killed_process_is_ignored(tmp_path):
    (tmp_path / "lock").write_text("process 4194000 on elsewhere")
    with lock_folder(tmp_path):
        holder = f"process {os.getpid()} on {os.uname().nodename}"
        assert (tmp_path / "lock").read_text() == holder
        (tmp_path / "config.json").write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_read_only_folder_is_reported_at_once(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    message = r"out_dir=.* cannot be written \(\[Errno 30\] Read-only file system\)"
    with pytest.raises(ValueError, match=message), lock_folder(tmp_path):
        pass


def test_a_folder_below_a_file_is_reported_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    out_dir = tmp_path / "file" / "out"
    with pytest.raises(ValueError) as error, lock_folder(out_dir):
        pass
    expected = f"out_dir={str(out_dir)!r} cannot be written ([Errno 20] Not a directory"
    assert str(error.value).startswith(expected)


# ---------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_noted_and_the_old_handler_returns(number, capfd):
    before = signal.getsignal(number)
    with Interruption(60) as interruption:
        assert not interruption.requested()
        os.kill(os.getpid(), number)
        assert interruption.requested() and interruption.timer.finished.is_set()
    assert signal.getsignal(number) == before
    expected = f"{signal.Signals(number).name}: ending after this iteration, in 60 s at most"
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize(
    "numbers, grace_s, code, sentence",
    [
        (
            [signal.SIGTERM, signal.SIGTERM],
            0.2,
            EXIT_INTERRUPTED,
            "no iteration ended within grace_s (0.2 s); "
            "start again to continue from the newest checkpoint",
        ),
        (
            [signal.SIGINT, signal.SIGINT],
            60,
            130,
            "interrupted twice: ended at once; start again to continue from the newest checkpoint",
        ),
    ],
)
def test_the_end_of_the_grace_and_a_second_ctrl_c(numbers, grace_s, code, sentence, capfd):
    pid = os.fork()
    if pid == 0:
        try:
            with Interruption(grace_s):
                for number in numbers:
                    os.kill(os.getpid(), number)
                time.sleep(30)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == code
    assert capfd.readouterr().err.strip().splitlines()[-1] == sentence


def test_the_exit_code_of_a_signal_is_that_of_sysexits():
    assert EXIT_INTERRUPTED == os.EX_TEMPFAIL == 75
