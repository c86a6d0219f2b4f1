"""Speed beside what one would use instead: CPU time and counts first, as wall time on a shared machine says little.

    python bench.py rollout     # 128 multi-turn trajectories: our engines, vLLM with a barrier, Hugging Face
    python bench.py update      # the packed update and a padded one of the same trajectories
    python bench.py head        # log-probs in chunks and with full logits, vocabulary 151,936: peak memory

Settings: frozenlake_grpo with tiny, and --key=value. Repeats are interleaved, after one to warm up; tables have median,
smallest, largest. Weights are random, lengths drawn in advance; the work is compared first: same tokens, same loss.
"""

import importlib.util
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import parallel
from configurator import Config, fail_clearly, load_config
from engine import Sample, make_engine
from model import Policy, build_tiny, chunked_logprobs, load_model
from rollout import Chat, Trajectory, collect, micro_batches, pack
from starpo import policy_loss

FOLDER = "out/bench_model"  # of the random weights
STARTS = [((71, i // 16), i % 16) for i in range(128)]  # 8 instances of 16 members
LENGTHS = dict(max_response_tokens=100, max_context_tokens=1600)


def compare(variants: dict[str, Callable[[], dict]], repeats: int) -> dict[str, dict]:
    """Prints and returns median, smallest and largest value of the times and of what the variants return."""
    runs: dict[str, list[dict]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, run in variants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            counts = run()
            times = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
            runs[name] += [times | counts] if repeat else []
    rows = {}
    for name, found in runs.items():
        rows[name] = {key: [float(f([r[key] for r in found])) for f in (np.median, np.min, np.max)] for key in found[0]}
        cells = [f"{key} {m:,.5g} [{low:,.5g}, {high:,.5g}]" for key, (m, low, high) in rows[name].items()]
        ratio = rows[name]["cpu_s"][0] / next(iter(rows.values()))["cpu_s"][0]
        print(f"| {name} | {' | '.join(cells)} | CPU time {ratio:.2f} x |")
    return rows


class Barrier:
    """An engine that begins a turn only when every trajectory has finished the one before."""

    def __init__(self, engine):
        self.engine, self.next, self.done, self.release = engine, [], [], engine.release

    busy = property(lambda self: self.engine.busy or bool(self.next))

    def add(self, *args, **options) -> None:
        self.next.append((args, options))

    def step(self) -> list[Sample]:
        if not self.engine.busy:
            for args, options in self.next:
                self.engine.add(*args, **options)
            self.next = []
        self.done += self.engine.step()
        done, self.done = ([], self.done) if self.engine.busy else (self.done, [])
        return done


class DrawnLengths:
    """Cuts every response at a length drawn from its seed: geometric with mean 25, at most 100 tokens."""

    def __init__(self, engine):
        self.engine, self.step, self.release = engine, engine.step, engine.release

    busy = property(lambda self: self.engine.busy)

    def add(self, key: int, ids: list[int], *, max_tokens: int, seed: tuple, **options) -> None:
        length = min(int(np.random.default_rng(seed).geometric(1 / 25)), 100, max_tokens)
        self.engine.add(key, ids, max_tokens=length, seed=seed, **options)


class HuggingFace:
    """`generate` for all trajectories still in the game, turn by turn, padded on the left; `keep`: with a cache that
    lasts over turns, else the whole history is prefilled again."""

    def __init__(self, eos_id: int, *, keep: bool):
        self.model = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa")
        self.eos_id, self.keep, self.waiting, self.num_steps = eos_id, keep, [], 0
        self.keys, self.known = [], {}  # rows of ids, mask and cache; tokens of a key's history that are among the ids

    busy = property(lambda self: bool(self.waiting))

    def release(self, key: int) -> None:
        self.known.pop(key)

    def add(self, key: int, ids: list[int], *, max_tokens: int, **_) -> None:
        self.waiting.append((key, list(ids), max_tokens))

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        todo, self.waiting = sorted(self.waiting), []
        keys, most = [key for key, *_ in todo], torch.tensor([n for *_, n in todo])
        if not (self.keep and self.keys):
            self.cache = DynamicCache() if self.keep else None
            self.ids, self.mask, self.known = (torch.zeros(len(todo), 0, dtype=torch.long),) * 2 + ({},)
        elif keys != self.keys:
            stay = torch.tensor([self.keys.index(key) for key in keys])
            self.cache.batch_select_indices(stay)
            self.ids, self.mask = self.ids[stay], self.mask[stay]
        new = [ids[self.known.get(key, 0) :] for key, ids, _ in todo]
        width = max(map(len, new))
        self.ids = torch.cat([self.ids, torch.tensor([[0] * (width - len(row)) + row for row in new])], 1)
        block = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in new])
        self.mask = torch.cat([self.mask, block], 1)
        self.ids = self.model.generate(
            self.ids, attention_mask=self.mask, past_key_values=self.cache, do_sample=False, pad_token_id=0,
            max_new_tokens=int(most.max()), eos_token_id=self.eos_id,
        )  # fmt: skip
        sampled = self.ids[:, self.mask.shape[1] :]
        self.num_steps += sampled.shape[1]
        ended = (sampled == self.eos_id).int().cumsum(1) - (sampled == self.eos_id).int()
        valid = (ended == 0) & (torch.arange(sampled.shape[1]) < most[:, None])  # the rest is masked from now on
        self.mask, self.keys = torch.cat([self.mask, valid.long()], 1), keys
        replies = [row[flags].tolist() for row, flags in zip(sampled, valid, strict=True)]
        self.known = {key: len(ids) + len(reply) for (key, ids, _), reply in zip(todo, replies, strict=True)}
        return [Sample(key, reply, [0.0] * len(reply)) for key, reply in zip(keys, replies, strict=True)]


def rollout(config: Config, repeats: int) -> dict:
    """Greedy, so that everyone samples the same tokens; members of a group differ by the transitions."""
    config = replace(config, **LENGTHS)
    model, tokenizer = load_model(FOLDER)
    chat, policy, played = Chat(tokenizer), Policy(model), {}
    engines = {"torch engine": make_engine(config, model, chat)}
    if importlib.util.find_spec("vllm"):
        engines["vLLM, continuous"] = make_engine(replace(config, engine="vllm"), model, chat)
        engines["vLLM, a barrier a turn"] = Barrier(engines["vLLM, continuous"])
    for name in list(engines)[:2]:
        parallel.synchronize(engines[name], policy)

    def play(name: str) -> dict:
        engine = engines.get(name) or HuggingFace(chat.end, keep="kept" in name)
        counter = engine.engine if isinstance(engine, Barrier) else engine
        before, options = counter.num_steps, dict(split="train", temperature=0.0, noise_seed=(0,))
        done = collect(DrawnLengths(engine), chat, config, STARTS, **options)
        played[name] = [t.ids for t in done]
        same = np.mean([a == b for a, b in zip(played[name], played["torch engine"], strict=True)])
        assert same > 0.95, f"{name} plays only {same:.0%} of the trajectories like the torch engine"
        return {"engine steps": counter.num_steps - before, "sampled tokens": sum(t.num_response_tokens for t in done)}

    names = (*engines, "Hugging Face, cache kept over turns", "Hugging Face, history prefilled every turn")
    return compare({name: lambda name=name: play(name) for name in names}, repeats)


def padded_logprobs(model, part: list[Trajectory]) -> torch.Tensor:
    """Padded to the longest, logits and softmax at every position, those of sampled tokens picked afterwards; (R,)."""
    width = max(len(t.ids) for t in part)
    ids, mask, sampled = (
        torch.tensor([row + [0] * (width - len(row)) for row in rows])
        for rows in ([t.ids for t in part], [[1] * len(t.ids) for t in part], [t.response_mask for t in part])
    )
    logp = model(ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
    return logp.gather(2, ids[:, 1:, None])[..., 0][sampled[:, 1:] > 0]


def update(config: Config, repeats: int) -> dict:
    """32 trajectories of 2 groups, over after 1 to 5 turns; loss and gradient norm must agree first."""
    config = replace(config, **LENGTHS)
    model, tokenizer = load_model(FOLDER)
    engine = DrawnLengths(make_engine(config, model, Chat(tokenizer)))
    played = collect(engine, Chat(tokenizer), config, STARTS[:32], split="train", temperature=1.0, noise_seed=(0,))
    kept = [replace(t, turns=t.turns[: 1 + i % 5]) for i, t in enumerate(played)]
    advantages, num_tokens = torch.linspace(-1, 1, len(kept)), sum(t.num_response_tokens for t in kept)
    policy, plain = Policy(model), AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa")

    def run(module, work: list[list[int]], logprobs_of: Callable[[list[Trajectory]], torch.Tensor]) -> dict:
        total = 0.0
        for indices in work:
            part = [kept[i] for i in indices]
            old = torch.tensor([lp for t in part for lp in t.rollout_logprobs])
            each = advantages[indices].repeat_interleave(torch.tensor([t.num_response_tokens for t in part]))
            loss, _ = policy_loss(logprobs_of(part), old, each, clip_low=0.2, clip_high=0.28, num_tokens=num_tokens)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), math.inf).item()
        module.zero_grad()
        return {"loss": total, "gradient norm": norm}

    packs, eights = micro_batches(kept, config.micro_batch_tokens), torch.arange(len(kept)).view(-1, 8).tolist()
    variants = {"packed": lambda: run(policy, packs, lambda part: policy(pack(part), 1.0)[0]),
                "padded": lambda: run(plain, eights, lambda part: padded_logprobs(plain, part))}  # fmt: skip
    one, other = (variant() for variant in variants.values())
    off = one["loss"] - other["loss"], one["gradient norm"] / other["gradient norm"] - 1
    assert max(map(abs, off)) < 1e-5, f"packed {one} and padded {other} differ"
    print(f"{len(kept)} trajectories, {min(len(t.ids) for t in kept)} to {max(len(t.ids) for t in kept)} tokens")
    return compare(variants, repeats)


def measure_head(chunk: int, rows: int = 2048, vocabulary: int = 151_936) -> None:
    """Forward and backward of log-probs; prints CPU-seconds and the peak of memory above what was there before."""
    hidden, weight = torch.randn(rows, 896, requires_grad=True), (torch.randn(vocabulary, 896) * 0.02).requires_grad_()
    weight.grad, targets = torch.zeros_like(weight).fill_(0), torch.randint(vocabulary, (rows, 1))
    before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    logits = None if chunk else hidden @ weight.T
    ours = chunked_logprobs(hidden, weight, targets[:, 0], chunk=chunk)[0] if chunk else None
    (ours if chunk else logits.log_softmax(-1).gather(1, targets)).sum().backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    print(json.dumps({"head_cpu_s": time.process_time() - cpu, "peak_mib": peak / 1024}))


def head(config: Config, repeats: int) -> dict:
    """2,048 positions, a process for each measurement, because the peak of a process never falls."""

    def run(chunk: int) -> dict:
        code = f"import torch, bench; torch.set_num_threads(1); torch.manual_seed(0); bench.measure_head({chunk})"
        return json.loads(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)

    return compare({"full logits": lambda: run(0), "chunks of 256": lambda: run(256)}, repeats)


def main(argv: list[str]) -> None:
    benches = {"rollout": rollout, "update": update, "head": head}
    if not argv or argv[0] not in benches:
        raise ValueError(f"give one of {', '.join(benches)}; got {argv[:1] or 'nothing'}")
    base = ["config/frozenlake_grpo.py", "config/tiny.py"]
    config, options, _ = load_config([*base, *argv[1:]], extra={"repeats": 5, "json": ""})
    parallel.set_up(config)
    for part in build_tiny(config.seed):
        part.save_pretrained(FOLDER)
    rows = benches[argv[0]](config, options["repeats"])
    if options["json"]:
        about = {"command": argv, "torch": torch.__version__}
        Path(options["json"]).write_text(json.dumps(about | {"rows": rows}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    fail_clearly(main)
