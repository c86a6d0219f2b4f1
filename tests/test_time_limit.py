"""
Tests of support/time_limit.py: code that raises anything, hangs, or takes the alarm away.

    python -m pytest -q tests/test_time_limit.py
"""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from support import time_limit
from support.time_limit import EnvError, call_with_timeout


class NoMessage(Exception):
    def __str__(self):
        sys.exit(0)


def throw(error):
    raise error


def recurse():
    return recurse() + 1


@pytest.mark.parametrize(
    "error, sentence",
    [
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit(), "SystemExit"),
        (GeneratorExit(), "GeneratorExit"),
        (BaseException("any"), "BaseException: any"),
        (KeyError("gone"), "KeyError: 'gone'"),
        (StopIteration(), "StopIteration"),
        (NoMessage(), "NoMessage: its message cannot be read"),
        (OSError("a\nb \x1b[2J"), r"OSError: a b \x1b[2J"),
        (OSError("x" * 10**7), f"OSError: {'x' * 491}... (cut, 10000009 characters)"),
    ],
)
def test_whatever_is_raised_is_an_error_of_the_environment(error, sentence):
    with pytest.raises(EnvError) as caught:
        call_with_timeout(5.0, throw, error)
    assert str(caught.value) == sentence


def test_endless_recursion_is_an_error_of_the_environment():
    with pytest.raises(EnvError, match="^RecursionError: maximum recursion depth exceeded"):
        call_with_timeout(5.0, recurse)


def test_ctrl_c_passes():
    with pytest.raises(KeyboardInterrupt):
        call_with_timeout(5.0, throw, KeyboardInterrupt())


# ---------- code that hangs


def catches_exceptions():
    while True:
        with suppress(Exception):
            time.sleep(20)


def catches_twice():
    for _ in range(2):
        with suppress(BaseException):
            time.sleep(20)
    return "late"


@pytest.mark.parametrize("hang", [catches_exceptions, catches_twice])
def test_the_alarm_rings_again(monkeypatch, hang):
    monkeypatch.setattr(time_limit, "REPEAT_S", 0.1)
    with pytest.raises(EnvError, match=r"^no answer within 0.1 s$"):
        call_with_timeout(0.1, hang)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_handlers_of_signals_are_restored():
    def changes_handlers():
        for number in time_limit.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(1)

    before = [signal.getsignal(number) for number in time_limit.SIGNALS]
    call_with_timeout(5.0, changes_handlers)
    assert [signal.getsignal(number) for number in time_limit.SIGNALS] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


SCRIPT = """
import signal, time
from support import time_limit

def forever():
    while True:
        try:
            time.sleep(20)
        except BaseException:
            pass

def hangs_without_alarm():
    HANG

time_limit.REPEAT_S = time_limit.LAST_RESORT_S = 0.1
time_limit.call_with_timeout(0.1, hangs_without_alarm)
print("went on")
"""


@pytest.mark.parametrize(
    "hang",
    [
        "signal.setitimer(signal.ITIMER_REAL, 0); time.sleep(20)",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(20)",
        "sum(range(10**15))",  # it lets no signal handler run
        "forever()",
    ],
)
def test_code_without_an_alarm_ends_the_process(hang):
    """It shows where it hangs."""
    command = [sys.executable, "-c", SCRIPT.replace("HANG", hang)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Timeout (0:00:00.200000)!\n")
    assert "in hangs_without_alarm\n" in done.stderr
