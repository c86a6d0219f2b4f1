"""Policy and critic: Hugging Face models that run on packed sequences.

A forward gets one row, which holds the tokens of several sequences (packing.py). The forward also
gets a *layout* object, which computes the attention. Policy and critic use a `PackedLayout`, and
the torch engine uses a `_CacheLayout`. The policy computes log-probs one chunk of the vocabulary at
a time, so it never holds the full logits.

Shapes: a row has T tokens, of which R are response tokens. H is the hidden size, D the head size,
and V the vocabulary size.
"""

from configurator import UserError

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub.utils import enable_progress_bars
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_utils import AttentionInterface
from transformers.utils.logging import disable_progress_bar

from packing import PackedBatch, PackedLayout
from utils.loaded_model import check_shapes, check_tokenizer, check_weights
from utils.machine import check_driver
from utils.model_folder import check_architecture, check_folder, download, find_model, summary
from utils.precision import product_in_float32

# Number of vocabulary tokens whose logits are in memory at a time. On a CPU, small chunks stay in
# the processor's cache. On a GPU, large chunks need fewer kernel launches.
CHUNK_SIZES = {"cpu": 1024, "cuda": 8192}
# torch.compile keeps at most this many versions of one function; further versions run uncompiled.
# The versions of Qwen3's norms differ in width (hidden states or heads), weights (trained or
# frozen) and gradients (on or off). So the norms need up to 2 x 2 x 2 = 8 versions, and torch's
# default limit, 8, leaves no room for another version.
MAX_COMPILED_VERSIONS = 64

disable_progress_bar()  # no bars for loading and saving, which take only seconds
enable_progress_bars()  # shows bars for downloads again; the line above hid them, too


# ---------- policy and critic


class Policy(nn.Module):
    """A causal language model that computes log-probs of the response tokens of packed sequences.

    `version` identifies the current weights, so parallel.py notices an engine with older weights.
    """

    _versions = itertools.count(1)

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = train_padding_token(model)
        self.bump_version()

    def bump_version(self) -> None:
        """Mark the weights as changed."""
        self.version = next(self._versions)

    def forward(self, batch: PackedBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Compute the log-probs of the response tokens under softmax(logits / temperature).

        Returns: logprobs (R,) of the response tokens, and entropy (R,) of the softmax at each
            response token. Both are float32, in nats. With the method ECHO, the batch also has
            an `observation_index` of O observation tokens. Then logprobs and entropy have shape
            (R + O,): first the R response tokens, then the O observation tokens.
        """
        hidden = packed_hidden(self.model.model, batch)  # (T, H)
        # The state at index i - 1 predicts token i. index_select is faster than hidden[index],
        # whose backward sorts the index.
        states = hidden.index_select(0, batch.predicted_index - 1)  # (R, H)
        targets = batch.ids[batch.predicted_index]  # (R,)
        return chunked_logprobs(states, self.model.lm_head.weight, targets, temperature=temperature)


class Critic(nn.Module):
    """A backbone whose scalar head estimates the value of the context before a response token."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = train_padding_token(backbone)
        self.value_head = nn.Linear(backbone.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the values. Returns: (R,) float32, in the units of the reward."""
        hidden = packed_hidden(self.backbone, batch)  # (T, H)
        states = hidden.index_select(0, batch.response_index - 1)  # (R, H)
        values = self.value_head(states)  # (R, 1)
        return values.float().sum(-1)  # values[:, 0] would be a view, which FSDP2 forbids as output


def train_padding_token(module: nn.Module) -> nn.Module:
    """Change a module so that its padding token's embedding gets a gradient. Returns: the module.

    nn.Embedding drops the gradient of the token with the id `padding_idx`. But a packed row has no
    padding, so a padding token in the row is a real token. SmolLM2's padding token is <|im_end|>,
    which ends every message.
    """
    module.get_input_embeddings().padding_idx = None
    return module


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name.

    With LoRA they are only the LoRA matrices and the critic's value head.
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def describe_trained(module: nn.Module) -> str:
    """Return a text such as "9,728 of 157,760 parameters are trained"."""
    num_trained = sum(p.numel() for p in trainable_parameters(module).values())
    num_all = sum(p.numel() for p in module.parameters())
    return f"{num_trained:,} of {num_all:,} parameters are trained"


def packed_hidden(backbone: nn.Module, batch: PackedBatch) -> Tensor:
    """Compute the last hidden states (T, H) of a packed row, after the final norm."""
    output = backbone(
        input_ids=batch.ids[None],
        position_ids=batch.position_ids[None],
        use_cache=False,
        layout=PackedLayout(batch),
    )
    return output.last_hidden_state[0]


def _attention(module, query, key, value, attention_mask, *, layout, scaling, **_):
    """Let the layout object compute the attention of a layer. transformers calls this function.

    Args: query (1, heads, T, D); key and value (1, kv_heads, T, D).
    Returns: output (1, T, heads, D), and None in place of the attention weights.
    """
    output = layout.attend(module.layer_idx, query[0], key[0], value[0], scaling)
    return output.unsqueeze(0), None


AttentionInterface.register("layout", _attention)  # for attn_implementation="layout"


def compile_blocks(layers: Sequence[nn.Module]) -> None:
    """Compile the MLPs and norms of `layers` in place.

    The number of tokens is dynamic, so one compilation serves rows of all lengths. Attention is not
    compiled, because the number and the lengths of the sequences differ from row to row.
    """
    torch._dynamo.config.recompile_limit = MAX_COMPILED_VERSIONS
    for layer in layers:
        parts = [layer.mlp, layer.input_layernorm, layer.post_attention_layernorm]
        if hasattr(layer.self_attn, "q_norm"):  # Qwen3 normalizes each query and key
            parts += [layer.self_attn.q_norm, layer.self_attn.k_norm]
        for part in parts:
            part.compile(dynamic=True)


# ---------- log-probs without full logits


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Compute log-probs of `targets` and entropies under softmax(hidden @ weight.T / temperature).

    Args:
        hidden: (R, H) float.
        weight: (V, H) float, of the LM head.
        targets: (R,) int64.
        chunk_size: number of vocabulary tokens in a chunk. If it is 0, CHUNK_SIZES gives the
            number for the device.

    Returns: logprobs (R,) and entropy (R,), float32, in nats, both differentiable.
    """
    device_type = hidden.device.type
    # In the forward, autocast converts the factors of a matrix product to one type. The backward
    # runs outside of autocast. The cast of `hidden` gives the factors one type in both passes.
    if torch.is_autocast_enabled(device_type):
        hidden = hidden.to(torch.get_autocast_dtype(device_type))
    chunk_size = chunk_size or CHUNK_SIZES[device_type]
    return _ChunkedLogProbs.apply(hidden, weight, targets, temperature, chunk_size)


class _VocabChunk(NamedTuple):
    """A chunk of C tokens of the vocabulary, and their logits."""

    rows: slice  # rows of the LM head's weight
    weight: Tensor  # (C, H), `rows` of the LM head, in the type of the hidden states
    logits: Tensor  # (R, C) float32, divided by the temperature
    # (R, 1) int64, the target's column in `logits`; 0 if the target is in another chunk
    target_column: Tensor
    has_target: Tensor  # (R,) bool


def _vocab_chunks(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_size: int
) -> Iterator[_VocabChunk]:
    for first in range(0, weight.shape[0], chunk_size):
        rows = slice(first, first + chunk_size)
        chunk_weight = weight[rows].to(hidden.dtype)
        columns = targets - first
        has_target = (columns >= 0) & (columns < len(chunk_weight))
        yield _VocabChunk(
            rows=rows,
            weight=chunk_weight,
            logits=product_in_float32(hidden, chunk_weight.T).div_(temperature),
            target_column=columns.where(has_target, 0)[:, None],
            has_target=has_target,
        )


class _ChunkedLogProbs(torch.autograd.Function):
    """Computes two numbers at each position: the log-prob of the target, and the entropy.

    Only the logits of one chunk of the vocabulary exist at a time. Besides the inputs, O(R) numbers
    are saved for the backward, which computes the logits again. With

        z = W h / temperature,   p = softmax(z),   logp = log p[target],   S = -sum_j p_j log p_j

    the derivatives are  d logp / d z = onehot(target) - p  and  d S / d z = -p (log p + S).
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probs and entropies with an online softmax.

        m is the largest z so far (the class docstring defines z). `total` and `moment` are sums of
        terms in z - m. If a chunk raises m to m', both sums are first converted from m to m', with
        shift = m - m'. Then the terms of the chunk are added.
        """
        lowest = torch.finfo(torch.float32).min
        maximum = torch.full(targets.shape, lowest, device=hidden.device)  # m
        total = torch.zeros_like(maximum)  # sum of e^(z - m)
        moment = torch.zeros_like(maximum)  # sum of (z - m) e^(z - m)
        target_logit = torch.zeros_like(maximum)
        for chunk in _vocab_chunks(hidden, weight, targets, temperature, chunk_size):
            z = chunk.logits  # (R, C)
            target_logit += z.gather(1, chunk.target_column)[:, 0] * chunk.has_target
            previous = maximum
            maximum = torch.maximum(previous, z.amax(1))
            shift = previous - maximum  # (R,), 0 or negative
            distance = z.sub_(maximum[:, None])  # (R, C), z - m, written over z
            exp = distance.exp()  # (R, C)
            moment = shift.exp() * (moment + shift * total) + distance.mul_(exp).sum(1)
            total = shift.exp() * total + exp.sum(1)
            del chunk, z, distance, exp  # free memory before the next chunk is computed
        log_total = total.log()
        entropy = log_total - moment / total
        ctx.save_for_backward(hidden, weight, targets, maximum, log_total, entropy)
        ctx.temperature = temperature
        ctx.chunk_size = chunk_size
        return target_logit - maximum - log_total, entropy

    @staticmethod
    def backward(ctx, grad_logprobs: Tensor, grad_entropy: Tensor):
        """Compute gradients of the loss L. The class docstring defines z, p, logp and S.

        With a = grad_logprobs = dL/dlogp and b = grad_entropy = dL/dS, both (R,):

        dL/dz = a onehot(target) - p (a + b (log p + S))
        """
        hidden, weight, targets, maximum, log_total, entropy = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)  # (R, H)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None  # (V, H)
        chunks = _vocab_chunks(hidden, weight, targets, ctx.temperature, ctx.chunk_size)
        for chunk in chunks:
            # Computing dL/dz in place needs only two (R, C) tensors. C is the width of the chunk.
            logp = chunk.logits.sub_(maximum[:, None]).sub_(log_total[:, None])
            p = logp.exp()
            grad_z = logp.add_(entropy[:, None]).mul_(grad_entropy[:, None])
            grad_z = grad_z.add_(grad_logprobs[:, None]).mul_(p).neg_()
            at_target = grad_logprobs * chunk.has_target  # (R,)
            grad_z = grad_z.scatter_add_(1, chunk.target_column, at_target[:, None])
            grad_z = grad_z.div_(ctx.temperature).to(hidden.dtype)  # dL/d(W h)
            grad_hidden += product_in_float32(grad_z, chunk.weight)
            if grad_weight is not None:
                grad_weight[chunk.rows] = grad_z.T @ hidden
            del chunk, logp, p, grad_z
        return grad_hidden.to(hidden.dtype), grad_weight, None, None, None


# ---------- LoRA


def add_lora(model: nn.Module, rank: int, seed: int) -> None:
    """Add LoRA adapters (Hu et al., arXiv 2106.09685) in place, with peft.

    In every linear layer of the blocks, W x becomes W x + (alpha / rank) B A x. The matrix A (rank,
    in) is drawn at random from `seed`, and the matrix B (out, rank) starts at zero. Only A and B
    are trained. alpha equals rank. lm_head gets no adapter. An adapter would have no effect there,
    because `Policy` reads lm_head.weight directly.

    Raises: UserError if the rank is larger than the hidden size of the model.
    """
    if rank > model.config.hidden_size:
        raise UserError(
            f"lora_rank is {rank}, more than the model's hidden size, {model.config.hidden_size}; "
            "lower it"
        )
    # This import takes a second, so a run without LoRA skips it.
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(seed)  # every process under torchrun must draw the same matrices A
    settings = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
    )
    inject_adapter_in_model(settings, model)


# ---------- loading


def pick_device(name: str) -> torch.device:
    """Return the device for the setting "cpu", "cuda" or "auto" (cuda if there is a GPU, else cpu).

    Raises: UserError if the setting is "cuda" and torch finds no GPU, or if the setting is "cuda"
        or "auto" and the driver is too old.
    """
    has_gpu = torch.cuda.is_available()
    if name != "cpu" and not has_gpu:
        check_driver(torch.version.cuda)
    if name == "cuda" and not has_gpu:
        raise UserError(
            "device='cuda', but torch sees no GPU; use --device=cpu, and config/models/tiny.py for "
            "a model that is fast on a CPU"
        )
    return torch.device("cuda" if name != "cpu" and has_gpu else "cpu")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the type to compute in. "auto" means bfloat16 on cuda and float32 on a CPU."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    return getattr(torch, name)


def load_model(
    name: str, *, device: torch.device | str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a model (float32 weights) and its tokenizer.

    Args: name: "tiny" (the model in base/), a folder, or a name on the Hugging Face hub.
    Raises: UserError if the model is missing, broken or not supported (utils/model_folder.py), or
        if the download fails.
    """
    folder = find_model(name)
    is_on_hub = not Path(folder).is_dir()
    if is_on_hub:
        folder = download(name)
    shapes = check_folder(Path(folder))
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        check_architecture(folder, config)
        # "layout" selects `_attention` above. config.json must not choose the attention, because it
        # could name a kernel on the hub, which is foreign code.
        config._attn_implementation = "layout"
        check_shapes(config, shapes, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        check_tokenizer(tokenizer, folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except UserError:
        raise
    except Exception as error:  # transformers has no common error class for bad files
        raise UserError(f"model={folder!r} could not be loaded ({summary(error)})") from error
    check_weights(model, tokenizer, folder)
    if is_on_hub:
        model.name_or_path = name  # so a saved LoRA adapter names the hub's model, not a folder
    return model.to(device), tokenizer
