"""Calls functions in threads that do not keep the process alive after Ctrl-C."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

MAX_THREADS = 64  # in `call_all`


def map_in_threads(call: Callable, items: Sequence, num_threads: int) -> Iterator[Any]:
    """Call a function for each item in threads. Yields: the results, in the order of the items.

    With ThreadPoolExecutor, the process would wait after Ctrl-C for each call that hangs."""
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
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(item))
            except BaseException as error:  # `future.result()` raises it again
                future.set_exception(error)

    for _ in range(min(num_threads, len(futures))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()  # cancels the calls that have not begun


def call_all(calls: Sequence[Callable[[], Any]], *, at_once: bool) -> list:
    """Call functions in order, or with `at_once` in threads. Returns: the results, in order.

    Raises: the error of the first call that failed."""
    if not at_once:
        return [call() for call in calls]
    return list(map_in_threads(lambda call: call(), calls, MAX_THREADS))


class Result:
    """What a call in a thread returned or raised."""

    def __init__(self, key: Any):
        self.key = key  # names the call
        self.value = None
        self.error: BaseException | None = None

    def run(self, call: Callable[[], Any], results: SimpleQueue) -> None:
        """Call a function, keep what it returns or raises, and put this Result into `results`."""
        with self:
            self.value = call()
        results.put(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, *_) -> bool:
        self.error = error
        return True  # `get` raises it in the thread that waits for the result

    def get(self) -> Any:
        """What the call returned. Raises: the error that the call raised."""
        if self.error:
            raise self.error
        return self.value


def start_thread(call: Callable[[], Any], results: SimpleQueue, key: Any = None) -> None:
    """Call a function in a new thread, which puts its Result into `results`."""
    threading.Thread(target=Result(key).run, args=(call, results), daemon=True).start()
