"""Measure one piece of gpu_report.py. A piece is a group of measurements (cases).

python -m studies.speed.gpu_pieces update --device=cuda  # one GPU; appends to out/gpu/results.jsonl
"""

from configurator import Config, UserError, choices_of, load_config

from studies.speed.gpu_report import DEFAULTS, MAX_PROCESS_S, PIECES, Results
from support.terminal import run_main


def read_piece(argv: list[str]) -> tuple[str, Config, float]:
    names = [piece.name for piece in PIECES]
    if not argv or argv[0] not in names:
        given = argv[0] if argv else "nothing"
        raise UserError(f"give one of {', '.join(names)}; got {given}")
    extra = {"limit_s": MAX_PROCESS_S}
    config, options, _ = load_config(argv[1:], extra=extra, base=DEFAULTS)
    return argv[0], config, options["limit_s"]


if __name__ == "__main__":
    run_main(read_piece)  # reports wrong arguments before the slow imports

import gc
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from huggingface_hub import try_to_load_from_cache

import parallel
import train
from learner import Learner, build_learner
from model import load_model, pick_dtype
from rollout import Trajectory
from studies.speed import bench_gpu
from studies.speed.bench_gpu import UpdateCase, seconds_of, sizes_for
from studies.speed.random_model import build_random, save_random
from support.checkpoint import Saver, load_learner, save_learner
from support.training_metrics import peak_memory

Values = dict[str, float | str]
Case = Callable[[], Values]

ONE_CASE_EACH = [piece.name for piece in PIECES if piece.needs == "vllm"]
MAX_ITERATIONS = 20
RESERVED_S = 40  # no further iteration begins in the last RESERVED_S seconds of --limit_s
# Maps a dtype to the largest relative difference that is allowed between a metric in COMPARED and
# the same metric on a CPU in float32.
TOLERANCES = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
COMPARED = ("entropy", "vf_loss", "grad_norm", "grad_norm_critic")
PACKAGES = ("torch", "transformers", "vllm", "flash-attn", "triton", "peft", "tensorboard")
GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "power.limit")


class NotAvailable(Exception):
    """A case cannot be measured on this machine."""


# ---------- the process


def main(argv: list[str]) -> None:
    began = time.perf_counter()
    piece, config, limit_s = read_piece(argv)
    deadline = began + limit_s - RESERVED_S
    device = parallel.init_distributed(config)
    cases = cases_of(piece, config, device, deadline)
    measure(piece, cases, Results(Path(config.out_dir)), device)


def measure(piece: str, cases: dict[str, Case], results: Results, device: torch.device) -> None:
    """Measure the cases that are new or waiting.

    If the piece needs vLLM, measure only one case, because vLLM cannot start twice in a process.
    """
    todo = [name for name in cases if results.state(piece, name) in ("", "waiting")]
    for name in todo:
        results.add(piece, name, "waiting")
    if piece in ONE_CASE_EACH:
        todo = todo[:1]
    for name in todo:
        results.add(piece, name, "running")
        release_memory(device)
        measure_case(piece, name, cases[name], results, device)


def measure_case(piece: str, name: str, case: Case, results: Results, device: torch.device) -> None:
    try:
        values = case()
        memory = {"peak GiB": peak_memory(device)}
        results.add(piece, name, "done", {**values, **memory})
    except NotAvailable as reason:
        results.add(piece, name, "skipped", reason=str(reason))
    except Exception as error:
        # The remaining cases of the piece should still run.
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        results.add(piece, name, "failed", reason=text)
        print(text, flush=True)
        if "CUDA error" in text:  # CUDA no longer works in this process
            raise


def release_memory(device: torch.device) -> None:
    gc.collect()  # frees old FSDP2 modules, which form reference cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def cases_of(piece: str, config: Config, device: torch.device, deadline: float) -> dict[str, Case]:
    """Return the cases of a piece by name, the most useful first.

    Args: deadline: a time on the clock of time.perf_counter(). After this time, a case may begin
        its first iteration of train.py, but no further iteration.
    """
    if piece == "environment":
        return {"this machine": partial(describe_machine, device)}
    if piece in ("tiny", "tiny_vllm"):
        engine = "vllm" if piece == "tiny_vllm" else "torch"
        return {dtype: partial(compare_with_cpu, engine, dtype, device) for dtype in dtypes()}
    if piece == "fsdp":
        tiny = replace(tiny_config(device), out_dir=config.out_dir)
        return {
            "tiny model": partial(restart_of, tiny, device),
            "0.5B, PPO": partial(restart_of, random_config(config, device, "torch"), device),
        }
    if piece == "update":
        return update_cases(device)
    if piece == "engine":
        chosen = [dtype for dtype in dtypes() if device.type == "cpu" or dtype != "float32"]
        engines = {}
        for dtype in chosen:
            changed = replace(config, dtype=dtype)
            engines[dtype] = partial(bench_gpu.measure_engine, changed, device)
        return engines
    if piece in ("kernels", "kernels_32k"):
        return kernel_cases(2 if piece == "kernels_32k" else 1, device)
    if piece == "head":
        dtype = pick_dtype(config.dtype, device)
        return {
            f"{size:,} columns at a time": partial(bench_gpu.measure_head, size, device, dtype)
            for size in sizes_for(device).head_chunks
        }
    if piece == "flagship":
        return flagship_cases(config, device, deadline)
    engine = "vllm" if piece == "iteration_vllm" else "torch"
    flagship = random_config(config, device, engine)
    return {"PPO": partial(time_iterations, flagship, device, 2, deadline)}


def dtypes() -> list[str]:
    return [name for name in choices_of(Config)["dtype"] if name != "auto"]


def update_cases(device: torch.device) -> dict[str, Case]:
    cases = {}
    for work in ("W1", "W2"):
        for name, estimator in {"GRPO": "grpo", "PPO": "gae"}.items():
            cases[f"{work}, {name}"] = partial(UpdateCase(work, estimator).measure, device)
    return cases


def kernel_cases(packs: int, device: torch.device) -> dict[str, Case]:
    """Return cases that measure updates of workload W1 (long observations). A pack (micro-batch)
    has up to `packs * sizes.pack_tokens` tokens. If `packs` is 1, leave out the case
    "varlen, eager", because the piece `update` measures it."""
    cases = {}
    for kernel, compiled in (
        ("default", False),
        ("default", True),
        ("SDPA", False),
        ("SDPA", True),
    ):
        if (packs, kernel, compiled) == (1, "default", False):
            continue
        words = ["varlen" if kernel == "default" else kernel, "compiled" if compiled else "eager"]
        case = UpdateCase("W1", packs=packs, kernel=kernel, compiled=compiled)
        cases[", ".join(words)] = partial(case.measure, device)
    return cases


def flagship_cases(config: Config, device: torch.device, deadline: float) -> dict[str, Case]:
    model = f"--model={config.model}"
    cases = {}
    for name, arguments in {
        "FrozenLake, PPO, filter 25 %": ["config/frozenlake_ppo.py"],
        "Sokoban, PPO, no filter (RAGEN on four H100: 56.9 s)": [
            "config/sokoban_ppo.py",
            "--filter_keep=1.0",
        ],
    }.items():
        settings = load_config([*arguments, model, f"--device={device.type}"])[0]
        cases[name] = partial(time_flagship, settings, device, deadline)
    return cases


# ---------- the machine


def describe_machine(device: torch.device) -> Values:
    values: Values = {"Python": platform.python_version()}
    for package in PACKAGES:
        values[package] = version_of(package)
    values["CUDA"] = str(torch.version.cuda)
    for field in GPU_FIELDS if device.type == "cuda" else ():
        values[field] = query_gpu(field)
    size = 8192 if device.type == "cuda" else 512
    dtype = pick_dtype("auto", device)
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    seconds = bench_gpu.median_seconds(lambda: a @ b, device)
    values["TFLOP/s of a product"] = 2 * size**3 / seconds / 1e12
    seconds = bench_gpu.median_seconds(lambda: a.copy_(b), device)
    values["TB/s of a copy"] = 2 * a.nbytes / seconds / 1e12
    return values


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def query_gpu(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.check_output(command, text=True, timeout=20).strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"


# ---------- the tiny model on a device and on the CPU


def tiny_config(device: torch.device, engine: str = "torch", dtype: str = "auto") -> Config:
    arguments = [f"--device={device.type}", f"--engine={engine}", f"--dtype={dtype}"]
    if device.type == "cpu":
        arguments += ["--num_groups=2", "--group_size=8", "--batch_size=8", "--filter_keep=0.5"]
    return load_config(["config/frozenlake_ppo.py", "config/models/tiny.py", *arguments])[0]


def start(config: Config, device: torch.device) -> tuple:
    learner, engine, chat = build_learner(config, device)
    parallel.sync_weights(engine, learner.policy)
    return learner, engine, chat


@cache
def reference_on_cpu(device_type: str) -> tuple[list[Trajectory], list[Trajectory], Values]:
    """Run one iteration on the CPU in float32.

    Args: device_type: type of the device on which `compare_with_cpu` runs its iteration. If
        `device_type` is "cpu", this function and `compare_with_cpu` sample fewer trajectories than
        for a GPU.
    Returns: all trajectories, kept trajectories, and the metrics of the update.
    """
    config = tiny_config(torch.device(device_type), dtype="float32")
    config = replace(config, device="cpu")
    device = parallel.init_distributed(config)
    learner, engine, chat = start(config, device)
    trajectories = train.collect_rollouts(learner, engine, chat)
    stats = train.stats_of_groups(trajectories, config.group_size)  # (P,) each
    values = train.ranking_values(config, trajectories, stats)  # (P,)
    candidates = train.filter_candidates(config, stats)  # (P,)
    groups = train.select_groups(config, candidates, values, stats)
    kept = train.members_of(groups, trajectories, config.group_size)
    kept_fraction = len(kept) / len(trajectories)
    metrics = train.update(learner, train.build_experience(learner, kept, kept_fraction))
    return trajectories, kept, metrics


def compare_with_cpu(engine_name: str, dtype: str, device: torch.device) -> Values:
    """Run one iteration on `device`, and compare it with the iteration of `reference_on_cpu`.

    The update trains on the trajectories that the CPU sampled and kept. The torch engine samples
    the same tokens on both devices, except where rounding changes a token.
    """
    expected, kept, expected_metrics = reference_on_cpu(device.type)
    config = tiny_config(device, engine_name, dtype)
    # reference_on_cpu switched on deterministic algorithms. On a GPU, this call switches them off.
    parallel.init_distributed(config)
    learner, engine, chat = start(config, device)
    trajectories = train.collect_rollouts(learner, engine, chat)
    difference = engine_difference(learner, trajectories)
    kept_fraction = len(kept) / len(expected)
    metrics = train.update(learner, train.build_experience(learner, kept, kept_fraction))
    pairs = zip(trajectories, expected, strict=True)
    num_same = sum(here.ids == there.ids for here, there in pairs)
    limit = train.MAX_LOGPROB_DIFF[learner.dtype]
    problems = differing_metrics(metrics, expected_metrics, TOLERANCES[dtype])
    if difference.mean() > limit:
        problems.append(f"the log-probs of engine and trainer differ by more than {limit} nats")
    success = success_of(trajectories)
    if abs(success - success_of(expected)) > 4 * (2 * 0.25 / len(expected)) ** 0.5:
        problems.append("success differs by more than four standard errors")
    return {
        "verdict": "; ".join(problems) or "agrees with the CPU",
        "same trajectories": num_same / len(expected),
        "success": success,
        "success, CPU": success_of(expected),
        "grad_norm": metrics["grad_norm"],
        "grad_norm, CPU": expected_metrics["grad_norm"],
        "engine and trainer, mean nats": float(difference.mean()),
        "max nats": float(difference.max()),
    }


def success_of(trajectories: Sequence[Trajectory]) -> float:
    return sum(trajectory.success for trajectory in trajectories) / len(trajectories)


def engine_difference(learner: Learner, trajectories: Sequence[Trajectory]) -> torch.Tensor:
    """Return |log-prob of engine - log-prob of trainer| of each sampled token, (R,) nats."""
    config = learner.config
    with torch.no_grad():
        logprobs, _ = parallel.forward_sequences(
            learner.policy, trajectories, config, config.temperature
        )
    sampled = [logprob for trajectory in trajectories for logprob in trajectory.rollout_logprobs]
    return (logprobs.cpu() - torch.tensor(sampled)).abs()


def differing_metrics(metrics: Values, expected: Values, tolerance: float) -> list[str]:
    """Compare each metric in COMPARED with its value on the CPU (`expected`). Return a sentence
    for each metric whose relative difference is NaN or larger than `tolerance`."""
    problems = []
    for key in COMPARED:
        found = metrics[key]
        wanted = expected[key]
        if not abs(found - wanted) <= tolerance * abs(wanted):
            problems.append(f"{key} is {found:.4g}, and {wanted:.4g} on the CPU")
    return problems


# ---------- FSDP2, checkpoints


def restart_of(config: Config, device: torch.device) -> Values:
    """Update a learner, save checkpoints, load one into a new learner, and compare the weights."""
    sizes = sizes_for(device)
    model = load_or_build(config, device)
    learner = Learner(config, model, None)
    later_tokens = sizes.later_tokens["W2"]
    vocabulary = model.config.vocab_size
    sizes = sizes._replace(shape={"vocab_size": vocabulary}, num_groups=2)
    trajectories = bench_gpu.workload(sizes, later_tokens)
    train.update(learner, train.build_experience(learner, trajectories))
    learner.step += 1
    on_device = torch.ones((), device=device)
    dist.all_reduce(on_device)
    values: Values = {"backend": dist.get_backend(), "ranks": int(on_device)}
    with TemporaryDirectory(dir=config.out_dir) as folder:
        with Saver(Path(folder), keep=1) as saver:
            save = partial(save_learner, learner, saver)
            values["checkpoint, standstill s"] = seconds_of(save, device)
            values["written after s"] = seconds_of(saver.wait, device)
            # On a GPU, a second checkpoint reuses the pinned memory of the first, so time both.
            learner.step += 1
            values["second standstill s"] = seconds_of(save, device)
        saved = next(Path(folder).glob("checkpoint-*"))
        values["GB"] = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()) / 1e9
        other = Learner(config, load_or_build(config, device), None)
        values["load s"] = seconds_of(lambda: load_learner(other, saved), device)
    pairs = zip(
        parallel.stream_weights(learner.policy), parallel.stream_weights(other.policy), strict=True
    )
    num_different = sum(not torch.equal(mine[1], theirs[1]) for mine, theirs in pairs)
    same = "the restarted learner has the same weights"
    values["verdict"] = f"{num_different} weights differ" if num_different else same
    return values


def load_or_build(config: Config, device: torch.device):
    if config.model == "tiny":
        return load_model("tiny", device=device)[0]
    return build_random(sizes_for(device).shape, device=device)


# ---------- whole iterations


def random_config(config: Config, device: torch.device, engine: str) -> Config:
    """Return settings of PPO on FrozenLake for a model with random weights. On a CPU, groups and
    batches are small, games have few turns, and replies are short.

    With random weights, all scores of a group are equal. By default, the filter drops groups with
    equal scores, so no group would be left. With filter_zero_std=True, the filter also ranks groups
    with equal scores, and keeps some of them."""
    arguments = ["config/frozenlake_ppo.py", "--filter_zero_std=True", f"--engine={engine}"]
    arguments += [f"--device={device.type}", f"--model={config.out_dir}/random_model"]
    if device.type == "cpu":
        arguments += ["--num_groups=4", "--group_size=2", "--batch_size=2", "--max_turns=2"]
        arguments += ["--max_response_tokens=8", "--max_context_tokens=700", "--max_running=8"]
    return load_config([*arguments, f"--out_dir={config.out_dir}"])[0]


def time_iterations(
    config: Config, device: torch.device, num_iterations: int, deadline: float
) -> Values:
    """Time up to `num_iterations` iterations of train.py. After `deadline` no iteration begins,
    except the first.

    The returned medians leave out the first iteration, unless it is the only one."""
    if not Path(config.model).is_dir() and config.model.endswith("/random_model"):
        save_random(Path(config.model), sizes_for(device).shape, device=device)
    learner, engine, chat = start(config, device)
    rows = []
    while len(rows) < num_iterations and (not rows or time.perf_counter() < deadline):
        row, _ = train.iterate(learner, engine, chat, rows)
        rows.append(row)
        print(row, flush=True)
    rows = rows[1:] or rows
    medians = {key: median_of(rows, key) for key in ("rollout_s", "update_s")}
    num_trajectories = config.num_groups * config.group_size
    tokens = num_trajectories * median_of(rows, "response_length")
    return {
        "iterations": len(rows),
        "s an iteration": sum(medians.values()),
        **medians,
        "sampled tokens/s": tokens / medians["rollout_s"],
        "success": median_of(rows, "success"),
    }


def median_of(rows: Sequence[dict], key: str) -> float:
    return float(torch.tensor([row[key] for row in rows], dtype=torch.float64).median())


def time_flagship(config: Config, device: torch.device, deadline: float) -> Values:
    """Time iterations with the pretrained weights of `config.model`. Raises: NotAvailable if this
    machine has no such weights."""
    is_folder = Path(config.model).is_dir()
    if not is_folder and not isinstance(try_to_load_from_cache(config.model, "config.json"), str):
        raise NotAvailable(
            f"the weights of {config.model} are not on this machine; give --model=FOLDER, or run "
            f"hf download {config.model}"
        )
    return time_iterations(config, device, MAX_ITERATIONS, deadline)


if __name__ == "__main__":
    run_main(main)
