"""
Kill -9 a tiny training run many times, at seeded moments, and compare it with one that nobody killed; then watch the
memory of a long one.

    python tests/soak.py KILLS ITERATIONS [ITERATIONS OF THE LONG RUN]          # make soak: 100 60 500
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
from conftest import SMALL_RUN
from test_train import assert_same_checkpoint, rows_of, untimed

import train
from engine import TorchEngine

MOMENTS = {  # whose n-th call in a life is the last, and the largest n
    "rollout": (TorchEngine, "step", 60), "write": (os, "fsync", 30), "update": (train, "optimizer_step", 4),
    "rename": (Path, "rename", 3), "evaluation": (train, "evaluate_all", 3), "log": (train.Log, "write", 2),
}  # fmt: skip
RUN = SMALL_RUN | dict(model="base", num_groups=4, max_response_tokens=16, eval_every=2, save_every=1)


def dies_at(owner, name, count):
    """Let the process kill itself where the function is called for the count-th time."""
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


def main(num_kills, num_iterations, long=0):
    folder, rng, kills = Path(tempfile.mkdtemp(prefix="soak")), np.random.default_rng(0), []
    (folder / "small.py").write_text("".join(f"{key} = {value!r}\n" for key, value in RUN.items()))
    whole, cut = ([str(folder / "small.py"), f"--num_iterations={num_iterations}", f"--out_dir={folder}/{name}"]
                  for name in ("whole", "cut"))  # fmt: skip
    assert live(whole, folder / "log") == 0, (folder / "log").read_text()
    while len(kills) < num_kills:
        kind = list(MOMENTS)[len(kills) % len(MOMENTS)]
        owner, name, most = MOMENTS[kind]
        code = live(cut, folder / "log", (owner, name, int(rng.integers(1, most + 1))))
        assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
        if code == 0:  # it came to its end
            break
        kills.append(kind)
    assert live(cut, folder / "log") == 0, (folder / "log").read_text()
    assert untimed(rows_of(folder / "cut")) == untimed(rows_of(folder / "whole"))
    assert_same_checkpoint(folder / "whole", folder / "cut")
    counts = ", ".join(f"{kind} {kills.count(kind)}" for kind in MOMENTS)
    print(f"{len(kills)} kills ({counts}) over {num_iterations} iterations: metrics and weights are equal", flush=True)
    if long:
        arguments = [whole[0], f"--num_iterations={long}", "--eval_every=0", f"--out_dir={folder}/long"]
        assert live(arguments, folder / "log") == 0, (folder / "log").read_text()
        memory = [row["memory_gib"] for row in rows_of(folder / "long")]
        print(f"peak memory after 20 iterations {memory[19]:.3f} GiB, after {long} {memory[-1]:.3f} GiB", flush=True)
        assert memory[-1] < 1.05 * memory[19]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
