"""Benchmark of precision: how much the log-probs of engine and trainer differ in each dtype.

The engine computes one token at a time with a KV cache. The trainer computes whole sequences. So
the rounding errors of engine and trainer differ.
"""

from configurator import Config

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

import parallel
from engines.torch_engine import TorchEngine
from model import Policy
from packing import pack
from studies.speed.bench_measure import Rows
from studies.speed.random_model import QWEN, build_random

NUM_REQUESTS = 32
PROMPT_TOKENS = 64
RESPONSE_TOKENS = 32
# If all weights of the last norm have this value, the logits have a standard deviation of about 4.
LOGIT_SCALE = 7.0
SHAPE = {**QWEN, "num_hidden_layers": 2}


@dataclass
class Request:
    """A prompt and its response. `pack` accepts a Request in place of a trajectory."""

    first_prompt_ids: list[int]
    response_ids: list[int]

    @property
    def ids(self) -> list[int]:
        return self.first_prompt_ids + self.response_ids

    @property
    def response_mask(self) -> list[bool]:
        return [False] * len(self.first_prompt_ids) + [True] * len(self.response_ids)


def precision(config: Config, repeats: int, *, shape: dict = SHAPE) -> Rows:
    """Compare the log-probs of engine and trainer for a model with random weights.

    Returns: rows of the mean, 99th percentile and maximum of the absolute difference in nats. Each
        dtype has a row. float16 and bfloat16 have a second row, for logits rounded to 16 bits.
    """
    network = build_random(shape)
    torch.nn.init.constant_(network.model.norm.weight, LOGIT_SCALE)
    rows: Rows = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for has_float32_head in (True, False):
            if dtype == torch.float32 and not has_float32_head:
                continue
            head = nullcontext() if has_float32_head else rounded_logits()
            with head:
                difference = compare_logprobs(network, config, dtype)  # (R,)
            name = str(dtype).removeprefix("torch.")
            name += "" if has_float32_head else ", logits rounded to 16 bits"
            rows[name] = {
                "mean": float(difference.mean()),
                "p99": float(difference.quantile(0.99)),
                "max": float(difference.max()),
            }
            figures = " | ".join(f"{value:.2g}" for value in rows[name].values())
            print(f"| {name} | {figures} |", flush=True)
    return rows


def compare_logprobs(network: PreTrainedModel, config: Config, dtype: torch.dtype) -> Tensor:
    """For each sampled token, return |log-prob of engine - log-prob of trainer| in nats, (R,)."""
    config = replace(config, max_running=NUM_REQUESTS, max_context_tokens=128)
    requests, sampled = sample(network, config, dtype)
    policy = Policy(copy.deepcopy(network))
    mesh = parallel.make_mesh(torch.device("cpu"))
    parallel.shard(policy, policy.model.model.layers, mesh, dtype)
    with torch.no_grad():
        logprobs, _ = policy(pack(requests), 1.0)  # (R,)
    return (logprobs - sampled).abs()


def sample(
    network: PreTrainedModel, config: Config, dtype: torch.dtype
) -> tuple[list[Request], Tensor]:
    """Return random prompts with sampled responses, and the log-probs of sampled tokens (R,)."""
    engine = TorchEngine(network, config, eos_id=-1, dtype=dtype)
    engine.load(iter(network.state_dict().items()), 1)
    rng = np.random.default_rng(config.seed)
    vocabulary = network.config.vocab_size
    prompts = rng.integers(vocabulary, size=(NUM_REQUESTS, PROMPT_TOKENS)).tolist()
    for key, prompt in enumerate(prompts):
        seed = (config.seed, key)
        engine.add(key, prompt, max_tokens=RESPONSE_TOKENS, temperature=1.0, seed=seed)
    samples = []
    while engine.busy:
        samples += engine.step()
    samples.sort(key=lambda response: response.key)
    requests = []
    logprobs = []
    for prompt, response in zip(prompts, samples, strict=True):
        requests.append(Request(prompt, response.ids))
        logprobs += response.logprobs
    return requests, torch.tensor(logprobs)


@contextmanager
def rounded_logits() -> Iterator[None]:
    """In the `with` block, engine and trainer round logits to the dtype of the hidden states."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.to(a.dtype)).float()  # on a CPU, the engine passes its head as a float32 `b`

    with (
        patch("model.product_in_float32", product),
        patch("engines.torch_engine.product_in_float32", product),
    ):
        yield
