"""Correlate the accuracy of each estimator's credit with the estimator's speed of learning.

    python -m studies.reproduce credit     # trains with each estimator
    python -m studies.credit.measure RUN...  # measures the credit of each estimator
    python -m studies.credit.page          # fills the tables of studies/credit/README.md

For each environment, checkpoint and seed of training, the script ranks the estimators by accuracy
and by speed, and computes the correlation of the two rankings. The terms mean:

    credit of a turn          mean advantage of its tokens
    accuracy of an estimator  rank correlation between the credit and the true advantage of turns
    speed of a run            mean success rate of its evaluations after iteration 0
"""

from configurator import UserError

from support.terminal import refuse_arguments, run_main

if __name__ == "__main__":
    run_main(refuse_arguments, kind=None)  # answers --help before the slow imports

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies import tables
from studies.credit.accuracy import rank_correlation
from studies.credit.experiments import EXPERIMENTS
from studies.credit.report import REFERENCE, cell
from studies.runs import rows_of
from support.statistics import mean_over_seeds, rate_in_percent, seed_interval
from tools.plotting.tables import markdown
from utils.files import read_json, write_atomically

PAGE = Path("studies/credit/README.md")
CREDIT = Path("studies/credit/results/credit.json")  # written by studies/credit/measure.py
SUMMARIES = [  # the fields that are read from CREDIT, and their types (utils/json_shapes.py)
    {
        "env": str,
        "label": str,
        "seeds": [int],
        "estimators": {str: {key: [(float, None)] for key in ("rank", "gain", "within")}},
    }
]
Row = dict  # the record of one run, see studies/runs.py


class Result(NamedTuple):
    """The accuracy of an estimator's credit, and the success of its S runs, one for each seed."""

    name: str
    speeds: np.ndarray  # (S,) success, averaged over all evaluations except the one before RL
    last: np.ndarray  # (S,) success after the last iteration
    cpu_s: float  # CPU seconds of RL, mean over the runs
    accuracies: dict[str, float]  # maps checkpoint labels to accuracies (see the top of the file)


def main(argv: list[str]) -> None:
    """Fill the tables of PAGE. Raises: UserError if a run or an estimator's accuracy is missing."""
    refuse_arguments(argv)
    summaries = read_json(CREDIT, SUMMARIES)
    curves = rows_of(EXPERIMENTS["credit"].curves, "tiny")
    contents = {}
    for world in ("frozenlake", "sokoban"):
        found = [summary for summary in summaries if summary["env"].split(":")[0] == world]
        labels = [summary["label"] for summary in found]
        if len(set(labels)) < len(labels):
            raise UserError(
                f"{CREDIT} has two policies of {world} at one checkpoint; measure only one policy"
            )
        results = results_of(world, curves, found)
        contents[f"credit {world}"] = credit_table(found)
        contents[f"speed {world}"] = speed_table(results)
        contents[f"correlation {world}"] = correlation_table(results)
    write_atomically(PAGE, tables.fill(PAGE.read_text(), contents))
    print(PAGE.read_text())


def results_of(
    world: str, curves: dict[str, Sequence[Row]], summaries: Sequence[dict]
) -> list[Result]:
    """Return a result for each estimator that trained policies in the environment `world`.

    Args:
        curves: maps each label "WORLD ESTIMATOR" to the records of its runs.
        summaries: the entries of CREDIT about `world`, one for each checkpoint.

    Raises: UserError if all runs have the same seed, because an interval over seeds needs two
        seeds. UserError if an estimator lacks a seed that other runs have, or if CREDIT lacks the
        accuracy of an estimator."""
    seeds = {row["settings"]["seed"] for rows in curves.values() for row in rows}
    if len(seeds) == 1:
        raise UserError("intervals over seeds need two seeds; run studies.reproduce credit")
    results = []
    for label, rows in curves.items():
        own_world, _, name = label.partition(" ")
        if own_world != world:
            continue
        if not rows or {row["settings"]["seed"] for row in rows} != seeds:
            raise UserError(f"{label} has too few seeds; run studies.reproduce credit")
        accuracies = {}
        for summary in summaries:
            known = summary["estimators"].get(name, {"rank": [None]})
            accuracies[summary["label"]] = known["rank"][0]
        if None in accuracies.values() or not summaries:
            raise UserError(
                f"{CREDIT} has no accuracy of {label}; run studies.credit.measure again, with more "
                "--draws"
            )
        results.append(
            Result(
                name=name,
                speeds=np.array([speed_of(row) for row in rows]),
                last=np.array([evaluations_of(row)[-1] for row in rows]),
                cpu_s=float(np.mean([row["costs"]["CPU-s, RL"] for row in rows])),
                accuracies=accuracies,
            )
        )
    return results


def speed_of(row: Row) -> float:
    """Return the mean success rate over the evaluations after iteration 0."""
    return float(np.mean(evaluations_of(row)))


def evaluations_of(row: Row) -> list[float]:
    successes = tables.series(row)["eval_success"]
    return [successes[iteration] for iteration in sorted(successes) if iteration > 0]


def correlations(results: Sequence[Result], checkpoint: str) -> np.ndarray:
    """Return, for each of S seeds, the rank correlation of accuracy and speed over E estimators.

    An estimator has one accuracy for all seeds, but a speed for each seed. Returns: (S,)."""
    accuracies = [result.accuracies[checkpoint] for result in results]
    speeds = np.stack([result.speeds for result in results])  # (E, S)
    return np.array([rank_correlation(accuracies, of_seed) for of_seed in speeds.T])


# ---------- tables


def credit_table(summaries: Sequence[dict]) -> str:
    headings = ["credit"]
    for summary in summaries:
        label = summary["label"]
        headings += [f"rank, {label}", f"less GRPO's, {label}", f"between turns, {label}"]
    last = summaries[-1]["estimators"]
    ordered = sorted(last, key=lambda name: -last[name]["rank"][0])
    lines = []
    for name in ordered:
        cells = [name]
        for summary in summaries:
            numbers = summary["estimators"][name]
            cells += [interval(numbers[key]) for key in ("rank", "gain", "within")]
        lines.append(cells)
    return "\n".join(markdown(headings, lines))


def speed_table(results: Sequence[Result]) -> str:
    """Return a Markdown table of the estimators, sorted by mean success, the highest first.

    The column "less GRPO's, by seed" compares each run with GRPO's run of the same seed: the mean
    success of the run minus the mean success of GRPO's run."""
    labels = list(results[0].accuracies)
    (reference,) = [result for result in results if result.name == REFERENCE]
    headings = ["estimator", "mean success %, by seed", "less GRPO's, by seed", "last %", "CPU-s"]
    headings += [f"accuracy, {label}" for label in labels]
    lines = []
    for result in sorted(results, key=lambda result: -result.speeds.mean()):
        by_seed = ", ".join(f"{100 * speed:.1f}" for speed in result.speeds)
        low, high = seed_interval(result.speeds)
        mean = result.speeds.mean()
        gains = 100 * (result.speeds - reference.speeds)  # (S,)
        gain, half_width = mean_over_seeds(gains, np.zeros_like(gains))
        gain_by_seed = ", ".join(f"{of_seed:.1f}" for of_seed in gains)
        lines.append(
            [
                result.name,
                f"{rate_in_percent(mean, low, high)} ({by_seed})",
                f"{gain:.1f} [{gain - half_width:.1f}, {gain + half_width:.1f}] ({gain_by_seed})",
                f"{100 * result.last.mean():.1f}",
                f"{result.cpu_s:.0f}",
                *[f"{result.accuracies[label]:.2f}" for label in labels],
            ]
        )
    return "\n".join(markdown(headings, lines))


def correlation_table(results: Sequence[Result]) -> str:
    lines = []
    for label in results[0].accuracies:
        by_seed = correlations(results, label)
        mean, half_width = mean_over_seeds(by_seed, np.zeros_like(by_seed))
        low, high = np.clip([mean - half_width, mean + half_width], -1, 1)
        values = ", ".join(f"{value:.2f}" for value in by_seed)
        lines.append([label, f"{mean:.2f} [{low:.2f}, {high:.2f}] ({values})"])
    headings = ["accuracy at", "rank correlation of accuracy and speed (by seed)"]
    return "\n".join(markdown(headings, lines))


def interval(number: Sequence[float | None]) -> str:
    """Format `number`, which is a value and the half-width of the value's 95 % interval.

    >>> interval([0.5, 0.1]), interval([None, None])
    ('0.50 [0.40, 0.60]', 'not known')
    """
    value, half_width = [math.nan if part is None else part for part in number]
    return cell(value, half_width, in_percent=False)


if __name__ == "__main__":
    run_main(main)
