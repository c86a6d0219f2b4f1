"""The model families that can be trained, and checks of models. This module imports no torch.

All families are decoders with rotary positions, causal attention over the whole context, and the
module names of Llama: `model.embed_tokens`, `model.layers`, `model.norm`, `lm_head`. Everything
else that differs (biases, norms of queries and keys, layers without positions, the width of a head,
a tied head) is computed by Hugging Face's own code.
"""

from configurator import UserError

# model_type in config.json -> the models that have it
FAMILIES = {
    "qwen2": "Qwen2.5",
    "qwen3": "dense Qwen3",
    "llama": "SmolLM2",
    "smollm3": "SmolLM3",
}

# Rotary embeddings that depend on the position only. "dynamic" and "longrope" also depend on the
# longest sequence of a forward, so one sequence would change another's log-probs.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def check_model_type(name: str, model_type: str) -> None:
    """Check that the type of a model is supported.

    Args:
        name: the model's name, for the message.
        model_type: from its config.json.

    Raises: UserError that names the supported types.
    """
    if model_type not in FAMILIES:
        supported = ", ".join(f"{kind} ({models})" for kind, models in FAMILIES.items())
        raise UserError(
            f"model={name!r} is of type {model_type!r}; expected one of {supported}, "
            "with a ChatML tokenizer"
        )


def check_architecture(name: str, config) -> None:
    """Check that our attention and both engines support the settings of a model.

    Args:
        name: the model's name, for the message.
        config: Hugging Face's configuration object of the model.

    Raises: UserError with the setting that is not supported.
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
