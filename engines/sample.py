"""What both engines share: `Sample`, `Seed` and `failure_reason`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

Seed = Sequence[int]  # seed of a numpy random generator


class Sample(NamedTuple):
    """A finished response."""

    key: int  # number of the trajectory
    ids: list[int]  # sampled tokens, including the end-of-turn token if it was sampled
    # The log-prob of each token in `ids`, in nats, under softmax(logits / temperature). In this
    # formula, temperature 0 counts as 1. If recompute_old_logprobs is True, `VLLMEngine` does not
    # ask vLLM for log-probs, and this list holds only NaN.
    logprobs: list[float]


def failure_reason(error: BaseException) -> str:
    """Return an error's first lines (at most three). If memory ran out, add advice."""
    lines = str(error).split("\n")[:3]
    reason = f"({' '.join(lines)[:300] or type(error).__name__})"
    out_of_memory = "(out of|allocate|enough|free|available|cache) memory|size.*overflow"
    if re.search(out_of_memory, str(error), re.IGNORECASE):
        reason += "; lower max_running or max_context_tokens, which size the KV cache"
    return reason
