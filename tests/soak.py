"""
Kill a tiny training run with kill -9 at many random moments, and resume it. Its results must equal
those of a run that was not killed. With over 100 iterations, the memory of that run must not grow.
With several ranks, vLLM samples.

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
from typing import Any, NamedTuple

import numpy as np
from runs import assert_same_checkpoint, rows_of, untimed
from shared_fixtures import SMALL_RUN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from engines.torch_engine import TorchEngine
from engines.vllm_engine import VLLM_ENVIRONMENT, VLLMEngine
from support.log import Log


class Moment(NamedTuple):
    """A process kills itself at the `count`-th call of function `name`, in any thread."""

    owner: Any  # the class or module that has the function
    name: str
    count: int


# kind of moment -> the owner and name of a function, and about how often an iteration calls it
MOMENTS = {
    "rollout": (VLLMEngine, "step", 8),
    "write": (os, "fsync", 10),
    "update": (train, "optimizer_step", 1),
    "rename": (Path, "rename", 1.5),
    "evaluation": (train, "evaluate_all", 1),
    "log": (Log, "write", 1),
}
ON_RANK_0 = ("write", "rename", "log")  # only rank 0 calls these
RUN = SMALL_RUN | dict(
    env="bandit",
    model="tiny",
    max_turns=1,
    actions_per_turn=1,
    actions_per_traj=1,
    max_response_tokens=16,
    eval_size=2,
    max_context_tokens=320,
    max_running=8,
    eval_every=2,
    save_every=1,
)


def main(num_kills, num_iterations, ranks=1):
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    settings = dict(RUN)
    if ranks > 1:
        settings["engine"] = "vllm"
        import_vllm()
    lines = [f"{key} = {value!r}\n" for key, value in settings.items()]
    (folder / "small.py").write_text("".join(lines))

    def train_in(name, **options):
        arguments = [f"--num_iterations={num_iterations}", f"--out_dir={folder}/{name}"]
        code = live([str(folder / "small.py"), *arguments], folder / "log", ranks=ranks, **options)
        assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
        return code

    assert train_in("whole") == 0
    kinds = []
    rng = np.random.default_rng(0)
    longest_life = max(2, 1.6 * num_iterations / num_kills)  # iterations between kills, at most
    while len(kinds) < num_kills:
        kind = list(MOMENTS)[len(kinds) % len(MOMENTS)]
        owner, name, calls = MOMENTS[kind]
        if owner is VLLMEngine and ranks == 1:
            owner = TorchEngine
        moment = Moment(owner, name, int(rng.integers(1, longest_life * calls + 1)))
        mortal = 0 if kind in ON_RANK_0 else ranks - 1
        if train_in("cut", moment=moment, mortal=mortal) == 0:
            break  # the run reached its end
        kinds.append(kind)
    resumed = len(rows_of(folder / "cut"))
    assert train_in("cut") == 0
    assert_same_run(folder / "whole", folder / "cut", num_iterations)
    counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in MOMENTS)
    print(
        f"{len(kinds)} kills ({counts}), the last in iteration {resumed + 1} of {num_iterations}: "
        "metrics, trajectories and weights are equal; "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    if num_iterations > 100:
        check_memory(rows_of(folder / "whole"))


def assert_same_run(whole, cut, num_iterations):
    assert untimed(rows_of(cut)) == untimed(rows_of(whole))
    for name in ("eval_final.jsonl", "scores.json", "trajectories.jsonl"):
        assert (cut / name).read_text() == (whole / name).read_text(), name
    assert_same_checkpoint(whole, cut)
    board = EventAccumulator(str(cut / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    steps = [event.step for event in board.Scalars("rollout/reward")]
    assert steps == list(range(1, num_iterations + 1))


def check_memory(rows):
    memory = [row["memory_gib"] for row in rows]
    print(
        f"peak memory after 20 iterations {memory[19]:.3f} GiB, "
        f"after {len(memory)} {memory[-1]:.3f} GiB"
    )
    assert memory[-1] < 1.05 * memory[19]


# ---------- processes


def live(arguments, log, *, ranks=1, moment=None, mortal=0):
    """Train in forks of this process, which need no imports.

    Args: mortal: the rank that kills itself at `moment`.
    Returns: the exit code of the first rank that failed (-N for signal N); 0 if no rank failed.
    """
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pids = set()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(rank, ranks, port, log, arguments, moment if rank == mortal else None)
        pids.add(pid)
    first = 0
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status and not first:
            first = os.waitstatus_to_exitcode(status)
            for other in pids:  # end the other ranks, as torchrun does
                os.kill(other, signal.SIGKILL)
    return first


def be_rank(rank, ranks, port, log, arguments, moment):
    """Run train.main as rank `rank` in this forked process, then end the process."""
    with open(log, "a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if ranks > 1:
        places = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
        places |= dict(MASTER_ADDR="localhost", MASTER_PORT=port)
        os.environ.update({key: str(value) for key, value in places.items()})
    if moment:
        die_at(moment)
    try:
        train.main(arguments)
    finally:
        os._exit(sys.exc_info()[0] is not None)


def die_at(moment):
    call = getattr(moment.owner, moment.name)
    left = [moment.count]

    def counted(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(moment.owner, moment.name, counted)


def import_vllm():
    """Import vLLM before the forks, so that they need not import it."""
    os.environ.update(VLLM_ENVIRONMENT)
    names = "entrypoints.llm", "v1.engine.llm_engine", "v1.worker.cpu_worker"
    for name in (*names, "model_executor.models.qwen2"):
        importlib.import_module(f"vllm.{name}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
