"""Tests of random_model.py, and of training with the widths and vocabulary of Qwen2.5-0.5B."""

from configurator import UserError

import json
import math
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig

from dialogue import Chat
from model import load_model
from studies.speed import random_model

SMALL_GROUPS = (
    *("--engine=torch", "--device=cpu", "--num_threads=1"),
    *("--num_groups=1", "--group_size=2", "--batch_size=2", "--max_running=2"),
    *("--filter_keep=1.0", "--filter_zero_std=True", "--num_iterations=1", "--eval_size=1"),
    *("--max_turns=2", "--max_response_tokens=4", "--max_context_tokens=600"),
    "--micro_batch_tokens=1200",
)
MAX_LOGPROB_DIFF = 1e-5  # upper limit of logprob_diff_mean, a mean over tokens, in nats


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    random_model.save_random(folder, {**random_model.QWEN, "num_hidden_layers": 1})
    return folder


def test_the_shape_has_the_parameters_of_qwen():
    network = random_model.build_random(device="meta")
    block = (896 * 18 * 64 + 18 * 64) + 14 * 64 * 896 + 3 * 896 * 4864 + 2 * 896
    assert block == 14_912_384
    expected = 151_936 * 896 + 24 * block + 896
    assert sum(weight.numel() for weight in network.parameters()) == expected == 494_032_768


def test_the_folder_can_be_trained(tmp_path):
    shape = random_model.QWEN | dict(vocab_size=1000, hidden_size=32, intermediate_size=32)
    shape |= dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    random_model.save_random(tmp_path / "a", shape)
    random_model.save_random(tmp_path / "b", shape)
    one, tokenizer = load_model(str(tmp_path / "a"))
    other, _ = load_model(str(tmp_path / "b"))
    assert AutoConfig.from_pretrained(tmp_path / "a").dtype == torch.bfloat16
    assert one.dtype == torch.float32 and torch.equal(one.lm_head.weight, other.lm_head.weight)
    chat = Chat(tokenizer)
    assert chat.decode([900, 950]) == ""  # the tokenizer knows neither token


@pytest.mark.parametrize(
    "arguments, given",
    [([], "nothing"), (["a", "b"], "a b"), (["--layers=2"], "--layers=2"), (["a", "--x"], "a --x")],
)
def test_messages(arguments, given):
    with pytest.raises(ValueError, match=f"give one folder, and --layers=N .*; got {given}$"):
        random_model.main(arguments)


def test_a_random_model_is_written_over_nothing(tmp_path):
    (tmp_path / "config.json").write_text("the settings of a run")
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        random_model.read_random_model([str(tmp_path)])
    with pytest.raises(UserError, match="config.json is a file; give a new folder"):
        random_model.read_random_model([str(tmp_path / "config.json")])
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        given = str(tmp_path / name)
        assert random_model.read_random_model([given]) == (given, None)


@pytest.mark.slow
def test_a_layer_of_qwen_trains_with_lora(qwen_folder, tmp_path):
    """The run needs about 3 GiB of memory, mostly for the vocabulary of 151,936 tokens."""
    out_dir = tmp_path / "out"
    command = [sys.executable, "train.py", "config/frozenlake_ppo.py", "config/models/lora.py"]
    settings = [f"--model={qwen_folder}", f"--out_dir={out_dir}", "--dtype=float32"]
    done = subprocess.run([*command, *settings, *SMALL_GROUPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    assert row["kept_trajectories"] == 2 and row["response_length"] == 8  # 2 turns of 4 tokens
    # An untrained policy is nearly uniform.
    assert row["entropy"] == pytest.approx(math.log(151_936), abs=0.3)
    assert 0 < row["logprob_diff_mean"] < MAX_LOGPROB_DIFF
    assert row["grad_norm"] > 0 and row["grad_norm_critic"] > 0
    assert row["memory_gib"] < 4
    saved = AutoConfig.from_pretrained(out_dir / "policy")
    assert (saved.vocab_size, saved.hidden_size, saved.num_hidden_layers) == (151_936, 896, 1)
