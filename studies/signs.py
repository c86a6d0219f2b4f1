"""The definitions of a collapse and of the signs that announce it, for several studies.

- A run has collapsed if its last evaluations, at least two, are all 20 points or more below its own
  best. It collapsed at the first of these.
- A sign is a metric whose level has left its first level by a factor. The level is the median of
  the last 3 iterations, the first level that of the first 5, which must be above 0.
"""

from statistics import median
from typing import NamedTuple

from tools.plotting import tables

DROP = 0.2  # a collapse is a fall of success by this much
WINDOW = 3  # iterations; a level is the median over this many
FIRST = 5  # iterations of the first level

Row = dict  # of a run, see studies/runs.py


class Sign(NamedTuple):
    """A metric that rises or falls by a factor."""

    metric: str
    rises: bool
    factor: float

    def __str__(self) -> str:
        if self.rises:
            return f"{self.metric} above {self.factor:g} times its first level"
        return f"{self.metric} below 1 / {self.factor:g} of its first level"


def collapse_iteration(row: Row) -> int | None:
    """The iteration of the evaluation with which a run collapses; None if it does not."""
    successes = tables.series(row)["eval_success"]  # iteration -> success, with iteration 0
    iterations = sorted(successes)
    start = None  # of the low evaluations up to now
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
    """The iteration of the last evaluation before the collapse, 0 for that of the start.

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
    """Whether a level has left the first level in the direction of the sign, by its factor."""
    if sign.rises:
        return now > sign.factor * first
    return now * sign.factor < first
