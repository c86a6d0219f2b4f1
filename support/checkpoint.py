"""Nothing is lost: checkpoints of a run, Hugging Face folders, the lock on its folder, and signals that end it.

    out_dir/checkpoint-000010/state/*.safetensors    what is trained, and its moments
                             /state.json             format, step, bad_steps
                             /config.json            the settings
                             /manifest.json          sha256 of these files
    out_dir/best/, out_dir/policy/                   Hugging Face folders: of the best evaluation, and of the end

Folders are written beside, synced, then renamed: what has its name is complete. Training waits for the copy of a
checkpoint only; a thread writes it. Random numbers are no part of it, because every draw is seeded with its purpose
and its iteration. Nothing that is read is a pickle.
"""

from configurator import UserError

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.futures import Future

import parallel
from model import Policy, save_adapter
from support.run_folder import sync

FORMAT = 1  # of a checkpoint
EXIT_INTERRUPTED = 75  # exit code of a run that a signal ended and that continues when started again; EX_TEMPFAIL of sysexits.h


# ---------- folders


@contextmanager
def new_folder(final: Path, group: dist.ProcessGroup | None = None) -> Iterator[Path]:
    """A folder for all ranks to write into, one at a time; on the way out it takes the place and the name of `final`.

    Args: group: of the ranks, for another thread than the main one. Raises: UserError where the disk does not take it;
        what was there before stays."""
    partial, old = final.with_name("partial"), final.with_name("old")
    try:
        if parallel.rank() == 0:
            for folder in (partial, old):
                shutil.rmtree(folder, ignore_errors=True)
            partial.mkdir(parents=True)
        dist.barrier(group)
        yield partial
        dist.barrier(group)
        if parallel.rank() == 0:
            for path in (*partial.rglob("*"), partial):
                sync(path)
            if final.exists():
                final.rename(old)
            partial.rename(final)
            sync(final.parent)
            shutil.rmtree(old, ignore_errors=True)
        dist.barrier(group)
    except (OSError, SafetensorError, dcp.CheckpointException) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = (
            next(iter(error.failures.values()))[0]
            if isinstance(error, dcp.CheckpointException)
            else error
        )
        advice = "what was saved before is whole: make room, and start again to go on from it"
        raise UserError(f"{final} could not be written ({reason}); {advice}") from error


def export(folder: Path, policy: Policy, tokenizer) -> None:
    """Write the policy as a Hugging Face folder with LoRA merged, and that LoRA for peft as `adapter/` in it."""
    with new_folder(folder) as partial:
        tied = "lm_head.weight" if policy.model.config.tie_word_embeddings else ""
        stream = parallel.stream_weights(policy)  # to its end on every rank; rank 0 keeps it
        weights = {
            name: weight.cpu() for name, weight in stream if parallel.rank() == 0 and name != tied
        }
        parts = {name: p for name, p in trained(policy.model).items() if ".lora_" in name}
        adapter = {name: parallel.full_tensor(p.detach()).cpu() for name, p in parts.items()}
        if parallel.rank() == 0:
            policy.model.save_pretrained(partial, state_dict=weights)
            tokenizer.save_pretrained(partial)
            if adapter:
                save_adapter(policy.model, adapter, partial / "adapter")


# ---------- checkpoints


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The parameters with gradients, by name: all of them, or those of LoRA and the value head."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def states_of(
    modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, dict]:
    """What training changes, tensors only: weights and moments. Rates and betas are those of the config."""
    states = {}
    for name, module in modules.items():
        if not optimizers[
            name
        ].state:  # torch makes moments by a step at rate 0, which must not count
            get_state_dict(module, optimizers[name])
            for state in optimizers[name].state.values():
                state["step"].zero_()
        weights, moments = get_state_dict(module, optimizers[name])
        states[name] = {
            "weights": {key: weights[key] for key in trained(module)},
            "moments": moments["state"],
        }
    return states


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            found.update(block)
    return found.hexdigest()


def to_cpu(state):
    """The tensors of nested dicts, sharded ones as well, copied to memory that training does not touch."""
    if isinstance(state, dict):
        return {key: to_cpu(value) for key, value in state.items()}
    return state.detach().to("cpu", copy=True)


class Writer(dcp.HuggingFaceStorageWriter):
    """Writes the same files by `save_file`, which neither stops other threads meanwhile nor needs memory of its own."""

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future:
        tensors = {item.index.fqn: planner.resolve_data(item).contiguous() for item in plan.items}
        places = {
            item.index.fqn: {"saved_offsets": item.tensor_data.chunk.offsets} for item in plan.items
        }
        file = self.path / f"shard-{plan.storage_data['shard_index']:05d}.safetensors"
        save_file(tensors, file, {"DCP_SHARDING_INFO": json.dumps(places)})
        (done := Future()).set_result([])
        return done


class Saver:
    """Writes the checkpoints of a run in a thread, one at a time; its context ends when the last one is on the disk,
    and says how long training waited for them. All methods are collectives."""

    def __init__(self, out_dir: Path, keep: int):
        self.out_dir, self.keep, self.writing = out_dir, keep, None
        self.began, self.paused_s, self.num_saves = time.perf_counter(), 0.0, 0
        self.thread, self.group = (
            ThreadPoolExecutor(1),
            dist.new_group(backend="gloo"),
        )  # beside that of training

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_) -> None:
        self.thread.shutdown()
        if self.num_saves:
            share = self.paused_s / (time.perf_counter() - self.began)
            print(
                f"training waited {self.paused_s:.2f} s, {share:.1%} of its time, for {self.num_saves} checkpoints"
            )

    def save(self, states: dict[str, dict], counts: dict[str, int]) -> None:
        """Copy, then return: checkpoint-STEP is written beside what follows, and all but the last `keep` are dropped.

        Args: states: see `states_of`; counts: step and bad_steps. Raises: UserError, see `wait`."""
        self.wait()
        began = time.perf_counter()
        self.writing = self.thread.submit(self._write, to_cpu(states), counts)
        self.num_saves, self.paused_s = (
            self.num_saves + 1,
            self.paused_s + time.perf_counter() - began,
        )

    def wait(self) -> None:
        """Until nothing is being written. Raises: UserError if that could not be, see `new_folder`."""
        began, writing, self.writing = time.perf_counter(), self.writing, None
        if writing:
            writing.result()
        self.paused_s += time.perf_counter() - began

    def _write(self, states: dict[str, dict], counts: dict[str, int]) -> None:
        final = self.out_dir / f"checkpoint-{counts['step']:06d}"
        with new_folder(final, self.group) as partial:
            writer = Writer(str(partial / "state"), save_distributed=True)
            dcp.save(states, storage_writer=writer, process_group=self.group)
            if parallel.rank() == 0:
                if (
                    settings := self.out_dir / "config.json"
                ).is_file():  # for the reader; the run goes by its own
                    shutil.copy(settings, partial)
                (partial / "state.json").write_text(
                    json.dumps({"format": FORMAT} | counts), encoding="utf-8"
                )
                digests = {
                    str(p.relative_to(partial)): digest(p)
                    for p in partial.rglob("*")
                    if p.is_file()
                }
                (partial / "manifest.json").write_text(
                    json.dumps(digests, indent=1), encoding="utf-8"
                )
        if parallel.rank() == 0:
            folders = sorted(self.out_dir.glob("checkpoint-??????"))
            last = [folder for folder in folders if folder <= final][
                -self.keep :
            ]  # later ones were damaged
            for folder in set(folders) - set(last):
                shutil.rmtree(folder)


def load(
    folder: Path, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict:
    """Put a checkpoint, of any number of ranks, back in place; returns step and bad_steps. Raises: UserError where it
    lacks what is trained now."""
    states, options = (
        states_of(modules, optimizers),
        StateDictOptions(strict=False),
    )  # the frozen ones are not in it
    try:
        dcp.load(states, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "state")))
    except dcp.CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        advice = "give another --out_dir"
        raise UserError(
            f"{folder} is of a run that trained something else ({reason}); {advice}"
        ) from error
    for name, module in modules.items():
        moments = get_state_dict(module, optimizers[name])[1] | {"state": states[name]["moments"]}
        both = dict(model_state_dict=states[name]["weights"], optim_state_dict=moments)
        set_state_dict(module, optimizers[name], **both, options=options)
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))


def find_corruption(folder: Path) -> str:
    """What of a checkpoint is not as it was written; '' if all is."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        wrong = [name for name, wanted in manifest.items() if digest(folder / name) != wanted]
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return f"the checksum of {', '.join(wrong)} is wrong" if wrong else ""


def newest(out_dir: Path) -> Path | None:
    """The last checkpoint that is whole, the same on every rank; says which later ones are not.

    Raises: UserError if none of several is whole, or it has another format."""
    found, folders = (
        None,
        sorted(out_dir.glob("checkpoint-??????"), reverse=True) if parallel.rank() == 0 else [],
    )
    for folder in folders:
        if not (problem := find_corruption(folder)):
            found = folder
            break
        print(f"{folder} is damaged ({problem}); going back to the one before it", flush=True)
    if folders and not found:
        raise UserError(
            f"no checkpoint in {out_dir} is whole; give another --out_dir, or empty this one"
        )
    if (
        found
        and (given := json.loads((found / "state.json").read_text(encoding="utf-8"))["format"])
        != FORMAT
    ):
        raise UserError(f"{found} has format {given}, this code reads format {FORMAT}")
    return parallel.all_gather_lists([found])[0][0]


# ---------- one process in a folder, until it is told to go


@contextmanager
def locked(out_dir: Path) -> Iterator[None]:
    """The folder for this run alone. The kernel holds the lock for the process, so one that died has left none behind.

    Raises: UserError if another process has it, or nothing can be written there."""
    if parallel.rank():
        yield
        return
    path = out_dir / "lock"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"out_dir={str(out_dir)!r} cannot be written ({error})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"out_dir={str(out_dir)!r} is in use by {file.read()}; give another --out_dir"
            ) from error
        if (
            not path.exists() or os.fstat(file.fileno()).st_ino != path.stat().st_ino
        ):  # who had it has just removed it
            raise UserError(f"out_dir={str(out_dir)!r} was in use until now; start again")
        file.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}", end="", file=file, flush=True)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            if not any(out_dir.iterdir()):  # what fails before the first file leaves no trace
                out_dir.rmdir()


def exit_now(sentence: str, code: int) -> None:
    """End the process at once, whatever it is doing."""
    os.write(2, f"\n{sentence}\n".encode())
    os._exit(code)


class Interruption:
    """SIGTERM, SIGUSR1 and Ctrl-C: the iteration under way has `grace_s` to end and to be saved; the process exits with
    EXIT_INTERRUPTED, then or at the end of the grace. A second Ctrl-C exits at once."""

    def __init__(self, grace_s: float):
        self.grace_s, self.timer = grace_s, None

    def __enter__(self) -> "Interruption":
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        self.before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_) -> None:
        self._stop_timer()
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _) -> None:
        if self.timer:
            if number == signal.SIGINT:
                exit_now(
                    "interrupted twice: ended at once; started again, the run continues from its checkpoint",
                    130,
                )
            return
        sentence = (
            f"no iteration ended within grace_s ({self.grace_s:g} s); started again, the run continues from "
            "its checkpoint"
        )
        self.timer = threading.Timer(self.grace_s, exit_now, [sentence, EXIT_INTERRUPTED])
        self.timer.daemon = True
        self.timer.start()
        name = signal.Signals(number).name  # not print, which must not be entered twice
        os.write(
            2, f"\n{name}: ending after this iteration, in {self.grace_s:g} s at most\n".encode()
        )

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()

    def wanted(self) -> bool:
        """Whether any rank was told to end; between iterations, a collective. Saving is not cut off by the grace."""
        told = torch.tensor(float(self.timer is not None))
        parallel.all_reduce_sum(told)
        if told:
            self._stop_timer()
        return bool(told)
