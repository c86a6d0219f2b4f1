"""Checks the weights, tokenizer and config.json of a model while transformers loads it.

utils/model_folder.py makes the checks that need only the files.
"""

from configurator import UserError

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast


def check_shapes(config, shapes: dict[str, list[int]], folder: str) -> None:
    """Check that the weights in the files have the names and shapes that config.json asks for.

    Raises: UserError if a weight is missing, is unknown, or has a wrong shape.
    """
    with torch.device("meta"):  # tensors on meta have shapes but take no memory
        expected = AutoModelForCausalLM.from_config(config).state_dict()
    for name in shapes:
        if name not in expected:
            raise UserError(f"model={folder!r} has a weight {name!r}, unknown to its config.json")
    for name, tensor in expected.items():
        if name not in shapes:
            # A tied head uses the weight of the embedding, so the files need not contain the head.
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            raise UserError(f"model={folder!r} has no weight {name!r}")
        if shapes[name] != list(tensor.shape):
            raise UserError(
                f"model={folder!r}: {name} has shape {shapes[name]}, "
                f"but its config.json asks for {list(tensor.shape)}"
            )


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str) -> None:
    """Check that a tokenizer decodes an encoded sample text to the same text. Raises: UserError."""
    text = "assistant\nUp || 1"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if decoded != text:
        raise UserError(
            f"model={folder!r}: its tokenizer encodes {text!r} and decodes it as {decoded[:80]!r}"
        )


def check_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: str) -> None:
    """Check that weights are finite, and that each token has an embedding.

    If config.json sets tie_word_embeddings, also check that the head is tied. Raises: UserError.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not torch.isfinite(tensor).all():
            raise UserError(f"model={folder!r} has NaN or infinite numbers in {name}")
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    if model.config.tie_word_embeddings and not is_tied:
        raise UserError(
            f"model={folder!r} has a head of its own, but its config.json sets tie_word_embeddings"
        )
    largest_id = max(tokenizer.get_vocab().values(), default=0)
    if largest_id >= len(embedding):
        raise UserError(
            f"model={folder!r} has {len(embedding)} embeddings, "
            f"but its tokenizer has a token with id {largest_id}"
        )
