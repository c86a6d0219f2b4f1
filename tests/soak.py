"""
Kill -9 a tiny training run many times, at seeded moments, and compare it with one that nobody killed, whose memory must
not grow. Several ranks sample with vLLM.

    python tests/soak.py KILLS ITERATIONS [RANKS]          # make soak: 100 500
"""

import importlib
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from conftest import SMALL_RUN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_train import assert_same_checkpoint, rows_of, untimed

import train
from engine import VLLM_ENVIRONMENT, TorchEngine, VLLMEngine

MOMENTS = {  # whose n-th call in a life is the last, and how many there are in an iteration
    "rollout": (VLLMEngine, "step", 8),
    "write": (os, "fsync", 10),
    "update": (train, "optimizer_step", 1),
    "rename": (Path, "rename", 1.5),
    "evaluation": (train, "evaluate_all", 1),
    "log": (train.Log, "write", 1),
}
OF_RANK_0 = ("write", "rename", "log")  # what the first rank does for all
RUN = SMALL_RUN | dict(
    env="bandit",
    model="base",
    max_turns=1,
    actions_per_turn=1,
    actions_per_traj=1,
    max_response_tokens=16,
    eval_size=2,
    max_context_tokens=320,
    max_running=8,
    num_samples=2,
    eval_every=2,
    save_every=1,
)


def dies_at(owner, name, count):
    """Let the process kill itself where the function is called for the count-th time, in whatever thread."""
    call, left = getattr(owner, name), [count]

    def counted(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(owner, name, counted)


def be_rank(rank, ranks, port, log, arguments, moment):
    """Train in a process of its own, and leave it."""
    with open(log, "a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if ranks > 1:
        places = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
        places |= dict(MASTER_ADDR="localhost", MASTER_PORT=port)
        os.environ.update({key: str(value) for key, value in places.items()})
    if moment:
        dies_at(*moment)
    try:
        train.main(arguments)
    finally:
        os._exit(sys.exc_info()[0] is not None)


def live(arguments, log, *, ranks=1, moment=None, mortal=0):
    """Train in forks, which spares the imports; returns the exit code of the first that ended, negative for a signal.

    Args: mortal: the rank that has the moment."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pids, first = set(), 0
    for rank in range(ranks):
        if not (pid := os.fork()):
            be_rank(rank, ranks, port, log, arguments, moment if rank == mortal else None)
        pids.add(pid)
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status and not first:
            first = os.waitstatus_to_exitcode(status)
            for other in pids:  # like torchrun
                os.kill(other, signal.SIGKILL)
    return first


def main(num_kills, num_iterations, ranks=1):
    folder, rng, kills = Path(tempfile.mkdtemp(prefix="soak")), np.random.default_rng(0), []
    began, span = (
        time.perf_counter(),
        max(2, 1.6 * num_iterations / num_kills),
    )  # iterations of the longest lives
    if ranks > 1:
        os.environ.update(VLLM_ENVIRONMENT)
        for name in (
            "entrypoints.llm",
            "v1.engine.llm_engine",
            "v1.worker.cpu_worker",
            "model_executor.models.qwen2",
        ):
            importlib.import_module(f"vllm.{name}")  # once, not in every life
    engine = {} if ranks == 1 else dict(engine="vllm")
    (folder / "small.py").write_text(
        "".join(f"{key} = {value!r}\n" for key, value in (RUN | engine).items())
    )
    whole, cut = (
        [
            str(folder / "small.py"),
            f"--num_iterations={num_iterations}",
            f"--out_dir={folder}/{name}",
        ]
        for name in ("whole", "cut")
    )
    assert live(whole, folder / "log", ranks=ranks) == 0, (folder / "log").read_text()
    while len(kills) < num_kills:
        kind = list(MOMENTS)[len(kills) % len(MOMENTS)]
        owner, name, calls = MOMENTS[kind]
        owner = TorchEngine if owner is VLLMEngine and ranks == 1 else owner
        moment, mortal = (
            (owner, name, int(rng.integers(1, span * calls + 1))),
            (ranks - 1) * (kind not in OF_RANK_0),
        )
        code = live(cut, folder / "log", ranks=ranks, moment=moment, mortal=mortal)
        assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
        if code == 0:  # it came to its end
            break
        kills.append(kind)
    resumed = len(rows_of(folder / "cut"))
    assert live(cut, folder / "log", ranks=ranks) == 0, (folder / "log").read_text()
    assert untimed(rows_of(folder / "cut")) == untimed(rows_of(folder / "whole"))
    for name in ("eval_final.jsonl", "scores.json", "trajectories.jsonl"):
        assert (folder / "cut" / name).read_text() == (folder / "whole" / name).read_text(), name
    assert_same_checkpoint(folder / "whole", folder / "cut")
    board = EventAccumulator(
        str(folder / "cut" / "tensorboard"), size_guidance={"scalars": 0}
    ).Reload()
    assert [event.step for event in board.Scalars("rollout/reward")] == [
        *range(1, num_iterations + 1)
    ]
    counts = ", ".join(f"{kind} {kills.count(kind)}" for kind in MOMENTS)
    print(
        f"{len(kills)} kills ({counts}), the last in iteration {resumed + 1} of {num_iterations}: metrics, "
        f"trajectories and weights are equal; {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    if num_iterations > 100:
        memory = [row["memory_gib"] for row in rows_of(folder / "whole")]
        print(
            f"peak memory after 20 iterations {memory[19]:.3f} GiB, after {len(memory)} {memory[-1]:.3f} GiB"
        )
        assert memory[-1] < 1.05 * memory[19]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
