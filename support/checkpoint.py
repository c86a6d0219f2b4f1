"""Writes and loads checkpoints, and writes Hugging Face folders of the policy.

    out_dir/checkpoint-000010/state/*.safetensors   trained weights and optimizer moments
                             /state.json            format, step, bad_steps, estimator_state,
                                                    loss_scale (float16)
                             /config.json           the settings
                             /logs.json             checksums of the logs so far
                             /manifest.json         sha256 of the files above
    out_dir/best/                                   the policy with the best evaluation
    out_dir/policy/                                 the policy after the last iteration
    out_dir/{best,policy}/checksums.json            sha256 of the files in the folder
                         /iteration.json            the iteration of the policy

A thread writes checkpoints during training. Training waits only until the previous checkpoint is
written and the new state is copied to CPU memory. A folder gets its final name after all of its
files are on disk. Checkpoints hold no state of random generators, because each draw is seeded with
its purpose and iteration. Loading a checkpoint executes no code, because it contains no pickle.
"""

from configurator import UserError

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

import parallel
from learner import Learner
from model import Policy, trainable_parameters
from support.run_folder import CHECKPOINTS, DISK_ADVICE
from utils.checksums import (
    OF_MODEL,
    LogChecksums,
    find_corruption,
    write_checksums,
)
from utils.files import fsync_path, read_json
from utils.json_shapes import check_shape

# A run that spends more than this fraction of its time waiting for checkpoints prints the waiting
# time at its end.
LONG_WAIT = 0.05
FORMAT = 1
ITERATION = "iteration.json"  # file in best/ and policy/
STATE = {"format": int, "step": int}  # shape of state.json, see utils/json_shapes.py

Modules = Mapping[str, nn.Module]
Optimizers = Mapping[str, torch.optim.Optimizer]


# ---------- saving


class Saver:
    """Writes the checkpoints of a run from a separate thread.

    All ranks must make the same calls, because they write each checkpoint together.
    """

    def __init__(self, out_dir: Path, keep: int):
        self.out_dir = out_dir
        self.keep = keep
        self.logs = LogChecksums(out_dir)
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.writing: Future | None = None
        self.memory: Tensor | None = None  # allocated once, because CUDA takes seconds to pin it
        self.buffers: dict | None = None  # tensors in `memory`
        # The collectives of the thread must not mix with those of training, so the thread has its
        # own process group.
        self.group = dist.new_group(backend="gloo")
        self.began = time.perf_counter()
        self.paused_s = 0.0

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_) -> None:
        self.thread.shutdown()
        if self.memory is not None and self.memory.is_pinned():
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())
        fraction = self.paused_s / (time.perf_counter() - self.began)
        if fraction > LONG_WAIT:
            print(
                f"training waited {self.paused_s:.1f} s, {fraction:.0%} of its time, for "
                "checkpoints; a larger save_every saves fewer"
            )

    def save(self, state: dict[str, dict], counts: dict[str, Any]) -> None:
        """Wait until the previous checkpoint is written, then copy the state to CPU memory.

        A thread then writes checkpoint-STEP and removes old checkpoints.

        Args:
            state: nested dicts of tensors, such as the result of `training_state`.
            counts: the content of state.json without "format". The key "step" is required.
        Raises: UserError if the previous checkpoint could not be written.
        """
        self.wait()
        began = time.perf_counter()
        if torch.cuda.is_initialized() and self.buffers is None:
            self.memory, self.buffers = make_buffers(state)
        # The buffers can be overwritten: `wait` has returned, so the thread no longer reads them.
        copy = to_cpu(state, self.buffers)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        # The thread reads the logs only up to their present sizes: training may add lines later.
        self.writing = self.thread.submit(self._write, copy, counts, self.logs.sizes())
        self.paused_s += time.perf_counter() - began

    def wait(self) -> None:
        """Wait until the checkpoint in progress is written. Raises: UserError if writing fails."""
        began = time.perf_counter()
        writing = self.writing
        self.writing = None
        if writing:
            writing.result()
        self.paused_s += time.perf_counter() - began

    def _write(
        self, state: dict[str, dict], counts: dict[str, Any], log_sizes: dict[str, int]
    ) -> None:
        final = self.out_dir / f"checkpoint-{counts['step']:06d}"
        with atomic_folder(final, self.group) as partial:
            writer = ShardWriter(str(partial / "state"), save_distributed=True)
            dcp.save(state, storage_writer=writer, process_group=self.group)
            if parallel.rank() == 0:
                self._write_description(partial, counts, log_sizes)
        if parallel.rank() == 0:
            self._remove_others(final)

    def _write_description(
        self, folder: Path, counts: dict[str, Any], log_sizes: dict[str, int]
    ) -> None:
        settings = self.out_dir / "config.json"
        if settings.is_file():
            shutil.copy(settings, folder)
        if log_sizes:
            logs = json.dumps(self.logs.up_to(log_sizes), indent=1)
            (folder / "logs.json").write_text(logs, encoding="utf-8")
        description = json.dumps({"format": FORMAT} | counts)
        (folder / "state.json").write_text(description, encoding="utf-8")
        write_checksums(folder, "manifest.json")

    def _remove_others(self, final: Path) -> None:
        """Keep `final` and the newest checkpoints before it, at most `keep` in all. Remove others.

        A checkpoint later than `final` exists only if a restart found it damaged and continued the
        run from an older checkpoint.
        """
        old = self.out_dir / "old"
        folders = sorted(self.out_dir.glob(CHECKPOINTS))
        kept = [folder for folder in folders if folder <= final][-self.keep :]
        for folder in folders:
            if folder not in kept:
                # The folder is renamed first, so that a kill leaves no half-removed checkpoint.
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
                shutil.rmtree(old, ignore_errors=True)


class ShardWriter(dcp.HuggingFaceStorageWriter):
    """Writes files for dcp.HuggingFaceStorageReader, with `save_file` of safetensors.

    The base class turns all tensors into bytes before it writes the first one. Tensors and bytes
    together need twice the memory. The conversion also holds the GIL, which training needs.
    """

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> torch.futures.Future:
        tensors = {}
        offsets = {}
        for item in plan.items:
            name = item.index.fqn
            tensors[name] = planner.resolve_data(item).contiguous()
            offsets[name] = {"saved_offsets": item.tensor_data.chunk.offsets}
        path = self.path / f"shard-{plan.storage_data['shard_index']:05d}.safetensors"
        save_file(tensors, path, {"DCP_SHARDING_INFO": json.dumps(offsets)})
        written: torch.futures.Future = torch.futures.Future()
        written.set_result([])
        return written


@contextmanager
def atomic_folder(final: Path, group: dist.ProcessGroup | None = None) -> Iterator[Path]:
    """Yield a folder that all ranks write into, and rename it to `final` when it is complete.

    Raises: UserError if a file cannot be written.
    """
    partial = final.with_name("partial")
    old = final.with_name("old")
    try:
        if parallel.rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
            partial.mkdir(parents=True)
        dist.barrier(group)
        yield partial
        dist.barrier(group)
        if parallel.rank() == 0:
            for path in (*partial.rglob("*"), partial):
                fsync_path(path)
            if final.exists():  # rename cannot replace a folder that holds files
                final.rename(old)
            partial.rename(final)
            fsync_path(final.parent)
            shutil.rmtree(old, ignore_errors=True)
        dist.barrier(group)
    except (OSError, SafetensorError, dcp.CheckpointException) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"{final} could not be written ({_reason(error)}); {DISK_ADVICE}"
        ) from error


def _reason(error: BaseException) -> BaseException:
    if isinstance(error, dcp.CheckpointException):
        return next(iter(error.failures.values()))[0]
    return error


# ---------- state


def training_state(modules: Modules, optimizers: Optimizers) -> dict[str, dict]:
    """The tensors that training changes, as {module: {"weights": ..., "moments": ...}}.

    Learning rates and betas are not included: a run takes them from its settings.
    """
    state = {}
    for name, module in modules.items():
        optimizer = optimizers[name]
        if not optimizer.state:
            _create_moments(module, optimizer)
        weights, optimizer_state = get_state_dict(module, optimizer)
        state[name] = {
            "weights": {key: weights[key] for key in trainable_parameters(module)},
            "moments": optimizer_state["state"],
        }
    return state


def _create_moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Create the moments of an optimizer that has made no step."""
    # To create moments, get_state_dict steps with learning rate 0, so reset the step counter.
    get_state_dict(module, optimizer)
    for moments in optimizer.state.values():
        moments["step"].zero_()


def to_cpu(state, buffers=None):
    """Copy the tensors in nested dicts to CPU memory; sharded tensors stay sharded.

    Args: buffers: the tensors to copy into, from `make_buffers`; None to allocate new memory.
        Copies from a GPU into buffers are asynchronous.
    """
    if isinstance(state, dict):
        copies = {}
        for key, value in state.items():
            copies[key] = to_cpu(value, buffers[key] if buffers else None)
        return copies
    tensor = state.detach()
    if buffers is None:
        return tensor.to("cpu", copy=True)
    _local(buffers).copy_(_local(tensor), non_blocking=True)
    return buffers


def make_buffers(state: dict) -> tuple[Tensor, dict]:
    """Allocate one buffer with room for the tensors in nested dicts.

    A GPU copies several times faster into pinned memory than into ordinary memory. When torch
    allocates pinned memory, it rounds the size of each tensor up to a power of two. PPO with a 0.5B
    model then needs 22 GB instead of 12 GB. So the buffer is allocated as ordinary memory, and then
    CUDA pins it.

    Returns: the buffer, of type uint8, and the tensors in the buffer, in nested dicts like `state`.
    """
    tensors = list(_tensors_in(state))
    sizes = [_aligned(_local(tensor).nbytes) for tensor in tensors]
    memory = torch.empty(sum(sizes), dtype=torch.uint8)
    if any(tensor.device.type == "cuda" for tensor in tensors):
        portable = 1  # cudaHostRegisterPortable
        torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, portable)
    return memory, _placed(state, iter(memory.split(sizes)))


def _tensors_in(state) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
        return
    for value in state.values():
        yield from _tensors_in(value)


def _placed(state, parts: Iterator[Tensor]):
    """Nested dicts like `state`, with each tensor in its own part of a buffer."""
    if isinstance(state, dict):
        return {key: _placed(value, parts) for key, value in state.items()}
    local = _local(state)
    part = next(parts)[: local.nbytes].view(local.dtype).view(local.shape)
    if not isinstance(state, DTensor):
        return part
    # DTensor.from_local would move `part` to the GPU, so _local_tensor is set instead.
    sharded = state.detach().to("cpu", copy=True)
    sharded._local_tensor = part
    return sharded


def _aligned(num_bytes: int) -> int:
    """Round a size up to a multiple of 64, so that a tensor of any type can start after it."""
    return (num_bytes + 63) // 64 * 64


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# ---------- loading


def newest(out_dir: Path) -> Path | None:
    """The newest undamaged checkpoint, the same on every rank; None if there is no checkpoint.

    Raises: UserError if all checkpoints are damaged. UserError also if state.json of the newest
        undamaged checkpoint has a wrong format or step: the format must be FORMAT, and the step
        must be the number in the folder's name.
    """
    found = _newest_on_rank_0(out_dir) if parallel.rank() == 0 else None
    return parallel.all_gather_lists([found])[0][0]


def _newest_on_rank_0(out_dir: Path) -> Path | None:
    folders = sorted(out_dir.glob(CHECKPOINTS), reverse=True)
    for folder in folders:
        problem = find_corruption(folder)
        if not problem:
            _check_state(folder)
            return folder
        print(f"{folder} is damaged ({problem}); trying the checkpoint before it", flush=True)
    if folders:
        raise UserError(
            f"all checkpoints in {out_dir} are damaged; give another --out_dir, or empty this one"
        )
    return None


def _check_state(folder: Path) -> None:
    path = folder / "state.json"
    version = read_json(path, {"format": int})["format"]
    if version != FORMAT:
        raise UserError(f"{folder} has format {version}, but this version reads {FORMAT}")
    step = read_json(path, STATE)["step"]
    if folder.name != f"checkpoint-{step:06d}":
        raise UserError(f"{path} has step {step}, which is not that of its folder")


def load(folder: Path, modules: Modules, optimizers: Optimizers) -> dict[str, Any]:
    """Load a checkpoint into modules and optimizers.

    The checkpoint may come from a run with another number of ranks.

    Returns: the content of state.json.
    Raises: UserError if the checkpoint lacks a tensor that this run trains, or holds a weight that
        is NaN or infinite.
    """
    state = training_state(modules, optimizers)
    try:
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "state")))
    except dcp.CheckpointException as error:
        raise UserError(
            f"{folder} belongs to a run that trained other weights ({_reason(error)}); "
            "give another --out_dir"
        ) from error
    for name, module in modules.items():
        for key, weight in state[name]["weights"].items():
            if not parallel.full_tensor(weight).isfinite().all():
                raise UserError(f"{folder} holds weights that are not finite ({name}: {key})")
        _, optimizer_state = get_state_dict(module, optimizers[name])
        set_state_dict(
            module,
            optimizers[name],
            model_state_dict=state[name]["weights"],
            optim_state_dict=optimizer_state | {"state": state[name]["moments"]},
            options=StateDictOptions(strict=False),  # frozen weights are not in a checkpoint
        )
    return read_json(folder / "state.json", STATE)


# ---------- the learner of train.py


def save_learner(learner: Learner, saver: Saver) -> None:
    """Start writing a checkpoint.

    Raises: TypeError if JSON cannot restore estimator_state."""
    states = training_state(learner.modules, learner.optimizers)
    counts = {"step": learner.step, "bad_steps": learner.bad_steps}
    counts["estimator_state"] = copy_as_json(learner.estimator_state)
    if learner.dtype == torch.float16:
        counts["loss_scale"] = learner.loss_scale
    saver.save(states, counts)


def load_learner(learner: Learner, folder: Path) -> None:
    """Continue from a checkpoint."""
    counts = load(folder, learner.modules, learner.optimizers)
    shape = {"step": int, "bad_steps": int, "estimator_state": ({}, ...)}
    check_shape(counts, shape, f"{folder}/state.json")
    learner.step = counts["step"]
    learner.bad_steps = counts["bad_steps"]
    learner.estimator_state = counts.get("estimator_state", {})  # missing in older checkpoints
    if "loss_scale" in counts and learner.dtype == torch.float16:
        learner.loss_scale = counts["loss_scale"]
    learner.policy.bump_version()
    print(f"continuing {folder.parent} from iteration {learner.step}", flush=True)


def copy_as_json(state: dict) -> dict:
    """Convert the state of an estimator to JSON and back.

    Raises: TypeError if JSON cannot restore `state`, for example because of a tuple or tensor."""
    try:
        copied = json.loads(json.dumps(state))
    except (TypeError, ValueError):
        copied = None
    if copied != state:
        raise TypeError(
            "learner.estimator_state must hold finite numbers, texts, lists, and dicts with texts "
            f"as keys, which JSON gives back unchanged; got {state!r}"
        )
    return copied


# ---------- Hugging Face folders


def export(folder: Path, policy: Policy, tokenizer, step: int | None = None) -> None:
    """Write the policy as a Hugging Face folder, with checksums of its files.

    With LoRA, the folder holds the merged weights, and adapter/ holds the LoRA matrices for peft.

    Args: step: the iteration of the policy, for iteration.json; None to leave this file out.
    """
    with atomic_folder(folder) as partial:
        weights = _full_weights(policy)
        adapter = {}
        for name, parameter in trainable_parameters(policy.model).items():
            if ".lora_" in name:
                adapter[name] = parallel.full_tensor(parameter.detach()).cpu()
        if parallel.rank() == 0:
            policy.model.save_pretrained(partial, state_dict=weights)
            tokenizer.save_pretrained(partial)
            if adapter:
                _save_adapter(policy.model, adapter, partial / "adapter")
            if step is not None:
                description = json.dumps({"step": step})
                (partial / ITERATION).write_text(description, encoding="utf-8")
            write_checksums(partial, OF_MODEL)


def _save_adapter(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Write an adapter that PeftModel.from_pretrained can load.

    Args: weights: the matrices A and B of the model's LoRA, by parameter name.
    """
    model.peft_config["default"].save_pretrained(folder)
    renamed = {}
    for name, weight in weights.items():
        renamed[f"base_model.model.{name.replace('.default', '')}"] = weight
    save_file(renamed, folder / "adapter_model.safetensors")


def _full_weights(policy: Policy) -> dict[str, Tensor]:
    """The full weights by name, on the CPU. Ranks other than 0 get an empty dict.

    An LM head is left out if it is tied to the embedding.
    """
    tied = "lm_head.weight" if policy.model.config.tie_word_embeddings else ""
    weights = {}
    # Every rank must run the whole loop, because the ranks gather each weight together.
    for name, weight in parallel.stream_weights(policy):
        if parallel.rank() == 0 and name != tied:
            weights[name] = weight.cpu()
    return weights
