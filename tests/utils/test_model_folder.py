"""Tests of hostile and damaged model folders: most are refused, and none runs code."""

from configurator import UserError

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import add_lora, load_model

ROOT = Path(__file__).parents[2]
NORM = "model.norm.weight"
FAMILIES_SENTENCE = (
    "expected one of qwen2 (Qwen2.5), qwen3 (dense Qwen3), llama (SmolLM2), smollm3 (SmolLM3), "
    "with a ChatML tokenizer"
)


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(ROOT / "base", tmp_path / "model"))


def refusal(folder):
    with pytest.raises(UserError) as error:
        load_model(str(folder))
    text = str(error.value)
    given = f"model={str(folder)!r}"
    assert text.startswith(given) and "\n" not in text
    return text.removeprefix(given).removeprefix(":").strip()


def edit(path, changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def rewrite(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


# ---------- config.json


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"model_type": "gpt2"}, f"is of type 'gpt2'; {FAMILIES_SENTENCE}"),
        ({"model_type": ["qwen2"]}, f"is of type \"['qwen2']\"; {FAMILIES_SENTENCE}"),
        ({"model_type": None}, f"is of type 'None'; {FAMILIES_SENTENCE}"),
        ({"hidden_size": 0}, "hidden_size in config.json must be a whole number over 0, got 0"),
        (
            {"vocab_size": "many"},
            "vocab_size in config.json must be a whole number over 0, got 'many'",
        ),
        ({"head_dim": 0}, "head_dim in config.json must be a whole number over 0, got 0"),
        (
            {"hidden_size": 99},
            "model.embed_tokens.weight has shape [768, 96], but its config.json asks for [768, 99]",
        ),
        (
            {"num_key_value_heads": 2},
            "num_attention_heads in config.json must be a multiple of num_key_value_heads (2), "
            "got 3",
        ),
        (
            {"num_hidden_layers": 10**12},
            "has 50 weights, too few for the 1000000000000 layers of its config.json",
        ),
        (
            {"num_hidden_layers": 5, "layer_types": None},
            "has no weight 'model.layers.4.self_attn.q_proj.weight'",
        ),
        (
            {"intermediate_size": 10**12},
            "model.layers.0.mlp.gate_proj.weight has shape [288, 96], "
            "but its config.json asks for [1000000000000, 96]",
        ),
        ({"tie_word_embeddings": False}, "has no weight 'lm_head.weight'"),
        (
            {"rms_norm_eps": math.nan},
            "rms_norm_eps in config.json must be a decimal number over 0, got nan",
        ),
        (
            {"hidden_act": "evil"},
            "could not be loaded (KeyError: 'evil')",
        ),
    ],
)
def test_a_wrong_config_is_refused(folder, changes, said):
    edit(folder / "config.json", changes)
    assert refusal(folder) == said


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 10**5, b"\xff\xfe", b"NaN"])
def test_what_is_no_json_is_refused(folder, name, content):
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    assert refusal(folder)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_on_the_hub_is_not_loaded(folder, key):
    """transformers alone would download and run the attention kernel that config.json names."""
    edit(folder / "config.json", {key: "somebody/kernel"})
    model, _ = load_model(str(folder))
    assert model.config._attn_implementation == "layout"


# ---------- weights


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda w: w | {NORM: torch.full((96,), math.nan)},
            f"has NaN or infinite numbers in {NORM}",
        ),
        (
            lambda w: w | {NORM: torch.full((96,), -math.inf)},
            f"has NaN or infinite numbers in {NORM}",
        ),
        (lambda w: w | {"extra": torch.zeros(3)}, "has a weight 'extra', unknown to its config"),
        (
            lambda w: w | {"lm_head.weight": 2 * w["model.embed_tokens.weight"]},
            "has a head of its own, but its config.json sets tie_word_embeddings",
        ),
        (
            lambda w: {name: tensor.to(torch.int8) for name, tensor in w.items()},
            "is of type I8; expected F32, F16, BF16",
        ),
        (
            lambda w: {name.removeprefix("model."): tensor for name, tensor in w.items()},
            "has a weight 'embed_tokens.weight', unknown to its config.json",
        ),
        (
            lambda w: {name: tensor for name, tensor in w.items() if "layers.1." not in name},
            "has no weight 'model.layers.1.self_attn.q_proj.weight'",
        ),
    ],
)
def test_wrong_weights_are_refused(folder, change, said):
    rewrite(folder, change)
    assert said in refusal(folder)


@pytest.mark.parametrize("num_bytes", [0, 7, 100, 2_026_431])
def test_a_cut_weight_file_is_refused(folder, num_bytes):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    assert refusal(folder).startswith("model.safetensors is damaged (SafetensorError: ")


def test_pickled_weights_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert refusal(folder) == (
        "has no model.safetensors; files of other formats, such as pytorch_model.bin, are not "
        "loaded, because they can run code"
    )


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "pytorch_model.bin", 3, ".", "a\0", "a" * 5000]
)
def test_an_index_names_files_of_its_folder_only(folder, file):
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = {"weight_map": {NORM: file, "model.embed_tokens.weight": "part.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(folder).endswith("which is no file of the folder")


def test_weights_in_several_files_are_loaded(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number, name in enumerate(weights):
        file = f"part-{number % 2}.safetensors"
        weight_map[name] = file
    for file in ("part-0.safetensors", "part-1.safetensors"):
        part = {name: weights[name] for name, other in weight_map.items() if other == file}
        save_file(part, folder / file, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    loaded, _ = load_model(str(folder))
    assert torch.equal(loaded.model.norm.weight, weights[NORM])


def test_an_equal_head_may_be_stored_beside_its_embedding(folder):
    rewrite(folder, lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"].clone()})
    loaded, _ = load_model(str(folder))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


# ---------- tokenizers


def test_a_folder_without_tokenizer_is_refused(folder):
    """transformers alone would make an empty tokenizer."""
    (folder / "tokenizer.json").unlink()
    assert refusal(folder) == "has no tokenizer.json"


def test_a_token_needs_an_embedding(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["zzzz"] = 10**6
    path.write_text(json.dumps(content))
    assert refusal(folder) == "has 768 embeddings, but its tokenizer has a token with id 1000000"


def test_a_tokenizer_must_give_a_text_back(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] |= {"vocab": {}, "merges": []}
    path.write_text(json.dumps(content))
    wanted = r"its tokenizer encodes 'assistant\nUp || 1' and decodes it as ' 1'"
    assert refusal(folder) == wanted


# ---------- code in a folder


@pytest.mark.slow
def test_a_folder_runs_no_code(folder, tmp_path):
    """transformers alone would take "y" on standard input as consent to run the folder's code."""
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')\n"
    for name in ("evil.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    edit(folder / "config.json", {"auto_map": {"AutoConfig": "evil.A", "AutoModel": "evil.B"}})
    tokenizer = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.C", "evil.C"]}}
    edit(folder / "tokenizer_config.json", tokenizer)
    program = "import sys; from model import load_model; load_model(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        input="y\ny\n",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not marker.exists() and "y/N" not in done.stdout + done.stderr


def test_an_adapter_does_not_load_another_model(folder):
    edit_to = {"peft_type": "LORA", "base_model_name_or_path": "someone/else"}
    (folder / "adapter_config.json").write_text(json.dumps(edit_to))
    assert refusal(folder) == (
        "holds an adapter; merge the adapter into its model, and give the merged model"
    )


# ---------- torch is not needed


def test_the_check_needs_no_torch():
    program = (
        "import sys; from utils import model_folder; from pathlib import Path\n"
        "model_folder.check_folder(Path('base'))\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


# ---------- LoRA


def test_a_rank_above_the_width_of_the_model_is_refused():
    loaded, _ = load_model("tiny")
    with pytest.raises(UserError) as error:
        add_lora(loaded, 97, seed=0)
    assert str(error.value) == "lora_rank is 97, more than the model's hidden size, 96; lower it"
