"""Packing: many token sequences in one row of T tokens, without padding.

The row is cut into *pieces*. The *context* of a piece lists the earlier pieces that this piece
continues. A token attends to every token in the context of its piece. In its own piece, a token
attends to itself and to the tokens before it. So a prompt that several sequences share is computed
once, except its last token. The model predicts a response token from the token before it in the
row. So the last prompt token must stand directly before each response to the prompt, and each
sequence has its own copy of this token. Example: responses `A A` and `B` to the prompt `P P P p`.

    row        P P P p A A p B
    piece      0 0 0 1 1 1 2 2     contexts: (), (0,), (0,)
    position   0 1 2 3 4 5 3 4
    response           x x   x

`micro_batches` decides which sequences share a row, `pack` builds the row, and `PackedLayout`
computes the attention in the row.
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

# varlen_attn supports GQA (query heads that share a key head) in torch 2.12, but not in torch 2.11.
VARLEN_HAS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters

# A piece also attends to its context (earlier pieces of the row), so it can have more keys than
# queries. SDPA's causal kernels need as many queries as keys, so a causal kernel also gets the
# queries of the context. If a piece has fewer than MAX_CAUSAL_RATIO times as many keys as own
# queries, a causal kernel is still faster than SDPA with a mask (see `PackedLayout.masks`).
MAX_CAUSAL_RATIO = 1.4


class TokenSequence(Protocol):
    """The attributes that packing.py reads from a trajectory."""

    @property
    def ids(self) -> list[int]:
        """The tokens of all prompts and responses."""

    @property
    def response_mask(self) -> list[bool]:
        """One flag for each token of `ids`: True for response tokens."""

    @property
    def observation_mask(self) -> list[bool]:
        """One flag for each token of `ids`: True for prompt tokens after the first response."""

    @property
    def first_prompt_ids(self) -> list[int]:
        """The tokens at the start of `ids`, before the first response."""


@dataclass
class PackedBatch:
    """The input of `Policy` and `Critic`: a row of T tokens, of which R are response tokens."""

    ids: Tensor  # (T,) int64
    position_ids: Tensor  # (T,) int64, position of each token in its sequence
    lengths: list[int]  # number of tokens in each piece; they sum to T
    # for each piece, the indices of the pieces in its context, in row order
    contexts: list[tuple[int, ...]]
    # (R,) int64, row indices of response tokens. No piece begins with a response token. So for each
    # index i here, the tokens at i - 1 and i of the row are also neighbours in their sequence
    response_index: Tensor
    # (O,) int64, row indices of observation tokens; None if `pack` got observations=False
    observation_index: Tensor | None = None

    @property
    def predicted_index(self) -> Tensor:
        """Row indices of the tokens whose log-probs `Policy` computes. Shape: (R,) or (R + O,)."""
        if self.observation_index is None:
            return self.response_index
        return torch.cat([self.response_index, self.observation_index])


# ---------- dividing sequences into rows


def micro_batches(sequences: Sequence[TokenSequence], max_tokens: int) -> list[list[int]]:
    """Divide sequences into packs of at most `max_tokens` tokens. A pack becomes one row.

    Sequences with the same first prompt become neighbours, because in `pack` only neighbours can
    share a prompt. A sequence that is longer than `max_tokens` gets a pack of its own.

    Returns: for each pack, a list of indices into `sequences`.
    """
    packs: list[list[int]] = []
    num_packed = 0  # number of tokens in the last pack
    previous_prompt = None
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i].first_prompt_ids):
        prompt = sequences[i].first_prompt_ids
        num_tokens = len(sequences[i].ids)
        num_new = num_tokens
        if prompt == previous_prompt:
            num_new -= len(prompt) - 1  # the last pack already has the shared prompt tokens
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

    The first piece holds the tokens with which the first prompt of every sequence begins. Adjacent
    sequences with the same first prompt (members of a group) share a second piece, which holds the
    rest of that prompt. But no shared piece holds the last token of a first prompt. That token and
    all later tokens of a sequence are one piece, which belongs to this sequence alone.

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
    """Return the part of the first prompt that sequences can share: all but the last token."""
    return sequence.first_prompt_ids[:-1]


@dataclass
class _Piece:
    ids: list[int]
    response_mask: list[bool]
    observation_mask: list[bool]  # empty if `pack` got observations=False
    start: int  # position of the piece's first token in the sequence
    context: tuple[int, ...]  # indices of the pieces that this piece continues


@dataclass
class _Row:
    """The pieces of a row under construction."""

    observations: bool
    pieces: list[_Piece] = field(default_factory=list)

    def append(
        self, sequence: TokenSequence, start: int, end: int, context: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Append a piece with sequence.ids[start:end], unless start == end.

        Returns: the context for a piece that continues sequence.ids[:end].
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
    """Move 1-D tensors of one dtype from the CPU to `device`.

    All tensors go to a GPU in one copy from pinned memory, so the host does not wait for the GPU.
    """
    if device.type != "cuda":
        return tensors
    joined = torch.cat(list(tensors)).pin_memory()
    sizes = [len(tensor) for tensor in tensors]
    return joined.to(device, non_blocking=True).split(sizes)


# ---------- attention inside the sequences


def has_varlen_kernel(device: torch.device) -> bool:
    """Whether the device can run varlen (variable-length) attention: Ampere and newer GPUs can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class _VarlenIndex(NamedTuple):
    """Int32 indices of the queries and keys of all pieces, for a varlen kernel."""

    # Row indices of each piece's keys. The keys of the context come before the piece's own keys.
    keys: Tensor  # (number of keys of all pieces,)
    query_ends: Tensor  # (pieces + 1,), cumulative number of queries, starting with 0
    key_ends: Tensor  # (pieces + 1,), cumulative number of keys, starting with 0


class PackedLayout:
    """The attention of one packed batch.

    All layers of the model share one `PackedLayout`, so it builds its masks or indices only once.
    In 16 bits, an Ampere or newer GPU runs one varlen kernel for the whole row. Otherwise (float32,
    a CPU or an older GPU), each piece of the row gets its own SDPA call. A piece's own keys come
    after the keys of its context (the earlier pieces that it continues), because causal kernels and
    `masks` align the last key with the last query.
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
        """Compute the attention of one layer, for T tokens and heads of size D.

        Args:
            q: (heads, T, D).
            k, v: (kv_heads, T, D).

        Returns: (T, heads, D).
        """
        if self.has_kernel and q.dtype != torch.float32:  # varlen kernels need 16 bits
            return self.attend_varlen(q, k, v, scale)
        return self.attend_pieces(q, k, v, scale)

    def attend_pieces(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute attention with one SDPA call for each piece."""
        # [None] adds a dimension, because SDPA has a fused kernel for 4-D inputs only. The backward
        # of `split` fills one tensor of the size of the row. With slices q[:, i:j] in place of
        # `split`, the backward would fill a tensor of this size for each slice.
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
        """Each piece's mask of shape (queries, keys), or None for a causal kernel without a mask.

        A causal kernel computes only half of the scores, but needs as many queries as keys. For a
        piece without a mask, `attend_pieces` therefore also gives the kernel the queries of the
        context, and drops the outputs of these queries. If a piece has fewer than MAX_CAUSAL_RATIO
        times as many keys as own queries, a causal kernel is still faster than SDPA with a mask.
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
        """Call one varlen kernel for the whole row: flash-attn's if installed, else torch's."""
        q = q.transpose(0, 1).contiguous()  # (T, heads, D)
        index = self.varlen_index
        # index_select is faster than k[:, index], whose backward would sort the index
        k = k.transpose(0, 1).index_select(0, index.keys)  # (sum of key_lengths, kv_heads, D)
        v = v.transpose(0, 1).index_select(0, index.keys)
        max_lengths = (max(self.lengths), max(self.key_lengths))
        sizes = (index.query_ends, index.key_ends, *max_lengths)
        if flash_attn_varlen_func:
            return flash_attn_varlen_func(q, k, v, *sizes, softmax_scale=scale, causal=True)
        causal = (-1, 0)  # a query sees its own key and all earlier keys, but no later key
        if VARLEN_HAS_GQA:
            return varlen_attn(q, k, v, *sizes, scale=scale, window_size=causal, enable_gqa=True)
        group_size = q.shape[1] // k.shape[1]  # number of query heads per key head
        k = k.repeat_interleave(group_size, dim=1)
        v = v.repeat_interleave(group_size, dim=1)
        return varlen_attn(q, k, v, *sizes, scale=scale, window_size=causal)

    @cached_property
    def varlen_index(self) -> _VarlenIndex:
        """Indices for a varlen kernel. The CPU builds them and copies them to the device once."""
        row = torch.arange(sum(self.lengths), dtype=torch.int32).split(self.lengths)
        pieces = chain.from_iterable((*context, i) for i, context in enumerate(self.contexts))
        keys = torch.cat([row[i] for i in pieces])
        query_ends = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)
        key_ends = torch.tensor([0, *accumulate(self.key_lengths)], dtype=torch.int32)
        return _VarlenIndex(*to_device((keys, query_ends, key_ends), self.device))


def _join(parts: Sequence[Tensor], pieces: tuple[int, ...]) -> Tensor:
    """Concatenate the parts whose indices are in `pieces`. Returns: (1, heads, tokens, D)."""
    if len(pieces) == 1:
        return parts[pieces[0]]
    return torch.cat([parts[i] for i in pieces], dim=2)
