"""Several processes (ranks) under torchrun: process groups, FSDP2, and the division of work.

Every rank samples its groups of trajectories on its own engine. All ranks then exchange their
trajectories, so all ranks filter the same batch and compute the same advantages. For the update
each rank takes its part of the micro-batches. Without torchrun there is one rank.

A *collective* is a call that all ranks must make in the same order. A rank that skips a collective
blocks the other ranks. Every forward and backward of a sharded module is a collective, and so is
every function below whose docstring says "collective".
"""

from configurator import Config, UserError

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from dialogue import Chat
from engine import Engine
from model import Policy, pick_device
from packing import micro_batches, pack
from rollout import Trajectory, collect
from utils.precision import round_at_random

# At this sequence length, attention costs as much as the linear layers of Qwen2.5-0.5B's blocks.
ATTENTION_CROSSOVER_TOKENS = 16_640

Item = TypeVar("Item")


# ---------- processes


def rank() -> int:
    """Return the rank of this process. A single process has rank 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def init_distributed(config: Config) -> torch.device:
    """Set the number of threads and the device, and join the process group (collective).

    After this call, only rank 0 prints to stdout.

    Returns: the device of this rank.
    Raises: UserError if this rank needs a GPU and has none, or if the GPU driver is too old.
    """
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    device = pick_device(config.device)
    torch.use_deterministic_algorithms(device.type == "cpu")
    backend = "gloo"
    if device.type == "cuda":
        device = _gpu_of_this_rank()
        torch.cuda.set_device(device)
        # If cuDNN attention is enabled, SDPA prefers it on an H100. cuDNN makes a new execution
        # plan for each input shape. The torch engine has new shapes in nearly every step, so cuDNN
        # would be slow.
        torch.backends.cuda.enable_cudnn_sdp(False)
        backend = "cpu:gloo,cuda:nccl"
    if not dist.is_initialized():
        store, this_rank, num_ranks = rendezvous()
        dist.init_process_group(backend, store=store, rank=this_rank, world_size=num_ranks)
    if rank() > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return device


def _gpu_of_this_rank() -> torch.device:
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise UserError(
            f"this is local rank {local_rank} and torch sees {num_gpus} GPUs; "
            "lower --nproc_per_node"
        )
    return torch.device("cuda", local_rank)


def rendezvous() -> tuple[dist.Store, int, int]:
    """Return (store, this rank, number of ranks). The ranks find each other through the store.

    When torchrun restarts the ranks, it keeps the store (pytorch issue 135712), so a new rank could
    read the address of a dead rank. Therefore, on a single node, each key in the store is prefixed
    with the number of restarts so far. On several nodes the keys get no prefix. Each node counts
    its own restarts, so the prefixes of two nodes could differ. Ranks with different prefixes would
    not find each other.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return dist.HashStore(), 0, 1
    store, this_rank, num_ranks = next(dist.rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(attempt, store)
    return store, this_rank, num_ranks


def shut_down(engine: Engine) -> None:
    """Wait for all ranks, then close the engine and leave the process group (collective)."""
    dist.barrier()  # closing vLLM destroys the process group, which other ranks may still need
    engine.close()
    leave_group()


def leave_group() -> None:
    """Leave the process group, unless vLLM has already destroyed it."""
    if dist.is_initialized():
        dist.destroy_process_group()


# ---------- exchange between ranks


def all_gather_lists(items: Sequence[Item]) -> list[list[Item]]:
    """Return the lists `items` of all ranks, in the order of the ranks (collective)."""
    if world_size() == 1:
        return [list(items)]
    lists: list = [None] * world_size()
    dist.all_gather_object(lists, list(items))
    return lists


def all_reduce_sum(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over the ranks, in place (collective).

    The tensors must be on one device. They share one all-reduce, because each all-reduce
    takes 2 ms with gloo.
    """
    if world_size() == 1:
        return
    joined = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


# ---------- weights


def make_mesh(device: torch.device) -> DeviceMesh:
    """Arrange the ranks in a mesh for FSDP2 (collective).

    If there are several nodes and each has the same number of ranks, every node shards all weights
    over its own ranks (HSDP). Otherwise the weights are sharded over all ranks.
    """
    ranks = world_size()
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if ranks_per_node < ranks and ranks % ranks_per_node == 0:
        sizes = (ranks // ranks_per_node, ranks_per_node)
        return init_device_mesh(device.type, sizes, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device.type, (ranks,), mesh_dim_names=("shard",))


def shard(
    module: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh, dtype: torch.dtype
) -> nn.Module:
    """Apply FSDP2 in place, to each layer and to the rest of the module.

    The weights are in float32. FSDP2 computes in `dtype` and averages the gradients in float32.
    """
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    # By default FSDP2 keeps the weights of the root module gathered after a forward. If no backward
    # follows, the weights would stay gathered until the next forward. An optimizer step in between
    # changes only the shards, so the next forward would use the weights from before the step.
    return fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the shards of a tensor (collective). A tensor without shards is returned as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def stream_weights(
    policy: Policy, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """Yield the policy's full weights, one tensor at a time (collective).

    Every rank must exhaust the iterator, because gathering a tensor is a collective. The ranks send
    their shards as `dtype`. A 16-bit `dtype` needs half the traffic of float32. LoRA is merged into
    the yielded weights.

    Yields: Hugging Face name and tensor of each weight. An LM head that is tied to the embedding is
        also yielded, under its own name, because vLLM reloads each layer by its name.
    """
    if isinstance(policy, FSDPModule):
        policy.reshard()
    is_tied = policy.model.config.tie_word_embeddings
    for name, parameter in policy.model.named_parameters():
        if ".lora_" in name:
            continue
        if name.endswith(".base_layer.weight"):
            linear = policy.model.get_submodule(name.removesuffix(".base_layer.weight"))
            parameter = _merge_lora(linear, dtype, name)
        weight = full_tensor(parameter.detach().to(dtype))
        yield name.replace(".base_layer", ""), weight
        if is_tied and name == "model.embed_tokens.weight":
            yield "lm_head.weight", weight


def _merge_lora(linear: nn.Module, dtype: torch.dtype, name: str) -> Tensor:
    """Return the merged weight W + (alpha / lora_rank) B A as `dtype`, sharded like W.

    The sum is computed in float32. For a 16-bit `dtype` it is then rounded up or down at random.
    Rounding to the nearest number would drop small changes by LoRA, so the result would often equal
    W. The seed of the rounding depends only on `name` and, for a sharded weight, on the shard's
    index. So a restart repeats the rounding.
    """
    weight = linear.base_layer.weight
    merged = torch.addmm(
        weight,
        linear.lora_B.default.weight,
        linear.lora_A.default.weight,
        alpha=linear.scaling["default"],
    )
    if dtype == torch.float32:
        return merged
    if not isinstance(merged, DTensor):
        return round_at_random(merged, dtype, zlib.crc32(name.encode()))
    mesh = weight.device_mesh
    merged = merged.redistribute(placements=weight.placements)
    shard_index = mesh.get_coordinate()[-1]  # weights are sharded over the last mesh dimension
    seed = zlib.crc32(f"{name} {shard_index}".encode())
    local = round_at_random(merged.to_local(), dtype, seed)
    return DTensor.from_local(
        local, mesh, weight.placements, shape=merged.shape, stride=merged.stride()
    )


def sync_weights(engine: Engine, policy: Policy) -> None:
    """Load the policy's weights into the engine, unless they are already loaded (collective)."""
    if engine.version != policy.version:
        engine.load(stream_weights(policy, engine.dtype), policy.version)


# ---------- division of work


def collect_all(
    engine: Engine,
    policy: Policy,
    chat: Chat,
    config: Config,
    starts: Sequence[tuple[tuple[int, ...], int]],
    *,
    envs: Sequence[str] | None = None,
    group_size: int,
    **options,
) -> list[Trajectory]:
    """Run `rollout.collect` on all ranks (collective). Group g is sampled on rank g % world_size.

    Returns: on every rank, the trajectories of all ranks, in the order of `starts`.
    Raises: RuntimeError if the engine does not hold the policy's current weights.
    """
    if engine.version != policy.version:
        raise RuntimeError(
            f"the engine has weights {engine.version}, the policy is at {policy.version}: "
            "call sync_weights first"
        )
    envs = envs or [config.env] * len(starts)
    indices_by_rank: list[list[int]] = [[] for _ in range(world_size())]
    for i in range(len(starts)):
        group = i // group_size
        indices_by_rank[group % world_size()].append(i)
    mine = indices_by_rank[rank()]
    my_starts = [starts[i] for i in mine]
    my_envs = [envs[i] for i in mine]
    my_trajectories = collect(engine, chat, config, my_starts, envs=my_envs, **options)
    gathered = all_gather_lists(my_trajectories)
    by_index: dict[int, Trajectory] = {}
    for indices, trajectories in zip(indices_by_rank, gathered, strict=True):
        by_index.update(zip(indices, trajectories, strict=True))
    return [by_index[i] for i in range(len(starts))]


class MicroBatch(NamedTuple):
    """The trajectories of one forward (and backward) pass on this rank."""

    indices: list[int]  # positions of the trajectories in the batch; all ranks hold the same batch
    # The outputs, loss and metrics of the micro-batch are multiplied by this factor. The factor is
    # 0.0 for a surplus micro-batch (see `local_micro_batches`) and 1.0 for any other.
    is_real: float


def local_micro_batches(trajectories: Sequence[Trajectory], max_tokens: int) -> list[MicroBatch]:
    """Return this rank's micro-batches of a batch that every rank holds.

    The forward of a micro-batch is a collective, so all ranks need the same number of
    micro-batches. A rank with fewer micro-batches than another rank adds surplus micro-batches.
    Each surplus micro-batch repeats the shortest trajectory of the batch.
    """
    costs = [_compute_cost(len(trajectory.ids)) for trajectory in trajectories]
    packs_by_rank = []
    for indices in _assign_to_ranks(costs):
        packs_by_rank.append(_micro_batches_among(trajectories, indices, max_tokens))
    mine = packs_by_rank[rank()]
    num_missing = max(len(packs) for packs in packs_by_rank) - len(mine)
    shortest = min(range(len(costs)), key=costs.__getitem__)
    real = [MicroBatch(indices, 1.0) for indices in mine]
    return real + [MicroBatch([shortest], 0.0)] * num_missing


def _compute_cost(num_tokens: int) -> int:
    """Return a trajectory's cost: a part linear in its tokens, plus a quadratic attention part."""
    return num_tokens * (ATTENTION_CROSSOVER_TOKENS + num_tokens)


def _assign_to_ranks(costs: Sequence[int]) -> list[list[int]]:
    """Assign trajectories in descending order of cost, each to the rank with the least cost so far.

    Returns: for each rank the indices of its trajectories, ascending.
    """
    loads = [0] * world_size()
    indices_by_rank: list[list[int]] = [[] for _ in loads]
    for i in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        lightest = loads.index(min(loads))
        indices_by_rank[lightest].append(i)
        loads[lightest] += costs[i]
    return [sorted(indices) for indices in indices_by_rank]


def _micro_batches_among(
    trajectories: Sequence[Trajectory], indices: list[int], max_tokens: int
) -> list[list[int]]:
    """Divide the trajectories at `indices` into micro-batches.

    Returns: for each micro-batch, a list of indices into `trajectories`.
    """
    chosen = [trajectories[i] for i in indices]
    packs = []
    for chosen_indices in micro_batches(chosen, max_tokens):
        packs.append([indices[i] for i in chosen_indices])
    return packs


@torch.no_grad()
def forward_sequences(
    module: nn.Module, trajectories: Sequence[Trajectory], config: Config, *args
) -> tuple[Tensor, ...]:
    """Evaluate a policy or critic at all R response tokens, without gradient (collective).

    For a policy, `args` is the temperature. For a critic, `args` is empty.

    Returns: on every rank, (logprobs, entropy) for a policy or (values,) for a critic. Each tensor
        has shape (R,) and dtype float32. The tokens are in the order of the trajectories.
    """
    lengths = [trajectory.num_response_tokens for trajectory in trajectories]
    num_tokens = sum(lengths)
    device = next(module.parameters()).device
    token_indices = torch.arange(num_tokens, device=device).split(lengths)  # by trajectory
    results: list[Tensor] = []  # each has shape (R,) and is 0 at the tokens of other ranks
    for indices, is_real in local_micro_batches(trajectories, config.micro_batch_tokens):
        batch = pack([trajectories[i] for i in indices], device)
        outputs = module(batch, *args)
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        if not results:
            results = [torch.zeros(num_tokens, device=device) for _ in outputs]
        index = torch.cat([token_indices[i] for i in indices])
        for result, output in zip(results, outputs, strict=True):
            result[index] += output * is_real
    all_reduce_sum(*results)
    return tuple(results)
