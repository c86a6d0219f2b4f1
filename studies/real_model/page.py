"""Write the tables and the picture of README.md from the finished runs of the experiment echo_trap.

    python -m studies.reproduce echo_trap     # the runs
    python -m studies.real_model.page         # seconds

README.md has the definitions. They were fixed before the runs.
"""

from configurator import UserError, run_main

from collections.abc import Sequence
from pathlib import Path

from studies.experiments import FIGURES
from studies.real_model.pictures import draw_traps
from studies.reproduce import rows_of
from studies.signs import Sign, beginnings, collapse_iteration, last_good_evaluation
from support.run_folder import write_atomically
from tools.plotting import tables

FOLDER = Path("studies/real_model")
SIGNS = {
    "spread of rewards halves": Sign("in_group_reward_std", rises=False, factor=2.0),
    "entropy doubles": Sign("entropy", rises=True, factor=2.0),
    "gradient norm triples": Sign("grad_norm", rises=True, factor=3.0),
    "replies grow by half": Sign("response_length", rises=True, factor=1.5),
}
SHOWN = ("bandit StarPO", "bandit StarPO-S")  # the methods in the picture
Row = dict  # of a run, see studies/runs.py


def main(argv: list[str]) -> None:
    """Raises: UserError if no run is finished."""
    if argv:
        raise UserError(f"expected no arguments, got {' '.join(argv)}")
    curves = rows_of(FIGURES["echo_trap"].curves, "smollm2")
    finished = {name: rows for name, rows in curves.items() if rows}
    if not finished:
        raise UserError("no run is finished; start them: python -m studies.reproduce echo_trap")
    draw_traps(FOLDER / "echo_trap.png", shown_runs(finished))
    page = FOLDER / "README.md"
    contents = {"runs": "\n".join(run_lines(finished)), "signs": "\n".join(sign_lines(finished))}
    write_atomically(page, tables.fill(page.read_text(), contents))
    print(page.read_text())


def shown_runs(curves: dict[str, list[Row]]) -> dict[str, list[list[dict]]]:
    """The metrics of each iteration of the runs in the picture, as in metrics.jsonl."""
    shown = {}
    for name in SHOWN:
        shown[name.removeprefix("bandit ")] = [metrics_of(row) for row in curves.get(name, [])]
    return shown


def metrics_of(row: Row) -> list[dict]:
    """The series of a row as one dict for each iteration."""
    steps = []
    for index in range(row["iterations"]):
        step = {key: values[index] for key, values in row["series"].items()}
        steps.append({"step": index + 1, **step})
    return steps


def run_lines(curves: dict[str, list[Row]]) -> list[str]:
    """The table with one line for every run."""
    lines = []
    for name, rows in curves.items():
        for row in rows:
            successes = tables.series(row)["eval_success"]  # iteration -> success
            best = max(successes, key=lambda iteration: successes[iteration])
            collapse = collapse_iteration(row)
            lines.append(
                [
                    name.removeprefix("bandit "),
                    str(row["settings"]["seed"]),
                    f"{100 * successes[0]:.0f}",
                    f"{100 * successes[best]:.0f} at {best}",
                    str(collapse) if collapse else "no",
                    f"{100 * successes[max(successes)]:.0f} at {max(successes)}",
                    f"{row['cpu_s_per_iteration']:.0f}",
                ]
            )
    headings = ["method", "seed", "start %", "best %", "collapses at", "end %", "CPU-s/iteration"]
    return tables.markdown(headings, lines)


def sign_lines(curves: dict[str, list[Row]]) -> list[str]:
    """The table with one line for every run and a column for every sign."""
    lines = []
    for name, rows in curves.items():
        for row in rows:
            cells = [sign_cell(row, sign) for sign in SIGNS.values()]
            lines.append([name.removeprefix("bandit "), str(row["settings"]["seed"]), *cells])
    return tables.markdown(["method", "seed", *SIGNS], lines)


def sign_cell(row: Row, sign: Sign) -> str:
    """When a sign begins, and what it is worth: its lead over the collapse, late, or false."""
    begun = beginnings(row, sign)
    collapse = collapse_iteration(row)
    if not begun:
        return "never"
    if collapse is None:
        return f"{shown_list(begun)}: false"
    if begun[0] > last_good_evaluation(row):
        return f"{begun[0]}: late"
    return f"{begun[0]}: {collapse - begun[0]} before"


def shown_list(iterations: Sequence[int]) -> str:
    """The first three iterations, separated by commas."""
    words = [str(iteration) for iteration in iterations[:3]]
    if len(iterations) > 3:
        words.append("...")
    return ", ".join(words)


if __name__ == "__main__":
    run_main(main)
