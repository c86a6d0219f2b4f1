"""Policy and critic: loading, the tiny default and its tokenizer, the packed forward, log-probs without full logits.

Both are Hugging Face Qwen2 models that run our attention function. A forward gets its tokens packed: the sequences of a
micro-batch stand one after the other in one row, a prompt that several share stands there once, and a *layout* object
does the attention so that it never crosses a sequence: `PackedLayout` in training, the KV cache of `engine.py` in
decoding. T tokens of a packed micro-batch, R of them sampled (response) tokens, H hidden size, V vocabulary.
"""

import inspect
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save_file
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
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.modeling_utils import AttentionInterface
from transformers.utils.logging import disable_progress_bar

try:
    from flash_attn import flash_attn_varlen_func
except ImportError:
    flash_attn_varlen_func = None

from configurator import Config, UserError

from dialogue import Episode, format_response
from envs import OBSERVATIONS, Bandit, make_env

disable_progress_bar()  # of transformers, for loading and saving: seconds at most
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>"
    "\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY_VOCAB = 768
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


# ---------- attention


@dataclass
class Batch:
    """Token sequences in one row, cut into pieces. A piece continues the earlier pieces that its context names, in that
    order: its tokens attend to all of these and causally to each other. T tokens, R of them sampled."""

    ids: Tensor  # (T,) int64
    position_ids: Tensor  # (T,) int64, places in the sequence
    lengths: list[int]  # tokens of each piece, sum T
    contexts: list[tuple[int, ...]]  # of each piece
    response_index: Tensor  # (R,) int64, places in the row of the sampled tokens, never the first token of a piece


def _attention(module, query, key, value, attention_mask, *, layout, scaling, **_):
    """What every layer calls: q (1, heads, T, D), k and v (1, kv_heads, T, D) -> (1, T, heads, D)."""
    return layout.attend(module.layer_idx, query[0], key[0], value[0], scaling).unsqueeze(0), None


AttentionInterface.register("layout", _attention)


def has_varlen_kernel(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class PackedLayout:
    """Attention inside the sequences of a pack: one varlen kernel on CUDA, a loop of SDPA calls over pieces on CPU and
    on GPUs too old for it. A piece has its queries at the end of its keys."""

    def __init__(self, batch: Batch):
        self.lengths, self.contexts, device = batch.lengths, batch.contexts, batch.ids.device
        self.has_kernel = has_varlen_kernel(device)
        totals = [
            n + sum(self.lengths[i] for i in c)
            for n, c in zip(self.lengths, self.contexts, strict=True)
        ]
        self.sizes = list(zip(self.lengths, totals, strict=True))
        places = torch.arange(sum(self.lengths), device=device).split(self.lengths)
        self.keys_of = torch.cat([places[j] for i, c in enumerate(self.contexts) for j in (*c, i)])
        ends = (torch.tensor(counts, device=device).cumsum(0) for counts in (self.lengths, totals))
        self.bounds = [*(F.pad(end, (1, 0)).int() for end in ends), max(self.lengths), max(totals)]

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """Of the loop, shared by all layers; None where the context's queries are prepended and their outputs dropped:
        beside a short context (1.4: measured) a causal kernel, which computes half, costs less than a mask."""
        ones = partial(torch.ones, dtype=torch.bool, device=self.keys_of.device)
        return [
            None if total < 1.4 * n else ones(n, total).tril(total - n) for n, total in self.sizes
        ]

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if self.has_kernel and q.dtype != torch.float32:  # the kernels take 16 bits only
            return self.attend_varlen(q, k, v, scale)
        # split and not slices, whose backward would fill a whole tensor each
        qs, ks, vs = (
            x[None].split(self.lengths, dim=2) for x in (q, k, v)
        )  # 4-D, or the fused kernel is not taken
        pieces = []
        for i, (context, mask) in enumerate(zip(self.contexts, self.masks, strict=True)):
            whole = (*context, i)
            parts = (qs, whole if mask is None else (i,)), (ks, whole), (vs, whole)
            inputs = (
                torch.cat([x[j] for j in part], dim=2) if len(part) > 1 else x[i]
                for x, part in parts
            )
            options = dict(attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
            pieces.append(
                F.scaled_dot_product_attention(*inputs, **options)[:, :, -self.lengths[i] :]
            )
        return torch.cat(pieces, dim=2)[0].transpose(0, 1)  # (T, heads, D)

    def attend_varlen(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """flash-attn's varlen kernel where it is installed, else torch's, whose arguments changed in 2.12."""
        q, k, v = (
            x.transpose(0, 1) for x in (q, k[:, self.keys_of], v[:, self.keys_of])
        )  # (T, heads, D)
        q, k, v = (x.contiguous() for x in (q, k, v))
        if flash_attn_varlen_func:
            return flash_attn_varlen_func(q, k, v, *self.bounds, softmax_scale=scale, causal=True)
        from torch.nn.attention.varlen import varlen_attn

        if "window_size" in inspect.signature(varlen_attn).parameters:
            return varlen_attn(
                q, k, v, *self.bounds, scale=scale, window_size=(-1, 0), enable_gqa=True
            )
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        return varlen_attn(q, k, v, *self.bounds, scale=scale, is_causal=True)


# ---------- log-probs


def _logits(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
) -> Iterator[tuple]:
    """By parts of W: its rows, W there, logits (R, chunk), place of each target (R, 1), whether it is there (R,)."""
    for first in range(0, weight.shape[0], chunk):
        rows, places = slice(first, first + chunk), targets - first
        part = weight[rows].to(hidden.dtype)
        inside = (places >= 0) & (places < len(part))
        yield (
            rows,
            part,
            (hidden @ part.T).float().div_(temperature),
            places.where(inside, 0)[:, None],
            inside,
        )


class _ChunkedLogProbs(torch.autograd.Function):
    """Log-prob of the target and entropy per position, from the logits of a part of the vocabulary at a time: they stay
    in the cache of a CPU, and the gradient of the head is written once. Logits are recomputed backward.

    With z = W h / temperature, p = softmax(z), H = -sum p log p: d logp/dz = onehot - p and dH/dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ):
        top = torch.full(
            targets.shape, torch.finfo(torch.float32).min, device=hidden.device
        )  # (R,) largest z so far
        total, moment, chosen = (
            torch.zeros_like(top) for _ in range(3)
        )  # sums of e^d, d e^d, d = z - top; target's z
        for *_, z, places, inside in _logits(hidden, weight, targets, temperature, chunk):
            chosen += z.gather(1, places)[:, 0] * inside
            before, top = top, torch.maximum(top, z.amax(1))
            shift = before - top  # (R,)
            exp = z.sub_(top[:, None]).exp()  # (R, chunk)
            moment = shift.exp() * (moment + shift * total) + z.mul_(exp).sum(1)
            total = shift.exp() * total + exp.sum(1)
            del z, exp  # before the next ones are made
        log_total = total.log()
        entropy = log_total - moment / total
        ctx.save_for_backward(hidden, weight, targets, top, log_total, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        return chosen - top - log_total, entropy

    @staticmethod
    def backward(ctx, grad_logprobs: Tensor, grad_entropy: Tensor):
        hidden, weight, targets, top, log_total, entropy = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for rows, part, z, places, inside in _logits(
            hidden, weight, targets, ctx.temperature, ctx.chunk
        ):
            p = (
                z.sub_(top[:, None]).sub_(log_total[:, None]).exp()
            )  # and z is log p; from here on in place
            grad_z = (
                z.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logprobs[:, None])
            )
            grad_z = (
                grad_z.mul_(p).neg_().scatter_add_(1, places, (grad_logprobs * inside)[:, None])
            )
            grad_z = grad_z.div_(ctx.temperature).to(hidden.dtype)
            grad_hidden += grad_z @ part
            if grad_weight is not None:
                grad_weight[rows] = grad_z.T @ hidden
            del p, z, grad_z
        return grad_hidden.to(hidden.dtype), grad_weight, None, None, None


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` and entropies under softmax(hidden @ weight.T / temperature), by columns of the logits.

    Args: hidden (R, H) float; weight (V, H) float; targets (R,) int64; chunk: columns of logits held at a time.
    Returns: logprobs (R,) and entropy (R,), float32, nats, both differentiable."""
    if torch.is_autocast_enabled(
        hidden.device.type
    ):  # which the backward, outside of it, would not know
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return _ChunkedLogProbs.apply(hidden, weight, targets, temperature, chunk)


class Policy(nn.Module):
    """A causal language model that scores the sampled tokens of packed sequences. `version` is unique to its present
    weights: every optimizer step calls `changed`, and an engine that has other weights is noticed (parallel.py)."""

    _versions = itertools.count(1)

    def __init__(self, model: Qwen2ForCausalLM):
        super().__init__()
        self.model = model
        self.bump_version()

    def bump_version(self) -> None:
        self.version = next(self._versions)

    def forward(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        """Returns: logprobs (R,) of the sampled tokens and entropy (R,) of the distributions they came from, nats."""
        hidden = packed_hidden(self.model.model, batch)  # (T, H)
        states, targets = (
            hidden[batch.response_index - 1],
            batch.ids[batch.response_index],
        )  # place t - 1 scores t
        return chunked_logprobs(states, self.model.lm_head.weight, targets, temperature=temperature)


class Critic(nn.Module):
    """The same backbone with a scalar head: V(state in which each sampled token was chosen)."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.value_head = nn.Linear(backbone.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Returns: values (R,), reward units."""
        hidden = packed_hidden(self.backbone, batch)  # (T, H)
        return (
            self.value_head(hidden[batch.response_index - 1]).float().sum(-1)
        )  # not a view, which FSDP2 forbids


def packed_hidden(backbone: nn.Module, batch: Batch) -> Tensor:
    """Last hidden states (T, H) of packed sequences."""
    ids, position_ids, layout = batch.ids[None], batch.position_ids[None], PackedLayout(batch)
    return backbone(
        input_ids=ids, position_ids=position_ids, use_cache=False, layout=layout
    ).last_hidden_state[0]


def compile_blocks(layers) -> None:
    """torch.compile MLPs and norms in place; not attention, whose sizes change with every pack."""
    for layer in layers:
        for part in (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm):
            part.compile(dynamic=False)


# ---------- LoRA


def add_lora(model: nn.Module, rank: int, seed: int) -> None:
    """LoRA (Hu et al., arXiv 2106.09685) in place, by peft: the linear layers of the blocks compute W x + B A x with
    trainable A (rank, in), drawn from `seed`, and B (out, rank), zero at first; W and all else is frozen, and lm_head,
    whose weight `Policy` takes, stays plain. alpha = rank: alpha / rank, the factor of B A, is 1 as in the paper."""
    from peft import LoraConfig, inject_adapter_in_model  # only here: it takes a second

    torch.manual_seed(seed)  # every rank must draw the same
    options = dict(
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
    )
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, **options), model)


def save_adapter(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Write `weights`, the A and B of a model with LoRA by its own names, for PeftModel.from_pretrained."""
    model.peft_config["default"].save_pretrained(folder)
    named = {
        f"base_model.model.{name.replace('.default', '')}": weight
        for name, weight in weights.items()
    }
    save_file(named, folder / "adapter_model.safetensors")


# ---------- loading and building


def pick_device(name: str) -> torch.device:
    """For a config's "auto", "cpu" or "cuda". Raises: UserError where cuda is wanted and missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device='cuda', but torch sees no GPU; use --device=cpu, with config/tiny.py for its speed"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type to compute in for a config's "auto" (bfloat16 on cuda), "float32" or "bfloat16"."""
    low = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if low else torch.float32


def load_model(
    name: str, *, device: torch.device | str = "cpu"
) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """Load a Qwen2-family model (float32 master weights) and its tokenizer from a folder or the hub.

    Raises: UserError in one sentence when the folder is missing, the download fails or the architecture is another."""
    name = str(Path(__file__).with_name("base")) if name == "base" else name
    if name == "tiny":
        raise UserError(
            "model='tiny' has random weights, which only sft.py trains; give base, a run, or --model=PATH"
        )
    local = name.startswith((".", "/", "~", "out/")) or "/" not in name or Path(name).is_dir()
    name = os.path.expanduser(name) if local else name
    if local and not (Path(name) / "config.json").is_file():
        raise UserError(f"model={name!r} is not a model folder: it has no config.json")
    for inner in ("policy", "best", "model") if local else ():
        if Path(name, inner, "config.json").is_file():
            raise UserError(
                f"model={name!r} is the folder of a run; give its model, {name}/{inner}"
            )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, attn_implementation="layout"
        )
    except (OSError, SafetensorError) as error:
        why = f"model={name!r} could not be loaded or downloaded ({str(error).splitlines()[0]})"
        advice = "Give a folder with --model=PATH, or add config/tiny.py to run with the tiny model of this project."
        raise UserError(f"{why}. {advice}") from error
    if model.config.model_type != "qwen2":
        raise UserError(
            f"model={name!r} is of type {model.config.model_type!r}; expected the Qwen2 family"
        )
    return model.to(device), tokenizer


def build_tiny(seed: int, shape: str) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """A Qwen2 with random weights and a tokenizer made from the environments' text. `shape`: layers x width, such as
    "4x128" (0.85 million parameters), in heads of width 32, one of keys and values. Raises: UserError for others."""
    layers, _, width = shape.partition("x")
    if not (
        layers.isdecimal()
        and width.isdecimal()
        and int(layers)
        and int(width)
        and int(width) % 32 == 0
    ):
        raise UserError(
            f"tiny_shape must be layers x width, the width a multiple of 32, such as 4x128; got {shape!r}"
        )
    tokenizer = build_tiny_tokenizer()
    config = Qwen2Config(
        num_hidden_layers=int(layers),
        hidden_size=int(width),
        intermediate_size=3 * int(width),
        num_attention_heads=int(width) // 32,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        # distances of tens of tokens can be told apart, and attention is not flat at the start: with Qwen2's own 10,000
        # and 0.02 a model of this size had not learned to copy a board in 250 steps, with these it had in 150
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        initializer_range=0.09,
        vocab_size=TINY_VOCAB,
        tie_word_embeddings=True,
        attn_implementation="layout",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(
            0.02 / config.initializer_range
        )  # the tied embedding: logits of the usual size
    return model, tokenizer


def build_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE on text of all environments; a merge never crosses a word, a digit or a cell of a grid.

    Those finer borders are used while merges are learned. The tokenizer itself splits by Qwen2's pattern, because
    transformers puts that pattern into every tokenizer of a Qwen2 model that AutoTokenizer loads: ids are the same."""
    borders = Regex(r" ?[A-Z]?[a-z]+| ?\d| ?\|\|| ?[^\sA-Za-z0-9]| ?[A-Z]|\s")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.decoder = normalizers.NFC(), decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(borders, "isolated"), to_bytes]
    )
    units = [
        *(f"<{slash}{tag}>" for tag in ("think", "answer") for slash in ("", "/")),
        *(f" {d}" for d in range(10)),
    ]
    options = dict(
        vocab_size=TINY_VOCAB - len(units), special_tokens=[END_OF_TEXT, IM_START, IM_END]
    )
    options |= dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(_environment_text(), trainers.BpeTrainer(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"), to_bytes]
    )
    tokenizer.add_tokens([AddedToken(unit, normalized=False) for unit in units])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT
    )
    fast.chat_template = CHATML
    return fast


def _environment_text() -> list[str]:
    """Opening messages and plain replies of the environments of the corpus in every observation mode, the same on every
    machine. `base` was trained with these: text of one more environment would make another tokenizer."""
    specs = [
        *(f"bandit:pair={pair}" for pair in Bandit.PAIRS),
        "frozenlake",
        "sokoban",
        "sokoban:symbols=newvocab",
    ]
    texts = ["system\nuser\nassistant\n_√_√#√"] * 500
    for spec, observation in itertools.product(specs, OBSERVATIONS):
        env = make_env(spec, observation=observation)
        episode = Episode(env, Config())
        for seed in range(10):
            system, user = episode.reset([0, seed])
            reply = format_response(" ".join(env.statements()), env.plan(3, 5))
            texts += [system, user, reply, episode.step(reply).user]
    return texts
