"""
Train in forks of one process. The process imports everything before it forks, which saves 7 CPU
seconds per run.

    python tests/helpers/forks.py RUNS

RUNS is a JSON list of pairs [number of ranks, arguments of train.py].
"""

import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback

import shared_fixtures  # noqa: F401  (this import makes train.py importable)

import train
from engines.vllm_engine import VLLM_ENVIRONMENT


def main(runs):
    for ranks, arguments in runs:
        with tempfile.NamedTemporaryFile("r") as log:
            code = live(arguments, log.name, ranks=ranks)
            if code:
                sys.exit(f"{arguments}\n{log.read()}")


def live(arguments, log, *, ranks=1, prepare=None):
    """Train in forks of this process, and append their output to the file `log`.

    Before training, each forked process calls `prepare` with its rank.
    Returns: the exit code of the first rank that failed (-N for signal N), or 0 if none failed.
    """
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pids = set()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(rank, ranks, port, log, arguments, prepare)
        pids.add(pid)
    first = 0
    while pids:
        pid, status = os.wait()
        if pid not in pids:  # `pid` was started by an import
            continue
        pids.remove(pid)
        if status and not first:
            first = os.waitstatus_to_exitcode(status)
            for other in pids:  # end the other ranks, as torchrun does
                os.kill(other, signal.SIGKILL)
    return first


def be_rank(rank, ranks, port, log, arguments, prepare):
    with open(log, "a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if ranks > 1:
        places = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
        places |= dict(MASTER_ADDR="localhost", MASTER_PORT=port)
        os.environ.update({key: str(value) for key, value in places.items()})
    if prepare:
        prepare(rank)
    code = 0
    try:
        train.main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # skips exit handlers, which belong to the parent


def import_vllm():
    os.environ.update(VLLM_ENVIRONMENT)
    names = "entrypoints.llm", "v1.engine.llm_engine", "v1.worker.cpu_worker"
    for name in (*names, "model_executor.models.qwen2"):
        importlib.import_module(f"vllm.{name}")
    inspect_in_this_process()


def inspect_in_this_process():
    """Let vLLM inspect a model class in this process.

    By default vLLM starts another process to inspect the class, so that this process does not
    initialize CUDA. Starting the other process takes 13 CPU seconds."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()


if __name__ == "__main__":
    runs = json.loads(sys.argv[1])
    if "--engine=vllm" in str(runs):
        import_vllm()
    main(runs)
