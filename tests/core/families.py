"""Write small random models of every supported family, as transformers itself saves them.

The chat templates are our own. For a conversation that begins with a system message and has no
tools, they render the same text as the published templates of Qwen2.5-0.5B-Instruct, Qwen3-0.6B,
SmolLM2-135M-Instruct and SmolLM3-3B.
"""

from configurator import Config

import json
from functools import lru_cache
from typing import NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from dialogue import Episode
from envs import make_env

QWEN2_TEMPLATE = """\
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. ' }}
    {{- 'You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# This template drops thoughts before the last user message. A reply that ends the conversation gets
# <think> and </think> even without a thought.
QWEN3_TEMPLATE = """\
{%- set last = namespace(user=messages | length) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set last.user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set thought = '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if message.role == 'assistant' and loop.index0 > last.user and (loop.last or thought) %}
        {%- set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

SMOLLM2_TEMPLATE = """\
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, ' }}
    {{- 'trained by Hugging Face<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# If the system message contains "/system_override", the template leaves out the metadata: dates and
# reasoning mode. Without "/system_override", the template writes no <|im_end|> after the system
# message. In a conversation without tools, the published template of SmolLM3-3B also leaves out
# this <|im_end|>.
SMOLLM3_TEMPLATE = """\
{%- set system = messages[0].content %}
{%- set thinks = enable_thinking is not defined or enable_thinking %}
{%- if '/no_think' in system %}
    {%- set thinks = false %}
{%- elif '/think' in system %}
    {%- set thinks = true %}
{%- endif %}
{%- set rules = system.replace('/no_think', '').replace('/think', '').rstrip() %}
{%- set mode = '/think' if thinks else '/no_think' %}
{%- set block = '' if thinks else '<think>\\n\\n</think>\\n' %}
{{- '<|im_start|>system\\n' }}
{%- if '/system_override' in system %}
    {{- rules.replace('/system_override', '').rstrip() + '<|im_end|>\\n' }}
{%- else %}
    {{- '## Metadata\\n\\nKnowledge Cutoff Date: June 2025\\n' }}
    {{- 'Today Date: ' + strftime_now('%d %B %Y') + '\\nReasoning Mode: ' + mode + '\\n\\n' }}
    {{- '## Custom Instructions\\n\\n' + rules + '\\n\\n' }}
{%- endif %}
{%- for message in messages[1:] %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {{- block + message.content.lstrip('\\n') }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + block }}
{%- endif %}"""


class Family(NamedTuple):
    config_class: type
    settings: dict  # settings for `config_class`; they override those in WIDTHS, below
    template: str
    tokenizer_class: str
    special: tuple[str, ...]
    roles: dict[str, str]  # maps a role, such as bos_token, to its token
    ids: dict[str, str]  # maps a setting, such as bos_token_id, to its token
    added: tuple[str, ...] = ()
    bos: str = ""  # the tokenizer puts this token first if add_special_tokens is true
    unused: int = 0  # embeddings without a token


WIDTHS = dict(
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
)
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_ROLES = dict(eos_token="<|im_end|>", pad_token="<|endoftext|>")
QWEN_IDS = dict(bos_token_id="<|endoftext|>", eos_token_id="<|im_end|>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>")

# vLLM's attention on a CPU needs a head size of 32, 64, 80, 96, 112, 128 ...
FAMILIES = {
    "qwen2": Family(
        Qwen2Config,
        dict(num_attention_heads=2, num_key_value_heads=1),
        QWEN2_TEMPLATE,
        "Qwen2Tokenizer",
        CHATML,
        QWEN_ROLES,
        QWEN_IDS,
        unused=37,
    ),
    "qwen3": Family(
        Qwen3Config,
        dict(head_dim=32),  # 4 heads of size 32 have 128 dimensions; hidden_size is 64
        QWEN3_TEMPLATE,
        "Qwen2Tokenizer",
        CHATML,
        QWEN_ROLES,
        QWEN_IDS,
        added=("<tool_response>", "</tool_response>", "<think>", "</think>"),
        unused=37,
    ),
    "qwen3_untied": Family(  # as Qwen3-8B
        Qwen3Config,
        dict(head_dim=32, tie_word_embeddings=False),
        QWEN3_TEMPLATE,
        "Qwen2Tokenizer",
        CHATML,
        QWEN_ROLES,
        QWEN_IDS,
        added=("<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    "smollm2": Family(
        LlamaConfig,
        dict(hidden_size=96, num_attention_heads=3, num_key_value_heads=1),
        SMOLLM2_TEMPLATE,
        "GPT2Tokenizer",
        CHATML,
        dict(
            bos_token="<|im_start|>",
            eos_token="<|im_end|>",
            pad_token="<|im_end|>",
            unk_token="<|endoftext|>",
        ),
        dict(
            bos_token_id="<|im_start|>",
            eos_token_id="<|im_end|>",
            pad_token_id="<|im_end|>",
        ),
    ),
    "smollm3": Family(
        SmolLM3Config,
        dict(num_attention_heads=2, num_key_value_heads=1, no_rope_layer_interval=2),
        SMOLLM3_TEMPLATE,
        "PreTrainedTokenizerFast",
        (*LLAMA3, "<|im_start|>", "<|im_end|>"),
        dict(bos_token=LLAMA3[0], eos_token="<|im_end|>", pad_token="<|im_end|>"),
        dict(bos_token_id=LLAMA3[0], eos_token_id="<|im_end|>", pad_token_id=LLAMA3[2]),
        added=("<think>", "</think>"),
        bos=LLAMA3[0],
        unused=8,
    ),
}


@lru_cache
def game_texts():
    episode = Episode(make_env("frozenlake"), Config())
    texts = ["system\nuser\nassistant\n"]
    for seed in range(20):
        texts += episode.reset(seed)
    return texts


def build_tokenizer(name):
    family = FAMILIES[name]
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(family.special),
        show_progress=False,
    )
    words.train_from_iterator(game_texts(), trainer)
    words.add_tokens([AddedToken(text, normalized=False) for text in family.added])
    if family.bos:
        pair = (family.bos, words.token_to_id(family.bos))
        words.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", pair=f"{family.bos} $A $B", special_tokens=[pair]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **family.roles)
    tokenizer.chat_template = family.template
    return tokenizer


def save_family(name, folder):
    family = FAMILIES[name]
    tokenizer = build_tokenizer(name)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in family.ids.items()}
    settings = WIDTHS | family.settings | ids
    config = family.config_class(vocab_size=len(tokenizer) + family.unused, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    published = json.loads(file.read_text()) | {"tokenizer_class": family.tokenizer_class}
    file.write_text(json.dumps(published))
    return folder


@torch.no_grad()
def randomize(model):
    """Draw weights so large that each log-prob depends visibly on all tokens before it."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            weight.normal_(std=0.16)
        elif "norm" in name:
            weight.uniform_(0.5, 1.5)
        else:  # biases
            weight.normal_(std=0.2)
