"""Tests of several ranks: commands under torchrun, and the test files ranks_*.py on two ranks."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import game_texts
from shared_fixtures import SMALL_RUN
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import eval as evaluation
import train
from dialogue import Chat
from model import Policy
from tools import demonstrations, sft
from tools.sft_config import SftConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_RANKS = ("--standalone", "--nproc_per_node=2")
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or torch.cuda.is_available(),
    reason="needs vLLM's CPU build, which is for Linux only",
)


def launch(arguments, start):
    return subprocess.run(
        [*TORCHRUN, *TWO_RANKS, *arguments],
        env=environment(start),
        text=True,
        timeout=600,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run_alone(arguments, start):
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(start),
        text=True,
        capture_output=True,
    )


def environment(start):
    changes = {"NANORAGEN_TEST_START": str(start), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    return os.environ | changes


def test_fsdp_on_two_ranks(trained_folder):
    done = launch(["-m", "pytest", "-q", "-x", "tests/core/ranks_fsdp.py"], trained_folder)
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count(" passed") == 2


@needs_vllm
def test_vllm_on_two_ranks(trained_folder):
    done = launch(["-m", "pytest", "-q", "-x", "-s", "tests/core/ranks_vllm.py"], trained_folder)
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count(" passed") == 2
    assert "engine steps of 128 trajectories: continuous" in done.stdout


# ---------- whole commands

NODES = [
    "--nnodes=2",
    "--nproc_per_node=2",
    "--rdzv_backend=c10d",
    "--rdzv_endpoint=localhost:29541",
]


def small_settings(path, **changes):
    """Write the settings SMALL_RUN | changes to a config file, and return the file's path. A
    setting of value None is left out."""
    settings = {key: value for key, value in (SMALL_RUN | changes).items() if value is not None}
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    return str(path)


def rows_of(out_dir):
    rows = []
    for line in (Path(out_dir) / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append({k: value for k, value in row.items() if not k.endswith(("_s", "_gib"))})
    return rows


def assert_close(rows, expected):
    assert len(rows) == len(expected) > 0
    noise_of_the_seventh_digit = {"logprob_diff_mean", "logprob_diff_max"}
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - noise_of_the_seventh_digit:
            value = other[key]
            if isinstance(value, float):
                value = pytest.approx(value, rel=1e-3, abs=1e-4)
            assert row[key] == value, key


@pytest.fixture(scope="module")
def one_process(trained_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    changes = dict(model=str(trained_folder), num_iterations=3, num_groups=4)
    arguments = ["train.py", small_settings(folder / "small.py", **changes)]
    train.main([*arguments[1:], f"--out_dir={folder}/out"])
    return rows_of(folder / "out"), arguments, (folder / "out" / "scores.md").read_text()


def test_two_ranks_train_like_one_and_one_continues(one_process, trained_folder, tmp_path, capsys):
    rows, arguments, scores = one_process
    launched = [*arguments, f"--out_dir={tmp_path}/out"]
    done = launch([*launched, "--num_iterations=2"], trained_folder)
    assert done.returncode == 0, done.stdout
    assert_close(rows_of(tmp_path / "out"), rows[:2])
    assert done.stdout.count("/2 reward") == 2
    train.main(launched[1:])
    assert "from iteration 2" in capsys.readouterr().out
    assert_close(rows_of(tmp_path / "out"), rows)
    assert (tmp_path / "out" / "scores.md").read_text() == scores


def test_two_nodes_train_like_one_process(one_process, trained_folder, tmp_path):
    """Two torchrun agents on this machine act as two nodes."""
    rows, arguments, _ = one_process
    command = [*TORCHRUN, *NODES, *arguments, f"--out_dir={tmp_path}/out"]
    nodes = [start_node(command, trained_folder) for _ in range(2)]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(outputs)
    assert sum(output.count("/3 reward") for output in outputs) == 3
    assert sum(output.count("4 ranks as replicate=2, shard=2") for output in outputs) == 1
    assert_close(rows_of(tmp_path / "out"), rows)


def start_node(command, start):
    return subprocess.Popen(
        command,
        env=environment(start),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_another_number_of_ranks_changes_no_loss(trained_folder, tmp_path):
    arguments = ["tests/helpers/resize.py", str(trained_folder), str(tmp_path)]
    done = run_alone(arguments, trained_folder)
    assert done.returncode == 0 and "losses differ by " in done.stdout, done.stderr[-3000:]


# ---------- the Qwen2.5 path


# Like Qwen2.5's template, this template adds a default system prompt. The prompts of a run must not
# contain this default.
QWEN_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are Qwen.<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}"
)


def qwen_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(game_texts(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = QWEN_TEMPLATE
    return fast


def save_qwen(path):
    """Save a small Qwen2.5 with sampling defaults that must have no effect. A short SFT teaches the
    format of replies."""
    tokenizer = qwen_tokenizer()
    torch.manual_seed(0)
    shape = Qwen2Config(
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
    small = Qwen2ForCausalLM(shape)
    lake = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
    config = SftConfig(
        env=lake, sft_lr=2e-2, sft_muon_lr=0.02, sft_steps=120, sft_noise=0.3, device="cpu"
    )
    demos = [demonstrations.demonstration(config, Chat(tokenizer), i) for i in range(256)]

    def packs_of(step):
        first = 8 * step % 256
        return [demos[first : first + 8]]

    sft.imitate(Policy(small), packs_of, config)
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
    save_qwen(tmp_path / "qwen")
    changes = dict(
        model=tmp_path / "qwen",
        out_dir=tmp_path / "out",
        num_groups=4,
        group_size=4,
        batch_size=4,
        eval_size=8,
        num_iterations=2,
        eval_every=2,
        max_running=16,
        max_response_tokens=100,
        device="cpu",
        num_threads=1,
    )
    settings = [f"--{key}={value}" for key, value in changes.items()]
    done = launch(["train.py", "config/frozenlake_ppo.py", *settings], tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "2 ranks as shard=2\n" in done.stdout and "warning" not in done.stdout
    rows = rows_of(tmp_path / "out")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        # The log-probs of vLLM and of the trainer agree only if vLLM ignores the top_k and the
        # repetition penalty of the model's folder.
        assert row["kept_groups"] == 1 and row["grad_norm"] > 0 and row["logprob_diff_max"] < 1e-4
        assert row["valid_frac"] > 0.3
    assert "after RL" in (tmp_path / "out" / "scores.md").read_text()
    played = (tmp_path / "out" / "trajectories.jsonl").read_text()
    assert "You are Qwen" not in played and "<think>" in played
    lines = (tmp_path / "out" / "eval_final.jsonl").read_text().splitlines()
    assert len(lines) == 8
    for line in lines:
        assert json.loads(line)["status"] != "out_of_tokens"


# ---------- what goes wrong


def test_one_rank_writes_what_eval_found(trained_folder, tmp_path, capsys):
    settings = small_settings(tmp_path / "small.py", model=str(trained_folder), num_groups=4)
    two, one = tmp_path / "two.json", tmp_path / "one.json"
    done = launch(["eval.py", settings, f"--json={two}"], trained_folder)
    assert done.returncode == 0 and done.stdout.count("eval prompts, T=0.5") == 1, done.stdout
    evaluation.main([settings, f"--json={one}"])
    assert capsys.readouterr().out.count("eval prompts, T=0.5") == 1
    name = str(trained_folder)
    successes = [json.loads(path.read_text())[name]["successes"] for path in (two, one)]
    assert successes[0] == successes[1]


def kill_rank_1(node):
    children = subprocess.run(["pgrep", "-P", str(node.pid)], capture_output=True, text=True)
    pids = {}
    for pid in children.stdout.split():
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        rank = variables.split(b"\0RANK=")[1].split(b"\0")[0]
        pids[rank] = int(pid)
    os.kill(pids[b"1"], signal.SIGKILL)


def test_a_killed_rank_is_healed_or_named(trained_folder, tmp_path):
    changes = dict(num_iterations=10_000, eval_every=0, save_every=1)
    settings = small_settings(tmp_path / "small.py", model=str(trained_folder), **changes)
    launcher = [*TORCHRUN, *TWO_RANKS, "--max-restarts=1"]
    command = [*launcher, "train.py", settings, f"--out_dir={tmp_path}/out"]
    node = start_node(command, trained_folder)
    said = []
    kills = 0
    for line in node.stdout:
        said.append(line)
        if re.search(r"/10000 reward", line) and len(rows_of(tmp_path / "out")) >= 3 * (kills + 1):
            kill_rank_1(node)
            kills += 1
            if kills == 2:
                break
    # The loop may leave lines in the buffer of node.stdout. communicate(timeout=...) would miss
    # these lines.
    rest = node.stdout.read()
    node.wait(timeout=60)
    assert node.returncode != 0
    assert "rank      : 1 (local_rank: 1)" in rest.split("Root Cause")[1] and "SIGKILL" in rest
    went_on = [int(line.split()[-1]) for line in said if line.startswith("continuing")]
    assert len(went_on) == 1 and went_on[0] >= 1, "".join(said)
    rows = rows_of(tmp_path / "out")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


@needs_vllm
@pytest.mark.parametrize(
    "setting, sentence",
    [
        (
            "--max_running=100000000",
            "lower max_running or max_context_tokens, which size the KV cache",
        ),
        (
            "--max_context_tokens=5000",
            "max_context_tokens is 5000 and the model has 4096 positions; lower it",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_one_sentence(trained_folder, tmp_path, setting, sentence):
    changes = dict(model=str(trained_folder), engine="vllm", micro_batch_tokens=5000)
    settings = small_settings(tmp_path / "small.py", **changes)
    arguments = ["train.py", settings, setting, f"--out_dir={tmp_path}/out"]
    done = run_alone(arguments, trained_folder)
    last_line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and sentence in last_line, done.stderr
    assert last_line.startswith("error: ") and not (tmp_path / "out").exists()
