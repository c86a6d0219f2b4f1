"""Code that the benchmarks share: measure variants in turn, and print the medians as a table."""

from configurator import Config, UserError

import importlib.util
from collections.abc import Callable

import numpy as np

RANDOM_MODEL = "out/bench_model"  # folder of the tiny model with random weights

Counts = dict[str, float]
Run = Callable[[], Counts]  # does the work of a variant once
Rows = dict[str, dict[str, list[float]]]  # rows[variant][quantity] = [median, smallest, largest]


def starts(config: Config) -> list[tuple[tuple[int, int], int]]:
    """For each trajectory, return the seed of its initial state and its index in the group."""
    return [
        ((71, group), member)
        for group in range(config.num_groups)
        for member in range(config.group_size)
    ]


def is_installed(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    state = "installed" if found else "not installed and left out"
    print(f"{package} is {state}")
    return found


def check(same: bool, difference: str) -> None:
    if not same:
        raise UserError(f"the variants do different work: {difference}")


def compare(variants: dict[str, Run], repeats: int) -> Rows:
    """Run all variants in each of `repeats + 1` rounds. The first round is a warm-up. Print a row
    for each variant.

    Args:
        variants: Maps the name of a variant to a function that does its work once. If the function
            returns "cpu_s" and "wall_s", they replace the times measured here.
    """
    measured = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, run in variants.items():
            measured[name].append(measure(run))
    rows: Rows = {}
    for name, (_, *measurements) in measured.items():
        rows[name] = {}
        for key in measurements[0]:
            values = [measurement[key] for measurement in measurements]
            rows[name][key] = summarize(values)
    first = next(iter(rows.values()))
    for name, row in rows.items():
        cells = [f"{key} {describe(summary)}" for key, summary in row.items()]
        ratio = row["cpu_s"][0] / first["cpu_s"][0]
        cells.append(f"CPU time {ratio:.2f} x")
        print(f"| {name} | {' | '.join(cells)} |")
    return rows


def measure(run: Run) -> Counts:
    # This import is slow, so it waits until bench.py has checked the command line.
    from support.training_metrics import Timer

    timer = Timer()
    counts = run()
    timer.stop()
    return {"cpu_s": timer.cpu_s, "wall_s": timer.wall_s, **counts}


def summarize(values: list[float]) -> list[float]:
    median = float(np.median(values))
    return [median, float(min(values)), float(max(values))]


def describe(summary: list[float]) -> str:
    median, low, high = summary
    return f"{median:,.5g} [{low:,.5g}, {high:,.5g}]"
