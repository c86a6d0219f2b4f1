"""The definitions of a collapse and of the signs that announce it, for several studies.

- A run has collapsed if its last evaluations, at least two, are all 20 points or more below its own
  best. It collapsed at the first of these.
- A sign is a metric whose level is above (or below) its first level by a factor. The level is the
  median of the last 3 iterations. The first level is the median of the first 5; it must exceed 0.
"""

from statistics import median
from typing import NamedTuple

from tools.plotting import tables

DROP = 0.2  # a collapse is a fall of success by this much
WINDOW = 3  # a level is the median over this many iterations
FIRST = 5  # the first level is the median over this many iterations

Row = dict  # of a run, see studies/runs.py


class Sign(NamedTuple):
    """A metric that rises above, or falls below, its first level by a factor."""

    metric: str
    rises: bool
    factor: float

    def __str__(self) -> str:
        if self.rises:
            return f"{self.metric} above {self.factor:g} times its first level"
        return f"{self.metric} below 1 / {self.factor:g} of its first level"


def collapse_iteration(row: Row) -> int | None:
    """The iteration of the evaluation at which a run collapses; None if it does not."""
    successes = tables.series(row)["eval_success"]  # iteration -> success, with iteration 0
    iterations = sorted(successes)
    start = None  # iteration since which all evaluations are low
    best = 0.0
    for iteration in iterations:
        best = max(best, successes[iteration])
        is_low = best - successes[iteration] >= DROP - 1e-9  # 0.7 - 0.5 is below 0.2 by rounding
        if not is_low:
            start = None
        elif start is None:
            start = iteration
    return None if start is None or start == iterations[-1] else start


def last_good_evaluation(row: Row) -> int:
    """The iteration of the last evaluation before the collapse; 0 is the evaluation before RL.

    The run must collapse."""
    iterations = sorted(tables.series(row)["eval_success"])
    return iterations[iterations.index(collapse_iteration(row)) - 1]


def beginnings(row: Row, sign: Sign) -> list[int]:
    """The iterations at which a sign begins."""
    values = row["series"][sign.metric]
    known = [value for value in values[:FIRST] if value is not None]
    first = median(known) if known else 0.0
    if first <= 0:
        return []
    found = []
    was_shown = False
    for iteration in range(FIRST + WINDOW, len(values) + 1):
        window = [value for value in values[iteration - WINDOW : iteration] if value is not None]
        is_shown = bool(window) and has_left(first, median(window), sign)
        if is_shown and not was_shown:
            found.append(iteration)
        was_shown = is_shown
    return found


def has_left(first: float, now: float, sign: Sign) -> bool:
    """Whether a level is above (or below) the first level by the factor of the sign."""
    if sign.rises:
        return now > sign.factor * first
    return now * sign.factor < first
