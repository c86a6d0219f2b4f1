"""Make the table and the picture of the guessing game from the runs in studies/real_model/guess/.

A run is a JSON file with "curve" (iteration -> success on the evaluation prompts) and "series"
(metric -> its value in every iteration).
"""

from functools import cache
from pathlib import Path

from studies.real_model.curves import Panel, draw_panels, metrics_of
from support.run_folder import read_json
from support.statistics import wilson_interval
from tools.plotting import tables

FOLDER = Path("studies/real_model/guess")
PANELS = (
    Panel("success", "success in training, %", 100),
    Panel("thought_true_frac", "true statements, %", 100),
    Panel("entropy", "entropy, nats a token"),
)
HEADINGS = ("seed", "learning rate", "cold start %", "iteration 10 %", "iteration 20 %")


def read_runs() -> list[dict]:
    return [read_json(path, {}) for path in sorted(FOLDER.glob("seed*.json"))]


def draw(path: Path) -> None:
    """Draw the metrics of PANELS, with a line for each run."""
    curves: dict[str, list[list[dict]]] = {}
    for run in read_runs():
        curves.setdefault(f"rate {shown_rate(run)}", []).append(metrics_of(run))
    draw_panels(path, PANELS, curves)


def lines() -> list[str]:
    """Return a table of success, with 95 % Wilson intervals over prompts."""
    cells = []
    for run in read_runs():
        rates = [rate_cell(run, iteration) for iteration in ("0", "10", "20")]
        cells.append([str(run["seed"]), shown_rate(run), *rates])
    return tables.markdown(HEADINGS, cells)


def shown_rate(run: dict) -> str:
    return f"{run['learning_rate']:.0e}".replace("e-0", "e-")


def rate_cell(run: dict, iteration: str) -> str:
    rate = run["curve"][iteration]
    low, high = wilson_interval(round(rate * run["eval_size"]), run["eval_size"])
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


@cache
def chance_of_possible(num_numbers: int, num_turns: int) -> float:
    """Return the probability of a win if each guess is a random number that is still possible.

    Args: num_numbers: how many numbers are possible. num_turns: guesses left."""
    if num_numbers == 0 or num_turns == 0:
        return 0.0
    wins = 0.0
    for guess in range(1, num_numbers + 1):
        wins += 1  # the guess is right
        for rest in (guess - 1, num_numbers - guess):  # numbers left after "lower", "higher"
            wins += rest * chance_of_possible(rest, num_turns - 1)
    return wins / num_numbers**2
