"""A time limit for the code of environments, which may raise anything or never return."""

from configurator import describe_error

import faulthandler
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

REPEAT_S = 1.0  # seconds between alarms, for an environment that ignores the first one
LAST_RESORT_S = 10.0  # seconds from the time limit until the process ends
STDERR = 2  # file descriptor
TIME_OUT = "no answer within"  # how the error of a time limit begins
# Handlers that an environment may not change for the rest of the run.
SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class EnvError(Exception):
    """An environment raised an error or exceeded the time limit."""


class TimeUp(BaseException):
    """The alarm rang. It is no Exception, so that "except Exception" does not catch it."""


def call_with_timeout(limit_s: float, call: Callable, *args, **options) -> Any:
    """Call environment code with a time limit.

    In the main thread an alarm interrupts the call after `limit_s` seconds. Python cannot interrupt
    another thread, so `rollout.BlockingSteps` gives up such a call instead.

    Args: args, options: the arguments of `call`. Returns: its result.
    Raises: EnvError if the call raises anything, sys.exit() included, or exceeds the limit.
        KeyboardInterrupt passes."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    alarm = Alarm(limit_s) if in_main_thread else nullcontext()
    try:
        with alarm:
            return call(*args, **options)
    except KeyboardInterrupt:
        raise
    except TimeUp as error:
        raise EnvError(time_out(limit_s)) from error
    except BaseException as error:  # user code may raise anything
        raise EnvError(describe_error(error)) from error


def time_out(limit_s: float) -> str:
    """The error of a trajectory whose environment exceeded the time limit."""
    return f"{TIME_OUT} {limit_s:g} s"


def is_time_out(error: str | None) -> bool:
    """Whether the error of a trajectory is one of `time_out`."""
    return error is not None and error.startswith(TIME_OUT)


class Alarm:
    """A context in the main thread that raises TimeUp after `limit_s` seconds, again and again.

    Code may stop the alarm, or hang where Python cannot interrupt it. Then, after LAST_RESORT_S
    more seconds, the process prints where it hangs and ends with exit code 1."""

    def __init__(self, limit_s: float):
        self.limit_s = limit_s
        self.is_over = False
        self.has_rung = False
        self.handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> None:
        faulthandler.dump_traceback_later(self.limit_s + LAST_RESORT_S, exit=True, file=STDERR)
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s, REPEAT_S)

    def __exit__(self, kind: type | None, *_) -> None:
        self.is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.handlers.items():
            if handler is not None:  # None: a handler that is not Python
                signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()
        if self.has_rung and kind is None:  # the code caught the alarm and returned late
            raise TimeUp

    def _ring(self, *_) -> None:
        if not self.is_over:
            self.has_rung = True
            raise TimeUp
