"""
Train a run for three iterations: on 2 ranks, then on 1, then on 2 again. The run restarts between
the iterations.

The run replays the trajectories of another run, which trains on one rank without restarts. The
losses of the two runs must agree. test_parallel.py runs this file:

    python tests/helpers/resize.py MODEL FOLDER
"""

import pickle
import sys
from pathlib import Path

from forks import live
from runs import rows_of
from shared_fixtures import SMALL_RUN

import parallel

collect_all = parallel.collect_all
NUM_RANKS = (2, 1, 2)  # in each iteration
LOSSES = ("pg_loss", "vf_loss", "approx_kl", "entropy", "kl_ref")


def main(model, folder):
    def recorded(starts):
        seed, _ = starts[0]
        return folder / f"iteration-{seed[2]}"

    def record(engine, policy, chat, config, starts, **options):
        played = collect_all(engine, policy, chat, config, starts, **options)
        recorded(starts).write_bytes(pickle.dumps((starts, options["envs"], played)))
        return played

    def replay(engine, policy, chat, config, starts, **options):
        expected, envs, played = pickle.loads(recorded(starts).read_bytes())
        assert (starts, options["envs"]) == (expected, envs), "other instances are consumed"
        return played

    def train(name, num_iterations, ranks):
        arguments = [
            str(folder / "small.py"),
            f"--num_iterations={num_iterations}",
            f"--out_dir={folder}/{name}",
        ]
        assert live(arguments, folder / "log", ranks=ranks) == 0, (folder / "log").read_text()
        return rows_of(folder / name)

    settings = SMALL_RUN | dict(
        model=model, num_groups=4, eval_every=0, eval_size=2, save_every=1, kl_coef=0.1
    )
    lines = [f"{key} = {value!r}\n" for key, value in settings.items()]
    (folder / "small.py").write_text("".join(lines))
    parallel.collect_all = record
    expected = train("whole", len(NUM_RANKS), 1)
    parallel.collect_all = replay
    for i, ranks in enumerate(NUM_RANKS, start=1):
        rows = train("resized", i, ranks)
    differences = []
    for row, other in zip(rows, expected, strict=True):
        assert row["grad_norm"] > 1e-3 and row["vf_loss"] > 1e-3, rows
        differences += [abs(row[key] - other[key]) for key in LOSSES]
    log = (folder / "log").read_text()
    assert log.count("2 ranks as shard=2") == NUM_RANKS.count(2), log
    assert log.count("continuing") == 2, log
    print(f"losses differ by {max(differences):.1e} at most")
    assert max(differences) < 1e-5, differences


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
