"""The engine in plain PyTorch: continuous batching with a KV cache."""

from configurator import Config, UserError

import copy
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from engines.sample import Sample, Seed, failure_reason
from packing import to_device
from utils.machine import free_cpu_memory
from utils.precision import product_in_float32

# The KV cache may take this share of the free memory. Training needs the rest.
CACHE_SHARE = 0.5
LARGE_CACHE = 10**9  # in bytes; the engine prints the size of a larger cache


class _Request(NamedTuple):
    """A request that waits for the next step, or for a free row of the KV cache.

    `Engine.add` describes the fields.
    """

    key: int
    ids: list[int]
    max_tokens: int
    temperature: float
    seed: Seed


@dataclass
class _Response:
    """A response that is not finished yet."""

    temperature: float
    noise: list[float]  # length max_tokens, uniform in [0, 1); noise[i] decides token i
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class _Prefill(NamedTuple):
    """New tokens whose keys and values go to row `row` of the cache, from position `start` on."""

    row: int
    start: int
    ids: list[int]


class _PrefixCopy(NamedTuple):
    """The first `num_tokens` keys and values of row `source`, to be copied to row `target`."""

    source: int
    target: int
    num_tokens: int


class TorchEngine:
    """Continuous batching in plain PyTorch, with a KV cache that has one row for each trajectory.

    A trajectory has a row of the cache from the start of its first response until `release`, so
    each turn computes only the turn's new tokens. One step is one forward over all rows in use:

        row 0   prompt response prompt respo_          decodes its next token
        row 1   prompt response                        waits for its environment
        row 2   prompt                                 new: prefills the prompt and decodes
        row 3   (free until the engine has more trajectories)

    The cache grows with the number of trajectories, up to max_running rows. If max_running rows
    would take more than half of the memory that was free at the engine's start, the cache has fewer
    rows. Further trajectories wait for a free row.

    The last token of a trajectory is the input of the next decode step, which computes the keys and
    values of this token.

    The rows in use are the first rows of the cache, so a decode step can slice them without a copy.
    When a row is released, the last row in use moves into its place.

    The trajectories of a group have the same initial state, and so the same first prompt. The
    engine computes the prompt's keys and values in one row and copies them into the other rows of
    the group.

    `Engine` in engine.py describes the methods.
    """

    def __init__(self, model: PreTrainedModel, config: Config, *, eos_id: int, dtype: torch.dtype):
        self.version: int | None = None
        self.dtype = dtype
        self.num_steps = 0
        self.num_prefilled = 0  # tokens so far
        self.eos_id = eos_id
        self.model = copy.deepcopy(model).requires_grad_(False)  # the trainer may shard `model`
        for parameter in self.model.parameters():
            # self.model.to(dtype) would also round the rotary frequencies, which are buffers.
            parameter.data = parameter.data.to(dtype)
        self.head = self._head()
        self.row_shape = (  # shape of the keys of one row in one layer
            model.config.num_key_value_heads,
            config.max_context_tokens,
            model.model.layers[0].self_attn.head_dim,
        )
        self.free_bytes = free_memory(model.device)
        self.cache = self._new_cache(0)  # (2, layers, rows, kv_heads, positions, D)
        self.max_running = min(config.max_running, self._rows_that_fit())
        self.memory_is_short = self.max_running < config.max_running
        self.row_keys: list[int] = []  # for each row in use, the `key` of its trajectory
        self.histories: dict[int, list[int]] = {}  # all tokens of each trajectory that has a row
        self.responses: dict[int, _Response] = {}  # maps a `key` to the unfinished response
        # Maps a prompt to the trajectory whose row has the prompt's keys and values.
        self.prompt_owner: dict[tuple[int, ...], int] = {}
        self.waiting: list[_Request] = []

    @property
    def busy(self) -> bool:
        return bool(self.responses or self.waiting)

    def add(
        self, key: int, ids: Sequence[int], *, max_tokens: int, temperature: float, seed: Seed
    ) -> None:
        """Request a response. The response begins in the next step, or later if no row is free."""
        self.waiting.append(_Request(key, list(ids), max_tokens, temperature, seed))

    @torch.inference_mode()
    def release(self, key: int) -> None:
        """Forget a trajectory, and move the last row in use into the trajectory's row."""
        row = self.row_keys.index(key)
        last_key = self.row_keys.pop()
        num_tokens = len(self.histories[last_key])
        last = self.cache[:, :, len(self.row_keys)]  # (2, layers, kv_heads, positions, D)
        self.cache[:, :, row, :, :num_tokens] = last[..., :num_tokens, :]
        if last_key != key:
            self.row_keys[row] = last_key
        del self.histories[key]
        owners = self.prompt_owner.items()
        self.prompt_owner = {prompt: owner for prompt, owner in owners if owner != key}

    @torch.no_grad()
    def load(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Load new weights."""
        is_idle = not self.row_keys and not self.waiting
        assert is_idle, "new weights while a trajectory is under way"
        own = dict(self.model.named_parameters(remove_duplicate=False))
        for name, weight in weights:
            own[name].copy_(weight)
        self.head = self._head()
        self.version = version

    def close(self) -> None:
        """Do nothing: the memory is freed together with this object."""

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admit waiting requests, make one forward and sample a token for each row.

        Raises: UserError if there is not enough memory for the keys and values.
        """
        self._make_room()
        prefills, copies = self._admit()
        hidden = self._forward(prefills, copies)  # (rows, H)
        logits = product_in_float32(hidden, self.head.T)  # (rows, V)
        temperatures = []
        noise = []
        for key in self.row_keys:
            response = self.responses.get(key)
            # A row that waits for its environment samples a token, too. `_append` drops this token.
            temperatures.append(response.temperature if response else 1.0)
            noise.append(response.noise[len(response.ids)] if response else 0.0)
        settings = (torch.tensor(temperatures), torch.tensor(noise))  # (rows,) each
        tokens, logprobs = sample_tokens(logits, *to_device(settings, self.cache.device))
        return self._append(tokens.tolist(), logprobs.tolist())

    def _head(self) -> Tensor:
        """The weights of the LM head, (V, H).

        On a CPU, `step` needs these weights in float32. `_head` converts them once, so that `step`
        need not convert them each time.
        """
        weight = self.model.lm_head.weight.detach()
        return weight.float() if weight.device.type == "cpu" else weight

    def _new_cache(self, num_rows: int) -> Tensor:
        """Return a cache of zeros of shape (2, layers, rows, kv_heads, positions, D)."""
        shape = (2, self.model.config.num_hidden_layers, num_rows, *self.row_shape)
        return torch.zeros(shape, dtype=self.dtype, device=self.model.device)

    def _row_bytes(self) -> int:
        num_numbers = 2 * self.model.config.num_hidden_layers * math.prod(self.row_shape)
        return num_numbers * self.dtype.itemsize

    def _rows_that_fit(self) -> int:
        """Return how many rows fit into CACHE_SHARE of the free memory, but at least 1.

        Raises: RuntimeError if the free memory does not hold one row."""
        if self._row_bytes() > self.free_bytes:
            raise RuntimeError(
                f"the keys and values of one trajectory of {self.row_shape[1]:,} tokens take "
                f"{self._row_bytes() / 1e9:.1f} GB, and there are {self.free_bytes / 1e9:.1f} GB "
                "of free memory"
            )
        return max(1, int(CACHE_SHARE * self.free_bytes / self._row_bytes()))

    def _make_room(self) -> None:
        """If the trajectories need more rows than the cache has, enlarge the cache.

        The cache never gets more than max_running rows.
        """
        waiting = {request.key for request in self.waiting} - self.histories.keys()
        num_asked = len(self.row_keys) + len(waiting)
        num_rows = self.cache.shape[2]
        if min(num_asked, self.max_running) <= num_rows:
            return
        # At least double the number of rows, so that the cache is seldom copied.
        num_rows = min(max(num_asked, 2 * num_rows), self.max_running)
        num_bytes = num_rows * self._row_bytes()
        size = (
            f"{num_bytes / 1e9:.1f} GB for the keys and values of {num_rows} trajectories of "
            f"{self.row_shape[1]:,} tokens"
        )
        if num_bytes > LARGE_CACHE:
            tqdm.write(
                f"the torch engine takes {size}; {self.free_bytes / 1e9:.1f} GB were free at its "
                "start"
            )
        if self.memory_is_short and num_rows < num_asked:
            tqdm.write(
                f"memory limits the torch engine to {num_rows} trajectories at once; {num_asked} "
                "were asked for, and the others wait"
            )
        try:
            cache = self._new_cache(num_rows)
        except RuntimeError as error:
            reason = failure_reason(error)
            raise UserError(f"the torch engine could not take {size} {reason}") from error
        used = len(self.row_keys)
        span = max((len(history) for history in self.histories.values()), default=0)
        cache[:, :, :used, :, :span] = self.cache[:, :, :used, :, :span]
        self.cache = cache

    def _admit(self) -> tuple[list[_Prefill], list[_PrefixCopy]]:
        """Start each waiting request whose trajectory has a row of the cache or gets a free row.

        Prefills and copies leave out a trajectory's last token, because this token is the input of
        the decode step.

        Returns: the tokens to prefill, and the prompts to copy from other rows.
        """
        prefills = []
        copies = []
        requests = self.waiting
        self.waiting = []
        for request in requests:
            key = request.key
            end = len(request.ids) - 1
            if key in self.histories:
                known = self.histories[key]
                is_extended = request.ids[: len(known)] == known
                assert is_extended, "a trajectory's history must extend its previous history"
                owner = key
                # A step samples a token, and the next step computes the token's keys and values.
                # The cache may not have the keys and values of known[-1] yet, so the prefill always
                # starts at known[-1].
                start = len(known) - 1
            elif len(self.row_keys) < self.max_running:
                self.row_keys.append(key)
                owner = self.prompt_owner.setdefault(tuple(request.ids), key)
                start = 0
            else:
                self.waiting.append(request)
                continue
            row = self.row_keys.index(key)
            if owner != key:
                copies.append(_PrefixCopy(self.row_keys.index(owner), row, end))
            elif end > start:
                prefills.append(_Prefill(row, start, request.ids[start:end]))
            self.histories[key] = request.ids
            generator = np.random.default_rng(request.seed)
            noise = generator.random(request.max_tokens, np.float32).tolist()
            self.responses[key] = _Response(request.temperature, noise)
        return prefills, copies

    def _forward(self, prefills: list[_Prefill], copies: list[_PrefixCopy]) -> Tensor:
        """Make one forward with T tokens: the last token of each row, then the tokens to prefill.

        Returns: the final hidden state of each row's last token, (rows, H).
        """
        tokens = []
        positions = []
        for key in self.row_keys:
            history = self.histories[key]
            tokens.append(history[-1])
            positions.append(len(history) - 1)
        num_rows = len(tokens)
        for prefill in prefills:
            tokens += prefill.ids
            positions += range(prefill.start, prefill.start + len(prefill.ids))
        self.num_steps += 1
        self.num_prefilled += len(tokens) - num_rows
        inputs = (torch.tensor(tokens), torch.tensor(positions))  # (T,) each
        input_ids, position_ids = to_device(inputs, self.cache.device)
        span = max(positions[:num_rows]) + 1
        output = self.model.model(
            input_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            layout=_CacheLayout(self.cache, position_ids[:num_rows], span, prefills, copies),
        )
        return output.last_hidden_state[0, :num_rows]

    def _append(self, tokens: list[int], logprobs: list[float]) -> list[Sample]:
        """Append one token to each unfinished response. Returns: the responses that finish now."""
        finished = []
        for key, token, logprob in zip(self.row_keys, tokens, logprobs, strict=True):
            response = self.responses.get(key)
            if response is None:
                continue
            response.ids.append(token)
            response.logprobs.append(logprob)
            self.histories[key].append(token)
            if token == self.eos_id or len(response.ids) == len(response.noise):
                del self.responses[key]
                finished.append(Sample(key, response.ids, response.logprobs))
        return finished


def sample_tokens(logits: Tensor, temperature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample tokens from softmax(logits / temperature) by inverting the CDF.

    Args:
        logits: (N, V) float32.
        temperature: (N,); 0 takes the most probable token and gives its log-prob at temperature 1.
        noise: (N,), uniform in [0, 1).

    Returns: tokens (N,) int64 and their log-probs (N,), nats.
    """
    temperature = temperature[:, None]
    logp = (logits / torch.where(temperature > 0, temperature, 1.0)).log_softmax(-1)  # (N, V)
    cdf = logp.exp().cumsum(-1)  # (N, V)
    # Rounding can move the last value of `cdf` away from 1, so `noise` is scaled by that value.
    threshold = noise[:, None] * cdf[:, -1:]  # (N, 1)
    tokens = torch.searchsorted(cdf, threshold, right=True)  # (N, 1)
    tokens = tokens.clamp_max(logits.shape[-1] - 1)
    tokens = torch.where(temperature > 0, tokens, logits.argmax(-1, keepdim=True))  # (N, 1)
    return tokens[:, 0], logp.gather(1, tokens)[:, 0]


def free_memory(device: torch.device) -> int:
    """Return how many bytes of a device's free memory this rank may use.

    On a CPU, the ranks of a machine get equal parts of the free memory.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return free_cpu_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class _CacheLayout:
    """Says where the tokens of one forward lie in the cache, and computes their attention.

    One object serves all layers. A forward has T tokens: one decode token for each of the N rows in
    use, then the tokens of the prefills. A layer stores all new keys and values before any token
    attends to them. So a row can prefill its prompt and decode its first token in one forward.
    """

    def __init__(
        self,
        cache: Tensor,
        positions: Tensor,
        span: int,
        prefills: list[_Prefill],
        copies: list[_PrefixCopy],
    ):
        self.cache = cache  # (2, layers, rows, kv_heads, positions, D)
        self.positions = positions  # (N,), the position of each decode token in its history
        self.span = span  # length of the longest history
        self.prefills = prefills
        self.copies = copies
        device = positions.device
        self.rows = torch.arange(len(positions), device=device)
        visible = torch.arange(span, device=device) <= positions[:, None]  # (N, span)
        self.decode_mask = visible[:, None, None]  # (N, 1, 1, span)
        self.sizes = [len(positions), *(len(prefill.ids) for prefill in prefills)]  # they sum to T
        self.prefill_masks = []
        for _, start, ids in prefills:
            if start == 0:  # `_prefill` uses is_causal instead of a mask
                self.prefill_masks.append(None)
                continue
            mask = torch.ones(len(ids), start + len(ids), dtype=torch.bool, device=device)
            self.prefill_masks.append(mask.tril(start))

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute the attention of one layer.

        Args:
            q: (heads, T, D).
            k, v: (kv_heads, T, D).

        Returns: (T, heads, D).
        """
        cache = self.cache[:, layer_idx]  # (2, rows, kv_heads, positions, D)
        self._store(cache, k, v)
        decode_queries, *prefill_queries = q.split(self.sizes, dim=1)
        outputs = [self._decode(cache, decode_queries, scale)]
        for i, queries in enumerate(prefill_queries):
            outputs.append(self._prefill(cache, i, queries, scale))
        return torch.cat(outputs)

    def _store(self, cache: Tensor, k: Tensor, v: Tensor) -> None:
        """Write the new keys and values into the cache, then copy shared prompts."""
        new = torch.stack([k, v])  # (2, kv_heads, T, D)
        decoded, *prefilled = new.split(self.sizes, dim=2)
        cache[:, self.rows, :, self.positions] = decoded.permute(2, 0, 1, 3)
        for (row, start, ids), part in zip(self.prefills, prefilled, strict=True):
            cache[:, row, :, start : start + len(ids)] = part
        for source, target, num_tokens in self.copies:
            cache[:, target, :, :num_tokens] = cache[:, source, :, :num_tokens]

    def _decode(self, cache: Tensor, queries: Tensor, scale: float) -> Tensor:
        """Compute attention for one query per row. Maps (heads, N, D) to (N, heads, D)."""
        num_rows = len(self.rows)
        kv_heads = cache.shape[2]
        head_dim = queries.shape[-1]
        # The query heads that share one key head become several queries to that key head.
        grouped = queries.transpose(0, 1).reshape(num_rows, kv_heads, -1, head_dim)
        keys, values = cache[:, :num_rows, :, : self.span]  # (N, kv_heads, span, D) each
        output = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=self.decode_mask, scale=scale
        )  # (N, kv_heads, group, D)
        return output.reshape(num_rows, -1, head_dim)

    def _prefill(self, cache: Tensor, i: int, queries: Tensor, scale: float) -> Tensor:
        """Compute attention for the P queries of prefill i. Maps (heads, P, D) to (P, heads, D)."""
        row, start, ids = self.prefills[i]
        mask = self.prefill_masks[i]
        end = start + len(ids)
        keys, values = cache[:, None, row, :, :end]  # (1, kv_heads, end, D) each
        output = F.scaled_dot_product_attention(
            queries[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1)
