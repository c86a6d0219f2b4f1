"""Multi-turn rollouts, token in and token out: sampled ids are kept and nothing is ever re-encoded.

`collect` plays many episodes at once. It does not know how tokens are made: an *engine* has `add` (continue this token
history), `step` (advance, return what finished) and `release`. When a trajectory finishes its turn, its environment
steps and its next turn joins the running batch: no barrier between turns. `TorchEngine` is such an engine in plain
PyTorch, with a KV cache that is kept over turns. Masks are by construction: `Turn.response_ids` is what the policy
sampled, its end-of-turn token included; `Turn.prompt_ids` was put there by us, a forced one included: not trained.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from configurator import Config
from dialogue import Episode
from envs import make_env
from model import IM_END, IM_START, Batch


@dataclass
class Turn:
    """What was put before the sample, what was sampled, and what the environment made of it."""

    prompt_ids: list[int]  # not trained: the first prompt, or the end of the last turn and the next observation
    response_ids: list[int]  # sampled by the policy, its end-of-turn token included when it sampled one
    rollout_logprobs: list[float]  # of response_ids under the sampler, after temperature, nats
    reward: float = 0.0  # environment units, format penalty included; earned by this turn's response
    text: str = ""  # the response decoded for the parser; never encoded again
    observation: str = ""  # the user message that the response answers
    info: dict = field(default_factory=dict)  # see dialogue.Outcome


@dataclass
class Trajectory:
    """One episode. `status`: success, failure, out_of_turns or out_of_tokens."""

    seed: tuple[int, ...]
    member: int
    turns: list[Turn] = field(default_factory=list)
    status: str = ""
    system: str = ""

    @property
    def ids(self) -> list[int]:
        return [token for turn in self.turns for token in (*turn.prompt_ids, *turn.response_ids)]

    @property
    def response_mask(self) -> list[bool]:
        """True exactly on the tokens the policy sampled."""
        return [flag for t in self.turns for flag in (*[False] * len(t.prompt_ids), *[True] * len(t.response_ids))]

    @property
    def rollout_logprobs(self) -> list[float]:
        return [lp for turn in self.turns for lp in turn.rollout_logprobs]

    @property
    def token_rewards(self) -> list[float]:
        """Every turn's reward on its last sampled token, 0 elsewhere; r_k of arXiv 2504.20073."""
        return [reward for turn in self.turns for reward in (*[0.0] * (len(turn.response_ids) - 1), turn.reward)]

    @property
    def num_response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def score(self) -> float:
        """Sum of turn rewards: the raw trajectory score that the filter and GRPO look at."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.status == "success"


# ---------- chat format


class Chat:
    """ChatML as token ids. Role marks are put by id, contents are encoded without special tokens: no text from the
    environment or echoed from the policy can forge a role boundary."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.start, self.end = tokenizer.convert_tokens_to_ids([IM_START, IM_END])
        if None in (self.start, self.end) or self.start == self.end:
            raise ValueError(f"the tokenizer has no {IM_START} and {IM_END} tokens; expected a ChatML (Qwen) tokenizer")
        self.encode = lru_cache(maxsize=4096)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def message(self, role: str, text: str) -> list[int]:
        return [self.start, *self.encode(f"{role}\n"), *self.encode(text), self.end, *self.encode("\n")]

    def opening(self, system: str, user: str) -> list[int]:
        """The first prompt, up to and including the mark that opens the assistant's turn."""
        return [*self.message("system", system), *self._reply_to(user)]

    def following(self, user: str, *, closed: bool) -> list[int]:
        """What comes between two responses. `closed`: the policy sampled its own end-of-turn token."""
        return [*([] if closed else [self.end]), *self.encode("\n"), *self._reply_to(user)]

    def _reply_to(self, user: str) -> list[int]:
        return [*self.message("user", user), self.start, *self.encode("assistant\n")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response without its end-of-turn token."""
        ids = ids[:-1] if ids and ids[-1] == self.end else ids
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


# ---------- the multi-turn loop


class Sample(NamedTuple):
    """A finished response: `key` as given to `add`, sampled ids, their log-probs."""

    key: int
    ids: list[int]
    logprobs: list[float]


def make_episode(config: Config) -> Episode:
    """A fresh dialogue with the environment that the config names."""
    return Episode(
        make_env(config.env, observation=config.observation, max_actions=config.actions_per_traj),
        think=config.think, max_turns=config.max_turns, actions_per_turn=config.actions_per_turn,
        format_penalty=config.format_penalty, max_response_tokens=config.max_response_tokens,
    )  # fmt: skip


def collect(
    engine, chat: Chat, config: Config, starts: Sequence[tuple[tuple[int, ...], int]], *,
    split: str, temperature: float, noise_seed: Sequence[int], on_done: Callable[[], object] = lambda: None,
) -> list[Trajectory]:  # fmt: skip
    """Play one episode for each (instance seed, member) in `starts`, all at once.

    Args: noise_seed: with instance, member and turn it seeds the sampling of every response, so the result does not
        depend on which trajectories happen to run together. on_done: called when a trajectory ends.
    Returns: trajectories in the order of `starts`. Raises: ValueError when a first prompt does not fit.
    """
    trajectories = [Trajectory(tuple(seed), member) for seed, member in starts]
    episodes, users = [make_episode(config) for _ in starts], []
    for trajectory, episode in zip(trajectories, episodes, strict=True):
        trajectory.system, user = episode.reset(trajectory.seed, split=split, member=trajectory.member)
        users.append(user)
    history: list[list[int]] = [[] for _ in starts]  # every token so far
    prompts: list[list[int]] = [[] for _ in starts]  # the tokens put before the response under way

    def ask(i: int, prompt: list[int]) -> bool:
        """Hand the next turn to the engine; False when nothing more fits into the context."""
        room = min(config.max_response_tokens, config.max_context_tokens - len(history[i]) - len(prompt))
        if room < 1:
            return False
        prompts[i] = prompt
        history[i] += prompt
        t = trajectories[i]
        seed = (*noise_seed, *t.seed, t.member, len(t.turns))
        engine.add(i, history[i], max_tokens=room, temperature=temperature, seed=seed)
        return True

    for i, trajectory in enumerate(trajectories):
        prompt = chat.opening(trajectory.system, users[i])
        if not ask(i, prompt):
            limit = config.max_context_tokens
            raise ValueError(f"the first prompt has {len(prompt)} tokens and max_context_tokens is {limit}; raise it")
    while engine.busy:
        for sample in engine.step():
            i, trajectory = sample.key, trajectories[sample.key]
            history[i] += sample.ids
            text = chat.decode(sample.ids)
            outcome = episodes[i].step(text)
            trajectory.turns.append(
                Turn(prompts[i], sample.ids, sample.logprobs, outcome.reward, text, users[i], outcome.info)
            )
            trajectory.status, users[i] = outcome.status or "", outcome.user
            closed = sample.ids[-1] == chat.end
            if not trajectory.status and not ask(i, chat.following(outcome.user, closed=closed)):
                trajectory.status = "out_of_tokens"
            if trajectory.status:
                engine.release(i)
                on_done()
    return trajectories


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over trajectories (see the metric glossary in README); fractions are over turns or statements."""
    turns = [turn for t in trajectories for turn in t.turns]
    checked = sum(turn.info["statements_checked"] for turn in turns)
    n = len(trajectories)
    return {
        "success": sum(t.success for t in trajectories) / n,
        "reward": sum(t.score for t in trajectories) / n,
        "num_turns": len(turns) / n,
        "num_actions": sum(turn.info["num_actions"] for turn in turns) / n,
        "valid_frac": sum(turn.info["format_ok"] for turn in turns) / len(turns),
        "effective_frac": sum(turn.info["effective"] for turn in turns) / len(turns),
        "thought_true_frac": sum(turn.info["statements_true"] for turn in turns) / max(checked, 1),
        "thoughts_per_turn": checked / len(turns),
        "response_length": sum(t.num_response_tokens for t in trajectories) / n,
    }


# ---------- the in-process engine


class TorchEngine:
    """Batched decoding with a static KV cache (layers, rows, kv_heads, positions, D) that persists over turns.

    Live rows are the first `len(self.rows)` of the cache, so a decode step works on contiguous views; a row that is
    released is overwritten by the last one. A token is drawn by inverse CDF from one uniform number that depends on
    the request's seed and the position only. It samples from the model object it is given: weights are never copied.
    """

    def __init__(self, model, *, eos_id: int, max_running: int, max_context_tokens: int):
        config, device = model.config, next(model.parameters()).device
        self.model, self.eos_id, self.max_running = model, eos_id, max_running
        heads_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        shape = (config.num_hidden_layers, max_running, config.num_key_value_heads, max_context_tokens, heads_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        counters = torch.zeros(4, max_running, dtype=torch.long, device=device)
        self.length, self.next_token, self.count, self.budget = counters
        self.temperature = torch.ones(max_running, device=device)
        self.noise, self.out_logprobs = torch.zeros(2, max_running, max_context_tokens, device=device)
        self.out_ids = torch.zeros(max_running, max_context_tokens, dtype=torch.long, device=device)
        self.rows: list[int] = []  # key of every live row
        self.ids: dict[int, list[int]] = {}  # tokens of a live row whose keys and values are cached, by key
        self.first_prompt: dict[tuple[int, ...], int] = {}  # first prompt -> key of a live row that has it cached
        self.waiting: list[tuple] = []
        self.num_prefilled = 0  # prompt tokens computed so far

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def add(self, key: int, ids: Sequence[int], *, max_tokens: int, temperature: float, seed: Sequence[int]) -> None:
        """Ask for a response to the token history `ids`. A key that was added before must extend its own history."""
        self.waiting.append((key, list(ids), max_tokens, temperature, seed))

    def release(self, key: int) -> None:
        """Forget a trajectory; the last live row moves into its place."""
        row, last = self.rows.index(key), len(self.rows) - 1
        self.first_prompt = {prompt: owner for prompt, owner in self.first_prompt.items() if owner != key}
        del self.ids[key]
        if row != last:
            used = int(self.length[last])
            for cache in (self.keys, self.values):
                cache[:, row, :, :used] = cache[:, last, :, :used]
            for state in (self.length, self.next_token, self.count, self.budget, self.temperature, self.noise,
                          self.out_ids, self.out_logprobs):  # fmt: skip
                state[row] = state[last]
            self.rows[row] = self.rows[last]
        self.rows.pop()

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admit what waits, then one forward that prefills its new tokens and draws one token for every live row;
        returns what finished."""
        segments, copies = self._admit()
        n, device = len(self.rows), self.length.device
        new = torch.tensor([token for _, _, ids in segments for token in ids], dtype=torch.long, device=device)
        places = [torch.arange(start, start + len(ids), device=device) for _, start, ids in segments]
        tokens, positions = torch.cat([self.next_token[:n], new]), torch.cat([self.length[:n], *places])
        layout = _CacheLayout(self, n, segments, copies)
        hidden = self.model.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        self.num_prefilled += len(new)
        logits = self.model.lm_head(hidden[:n]).float()  # (n, V)
        self.length[:n] += 1
        tokens, logprobs = self._draw(logits, n)
        self.out_ids[:n].scatter_(1, self.count[:n, None], tokens[:, None])
        self.out_logprobs[:n].scatter_(1, self.count[:n, None], logprobs[:, None])
        self.count[:n] += 1
        self.next_token[:n] = tokens
        done = ((tokens == self.eos_id) | (self.count[:n] == self.budget[:n])).nonzero()[:, 0].tolist()
        return [self._finish(row) for row in done]

    def _finish(self, row: int) -> Sample:
        key, count = self.rows[row], int(self.count[row])
        ids = self.out_ids[row, :count].tolist()
        self.ids[key] += ids[:-1]  # the last sampled token has no keys and values yet; it is fed with the next prompt
        return Sample(key, ids, self.out_logprobs[row, :count].tolist())

    def _admit(self) -> tuple[list[tuple], list[tuple]]:
        """Give rows to waiting requests. Returns: their new tokens but the last as (row, first place, ids), and where
        another row has the whole first prompt: (that row, row, tokens to copy)."""
        segments, copies, postponed = [], [], []
        for key, ids, max_tokens, temperature, seed in self.waiting:
            if key not in self.ids:
                if len(self.rows) == self.max_running:
                    postponed.append((key, ids, max_tokens, temperature, seed))
                    continue
                self.rows.append(key)
                self.ids[key] = []
            row, cached = self.rows.index(key), self.ids[key]
            assert ids[: len(cached)] == cached, "a trajectory's history must extend what was sampled"
            donor = self.first_prompt.setdefault(tuple(ids), key) if not cached else key
            if donor != key:
                copies.append((self.rows.index(donor), row, len(ids) - 1))
            elif len(ids) - 1 > len(cached):
                segments.append((row, len(cached), ids[len(cached) : -1]))
            self.ids[key] = ids
            self.length[row], self.next_token[row], self.count[row] = len(ids) - 1, ids[-1], 0
            self.budget[row], self.temperature[row] = max_tokens, temperature
            self.noise[row, :max_tokens] = torch.from_numpy(np.random.default_rng(seed).random(max_tokens, np.float32))
        self.waiting = postponed
        return segments, copies

    def _draw(self, logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """One token per row from softmax(logits / temperature), arg max at temperature 0; and its log-prob."""
        temperature = self.temperature[:n, None]
        logp = (logits / torch.where(temperature > 0, temperature, 1.0)).log_softmax(-1)  # (n, V)
        cdf = logp.exp().cumsum(-1)
        u = self.noise[:n].gather(1, self.count[:n, None]) * cdf[:, -1:]
        tokens = torch.searchsorted(cdf, u, right=True).clamp_max(logits.shape[-1] - 1)  # (n, 1)
        tokens = torch.where(temperature > 0, tokens, logits.argmax(-1, keepdim=True))
        return tokens[:, 0], logp.gather(1, tokens)[:, 0]


class _CacheLayout:
    """The tokens of one forward: the newest of each of the first n rows, then the segments that are to be prefilled.
    All keys and values are stored before anything attends to them, so a row may begin to decode at once."""

    def __init__(self, engine: TorchEngine, n: int, segments: list[tuple], copies: list[tuple]):
        self.engine, self.segments, self.copies = engine, segments, copies
        self.rows, self.at = torch.arange(n, device=engine.length.device), engine.length[:n]
        self.span = int(self.at.max()) + 1  # the shortest attention span that all live rows need
        beyond = torch.arange(self.span, device=self.at.device) > self.at[:, None]  # (n, span)
        self.bias = torch.zeros(beyond.shape, device=beyond.device).masked_fill_(beyond, -torch.inf)[:, None, None]
        sizes = [(len(ids), start) for _, start, ids in segments]
        self.masks = [torch.ones(m, start + m, dtype=torch.bool, device=self.at.device).tril(start) if start else None
                      for m, start in sizes]  # fmt: skip

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        n, lengths = len(self.rows), [len(ids) for _, _, ids in self.segments]
        keys, values = self.engine.keys[layer_idx], self.engine.values[layer_idx]  # (rows, kv_heads, positions, D)
        for cache, new in ((keys, k), (values, v)):
            newest, *pieces = new.to(cache.dtype).split([n, *lengths], dim=1)
            cache[self.rows, :, self.at] = newest.transpose(0, 1)
            for (row, start, ids), piece in zip(self.segments, pieces, strict=True):
                cache[row, :, start : start + len(ids)] = piece
            for source, row, used in self.copies:
                cache[row, :, :used] = cache[source, :, :used]
        newest, *pieces = q.split([n, *lengths], dim=1)
        # query heads that share a key head form one small batch
        newest = newest.transpose(0, 1).reshape(n, k.shape[0], -1, q.shape[-1])  # (n, kv_heads, group, D)
        held = (cache[:n, :, : self.span].to(q.dtype) for cache in (keys, values))
        out = [F.scaled_dot_product_attention(newest, *held, attn_mask=self.bias.to(q.dtype), scale=scale)]
        out[0] = out[0].reshape(n, -1, q.shape[-1])  # (n, heads, D)
        for (row, start, ids), piece, mask in zip(self.segments, pieces, self.masks, strict=True):
            held = (cache[None, row, :, : start + len(ids)].to(q.dtype) for cache in (keys, values))
            options = dict(attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
            out.append(F.scaled_dot_product_attention(piece[None], *held, **options)[0].transpose(0, 1))
        return torch.cat(out)  # (T, heads, D)


def make_engine(config: Config, model, chat: Chat) -> TorchEngine:
    """The engine that the config names, sampling from `model` itself."""
    sizes = dict(max_running=config.max_running, max_context_tokens=config.max_context_tokens)
    return TorchEngine(model, eos_id=chat.end, **sizes)


# ---------- packing for training


def pack(trajectories: Sequence[Trajectory], device: torch.device | str = "cpu") -> Batch:
    """Pack trajectories for `Policy` and `Critic`. Prompt tokens that they share are computed once: what all openings
    begin with, and the whole opening of neighbours that have the same one (members of a group)."""
    ids, positions, lengths, contexts, mask = [], [], [], [], []

    def put(t: Trajectory, start: int, end: int, context: tuple[int, ...]) -> tuple[int, ...]:
        """Append tokens start..end of a trajectory as a piece; returns the context of what continues it."""
        if start == end:
            return context
        ids.extend(t.ids[start:end]), mask.extend(t.response_mask[start:end]), positions.extend(range(start, end))
        lengths.append(end - start), contexts.append(context)
        return (*context, len(lengths) - 1)

    def opening(t: Trajectory) -> list[int]:
        return t.turns[0].prompt_ids[:-1]  # without the last token, whose state scores the first sampled one

    common = len(os.path.commonprefix([opening(t) for t in trajectories]))  # works for lists as for paths
    root = put(trajectories[0], 0, common, ())
    for shared, group in groupby(trajectories, key=opening):
        members = list(group)
        context = put(members[0], common, len(shared), root)
        for t in members:
            put(t, len(shared), len(t.ids), context)
    index = torch.tensor(mask).nonzero()[:, 0].to(device)
    return Batch(torch.tensor(ids, device=device), torch.tensor(positions, device=device), lengths, contexts, index)


def micro_batches(trajectories: Sequence[Trajectory], max_tokens: int) -> list[list[int]]:
    """Indices of trajectories in packs of at most `max_tokens` tokens (a longer one stands alone); trajectories with
    the same first prompt, which `pack` computes once, are neighbours."""
    packs, used, last = [], 0, None
    for i in sorted(range(len(trajectories)), key=lambda i: trajectories[i].turns[0].prompt_ids):
        opening, total = trajectories[i].turns[0].prompt_ids, len(trajectories[i].ids)
        cost = total - (len(opening) - 1) * (opening == last)
        if not packs or used + cost > max_tokens:
            packs.append([])
            used, cost = 0, total
        packs[-1].append(i)
        used, last = used + cost, opening
    return packs
