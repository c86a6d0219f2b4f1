"""Tests of utils/threads.py."""

import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from utils import threads
from utils.threads import map_in_threads, start_thread

ROOT = Path(threads.__file__).resolve().parent.parent
HANGING = """
import time
from support.terminal import run_main
from utils.threads import map_in_threads

def hang(number):
    print(number, flush=True)
    time.sleep(600)

run_main(lambda argv: list(map_in_threads(hang, range(4), 2)))
"""


def test_results_keep_their_order():
    def call(number):
        if number == 3:
            raise ValueError("three")
        return number * number

    assert list(map_in_threads(call, [2, 1, 4], 2)) == [4, 1, 16]
    assert list(map_in_threads(call, [], 2)) == []
    results = map_in_threads(call, [1, 3, 2], 1)
    assert next(results) == 1
    with pytest.raises(ValueError, match="three"):
        next(results)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_future_of_a_thread_raises_what_its_call_raised(error):
    def fail():
        raise error("no")

    results = SimpleQueue()
    start_thread(fail, results, key="a")
    key, future = results.get(timeout=10)
    assert key == "a"
    with pytest.raises(error, match="no"):
        future.result()
    start_thread(lambda: 7, results)
    key, future = results.get(timeout=10)
    assert (key, future.result()) == (None, 7)


def test_ctrl_c_does_not_wait_for_calls_that_hang():
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, errors) == (-signal.SIGINT, "stopped by Ctrl-C\n")
