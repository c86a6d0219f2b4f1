"""Measures collapse: whether the policy's thoughts still depend on the prompt.

Entropy does not suffice: a policy can write varied thoughts that ignore the prompt. So every
sampled thought z_i is scored after every distinct prompt x_j. The score is l_ji = log p(z_i | x_j).
Let w_j be the share of thoughts whose own prompt is x_j, and l_ii the score of z_i after its own
prompt. The mutual information in nats is

    MI = mean_i(l_ii - log sum_j w_j exp l_ji) = H(Z) - H(Z|X) <= H(X).

MI is 0 when thoughts ignore prompts. When every thought identifies its prompt, MI is H(X), the
entropy of the prompts. Source: RAGEN-2, https://github.com/mll-lab-nu/RAGEN. docs/diagnostics.md
explains the measurement.
"""

from configurator import Config

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dialogue import Chat
from model import Policy
from parallel import forward_sequences
from rollout import Trajectory, Turn, split_by_context
from starpo import segment_sums
from support.metrics import RETRIEVAL_RANKS

TIE = 1e-3  # nats; two prompts tie if they give a thought log-probs at most this far apart
EMA_DECAY = 0.9  # decay per measurement, for the moving average of marginal_std
STD_EPSILON = 1e-3  # nats; added to a standard deviation in the denominator of a z-score


def measure_collapse(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    chat: Chat,
    config: Config,
    rng: np.random.Generator,
    history: Sequence[dict],
) -> dict[str, float]:
    """The collapse metrics of one iteration. All ranks must call this function.

    Args:
        trajectories, rng: the same on every rank.
        history: earlier rows of metrics.jsonl, to continue the moving average of marginal_std.
    Returns: metrics by name. If no turn has a thought, valid_thinking_rate is the only metric.
    """
    thoughts_by_trajectory = []
    num_turns = 0
    num_thoughts = 0
    for trajectory in trajectories:
        thoughts = []
        for sequence in split_by_context([trajectory], config):
            thoughts += find_thoughts(sequence, chat)
        num_turns += len(thoughts)
        num_thoughts += len(thoughts) - thoughts.count(None)
        thoughts_by_trajectory.append(thoughts)

    row = {"valid_thinking_rate": num_thoughts / num_turns}
    samples = sample_thoughts(thoughts_by_trajectory, config.collapse_pairs, rng)
    for sampling, thoughts in samples._asdict().items():
        if not thoughts:
            continue
        metrics = collapse_metrics(score_thoughts(policy, thoughts, config))
        std = metrics["marginal_std"]
        average = _last_value(history, f"marginal_std_ema_{sampling}")
        average = std if average is None else EMA_DECAY * average + (1 - EMA_DECAY) * std
        metrics["marginal_std_ema"] = average
        metrics["mi_zscore_ema"] = metrics["mi"] / (average + STD_EPSILON)
        for name, value in metrics.items():
            row[f"{name}_{sampling}"] = value
    return row


def _last_value(history: Sequence[dict], name: str) -> float | None:
    for row in reversed(history):
        value = row.get(name)  # rows from an earlier version of this code can lack the metric
        if value is not None:
            return value
    return None


# ---------- thoughts and their prompts


class Thought(NamedTuple):
    """A sampled thought and its prompt, as token ids."""

    prompt_ids: tuple[int, ...]  # the context before the thought, <think> included
    ids: list[int]


class ThoughtSamples(NamedTuple):
    """Two samples of thoughts. Metric names end with the sample's name: mi_first, mi_sampled."""

    first: list[Thought]  # from first turns
    sampled: list[Thought]  # from one random turn per trajectory


def find_thoughts(trajectory: Trajectory, chat: Chat) -> list[Thought | None]:
    """The thought of every turn; None for a turn whose thought is missing, empty or not closed."""
    thoughts = []
    context: list[int] = []
    for turn in trajectory.turns:
        context += turn.prompt_ids
        span = _thought_span(turn, chat)
        if span is None:
            thoughts.append(None)
        else:
            prompt_ids = (*context, *turn.response_ids[: span.start])
            thoughts.append(Thought(prompt_ids, turn.response_ids[span.start : span.stop]))
        context += turn.response_ids
    return thoughts


def _thought_span(turn: Turn, chat: Chat) -> range | None:
    """Indices of the sampled tokens between <think> and </think>.

    The result is None if a tag is missing, if the text between the tags is blank, or if no whole
    token lies between the tags.

    The function decodes prefixes of the sampled tokens, and finds the tags by bisection. It does
    not encode the text between the tags again, because encoding could give other tokens than the
    sampled ones.
    A token that contains a part of a tag, like ".</", belongs to the tag.
    """
    before, opening_tag, rest = turn.text.partition("<think>")
    text, closing_tag, _ = rest.partition("</think>")
    if not closing_tag or not text.strip():
        return None

    def prefix_length(num_tokens: int) -> int:
        return len(chat.decode(turn.response_ids[:num_tokens]))

    first_character = len(before) + len(opening_tag)
    counts = range(len(turn.response_ids) + 1)
    start = bisect_left(counts, first_character, key=prefix_length)
    stop = bisect_right(counts, first_character + len(text), key=prefix_length) - 1
    return range(start, stop) if start < stop else None


def sample_thoughts(
    thoughts_by_trajectory: Sequence[list[Thought | None]],
    max_thoughts: int,
    rng: np.random.Generator,
) -> ThoughtSamples:
    """Draw both samples. Each has at most `max_thoughts` thoughts, at most one per trajectory."""
    first = []
    sampled = []
    order = rng.permutation(len(thoughts_by_trajectory))
    for i in order:
        thoughts = [thought for thought in thoughts_by_trajectory[i] if thought]
        if thoughts:
            sampled.append(thoughts[rng.integers(len(thoughts))])
        if thoughts_by_trajectory[i][0]:
            first.append(thoughts_by_trajectory[i][0])
    return ThoughtSamples(first[:max_thoughts], sampled[:max_thoughts])


# ---------- mutual information


class ThoughtScores(NamedTuple):
    """Log-probs of I thoughts after each of J distinct prompts."""

    logprobs: Tensor  # (J, I) float64, nats; log-prob of all tokens of thought i after prompt j
    lengths: Tensor  # (I,) int64, number of tokens of each thought
    own_prompts: Tensor  # (I,) int64, row of each thought's own prompt in `logprobs`


def score_thoughts(policy: Policy, thoughts: Sequence[Thought], config: Config) -> ThoughtScores:
    """Score every thought after every distinct prompt, at `temperature`.

    All ranks must call this function.
    """
    prompt_rows: dict[tuple[int, ...], int] = {}
    for thought in thoughts:
        prompt_rows.setdefault(thought.prompt_ids, len(prompt_rows))
    sequences = []
    for prompt_ids in prompt_rows:
        for thought in thoughts:
            turn = Turn(list(prompt_ids), thought.ids, [])
            sequences.append(Trajectory((), 0, [turn]))
    token_logprobs = forward_sequences(policy, sequences, config, config.temperature)[0]

    lengths = [len(thought.ids) for thought in thoughts]
    sums = segment_sums(token_logprobs.double().cpu(), lengths * len(prompt_rows))  # (J * I,)
    own_prompts = [prompt_rows[thought.prompt_ids] for thought in thoughts]
    return ThoughtScores(
        logprobs=sums.view(len(prompt_rows), len(thoughts)),
        lengths=torch.tensor(lengths),
        own_prompts=torch.tensor(own_prompts),
    )


def collapse_metrics(scores: ThoughtScores) -> dict[str, float]:
    """Compute mutual information, entropies and retrieval.

    Mutual information and entropies without _seq in their name use the mean log-prob of a thought's
    tokens, as in RAGEN-2. Metrics with _seq in their name use the log-prob of the whole thought.
    The definition of mutual information needs the log-probs of whole thoughts, so mi_seq is a true
    mutual information, and mi is not.

    Returns: metrics by name, without the ending _first or _sampled. docs/metrics.md explains the
        metrics.
    >>> logprobs = torch.tensor([[0.0, -99.0], [-99.0, 0.0]])
    >>> scores = ThoughtScores(logprobs, torch.tensor([1, 1]), torch.tensor([0, 1]))
    >>> metrics = collapse_metrics(scores)
    >>> round(metrics["mi"], 4), round(metrics["mi_bound"], 4)  # log 2
    (0.6931, 0.6931)
    >>> metrics["retrieval@1"], metrics["retrieval_chance@1"]
    (1.0, 0.5)
    """
    J, num_pairs = scores.logprobs.shape
    logprobs = scores.logprobs.double()  # (J, I)
    weights = torch.bincount(scores.own_prompts, minlength=J).double() / num_pairs  # (J,)
    metrics = {"pairs": float(num_pairs), "mi_bound": torch.special.entr(weights).sum().item()}
    metrics |= _information(logprobs / scores.lengths, scores.own_prompts, weights, "")
    metrics |= _information(logprobs, scores.own_prompts, weights, "_seq")
    metrics |= _retrieval(logprobs, scores.own_prompts)
    return metrics


def _information(
    logprobs: Tensor, own_prompts: Tensor, weights: Tensor, ending: str
) -> dict[str, float]:
    matched = logprobs[own_prompts, torch.arange(len(own_prompts))]  # (I,)
    marginal = (logprobs + weights.log()[:, None]).logsumexp(0)  # (I,)
    mi = (matched - marginal).mean().item()
    marginal_std = marginal.std(correction=0).item()
    return {
        f"mi{ending}": mi,
        f"mi_zscore{ending}": mi / (marginal_std + STD_EPSILON),
        f"marginal_std{ending}": marginal_std,
        f"conditional_entropy{ending}": -matched.mean().item(),
        f"marginal_entropy{ending}": -marginal.mean().item(),
    }


def _retrieval(logprobs: Tensor, own_prompts: Tensor) -> dict[str, float]:
    """How often a thought's own prompt is among the k prompts that make the thought likeliest.

    If prompts tie, the result is the average over all orders of the tied prompts. So a policy that
    ignores its J distinct prompts gets exactly the chance level, min(k, J) / J.
    """
    J, num_pairs = logprobs.shape
    matched = logprobs[own_prompts, torch.arange(num_pairs)]  # (I,)
    ahead = logprobs - matched  # (J, I); 0 for a thought's own prompt, so num_ties >= 1
    num_better = (ahead > TIE).sum(0)  # (I,)
    num_ties = (ahead.abs() <= TIE).sum(0)  # (I,)
    metrics = {}
    for k in RETRIEVAL_RANKS:
        hits = ((k - num_better) / num_ties.double()).clamp(0, 1).mean().item()
        chance = min(k, J) / J
        metrics[f"retrieval@{k}"] = hits
        metrics[f"retrieval_chance@{k}"] = chance
        metrics[f"retrieval_above@{k}"] = hits - chance
    return metrics
