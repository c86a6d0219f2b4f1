"""
Recorded trajectories trained on two ranks, then on one, then on two: like on one rank without a break. Run by
test_parallel.py, in forks of one process, which spares the imports:

    python tests/resize.py MODEL FOLDER
"""

import pickle
import sys
from pathlib import Path

from conftest import SMALL_RUN
from soak import live
from test_train import rows_of

import parallel

collect_all = parallel.collect_all
SIZES = (2, 1, 2)  # ranks in each iteration
LOSSES = ("pg_loss", "vf_loss", "approx_kl", "entropy", "kl_ref")


def main(model, folder):
    def recorded(starts):
        return folder / f"iteration-{starts[0][0][2]}"  # the seed of an instance names it

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
    (folder / "small.py").write_text(
        "".join(f"{key} = {value!r}\n" for key, value in settings.items())
    )
    parallel.collect_all = record
    expected = train("whole", len(SIZES), 1)
    parallel.collect_all = replay
    for i, ranks in enumerate(SIZES, start=1):
        rows = train("resized", i, ranks)
    pairs = [
        (row[key], other[key]) for row, other in zip(rows, expected, strict=True) for key in LOSSES
    ]
    assert all(row["grad_norm"] > 1e-3 and row["vf_loss"] > 1e-3 for row in rows), rows
    said = (folder / "log").read_text()
    assert said.count("2 ranks as shard=2") == SIZES.count(2) and said.count("continuing") == 2, (
        said
    )
    print(f"losses differ by {max(abs(a - b) for a, b in pairs):.1e} at most")
    assert all(abs(a - b) < 1e-5 for a, b in pairs), pairs


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
