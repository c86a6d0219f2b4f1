"""Iterations that updated nothing, because the filter kept no group; from rows of metrics.jsonl.

The functions keep no state, so a continued run says the same as one without an interruption.
"""

from collections.abc import Sequence
from statistics import fmean

from support.budgets import budget_note, mean_budgets

IDLE_LIMIT = 10  # iterations in a row without an update, after which a run says so
SOLVED = 0.9  # from this success rate on, scores are equal because nearly all games are won
UNREADABLE = 0.5  # below this fraction of valid replies, their form is the problem


def idle_warning(history: Sequence[dict]) -> str | None:
    """The sentence after exactly IDLE_LIMIT idle iterations in a row; None otherwise."""
    num_idle = 0  # at the end of the history
    for row in reversed(history):
        if row["kept_groups"]:
            break
        num_idle += 1
    return _describe(history) if num_idle == IDLE_LIMIT else None


def idle_summary(history: Sequence[dict]) -> str | None:
    """The sentence at the end of a run with no update, or with IDLE_LIMIT idle iterations."""
    num_idle = sum(not row["kept_groups"] for row in history)
    if num_idle and (num_idle == len(history) or num_idle >= IDLE_LIMIT):
        return _describe(history)
    return None


def _describe(history: Sequence[dict]) -> str:
    """How many iterations updated the policy, why the others did not, and what to do."""
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
    if note:  # a budget may be why replies are not valid and games not won
        num_others = 1 - valid - budgets["cut_frac"]
        form = "; then teach the form of the replies with tools.sft"
        return f"{sentence}; {note}{form if num_others >= UNREADABLE else ''}"
    if valid < UNREADABLE:
        return f"{sentence}; teach the form of the replies with tools.sft first"
    return (
        f"{sentence}; give another --temperature, a larger --group_size or an easier --env, or "
        "train with tools.sft first"
    )
