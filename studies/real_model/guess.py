"""Make the tables and pictures of the guessing game from the runs in studies/real_model/guess/.

A run is a JSON file. Its "curve" maps an iteration to success on the evaluation prompts. Its
"series" maps a metric to the list of its values in all iterations. The files of some runs also have
"other_numbers", the success in games with hidden numbers from 1 to 31 and five turns.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from studies.real_model.curves import Panel, draw_panels, metrics_of
from support.statistics import interval_of_rates, rate_in_percent, seed_interval, wilson_interval
from tools.plotting.tables import markdown
from utils.files import read_json

FOLDER = Path("studies/real_model/guess")
PANELS = (
    Panel("success", "success in training, %", 100),
    Panel("thought_true_frac", "true statements, %", 100),
    Panel("entropy", "entropy, nats a token"),
)
ITERATIONS = ("0", "10", "20", "30", "40")
HEADINGS = ("run", "cold start %", *(f"iteration {step} %" for step in ITERATIONS[1:]))
METHODS = ("StarPO", "StarPO-S")
# These methods differ only in the reward for true thoughts. Runs with equal seeds share a cold
# start.
REWARDED = ("StarPO-S", "StarPO-S, think_reward 0.1", "StarPO-S, think_reward 0.3")
REWARDED_SEEDS = (3, 4, 5)
REWARDED_HEADINGS = (
    "run",
    "true after turn 1, cold start %",
    "true after turn 1, iteration 50 %",
    "success, cold start %",
    "success, best evaluation %",
    "success, iteration 50 %",
)


def read_runs() -> list[dict]:
    return [read_json(path, {}) for path in sorted(FOLDER.glob("*.json"))]


def runs_of(methods: Sequence[str]) -> dict[str, list[dict]]:
    """Map each method in `methods` to its runs, one for each seed."""
    found: dict[str, list[dict]] = {method: [] for method in methods}
    for run in read_runs():
        if run["method"] in methods:
            found[run["method"]].append(run)
    return found


def rewarded_runs() -> dict[str, list[dict]]:
    """Map each method in REWARDED to its runs whose seed is in REWARDED_SEEDS."""
    chosen = {}
    for method, runs in runs_of(REWARDED).items():
        chosen[method] = [run for run in runs if run["seed"] in REWARDED_SEEDS]
    return chosen


def draw(path: Path) -> None:
    """Draw the runs without a reward for thoughts."""
    draw_runs(path, runs_of(METHODS))


def draw_rewarded(path: Path) -> None:
    """Draw the runs with and without a reward for true thoughts."""
    draw_runs(path, rewarded_runs())


def draw_runs(path: Path, methods: dict[str, list[dict]]) -> None:
    curves = {}
    for method, runs in methods.items():
        curves[method] = [metrics_of(run) for run in runs]
    draw_panels(path, PANELS, curves)


def lines() -> list[str]:
    """Return a table of success with 95 % intervals.

    The table has a line for each run, and a line for the mean of each method."""
    cells = []
    for method, runs in runs_of(METHODS).items():
        for run in runs:
            rates = [rate_cell(run, step) for step in ITERATIONS]
            cells.append([f"{method}, seed {run['seed']}", *rates])
        means = [mean_cell(runs, step) for step in ITERATIONS]
        cells.append([f"**{method}, mean of the seeds**", *means])
    return markdown(HEADINGS, cells)


def rewarded_lines() -> list[str]:
    """Return a table of success and of the share of true statements in thoughts.

    Each run of `rewarded_runs` has a line. The last line of a method has the means over its seeds
    and their 95 % t intervals."""
    cells = []
    for method, runs in rewarded_runs().items():
        shares = np.array([shares_of(run) for run in runs])  # (S, 5)
        for run, row in zip(runs, shares, strict=True):
            numbers = [f"{100 * share:.1f}" for share in row]
            cells.append([f"{method}, seed {run['seed']}", *numbers])
        means = shares.mean(0)  # (5,)
        low, high = seed_interval(shares)  # (5,), (5,)
        cells.append([f"**{method}, mean of the seeds**", *map(rate_in_percent, means, low, high)])
    return markdown(REWARDED_HEADINGS, cells)


def shares_of(run: dict) -> list[float]:
    """Return the five numbers of a run's line in `rewarded_lines`, each between 0 and 1.

    The first two numbers are the share of true statements before RL and after RL, without the
    statements of the first turn. The last three numbers are success before RL, in the best
    evaluation and at iteration 50."""
    curve = run["curve"]
    return [
        true_share(run, "start"),
        true_share(run, "final"),
        curve["0"],
        max(curve.values()),
        curve["50"],
    ]


def true_share(run: dict, evaluation: str) -> float:
    """Return the share of true statements after the first turn in the "start" or "final"
    evaluation."""
    num_true, num_statements = run["evaluations"][evaluation]["true_statements_later"]
    return num_true / num_statements


def rate_cell(run: dict, step: str) -> str:
    """Return success at iteration `step` and its Wilson interval over prompts.

    Return "-" if the run ended before this iteration."""
    if step not in run["curve"]:
        return "-"
    rate = run["curve"][step]
    low, high = wilson_interval(round(rate * run["eval_size"]), run["eval_size"])
    return rate_in_percent(rate, low, high)


def mean_cell(runs: list[dict], step: str) -> str:
    """Return the mean success at iteration `step`, and its interval over prompts and seeds.

    Return "-" if a run ended before this iteration."""
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
    # The expected wins in num_numbers**2 games, one for each pair (first guess, hidden number).
    wins = 0.0
    for guess in range(1, num_numbers + 1):
        wins += 1  # the game whose hidden number is the guess
        for rest in (guess - 1, num_numbers - guess):  # numbers left after "lower" and "higher"
            wins += rest * chance_of_possible(rest, num_turns - 1)
    return wins / num_numbers**2
