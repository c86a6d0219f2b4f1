"""Benchmark of rollouts: the torch engine, vLLM and Hugging Face.

vLLM also runs with a barrier after every turn, where all trajectories wait for the slowest.
"""

from configurator import Config

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

import parallel
from dialogue import Chat
from engine import Sample, make_engine
from model import Policy, load_model
from rollout import collect
from studies.speed.bench_measure import Rows, check, compare, is_installed, starts

CACHE_KEPT = "Hugging Face, cache kept over turns"
HISTORY_PREFILLED = "Hugging Face, history prefilled every turn"


def rollout(config: Config, repeats: int) -> Rows:
    """Time the trajectories of one iteration with every engine.

    Sampling is greedy, so the engines differ only where rounding changes a token. More than 95 % of
    an engine's trajectories must equal those of the torch engine.
    """
    model, tokenizer = load_model(config.model)
    hf_model = AutoModelForCausalLM.from_pretrained(config.model, attn_implementation="sdpa")
    chat = Chat(tokenizer)
    engines = make_engines(config, model, chat)
    played: dict[str, list[list[int]]] = {}

    def play(name: str) -> dict[str, float]:
        engine = engines.get(name) or HuggingFace(hf_model, chat.end, keep=name == CACHE_KEPT)
        steps_before = engine.num_steps
        trajectories = collect(
            DrawnLengths(engine),
            chat,
            config,
            starts(config),
            split="train",
            temperature=0.0,
            noise_seed=(0,),
        )
        played[name] = [trajectory.ids for trajectory in trajectories]
        check_tokens(name, played[name], played["torch engine"])
        return {
            "engine steps": engine.num_steps - steps_before,
            "sampled tokens": sum(t.num_response_tokens for t in trajectories),
        }

    names = (*engines, CACHE_KEPT, HISTORY_PREFILLED)
    return compare({name: partial(play, name) for name in names}, repeats)


def make_engines(config: Config, model: PreTrainedModel, chat: Chat) -> dict:
    torch_engine = make_engine(config, model, chat)
    parallel.sync_weights(torch_engine, Policy(model))
    engines = {"torch engine": torch_engine}
    if is_installed("vllm"):
        vllm_engine = make_engine(replace(config, engine="vllm"), model, chat)
        parallel.sync_weights(vllm_engine, Policy(model))
        engines["vLLM, continuous"] = vllm_engine
        engines["vLLM, a barrier a turn"] = Barrier(vllm_engine)
    return engines


def check_tokens(name: str, ids: Sequence[list[int]], expected: Sequence[list[int]]) -> None:
    same = np.mean([a == b for a, b in zip(ids, expected, strict=True)])
    difference = f"{name} plays only {same:.0%} of the trajectories like the torch engine"
    check(same > 0.95, difference)


# ---------- engines


class Barrier:
    """An engine that begins a turn only when every trajectory has finished the previous turn."""

    def __init__(self, engine):
        self.engine = engine
        self.next_turn: list[tuple] = []
        self.release = engine.release

    @property
    def busy(self) -> bool:
        return bool(self.next_turn)

    @property
    def num_steps(self) -> int:
        return self.engine.num_steps

    def add(self, *args, **options) -> None:
        self.next_turn.append((args, options))

    def step(self) -> list[Sample]:
        for args, options in self.next_turn:
            self.engine.add(*args, **options)
        self.next_turn = []
        finished = []
        while self.engine.busy:
            finished += self.engine.step()
        return finished


class DrawnLengths:
    """An engine that cuts every reply at a random length of at most 100 tokens.

    The length is drawn from a geometric distribution with a mean of 25 tokens, and then limited to
    100 and `max_tokens`. The seed of the reply decides the length, so all engines cut at the same
    token.
    """

    def __init__(self, engine):
        self.engine = engine
        self.step = engine.step
        self.release = engine.release

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def add(self, key: int, ids: list[int], *, max_tokens: int, seed: tuple, **options) -> None:
        drawn = int(np.random.default_rng(seed).geometric(1 / 25))
        length = min(drawn, 100, max_tokens)
        self.engine.add(key, ids, max_tokens=length, seed=seed, **options)


class HuggingFace:
    """An engine that calls `generate` once a turn, for a batch of all unfinished trajectories.

    Args:
        keep: True to keep the KV cache from turn to turn. If False, every turn prefills the whole
            history.
    """

    def __init__(self, model: PreTrainedModel, eos_id: int, *, keep: bool):
        self.model = model
        self.eos_id = eos_id
        self.keep = keep
        self.num_steps = 0
        self.waiting: list[tuple[int, list[int], int]] = []  # key, history, max_tokens
        self.keys: list[int] = []  # for each row of `ids` and `mask`, the key of its trajectory
        self.forget()

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    def release(self, key: int) -> None:
        """Do nothing, because `step` keeps only the trajectories added since its last call."""

    def add(self, key: int, ids: list[int], *, max_tokens: int, **_) -> None:
        self.waiting.append((key, list(ids), max_tokens))

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        requests = sorted(self.waiting)
        self.waiting = []
        keys = [key for key, _, _ in requests]
        max_tokens = torch.tensor([limit for _, _, limit in requests])  # (B,)
        if not self.keep or not self.keys:
            self.forget(len(requests))
        elif keys != self.keys:
            self.select(keys)
        self.keys = keys
        self.append_prompts([ids for _, ids, _ in requests])
        sampled = self.generate(int(max_tokens.max()))  # (B, T)
        self.num_steps += sampled.shape[1]

        is_end = (sampled == self.eos_id).long()
        up_to_end = is_end.cumsum(1) == is_end  # True up to and including a row's first end token
        within_limit = torch.arange(sampled.shape[1]) < max_tokens[:, None]
        valid = up_to_end & within_limit  # (B, T), True for the tokens that later turns see
        self.mask = torch.cat([self.mask, valid.long()], 1)
        samples = []
        for key, row, flags in zip(keys, sampled, valid, strict=True):
            reply = row[flags].tolist()
            samples.append(Sample(key, reply, [0.0] * len(reply)))
        return samples

    def forget(self, num_rows: int = 0) -> None:
        self.cache = DynamicCache() if self.keep else None
        self.ids = torch.zeros(num_rows, 0, dtype=torch.long)  # (B, T)
        self.mask = self.ids.clone()  # (B, T), 0 on padding and beyond max_tokens

    def select(self, keys: Sequence[int]) -> None:
        rows = torch.tensor([self.keys.index(key) for key in keys])
        self.cache.batch_select_indices(rows)
        self.ids = self.ids[rows]
        self.mask = self.mask[rows]

    def append_prompts(self, histories: Sequence[list[int]]) -> None:
        """Pad the new tokens of each history on the left, and append them to `ids`."""
        num_known = self.mask.sum(1).tolist()
        new = [torch.tensor(ids[n:]) for ids, n in zip(histories, num_known, strict=True)]
        ones = [torch.ones_like(row) for row in new]
        self.ids = torch.cat([self.ids, pad_left(new)], 1)
        self.mask = torch.cat([self.mask, pad_left(ones)], 1)

    def generate(self, max_new_tokens: int) -> Tensor:
        """Append greedy replies to `ids`, and return the replies, (B, T)."""
        num_prompt = self.ids.shape[1]
        self.ids = self.model.generate(
            self.ids,
            attention_mask=self.mask,
            past_key_values=self.cache,
            do_sample=False,
            pad_token_id=0,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.eos_id,
        )
        return self.ids[:, num_prompt:]


def pad_left(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_side="left")
