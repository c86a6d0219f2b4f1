"""What all engines share: the finished response, and the seed of its sampling."""

from collections.abc import Sequence
from typing import NamedTuple

Seed = Sequence[int]  # of a numpy random stream


class Sample(NamedTuple):
    """A finished response."""

    key: int  # the trajectory, as given to `Engine.add`
    ids: list[int]  # sampled tokens, the end-of-turn token included if it was sampled
    # of these tokens under softmax(logits / temperature), nats; NaN if vLLM was not asked for them
    logprobs: list[float]
