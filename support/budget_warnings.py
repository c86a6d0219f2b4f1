"""Warnings about replies and games that ran out of tokens, and about idle iterations.

An iteration is idle if the filter kept no group, so nothing was updated.
"""

from collections.abc import Sequence
from statistics import fmean

BUDGET_LIMIT = 0.1  # warn if a token limit ends at least this fraction of replies or games
LAST_ROWS = 10  # number of last iterations that `budget_summary` averages
# metrics that `budget_note` reads; rows of metrics.jsonl from older versions do not have them
BUDGET_METRICS = ("cut_frac", "cut_by_context_frac", "out_of_tokens_frac")
IDLE_LIMIT = 10  # warn at this many idle iterations in a row; after a run, at this many in total
SOLVED = 0.9  # if the mean success of idle iterations is at least this, the task counts as solved
# If less than this fraction of the replies is valid, a warning about idle iterations advises SFT on
# the format of replies. If the warning has a `budget_note`, cut-off replies count as valid in this
# comparison, because the note already gives advice about them.
FEW_VALID = 0.5


# ---------- budgets of tokens


def budget_note(metrics: dict) -> str:
    """Say which token limits ended too many replies or games, and what to do; "" if no limit did.

    Args: metrics: the result of `scores.summarize`, or a row of metrics.jsonl.
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
    """The `budget_note` of the last row of metrics.jsonl; "" if an earlier row has a note."""
    if any(budget_note(row) for row in history[:-1]):
        return ""
    return budget_note(history[-1])


def budget_summary(history: Sequence[dict]) -> str:
    """Apply `budget_note` to the mean metrics of the last LAST_ROWS iterations; "" for no note."""
    note = budget_note(mean_budgets(history[-LAST_ROWS:]))
    return f"in the last iterations, {note}" if note else ""


def mean_budgets(rows: Sequence[dict]) -> dict[str, float]:
    """The means of BUDGET_METRICS over rows of metrics.jsonl; 0 for a metric that no row has."""
    means = {}
    for key in BUDGET_METRICS:
        known = [row[key] for row in rows if row.get(key) is not None]
        means[key] = fmean(known) if known else 0.0
    return means


# ---------- idle iterations


def idle_warning(history: Sequence[dict]) -> str | None:
    """A warning if the history ends with exactly IDLE_LIMIT idle iterations; None otherwise.

    So a longer series of idle iterations does not warn again.
    """
    num_idle = 0
    for row in reversed(history):
        if row["kept_groups"]:
            break
        num_idle += 1
    return _describe(history) if num_idle == IDLE_LIMIT else None


def idle_summary(history: Sequence[dict]) -> str | None:
    """A warning if all iterations or at least IDLE_LIMIT iterations were idle; None otherwise."""
    num_idle = sum(not row["kept_groups"] for row in history)
    if num_idle and (num_idle == len(history) or num_idle >= IDLE_LIMIT):
        return _describe(history)
    return None


def _describe(history: Sequence[dict]) -> str:
    idle = [row for row in history if not row["kept_groups"]]
    num_updates = len(history) - len(idle)
    valid = fmean(row["valid_frac"] for row in idle)
    success = fmean(row["success"] for row in idle)
    sentence = (
        f"{num_updates} of {len(history)} iterations updated the policy; in the other {len(idle)} "
        "the filter kept no group, because all scores in each group were equal "
        f"(replies valid in {valid:.0%}, success in {success:.0%})"
    )
    if success >= SOLVED:
        return f"{sentence}; the task is solved, so stop or give a harder --env"
    budgets = mean_budgets(idle)
    note = budget_note(budgets)
    if note:
        num_others = 1 - valid - budgets["cut_frac"]
        form = "; then teach the reply format with tools.sft"
        return f"{sentence}; {note}{form if num_others >= FEW_VALID else ''}"
    if valid < FEW_VALID:
        return f"{sentence}; teach the reply format with tools.sft first"
    return (
        f"{sentence}; give another --temperature, a larger --group_size or an easier --env, or "
        "train with tools.sft first"
    )
