"""What all engines share: finished responses, seeds of sampling, and the words for a failure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

Seed = Sequence[int]  # of a numpy random stream


class Sample(NamedTuple):
    """A finished response."""

    key: int  # the trajectory, as given to `Engine.add`
    ids: list[int]  # sampled tokens, the end-of-turn token included if it was sampled
    # in nats, under softmax(logits / temperature); NaN if vLLM was not asked for them
    logprobs: list[float]


def failure_reason(error: BaseException) -> str:
    """The first three lines of an error message, with advice if the memory is too small."""
    lines = str(error).split("\n")[:3]
    reason = f"({' '.join(lines)[:300] or type(error).__name__})"
    out_of_memory = "(out of|allocate|enough|free|available|cache) memory|size.*overflow"
    if re.search(out_of_memory, str(error), re.IGNORECASE):
        reason += "; lower max_running or max_context_tokens, which size the KV cache"
    return reason
