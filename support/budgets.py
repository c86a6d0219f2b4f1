"""Games and replies that a budget of tokens ended, from metrics of games.

Such an end looks like bad behaviour: a reply that was cut off has no valid form, and a game without
room for another reply is not won. The functions keep no state, so a continued run says the same as
one without an interruption.
"""

from collections.abc import Sequence
from statistics import fmean

BUDGET_LIMIT = 0.1  # from this fraction of the replies or games on, a sentence names the budget
LAST_ROWS = 10  # iterations that the summary at the end of a run describes
# The metrics that `budget_note` reads. Old rows of metrics.jsonl lack them.
BUDGET_METRICS = ("cut_frac", "cut_by_context_frac", "out_of_tokens_frac")


def budget_note(metrics: dict) -> str:
    """What the budgets of tokens ended, and what to do; "" if that is less than BUDGET_LIMIT.

    Args: metrics: those of `rollout.summarize`, or a row of metrics.jsonl.
    >>> budget_note({"cut_frac": 1.0, "cut_by_context_frac": 0.0, "out_of_tokens_frac": 0.0})
    '100% of the replies were cut off at max_response_tokens: raise it, or teach shorter replies \
with tools.sft'
    """
    cut, cut_by_context, out_of_tokens = (metrics.get(key) or 0.0 for key in BUDGET_METRICS)
    cut_at_limit = cut - cut_by_context
    notes = []
    if cut_at_limit >= BUDGET_LIMIT:
        notes.append(
            f"{cut_at_limit:.0%} of the replies were cut off at max_response_tokens: raise it, or "
            "teach shorter replies with tools.sft"
        )
    if max(cut_by_context, out_of_tokens) >= BUDGET_LIMIT:
        notes.append(
            f"the context was full at the end of {out_of_tokens:.0%} of the games and cut off "
            f"{cut_by_context:.0%} of the replies below max_response_tokens: raise "
            "max_context_tokens, or set context_turns"
        )
    return "; ".join(notes)


def budget_warning(history: Sequence[dict]) -> str:
    """The note of the last iteration if it is the first one with a note; "" otherwise."""
    if any(budget_note(row) for row in history[:-1]):
        return ""
    return budget_note(history[-1])


def budget_summary(history: Sequence[dict]) -> str:
    """The note of the last LAST_ROWS iterations together; "" if there is none."""
    note = budget_note(mean_budgets(history[-LAST_ROWS:]))
    return f"in the last iterations, {note}" if note else ""


def mean_budgets(rows: Sequence[dict]) -> dict[str, float]:
    """The means of BUDGET_METRICS over rows of metrics.jsonl; 0 where no row knows them."""
    means = {}
    for key in BUDGET_METRICS:
        known = [row[key] for row in rows if row.get(key) is not None]
        means[key] = fmean(known) if known else 0.0
    return means
