"""Benchmark of the update of Qwen2.5-0.5B on a GPU, with random weights: time, MFU and memory."""

from configurator import Config

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

import packing
import parallel
from model import Critic, Policy, compile_blocks
from packing import PackedBatch, PackedLayout, micro_batches, pack
from rollout import Trajectory, Turn
from tools.bench_measure import compare

QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
PEAK_FLOPS = 989e12  # FLOP/s in bfloat16 of one H100 or H200, dense
OBSERVATION_TOKENS = {"W1": 400, "W2": 80}  # before every turn but the first
RESPONSE_TOKENS = 150
PACK_TOKENS = (16_384, 32_768)


class Case(NamedTuple):
    """One measurement: a workload, and how the update computes it."""

    work: str  # a key of OBSERVATION_TOKENS
    pack_tokens: int  # of one forward and backward pass
    kernel: str  # of attention: "varlen" or "SDPA"
    compiled: bool
    trained: str  # "policy" or "critic"

    def __str__(self) -> str:
        compiled = ", compiled" if self.compiled else ""
        return f"{self.work} {self.trained}, {self.pack_tokens} tokens, {self.kernel}{compiled}"


def gpu(config: Config, repeats: int, *, shape: dict = QWEN) -> dict[str, dict]:
    """One update as in training: forward, backward, gradient clipping, AdamW.

    GRPO updates the policy only. PPO updates policy and critic: add their times. MFU is the FLOP
    of `flop_of`, without padding, divided by time and PEAK_FLOPS.
    """
    rng = np.random.default_rng(0)
    works = {}
    for name, observation in OBSERVATION_TOKENS.items():
        works[name] = workload(rng, observation, shape["vocab_size"])
    flop = "6 x (body x tokens + head x sampled) + 12 x layers x width x keys seen"
    print(f"MFU = ({flop}) / s / {PEAK_FLOPS:.3g}")
    rows = {}
    for case in cases():
        rows[str(case)] = measure_case(case, works[case.work], config, repeats, shape)
    return rows


def cases() -> list[Case]:
    kernels = ("varlen", "SDPA")
    trained = ("policy", "critic")
    every = product(OBSERVATION_TOKENS, PACK_TOKENS, kernels, (False, True), trained)
    return [Case(*values) for values in every]


def measure_case(
    case: Case, trajectories: list[Trajectory], config: Config, repeats: int, shape: dict
) -> dict[str, float]:
    device = torch.device(config.device)
    packing.has_varlen_kernel = lambda _: case.kernel == "varlen"  # selects the attention kernel
    network = Qwen2ForCausalLM(Qwen2Config(**shape, attn_implementation="layout")).to(device)
    compile_blocks(network.model.layers if case.compiled else ())
    num_head = network.lm_head.weight.numel()
    num_body = sum(weight.numel() for weight in network.parameters()) - num_head
    if case.trained == "policy":
        module = Policy(network)
    else:
        module = Critic(network.model).to(device)
    mesh = parallel.make_mesh(device)
    parallel.shard(module, network.model.layers, mesh, torch.bfloat16)
    parts = []
    for indices in micro_batches(trajectories, case.pack_tokens):
        parts.append([trajectories[i] for i in indices])
    batches = [pack(part, device) for part in parts]
    row = compare({str(case): update_step(module, batches, device)}, repeats)[str(case)]

    flop = 0.0
    tokens = 0
    for batch in map(pack, parts):
        flop += flop_of(batch, shape, num_body, num_head if case.trained == "policy" else 0)
        tokens += len(batch.ids)
    wall_s = row["wall_s"][0]
    figures = {
        "roofline s": flop / PEAK_FLOPS,
        "MFU": flop / PEAK_FLOPS / wall_s,
        "tokens/s": tokens / wall_s,
    }
    print("  ", *(f"{key} {value:,.3g}" for key, value in figures.items()))
    return row | figures


def update_step(
    module: torch.nn.Module, batches: list[PackedBatch], device: torch.device
) -> Callable[[], dict[str, float]]:
    """A function that makes one update and returns the peak memory."""
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(module.parameters(), 1e-6, fused=on_gpu)

    def run() -> dict[str, float]:
        for batch in batches:
            outputs_of(module, batch).sum().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        return {"peak GiB, so far": torch.cuda.max_memory_allocated() / 2**30}

    return run


def outputs_of(module: torch.nn.Module, batch: PackedBatch) -> Tensor:
    """Log-probs of a policy, or values of a critic; (R,)."""
    if isinstance(module, Policy):
        return module(batch, 1.0)[0]
    return module(batch)


def workload(rng: np.random.Generator, observation: int, vocabulary: int) -> list[Trajectory]:
    """128 trajectories of five turns with random tokens; groups of 16 share a first prompt of 400.

    Args:
        rng: Source of the tokens.
        observation: Tokens before each later turn.
        vocabulary: Number of different tokens.
    """

    def draw(num_tokens: int) -> list[int]:
        return rng.integers(vocabulary, size=num_tokens).tolist()

    openings = [draw(400) for _ in range(8)]
    trajectories = []
    for i in range(128):
        turns = []
        for turn in range(5):
            prompt = draw(observation) if turn else openings[i // 16]
            turns.append(Turn(prompt, draw(RESPONSE_TOKENS), [0.0] * RESPONSE_TOKENS))
        trajectories.append(Trajectory((i,), 0, turns))
    return trajectories


def flop_of(batch: PackedBatch, shape: dict, num_body: int, num_head: int) -> float:
    """FLOP of forward and backward.

    Every weight costs 6 FLOP for each token. The weights of the head cost them for sampled tokens
    only. Attention costs 12 x layers x width for each key that a query sees.
    """
    weights = 6.0 * (num_body * len(batch.ids) + num_head * len(batch.response_index))
    layout = PackedLayout(batch)
    sizes = zip(layout.lengths, layout.key_lengths, strict=True)
    keys = sum(n * (total - n / 2) for n, total in sizes)
    attention = 12.0 * shape["num_hidden_layers"] * shape["hidden_size"] * keys
    return weights + attention
