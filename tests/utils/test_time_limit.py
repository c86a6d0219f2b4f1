"""Tests of utils/time_limit.py and of `call_all` in utils/threads.py.

The time limits are tested with code that hangs or raises any exception.
"""

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty

import pytest

from utils import threads, time_limit
from utils.threads import call_all
from utils.time_limit import EnvError, call_with_timeout


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


def alarm_off():
    signal.alarm(0)
    time.sleep(20)


def alarm_without_handler():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(20)


def own_alarm():
    """Set an alarm, as a user's code may do. The alarm ends the first sleep but not the second."""

    def give_up(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with suppress(TimeoutError):
        time.sleep(20)
    time.sleep(20)


@pytest.mark.parametrize("hang", [alarm_off, alarm_without_handler, own_alarm])
def test_the_alarm_belongs_to_the_environment(hang):
    with pytest.raises(EnvError, match=r"^no answer within 0.1 s$"):
        call_with_timeout(0.1, hang)


def test_an_alarm_ends_with_the_call():
    call_with_timeout(5.0, signal.setitimer, signal.ITIMER_REAL, 30.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_limits_may_be_nested():
    def inner_hangs():
        with pytest.raises(EnvError, match=r"^no answer within 0.05 s$"):
            call_with_timeout(0.05, time.sleep, 20)
        time.sleep(20)

    with pytest.raises(EnvError, match=r"^no answer within 0.3 s$"):
        call_with_timeout(0.3, inner_hangs)


def test_the_outer_limit_ends_an_inner_call():
    def waits_long():
        call_with_timeout(60.0, time.sleep, 20)

    with pytest.raises(EnvError, match=r"^no answer within 0.1 s$"):
        call_with_timeout(0.1, waits_long)
    assert not time_limit.TimeLimit.active


def test_a_thread_has_the_limit_too():
    raised = [KeyError("gone"), Empty("no message"), SystemExit(0)]
    errors = []

    def work():
        for call in (partial(time.sleep, 20), *(partial(throw, error) for error in raised)):
            try:
                call_with_timeout(0.1, call)
            except EnvError as error:
                errors.append(str(error))
        errors.append(call_with_timeout(0.1, int, "7"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    sentences = ["KeyError: 'gone'", "Empty: no message", "SystemExit: 0"]
    assert errors == ["no answer within 0.1 s", *sentences, 7]


def test_each_item_has_a_limit_of_its_own(monkeypatch):
    monkeypatch.setattr(time_limit, "CHUNK_S", 0.0)

    def items():
        for number in range(3):
            time.sleep(0.2)
            yield number
        time.sleep(20)

    got = []
    with pytest.raises(EnvError, match=r"^no answer within 0.5 s$"):
        for item in time_limit.limit_items(0.5, items()):
            got.append(item)
    assert got == [0, 1, 2]
    assert list(time_limit.limit_items(5.0, iter("abc"))) == ["a", "b", "c"]


# ---------- calls that wait


def test_calls_at_once_wait_for_each_other():
    barrier = threading.Barrier(3)

    def wait_and_square(number):
        barrier.wait(timeout=10)
        return number**2

    calls = [partial(wait_and_square, number) for number in range(3)]
    assert call_all(calls, at_once=True) == [0, 1, 4]


def test_more_calls_than_threads(monkeypatch):
    monkeypatch.setattr(threads, "MAX_THREADS", 2)
    calls = [partial(int, str(number)) for number in range(9)]
    assert call_all(calls, at_once=True) == list(range(9))
    assert call_all(calls, at_once=False) == list(range(9))


@pytest.mark.parametrize("at_once", [True, False])
def test_an_error_of_one_call_is_raised(at_once):
    with pytest.raises(KeyError, match="gone"):
        call_all([int, partial(throw, KeyError("gone"))], at_once=at_once)


# ---------- code that cannot be interrupted

SCRIPT = """
import signal, time
from utils import time_limit
from utils.time_limit import call_with_timeout

def forever():
    while True:
        try:
            time.sleep(20)
        except BaseException:
            pass

def cannot_be_interrupted():
    HANG

time_limit.REPEAT_S = time_limit.LAST_RESORT_S = 0.1
call_with_timeout(0.1, cannot_be_interrupted)
print("went on")
"""


@pytest.mark.parametrize(
    "hang",
    [
        "signal.signal(time_limit.RING, signal.SIG_IGN); time.sleep(20)",
        "sum(range(10**15))",
        "forever()",
    ],
)
def test_code_that_cannot_be_interrupted_ends_the_process(hang):
    command = [sys.executable, "-c", SCRIPT.replace("HANG", hang)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Timeout (0:00:00.200000)!\n")
    assert "in cannot_be_interrupted\n" in done.stderr
