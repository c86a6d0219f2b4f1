"""Supervised learning: a model imitates demonstrations.

    python -m tools.sft config/frozenlake_ppo.py --sft_steps=200 --eval_every=100 --out_dir=out/sft
    torchrun train.py config/frozenlake_ppo.py --model=out/sft/model          # RL from there
    python -m tools.sft config/quest_ppo.py --sft_steps=25 --export=out/quests.jsonl
    python -m tools.sft config/quest_ppo.py --sft_steps=200 --sft_file=out/quests.jsonl

--export writes demonstrations and does not train. The third command writes 400 demonstrations, 16
for each of the 25 steps. --sft_file=PATH trains on a file of demonstrations.

Without --sft_file, scripted players generate the demonstrations. With torchrun, the processes share
the demonstrations of each step. To continue an interrupted run from out_dir, repeat the command
that began the run. For config/NAME.py, the default of out_dir is out/NAME_sft. During training, the
model plays held-out instances to measure its success.
"""

from configurator import SFT_PREFIX, UserError, load_config, types_of

from dataclasses import replace
from pathlib import Path

from mixtures import env_specs
from support.arguments import check_envs
from support.run_folder import check_out_dir, save_config
from support.terminal import run_main
from tools.sft_config import SftConfig
from utils.files import check_writable, read_json, write_rows
from utils.model_folder import find_model


def read_sft(argv: list[str]) -> tuple[SftConfig, dict, dict]:
    """Read the command line. Returns: the settings, the options, and the source of each setting."""
    config, options, sources = load_config(argv, extra={"export": ""}, kind=SftConfig)
    if not config.sft_steps:
        raise UserError("nothing to do: sft_steps is 0; give --sft_steps=N")
    if len(env_specs(config.env)) > 1:
        raise UserError(f"supervised learning takes one environment, got env={config.env!r}")
    if config.wandb:
        raise UserError("supervised learning does not log to W&B; leave --wandb out")
    check_imitation(config)
    if sources["out_dir"] == "default":
        # Without the ending _sft, the folder would be the default folder of train.py.
        config = replace(config, out_dir=f"{config.out_dir}_sft")
    if options["export"]:
        check_writable(options["export"])
    else:
        check_out_dir(config)
    check_envs(config, env_specs(config.env))
    find_model(config.model)
    return config, options, sources


def check_imitation(config: SftConfig) -> None:
    """Check that supervised learning supports the dtype. Raises: UserError."""
    if config.dtype == "float16":  # float16 would need a loss scale
        raise UserError("supervised learning computes in float32 or bfloat16, got dtype='float16'")


if __name__ == "__main__":
    run_main(read_sft, kind=SftConfig)  # reports wrong arguments before the slow imports

import copy
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

import parallel
from dialogue import Chat
from model import Policy, add_lora, describe_trained, load_model, pick_dtype, trainable_parameters
from packing import micro_batches, pack
from rollout import Trajectory, split_by_context
from support.checkpoint import Saver, export, newest
from support.log import progress_bar
from support.no_effect import GAME, Reason, print_unread
from support.run import is_due
from support.run_lock import lock_folder
from tools.demonstrations import (
    demonstrations_at,
    print_cuts,
    read_demonstrations,
    write_demonstrations,
)
from tools.probes import probe

# settings that both tools.sft and studies/base_model/pretrain.py read
SUPERVISED = """model seed out_dir eval_every save_every keep_checkpoints device num_threads dtype
    max_context_tokens micro_batch_tokens weight_decay grad_clip"""
SFT_SETTINGS = " ".join(key for key in types_of(SftConfig) if key.startswith(SFT_PREFIX))
SETTINGS_READ = f"""{GAME} {SUPERVISED} {SFT_SETTINGS} lora_rank engine_dtype context_turns
    max_running max_error_frac eval_size eval_temperature"""
WARMUP_STEPS = 20
MIN_VALID_FRAC = 0.5  # below this fraction of valid replies at the end, a warning is printed
SHOWN = ("loss", "success", "valid_frac")  # metrics whose names begin with these are printed
NUM_LINES = 20  # at most this many lines report the progress of a run
# The shape of the dict `totals` in `imitate`, in the notation of utils/json_shapes.py. The dict
# holds sums over the finished steps, the loss of each step, and the rows of curve.jsonl. Each
# checkpoint stores the dict.
TOTALS = {
    "tokens": int,
    "response_tokens": int,
    "cpu_s": float,
    "losses": [float],
    "rows": [{"step": int}],
}


# ---------- the run


def main(argv: list[str]) -> None:
    config, options, sources = read_sft(argv)
    if options["export"]:
        print_unread("tools.sft", SETTINGS_READ, sources, without_effect(config))
        _, tokenizer = load_model(config.model)
        count = write_demonstrations(options["export"], config, Chat(tokenizer))
        print(f"wrote {options['export']}: {count} demonstrations")
        return
    device = parallel.init_distributed(config)
    print_unread("tools.sft", SETTINGS_READ, sources, without_effect(config))
    with open_run(config) as saver:
        train(config, sources, device, saver)
    if parallel.rank() == 0:
        print(f"next, RL from this model: {rl_command(argv, config)}")
    parallel.leave_group()


def without_effect(config: SftConfig) -> Iterator[Reason]:
    """Yield the settings that have no effect because of other settings."""
    player = "sft_player sft_actions sft_noise sft_clean"
    if config.sft_file:
        yield f"{player} sft_planners", "sft_file holds the demonstrations"
    else:
        yield "sft_lost sft_eval_games", "sft_file is empty"
    if config.sft_player == "crowd":
        yield "sft_actions sft_noise sft_clean", "the crowd's players already make errors"
    else:
        yield "sft_planners", f"sft_player is {config.sft_player}"
    if config.sft_noise == 0:
        yield "sft_clean", "sft_noise is 0"
    if config.lora_rank and config.sft_muon_lr:
        yield "sft_lr", "with LoRA all trained weights are matrices, which use sft_muon_lr"


def rl_command(argv: Sequence[str], config: SftConfig) -> str:
    """Return the command for RL from the trained model. The command repeats the arguments of
    `argv`, except --out_dir, --model, --num_iterations and settings of SFT such as --sft_steps=200.
    """
    ours = ("--sft_", "--out_dir=", "--model=", "--num_iterations=")
    shared = [argument for argument in argv if not argument.startswith(ours)]
    return shlex.join(["python", "train.py", *shared, f"--model={config.out_dir}/model"])


@contextmanager
def open_run(config: SftConfig) -> Iterator[Saver]:
    """Lock the folder of a run and yield the saver of its checkpoints.

    Raises: UserError if another process uses the folder, or if there are more processes than
        demonstrations in a step."""
    ranks = parallel.world_size()
    if config.sft_batch_size < ranks:
        raise UserError(
            f"sft_batch_size ({config.sft_batch_size}) is less than the number of processes "
            f"({ranks})"
        )
    out_dir = Path(config.out_dir)
    with lock_folder(out_dir), Saver(out_dir, config.keep_checkpoints) as saver:
        yield saver


def train(config: SftConfig, sources: dict[str, str], device: torch.device, saver: Saver) -> None:
    """Train a model and write it to out_dir. If out_dir holds an interrupted run, continue it."""
    out_dir = Path(config.out_dir)
    model, tokenizer = load_model(config.model)
    policy = make_policy(config, model.to(device))
    chat = Chat(tokenizer)
    first = demonstrations_of(config, chat, 0)  # an error here ends the run before it writes files
    known = read_demonstrations(config.sft_file, chat, config) if config.sft_file else first
    print_cuts(known)
    if parallel.rank() == 0:
        save_config(config, sources, out_dir)
        print(f"policy: {describe_trained(policy)}", flush=True)

    def report(step: int, totals: dict) -> None:
        measured = probe(policy.model, chat, config)
        write_row(config, step, totals, measured)
        warning = few_valid_replies(config, measured, sources)
        if step == config.sft_steps and warning and parallel.rank() == 0:
            tqdm.write(f"warning: {warning}")

    imitate(policy, partial(packs_of, config, chat), config, saver=saver, report=report)
    export(out_dir / "model", policy, tokenizer)
    print(f"wrote {out_dir}/: curve.jsonl, and model in Hugging Face format")


def make_policy(config: SftConfig, model) -> Policy:
    if config.lora_rank:
        add_lora(model, config.lora_rank, config.seed)
    return Policy(model)


def write_row(config: SftConfig, step: int, totals: dict, measured: dict) -> None:
    """Add a row of metrics to curve.jsonl, and print the main metrics.

    Args:
        step: the number of finished steps.
        totals: see TOTALS.
        measured: the result of `probe`.
    """
    row = {"step": step}
    for key in ("tokens", "response_tokens", "cpu_s"):
        row[key] = totals[key]
    row["loss"] = float(np.mean(totals["losses"][-config.eval_every :]))
    row.update(measured)
    totals["rows"].append(row)
    if parallel.rank() == 0:
        write_rows(Path(config.out_dir, "curve.jsonl"), totals["rows"])
        tqdm.write(describe(row))


def describe(row: dict) -> str:
    """Return a line of text that gives the step of a row and the metrics that SHOWN selects."""
    shown = {key: value for key, value in row.items() if key.startswith(SHOWN)}
    numbers = " | ".join(f"{key} {value:.3f}" for key, value in shown.items())
    return f"step {row['step']}: {numbers} (curve.jsonl has more)"


def few_valid_replies(config: SftConfig, measured: dict, sources: dict[str, str]) -> str:
    """Return a warning with advice if the fraction of valid replies is below MIN_VALID_FRAC.
    Otherwise return "".

    Args:
        measured: the result of `probe`.
        sources: says where each setting was given, see `load_config`.
    """
    valid_frac = measured[f"valid_frac_T{config.eval_temperature:g}"]
    if valid_frac >= MIN_VALID_FRAC:
        return ""
    overlay = "config/recipes/tiny_new_game.py"
    hint = f", and for a new game with the tiny model add {overlay}"
    return (
        f"only {100 * valid_frac:.0f} % of the replies are valid (at T={config.eval_temperature:g} "
        "on held-out prompts), so RL from this model has little to learn from; give more "
        f"--sft_steps than {config.sft_steps} or a larger --sft_lr"
        f"{'' if overlay in sources.values() else hint}"
    )


def packs_of(config: SftConfig, chat: Chat, step: int) -> list[list[Trajectory]]:
    """Return packs of the demonstrations on which this process trains in a step. The model reads
    a pack in one forward pass, as one row of tokens."""
    sequences = split_by_context(demonstrations_of(config, chat, step), config)
    packs = []
    for pack_indices in micro_batches(sequences, config.micro_batch_tokens):
        packs.append([sequences[i] for i in pack_indices])
    return packs


def demonstrations_of(config: SftConfig, chat: Chat, step: int) -> list[Trajectory]:
    """Return the demonstrations on which this process trains in a step."""
    mine = range(parallel.rank(), config.sft_batch_size, parallel.world_size())
    num_different = config.sft_demos or sys.maxsize
    indices = [(step * config.sft_batch_size + i) % num_different for i in mine]
    if not config.sft_file:
        return demonstrations_at(config, chat, indices)
    known = read_demonstrations(config.sft_file, chat, config)
    return [known[i % len(known)] for i in indices]


# ---------- the loop


def imitate(
    policy: Policy,
    packs_at: Callable[[int], Sequence[list[Trajectory]]],
    config: SftConfig,
    *,
    saver: Saver | None = None,
    report: Callable[[int, dict], object] = lambda *_: None,
) -> None:
    """Train a policy to minimise the mean of -log p over the response tokens.

    The weights are float32, and the model computes in `config.dtype`.

    Args:
        packs_at: returns the packs of this process for a step, see `packs_of`.
        saver: writes the checkpoints; None for no checkpoints.
        report: called with (finished steps, totals) every `eval_every` steps and at the end.
    Raises: UserError if the loss is not finite."""
    steps = config.sft_steps
    optimizers = make_optimizers(policy, config)
    first = 0
    totals = {"tokens": 0, "response_tokens": 0, "cpu_s": 0.0, "losses": [], "rows": []}
    folder = newest(saver.out_dir) if saver else None
    if folder:
        first, totals = load_state(folder, policy, optimizers)
    lines = Lines(first, steps)
    bar = progress_bar(
        iterable=range(first, steps), initial=first, total=steps, desc="sft", unit="step"
    )
    dtype = pick_dtype(config.dtype, policy.model.device)
    for step in bar:
        packs = packs_at(step)
        start_cpu_s = time.process_time()
        counts = count_tokens(packs)  # (2,)
        loss = backward(policy, packs, num_response_tokens=counts[0], dtype=dtype)
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss is {loss.item()} at step {step}; lower sft_lr or sft_muon_lr"
            )
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)
        optimizer_step(optimizers, schedule(step, steps))
        totals["response_tokens"] += int(counts[0])
        totals["tokens"] += int(counts[1])
        totals["cpu_s"] += time.process_time() - start_cpu_s
        totals["losses"].append(loss.item())
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)

        finished = step + 1
        lines.write(finished, loss.item())
        is_last = finished == steps
        if is_last or is_due(config.eval_every, finished):
            report(finished, totals)
        if saver and (is_last or is_due(config.save_every, finished)):
            # A thread writes the checkpoint while training goes on, so copy the totals.
            progress = {"step": finished, "totals": copy.deepcopy(totals)}
            saver.save(training_state(policy, optimizers), progress)
    if saver:
        saver.wait()


class Lines:
    """Prints progress as lines, because log files show no progress bar.

    Args:
        first: the number of steps that were finished when this process started.
        steps: the number of all steps of the run.
    """

    def __init__(self, first: int, steps: int):
        self.first = first
        self.steps = steps
        self.every = math.ceil(steps / NUM_LINES)
        self.start_time = time.perf_counter()

    def write(self, finished: int, loss: float) -> None:
        """Print a line after every `self.every` steps and at the end."""
        if finished % self.every and finished != self.steps:
            return
        elapsed_s = time.perf_counter() - self.start_time
        left_s = elapsed_s / (finished - self.first) * (self.steps - finished)
        line = f"{finished:4d}/{self.steps} loss {loss:.3f}"
        if left_s > 0:
            line += f" | {left_s / 60:.0f} min left"
        tqdm.write(line)


def count_tokens(packs: Sequence[list[Trajectory]]) -> Tensor:
    """Count the tokens of a step on all ranks.

    Returns: the number of response tokens and the number of all tokens, (2,) int64."""
    num_response_tokens = 0
    num_tokens = 0
    for trajectories in packs:
        for trajectory in trajectories:
            num_response_tokens += trajectory.num_response_tokens
            num_tokens += len(trajectory.ids)
    counts = torch.tensor([num_response_tokens, num_tokens])  # (2,)
    parallel.all_reduce_sum(counts)
    return counts


def backward(
    policy: Policy,
    packs: Sequence[list[Trajectory]],
    num_response_tokens: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute the gradients and the loss of a step, both summed over the ranks.

    Args: dtype: the dtype of the forward pass. Returns: the loss, ()."""
    device = next(policy.parameters()).device
    loss = torch.zeros(())
    for trajectories in packs:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logprobs, _ = policy(pack(trajectories, device), 1.0)  # (R,)
            pack_loss = -logprobs.sum() / num_response_tokens  # ()
        pack_loss.backward()
        loss += pack_loss.item()
    parallel.all_reduce_sum(loss)
    parallel.all_reduce_sum(*(p.grad for p in trainable_parameters(policy).values()))
    return loss


def optimizer_step(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Step all optimizers at `factor` times their learning rates."""
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = factor * optimizer.defaults["lr"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate: a linear warm-up times a cosine decay."""
    warmup = min(1.0, (step + 1) / min(WARMUP_STEPS, steps))
    return warmup * 0.5 * (1 + math.cos(math.pi * step / steps))


def training_state(policy: Policy, optimizers: list[torch.optim.Optimizer]) -> dict[str, dict]:
    """Return the trained weights by name, and the moments of each optimizer by parameter index."""
    state: dict[str, dict] = {"weights": trainable_parameters(policy)}
    for number, optimizer in enumerate(optimizers):
        moments = optimizer.state_dict()["state"]
        state[f"moments{number}"] = {str(index): values for index, values in moments.items()}
    return state


def load_state(
    folder: Path, policy: Policy, optimizers: list[torch.optim.Optimizer]
) -> tuple[int, dict]:
    """Load weights and moments from a checkpoint.

    Returns: the number of finished steps, and the totals (see TOTALS).
    Raises: UserError if another script wrote the checkpoint."""
    progress = read_json(folder / "state.json", {"step": int, "totals": TOTALS})
    tensors = {}
    for path in sorted((folder / "state").glob("*.safetensors")):
        tensors |= load_file(path)
    with torch.no_grad():
        for name, parameter in trainable_parameters(policy).items():
            parameter.copy_(tensors.pop(f"weights.{name}"))
    for number, optimizer in enumerate(optimizers):
        moments: dict[int, dict] = {}
        for name in [name for name in tensors if name.startswith(f"moments{number}.")]:
            _, index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = tensors.pop(name)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return progress["step"], progress["totals"]


# ---------- optimizers


def make_optimizers(policy: Policy, config: SftConfig) -> list[torch.optim.Optimizer]:
    """If `sft_muon_lr` is 0, return AdamW for the trained parameters.

    If `sft_muon_lr` is set, return Muon for the matrices of the transformer blocks. If there are
    other trained parameters, also return AdamW for them."""
    matrices = []
    others = []
    for name, p in trainable_parameters(policy).items():
        is_matrix = p.ndim == 2 and "layers" in name
        if is_matrix and config.sft_muon_lr:
            matrices.append(p)
        else:
            others.append(p)
    decay = config.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if others:  # empty if Muon trains LoRA, because LoRA has only matrices
        optimizers.append(
            torch.optim.AdamW(others, lr=config.sft_lr, betas=(0.9, 0.99), weight_decay=decay)
        )
    if matrices:
        optimizers.append(Muon(matrices, config.sft_muon_lr, decay))
    return optimizers


class Muon(torch.optim.Optimizer):
    """The optimizer Muon (K. Jordan 2024): it orthogonalises the Nesterov momentum of each matrix.

    The constants are those of torch.optim.Muon. This class computes in float32. torch.optim.Muon
    computes in bfloat16, which takes ten times as long on a CPU without bfloat16 instructions."""

    MOMENTUM = 0.95
    NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)

    def __init__(self, params, lr: float, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        for p in group["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.lerp_(p.grad, 1 - self.MOMENTUM)
            update = self._orthogonalize(p.grad.lerp(momentum, self.MOMENTUM))
            shape_factor = max(1, p.shape[0] / p.shape[1]) ** 0.5
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(update, alpha=group["lr"] * shape_factor)

    def _orthogonalize(self, matrix: Tensor) -> Tensor:
        """Move all singular values of a matrix towards 1, by Newton-Schulz iteration."""
        a, b, c = self.NEWTON_SCHULZ
        is_tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.T if is_tall else matrix  # the transpose makes x @ x.T smaller
        x = x / x.norm().clamp_min(1e-7)
        for _ in range(5):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        return x.T if is_tall else x


if __name__ == "__main__":
    run_main(main)
