"""The Echo Trap on a laptop: train SmolLM2-135M on the bandit with StarPO and with StarPO-S.

    make echo-trap      # about 34 CPU-minutes on one core, and 93 MB of download

The script fetches the model, teaches it the format of replies (the cold start), and trains one copy
with StarPO and one with StarPO-S. It writes a picture, replies.md and a web page of all recorded
replies (starpo/view_against.html) into out/echo_trap/. After an interruption, the same command
continues the experiment. studies/real_model/README.md has results with more seeds and methods.
"""

from support.terminal import refuse_arguments, run_main

if __name__ == "__main__":
    run_main(refuse_arguments, kind=None)  # answers --help before the slow imports

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies.real_model.curves import draw_traps
from studies.real_model.replies import replies_page
from utils.files import read_rows, write_atomically

OUT = Path("out/echo_trap")
MODEL = Path("out/smollm2")
COLD_START = OUT / "cold_start"
RUNS = {"StarPO": OUT / "starpo", "StarPO-S": OUT / "starpo_s"}
ITERATIONS = 15
LEARNING_RATE = 8e-5  # smollm2.py has 2e-5
CONFIGS = ("config/bandit_grpo.py", "config/models/smollm2.py")
STARPO_S = ("--filter_keep=0.25", "--clip_high=0.28", "--batch_size=16")


class Step(NamedTuple):
    """One command of the experiment."""

    title: str
    words: tuple[str, ...]  # after "python"
    result: Path  # exists when the step is done
    minutes: int  # CPU minutes on one core with AVX2


def steps() -> list[Step]:
    cold_start = ("-m", "tools.sft", *CONFIGS, "--sft_steps=15", "--eval_size=64")
    train = (
        "train.py",
        *CONFIGS,
        "config/recipes/smollm2_bandit.py",
        f"--num_iterations={ITERATIONS}",
        f"--learning_rate={LEARNING_RATE}",
        f"--model={COLD_START}/model",
    )
    starpo = (*train, f"--out_dir={RUNS['StarPO']}")
    starpo_s = (*train, *STARPO_S, f"--out_dir={RUNS['StarPO-S']}")
    return [
        Step("fetch SmolLM2-135M", ("-m", "tools.smollm2"), MODEL, 1),
        Step(
            "cold start: learn the format of replies from a player that picks a random arm",
            (*cold_start, f"--out_dir={COLD_START}"),
            COLD_START / "model",
            3,
        ),
        Step("train with StarPO", starpo, RUNS["StarPO"] / "policy", 23),
        Step("train with StarPO-S", starpo_s, RUNS["StarPO-S"] / "policy", 7),
    ]


def main(argv: list[str]) -> None:
    refuse_arguments(argv)
    todo = steps()
    for number, step in enumerate(todo, start=1):
        if step.result.exists():
            print(f"step {number} of {len(todo)}: {step.title}: done", flush=True)
            continue
        left = sum(later.minutes for later in todo[number - 1 :])
        print(f"step {number} of {len(todo)}: {step.title}; about {left} CPU-minutes left")
        print(f"  python {' '.join(step.words)}", flush=True)
        run_step(step.words)
    show_results()


def run_step(words: Sequence[str]) -> None:
    """Run one command. If it fails, exit with its exit code."""
    code = subprocess.run([sys.executable, *words]).returncode
    if code:
        print("stopped at this step; the same command continues here", file=sys.stderr)
        sys.exit(code)


def show_results() -> None:
    curves = {name: [read_rows(folder / "metrics.jsonl")] for name, folder in RUNS.items()}
    draw_traps(OUT / "echo_trap.png", curves)
    write_atomically(OUT / "replies.md", replies_page(RUNS))
    page = ("-m", "tools.view", str(RUNS["StarPO"]), f"--against={RUNS['StarPO-S']}")
    run_step(page)
    print(f"picture: {OUT / 'echo_trap.png'}")
    print(f"replies at the start, at the best iteration and at the end: {OUT / 'replies.md'}")


if __name__ == "__main__":
    run_main(main)
