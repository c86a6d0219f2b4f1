"""Run the experiments behind the tables in README; an interrupted run continues, a finished one is not repeated.

    python reproduce.py learning                                 # every run of the learning table, two at a time
    python reproduce.py learning --jobs=1 --only=frozenlake_ppo

Results are JSON under docs/results/learning/, the table of all is docs/results/learning.md. Nothing is committed.
"""

# before all else: it answers --help, and other imports take seconds
from configurator import fail_clearly, load_config

# isort: split

import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from eval import paired_bootstrap, wilson_interval

LEARNING = {  # name -> config files
    "frozenlake_ppo": ("frozenlake_ppo",), "frozenlake_grpo": ("frozenlake_grpo",),
    "frozenlake_det_ppo": ("frozenlake_ppo", "frozenlake_det"), "bandit_ppo": ("bandit_ppo",),
    "sokoban_ppo": ("sokoban_ppo",), "sokoban_large_ppo": ("sokoban_ppo", "sokoban_large"),
}  # fmt: skip
SEEDS = (0, 1, 2)
RESULTS = Path("docs/results")
STAGES = ("start", "after RL")


def command(name: str, seed: int) -> list[str]:
    files = (f"config/{file}.py" for file in (*LEARNING[name], "tiny"))
    return ["train.py", *files, f"--seed={seed}", f"--out_dir=out/learning/{name}_s{seed}"]


def run(name: str, seed: int) -> tuple[bool, str]:
    """Train one seed unless its result for the present settings is there; returns success and a line about it."""
    target, out_dir = RESULTS / "learning" / f"{name}_s{seed}.json", Path(f"out/learning/{name}_s{seed}")
    settings = asdict(load_config(command(name, seed)[1:])[0])
    if target.is_file() and json.loads(target.read_text())["settings"] == settings:
        return True, f"{target}: already there"
    began = time.time()
    log = Path(f"{out_dir}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        code = subprocess.run([sys.executable, *command(name, seed)], stdout=output, stderr=output).returncode
    if code:
        return False, f"{name} seed {seed}: failed with exit code {code}, see {log}"
    steps = [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]
    result = {
        "command": "python " + " ".join(command(name, seed)),
        "settings": settings,
        "git_commit": json.loads((out_dir / "config.json").read_text())["git_commit"],
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "iterations": len(steps),
        "cpu_s_per_iteration": float(np.mean([s["cpu_s"] for s in steps])),
        "curve": {s["step"]: s["eval_success"] for s in steps if s["eval_success"] is not None},
        "successes": json.loads((out_dir / "scores.json").read_text()),
    }
    target.write_text(json.dumps(result) + "\n")
    return True, f"{target}: written after {time.time() - began:.0f} s"


def percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def learning_table() -> str:
    """Markdown of all finished rows: success in % [95 % Wilson interval] per stage, and differences paired on the same
    instances with a bootstrap interval, over instances for one seed and over seeds and instances for all."""
    head = " | ".join(["run", *STAGES, "RL - start", "RL - greedy", "CPU-s/iteration"])
    lines = [f"| {head} |", "|---" * 6 + "|"]
    players = ["", "Reference players on the same instances, success in %:", ""]
    for name in LEARNING:
        paths = [p for p in (RESULTS / "learning" / f"{name}_s{seed}.json" for seed in SEEDS) if p.is_file()]
        results = [json.loads(p.read_text()) for p in paths]
        commits = [str(r["git_commit"]) for r in results]
        chosen = [(f"{p.stem} ({c[:7]}{c[40:]})", [r]) for p, c, r in zip(paths, commits, results, strict=True)]
        chosen += [(f"{name}, {len(results)} seeds", results)] if len(results) > 1 else []
        for label, rows in chosen:
            score = {key: np.array([r["successes"][key] for r in rows]) for key in rows[0]["successes"]}
            cells = [percent(score[stage].mean(), *wilson_interval(score[stage].sum(), score[stage].size))
                     for stage in STAGES]  # fmt: skip
            cells += [percent(*paired_bootstrap(score["after RL"], score[other]))
                      for other in ("start", "greedy, closed loop")]  # fmt: skip
            cells.append(f"{np.mean([r['cpu_s_per_iteration'] for r in rows]):.2f}")
            lines.append(f"| {label} | {' | '.join(cells)} |")
        if results:
            wins = {k: s for k, s in results[0]["successes"].items() if k not in STAGES}
            rates = (f"{k} {percent(np.mean(s), *wilson_interval(sum(s), len(s)))}" for k, s in wins.items())
            players.append(f"- {name}: {'; '.join(rates)}")
    return "\n".join([*lines, *players]) + "\n"


def main(argv: list[str]) -> None:
    if not argv or argv[0] != "learning":
        raise ValueError(f"give the name of a table: learning; got {argv[:1] or 'nothing'}")
    _, options, sources = load_config(argv[1:], extra={"jobs": 2, "only": ""})
    if set(sources.values()) != {"default"}:
        raise ValueError("the settings of the runs are fixed here; only --jobs and --only are options")
    jobs = [(name, seed) for seed in SEEDS for name in LEARNING if options["only"] in name]
    if not jobs:
        raise ValueError(f"--only={options['only']} matches none of {', '.join(LEARNING)}")
    (RESULTS / "learning").mkdir(parents=True, exist_ok=True)
    failed = []
    with ThreadPoolExecutor(options["jobs"]) as pool:
        for there, line in pool.map(lambda job: run(*job), jobs):
            print(line, flush=True)
            failed += [] if there else [line]
    text = learning_table()
    (RESULTS / "learning.md").write_text(text)
    print(text)
    if failed:
        raise ValueError("; ".join(failed))


if __name__ == "__main__":
    fail_clearly(main)
