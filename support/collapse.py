"""Collapse diagnostics: do thoughts still depend on the prompt, and is the run in an Echo Trap?

Entropy alone cannot tell: a policy may write varied thoughts that ignore what it was asked. So every sampled thought
z_i is scored after every distinct prompt x_j of its batch, l_ji = log p(z_i | x_j). With x_i, the prompt it answers,

    MI = mean_i(l_ii - log sum_j w_j exp l_ji) = H(Z) - H(Z|X) <= H(X)    in nats, w_j the share of pairs that have x_j

is 0 when prompts do not matter and H(X) when every thought gives its prompt away. Source: RAGEN-2,
https://github.com/mll-lab-nu/RAGEN, whose bound log N is H(X) of distinct prompts. Nothing here has a state: what
depends on the past takes `history`, the rows of metrics.jsonl so far.
"""

from configurator import Config

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model import Policy
from parallel import score_tokens
from rollout import Chat, Trajectory, Turn, split_by_context
from starpo import segment_sums

RANKS = (1, 2, 4, 8)  # k of retrieval@k
TIE = 1e-3  # nats over a thought; what is closer differs by rounding only
EMA_DECAY = 0.9  # of the z-score, per measurement
_UNITS = ("mi", "mi_zscore", "conditional_entropy", "marginal_entropy")
_OF_SAMPLING = (
    "pairs",
    "mi_bound",
    *_UNITS,
    *(f"{key}_seq" for key in _UNITS),
    "mi_zscore_ema",
    *(f"retrieval{of}@{k}" for k in RANKS for of in ("", "_chance", "_above")),
)
KEYS = (
    "valid_thinking_rate",
    *(f"{key}_{sampling}" for sampling in ("first", "sampled") for key in _OF_SAMPLING),
)

# Healthy runs of the tiny model are clear of these: in eleven entropy moved up to 2.9-fold within PERIOD iterations,
# gradient norms to 4.8 times their first level (single ones 98-fold: hence medians).
WINDOW, PERIOD = (
    5,
    10,
)  # iterations: of a level (a median), and of a change or the early level of a run
LOW_MI = 0.25  # of H(X); models that read their prompt had over 0.9, those that did not under 0.01
LOW_ENTROPY, LOW_SHARE = (
    0.05,
    0.25,
)  # nats a token (a choice of two at 99 : 1), or this share of the first level
CLIFF, SOLVED = (
    0.5,
    0.5,
)  # half the std is a cliff, unless half succeeds: from there on success itself lowers it
JUMP, SPIKE = 4, 10  # times, of entropy up or down, and of the early gradient norms
STALE, DEAD = (
    0.1,
    0.01,
)  # RAGEN-2's early stops: of the early std for PERIOD iterations; success, WINDOW evaluations


# ---------- thoughts and prompts


class Thought(NamedTuple):
    """A prompt, up to and including the sampled <think>, and the sampled ids between the tags (neither of them)."""

    prompt_ids: tuple[int, ...]
    ids: list[int]


def thoughts(trajectory: Trajectory, chat: Chat) -> list[Thought | None]:
    """The thought of every turn, None where it is missing, empty or not closed. Nothing is encoded: bisection over
    prefixes finds the sampled ids at which the tags end and begin. One that reaches into a tag (".</") is the tag's."""
    found, seen = [], []
    for turn in trajectory.turns:
        before, opened, rest = turn.text.partition("<think>")
        text, closed, _ = rest.partition("</think>")
        ids, start, first, last = turn.response_ids, len(before + opened), 0, 0
        if closed and text.strip():
            counts, length = range(len(ids) + 1), lambda n, ids=ids: len(chat.decode(ids[:n]))
            first = bisect_left(counts, start, key=length)
            last = bisect_right(counts, start + len(text), key=length) - 1
        found.append(
            Thought((*seen, *turn.prompt_ids, *ids[:first]), ids[first:last])
            if first < last
            else None
        )
        seen += [*turn.prompt_ids, *ids]
    return found


def draw(
    found: Sequence[list[Thought | None]], num_pairs: int, rng: np.random.Generator
) -> dict[str, list[Thought]]:
    """At most `num_pairs` thoughts of as many trajectories, drawn uniformly: those of the first turns ("first"), and of
    a uniform turn among those with a thought ("sampled")."""
    order = rng.permutation(len(found))
    valid = [[thought for thought in found[i] if thought] for i in order]
    sampled = [mine[rng.integers(len(mine))] for mine in valid if mine]
    return {
        "first": [found[i][0] for i in order if found[i][0]][:num_pairs],
        "sampled": sampled[:num_pairs],
    }


def score(
    policy: Policy, pairs: Sequence[Thought], config: Config
) -> tuple[Tensor, Tensor, Tensor]:
    """Teacher-forced log-probs of all thoughts after all distinct prompts (a collective).

    Returns: (J, I) float64, nats, sums over the tokens of thought i after prompt j, at the temperature of sampling;
        (I,) int64, tokens of each thought; (I,) int64, the row of its own prompt."""
    rows = {prompt: j for j, prompt in enumerate(dict.fromkeys(pair.prompt_ids for pair in pairs))}
    sequences = [
        Trajectory((), 0, [Turn(ids, z.ids, [])]) for ids in map(list, rows) for z in pairs
    ]
    lengths, own = [len(z.ids) for z in pairs], [rows[z.prompt_ids] for z in pairs]
    logprobs = (
        score_tokens(policy, sequences, config, config.temperature)[0].double().cpu()
    )  # (J * sum of lengths,)
    sums = segment_sums(logprobs, lengths * len(rows)).view(len(rows), len(pairs))
    return sums, torch.tensor(lengths), torch.tensor(own)


def collapse_metrics(logprobs: Tensor, lengths: Tensor, own: Tensor) -> dict[str, float]:
    """Mutual information, entropies and retrieval from the matrix of `score`.

    A prompt counts in the marginal as often as pairs have it, and the bound is H(X) of these weights. Retrieval ranks
    distinct prompts; a tie earns the average over its orders, so that who ignores the prompt scores exactly at chance.

    Args: logprobs (J, I) float, sums in nats; lengths (I,) tokens; own (I,) int64, rows of the thoughts' own prompts.
    Returns: pairs; mi_bound; mi, conditional_entropy H(Z|X) and marginal_entropy H(Z) in nats, of the mean log-prob of
        a thought's tokens as in RAGEN-2, and with _seq of the thought's own log-prob, which is what MI is of;
        mi_zscore, mean(matched - marginal) / (std of marginal + 1e-3); retrieval@k, chance min(k, J) / J, difference.
    >>> two = collapse_metrics(torch.tensor([[0.0, -99.0], [-99.0, 0.0]]), torch.tensor([1, 1]), torch.tensor([0, 1]))
    >>> round(two["mi"], 4), round(two["mi_bound"], 4), two["retrieval@1"], two["retrieval_chance@1"]  # log 2
    (0.6931, 0.6931, 1.0, 0.5)
    """
    (J, num_pairs), logprobs = logprobs.shape, logprobs.double()
    weights, columns = (
        torch.bincount(own, minlength=J).double() / num_pairs,
        torch.arange(num_pairs),
    )  # (J,), (I,)
    metrics = {"pairs": float(num_pairs), "mi_bound": torch.special.entr(weights).sum().item()}
    for unit, scores in (("", logprobs / lengths), ("_seq", logprobs)):  # (J, I)
        matched, marginal = (
            scores[own, columns],
            (scores + weights.log()[:, None]).logsumexp(0),
        )  # (I,), (I,)
        mi = (matched - marginal).mean()
        values = (mi, mi / (marginal.std(correction=0) + 1e-3), -matched.mean(), -marginal.mean())
        metrics |= {f"{key}{unit}": value.item() for key, value in zip(_UNITS, values, strict=True)}
    ahead = (
        logprobs - logprobs[own, columns]
    )  # (J, I); 0 in the row of the own prompt, which ties with itself
    better, ties = (ahead > TIE).sum(0), (ahead.abs() <= TIE).sum(0)  # (I,), (I,)
    for k in RANKS:
        hits, chance = ((k - better) / ties.double()).clamp(0, 1).mean().item(), min(k, J) / J
        metrics |= {
            f"retrieval@{k}": hits,
            f"retrieval_chance@{k}": chance,
            f"retrieval_above@{k}": hits - chance,
        }
    return metrics


def measure(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    chat: Chat,
    config: Config,
    *,
    rng: np.random.Generator,
    history: Sequence[dict],
) -> dict[str, float | None]:
    """All collapse metrics of an iteration (a collective; trajectories and `rng` must be the same on all ranks); the
    average z-score continues that of `history`.

    Returns: a value for each of `KEYS`, None where no turn has a thought."""
    found = [
        [z for s in split_by_context([t], config) for z in thoughts(s, chat)] for t in trajectories
    ]
    valid = [thought is not None for mine in found for thought in mine]
    row: dict[str, float | None] = dict.fromkeys(KEYS) | {"valid_thinking_rate": fmean(valid)}
    for sampling, pairs in draw(found, config.collapse_pairs, rng).items():
        if pairs:
            metrics = collapse_metrics(*score(policy, pairs, config))
            before = _known(history, f"mi_zscore_ema_{sampling}")[-1:] or [metrics["mi_zscore"]]
            metrics["mi_zscore_ema"] = (
                EMA_DECAY * before[0] + (1 - EMA_DECAY) * metrics["mi_zscore"]
            )
            row |= {f"{key}_{sampling}": value for key, value in metrics.items()}
    return row


# ---------- the Echo Trap, from the rows of metrics.jsonl


def _known(history: Sequence[dict], key: str) -> list[float]:
    return [row[key] for row in history if row[key] is not None]


def _levels(history: Sequence[dict], key: str) -> tuple[float, float, float]:
    """A metric at first, PERIOD iterations ago and now; too early NaN, which is neither larger nor smaller."""
    values = _known(history, key)
    if len(values) < WINDOW + PERIOD:
        return (math.nan,) * 3
    return (
        median(values[:PERIOD]),
        median(values[-WINDOW - PERIOD : -PERIOD]),
        median(values[-WINDOW:]),
    )


def regime(row: dict, history: Sequence[dict]) -> str | None:
    """RAGEN-2's regime after `row`, by H(Z|X) and MI of the first turns as last measured: diverse (both high), template
    (low MI), compressed (low entropy; success may look so) or collapsed (both low); None before anything is known.

    Without a measurement, or with one prompt, about which no thought can tell anything, the policy's entropy stands
    for H(Z|X), and for low MI what the Echo Trap leaves: rewards vary less than half as much as at first while most
    trajectories fail, or gradient norms stay up. Args: history: the rows before."""
    rows = [*history, row]
    measured = [r for r in rows if r["mi_bound_first"]]
    entropy = _known(measured, "conditional_entropy_first") or _known(rows, "entropy")
    if not entropy:
        return None
    if measured:
        reads = measured[-1]["mi_seq_first"] >= LOW_MI * measured[-1]["mi_bound_first"]
    else:
        (early, _, std), success = (
            _levels(rows, "in_group_reward_std"),
            _levels(rows, "success")[-1],
        )
        reads = not (std < CLIFF * early and success < SOLVED or "gradient norm" in _signs(rows))
    low = entropy[-1] < max(LOW_ENTROPY, LOW_SHARE * entropy[0])
    return ("compressed" if reads else "collapsed") if low else ("diverse" if reads else "template")


def _signs(history: Sequence[dict]) -> dict[str, str]:
    """What the last rows show of the early signs: its name and the change."""
    (_, std, std_now), success = (
        _levels(history, "in_group_reward_std"),
        _levels(history, "success")[-1],
    )
    (_, entropy, entropy_now), (norm, _, norm_now) = (
        _levels(history, "entropy"),
        _levels(history, "grad_norm"),
    )
    jumped = max(entropy, entropy_now) > JUMP * min(entropy, entropy_now)
    rows = [
        ("std of rewards inside groups", std, std_now, std_now < CLIFF * std and success < SOLVED),
        (
            "entropy per token",
            entropy,
            entropy_now,
            jumped and max(entropy, entropy_now) > LOW_ENTROPY,
        ),
        ("gradient norm", norm, norm_now, norm_now > SPIKE * norm),
    ]
    return {name: f"from {before:.3g} to {now:.3g}" for name, before, now, shown in rows if shown}


def warnings_of(history: Sequence[dict]) -> list[str]:
    """Early signs of the Echo Trap that appear with the last row, each said once: the variance of rewards falls off a
    cliff, entropy drops or jumps, gradient norms spike. Source: https://arxiv.org/abs/2504.20073, on the Echo Trap."""
    before, now = _signs(history[:-1]), _signs(history)
    return [
        f"early sign of collapse: {name} went {change}"
        for name, change in now.items()
        if name not in before
    ]


def stop_reason(history: Sequence[dict]) -> str | None:
    """Why a run should end with its last row, None while it may go on. Source: the early stops of RAGEN-2."""
    std, scores = _known(history, "in_group_reward_std"), _known(history, "eval_success")
    if len(std) >= 2 * PERIOD and max(std[-PERIOD:]) < STALE * fmean(std[:PERIOD]):
        return f"the std of rewards inside groups was below {STALE:.0%} of its first level for {PERIOD} iterations"
    if len(scores) >= WINDOW and max(scores[-WINDOW:]) < DEAD:
        return f"success was below {DEAD:.0%} in {WINDOW} evaluations in a row"
    if len(history) >= WINDOW and not any(row["kept_groups"] for row in history[-WINDOW:]):
        return f"the filter kept no group in {WINDOW} iterations in a row"
    return None
