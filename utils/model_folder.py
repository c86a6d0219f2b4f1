"""Finds or downloads a model, and checks its files before a model is built from them.

The checks import neither torch nor transformers, and run no code from the model's folder.

All supported models are decoders with rotary positions and causal attention over the whole context.
They use Llama's module names: `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`.
Hugging Face's code handles the parts that differ between models, such as biases and tied heads.
"""

from configurator import UserError

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import safetensors

from utils.checksums import find_damage

BASE = Path(__file__).resolve().parent.parent / "base"  # folder of model="tiny"

# Maps a model_type in config.json to the models of this type.
FAMILIES = {
    "qwen2": "Qwen2.5",
    "qwen3": "dense Qwen3",
    "llama": "SmolLM2",
    "smollm3": "SmolLM3",
}

# Rotary embeddings that depend on the position only. The types "dynamic" and "longrope" also depend
# on the longest sequence of a batch, so one sequence would change the log-probs of another.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")  # USER/MODEL
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # config, weights, tokenizer
HUB_TIMEOUT_S = 5.0
WEIGHT_TYPES = ("F32", "F16", "BF16")
SIZES = (  # keys of config.json that must be whole numbers, 1 or more
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def find_model(name: str) -> str:
    """Return the folder of a local model, or the unchanged name of a model on the hub.

    Args: name: "tiny", a folder, or a name on the hub.
    Raises: UserError if a folder does not exist, or holds no model of a supported type.
    """
    if name == "tiny":
        return str(BASE)
    if not _looks_like_folder(name):
        return name
    folder = os.path.expanduser(name)
    if not Path(folder, "config.json").is_file():
        raise UserError(f"model={folder!r} is not a model folder: it has no config.json")
    for inner in ("policy", "best", "model"):
        if Path(folder, inner, "config.json").is_file():
            raise UserError(
                f"model={folder!r} is the folder of a run; give its model, {folder}/{inner}"
            )
    read_description(Path(folder))
    return folder


def _looks_like_folder(name: str) -> bool:
    """True if a name begins with out/, has an existing parent folder, or is not like USER/MODEL."""
    in_known_folder = name.startswith("out/") or Path(name).parent.is_dir()
    return in_known_folder or not HUB_NAME.fullmatch(name)


def download(name: str) -> str:
    """Download a model from the Hugging Face hub. Returns: its folder in the local cache.

    The download does not go through transformers, which would retry silently for a long time.
    This function does not retry its first request to the hub.

    Raises: UserError if the model is not in the cache and cannot be downloaded.
    """
    from huggingface_hub import snapshot_download  # this import takes half a second

    if os.environ.get("RANK", "0") == "0":
        print(f"model={name!r}: asking the Hugging Face hub", file=sys.stderr, flush=True)
    try:
        return snapshot_download(
            name,
            allow_patterns=HUB_FILES,
            ignore_patterns="*/*",
            etag_timeout=HUB_TIMEOUT_S,
        )
    except Exception as error:  # huggingface_hub has no common class for its errors
        raise UserError(
            f"model={name!r} could not be downloaded from the Hugging Face hub; give a folder with "
            "--model=PATH, or add config/models/tiny.py to run with the tiny model of this project "
            f"({summary(error)})"
        ) from error


def check_folder(folder: Path) -> dict[str, list[int]]:
    """Check that a folder holds the settings, weights and tokenizer of a supported model.

    Returns: the shape of each weight in the files.
    Raises: UserError that describes the first problem.
    """
    given = f"model={str(folder)!r}"
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(
                f"{given}: {path.name} is not a regular file, and reading it could block"
            )
    damage = find_damage(folder)
    if damage:
        raise UserError(
            f"{given} is damaged ({damage}); restore the folder, or remove its "
            "checksums.json if you changed the model yourself"
        )
    described = read_description(folder)
    # If the folder holds an adapter, transformers silently applies the adapter to the weights.
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{given} holds an adapter; merge the adapter into its model, and give the merged model"
        )
    _check_numbers(described, given)
    # If the vocabulary is missing, transformers makes an empty tokenizer and raises no error.
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").is_file():
        raise UserError(f"{given} has no tokenizer.json")
    shapes = {}
    for path in _weight_files(folder, given):
        shapes |= _read_shapes(path, given)
    num_layers = described["num_hidden_layers"]
    # If config.json claims a billion layers, building the model would take days.
    if num_layers > len(shapes):
        raise UserError(
            f"{given} has {len(shapes)} weights, too few for the {num_layers} layers of its "
            "config.json"
        )
    return shapes


def read_description(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model.

    Raises: UserError if the file cannot be read, or if its model_type is not supported.
    """
    described = _read_object(folder / "config.json", f"model={str(folder)!r}")
    check_model_type(str(folder), str(described.get("model_type")))
    return described


def check_model_type(name: str, model_type: str) -> None:
    """Check that the type of a model is supported. Raises: UserError that lists supported types."""
    if model_type not in FAMILIES:
        supported = ", ".join(f"{kind} ({models})" for kind, models in FAMILIES.items())
        raise UserError(
            f"model={name!r} is of type {model_type!r}; expected one of {supported}, "
            "with a ChatML tokenizer"
        )


def check_architecture(name: str, config) -> None:
    """Check that packing.py, the torch engine and vLLM support the settings of a model.

    Args: config: Hugging Face's configuration object of the model.
    Raises: UserError that names the unsupported setting.
    """
    check_model_type(name, config.model_type)
    other_layers = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if other_layers:
        raise UserError(
            f"model={name!r} has layers of type {', '.join(sorted(other_layers))}; every layer "
            "must be full_attention (use_sliding_window=false in config.json)"
        )
    rope_type = (config.rope_parameters or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        raise UserError(
            f"model={name!r} has rotary positions of type {rope_type!r}; expected one of "
            f"{', '.join(ROPE_TYPES)}"
        )
    if config.model_type == "qwen3" and config.attention_bias:
        raise UserError(
            f"model={name!r} has attention_bias=true in config.json; expected false, as in all "
            "published Qwen3 models, because vLLM leaves out the bias of o_proj"
        )
    for key in ("quantization_config", "dual_chunk_attention_config"):
        if hasattr(config, key):
            raise UserError(
                f"model={name!r} has the setting {key}, which is not supported; "
                "use the model without it"
            )


def _read_object(path: Path, given: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{given}: {path.name} cannot be read ({summary(error)})") from error
    if not isinstance(value, dict):
        raise UserError(f"{given}: {path.name} must be a JSON object, got {str(value)[:80]!r}")
    return value


def _check_numbers(described: dict[str, Any], given: str) -> None:
    sizes = {key: described.get(key) for key in SIZES}
    for key in ("num_key_value_heads", "head_dim"):
        if described.get(key) is not None:  # if missing, transformers uses a default
            sizes[key] = described[key]
    for key, value in sizes.items():
        if type(value) is not int or value < 1:
            raise UserError(
                f"{given}: {key} in config.json must be a whole number over 0, got {value!r}"
            )
    num_heads = sizes["num_attention_heads"]
    num_key_heads = sizes.get("num_key_value_heads", num_heads)
    if num_heads % num_key_heads:
        raise UserError(
            f"{given}: num_attention_heads in config.json must be a multiple of "
            f"num_key_value_heads ({num_key_heads}), got {num_heads}"
        )
    epsilon = described.get("rms_norm_eps", 1e-6)
    if type(epsilon) is not float or not 0 < epsilon < math.inf:
        raise UserError(
            f"{given}: rms_norm_eps in config.json must be a decimal number over 0, got {epsilon!r}"
        )


def _weight_files(folder: Path, given: str) -> list[Path]:
    whole = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise UserError(
            f"{given} has no model.safetensors; files of other formats, such as "
            "pytorch_model.bin, are not loaded, because they can run code"
        )
    weight_map = _read_object(index, given).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{given}: {index.name} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if name != Path(name).name or not os.path.isfile(folder / name):
            raise UserError(f"{given}: {index.name} names {name!r}, which is no file of the folder")
    return [folder / name for name in names]


def _read_shapes(path: Path, given: str) -> dict[str, list[int]]:
    shapes = {}
    try:
        with safetensors.safe_open(path, framework="np") as weights:
            for name in weights.offset_keys():
                weight = weights.get_slice(name)
                if weight.get_dtype() not in WEIGHT_TYPES:
                    raise UserError(
                        f"{given}: {name} is of type {weight.get_dtype()}; "
                        f"expected {', '.join(WEIGHT_TYPES)}"
                    )
                shapes[name] = weight.get_shape()
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{given}: {path.name} is damaged ({summary(error)})") from error
    return shapes


def summary(error: BaseException) -> str:
    """Return an error's type and at most 300 characters of the first three lines of its message."""
    lines = str(error).split("\n")[:3]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"
