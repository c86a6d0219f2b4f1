"""Make the table and the picture of the guessing game from the runs in studies/real_model/guess/.

A run is a JSON file with "curve" (iteration -> success on the evaluation prompts) and "series"
(metric -> its value in every iteration).
"""

from functools import cache
from pathlib import Path

import numpy as np

from studies.real_model.curves import Panel, draw_panels, metrics_of
from support.run_folder import read_json
from support.statistics import interval_of_rates, rate_in_percent, wilson_interval
from tools.plotting.tables import markdown

FOLDER = Path("studies/real_model/guess")
PANELS = (
    Panel("success", "success in training, %", 100),
    Panel("thought_true_frac", "true statements, %", 100),
    Panel("entropy", "entropy, nats a token"),
)
ITERATIONS = ("0", "10", "20", "30", "40")
HEADINGS = ("run", "cold start %", *(f"iteration {step} %" for step in ITERATIONS[1:]))


def read_runs() -> list[dict]:
    return [read_json(path, {}) for path in sorted(FOLDER.glob("*.json"))]


def runs_by_method() -> dict[str, list[dict]]:
    methods: dict[str, list[dict]] = {}
    for run in read_runs():
        methods.setdefault(run["method"], []).append(run)
    return methods


def draw(path: Path) -> None:
    curves = {}
    for method, runs in runs_by_method().items():
        curves[method] = [metrics_of(run) for run in runs]
    draw_panels(path, PANELS, curves)


def lines() -> list[str]:
    """Return a table of success with 95 % intervals: a line for each run and for each method."""
    cells = []
    for method, runs in runs_by_method().items():
        for run in runs:
            rates = [rate_cell(run, step) for step in ITERATIONS]
            cells.append([f"{method}, seed {run['seed']}", *rates])
        means = [mean_cell(runs, step) for step in ITERATIONS]
        cells.append([f"**{method}, mean of the seeds**", *means])
    return markdown(HEADINGS, cells)


def rate_cell(run: dict, step: str) -> str:
    """Return success at iteration `step`, with a Wilson interval over prompts; "-" if the run ended
    before this iteration."""
    if step not in run["curve"]:
        return "-"
    rate = run["curve"][step]
    low, high = wilson_interval(round(rate * run["eval_size"]), run["eval_size"])
    return rate_in_percent(rate, low, high)


def mean_cell(runs: list[dict], step: str) -> str:
    """Return the mean success of the seeds at iteration `step`, with an interval over prompts and
    seeds; "-" if a run ended before this iteration."""
    if any(step not in run["curve"] for run in runs):
        return "-"
    rates = np.array([run["curve"][step] for run in runs])  # (S,)
    low, high = interval_of_rates(rates, runs[0]["eval_size"])
    return rate_in_percent(rates.mean(), low, high)


@cache
def chance_of_possible(num_numbers: int, num_turns: int) -> float:
    """Return the probability of a win if each guess is a random number that is still possible.

    Args: num_numbers: how many numbers are still possible. num_turns: guesses left."""
    if num_numbers == 0 or num_turns == 0:
        return 0.0
    wins = 0.0  # expected wins in one game for each pair of first guess and hidden number
    for guess in range(1, num_numbers + 1):
        wins += 1  # the game whose hidden number is the guess
        for rest in (guess - 1, num_numbers - guess):  # numbers left after "lower" and "higher"
            wins += rest * chance_of_possible(rest, num_turns - 1)
    return wins / num_numbers**2
