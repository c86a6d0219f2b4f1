"""Where tokens come from: engines that continue token histories, many at once, and tell the log-prob of every sample.

An engine has `add` (ask for a response to this token history), `step` (advance; returns what finished), `busy`,
`release` (a trajectory ended), `close`, and `load` (take new weights). It keeps weights of its own, in the trainer's
compute type, and `version` says which: rollouts on other weights than the policy's are refused (parallel.py).
"""

from configurator import Config, UserError

import copy
import importlib.util
import logging
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model import pick_dtype

ENVIRONMENT = dict(
    VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind"
)
NEEDS_VLLM = (
    "pip install -r requirements.txt on a machine with a GPU, make vllm on others, or use --engine=torch; "
    "on a laptop add config/tiny.py, which has all that it needs"
)


class Sample(NamedTuple):
    """A finished response: `key` as given to `add`, sampled ids, their log-probs."""

    key: int
    ids: list[int]
    logprobs: list[float]


def check_installed(config: Config) -> None:
    """Raises: UserError where the config wants vLLM and there is none; before anything that takes long."""
    if config.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UserError(f"engine='vllm', but vLLM is not installed; {NEEDS_VLLM}")


def make_engine(config: Config, model, chat) -> "TorchEngine | VLLMEngine":
    """The engine that the config names, for models of the shape of `model`. Under torchrun all ranks call it together.

    Raises: UserError when the context is longer than the model's, or the engine cannot start."""
    wanted, longest = config.max_context_tokens, model.config.max_position_embeddings
    if wanted > longest:
        raise UserError(
            f"max_context_tokens is {wanted} and the model has {longest} positions; lower it"
        )
    engine = VLLMEngine if config.engine == "vllm" else TorchEngine
    try:
        return engine(model, config, eos_id=chat.end, dtype=pick_dtype(config.dtype, model.device))
    except ImportError as error:
        raise UserError(f"engine='vllm': {error}; {NEEDS_VLLM}") from error
    except (
        RuntimeError,
        ValueError,
        AssertionError,
    ) as error:  # torch.OutOfMemoryError is a RuntimeError
        why = f"the {config.engine} engine could not start ({_first_line(error)})"
        raise UserError(
            f"{why}; lower max_running or max_context_tokens, which size its KV cache"
        ) from error


# ---------- vLLM


@contextmanager
def _undisturbed():
    """vLLM reseeds the generators of the process when it is constructed, and on a CPU overwrites a word of torchrun."""
    states, environment = (np.random.get_state(), random.getstate()), dict(os.environ)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        yield
    np.random.set_state(states[0]), random.setstate(states[1])
    os.environ.update(environment)


class VLLMEngine:
    """vLLM 0.32 in this process, one independent engine per rank. It starts with dummy weights. Every response has a
    seed of its own, so what is sampled does not depend on what else runs."""

    def __init__(self, model, config: Config, *, eos_id: int, dtype: torch.dtype):
        self.version, self.dtype, self.eos_id, self.num_steps = None, dtype, eos_id, 0
        # room for all that may run, and some: the cache is handed out in blocks
        tokens = (config.max_running + 1) * (config.max_context_tokens + 64)
        shape, head_dim = model.config, model.model.layers[0].self_attn.head_dim
        cache = (
            2
            * shape.num_hidden_layers
            * shape.num_key_value_heads
            * head_dim
            * dtype.itemsize
            * tokens
        )  # bytes
        options = dict(
            gpu_memory_utilization=0.1
        )  # only checked against what is free: the cache has its own size
        if on_cpu := model.device.type == "cpu":
            # blocks of 128 tokens, the default on a CPU, lose most cache hits; chunks of a seeded prompt crash there
            options = dict(block_size=32, enforce_eager=True, enable_chunked_prefill=False)
        os.environ.update(
            ENVIRONMENT | dict(RANK="0", LOCAL_RANK="0") | os.environ
        )  # what is set stays
        with _undisturbed():
            from vllm import LLM
            from vllm.platforms import current_platform

            if current_platform.is_cpu() != on_cpu:
                raise ImportError(f"the installed one is not for device {model.device.type!r}")
            if on_cpu:
                current_platform.simple_compile_backend = (
                    "eager"  # no compiler needed, and a start in seconds
                )
            self.llm = LLM(
                model=model.name_or_path,
                load_format="dummy",
                generation_config="vllm",
                dtype=str(dtype)[6:],
                seed=config.seed + int(os.environ["RANK"]),
                distributed_executor_backend="external_launcher",
                max_model_len=config.max_context_tokens,
                max_num_seqs=config.max_running,
                max_num_batched_tokens=max(8192, config.max_context_tokens, config.max_running),
                kv_cache_memory_bytes=cache,
                enable_prefix_caching=True,
                logprobs_mode="processed_logprobs",
                **options,
            )
        self.engine = self.llm.llm_engine
        reloading = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        reloading.setLevel(logging.WARNING)
        reloading.addFilter(_refuse_unloaded)

    busy = property(lambda self: self.engine.has_unfinished_requests())

    def add(
        self,
        key: int,
        ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: Sequence[int],
    ) -> None:
        """Ask for a response to the token history `ids`; what earlier requests computed comes from the prefix cache."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        number = int(
            np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1
        )  # vLLM wants a signed one
        # no top_p, no top_k, no penalty: the log-probs are those of softmax(logits / temperature)
        how = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            seed=number,
            logprobs=0,
            ignore_eos=True,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=[self.eos_id],
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.engine.add_request(str(key), tokens_input(list(ids)), how)

    def step(self) -> list[Sample]:
        """One forward of everything that runs; returns what finished. Raises: UserError when vLLM fails."""
        self.num_steps += 1
        try:
            finished = [
                (int(request.request_id), request.outputs[0]) for request in self.engine.step()
            ]
        except Exception as error:  # its own kinds, those of CUDA, failed assertions
            advice = "lower max_running or max_context_tokens; started again, a run continues from its checkpoint"
            raise UserError(
                f"vLLM failed while sampling ({_first_line(error)}); {advice}"
            ) from error
        return [
            Sample(key, list(out.token_ids), list(out.logprobs.logprobs)) for key, out in finished
        ]

    def release(self, key: int) -> None:
        """Nothing to do: a finished request holds no memory that others need."""

    def load(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take new weights by their Hugging Face names, a tied head included, and forget everything cached."""
        self.llm.collective_rpc("reload_weights", kwargs=dict(weights_iterator=weights))
        if (
            not self.llm.reset_prefix_cache()
        ):  # it refuses while requests run, and stale keys would stay
            raise RuntimeError(
                "vLLM did not reset its prefix cache: a trajectory is still under way"
            )
        self.version = version

    def close(self) -> None:
        """Also destroys the process group of torch.distributed: the last thing a run does."""
        self.engine.engine_core.shutdown()


def _refuse_unloaded(record: logging.LogRecord) -> bool:
    """Log filter: vLLM only warns where a layer got no weights, such as a tied head that was not named."""
    message = record.getMessage()
    if (
        "Failed to load weights" in message and "RotaryEmbedding" not in message
    ):  # which has none to get
        raise RuntimeError(f"vLLM did not take all weights ({message})")
    return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---------- in plain PyTorch


class TorchEngine:
    """Batched decoding with a static KV cache that persists over turns, in plain PyTorch.

    Live rows are the first `len(self.rows)` of the cache, so a decode step works on contiguous views; a row that is
    released is overwritten by the last one. A token depends on the request's seed and its position only."""

    def __init__(self, model, config: Config, *, eos_id: int, dtype: torch.dtype):
        self.model = copy.deepcopy(model).requires_grad_(
            False
        )  # its own: the trainer's may be sharded
        for p in (
            self.model.parameters()
        ):  # not self.model.to, which would round the rotary frequencies as well
            p.data = p.data.to(dtype)
        self.version, self.dtype, self.eos_id, self.max_running = (
            None,
            dtype,
            eos_id,
            config.max_running,
        )
        shape, head_dim = model.config, model.model.layers[0].self_attn.head_dim
        sizes = (config.max_running, shape.num_key_value_heads, config.max_context_tokens, head_dim)
        self.cache = torch.zeros(
            2, shape.num_hidden_layers, *sizes, dtype=dtype, device=model.device
        )  # keys, values
        self.rows: list[int] = []  # key of every live row
        self.ids: dict[
            int, list[int]
        ] = {}  # history of a live row by key; all but its last token are in the cache
        self.turns: dict[
            int, tuple[Sample, float, list[float]]
        ] = {}  # by key: response so far, temperature, noise
        self.first_prompt: dict[
            tuple[int, ...], int
        ] = {}  # first prompt -> key of a live row that has it cached
        self.waiting: list[tuple] = []
        self.num_prefilled = self.num_steps = 0  # prompt tokens computed and forwards made so far

    busy = property(lambda self: bool(self.turns or self.waiting))

    @torch.no_grad()
    def load(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take new weights by their Hugging Face names; cached keys and values must all have been released."""
        assert not self.rows and not self.waiting, "new weights while a trajectory is under way"
        own = dict(self.model.named_parameters(remove_duplicate=False))
        for name, weight in weights:
            own[name].copy_(weight)
        self.version = version

    def add(
        self,
        key: int,
        ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: Sequence[int],
    ) -> None:
        """Ask for a response to the token history `ids`. A key that was added before must extend its own history."""
        self.waiting.append((key, list(ids), max_tokens, temperature, seed))

    def close(self) -> None:
        """Nothing to do."""

    def release(self, key: int) -> None:
        """Forget a trajectory; the last live row moves into its place."""
        row, last = self.rows.index(key), len(self.rows) - 1
        self.first_prompt = {
            prompt: owner for prompt, owner in self.first_prompt.items() if owner != key
        }
        used = len(self.ids[self.rows[last]])
        self.cache[:, :, row, :, :used] = self.cache[:, :, last, :, :used]
        self.rows[row] = self.rows[last]
        del self.rows[last], self.ids[key]

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admit what waits, prefill its new tokens and draw a token for every live row; returns what finished."""
        segments, copies = self._admit()
        self.num_steps += 1
        n, device, histories = (
            len(self.rows),
            self.cache.device,
            [self.ids[key] for key in self.rows],
        )
        new = [(token, start + i) for _, start, ids in segments for i, token in enumerate(ids)]
        tokens, places = torch.tensor(
            [(ids[-1], len(ids) - 1) for ids in histories] + new, device=device
        ).T  # (T,)
        self.num_prefilled += len(new)
        options = dict(
            use_cache=False, layout=_CacheLayout(self.cache, places[:n], segments, copies)
        )
        hidden = self.model.model(
            tokens[None], position_ids=places[None], **options
        ).last_hidden_state[0]
        # rows without a turn wait for their environments, and what is drawn for them is not kept
        turns = [
            self.turns[key] if key in self.turns else (Sample(key, [], []), 1.0, [0.0])
            for key in self.rows
        ]
        choice = [(temperature, noise[len(sample.ids)]) for sample, temperature, noise in turns]
        drawn = draw(self.model.lm_head(hidden[:n]).float(), *torch.tensor(choice, device=device).T)
        finished = []
        for (sample, _, noise), ids, token, logprob in zip(
            turns, histories, *(x.tolist() for x in drawn), strict=True
        ):
            if sample.key in self.turns:
                sample.ids.append(token), sample.logprobs.append(logprob), ids.append(token)
                if token == self.eos_id or len(sample.ids) == len(noise):
                    finished.append(self.turns.pop(sample.key)[0])
        return finished

    def _admit(self) -> tuple[list[tuple], list[tuple]]:
        """Give rows to waiting requests. Returns: their new tokens but the last as (row, first place, ids), and where
        another row has the whole first prompt: (that row, row, tokens to copy)."""
        requests, self.waiting, segments, copies = self.waiting, [], [], []
        for request in requests:
            key, ids, max_tokens, temperature, seed = request
            if key not in self.ids and len(self.rows) == self.max_running:
                self.waiting.append(request)
                continue
            if key not in self.ids:
                self.rows.append(key)
            row, known = self.rows.index(key), self.ids.get(key, [])
            assert ids[: len(known)] == known, "a trajectory's history must extend what was sampled"
            donor, start = (
                key if known else self.first_prompt.setdefault(tuple(ids), key),
                len(known[:-1]),
            )
            if donor != key:
                copies.append((self.rows.index(donor), row, len(ids) - 1))
            elif len(ids) - 1 > start:
                segments.append((row, start, ids[start:-1]))
            self.ids[key] = ids
            noise = np.random.default_rng(seed).random(max_tokens, np.float32).tolist()
            self.turns[key] = Sample(key, [], []), temperature, noise
        return segments, copies


def draw(logits: Tensor, temperature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (n,) from softmax(logits (n, V) / temperature (n,)) by inverse CDF of `noise` (n,), uniform in [0, 1), arg
    max at temperature 0; and their log-probs (n,)."""
    temperature = temperature[:, None]
    logp = (logits / torch.where(temperature > 0, temperature, 1.0)).log_softmax(-1)  # (n, V)
    cdf = logp.exp().cumsum(-1)
    tokens = torch.searchsorted(cdf, noise[:, None] * cdf[:, -1:], right=True).clamp_max(
        logits.shape[-1] - 1
    )  # (n, 1)
    tokens = torch.where(temperature > 0, tokens, logits.argmax(-1, keepdim=True))
    return tokens[:, 0], logp.gather(1, tokens)[:, 0]


class _CacheLayout:
    """The tokens of one forward: the newest of each of the first n rows, then the segments that are to be prefilled.
    All keys and values are stored before anything attends to them, so a row may begin to decode at once."""

    def __init__(self, cache: Tensor, at: Tensor, segments: list[tuple], copies: list[tuple]):
        self.cache, self.at, self.segments, self.copies = cache, at, segments, copies
        self.rows, places = (
            torch.arange(size, device=at.device) for size in (len(at), int(at.max()) + 1)
        )
        self.seen = (places <= at[:, None])[
            :, None, None
        ]  # (n, 1, 1, span), the shortest span that all rows need
        self.sizes = [len(at), *(len(ids) for _, _, ids in segments)]
        self.masks = [
            torch.ones(len(ids), start + len(ids), dtype=torch.bool, device=at.device).tril(start)
            if start
            else None
            for _, start, ids in segments
        ]

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        n, cache = len(self.rows), self.cache[:, layer_idx]  # (2, rows, kv_heads, positions, D)
        newest, *pieces = torch.stack([k, v]).split(self.sizes, dim=2)  # (2, kv_heads, tokens, D)
        cache[:, self.rows, :, self.at] = newest.permute(2, 0, 1, 3)
        for (row, start, ids), piece in zip(self.segments, pieces, strict=True):
            cache[:, row, :, start : start + len(ids)] = piece
        for source, row, used in self.copies:
            cache[:, row, :, :used] = cache[:, source, :, :used]
        newest, *pieces = q.split(self.sizes, dim=1)
        # query heads that share a key head form one small batch
        newest = newest.transpose(0, 1).reshape(
            n, k.shape[0], -1, q.shape[-1]
        )  # (n, kv_heads, group, D)
        held = cache[:, :n, :, : self.seen.shape[-1]]
        newest = F.scaled_dot_product_attention(newest, *held, attn_mask=self.seen, scale=scale)
        out = [newest.reshape(n, -1, q.shape[-1])]  # (n, heads, D)
        for (row, start, ids), piece, mask in zip(self.segments, pieces, self.masks, strict=True):
            held = cache[:, None, row, :, : start + len(ids)]
            options = dict(attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
            out.append(
                F.scaled_dot_product_attention(piece[None], *held, **options)[0].transpose(0, 1)
            )
        return torch.cat(out)  # (T, heads, D)
