"""Write the tables and pictures of studies/real_model/README.md, and docs/echo_trap.png.

    python -m studies.reproduce echo_trap jobs     # the runs
    python -m studies.real_model.page              # takes seconds

The tables and pictures show runs of SmolLM2-135M. The README.md defines collapse, fall and sign.
"""

from configurator import UserError

from support.terminal import refuse_arguments, run_main

if __name__ == "__main__":
    run_main(refuse_arguments, kind=None)  # answers --help before the slow imports

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies import tables
from studies.real_model import guess
from studies.real_model.curves import draw_traps, draw_two_rates, metrics_of
from studies.real_model.experiments import EXPERIMENTS
from studies.runs import rows_of
from studies.signs import Sign, beginnings, collapse_iteration, last_good_evaluation
from support.statistics import difference_text, rate_text
from tools.plotting.tables import markdown
from utils.files import write_atomically

FOLDER = Path("studies/real_model")
SIGNS = {
    "spread of rewards halves": Sign("in_group_reward_std", rises=False, factor=2.0),
    "entropy doubles": Sign("entropy", rises=True, factor=2.0),
    "gradient norm triples": Sign("grad_norm", rises=True, factor=3.0),
    "replies grow by half": Sign("response_length", rises=True, factor=1.5),
}
# The pictures of the bandit and the tables "gains" and "difference" show only these methods.
SHOWN = ("bandit StarPO", "bandit StarPO-S")
AT_LOW_RATE = " at 2e-5"  # end of the labels of runs at this learning rate
# A run loses the form (the format of replies) if it ends with at least LAST iterations in which the
# share of valid replies is below LOST.
LOST = 0.5
LAST = 5
HEADINGS = (
    "method",
    "seed",
    "start %",
    "best %",
    "collapses at",
    "loses the form at",
    "end %",
    "CPU-s/iteration",
)
# Maps an environment to its text in the column "arms" of the tables. If the text names two arms,
# the second is the better arm.
GAMES = {
    "bandit:pair=phoenix": "Phoenix, Dragon",
    "bandit:pair=engineer": "Engineer, Teacher",
    "bandit:pair=trader": "Trader, Librarian",
    "bandit:pair=jobs": "the twelve pairs",
    "bandit:pair=jobs_test": "eight other pairs",
}
GAIN_HEADINGS = (
    "run",
    "arms",
    "seeds",
    "random player %",
    "cold start %",
    "after RL %",
    "RL - cold start",
)
Row = dict  # the results of a run (studies/runs.py)


def main(argv: list[str]) -> None:
    """Write the pictures and tables. Raises: UserError if no run of echo_trap is finished."""
    refuse_arguments(argv)
    finished = finished_of("echo_trap")
    if not finished:
        raise UserError("no run is finished; start them: python -m studies.reproduce echo_trap")
    high = shown_runs(finished)
    draw_traps(FOLDER / "echo_trap.png", high)
    draw_two_rates(Path("docs/echo_trap.png"), shown_runs(finished, AT_LOW_RATE), high)
    guess.draw(FOLDER / "guess.png")
    guess.draw_rewarded(FOLDER / "guess_thoughts.png")
    page = FOLDER / "README.md"
    labels = [name + rate for rate in (AT_LOW_RATE, "") for name in SHOWN]
    contents = {
        "gains": gain_lines({label: finished[label] for label in labels if label in finished}),
        "difference": difference_lines(finished),
        "runs": run_lines(finished),
        "signs": sign_lines(finished),
        "jobs": gain_lines(finished_of("jobs")),
        "guess": guess.lines(),
        "guess_thoughts": guess.rewarded_lines(),
    }
    texts = {name: "\n".join(lines) for name, lines in contents.items()}
    write_atomically(page, tables.fill(page.read_text(), texts))
    print(page.read_text())


def finished_of(experiment: str) -> dict[str, list[Row]]:
    """Map the label of each method to the results of its finished runs of SmolLM2."""
    curves = rows_of(EXPERIMENTS[experiment].curves, "smollm2")
    return {name: rows for name, rows in curves.items() if rows}


def shown_runs(curves: dict[str, list[Row]], suffix: str = "") -> dict[str, list[list[dict]]]:
    shown = {}
    for name in SHOWN:
        rows = curves.get(name + suffix, [])
        shown[name.removeprefix("bandit ")] = [metrics_of(row) for row in rows]
    return shown


def run_lines(curves: dict[str, list[Row]]) -> list[str]:
    lines = []
    for name, rows in curves.items():
        for row in rows:
            successes = tables.series(row)["eval_success"]  # iteration -> success
            best = max(successes, key=lambda iteration: successes[iteration])
            lines.append(
                [
                    name.removeprefix("bandit "),
                    str(row["settings"]["seed"]),
                    f"{100 * successes[0]:.0f}",
                    f"{100 * successes[best]:.0f} at {best}",
                    str(collapse_iteration(row) or "no"),
                    form_cell(row),
                    f"{100 * successes[max(successes)]:.0f} at {max(successes)}",
                    f"{row['cpu_s_per_iteration']:.0f}",
                ]
            )
    return markdown(HEADINGS, lines)


def form_cell(row: Row) -> str:
    if "valid_frac" not in row["series"]:
        return "not recorded"
    return str(form_loss(row) or "no")


def form_loss(row: Row) -> int | None:
    """Return the iteration at which a run loses the form (the format of replies), or None.

    From this iteration on, the share of valid replies stays below LOST."""
    valid = row["series"].get("valid_frac", [])
    num_lost = 0
    for fraction in reversed(valid):
        if fraction >= LOST:
            break
        num_lost += 1
    return len(valid) - num_lost + 1 if num_lost >= LAST else None


def fall_of(row: Row) -> int | None:
    """Return the iteration of the collapse or of the loss of the form, whichever is first.
    Return None if the run has neither."""
    falls = [iteration for iteration in (collapse_iteration(row), form_loss(row)) if iteration]
    return min(falls, default=None)


def last_good_iteration(row: Row) -> int:
    """Return the last iteration at which a sign can begin and still predict the fall of a run.

    If the fall is a loss of the form, return the iteration before the loss. If the fall is a
    collapse, return the iteration of the last evaluation before the collapse."""
    if fall_of(row) == form_loss(row):
        return form_loss(row) - 1
    return last_good_evaluation(row)


def sign_lines(curves: dict[str, list[Row]]) -> list[str]:
    lines = []
    for name, rows in curves.items():
        for row in rows:
            cells = [sign_cell(row, sign) for sign in SIGNS.values()]
            lines.append([name.removeprefix("bandit "), str(row["settings"]["seed"]), *cells])
    return markdown(["method", "seed", *SIGNS], lines)


def sign_cell(row: Row, sign: Sign) -> str:
    """Return when a sign begins, and whether the sign predicts the fall of the run.

    "9: 6 before" means that the sign begins at iteration 9, six iterations before the fall.
    "13: late" means that the sign begins at iteration 13, too late to predict the fall.
    "9, 14: false" means that the sign begins at iterations 9 and 14, but the run does not fall.
    "never" means that the sign never begins."""
    begun = beginnings(row, sign)
    fall = fall_of(row)
    if not begun:
        return "never"
    if fall is None:
        return f"{shown_list(begun)}: false"
    if begun[0] > last_good_iteration(row):
        return f"{begun[0]}: late"
    return f"{begun[0]}: {fall - begun[0]} before"


def gain_lines(curves: dict[str, list[Row]]) -> list[str]:
    """Return a table of success before and after RL: a line for each method and environment."""
    lines = []
    for name, rows in curves.items():
        seeds = ", ".join(str(row["settings"]["seed"]) for row in rows)
        for env, wins in tables.wins_by_env(rows).items():
            start, end = wins["start"], wins["after RL"]  # (S, n) each
            lines.append(
                [
                    name.split(maxsplit=1)[1],
                    GAMES[env],
                    seeds,
                    rate_text(wins["random, closed loop"]),
                    rate_text(start),
                    rate_text(end),
                    difference_text(end, start),
                ]
            )
    return markdown(GAIN_HEADINGS, lines)


def difference_lines(curves: dict[str, list[Row]]) -> list[str]:
    """Return a table of the difference in success after RL, StarPO-S minus StarPO.

    Each line is for one learning rate. The line uses only the seeds for which both methods have
    a finished run at this rate."""
    lines = []
    for suffix, rate in ((AT_LOW_RATE, "2e-5"), ("", "8e-5")):
        starpo, starpo_s = (wins_by_seed(curves.get(name + suffix, [])) for name in SHOWN)
        seeds = sorted(starpo.keys() & starpo_s.keys())
        if seeds:
            one = np.array([starpo[seed] for seed in seeds])  # (S, n)
            other = np.array([starpo_s[seed] for seed in seeds])  # (S, n)
            shown_seeds = ", ".join(str(seed) for seed in seeds)
            lines.append([rate, shown_seeds, difference_text(other, one)])
    return markdown(["learning rate", "seeds", "StarPO-S - StarPO"], lines)


def wins_by_seed(rows: list[Row]) -> dict[int, np.ndarray]:
    """Map each seed to an array of shape (n,): the success after RL on each of n prompts."""
    found = {}
    for row in rows:
        (wins,) = tables.wins_by_env([row]).values()
        found[row["settings"]["seed"]] = wins["after RL"][0]
    return found


def shown_list(iterations: Sequence[int]) -> str:
    words = [str(iteration) for iteration in iterations[:3]]
    if len(iterations) > 3:
        words.append("...")
    return ", ".join(words)


if __name__ == "__main__":
    run_main(main)
