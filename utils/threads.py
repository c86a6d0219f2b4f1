"""Calls functions in threads that do not keep the process alive after Ctrl-C."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

MAX_THREADS = 64  # in `call_all`


def map_in_threads(call: Callable, items: Sequence, num_threads: int) -> Iterator[Any]:
    """Call a function in threads, once for each item. Yields: the results, in the order of `items`.

    The threads are daemon threads, so the process can end after Ctrl-C while a call hangs. With
    ThreadPoolExecutor, the process would wait for each call that hangs."""
    waiting: SimpleQueue = SimpleQueue()
    futures = []
    for item in items:
        future: Future = Future()
        waiting.put((future, item))
        futures.append(future)

    def work() -> None:
        while True:
            try:
                future, item = waiting.get_nowait()
            except Empty:
                return
            if future.set_running_or_notify_cancel():
                _settle(future, call, item)

    for _ in range(min(num_threads, len(futures))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()  # cancels the calls that have not begun


def call_all(calls: Sequence[Callable[[], Any]], *, at_once: bool) -> list:
    """Call functions one after the other, or in threads if `at_once`.

    Returns: the results, in the order of `calls`.
    Raises: the error of the first failed call, in the order of `calls`."""
    if not at_once:
        return [call() for call in calls]
    return list(map_in_threads(lambda call: call(), calls, MAX_THREADS))


def start_thread(call: Callable[[], Any], results: SimpleQueue, key: Any = None) -> None:
    """Call a function in a new thread, which puts `(key, future)` into `results` after the call.

    `future.result()` returns what the call returned, or raises the error of the call."""
    future: Future = Future()

    def work() -> None:
        _settle(future, call)
        results.put((key, future))

    threading.Thread(target=work, daemon=True).start()


def _settle(future: Future, call: Callable, *args) -> None:
    """Call a function, and store its result or its error in a future."""
    try:
        future.set_result(call(*args))
    except BaseException as error:  # `future.result()` raises it again
        future.set_exception(error)
