"""Packing: many token sequences in one row of T tokens, without padding.

The row is cut into *pieces*. The context of a piece lists the earlier pieces that it continues. The
tokens of a piece attend to its context and, causally, to each other. So a prompt that several
sequences share is computed once, except its last token. The last token is repeated before each
response, because its hidden state predicts the response's first token. Example: two responses A A
and B to the prompt P P P p.

    row        P P P p A A p B
    piece      0 0 0 1 1 1 2 2     contexts: (), (0,), (0,)
    position   0 1 2 3 4 5 3 4
    sampled            x x   x

`micro_batches` decides which sequences share a row, `pack` builds the row, and `PackedLayout`
computes its attention.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

try:
    from flash_attn import flash_attn_varlen_func
except ImportError:
    flash_attn_varlen_func = None

# In varlen_attn of torch 2.12, query heads can share a key head. In torch 2.11 they cannot.
VARLEN_HAS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters

# A piece (a part of a sequence) can have more keys than queries. Below this ratio of keys to
# queries, a causal kernel that also gets the queries of the context is faster than a mask (see
# `masks`).
MAX_CAUSAL_RATIO = 1.4


class TokenSequence(Protocol):
    """The attributes of a trajectory that this file reads."""

    @property
    def ids(self) -> list[int]:
        """The tokens of all prompts and responses."""

    @property
    def response_mask(self) -> list[bool]:
        """One flag for each token: True if the policy sampled it."""

    @property
    def observation_mask(self) -> list[bool]:
        """One flag for each token: True for a prompt token between two responses."""

    @property
    def first_prompt_ids(self) -> list[int]:
        """The tokens before the first response. `ids` begins with them."""


@dataclass
class PackedBatch:
    """One row of T tokens, R of them sampled, for `Policy` and `Critic`."""

    ids: Tensor  # (T,) int64
    position_ids: Tensor  # (T,) int64, position of each token in its sequence
    lengths: list[int]  # number of tokens in each piece; they sum to T
    contexts: list[tuple[int, ...]]  # for each piece, the pieces that it continues, in row order
    # (R,) int64, row indices of sampled tokens. A sampled token is never the first of its piece, so
    # row index - 1 is the token before it in its sequence
    response_index: Tensor
    # (O,) int64, row indices of observation tokens; None unless `pack` had observations=True
    observation_index: Tensor | None = None

    @property
    def predicted_index(self) -> Tensor:
        """The row indices of the tokens whose log-probs are computed, (R,) or (R + O,)."""
        if self.observation_index is None:
            return self.response_index
        return torch.cat([self.response_index, self.observation_index])


# ---------- dividing sequences into rows


def micro_batches(sequences: Sequence[TokenSequence], max_tokens: int) -> list[list[int]]:
    """Divide sequences into packs of at most `max_tokens` tokens. A pack becomes one row.

    Sequences with the same first prompt become neighbours, so `pack` can share their prompt.
    A sequence that is longer than `max_tokens` gets a pack of its own.

    Returns: for each pack the indices of its sequences.
    """
    packs: list[list[int]] = []
    num_packed = 0  # number of tokens in the last pack
    previous_prompt = None
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i].first_prompt_ids):
        prompt = sequences[i].first_prompt_ids
        num_tokens = len(sequences[i].ids)
        num_new = num_tokens
        if prompt == previous_prompt:
            num_new -= len(prompt) - 1  # these tokens are already in the pack
        if packs and num_packed + num_new <= max_tokens:
            packs[-1].append(i)
            num_packed += num_new
        else:
            packs.append([i])
            num_packed = num_tokens
        previous_prompt = prompt
    return packs


# ---------- the row


def pack(
    sequences: Sequence[TokenSequence],
    device: torch.device | str = "cpu",
    *,
    observations: bool = False,
) -> PackedBatch:
    """Put sequences into one row.

    The first piece holds the tokens that all first prompts begin with. For adjacent sequences with
    the same first prompt (members of a group), one shared piece holds the rest of that prompt
    except its last token. Every sequence also has a piece with its own tokens.

    Args:
        sequences: at least one. Sequences with the same first prompt must be neighbours to share
            the prompt, as in the packs of `micro_batches`.
        observations: True to fill in `observation_index` from the sequences' `observation_mask`.
    """
    common_length = len(os.path.commonprefix([_shareable(sequence) for sequence in sequences]))
    row = _Row(observations)
    common = row.append(sequences[0], 0, common_length, context=())
    for prompt, group in groupby(sequences, key=_shareable):
        members = list(group)
        context = row.append(members[0], common_length, len(prompt), context=common)
        for member in members:
            row.append(member, len(prompt), len(member.ids), context=context)
    return row.to_batch(torch.device(device))


def _shareable(sequence: TokenSequence) -> list[int]:
    """Return the first prompt without its last token, which is repeated before each response."""
    return sequence.first_prompt_ids[:-1]


@dataclass
class _Piece:
    ids: list[int]
    response_mask: list[bool]
    observation_mask: list[bool]  # empty if `pack` had observations=False
    start: int  # position of the first token in its sequence
    context: tuple[int, ...]  # the earlier pieces that it continues


@dataclass
class _Row:
    """The pieces of a row under construction."""

    observations: bool
    pieces: list[_Piece] = field(default_factory=list)

    def append(
        self, sequence: TokenSequence, start: int, end: int, context: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Append sequence.ids[start:end] as a piece, unless it is empty.

        Returns: the context for a piece that continues these tokens.
        """
        if start == end:
            return context
        ids = sequence.ids[start:end]
        response_mask = sequence.response_mask[start:end]
        observation_mask = sequence.observation_mask[start:end] if self.observations else []
        self.pieces.append(_Piece(ids, response_mask, observation_mask, start, context))
        return (*context, len(self.pieces) - 1)

    def to_batch(self, device: torch.device) -> PackedBatch:
        ids: list[int] = []
        positions: list[int] = []
        response_mask: list[bool] = []
        observation_mask: list[bool] = []
        for piece in self.pieces:
            ids += piece.ids
            positions += range(piece.start, piece.start + len(piece.ids))
            response_mask += piece.response_mask
            observation_mask += piece.observation_mask
        sampled = torch.tensor(response_mask).nonzero()[:, 0]  # (R,)
        observed = torch.tensor(observation_mask, dtype=torch.bool).nonzero()[:, 0]  # (O,)
        tensors = (torch.tensor(ids), torch.tensor(positions), sampled, observed)
        ids_there, positions_there, sampled_there, observed_there = to_device(tensors, device)
        return PackedBatch(
            ids=ids_there,
            position_ids=positions_there,
            lengths=[len(piece.ids) for piece in self.pieces],
            contexts=[piece.context for piece in self.pieces],
            response_index=sampled_there,
            observation_index=observed_there if self.observations else None,
        )


def to_device(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Copy 1-D tensors of one type from the CPU to a device.

    All tensors go to a GPU in one copy from pinned memory, so the host does not wait for the GPU.
    """
    if device.type != "cuda":
        return tensors
    joined = torch.cat(list(tensors)).pin_memory()
    sizes = [len(tensor) for tensor in tensors]
    return joined.to(device, non_blocking=True).split(sizes)


# ---------- attention inside the sequences


def has_varlen_kernel(device: torch.device) -> bool:
    """Whether the device runs kernels for sequences of various lengths (GPU, Ampere or newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class _VarlenIndex(NamedTuple):
    """The pieces of a row as a varlen kernel needs them; all int32."""

    keys: Tensor  # (sum of key_lengths,): the row indices of the keys of each piece, concatenated
    query_ends: Tensor  # (pieces + 1,): 0, then the end of each piece in the row
    key_ends: Tensor  # (pieces + 1,): 0, then the end of each piece's keys in `keys`


class PackedLayout:
    """Attention for one packed batch, shared by all layers.

    A GPU since Ampere runs one varlen kernel for the whole row. On a CPU, on an older GPU and in
    float32, each piece is one SDPA call. The keys of a piece are the keys of its context, then its
    own keys. So the last keys belong to the same tokens as the queries of the piece.
    """

    def __init__(self, batch: PackedBatch):
        self.lengths = batch.lengths  # number of queries of each piece
        self.contexts = batch.contexts
        self.device = batch.ids.device
        self.has_kernel = has_varlen_kernel(self.device)
        self.key_lengths = []  # number of keys of each piece
        for length, context in zip(self.lengths, self.contexts, strict=True):
            self.key_lengths.append(length + sum(self.lengths[i] for i in context))

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute the attention of one layer.

        Args:
            q: (heads, T, D).
            k, v: (kv_heads, T, D).

        Returns: (T, heads, D).
        """
        if self.has_kernel and q.dtype != torch.float32:  # the kernels take 16 bits only
            return self.attend_varlen(q, k, v, scale)
        return self.attend_pieces(q, k, v, scale)

    def attend_pieces(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute attention with one SDPA call for each piece."""
        # SDPA has a fused kernel for 4-D inputs only. `split` has one backward for all parts. With
        # slices q[:, i:j], the backward of each slice would fill a tensor of the size of the row.
        query_parts = q[None].split(self.lengths, dim=2)  # each (1, heads, length, D)
        key_parts = k[None].split(self.lengths, dim=2)  # each (1, kv_heads, length, D)
        value_parts = v[None].split(self.lengths, dim=2)
        outputs = []
        for i, (context, mask) in enumerate(zip(self.contexts, self.masks, strict=True)):
            key_pieces = (*context, i)
            query_pieces = key_pieces if mask is None else (i,)
            output = F.scaled_dot_product_attention(
                _join(query_parts, query_pieces),
                _join(key_parts, key_pieces),
                _join(value_parts, key_pieces),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=True,
            )
            outputs.append(output[:, :, -self.lengths[i] :])
        return torch.cat(outputs, dim=2)[0].transpose(0, 1)  # (T, heads, D)

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """The mask (queries, keys) of each piece, or None for a causal kernel without a mask.

        A causal kernel computes only half of the scores, but needs as many queries as keys. So the
        kernel also gets the queries of the context, and their outputs are dropped. This is faster
        than a mask if the ratio of keys to queries is below MAX_CAUSAL_RATIO.
        """
        masks: list[Tensor | None] = []
        for length, key_length in zip(self.lengths, self.key_lengths, strict=True):
            if key_length < MAX_CAUSAL_RATIO * length:
                masks.append(None)
                continue
            ones = torch.ones(length, key_length, dtype=torch.bool, device=self.device)
            masks.append(ones.tril(key_length - length))
        return masks

    def attend_varlen(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute attention with one kernel: flash-attn's if it is installed, else torch's."""
        q = q.transpose(0, 1).contiguous()  # (T, heads, D)
        index = self.varlen_index
        # index_select, because the backward of k[:, index] would sort the index
        k = k.transpose(0, 1).index_select(0, index.keys)  # (sum of key_lengths, kv_heads, D)
        v = v.transpose(0, 1).index_select(0, index.keys)
        max_lengths = (max(self.lengths), max(self.key_lengths))
        sizes = (index.query_ends, index.key_ends, *max_lengths)
        if flash_attn_varlen_func:
            return flash_attn_varlen_func(q, k, v, *sizes, softmax_scale=scale, causal=True)
        causal = (-1, 0)  # the window of a query: any key before it, and none after it
        if VARLEN_HAS_GQA:
            return varlen_attn(q, k, v, *sizes, scale=scale, window_size=causal, enable_gqa=True)
        group_size = q.shape[1] // k.shape[1]  # query heads for each key head
        k = k.repeat_interleave(group_size, dim=1)
        v = v.repeat_interleave(group_size, dim=1)
        return varlen_attn(q, k, v, *sizes, scale=scale, window_size=causal)

    @cached_property
    def varlen_index(self) -> _VarlenIndex:
        """The index for the varlen kernel, built on the CPU and copied to the device once."""
        row = torch.arange(sum(self.lengths), dtype=torch.int32).split(self.lengths)
        pieces = chain.from_iterable((*context, i) for i, context in enumerate(self.contexts))
        keys = torch.cat([row[i] for i in pieces])
        query_ends = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)
        key_ends = torch.tensor([0, *accumulate(self.key_lengths)], dtype=torch.int32)
        return _VarlenIndex(*to_device((keys, query_ends, key_ends), self.device))


def _join(parts: Sequence[Tensor], pieces: tuple[int, ...]) -> Tensor:
    """Concatenate the parts that belong to `pieces`: (1, heads, tokens, D)."""
    if len(pieces) == 1:
        return parts[pieces[0]]
    return torch.cat([parts[i] for i in pieces], dim=2)
