"""Ranks: process groups under torchrun, FSDP2, and who computes what.

Every rank plays its groups of trajectories on an engine of its own; then all trajectories are gathered, so that every
rank filters and computes advantages on the same global batch, and takes its share of the micro-batches. One process is
the case of one rank. Collectives must be met by all ranks: forwards of a sharded module, `stream_weights`, `gather`.
"""

from configurator import Config, UserError

import os
import resource
import sys
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from model import Policy, pick_device, pick_dtype
from rollout import Chat, Trajectory, collect, micro_batches, pack

ATTENTION_CROSSOVER_TOKENS = 16_640  # tokens at which attention costs as much as the matrices of Qwen2.5-0.5B; it balances the ranks


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rendezvous() -> tuple[dist.Store, int, int]:
    """Where ranks find each other, this rank, and their number.

    torchrun keeps one store over its restarts (pytorch issue 135712), so a started rank may call the address of a dead
    one. A prefix per attempt hides it; only the agent of a single node counts attempts in a way that all ranks share.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return dist.HashStore(), 0, 1
    store, place, ranks = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return (
        (dist.PrefixStore(attempt, store) if os.environ.get("GROUP_WORLD_SIZE") == "1" else store),
        place,
        ranks,
    )


def set_up(config: Config) -> tuple[torch.device, torch.dtype]:
    """Threads, device, compute type and process group; only rank 0 prints. Raises: UserError for a missing GPU."""
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    device, backend = pick_device(config.device), "gloo"
    torch.use_deterministic_algorithms(device.type == "cpu")
    if device.type == "cuda":
        local, found = (
            int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else 0,
            torch.cuda.device_count(),
        )
        if local >= found:
            raise UserError(
                f"this is local rank {local} and torch sees {found} GPUs; lower --nproc_per_node"
            )
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        store, place, ranks = rendezvous()
        dist.init_process_group(backend, store=store, rank=place, world_size=ranks)
    if rank():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return device, pick_dtype(config.dtype, device)


def peak_memory(device: torch.device) -> float:
    """Largest memory of this process so far, GiB: what torch had allocated on a GPU, else what was resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def tear_down(engine) -> None:
    """End a run: vLLM destroys the process group as it goes, so it goes when all ranks are done."""
    dist.barrier()
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


# ---------- weights


def make_mesh(device: torch.device) -> DeviceMesh:
    """One dimension for one node; for several, replicas over the nodes, which meet once a step, and shards inside."""
    local = (
        int(os.environ["LOCAL_WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else world_size()
    )
    if local < world_size() and world_size() % local == 0:
        return init_device_mesh(
            device.type, (world_size() // local, local), mesh_dim_names=("replicate", "shard")
        )
    return init_device_mesh(device.type, (world_size(),), mesh_dim_names=("shard",))


def shard(
    module: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh, dtype: torch.dtype
) -> nn.Module:
    """FSDP2 in place, per block and at the root: float32 master weights and reductions, `dtype` to compute in. By
    default FSDP2 does not reshard the root after a forward: one without gradient would leave the old embedding, norm
    and head to the forward after the next optimizer step."""
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    return fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def full_tensor(x: Tensor) -> Tensor:
    """The full tensor of a sharded one (a collective)."""
    return x.full_tensor() if isinstance(x, DTensor) else x


@torch.no_grad()
def stream_weights(
    policy: Policy, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """Full weights by Hugging Face name, one at a time; a tied head is named as well, because vLLM keeps a copy of it.
    Every rank must exhaust it. Shards are cast before they are gathered, which halves the traffic in bfloat16.

    LoRA is merged on the way, W + alpha / rank * B A: in float32, each rank for its shard, the model's own W stays."""
    if isinstance(policy, FSDPModule):
        policy.reshard()
    for name, p in policy.model.named_parameters():
        if ".lora_" in name:
            continue
        if name.endswith(".base_layer.weight"):
            lora = policy.model.get_submodule(name.removesuffix(".base_layer.weight"))
            p = torch.addmm(
                p,
                lora.lora_B.default.weight,
                lora.lora_A.default.weight,
                alpha=lora.scaling["default"],
            )
        weight = full_tensor(p.detach().to(dtype))
        yield name.replace(".base_layer", ""), weight
        if name == "model.embed_tokens.weight" and policy.model.config.tie_word_embeddings:
            yield "lm_head.weight", weight


def synchronize(engine, policy: Policy) -> None:
    """Hand the policy's weights to the engine, unless it has them already."""
    if engine.version != policy.version:
        engine.load(stream_weights(policy, engine.dtype), policy.version)


# ---------- work


def gather(mine: Sequence) -> list[list]:
    """Every rank's list, in the order of ranks, on every rank."""
    if world_size() == 1:
        return [list(mine)]
    lists: list = [None] * world_size()
    dist.all_gather_object(lists, list(mine))
    return lists


def all_reduce_sum(*tensors: Tensor) -> None:
    """Sum over the ranks, in place and in one message, for each takes gloo 2 ms. All on one device."""
    if world_size() > 1:
        total = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(total)
        for tensor, part in zip(
            tensors, total.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))


def collect_all(
    engine,
    policy: Policy,
    chat: Chat,
    config: Config,
    starts: Sequence[tuple[tuple[int, ...], int]],
    *,
    envs: Sequence[str] | None = None,
    group_size: int,
    **options,
) -> list[Trajectory]:
    """`rollout.collect` with the groups of `starts` dealt out to the ranks; all trajectories, in order, on every rank.

    Raises: RuntimeError if the engine does not have the policy's weights of this moment."""
    if engine.version != policy.version:
        raise RuntimeError(
            f"the engine has weights {engine.version}, the policy is at {policy.version}: synchronize"
        )
    owners, envs = (
        [i // group_size % world_size() for i in range(len(starts))],
        envs or [config.env] * len(starts),
    )
    mine = [i for i, owner in enumerate(owners) if owner == rank()]
    options |= dict(envs=[envs[i] for i in mine])
    played = [
        *map(iter, gather(collect(engine, chat, config, [starts[i] for i in mine], **options)))
    ]
    return [next(played[owner]) for owner in owners]


def local_micro_batches(
    trajectories: Sequence[Trajectory], max_tokens: int
) -> list[tuple[list[int], float]]:
    """This rank's micro-batches of a batch that all ranks have: (indices, weight). All ranks get equally many, because
    each is a collective; who has fewer repeats the shortest trajectory with weight 0."""
    costs, loads = (
        [n * (ATTENTION_CROSSOVER_TOKENS + n) for n in (len(t.ids) for t in trajectories)],
        [0] * world_size(),
    )
    dealt: list[list[int]] = [[] for _ in loads]
    for i in sorted(
        range(len(costs)), key=costs.__getitem__, reverse=True
    ):  # the longest first, to whom has least
        lightest = loads.index(min(loads))
        dealt[lightest].append(i)
        loads[lightest] += costs[i]
    packs = [
        [
            [part[j] for j in micro]
            for micro in micro_batches([trajectories[i] for i in part], max_tokens)
        ]
        for part in map(sorted, dealt)
    ]
    mine, filler = packs[rank()], [min(range(len(costs)), key=costs.__getitem__)]
    return [(p, 1.0) for p in mine] + [(filler, 0.0)] * (max(map(len, packs)) - len(mine))


@torch.no_grad()
def score_tokens(
    module: nn.Module, trajectories: Sequence[Trajectory], config: Config, *args
) -> tuple[Tensor, ...]:
    """Outputs of `module` for the sampled tokens, each (R,) float32 in the order of the trajectories, on every rank."""
    lengths, device = (
        [t.num_response_tokens for t in trajectories],
        next(module.parameters()).device,
    )
    places, results = torch.arange(sum(lengths), device=device).split(lengths), ()
    for indices, weight in local_micro_batches(trajectories, config.micro_batch_tokens):
        batch = pack(
            [trajectories[i] for i in indices],
            device,
            pad_to=config.compile * config.micro_batch_tokens,
        )
        outputs = module(batch, *args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        results = results or tuple(torch.zeros(sum(lengths), device=device) for _ in outputs)
        for result, output in zip(results, outputs, strict=True):
            result[torch.cat([places[i] for i in indices])] += output * weight
    all_reduce_sum(*results)
    return results
