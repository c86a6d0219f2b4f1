"""Measure the update, the LM head and the engine on a model with the shape of Qwen2.5-0.5B.

The weights of the model are random. On a CPU, the model and its inputs are small.
"""

from configurator import Config, load_config

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

import packing
import parallel
import train
from engine import Engine, make_engine
from learner import Learner
from model import chunked_logprobs
from packing import PackedBatch, PackedLayout, pack
from rollout import Trajectory, Turn
from studies.speed.random_model import QWEN, build_random

PEAK_FLOPS = 989e12  # of one H100 or H200, in FLOP/s, for dense products in bfloat16
REPEATS = 3  # timed calls, after one call to warm up
NUM_TURNS = 5
SMALL_QWEN = QWEN | {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


class Sizes(NamedTuple):
    """Sizes of the model and of its inputs."""

    shape: dict  # settings of Qwen2Config
    num_groups: int
    group_size: int  # trajectories in a group, which share their first prompt
    prompt_tokens: int  # in a first prompt
    later_tokens: dict[str, int]  # maps a workload (W1 or W2) to the tokens in a later prompt
    response_tokens: int  # in a turn
    pack_tokens: int  # in a pack, the input of one forward and backward pass
    head_positions: int  # tokens whose log-probs measure_head computes
    head_chunks: tuple[int, ...]  # chunk sizes to measure, in vocabulary columns


# Workload W1 has long observations. Workload W2 has short observations, such as small grids.
GPU_SIZES = Sizes(
    shape=QWEN,
    num_groups=8,
    group_size=16,
    prompt_tokens=400,
    later_tokens={"W1": 400, "W2": 80},
    response_tokens=150,
    pack_tokens=16_384,
    head_positions=4096,
    head_chunks=(1024, 8192, 16_384, QWEN["vocab_size"]),
)
CPU_SIZES = Sizes(
    shape=SMALL_QWEN,
    num_groups=2,
    group_size=2,
    prompt_tokens=20,
    later_tokens={"W1": 20, "W2": 4},
    response_tokens=8,
    pack_tokens=256,
    head_positions=64,
    head_chunks=(1024, SMALL_QWEN["vocab_size"]),
)


def sizes_for(device: torch.device) -> Sizes:
    return CPU_SIZES if device.type == "cpu" else GPU_SIZES


# ---------- update


class UpdateCase(NamedTuple):
    """An update to measure."""

    work: str  # "W1" or "W2"
    estimator: str = "grpo"  # "gae" also trains a critic
    packs: int = 1  # size of a pack, in units of sizes.pack_tokens
    kernel: str = "default"  # "default" (varlen attention, if the device has it) or "SDPA"
    compiled: bool = False

    def measure(self, device: torch.device) -> dict[str, float]:
        """Time one update of train.py.

        "MFU" (model FLOP utilization) is `FLOP of the update / seconds / PEAK_FLOPS`.
        """
        sizes = sizes_for(device)
        config = self.config(device)
        model = build_random(sizes.shape, device=device)
        learner = Learner(config, model, None)
        trajectories = workload(sizes, sizes.later_tokens[self.work])
        with attention_kernel(self.kernel):
            seconds = median_seconds(partial(train_once, learner, trajectories), device)
        flop = 0.0
        num_tokens = 0
        for indices, _ in parallel.local_micro_batches(trajectories, config.micro_batch_tokens):
            batch = pack([trajectories[i] for i in indices])
            flop += self.flop_of_learning(batch, sizes.shape, model)
            num_tokens += len(batch.ids)
        return {
            "s": seconds,
            "tokens/s": num_tokens / seconds,
            "MFU": flop / PEAK_FLOPS / seconds,
            "s at the peak": flop / PEAK_FLOPS,
        }

    def config(self, device: torch.device) -> Config:
        sizes = sizes_for(device)
        num_trajectories = sizes.num_groups * sizes.group_size
        pack_tokens = self.packs * sizes.pack_tokens
        settings = {
            "device": device.type,
            "estimator": self.estimator,
            "num_groups": sizes.num_groups,
            "group_size": sizes.group_size,
            "batch_size": num_trajectories,
            "filter_keep": 1.0,
            "max_response_tokens": sizes.response_tokens,
            "max_context_tokens": min(3600, pack_tokens),
            "micro_batch_tokens": pack_tokens,
            "compile": self.compiled,
        }
        arguments = [f"--{key}={value}" for key, value in settings.items()]
        return load_config(["config/frozenlake_grpo.py", *arguments])[0]

    def flop_of_learning(self, batch: PackedBatch, shape: dict, model) -> float:
        """Return the FLOP of one pack.

        A forward pass costs 2 FLOP per weight and token, and a backward pass costs 4. With "gae",
        the critic adds two forward passes and one backward pass through the body. The critic has no
        LM head. So the critic adds `(2 + 2 + 4) / (2 + 4) = 4/3` times the FLOP that flop_of counts
        for the body.
        """
        num_head = model.lm_head.weight.numel()
        num_body = sum(weight.numel() for weight in model.parameters()) - num_head
        flop = flop_of(batch, shape, num_body, num_head)
        if self.estimator == "gae":
            flop += 4 / 3 * flop_of(batch, shape, num_body, 0)
        return flop


def train_once(learner: Learner, trajectories: list[Trajectory]) -> None:
    train.update(learner, train.build_experience(learner, trajectories))


def workload(sizes: Sizes, later_tokens: int) -> list[Trajectory]:
    vocabulary = sizes.shape["vocab_size"]
    logprobs = [-float(np.log(vocabulary))] * sizes.response_tokens
    rng = np.random.default_rng(0)

    def draw(num_tokens: int) -> list[int]:
        return rng.integers(vocabulary, size=num_tokens).tolist()

    trajectories = []
    for group in range(sizes.num_groups):
        opening = draw(sizes.prompt_tokens)
        for member in range(sizes.group_size):
            turns = []
            for turn in range(NUM_TURNS):
                prompt = draw(later_tokens) if turn else opening
                reply = draw(sizes.response_tokens)
                turns.append(Turn(prompt, reply, logprobs, reward=float(rng.random())))
            trajectories.append(Trajectory((group,), member, turns))
    return trajectories


def flop_of(batch: PackedBatch, shape: dict, num_body: int, num_head: int) -> float:
    """Count the FLOP of one forward and backward pass on `batch`.

    A weight of the body costs 6 FLOP a token. A weight of the LM head costs 6 FLOP a sampled token.
    Attention costs 12 x layers x width FLOP for each key that a query sees.
    """
    weights = 6.0 * (num_body * len(batch.ids) + num_head * len(batch.response_index))
    layout = PackedLayout(batch)
    sizes = zip(layout.lengths, layout.key_lengths, strict=True)
    keys = sum(n * (total - n / 2) for n, total in sizes)
    attention = 12.0 * shape["num_hidden_layers"] * shape["hidden_size"] * keys
    return weights + attention


@contextmanager
def attention_kernel(name: str) -> Iterator[None]:
    has_varlen_kernel = packing.has_varlen_kernel
    if name == "SDPA":
        packing.has_varlen_kernel = lambda _: False
    try:
        yield
    finally:
        packing.has_varlen_kernel = has_varlen_kernel


def median_seconds(run: Callable[[], object], device: torch.device) -> float:
    times = [seconds_of(run, device) for _ in range(1 + REPEATS)]
    return float(np.median(times[1:]))


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------- head


def measure_head(chunk_size: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    sizes = sizes_for(device)
    width = sizes.shape["hidden_size"]
    vocabulary = sizes.shape["vocab_size"]
    hidden = torch.randn(sizes.head_positions, width, device=device, dtype=dtype)
    weight = torch.randn(vocabulary, width, device=device, dtype=dtype) * 0.02
    targets = torch.randint(vocabulary, (sizes.head_positions,), device=device)

    def run() -> None:
        inputs = hidden.detach().requires_grad_()
        head = weight.detach().requires_grad_()
        logprobs, entropy = chunked_logprobs(inputs, head, targets, chunk_size=chunk_size)
        (logprobs.sum() + entropy.sum()).backward()

    seconds = median_seconds(run, device)
    # 4 matrix products: one for the logits in the forward pass, one for the same logits in the
    # backward pass, and two for the gradients of `inputs` and `head`
    flop = 4 * 2.0 * sizes.head_positions * width * vocabulary
    return {"ms": 1000 * seconds, "of the peak": flop / PEAK_FLOPS / seconds}


# ---------- engine


def measure_engine(config: Config, device: torch.device) -> dict[str, float]:
    """Time the torch engine on two turns. Of `config`, only the dtype is used.

    The number of trajectories and the lengths of prompts are those of workload W2, which has short
    observations.
    """
    sizes = sizes_for(device)
    num_rows = sizes.num_groups * sizes.group_size
    config = load_config(
        [
            "config/frozenlake_grpo.py",
            "--engine=torch",
            f"--device={device.type}",
            f"--dtype={config.dtype}",
            f"--max_running={num_rows}",
        ]
    )[0]
    model = build_random(sizes.shape, device=device)
    engine = make_engine(config, model, SimpleNamespace(end=-1))  # no token ends a reply
    del model  # the engine has a copy
    play_turns(engine, sizes, 4)  # to warm up
    begun = engine.num_steps
    seconds = seconds_of(lambda: play_turns(engine, sizes, sizes.response_tokens), device)
    num_steps = engine.num_steps - begun
    num_tokens = 2 * num_rows * sizes.response_tokens
    return {
        "s": seconds,
        "sampled tokens/s": num_tokens / seconds,
        "ms a step": 1000 * seconds / num_steps,
        "KV cache GiB": engine.cache.nbytes / 2**30,
    }


def play_turns(engine: Engine, sizes: Sizes, response_tokens: int) -> None:
    histories = {}
    for key, trajectory in enumerate(workload(sizes, sizes.later_tokens["W2"])):
        histories[key] = list(trajectory.first_prompt_ids)
    for turn in range(2):
        for key, ids in histories.items():
            engine.add(key, ids, max_tokens=response_tokens, temperature=1.0, seed=(turn, key))
        while engine.busy:
            for sample in engine.step():
                histories[sample.key] += sample.ids
        for ids in histories.values():
            ids += ids[: sizes.later_tokens["W2"]]
    for key in histories:
        engine.release(key)
