"""Find collapses, and signs that should announce them, in the recorded metrics of a run.

- An evaluation is low if its success is 20 points or more below the best success so far. A run that
  ends with two or more low evaluations in a row has collapsed at the first of them.
- A metric that should rise before a collapse shows a sign if
  `median(last 3 iterations) > factor * median(iterations 1 to 5)`. A metric that should fall shows
  a sign if `factor * median(last 3 iterations) < median(iterations 1 to 5)`. A metric whose median
  over iterations 1 to 5 is not above 0 shows no sign.
"""

from statistics import median
from typing import NamedTuple

from studies import tables

DROP = 0.2  # success is low if it is at least DROP below the best success so far
# A sign compares two medians of a metric: the median over the last WINDOW iterations and the median
# over iterations 1 to FIRST (the first level of the metric).
WINDOW = 3
FIRST = 5

Row = dict  # the results of a run, see studies/runs.py


class Sign(NamedTuple):
    """A sign of collapse. The first level of a metric is its median over iterations 1 to 5. If
    `rises` is True, `metric` must rise above `factor` times its first level. Otherwise `metric`
    must fall below 1 / `factor` of its first level."""

    metric: str
    rises: bool
    factor: float

    def __str__(self) -> str:
        if self.rises:
            return f"{self.metric} above {self.factor:g} times its first level"
        return f"{self.metric} below 1 / {self.factor:g} of its first level"


def collapse_iteration(row: Row) -> int | None:
    """Return the iteration of the evaluation at which a run collapses, or None."""
    successes = tables.series(row)["eval_success"]  # maps iterations to success; 0 is before RL
    iterations = sorted(successes)
    start = None  # iteration at which success became low; None while it is not low
    best = 0.0
    for iteration in iterations:
        best = max(best, successes[iteration])
        is_low = best - successes[iteration] >= DROP - 1e-9  # in floating point, 0.7 - 0.5 < 0.2
        if not is_low:
            start = None
        elif start is None:
            start = iteration
    return None if start is None or start == iterations[-1] else start


def last_good_evaluation(row: Row) -> int:
    """Return the iteration of the last evaluation before a run collapses; 0 is before RL."""
    iterations = sorted(tables.series(row)["eval_success"])
    return iterations[iterations.index(collapse_iteration(row)) - 1]


def first_level(values: list[float | None]) -> float:
    known = [value for value in values[:FIRST] if value is not None]
    return median(known) if known else 0.0


def beginnings(row: Row, sign: Sign) -> list[int]:
    """Return the iterations that show a sign while the iteration before does not."""
    values = row["series"][sign.metric]
    first = first_level(values)
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
    if sign.rises:
        return now > sign.factor * first
    return now * sign.factor < first
