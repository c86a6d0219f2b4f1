"""
Tests of several ranks: whole commands under torchrun, and the test files ranks_*.py, which run on two ranks each.

    python -m pytest -q tests/test_parallel.py
"""

from configurator import Config

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import SMALL_RUN
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import model
import parallel
from model import Policy
from rollout import Chat
from tools import sft

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or torch.cuda.is_available(),
    reason="needs vLLM's CPU build, which is for Linux only",
)


def launch(arguments, start, **options):
    """Run torchrun with the arguments; returns the finished process, output and errors in one text."""
    options = dict(cwd=ROOT, env=environment(start), text=True, timeout=600) | options
    return subprocess.run(
        [*TORCHRUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )


def environment(start):
    return os.environ | {
        "NANORAGEN_TEST_START": str(start),
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
    }


def test_fsdp_on_two_ranks(trained_folder):
    done = launch(
        ["--standalone", "--nproc_per_node=2", "-m", "pytest", "-q", "-x", "tests/ranks_fsdp.py"],
        trained_folder,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count(" passed") == 2


@needs_vllm
def test_vllm_on_two_ranks(trained_folder):
    done = launch(
        [
            "--standalone",
            "--nproc_per_node=2",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-s",
            "tests/ranks_vllm.py",
        ],
        trained_folder,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert (
        done.stdout.count(" passed") == 2
        and "engine steps of 128 trajectories: continuous" in done.stdout
    )


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="the kernel's own figure is read on Linux only"
)
def test_peak_memory_is_the_kernels():
    found = parallel.peak_memory(torch.device("cpu"))
    kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    assert found == pytest.approx(kib / 2**20, rel=0.02)


# ---------- whole commands

NODES = [
    "--nnodes=2",
    "--nproc_per_node=2",
    "--rdzv_backend=c10d",
    "--rdzv_endpoint=localhost:29541",
]


def small_settings(path, **changes):
    """A config file with the small settings; returns its path."""
    settings = {key: value for key, value in (SMALL_RUN | changes).items() if value is not None}
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    return str(path)


def rows_of(out_dir):
    rows = [json.loads(line) for line in (Path(out_dir) / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.endswith(("_s", "_gib"))}
        for row in rows
    ]


def assert_close(rows, expected):
    assert len(rows) == len(expected) > 0
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - {
            "logprob_diff_mean",
            "logprob_diff_max",
        }:  # noise of the seventh digit
            is_number = isinstance(other[key], float)
            assert row[key] == (
                pytest.approx(other[key], rel=1e-3, abs=1e-4) if is_number else other[key]
            ), key


@pytest.fixture(scope="module")
def one_process(trained_folder, tmp_path_factory):
    """The rows of three iterations in one process, and the arguments of train.py but --out_dir."""
    folder = tmp_path_factory.mktemp("one")
    arguments = [
        "train.py",
        small_settings(
            folder / "small.py", model=str(trained_folder), num_iterations=3, num_groups=4
        ),
    ]
    done = subprocess.run(
        [sys.executable, *arguments, f"--out_dir={folder}/out"],
        cwd=ROOT,
        text=True,
        env=environment(trained_folder),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return rows_of(folder / "out"), arguments, (folder / "out" / "scores.md").read_text()


def test_two_ranks_train_like_one_and_one_continues(one_process, trained_folder, tmp_path):
    rows, arguments, scores = one_process
    launched = [*arguments, f"--out_dir={tmp_path}/out"]
    done = launch(
        ["--standalone", "--nproc_per_node=2", *launched, "--num_iterations=2"], trained_folder
    )
    assert done.returncode == 0, done.stdout
    assert_close(rows_of(tmp_path / "out"), rows[:2])
    assert done.stdout.count("/2 reward") == 2  # one rank reports
    done = subprocess.run(
        [sys.executable, *launched],
        cwd=ROOT,
        env=environment(trained_folder),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0 and "from iteration 2" in done.stdout, done.stderr
    assert_close(rows_of(tmp_path / "out"), rows)
    assert (tmp_path / "out" / "scores.md").read_text() == scores


def test_two_nodes_train_like_one_process(one_process, trained_folder, tmp_path):
    """Two agents on this machine meet as two nodes: a mesh of (replicate, shard)."""
    rows, arguments, _ = one_process
    command = [*TORCHRUN, *NODES, *arguments, f"--out_dir={tmp_path}/out"]
    options = dict(cwd=ROOT, env=environment(trained_folder), text=True, stderr=subprocess.STDOUT)
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, **options) for _ in range(2)]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(outputs)
    assert sum(output.count("/3 reward") for output in outputs) == 3
    assert sum(output.count("4 ranks as replicate=2, shard=2") for output in outputs) == 1
    assert_close(rows_of(tmp_path / "out"), rows)


@needs_vllm
def test_the_flagship_on_two_ranks_with_vllm(trained_folder, tmp_path):
    """The command of README at reduced length: the base model, rollouts, updates, evaluation."""
    short = {
        key: SMALL_RUN[key]
        for key in (
            "num_groups",
            "group_size",
            "batch_size",
            "filter_keep",
            "eval_size",
            "num_iterations",
        )
    }
    files = [ROOT / "train.py", ROOT / "config/frozenlake_ppo.py", ROOT / "config/tiny.py"]
    command = ["--standalone", "--nproc_per_node=2", *map(str, files), "--engine=vllm"]
    changed = short | dict(model=ROOT / "base")
    arguments = [*command, *(f"--{key}={value}" for key, value in changed.items())]
    done = launch(arguments, trained_folder, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "2 ranks as shard=2\n" in done.stdout
    out_dir = tmp_path / "out/frozenlake_ppo"
    rows = rows_of(out_dir)
    assert [row["step"] for row in rows] == [1, 2]
    updated = [row for row in rows if row["kept_groups"]]
    assert updated and all(
        row["logprob_diff_max"] < 1e-4 and row["grad_norm"] > 0 for row in updated
    )
    assert "after RL" in (out_dir / "scores.md").read_text() and "warning" not in done.stdout


def test_another_number_of_ranks_changes_no_loss(trained_folder, tmp_path):
    """2, 1 and 2 ranks on recorded trajectories: losses within 1e-5 of one rank's, the same instances asked for."""
    command = [sys.executable, "tests/resize.py", str(trained_folder), str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(trained_folder), text=True, capture_output=True
    )
    assert done.returncode == 0 and "losses differ by " in done.stdout, done.stderr[-3000:]


# ---------- the Qwen2.5 path


def qwen_folder(path):
    """Like Qwen2.5-0.5B-Instruct but small: byte-level BPE without marks for think and answer, a chat template with a
    default system prompt, sampling defaults that must not leak in. It has seen the format of replies for a moment."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    words.train_from_iterator(model._environment_text(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = (
        "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    )
    torch.manual_seed(0)
    shape = dict(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        bos_token_id=0,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=2,
        attn_implementation="layout",
    )
    small = Qwen2ForCausalLM(Qwen2Config(**shape))
    lake = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
    config = Config(
        env=lake, sft_lr=2e-2, sft_muon_lr=0.02, sft_steps=120, sft_noise=0.3, device="cpu"
    )
    demos = [sft.demonstration(config, Chat(tokenizer), i) for i in range(256)]
    eight = lambda step: [[demos[(8 * step + i) % 256] for i in range(8)]]  # noqa: E731
    sft.imitate(Policy(small), eight, config)
    small.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.1,
        top_p=0.3,
        top_k=2,
        repetition_penalty=1.9,
        eos_token_id=[2, 0],
        pad_token_id=0,
    )
    small.save_pretrained(path)
    tokenizer.save_pretrained(path)
    assert len(tokenizer("<think>")["input_ids"]) > 1
    assert json.loads((path / "generation_config.json").read_text())["top_k"] == 2


@needs_vllm
def test_the_qwen_path(tmp_path):
    """The literal command, torchrun train.py config/frozenlake_ppo.py, with nothing changed but sizes and device."""
    qwen_folder(tmp_path / "qwen")
    sizes = dict(
        num_groups=4,
        group_size=4,
        batch_size=4,
        eval_size=8,
        num_iterations=2,
        eval_every=2,
        max_running=16,
        max_response_tokens=100,
        num_samples=8,
        device="cpu",
        num_threads=1,
    )
    changed = sizes | dict(model=tmp_path / "qwen", out_dir=tmp_path / "out")
    command = [
        "train.py",
        "config/frozenlake_ppo.py",
        *(f"--{key}={value}" for key, value in changed.items()),
    ]
    done = launch(command, tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    rows = rows_of(tmp_path / "out")
    assert [row["step"] for row in rows] == [1, 2]
    for row in (
        rows
    ):  # sampled from softmax(logits / T) of the trainer's model: no top_k, no repetition penalty
        assert row["kept_groups"] == 1 and row["grad_norm"] > 0 and row["logprob_diff_max"] < 1e-4
        assert row["valid_frac"] > 0.3  # tags of several tokens are read
    played = (tmp_path / "out" / "trajectories.jsonl").read_text()
    assert "You are Qwen" not in played and "<think>" in played
    records = [
        json.loads(line)
        for line in (tmp_path / "out" / "eval_final.jsonl").read_text().splitlines()
    ]
    assert len(records) == 8 and all(record["status"] != "out_of_tokens" for record in records)


# ---------- what goes wrong


def test_one_rank_writes_what_eval_found(trained_folder, tmp_path):
    settings = small_settings(tmp_path / "small.py", model=str(trained_folder), num_groups=4)
    found = []
    for launcher in ([*TORCHRUN, "--standalone", "--nproc_per_node=2"], [sys.executable]):
        path = tmp_path / f"{len(launcher)}.json"
        done = subprocess.run(
            [*launcher, "eval.py", settings, f"--json={path}"],
            cwd=ROOT,
            text=True,
            env=environment(trained_folder),
            capture_output=True,
        )
        assert done.returncode == 0 and done.stdout.count("eval prompts, T=0.5") == 1, done.stderr
        found.append(json.loads(path.read_text())[str(trained_folder)])
    assert found[0]["successes"] == found[1]["successes"]


def kill_rank_1(node):
    children = subprocess.run(
        ["pgrep", "-P", str(node.pid)], capture_output=True, text=True
    ).stdout.split()
    ranks = {
        Path(f"/proc/{pid}/environ").read_bytes().split(b"\0RANK=")[1].split(b"\0")[0]: pid
        for pid in children
    }
    os.kill(int(ranks[b"1"]), signal.SIGKILL)


def test_a_killed_rank_is_healed_or_named(trained_folder, tmp_path):
    """torchrun starts all ranks again once, and they go on; then it gives up."""
    settings = small_settings(
        tmp_path / "small.py",
        model=str(trained_folder),
        num_iterations=10_000,
        eval_every=0,
        save_every=1,
    )
    command = [
        *TORCHRUN,
        "--standalone",
        "--nproc_per_node=2",
        "--max-restarts=1",
        "train.py",
        settings,
    ]
    node = subprocess.Popen(
        [*command, f"--out_dir={tmp_path}/out"],
        cwd=ROOT,
        env=environment(trained_folder),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, kills = [], 0
    for line in node.stdout:
        said.append(line)
        if re.search(r"/10000 reward", line) and len(rows_of(tmp_path / "out")) >= 3 * (kills + 1):
            kill_rank_1(node)
            kills += 1
            if kills == 2:
                break
    began = time.monotonic()
    rest = node.stdout.read()  # not communicate, which would leave out what the loop has read ahead
    node.wait(timeout=60)
    assert node.returncode != 0 and time.monotonic() - began < 45
    assert "rank      : 1 (local_rank: 1)" in rest.split("Root Cause")[1] and "SIGKILL" in rest
    went_on = [int(line.split()[-1]) for line in said if line.startswith("continuing")]
    assert len(went_on) == 1 and went_on[0] >= 1, "".join(said)
    assert [row["step"] for row in rows_of(tmp_path / "out")] == [
        *range(1, len(rows_of(tmp_path / "out")) + 1)
    ]


@needs_vllm
@pytest.mark.parametrize(
    "setting, sentence",
    [
        (
            "--max_running=100000000",
            "lower max_running or max_context_tokens, which size its KV cache",
        ),
        (
            "--max_context_tokens=5000",
            "max_context_tokens is 5000 and the model has 4096 positions; lower it",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_one_sentence(trained_folder, tmp_path, setting, sentence):
    settings = small_settings(
        tmp_path / "small.py", model=str(trained_folder), engine="vllm", micro_batch_tokens=5000
    )
    done = subprocess.run(
        [sys.executable, "train.py", settings, setting, f"--out_dir={tmp_path}/out"],
        cwd=ROOT,
        env=environment(trained_folder),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and sentence in done.stderr.splitlines()[-1], done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and not (tmp_path / "out").exists()
