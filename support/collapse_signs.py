"""Derives regimes, signs of collapse and early stops from metrics.jsonl, to detect the Echo Trap.

In the Echo Trap an agent repeats itself, and rewards inside a group stop varying. Source:
https://arxiv.org/abs/2504.20073. Regimes and early stops come from RAGEN-2
(https://github.com/mll-lab-nu/RAGEN). docs/diagnostics.md explains the thresholds.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

# The level of a metric is its median over WINDOW iterations. Signs of collapse compare a level with
# the level PERIOD iterations before.
WINDOW = 5
PERIOD = 10

# Regimes. MI is the mutual information of thought and prompt. Its upper bound H(X) is the entropy
# of the prompts (metric `mi_bound_first`). We measured an MI over 0.9 H(X) for models that read
# their prompts, and under 0.01 H(X) for models that did not.
LOW_MI_SHARE = 0.25  # MI below this share of H(X) is low
# Entropy below this number of nats per token is low. A choice between two tokens with probabilities
# 0.99 and 0.01 has an entropy of 0.056.
LOW_ENTROPY = 0.05
LOW_ENTROPY_SHARE = 0.25  # entropy below this share of its first value is also low
# Until MI has been measured, `classify_regime` uses the std of rewards and the success rate
# instead of MI: see `_shows_trap`.

# Signs of collapse. The gradient norm is not used as a sign: in 48 runs that collapsed, its level
# was never above 10 times its median over the first PERIOD iterations (studies/collapse/README.md).
#
# There is a sign of collapse if the std of rewards inside groups falls below this share of its
# level PERIOD iterations ago.
STD_DROP = 0.5
# At this success rate or above, a low std is no sign of collapse, because success also makes the
# rewards inside a group more equal.
HIGH_SUCCESS = 0.5
# There is a sign of collapse if the level of entropy rises or falls by more than this factor within
# PERIOD iterations. If the old and new levels are both at most LOW_ENTROPY, the change is no sign.
# In eleven healthy runs of the tiny model, entropy changed by a factor of at most 2.9 within PERIOD
# iterations.
ENTROPY_JUMP = 4

# Early stops of runs with --early_stop=True, as in RAGEN-2.
# A run stops if, in each of the last PERIOD iterations, the std of rewards inside groups was below
# this share of its mean over the first PERIOD iterations.
STALE_STD_SHARE = 0.1
DEAD_SUCCESS = 0.01  # a run stops if success is below this in WINDOW evaluations in a row


def early_stop_reason(history: Sequence[dict]) -> str | None:
    """Why a run should end after the last row of metrics.jsonl; None if it should go on."""
    stds = _known_values(history, "in_group_reward_std")
    if len(stds) >= 2 * PERIOD and max(stds[-PERIOD:]) < STALE_STD_SHARE * fmean(stds[:PERIOD]):
        return (
            f"the std of rewards inside groups was below {STALE_STD_SHARE:.0%} of its mean over "
            f"the first {PERIOD} iterations, {PERIOD} iterations in a row"
        )
    successes = _known_values(history, "eval_success")
    if len(successes) >= WINDOW and max(successes[-WINDOW:]) < DEAD_SUCCESS:
        return f"success was below {DEAD_SUCCESS:.0%} in {WINDOW} evaluations in a row"
    if len(history) >= WINDOW and not any(row["kept_groups"] for row in history[-WINDOW:]):
        return f"the filter kept no group in {WINDOW} iterations in a row"
    return None


def new_warnings(history: Sequence[dict]) -> list[str]:
    """A sentence for each sign of collapse that begins at the last row.

    In most collapsed runs with a warning, the first warning came only after success had fallen.
    This is too late to predict the collapse (studies/collapse/README.md).
    """
    before = signs_of_collapse(history[:-1])
    return [
        f"sign of collapse: {name} went {change}"
        for name, change in signs_of_collapse(history).items()
        if name not in before
    ]


def signs_of_collapse(history: Sequence[dict]) -> dict[str, str]:
    """The signs of collapse at the last row. Maps each name to the change, "from OLD to NEW"."""
    signs = {}
    std = _levels(history, "in_group_reward_std")
    success = _levels(history, "success")
    if std.now < STD_DROP * std.before and success.now < HIGH_SUCCESS:
        signs["std of rewards inside groups"] = _change(std.before, std.now)

    entropy = _levels(history, "entropy")
    high = max(entropy.before, entropy.now)
    low = min(entropy.before, entropy.now)
    if high > ENTROPY_JUMP * low and high > LOW_ENTROPY:
        signs["entropy per token"] = _change(entropy.before, entropy.now)
    return signs


def classify_regime(row: dict, history: Sequence[dict]) -> str | None:
    """RAGEN-2's regime after an iteration. Entropy and mutual information of thoughts decide it:

        diverse     both are high: healthy
        template    only entropy is high: thoughts vary, but do not depend on the prompt
        compressed  only mutual information is high: thoughts are certain and depend on the prompt
        collapsed   both are low

    Entropy and mutual information come from the last measurement on thoughts of first turns. A
    measurement on a single prompt does not count, because its mutual information is always 0.

    If no measurement counts, the metric `entropy` replaces the entropy of thoughts. Mutual
    information then counts as low if `_shows_trap` returns True, and as high otherwise.

    Args: history: the rows before `row`. Returns: the regime; None if no entropy is known.
    """
    rows = [*history, row]
    measured = [past for past in rows if past["mi_bound_first"]]
    entropies = _known_values(measured, "conditional_entropy_first")
    if not entropies:
        entropies = _known_values(rows, "entropy")
    if not entropies:
        return None
    if measured:
        last = measured[-1]
        reads_prompt = last["mi_seq_first"] >= LOW_MI_SHARE * last["mi_bound_first"]
    else:
        reads_prompt = not _shows_trap(rows)
    certain = entropies[-1] < max(LOW_ENTROPY, LOW_ENTROPY_SHARE * entropies[0])
    if certain:
        return "compressed" if reads_prompt else "collapsed"
    return "diverse" if reads_prompt else "template"


def _shows_trap(rows: Sequence[dict]) -> bool:
    """Whether most games fail and the std of rewards in groups is below half of its first level."""
    std = _levels(rows, "in_group_reward_std")
    success = _levels(rows, "success")
    return std.now < STD_DROP * std.first and success.now < HIGH_SUCCESS


class Levels(NamedTuple):
    """Medians of a metric; NaN if fewer than WINDOW + PERIOD rows have a value.

    A NaN median never leads to a sign of collapse, because < and > with NaN are false."""

    first: float  # over the first PERIOD iterations
    before: float  # over the WINDOW iterations before the last PERIOD iterations
    now: float  # over the last WINDOW iterations


def _levels(history: Sequence[dict], name: str) -> Levels:
    values = _known_values(history, name)
    if len(values) < WINDOW + PERIOD:
        return Levels(math.nan, math.nan, math.nan)
    return Levels(
        first=median(values[:PERIOD]),
        before=median(values[-WINDOW - PERIOD : -PERIOD]),
        now=median(values[-WINDOW:]),
    )


def _known_values(history: Sequence[dict], name: str) -> list[float]:
    return [row[name] for row in history if row[name] is not None]


def _change(before: float, now: float) -> str:
    return f"from {before:.3g} to {now:.3g}"
