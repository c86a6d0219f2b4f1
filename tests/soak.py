"""
Kill -9 a tiny training run many times, at seeded moments, and compare it with one that nobody killed, whose memory must
not grow.

    python tests/soak.py KILLS ITERATIONS          # make soak: 100 500
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from conftest import SMALL_RUN
from test_train import assert_same_checkpoint, rows_of, untimed

import train
from engine import TorchEngine

MOMENTS = {  # whose n-th call in a life is the last, and how many there are in an iteration
    "rollout": (TorchEngine, "step", 8), "write": (os, "fsync", 10), "update": (train, "optimizer_step", 1),
    "rename": (Path, "rename", 1.5), "evaluation": (train, "evaluate_all", 1), "log": (train.Log, "write", 1),
}  # fmt: skip
RUN = SMALL_RUN | dict(
    env="bandit", model="base", max_turns=1, actions_per_turn=1, actions_per_traj=1, max_response_tokens=16,
    eval_size=2, max_context_tokens=320, max_running=8, num_samples=2, eval_every=2, save_every=1,
)  # fmt: skip


def dies_at(owner, name, count):
    """Let the process kill itself where the function is called for the count-th time, in whatever thread."""
    call, left = getattr(owner, name), [count]

    def counted(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(owner, name, counted)


def live(arguments, log, moment=None):
    """Train in a fork, which spares the imports; returns its exit code, negative for a signal."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(log, "a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if moment:
        dies_at(*moment)
    try:
        train.main(arguments)
    finally:
        os._exit(sys.exc_info()[0] is not None)


def main(num_kills, num_iterations):
    folder, rng, kills = Path(tempfile.mkdtemp(prefix="soak")), np.random.default_rng(0), []
    began, span = time.perf_counter(), max(2, 2 * num_iterations / num_kills)  # iterations of the longest lives
    (folder / "small.py").write_text("".join(f"{key} = {value!r}\n" for key, value in RUN.items()))
    whole, cut = ([str(folder / "small.py"), f"--num_iterations={num_iterations}", f"--out_dir={folder}/{name}"]
                  for name in ("whole", "cut"))  # fmt: skip
    assert live(whole, folder / "log") == 0, (folder / "log").read_text()
    while len(kills) < num_kills:
        kind = list(MOMENTS)[len(kills) % len(MOMENTS)]
        owner, name, calls = MOMENTS[kind]
        code = live(cut, folder / "log", (owner, name, int(rng.integers(1, span * calls + 1))))
        assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
        if code == 0:  # it came to its end
            break
        kills.append(kind)
    resumed = len(rows_of(folder / "cut"))
    assert live(cut, folder / "log") == 0, (folder / "log").read_text()
    assert untimed(rows_of(folder / "cut")) == untimed(rows_of(folder / "whole"))
    for name in ("eval_final.jsonl", "scores.json", "trajectories.jsonl"):
        assert (folder / "cut" / name).read_text() == (folder / "whole" / name).read_text(), name
    assert_same_checkpoint(folder / "whole", folder / "cut")
    counts = ", ".join(f"{kind} {kills.count(kind)}" for kind in MOMENTS)
    print(f"{len(kills)} kills ({counts}), the last in iteration {resumed + 1} of {num_iterations}: metrics, "
          f"trajectories and weights are equal; {time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
    if num_iterations > 100:
        memory = [row["memory_gib"] for row in rows_of(folder / "whole")]
        print(f"peak memory after 20 iterations {memory[19]:.3f} GiB, after {len(memory)} {memory[-1]:.3f} GiB")
        assert memory[-1] < 1.05 * memory[19]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
