"""
Tests of LoRA: its start, what it trains, how it is merged, saved and continued, against peft and Hugging Face. CPU.

    python -m pytest -q tests/test_lora.py
"""

import json
import sys

import pytest
import torch
from conftest import backward, make_learner, small_config
from peft import PeftModel
from test_train import assert_same_checkpoint, played_and_targets, run, untimed
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import AutoModelForCausalLM

import model
import parallel
import train
from rollout import pack
from support import checkpoint
from support.checkpoint import Saver

RANK = 4
PARTS = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
]
NAMES = {
    f"layers.{i}.{part}.lora_{x}.default.weight" for i in range(2) for part in PARTS for x in "AB"
}


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


def frozen_of(module):
    return {
        n.replace(".base_layer", ""): p.full_tensor()
        for n, p in module.named_parameters()
        if not p.requires_grad
    }


@pytest.fixture(scope="module")
def updated(trained_folder, tmp_path_factory):
    """A learner after two optimizer steps, what it learned from, and its checkpoint."""
    folder = tmp_path_factory.mktemp("lora")
    parallel.init_distributed(small_config())
    learner = make_learner(trained_folder, lora_rank=RANK, learning_rate=1e-2, bias=True)
    kept, targets = played_and_targets(learner)
    train.update(learner, kept, targets)
    learner.step = 1
    with Saver(folder, 2) as saver:
        learner.save(saver)
    checkpoint.export(folder / "policy", learner.policy, learner.tokenizer)
    return learner, kept, folder


def test_lora_starts_as_the_base(trained_folder):
    learner, plain = (make_learner(trained_folder, lora_rank=rank) for rank in (RANK, 0))
    kept, _ = played_and_targets(learner)
    for found, expected in zip(
        *(parallel.score_tokens(x.policy, kept, x.config, 1.0) for x in (learner, plain)),
        strict=True,
    ):
        assert torch.equal(found, expected)
    streams = (dict(parallel.stream_weights(x.policy)) for x in (learner, plain))
    for (name, weight), (other, expected) in zip(
        *(stream.items() for stream in streams), strict=True
    ):
        assert name == other and torch.equal(weight, expected)


def test_only_adapters_and_value_head_get_gradients(trained_folder):
    learner = make_learner(trained_folder, lora_rank=RANK)
    kept, targets = played_and_targets(learner)
    backward(learner, kept, targets)
    wanted = {
        "policy": {f"model.model.{name}" for name in NAMES},
        "critic": {f"backbone.{name}" for name in NAMES} | {"value_head.weight", "value_head.bias"},
    }
    for key, module in learner.modules.items():
        assert {name for name, p in module.named_parameters() if p.grad is not None} == wanted[key]
        assert sum(len(group["params"]) for group in learner.optimizers[key].param_groups) == len(
            wanted[key]
        )


def test_a_frozen_head_changes_no_other_gradient():
    hidden, weight = torch.randn(5, 8), torch.randn(11, 8)
    found = []
    for is_trained in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(is_trained)
        logprobs, entropy = model.chunked_logprobs(h, w, torch.arange(5), chunk=2)
        (logprobs.sum() + entropy.sum()).backward()
        assert (w.grad is not None) == is_trained
        found.append(h.grad)
    assert torch.equal(*found) and found[0].abs().sum() > 1


def test_an_update_leaves_the_base_and_is_merged_into_the_stream(updated, trained_folder):
    learner, _, folder = updated
    base = model.load_model(str(trained_folder))[0].state_dict()
    for module in (learner.policy.model, learner.critic.backbone):
        prefix = "" if module is learner.policy.model else "model."
        frozen = frozen_of(module)
        assert (
            len(frozen) == 1 + 2 * (7 + 3 + 2) + 1
        )  # embedding; matrices, biases, norms of a layer; norm
        assert all(torch.equal(weight, base[prefix + name]) for name, weight in frozen.items())
    settings = json.loads((folder / "policy/adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (RANK, RANK)
    own = {name: p.full_tensor().double() for name, p in learner.policy.model.named_parameters()}
    for dtype in (torch.float32, torch.bfloat16):
        merged = dict(parallel.stream_weights(learner.policy, dtype))
        assert merged.keys() == base.keys()
        for name, weight in merged.items():
            part, expected = name.removesuffix(".weight"), base[name].double()
            if part.endswith("_proj"):
                b, a = (own[f"{part}.lora_{x}.default.weight"] for x in "BA")
                expected = expected + settings["lora_alpha"] / settings["r"] * b @ a
                assert (expected - base[name]).abs().max() > 1e-3
            rtol = 1e-6 if dtype == torch.float32 else 2**-8
            torch.testing.assert_close(weight.double(), expected, rtol=rtol, atol=1e-6)


@torch.no_grad()
def logprobs_of(plain, t):
    """Of the sampled tokens of one trajectory, by Hugging Face's own forward."""
    batch = pack([t])
    logp = plain(input_ids=batch.ids[None]).logits[0].log_softmax(-1)
    return logp[batch.response_index - 1, batch.ids[batch.response_index]]


def test_the_policy_folder_is_plain_and_the_adapter_is_for_peft(updated, trained_folder):
    learner, kept, folder = updated
    expected = torch.cat(
        [parallel.score_tokens(learner.policy, [t], learner.config, 1.0)[0] for t in kept]
    )
    merged, base = (
        AutoModelForCausalLM.from_pretrained(path) for path in (folder / "policy", trained_folder)
    )
    assert merged.config.to_dict().keys() == base.config.to_dict().keys()
    before = torch.cat([logprobs_of(base, t) for t in kept])
    assert (expected - before).abs().max() > 0.05  # there was something to learn
    torch.testing.assert_close(
        torch.cat([logprobs_of(merged, t) for t in kept]), expected, rtol=0, atol=1e-5
    )
    adapted = PeftModel.from_pretrained(base, folder / "policy/adapter")
    torch.testing.assert_close(
        torch.cat([logprobs_of(adapted, t) for t in kept]), expected, rtol=0, atol=1e-5
    )


def test_the_state_has_only_what_is_trained(updated):
    saved = (
        HuggingFaceStorageReader(str(updated[2] / "checkpoint-000001/state"))
        .read_metadata()
        .state_dict_metadata
    )
    weights = {name.split(".weights.")[1] for name in saved if ".weights." in name}
    assert weights == {
        f"{prefix}.{name}" for name in NAMES for prefix in ("model.model", "backbone")
    } | {"value_head.weight", "value_head.bias"}
    moments = {name.split(".moments.")[1] for name in saved if ".moments." in name}
    assert moments == {f"{name}.{x}" for name in weights for x in ("exp_avg", "exp_avg_sq", "step")}


def test_a_run_with_lora_continues_bit_by_bit(trained_folder, tmp_path, capsys):
    settings = dict(lora_rank=RANK, learning_rate=1e-2, eval_every=1)
    rows = run(tmp_path / "whole", trained_folder, num_iterations=2, **settings)
    # a layer has (64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 192) = 1,216 rows and columns; head: 64 + 1
    out = capsys.readouterr().out
    assert (
        "policy: 9,728 of 157,760 parameters are trained" in out
    )  # 2 * 4 * 1,216 and 148,032 of the base
    assert "critic: 9,793 of 157,825 parameters are trained" in out
    assert all(
        row["grad_norm"] > 0 and row["logprob_diff_mean"] < 1e-5 for row in rows
    )  # the engine has it merged
    run(tmp_path / "split", trained_folder, num_iterations=1, **settings)
    assert untimed(
        run(tmp_path / "split", trained_folder, num_iterations=2, **settings)
    ) == untimed(rows)
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "split")
    assert rows[1]["entropy"] != rows[0]["entropy"]


def test_without_lora_peft_is_not_imported(trained_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)  # an import of it fails
    names = {name for name, _ in make_learner(trained_folder).policy.model.named_parameters()}
    assert (
        names | {"lm_head.weight"} == model.load_model(str(trained_folder))[0].state_dict().keys()
    )
    with pytest.raises(ImportError):
        make_learner(trained_folder, lora_rank=RANK)
