"""Build a tiny Qwen2 with random weights, and its tokenizer. pretrain.py trains this model."""

from configurator import Config, UserError

from itertools import product

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from dialogue import IM_END, IM_START, Episode, format_response
from envs import OBSERVATIONS, make_env
from worlds.bandit import Bandit

END_OF_TEXT = "<|endoftext|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 768
HEAD_DIM = 32
MAX_LAYERS = 100
MAX_WIDTH = 8192
# Qwen2's tokenizer splits text with this pattern before it merges bytes.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# This pattern is used only while the merges are learned. It splits text into words, digits and
# "||". Every other character is a piece of its own.
LEARNING_SPLIT = r" ?[A-Z]?[a-z]+| ?\d| ?\|\|| ?[^\sA-Za-z0-9]| ?[A-Z]|\s"
# QWEN2_SPLIT would split the tags of a reply and the texts " 0" to " 9". So each of these texts
# becomes an added token.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
SPACED_DIGITS = tuple(f" {digit}" for digit in range(10))


def build_tiny(seed: int, shape: str) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """Return a Qwen2 with random weights, and its tokenizer.

    Args: shape: layers x width, such as "4x128" (0.85 million parameters).
    Raises: UserError if `shape` does not have the form layers x width, if the width is not a
        multiple of 32, or if a number is 0 or too large (MAX_LAYERS, MAX_WIDTH).
    """
    num_layers, width = _parse_shape(shape)
    tokenizer = build_tiny_tokenizer()
    config = Qwen2Config(
        num_hidden_layers=num_layers,
        hidden_size=width,
        intermediate_size=3 * width,
        num_attention_heads=width // HEAD_DIM,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        # With rope_theta 500 and initializer_range 0.09, a tiny model can copy a board after
        # 150 training steps. With Qwen2's rope_theta 10,000 and initializer_range 0.02, a tiny
        # model still cannot copy a board after 250 training steps.
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        initializer_range=0.09,
        vocab_size=VOCAB_SIZE,
        tie_word_embeddings=True,
        attn_implementation="layout",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():  # scales the head, which is also the embedding, to keep the logits small
        model.lm_head.weight.mul_(0.02 / config.initializer_range)
    return model, tokenizer


def _parse_shape(shape: str) -> tuple[int, int]:
    layers, _, width = shape.partition("x")
    if layers.isdecimal() and width.isdecimal() and len(shape) < 10:
        num_layers = int(layers)
        hidden_size = int(width)
        in_range = 0 < num_layers <= MAX_LAYERS and 0 < hidden_size <= MAX_WIDTH
        if in_range and hidden_size % HEAD_DIM == 0:
            return num_layers, hidden_size
    raise UserError(
        "the tiny model must be layers x width, with a width that is a multiple of 32, "
        f"such as 4x128, at most {MAX_LAYERS}x{MAX_WIDTH}; got {shape!r}"
    )


def build_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Learn byte-level BPE from `environment_texts`.

    No token joins two words, two digits or two cells of a board. The merges are learned with
    LEARNING_SPLIT. The finished tokenizer uses QWEN2_SPLIT, because AutoTokenizer puts this pattern
    into the tokenizer of every Qwen2 model. Both patterns give the same ids for
    `environment_texts`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = _split_into_bytes(LEARNING_SPLIT)
    added = (*TAGS, *SPACED_DIGITS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(environment_texts(), trainer)
    tokenizer.pre_tokenizer = _split_into_bytes(QWEN2_SPLIT)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT
    )
    fast.chat_template = CHATML
    return fast


def _split_into_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, to_bytes])


def environment_texts() -> list[str]:
    """Return the texts from which `build_tiny_tokenizer` learns the merges.

    Do not change the texts: they set the token ids, on which the weights in base/ depend."""
    texts = ["system\nuser\nassistant\n_√_√#√"] * 500
    bandits = [f"bandit:pair={pair}" for pair in Bandit.PAIRS]
    specs = [*bandits, "frozenlake", "sokoban", "sokoban:symbols=newvocab"]
    for spec, observation in product(specs, OBSERVATIONS):
        env = make_env(spec, observation=observation)
        episode = Episode(env, Config())
        for instance in range(10):
            system, user = episode.reset([0, instance])
            reply = format_response(" ".join(env.statements()), env.plan(3, 5))
            texts += [system, user, reply, episode.step(reply).user]
    return texts
