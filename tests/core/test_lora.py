"""Tests of LoRA against peft and Hugging Face: weights, merging, saving, resuming."""

import json
import sys

import pytest
import torch
from learners import backward, collect_and_target, make_learner
from runs import assert_same_checkpoint, run, untimed
from shared_fixtures import small_config
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import AutoModelForCausalLM

import model
import parallel
import train
from packing import pack
from support import checkpoint
from support.checkpoint import Saver

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_rank")]

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


def frozen_weights(module):
    weights = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            weights[name.replace(".base_layer", "")] = parameter.full_tensor()
    return weights


@pytest.fixture(scope="module")
def updated(trained_folder, tmp_path_factory):
    """A learner after two optimizer steps, its trajectories, and the folder with its checkpoint."""
    folder = tmp_path_factory.mktemp("lora")
    parallel.init_distributed(small_config())
    learner = make_learner(trained_folder, lora_rank=RANK, learning_rate=1e-2, bias=True)
    kept, experience = collect_and_target(learner)
    train.update(learner, experience)
    learner.step = 1
    with Saver(folder, 2) as saver:
        checkpoint.save_learner(learner, saver)
    checkpoint.export(folder / "policy", learner.policy, learner.tokenizer)
    return learner, kept, folder


def test_lora_starts_as_the_base(trained_folder):
    learner, plain = (make_learner(trained_folder, lora_rank=rank) for rank in (RANK, 0))
    kept, _ = collect_and_target(learner)
    found = parallel.forward_sequences(learner.policy, kept, learner.config, 1.0)
    expected = parallel.forward_sequences(plain.policy, kept, plain.config, 1.0)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    merged = dict(parallel.stream_weights(learner.policy))
    base = dict(parallel.stream_weights(plain.policy))
    assert list(merged) == list(base)
    for name, weight in merged.items():
        assert torch.equal(weight, base[name])


def test_only_adapters_and_value_head_get_gradients(trained_folder):
    learner = make_learner(trained_folder, lora_rank=RANK)
    kept, experience = collect_and_target(learner)
    backward(learner, experience)
    wanted = {
        "policy": {f"model.model.{name}" for name in NAMES},
        "critic": {f"backbone.{name}" for name in NAMES} | {"value_head.weight", "value_head.bias"},
    }
    for key, module in learner.modules.items():
        assert {name for name, p in module.named_parameters() if p.grad is not None} == wanted[key]
        groups = learner.optimizers[key].param_groups
        assert sum(len(group["params"]) for group in groups) == len(wanted[key])


def test_a_frozen_head_changes_no_other_gradient():
    hidden, weight = torch.randn(5, 8), torch.randn(11, 8)
    found = []
    for is_trained in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(is_trained)
        logprobs, entropy = model.chunked_logprobs(h, w, torch.arange(5), chunk_size=2)
        (logprobs.sum() + entropy.sum()).backward()
        assert (w.grad is not None) == is_trained
        found.append(h.grad)
    assert torch.equal(*found) and found[0].abs().sum() > 1


def test_an_update_leaves_the_base_and_is_merged_into_the_stream(updated, trained_folder):
    learner, _, folder = updated
    base = model.load_model(str(trained_folder))[0].state_dict()
    for module in (learner.policy.model, learner.critic.backbone):
        prefix = "" if module is learner.policy.model else "model."
        frozen = frozen_weights(module)
        # The base has one embedding, two layers and one final norm. A layer has 7 matrices,
        # 3 biases and 2 norms.
        assert len(frozen) == 1 + 2 * (7 + 3 + 2) + 1
        assert all(torch.equal(weight, base[prefix + name]) for name, weight in frozen.items())
    settings = json.loads((folder / "policy/adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (RANK, RANK)
    own = {name: p.full_tensor().double() for name, p in learner.policy.model.named_parameters()}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        merged = dict(parallel.stream_weights(learner.policy, dtype))
        assert merged.keys() == base.keys()
        for name, weight in merged.items():
            part, expected = name.removesuffix(".weight"), base[name].double()
            if part.endswith("_proj"):
                b, a = (own[f"{part}.lora_{x}.default.weight"] for x in "BA")
                expected = expected + settings["lora_alpha"] / settings["r"] * b @ a
                assert (expected - base[name]).abs().max() > 1e-3
            rtol = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps  # one 16-bit step
            torch.testing.assert_close(weight.double(), expected, rtol=rtol, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_update_below_the_resolution_of_16_bits_reaches_the_engine(trained_folder, dtype):
    """The update moves each weight of a projection by 1/20 of the distance between neighbouring
    16-bit numbers. Rounding to nearest would undo the update."""
    learner = make_learner(trained_folder, lora_rank=RANK, dtype=dtype, estimator="grpo")
    rounded = getattr(torch, dtype)
    names = []
    for name, parameter in learner.policy.model.named_parameters():
        local = parameter.to_local()
        if name.endswith("base_layer.weight"):
            local.copy_((2.0**-5 * (1 + torch.rand_like(local))).to(rounded))
            names.append(name.replace(".base_layer", ""))
        elif ".lora_A." in name:
            local.fill_(1.0)
        elif ".lora_B." in name:
            local.fill_(2.0**-5 * torch.finfo(rounded).eps / 20 / RANK)
            local[::2] *= -1
    base = {name: p.full_tensor() for name, p in learner.policy.model.named_parameters()}
    exact = dict(parallel.stream_weights(learner.policy))
    merged = dict(parallel.stream_weights(learner.policy, rounded))
    for name in names:
        start = base[name.replace(".weight", ".base_layer.weight")]
        change = exact[name] - start
        assert change.abs().min() > 0 and torch.equal(exact[name].to(rounded).float(), start)
        arrived = ((merged[name].float() - start) * change.sign()).sum() / change.abs().sum()
        # A matrix has 2,048 or more weights. Rounding at random changes only about 1 in 20
        # weights, so the sum of the changes is not exact.
        assert arrived == pytest.approx(1.0, abs=0.2)
    parallel.sync_weights(learner.engine, learner.policy)
    own = dict(learner.engine.model.named_parameters())
    assert all(torch.equal(own[name], merged[name]) for name in names)


@torch.no_grad()
def plain_logprobs(plain, trajectories):
    logprobs = []
    for trajectory in trajectories:
        batch = pack([trajectory])
        logp = plain(input_ids=batch.ids[None]).logits[0].log_softmax(-1)
        logprobs.append(logp[batch.response_index - 1, batch.ids[batch.response_index]])
    return torch.cat(logprobs)


def test_the_policy_folder_is_plain_and_the_adapter_is_for_peft(updated, trained_folder):
    from peft import PeftModel

    learner, kept, folder = updated
    expected = torch.cat(
        [parallel.forward_sequences(learner.policy, [t], learner.config, 1.0)[0] for t in kept]
    )
    merged = AutoModelForCausalLM.from_pretrained(folder / "policy")
    base = AutoModelForCausalLM.from_pretrained(trained_folder)
    assert merged.config.to_dict().keys() == base.config.to_dict().keys()
    before = plain_logprobs(base, kept)
    assert (expected - before).abs().max() > 0.05
    torch.testing.assert_close(plain_logprobs(merged, kept), expected, rtol=0, atol=1e-5)
    adapted = PeftModel.from_pretrained(base, folder / "policy/adapter")
    torch.testing.assert_close(plain_logprobs(adapted, kept), expected, rtol=0, atol=1e-5)


def test_the_state_has_only_what_is_trained(updated):
    _, _, folder = updated
    reader = HuggingFaceStorageReader(str(folder / "checkpoint-000001/state"))
    saved = reader.read_metadata().state_dict_metadata
    weights = {name.split(".weights.")[1] for name in saved if ".weights." in name}
    policy = {f"model.model.{name}" for name in NAMES}
    critic = {f"backbone.{name}" for name in NAMES}
    assert weights == policy | critic | {"value_head.weight", "value_head.bias"}
    moments = {name.split(".moments.")[1] for name in saved if ".moments." in name}
    assert moments == {f"{name}.{x}" for name in weights for x in ("exp_avg", "exp_avg_sq", "step")}


def test_a_run_with_lora_continues_bit_by_bit(trained_folder, tmp_path, capsys):
    settings = dict(lora_rank=RANK, learning_rate=1e-2, eval_every=1)
    rows = run(tmp_path / "whole", trained_folder, num_iterations=2, **settings)
    # Rank 4 adds 4 * (rows + columns) parameters to a matrix. For the 7 matrices of a layer,
    # rows + columns sum to (64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 192) = 1,216. So two
    # layers add 2 * 4 * 1,216 parameters to the 148,032 of the base. The value head adds 64 + 1.
    out = capsys.readouterr().out
    assert "policy: 9,728 of 157,760 parameters are trained" in out
    assert "critic: 9,793 of 157,825 parameters are trained" in out
    for row in rows:
        assert row["grad_norm"] > 0
        assert row["logprob_diff_mean"] < 1e-5
    run(tmp_path / "split", trained_folder, num_iterations=1, **settings)
    resumed = run(tmp_path / "split", trained_folder, num_iterations=2, **settings)
    assert untimed(resumed) == untimed(rows)
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "split")
    assert rows[1]["entropy"] != rows[0]["entropy"]


def test_without_lora_peft_is_not_imported(trained_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    names = {name for name, _ in make_learner(trained_folder).policy.model.named_parameters()}
    expected = model.load_model(str(trained_folder))[0].state_dict()
    assert names | {"lm_head.weight"} == expected.keys()
    with pytest.raises(ImportError):
        make_learner(trained_folder, lora_rank=RANK)
