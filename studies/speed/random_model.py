"""Write a model with the shape of Qwen2.5-0.5B and random weights.

    python -m studies.speed.random_model out/qwen  # 494 million parameters, 1 GB on disk
    python -m studies.speed.random_model out/qwen --layers=2     # the same widths and vocabulary
    python train.py config/frozenlake_grpo.py --model=out/qwen --filter_zero_std=True

The model gets the tokenizer of base/, which knows only 768 of the model's 151,936 tokens. All other
tokens decode to nothing. So nearly every reply is malformed, and the scores of a group are equal.
By default, the filter drops all groups with equal scores, so few or no groups are left to train on.
--filter_zero_std=True lets the filter keep such groups.
"""

from configurator import UserError, read_option

from pathlib import Path

from support.terminal import run_main

MAX_LAYERS = 1000  # largest --layers


def read_random_model(argv: list[str]) -> tuple[str, int | None]:
    layers = None
    folders = []
    for argument in argv:
        if argument.startswith("--layers="):
            _, layers = read_option(argument, {"layers": int})
        else:
            folders.append(argument)
    is_legal = layers is None or 1 <= layers <= MAX_LAYERS
    if len(folders) != 1 or folders[0].startswith("--") or not is_legal:
        given = " ".join(argv) or "nothing"
        raise UserError(
            f"give one folder, and --layers=N with N from 1 to {MAX_LAYERS}; got {given}"
        )
    folder = Path(folders[0])
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a new folder")
    if folder.is_dir() and any(folder.iterdir()):  # its files could be overwritten
        raise UserError(f"{folder} is not empty; give a new folder")
    return folders[0], layers


if __name__ == "__main__":
    run_main(read_random_model, kind=None)  # reports mistakes before the slow imports

import shutil

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import model  # noqa: F401  (registers attn_implementation="layout")
from utils.model_folder import BASE

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Source: config.json of Qwen/Qwen2.5-0.5B-Instruct.
QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def build_random(
    shape: dict = QWEN, *, device: torch.device | str = "cpu", seed: int = 0
) -> Qwen2ForCausalLM:
    """Return a Qwen2 with random float32 weights. Args: shape: settings of Qwen2Config."""
    torch.manual_seed(seed)
    config = Qwen2Config(**shape, attn_implementation="layout")
    with torch.device(device):
        return Qwen2ForCausalLM(config)


def save_random(
    folder: Path, shape: dict = QWEN, *, device: torch.device | str = "cpu", seed: int = 0
) -> None:
    """Write a random model in bfloat16 and the tokenizer of base/."""
    network = build_random(shape, device=device, seed=seed)
    network.to(torch.bfloat16).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(BASE / name, folder)


def main(argv: list[str]) -> None:
    folder, layers = read_random_model(argv)
    layers = layers or QWEN["num_hidden_layers"]
    save_random(Path(folder), {**QWEN, "num_hidden_layers": layers})
    print(f"wrote {folder}: {layers} layers, random weights")


if __name__ == "__main__":
    run_main(main)
