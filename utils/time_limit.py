"""Time limits for calls of an environment's code, which may raise anything or never return.

For a call in the main thread, a watchdog thread sends a signal when the time is over. The handler
of the signal raises TimeUp. The signal is SIGURG, so an environment can still use SIGALRM. Python
cannot interrupt threads other than the main thread. So a call from another thread runs in a new
thread, which is abandoned when the time is over.
"""

import faulthandler
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from utils.text import describe_error
from utils.threads import start_thread

REPEAT_S = 1.0  # seconds between signals
LAST_RESORT_S = 10.0  # a hanging process exits this many seconds after the time limit
CHUNK_S = 0.5  # seconds after which a batch of `limit_items` ends
STDERR = 2  # file descriptor
TIME_OUT = "no answer within"
RING = signal.SIGURG  # without a handler, a process ignores this signal
# The handlers of these signals are restored after a call: an environment may have changed them.
SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

Item = TypeVar("Item")


class EnvError(Exception):
    """An environment raised an error or exceeded the time limit."""


class TimeUp(BaseException):
    """The time limit of a call is over.

    TimeUp is no subclass of Exception, so "except Exception" does not catch TimeUp."""


def time_out(limit_s: float) -> str:
    """The error text of a call that exceeded its time limit."""
    return f"{TIME_OUT} {limit_s:g} s"


def is_time_out(error: str | None) -> bool:
    """Whether the error text of a trajectory comes from `time_out`."""
    return error is not None and error.startswith(TIME_OUT)


def limit_time(limit_s: float, call: Callable, *args, **options) -> Any:
    """Call a function with a time limit. Limits may be nested.

    Raises: EnvError if the call exceeds the limit. Other errors are raised unchanged."""
    if threading.current_thread() is not threading.main_thread():
        return _call_in_thread(limit_s, call, *args, **options)
    limit = TimeLimit(limit_s)
    try:
        with limit:
            return call(*args, **options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not limit.has_rung:
            raise
        raise EnvError(time_out(limit_s)) from error
    finally:
        # In most calls, __exit__ has called stop() already. But if the signal interrupts __exit__
        # before its first line, only the stop() below ends the limit.
        limit.stop()


def limit_items(limit_s: float, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator, with a time limit for each batch of items.

    The items share the limit of their batch, because setting a limit for each item would take
    longer than making the item. If an item comes more than CHUNK_S seconds after the beginning of
    its batch, the batch ends with this item.
    Raises: EnvError if a batch exceeds the limit. Other errors are raised unchanged."""

    def next_items() -> list:
        ends_at = time.monotonic() + CHUNK_S
        batch = []
        for item in items:
            batch.append(item)
            if time.monotonic() > ends_at:
                break
        return batch

    while batch := limit_time(limit_s, next_items):
        yield from batch


def _call_in_thread(limit_s: float, call: Callable, *args, **options) -> Any:
    results: SimpleQueue = SimpleQueue()
    start_thread(partial(call, *args, **options), results)
    try:
        _, future = results.get(timeout=limit_s)
    except Empty:
        raise EnvError(time_out(limit_s)) from None
    return future.result()


class TimeLimit:
    """A context in the main thread that raises TimeUp after `limit_s` seconds.

    After the limit, TimeUp is raised every REPEAT_S seconds, because the code inside the context
    may catch TimeUp. If the code still runs LAST_RESORT_S seconds after the limit, the process
    prints where it hangs and ends with exit code 1."""

    active: list["TimeLimit"] = []  # outermost first

    def __init__(self, limit_s: float):
        self.limit_s = limit_s
        self.ends_at = time.monotonic() + limit_s
        self.rings_at = self.ends_at  # time of the next signal
        self.has_rung = False
        self.handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> None:
        TimeLimit.active.append(self)
        self._arm_last_resort(self.limit_s)
        signal.signal(RING, _raise_time_up)
        watchdog.look_at(self.rings_at)

    def _arm_last_resort(self, left_s: float) -> None:
        faulthandler.dump_traceback_later(left_s + LAST_RESORT_S, exit=True, file=STDERR)

    def __exit__(self, kind: type | None, *_) -> None:
        self.stop()
        if self.has_rung and kind is None:  # the code caught TimeUp and returned late
            raise TimeUp

    def stop(self) -> None:
        """End the limit, cancel any alarm that the call set, and restore the signal handlers."""
        if self not in TimeLimit.active:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.handlers.items():
            if handler is not None:  # None: C code set the handler, so Python cannot restore it
                signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()
        TimeLimit.active.remove(self)
        if TimeLimit.active:
            outer = TimeLimit.active[-1]
            outer._arm_last_resort(max(0.0, outer.ends_at - time.monotonic()))


def _raise_time_up(*_) -> None:
    """Handle the signal RING. A signal that arrives after the end of the call does nothing."""
    if any(limit.has_rung for limit in TimeLimit.active):
        raise TimeUp


class Watchdog:
    """A thread that sends the signal RING to the main thread whenever an active time limit is over.

    The main thread and the watchdog thread share no lock: TimeUp may interrupt the main thread at
    any line, so a lock that the main thread holds could stay locked."""

    def __init__(self):
        self.thread: threading.Thread | None = None
        self.calls: SimpleQueue = SimpleQueue()  # an entry wakes the thread
        self.wakes_at = math.inf

    def look_at(self, moment: float) -> None:
        """Make the thread check the time limits at `moment`, a time of time.monotonic()."""
        if self.thread is None or not self.thread.is_alive():  # a fork does not copy this thread
            self.wakes_at = math.inf
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        if moment < self.wakes_at:
            self.calls.put(None)

    def _run(self) -> None:
        while True:
            # The main thread may add a limit after TimeLimit.active is copied below. While wakes_at
            # is inf, `look_at` puts an entry into `calls` for each new limit. So wakes_at is set to
            # inf before the copy. If `calls` has an entry, the `get` below returns at once, and the
            # loop copies the limits again.
            self.wakes_at = math.inf
            limits = list(TimeLimit.active)
            self._ring(limits)
            self.wakes_at = min((limit.rings_at for limit in limits), default=math.inf)
            wait_s = max(0.0, self.wakes_at - time.monotonic())
            with suppress(Empty):
                self.calls.get(timeout=wait_s if limits else None)

    def _ring(self, limits: list[TimeLimit]) -> None:
        now = time.monotonic()
        over = [limit for limit in limits if limit.rings_at <= now]
        for limit in over:
            limit.has_rung = True
            limit.rings_at = now + REPEAT_S
        if over:
            signal.pthread_kill(threading.main_thread().ident, RING)


watchdog = Watchdog()


def call_with_timeout(limit_s: float, call: Callable, *args, **options) -> Any:
    """Call environment code with a time limit.

    Raises: EnvError if the call exceeds the limit or raises any error, even SystemExit.
        KeyboardInterrupt is raised unchanged."""
    try:
        return limit_time(limit_s, call, *args, **options)
    except (EnvError, KeyboardInterrupt, TimeUp):  # TimeUp means that an outer limit is over
        raise
    except BaseException as error:
        raise EnvError(describe_error(error)) from error
