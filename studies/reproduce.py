"""Run the experiments of this repository and of two papers, and make their tables and pictures.

`fig5` to `fig11`, `trap` and `table2` to `table4` belong to arXiv 2504.20073. `quest`, `turns`,
`density`, `split` and `ratio` belong to arXiv 2510.01132. This repository adds `credit` and
`collapse` for the tiny model, and `echo_trap`, `jobs` and `guess` for SmolLM2-135M.

    python -m studies.reproduce fig9                         # all runs of fig9, two at a time
    python -m studies.reproduce fig5 --seeds=0 --only=frozenlake --jobs=1
    python -m studies.reproduce fig5 fig7 fig9 --dry_run=True     # commands and estimated hours
    python -m studies.reproduce fig9 --draw=True             # no runs, only tables and pictures
    python -m studies.reproduce fig9 --scale=full            # Qwen2.5-0.5B-Instruct on a GPU
    python -m studies.reproduce echo_trap                    # SmolLM2-135M on a CPU

The same command continues an interrupted run. A finished run has a JSON file in the folder
rows/ of its study, and is repeated only with --again=True. Curves with equal settings share their
runs. From the JSON files the script writes a table (.md), points (.csv) and a picture (.png) into
the folder of the study. The script ignores runs of the tiny model that started from other weights
than those in base/.
"""

from configurator import Config, UserError

from collections.abc import Sequence

from studies.collapse.experiments import EXPERIMENTS as COLLAPSE
from studies.credit.experiments import EXPERIMENTS as CREDIT
from studies.experiments import (
    SCALES,
    Command,
    Curve,
    read_names,
    settings_of,
    sft_command,
    train_command,
)
from studies.papers.experiments import EXPERIMENTS as PAPERS
from studies.real_model.experiments import EXPERIMENTS as REAL_MODEL
from support.terminal import run_main

STUDIES = {  # maps a folder in studies/ to its experiments
    "papers": PAPERS,
    "collapse": COLLAPSE,
    "credit": CREDIT,
    "real_model": REAL_MODEL,
}
EXPERIMENTS = {}  # maps a name to the experiment
STUDY_OF = {}  # maps the name of an experiment to the folder of its study
for study, experiments in STUDIES.items():
    EXPERIMENTS |= experiments
    STUDY_OF |= dict.fromkeys(experiments, study)

OPTIONS = {
    "scale": "",  # tiny | smollm2 | smollm2_gpu | full; '' = default of the first named experiment
    "seeds": "0,1,2",
    "jobs": 0,  # runs at the same time; 0 = SCALES[scale].jobs
    "only": "",  # run only the curves whose label contains this text
    # Repeat finished runs too. If the folder of a finished run is still in out/runs/, train.py does
    # not repeat the run. To repeat such a run, remove its folder first.
    "again": False,
    "dry_run": False,
    "draw": False,
}


def read_options(argv: Sequence[str]) -> tuple[list[str], dict, list[int]]:
    names, options = read_names(argv, EXPERIMENTS, OPTIONS)
    options["scale"] = choose_scale(names, options["scale"])
    if options["jobs"] < 0:
        raise UserError(f"jobs must be 0 or more, got {options['jobs']}")
    seeds = options["seeds"].split(",")
    are_integers = all(seed.isdecimal() for seed in seeds)
    if not are_integers or len(set(seeds)) < len(seeds):
        given = options["seeds"]
        raise UserError(
            f"seeds must be different integers of 0 or more, such as 0,1,2, got {given!r}"
        )
    return names, options, [int(seed) for seed in seeds]


def choose_scale(names: Sequence[str], given: str) -> str:
    """Return the given scale. If it is empty, return the default of the first experiment.

    Raises: UserError for an unknown scale, or if an experiment does not run at the scale."""
    if given and given not in SCALES:
        raise UserError(f"scale must be one of {', '.join(SCALES)}, got {given!r}")
    scale = given or EXPERIMENTS[names[0]].scales[0]
    for name in names:
        scales = EXPERIMENTS[name].scales
        if scale not in scales:
            raise UserError(f"{name} runs at scale {' or '.join(scales)}, got scale {scale}")
    return scale


if __name__ == "__main__":
    run_main(read_options, kind=None)  # reports wrong arguments before the slow imports

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies import plots, runs, tables
from support.seed_groups import without_seed
from utils.files import write_atomically


@dataclass(frozen=True)
class Job:
    """A training run: one seed of a curve."""

    study: str  # the folder in studies/ that gets the results of the run
    curve: Curve
    scale: str
    seed: int

    def settings(self) -> Config:
        return settings_of(self.curve, self.scale, self.seed)

    def command(self) -> Command:
        return train_command(self.curve, self.scale, self.seed)

    def sft_command(self) -> Command | None:
        return sft_command(self.curve, self.scale, self.seed)


def main(argv: list[str]) -> None:
    names, options, seeds = read_options(argv)
    scale = options["scale"]
    rows = runs.finished_rows()
    jobs = chosen_jobs(names, options["only"], scale, seeds)
    num_finished = sum(settings in rows for settings in jobs)
    print(f"{len(jobs)} runs, {num_finished} of them finished", flush=True)
    todo = [job for settings, job in jobs.items() if options["again"] or settings not in rows]
    if options["draw"]:
        todo = []
    if options["dry_run"]:
        print_commands(todo, rows, SCALES[scale].estimate)
        return
    failures = run_all(todo, options["jobs"] or SCALES[scale].jobs)
    for name in names:
        print(show(name, scale))
    if failures:
        raise UserError("; ".join(failures))


def chosen_jobs(
    names: Sequence[str], only: str, scale: str, seeds: Sequence[int]
) -> dict[Config, Job]:
    curves = []
    for name in names:
        for label, curve in EXPERIMENTS[name].curves.items():
            curves.append((STUDY_OF[name], label, curve))
    jobs: dict[Config, Job] = {}
    for seed in seeds:
        for study, label, curve in curves:
            if only in label:
                job = Job(study, curve, scale, seed)
                jobs[job.settings()] = job
    if not jobs:
        labels = ", ".join(label for _, label, _ in curves)
        raise UserError(f"--only={only} matches none of {labels}")
    return jobs


# ---------- run


def run_all(jobs: Sequence[Job], num_parallel: int) -> list[str]:
    """Run the SFT stages, then all jobs except those whose SFT stage failed.

    Returns: the error messages."""
    with ThreadPoolExecutor(num_parallel) as pool:
        stages = sft_stages(jobs)
        failed_stages = dict(zip(stages, pool.map(runs.launch, stages), strict=True))
        failures = [failure for failure in failed_stages.values() if failure]
        ready = [job for job in jobs if not failed_stages.get(job.sft_command())]
        for failure in pool.map(run_job, ready):
            if failure:
                print(failure, flush=True)
                failures.append(failure)
    return failures


def run_job(job: Job) -> str:
    return runs.run(job.curve, job.scale, job.seed, job.study)


def sft_stages(jobs: Sequence[Job]) -> list[Command]:
    stages = dict.fromkeys(job.sft_command() for job in jobs)
    return [stage for stage in stages if stage]


# ---------- estimate


def print_commands(jobs: Sequence[Job], rows: dict[Config, dict], source: str) -> None:
    for stage in sft_stages(jobs):
        print(f"{stage}  # SFT stage of runs below")
    total = 0.0
    for job in jobs:
        estimate = hours(job.settings(), job.scale, rows)
        total += estimate
        print(f"{job.command()}  # {estimate:.2f} h")
    print(f"about {total:.1f} hours one after the other ({source})")


def hours(config: Config, scale: str, rows: dict[Config, dict]) -> float:
    """Estimate the hours of a run, without its SFT stage.

    If runs with these settings and any seed are finished, use the mean of their seconds per
    iteration. Otherwise use the estimates in SCALES."""
    on_gpu = scale in ("full", "smollm2_gpu")
    key = "wall_s_per_iteration" if on_gpu else "cpu_s_per_iteration"
    wanted = without_seed(config)
    known = [row[key] for other, row in rows.items() if without_seed(other) == wanted]
    if known:
        return config.num_iterations * np.mean(known) / 3600
    times = SCALES[scale].seconds
    seconds = times.get(config.env.split(":")[0], max(times.values()))  # else the slowest
    played = config.num_groups * config.group_size
    trained = played * config.filter_keep * config.num_epochs
    iteration_s = seconds.rollout * played / 128 + seconds.step * trained / 32
    return config.num_iterations * iteration_s / 3600


# ---------- show


def show(name: str, scale: str) -> str:
    """Write the table, the points (CSV) and the picture of an experiment from its finished runs.

    Returns: the table."""
    experiment = EXPERIMENTS[name]
    found = runs.rows_of(experiment.curves, scale)
    suffix = "" if scale == experiment.scales[0] else f"_{scale}"
    title = f"{name}, {scale}: {experiment.title}"
    picture = Path("studies", STUDY_OF[name], f"{experiment.files or name}{suffix}.png")
    plots.plot(picture, title, experiment.metrics, found)
    tables.write_points(picture.with_suffix(".csv"), found)
    text = f"# {title}\n\n{tables.table(found, plots.CAPTION)}"
    write_atomically(picture.with_suffix(".md"), text)
    return text


if __name__ == "__main__":
    run_main(main)
