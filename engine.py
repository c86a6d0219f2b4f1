"""An engine samples responses to many token histories at once and returns each token's log-prob.

`VLLMEngine` (engines/vllm_engine.py) runs vLLM in this process. `TorchEngine`
(engines/torch_engine.py) is plain PyTorch. Both engines keep a copy of the policy's weights, and
sample from softmax(logits / temperature).
"""

from configurator import Config, UserError

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dialogue import Chat
from engines.sample import Sample, Seed, failure_reason
from engines.torch_engine import TorchEngine
from engines.vllm_engine import VLLMEngine
from model import pick_dtype
from utils.machine import VLLM_HINT


class Engine(Protocol):
    """The interface of engines. Each trajectory has a number, its `key`."""

    version: int | None  # `Policy.version` of the loaded weights; None before the first `load`
    dtype: torch.dtype  # dtype of the weights and of the computation
    num_steps: int  # number of forward passes so far

    @property
    def busy(self) -> bool:
        """True while a request is waiting or under way."""

    def add(
        self, key: int, ids: Sequence[int], *, max_tokens: int, temperature: float, seed: Seed
    ) -> None:
        """Request one response.

        Args:
            key: number of the trajectory. A trajectory has at most one request at a time.
            ids: the token history, which `add` copies. From the trajectory's second request on,
                `ids` must begin with the `ids` of the previous request, followed by the response to
                that request. After `release`, `ids` may be any history.
            max_tokens: the response ends after this many tokens, or with the end-of-turn token.
            temperature: divides the logits; 0 takes the most probable token.
            seed: seeds the sampling noise. The rounding of the logits depends on the other requests
                in the batch. So with a 16-bit dtype, the same seed can give different responses in
                different batches. In float32, the response is nearly always the same.
        """

    def step(self) -> list[Sample]:
        """Advance each running request by at most one token. Returns: responses that finish now."""

    def release(self, key: int) -> None:
        """Forget a trajectory's history. The trajectory's next request may have any history."""

    def load(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Load new weights. The caller must first release all trajectories.

        The engine never reuses attention keys and values from old weights.

        Args:
            weights: for each weight, the pair (name in Hugging Face's model, full tensor). A tied
                LM head has its own pair, too.
            version: the `Policy.version` of these weights.
        """

    def close(self) -> None:
        """Free the engine's resources. The caller must not use the engine again."""


def make_engine(config: Config, model: PreTrainedModel, chat: Chat) -> Engine:
    """Start the engine that the config names. Under torchrun all ranks must call this together.

    Args:
        model: gives the architecture and the device. `Engine.load` loads the weights later.
        chat: has the id of the end-of-turn token, `chat.end`.

    Raises: UserError if max_context_tokens is too large for the model, or if the engine cannot
        start.
    """
    max_tokens = config.max_context_tokens
    num_positions = model.config.max_position_embeddings
    if max_tokens > num_positions:
        raise UserError(
            f"max_context_tokens is {max_tokens} and the model has {num_positions} positions; "
            "lower it"
        )
    engine_class = VLLMEngine if config.engine == "vllm" else TorchEngine
    dtype = dtype_of_engine(config, model.device)
    try:
        return engine_class(model, config, eos_id=chat.end, dtype=dtype)
    except ImportError as error:
        raise UserError(f"engine='vllm': {error}; {VLLM_HINT}") from error
    except (RuntimeError, ValueError, AssertionError) as error:  # such as too little memory
        reason = failure_reason(error)
        raise UserError(f"the {config.engine} engine could not start {reason}") from error


def dtype_of_engine(config: Config, device: torch.device) -> torch.dtype:
    """Return the dtype that the engine computes in."""
    name = config.dtype if config.engine_dtype == "auto" else config.engine_dtype
    return pick_dtype(name, device)
