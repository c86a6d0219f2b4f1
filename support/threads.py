"""Calls in threads that do not outlive Ctrl-C."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any


def map_in_threads(call: Callable, items: Sequence, num_threads: int) -> Iterator[Any]:
    """Call a function for each item in threads. Yields: the results, in the order of the items.

    The threads do not keep the process alive. Those of ThreadPoolExecutor do: after Ctrl-C, the
    process would wait for each server that hangs."""
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
            except BaseException as error:  # `result` raises it again
                future.set_exception(error)

    for _ in range(min(num_threads, len(futures))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()  # those that have not begun
