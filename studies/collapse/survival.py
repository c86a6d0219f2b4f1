"""Find which runs collapse, which methods survive, and which signs announce a collapse.

    python -m studies.reproduce collapse       # the runs
    python -m studies.collapse.survival  # the tables of studies/collapse/README.md

studies/signs.py defines collapses and signs. Example of a *sign*: the median of the entropy over
the latest 3 iterations is more than 1.5 times its median over iterations 1 to 5. A sign predicts a
collapse if it begins no later than the last evaluation before the collapse. A *cell* is a method at
a learning rate. The factor of each sign (1.5 in the example) is chosen on the runs of every second
cell, and tested on the runs of the other cells.
"""

from configurator import UserError

from support.terminal import refuse_arguments, run_main

if __name__ == "__main__":
    run_main(refuse_arguments, kind=None)  # answers --help before the slow imports

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from studies import tables
from studies.collapse.experiments import EXPERIMENTS
from studies.runs import rows_of
from studies.signs import (
    FIRST,
    Sign,
    beginnings,
    collapse_iteration,
    first_level,
    last_good_evaluation,
)
from tools.plotting.style import draw_legend, look_of, percent_axis, picture
from tools.plotting.tables import markdown
from utils.files import write_atomically

TOLERANCE = 0.05  # a run is alive only if it ends at most this far below StarPO's best success
STARPO = "frozenlake StarPO"
RATE = "2e-3"  # learning rate of the runs in collapse.png
# Maps the beginning of a method's name to the method's line in collapse.png. The first match
# counts.
FAMILIES = {
    "StarPO-S": "StarPO-S and its variants",
    "StarPO with a KL": "StarPO with a KL term",
    "StarPO with": "StarPO with another change",
    "StarPO": "StarPO",
    "": "methods since RAGEN",
}
SIGNS = ("in_group_reward_std", "entropy", "grad_norm", "response_length", "thought_true_frac")
FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)  # tried by `fit`
# The first level of grad_norm is its median over iterations 1 to FIRST. For each factor, a spike is
# the first later iteration in which grad_norm is above the factor times the first level.
SPIKES = (3.0, 10.0)  # each factor has two rows in the table of spikes

FOLDER = Path("studies/collapse")
Row = dict  # the record of one run, see studies/runs.py


@dataclass
class Verdict:
    """How well a sign of collapse predicts the collapses of some runs."""

    num_collapsed: int = 0  # runs that collapse
    num_predicted: int = 0  # runs whose sign begins by the last evaluation before their collapse
    num_late: int = 0  # collapsed runs whose sign begins too late to predict the collapse
    num_alarmed: int = 0  # num_predicted + runs that show the sign but do not collapse
    num_false: int = 0  # beginnings of the sign in runs without a collapse
    num_healthy: int = 0  # iterations of runs without a collapse
    leads: tuple[int, ...] = ()  # iterations from the sign to each predicted collapse

    @property
    def precision(self) -> float:
        return self.num_predicted / max(1, self.num_alarmed)

    @property
    def recall(self) -> float:
        return self.num_predicted / max(1, self.num_collapsed)

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def false_per_1000(self) -> float:
        """False alarms per 1,000 iterations of runs without a collapse."""
        return 1000 * self.num_false / max(1, self.num_healthy)


# ---------- the definitions


def num_updates(row: Row) -> int:
    """Return the number of iterations that count as updates.

    An iteration counts if the filter kept at least one group, and if rewards differed inside at
    least one group."""
    count = 0
    series = row["series"]
    for norm, spread in zip(series["grad_norm"], series["in_group_reward_std"], strict=True):
        kept_a_group = norm is not None
        rewards_differ = bool(spread)
        if kept_a_group and rewards_differ:
            count += 1
    return count


def is_alive(row: Row, starpo: Row) -> bool:
    """Return True if a run is alive.

    An alive run does not collapse, and it makes at least as many updates as StarPO. In the last
    evaluation, the run's success is at most TOLERANCE below StarPO's best success.

    Args: starpo: the run of StarPO with the same seed and learning rate."""
    successes = tables.series(row)["eval_success"]
    best_of_starpo = max(tables.series(starpo)["eval_success"].values())
    ends_well = successes[max(successes)] >= best_of_starpo - TOLERANCE
    has_enough_updates = num_updates(row) >= num_updates(starpo)
    return collapse_iteration(row) is None and has_enough_updates and ends_well


# ---------- signs


def judge(sign: Sign | None, rows: Sequence[Row]) -> Verdict:
    """Judge how well a sign of collapse predicts the collapses of these runs.

    Args: sign: the sign, or None to judge the first warning that each run printed."""
    verdict = Verdict()
    for row in rows:
        begun = beginnings(row, sign) if sign else first_warning(row)
        collapse = collapse_iteration(row)
        if collapse is None:
            verdict.num_false += len(begun)
            verdict.num_healthy += row["iterations"]
            if begun:
                verdict.num_alarmed += 1
            continue
        verdict.num_collapsed += 1
        last_good = last_good_evaluation(row)
        early = [iteration for iteration in begun if iteration <= last_good]
        if early:
            verdict.num_alarmed += 1
            verdict.num_predicted += 1
            verdict.leads += (collapse - early[0],)
        elif begun:
            verdict.num_late += 1
    return verdict


def first_warning(row: Row) -> list[int]:
    """Return a list with the iteration of the first printed warning of a run, or an empty list."""
    return row["first_warning"][:1] if row["first_warning"] else []


def fit(metric: str, rises: bool, rows: Sequence[Row]) -> Sign:
    """Return the sign of this metric whose factor gives the best F1 on these runs.

    The factor is one of FACTORS. If factors tie, the largest one is chosen."""
    signs = [Sign(metric, rises, factor) for factor in FACTORS]
    return max(signs, key=lambda sign: (judge(sign, rows).f1, sign.factor))


# ---------- spikes of the gradient


def first_spike(row: Row, factor: float) -> int | None:
    """Return the first iteration > FIRST with grad_norm > factor * its first level, or None."""
    norms = row["series"]["grad_norm"]
    first = first_level(norms)
    if first <= 0:
        return None
    limit = factor * first
    for iteration, norm in enumerate(norms, start=1):
        if iteration > FIRST and norm is not None and norm > limit:
            return iteration
    return None


def spike_lines(cells: Sequence[Sequence[Row]]) -> list[str]:
    """Return a Markdown table of how many runs collapse with and without a gradient spike.

    Args: cells: each cell is the list of the runs of one method at one learning rate."""
    with_collapse = []
    without_collapse = []
    for rows in cells:
        some_collapse = any(collapse_iteration(row) is not None for row in rows)
        if some_collapse:
            with_collapse.extend(rows)
        else:
            without_collapse.extend(rows)
    lines = []
    for factor in SPIKES:
        for kind, rows in (("some run", with_collapse), ("no run", without_collapse)):
            lines.append([f"{factor:g} times", kind, *count_spikes(rows, factor)])
    counted = ["spike, then collapse", "spike, no collapse", "spike after the collapse"]
    headings = ["spike above", "collapses in the cell", *counted, "collapse without a spike"]
    return markdown(headings, lines)


def count_spikes(rows: Sequence[Row], factor: float) -> list[str]:
    """Return the last four entries of a row in the table that `spike_lines` returns.

    The first entry counts the runs with a spike before the collapse. The second counts the runs
    with a spike but no collapse. The third counts the runs with a spike after the collapse. The
    fourth entry, "N of M", says that M runs have no spike, and that N of these M runs collapse."""
    num_then_collapse = 0
    num_no_collapse = 0
    num_after_collapse = 0
    collapsed_without_spike = []
    for row in rows:
        collapse = collapse_iteration(row)
        spike = first_spike(row, factor)
        if spike is None:
            collapsed_without_spike.append(collapse is not None)
        elif collapse is None:
            num_no_collapse += 1
        elif spike <= collapse:
            # If spike == collapse, the spike came first, because evaluations follow updates.
            num_then_collapse += 1
        else:
            num_after_collapse += 1
    without = f"{sum(collapsed_without_spike)} of {len(collapsed_without_spike)}"
    return [str(num_then_collapse), str(num_no_collapse), str(num_after_collapse), without]


# ---------- survival


def survival(rows: Sequence[Row]) -> np.ndarray:
    """Return an array whose entry i is the share of runs that have not collapsed by iteration i."""
    longest = max(row["iterations"] for row in rows)
    num_left = np.full(longest + 1, len(rows))
    for row in rows:
        collapse = collapse_iteration(row)
        if collapse is not None:
            num_left[collapse:] -= 1
    return num_left / len(rows)


def families(curves: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Map each family of methods to its runs at the learning rate RATE."""
    found: dict[str, list[Row]] = {}
    for label, rows in curves.items():
        method, rate = label.removeprefix("frozenlake ").split(" at ")
        if rate == RATE:
            family = next(FAMILIES[start] for start in FAMILIES if method.startswith(start))
            found.setdefault(family, []).extend(rows)
    return found


def draw_survival(path: Path, curves: dict[str, list[Row]]) -> None:
    looks = {}
    with picture(path, width=6.5, height=4.0) as figure:
        axes = figure.subplots()
        percent_axis(axes)
        axes.set(xlabel="iteration", ylabel="runs not collapsed, %")
        for i, (family, rows) in enumerate(families(curves).items()):
            name = f"{family}, {len(rows)} runs"
            looks[name] = look_of(i)
            shares = 100 * survival(rows)
            axes.step(np.arange(len(shares)), shares, where="post", **looks[name])
        draw_legend(figure, looks)


# ---------- the page


def main(argv: list[str]) -> None:
    """Write the tables and the picture of studies/collapse/README.md.

    Raises: UserError if no run is finished."""
    refuse_arguments(argv)
    curves = rows_of(EXPERIMENTS["collapse"].curves, "tiny")
    finished = {label: rows for label, rows in curves.items() if rows}
    if not finished:
        raise UserError("no run is finished; start them with python -m studies.reproduce collapse")
    draw_survival(FOLDER / "collapse.png", finished)
    page = FOLDER / "README.md"
    write_atomically(page, tables.fill(page.read_text(), page_tables(finished)))
    print(page.read_text())


def page_tables(curves: dict[str, list[Row]]) -> dict[str, str]:
    """Map the name of each table in README.md to the table.

    Args: curves: maps names such as "frozenlake StarPO at 2e-3" to the rows of their runs."""
    fitted = []
    tested = []
    for i, label in enumerate(EXPERIMENTS["collapse"].curves):
        half = tested if i % 2 else fitted
        half.extend(curves.get(label, []))
    return {
        "methods": "\n".join(method_lines(curves)),
        "signs": "\n".join(sign_lines(fitted, tested)),
        "spikes": "\n".join(spike_lines(list(curves.values()))),
    }


def method_lines(curves: dict[str, list[Row]]) -> list[str]:
    lines = []
    for label, rows in curves.items():
        rate = label.split(" at ")[1]
        starpo = {row["settings"]["seed"]: row for row in curves.get(f"{STARPO} at {rate}", [])}
        compared = [row for row in rows if row["settings"]["seed"] in starpo]
        num_alive = sum(is_alive(row, starpo[row["settings"]["seed"]]) for row in compared)
        successes = [tables.series(row)["eval_success"] for row in rows]
        lines.append(
            [
                label.removeprefix("frozenlake "),
                ", ".join(str(row["settings"]["seed"]) for row in rows),
                ", ".join(str(collapse_iteration(row) or "-") for row in rows),
                f"{num_alive} of {len(compared)}",
                ", ".join(f"{100 * max(values.values()):.0f}" for values in successes),
                ", ".join(f"{100 * values[max(values)]:.0f}" for values in successes),
                ", ".join(str(num_updates(row)) for row in rows),
                ", ".join(true_thoughts(row) for row in rows),
            ]
        )
    headings = ["method", "seeds", "collapses at", "alive", "best %", "last %", "updates"]
    return markdown([*headings, "true thoughts %"], lines)


def true_thoughts(row: Row) -> str:
    """Format the share of true statements in thoughts as two medians.

    The first median is over the first 5 recorded shares, and the second over the last 5."""
    values = [value for value in row["series"]["thought_true_frac"] if value is not None]
    return f"{100 * median(values[:FIRST]):.0f} to {100 * median(values[-FIRST:]):.0f}"


def sign_lines(fitted: Sequence[Row], tested: Sequence[Row]) -> list[str]:
    """Return a Markdown table with a row for each sign and a row for the first warning of a run."""
    signs = [fit(metric, rises, fitted) for metric in SIGNS for rises in (False, True)]
    signs.sort(key=lambda sign: -judge(sign, fitted).f1)
    lines = []
    for sign in (*signs, None):
        verdict = judge(sign, tested)
        lines.append(
            [
                str(sign or "first warning of the run"),
                f"{verdict.precision:.2f} ({verdict.num_predicted} of {verdict.num_alarmed})",
                f"{verdict.recall:.2f} ({verdict.num_predicted} of {verdict.num_collapsed})",
                f"{verdict.num_late} of {verdict.num_collapsed}",
                f"{median(verdict.leads):g}" if verdict.leads else "-",
                f"{verdict.false_per_1000:.1f}",
            ]
        )
    false_alarms = "false alarms / 1,000 iterations"
    headings = ["sign", "precision", "recall", "after the fall", "median lead", false_alarms]
    return markdown(headings, lines)


if __name__ == "__main__":
    run_main(main)
