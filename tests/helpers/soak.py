"""
Kill a tiny training run at many random moments with kill -9, and resume it.

The results must equal those of a run that was not killed.

    python tests/helpers/soak.py KILLS ITERATIONS [RANKS]

`make soak` runs it for 100 kills and 500 iterations.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from forks import import_vllm, live
from runs import assert_same_checkpoint, rows_of, untimed
from shared_fixtures import SMALL_RUN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from engines.torch_engine import TorchEngine
from engines.vllm_engine import VLLMEngine
from support.log import Log


class Moment(NamedTuple):
    """A process kills itself at call number `count` of `owner`.`name`, counted over all threads."""

    owner: Any
    name: str
    count: int


# Maps a kind of moment to (owner of a function, name of the function, approximate number of calls
# per iteration).
MOMENTS = {
    "write": (os, "fsync", 10),
    "rollout": (VLLMEngine, "step", 8),
    "update": (train, "optimizer_step", 1),
    "rename": (Path, "rename", 1.5),
    "evaluation": (train, "evaluate_all", 1),
    "log": (Log, "write", 1),
}
ON_RANK_0 = ("write", "rename", "log")  # only rank 0 calls the functions of these kinds
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
    longest_life = min(num_iterations, max(2, 1.6 * num_iterations / num_kills))
    while len(kinds) < num_kills:
        kind = list(MOMENTS)[len(kinds) % len(MOMENTS)]
        owner, name, calls = MOMENTS[kind]
        if owner is VLLMEngine and ranks == 1:
            owner = TorchEngine
        moment = Moment(owner, name, int(rng.integers(1, longest_life * calls + 1)))
        mortal = 0 if kind in ON_RANK_0 else ranks - 1

        def prepare(rank, moment=moment, mortal=mortal):
            if rank == mortal:
                die_at(moment)

        if train_in("cut", prepare=prepare) == 0:
            break
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


def die_at(moment):
    call = getattr(moment.owner, moment.name)
    left = [moment.count]

    def counted(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(moment.owner, moment.name, counted)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
