"""Speed beside what one would use instead: CPU time and counts first, as wall time on a shared machine says little.

    python bench.py rollout     # 128 multi-turn trajectories: our engines, vLLM with a barrier, Hugging Face
    python bench.py update      # the packed update, a padded one, TRL's GRPO loss: the same trajectories
    python bench.py iteration   # one GRPO iteration and one of TRL's GRPOTrainer, single turn
    python bench.py head        # log-probs in chunks and with full logits, vocabulary 151,936: peak memory
    python bench.py scale       # cost against trajectories, turns and ranks, with fitted exponents
    python bench.py gpu         # on a GPU, a random-weight Qwen2.5-0.5B: tokens/s, MFU, memory, next to the roofline

Settings: frozenlake_grpo with tiny, and --key=value. Repeats are interleaved, after one to warm up; tables have median,
smallest, largest. The work is compared first: same tokens, same loss. vLLM and TRL (pip install trl) where installed.
"""

from configurator import Config, UserError, load_config, run_main

import importlib.util
import json
import math
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, Qwen2Config, Qwen2ForCausalLM

import model
import packing
import parallel
from engine import Sample, make_engine
from model import Critic, Policy, chunked_logprobs, load_model
from packing import PackedBatch, PackedLayout, micro_batches, pack
from rollout import Chat, Trajectory, Turn, collect, make_episode
from starpo import policy_loss
from support.run_folder import read_rows
from tools.tiny_model import build_tiny

FOLDER = "out/bench_model"  # of the random weights
STARTS = [((71, i // 16), i % 16) for i in range(128)]  # 8 instances of 16 members
SETTINGS = [
    "config/frozenlake_grpo.py",
    "config/tiny.py",
    "--max_response_tokens=100",
    "--max_context_tokens=1600",
]
QWEN = dict(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    max_position_embeddings=32_768,
    tie_word_embeddings=True,
)
PEAK = 989e12  # FLOP/s in bfloat16 of one H100 or H200, dense


def installed(package: str) -> bool:
    found = bool(importlib.util.find_spec(package))
    print(f"{package} is {'there' if found else 'not installed and left out'}")
    return found


def check(same: bool, difference: str) -> None:
    if not same:
        raise UserError(f"the work is not the same: {difference}")


def compare(variants: dict[str, Callable[[], dict]], repeats: int) -> dict[str, dict]:
    """Prints and returns median, smallest and largest value of the times and of what the variants return."""
    runs: dict[str, list[dict]] = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, run in variants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            counts = run()
            runs[name].append(
                {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall} | counts
            )
    rows = {}
    for name, (_, *found) in runs.items():
        rows[name] = {
            key: [float(f([r[key] for r in found])) for f in (np.median, np.min, np.max)]
            for key in found[0]
        }
        cells = [
            f"{key} {m:,.5g} [{low:,.5g}, {high:,.5g}]"
            for key, (m, low, high) in rows[name].items()
        ]
        ratio = rows[name]["cpu_s"][0] / next(iter(rows.values()))["cpu_s"][0]
        print(f"| {name} | {' | '.join(cells)} | CPU time {ratio:.2f} x |")
    return rows


class Barrier:
    """An engine that begins a turn only when every trajectory has finished the one before."""

    def __init__(self, engine):
        self.engine, self.next, self.release = engine, [], engine.release

    busy = property(lambda self: bool(self.next))
    num_steps = property(lambda self: self.engine.num_steps)

    def add(self, *args, **options) -> None:
        self.next.append((args, options))

    def step(self) -> list[Sample]:
        for args, options in self.next:
            self.engine.add(*args, **options)
        self.next, done = [], []
        while self.engine.busy:
            done += self.engine.step()
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

    def __init__(self, model, eos_id: int, *, keep: bool):
        self.model, self.eos_id, self.keep, self.waiting, self.num_steps = (
            model,
            eos_id,
            keep,
            [],
            0,
        )
        self.keys: list[int] = []  # of the rows of ids, mask and cache

    busy = property(lambda self: bool(self.waiting))

    def release(self, key: int) -> None:
        """Nothing to do: who asks for no further turn loses its row."""

    def add(self, key: int, ids: list[int], *, max_tokens: int, **_) -> None:
        self.waiting.append((key, list(ids), max_tokens))

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        todo, self.waiting = sorted(self.waiting), []
        keys, most = [key for key, *_ in todo], torch.tensor([n for *_, n in todo])
        if not (self.keep and self.keys):
            self.cache = DynamicCache() if self.keep else None
            self.ids = self.mask = torch.zeros(len(todo), 0, dtype=torch.long)
        elif keys != self.keys:
            stay = torch.tensor([self.keys.index(key) for key in keys])
            self.cache.batch_select_indices(stay)
            self.ids, self.mask = self.ids[stay], self.mask[stay]
        known = self.mask.sum(1).tolist()  # tokens of each history that are among the ids
        new = [torch.tensor(ids[n:]) for (_, ids, _), n in zip(todo, known, strict=True)]
        left = partial(pad_sequence, batch_first=True, padding_side="left")
        self.ids = torch.cat([self.ids, left(new)], 1)
        self.mask = torch.cat([self.mask, left([torch.ones_like(row) for row in new])], 1)
        options = dict(
            do_sample=False,
            pad_token_id=0,
            max_new_tokens=int(most.max()),
            eos_token_id=self.eos_id,
        )
        self.ids = self.model.generate(
            self.ids, attention_mask=self.mask, past_key_values=self.cache, **options
        )
        sampled = self.ids[:, self.mask.shape[1] :]
        self.num_steps += sampled.shape[1]
        ends = (sampled == self.eos_id).long()
        # up to the first end; the rest is masked from now on
        valid = (ends.cumsum(1) == ends) & (torch.arange(sampled.shape[1]) < most[:, None])
        self.mask, self.keys = torch.cat([self.mask, valid.long()], 1), keys
        replies = [row[flags].tolist() for row, flags in zip(sampled, valid, strict=True)]
        return [
            Sample(key, reply, [0.0] * len(reply)) for key, reply in zip(keys, replies, strict=True)
        ]


def rollout(config: Config, repeats: int) -> dict:
    """Greedy, so that everyone samples the same tokens; members of a group differ by the transitions."""
    model, tokenizer = load_model(FOLDER)
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa")
    chat, policy, played = Chat(tokenizer), Policy(model), {}
    engines = {"torch engine": make_engine(config, model, chat)}
    if installed("vllm"):
        engines["vLLM, continuous"] = make_engine(replace(config, engine="vllm"), model, chat)
        engines["vLLM, a barrier a turn"] = Barrier(engines["vLLM, continuous"])
    for name in list(engines)[:2]:
        parallel.sync_weights(engines[name], policy)

    def play(name: str) -> dict:
        engine = engines.get(name) or HuggingFace(theirs, chat.end, keep="kept" in name)
        before, options = engine.num_steps, dict(split="train", temperature=0.0, noise_seed=(0,))
        done = collect(DrawnLengths(engine), chat, config, STARTS, **options)
        played[name] = [t.ids for t in done]
        same = np.mean([a == b for a, b in zip(played[name], played["torch engine"], strict=True)])
        check(
            same > 0.95, f"{name} plays only {same:.0%} of the trajectories like the torch engine"
        )
        return {
            "engine steps": engine.num_steps - before,
            "sampled tokens": sum(t.num_response_tokens for t in done),
        }

    names = (
        *engines,
        "Hugging Face, cache kept over turns",
        "Hugging Face, history prefilled every turn",
    )
    return compare({name: partial(play, name) for name in names}, repeats)


def padded(part: list[Trajectory]) -> list[torch.Tensor]:
    """Ids, attention mask and response mask, each (B, S), padded to the longest."""
    columns = zip(*((t.ids, [1] * len(t.ids), t.response_mask) for t in part), strict=True)
    return [
        pad_sequence([torch.tensor(row).long() for row in rows], batch_first=True)
        for rows in columns
    ]


def trl_trainer(folder: str, prompt, **options):
    """TRL's GRPOTrainer with our settings, rewards fixed by the place in the group; and a list of what it sampled."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from trl import GRPOConfig, GRPOTrainer

    options |= dict(
        output_dir="out/bench_trl",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        loss_type="bnpo",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=1e-6,
        num_generations=16,
        max_completion_length=64,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    prompts = Dataset(InMemoryTable.from_pydict({"prompt": [prompt] * 512}), fingerprint="the same")
    sampled: list[int] = []

    def reward(completions, completion_ids, **_) -> list[float]:
        sampled.append(sum(map(len, completion_ids)))
        return [float(i % 16) for i in range(len(completions))]

    trainer = GRPOTrainer(
        model, reward, GRPOConfig(**options), prompts, processing_class=load_model(folder)[1]
    )
    trainer.current_gradient_accumulation_steps = 1  # train() sets it
    return trainer, sampled


def padded_logprobs(model, part: list[Trajectory]) -> torch.Tensor:
    """Padded to the longest, logits and softmax at every position, those of sampled tokens picked afterwards; (R,)."""
    ids, mask, sampled = padded(part)
    logp = model(ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
    return logp.gather(2, ids[:, 1:, None])[..., 0][sampled[:, 1:] > 0]


def update(config: Config, repeats: int) -> dict:
    """32 trajectories of 2 groups, over after 1 to 5 turns; loss and gradient norm must agree first."""
    model, tokenizer = load_model(FOLDER)
    engine = DrawnLengths(make_engine(config, model, Chat(tokenizer)))
    played = collect(
        engine,
        Chat(tokenizer),
        config,
        STARTS[:32],
        split="train",
        temperature=1.0,
        noise_seed=(0,),
    )
    kept = [replace(t, turns=t.turns[: 1 + i % 5]) for i, t in enumerate(played)]
    advantages, num_tokens = (
        torch.linspace(-1, 1, len(kept)),
        sum(t.num_response_tokens for t in kept),
    )
    policy, plain = (
        Policy(model),
        AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa"),
    )

    def our_loss(
        logprobs_of: Callable[[list[Trajectory]], torch.Tensor], indices: list[int]
    ) -> torch.Tensor:
        part = [kept[i] for i in indices]
        old = torch.tensor([lp for t in part for lp in t.rollout_logprobs])
        each = advantages[indices].repeat_interleave(
            torch.tensor([t.num_response_tokens for t in part])
        )
        return policy_loss(
            logprobs_of(part), old, each, clip_low=0.2, clip_high=0.28, num_tokens=num_tokens
        )[0]

    def trl_loss(trainer, indices: list[int]) -> torch.Tensor:
        ids, mask, sampled = padded([kept[i] for i in indices])
        old = torch.zeros(sampled.shape)
        old[sampled > 0] = torch.tensor([lp for i in indices for lp in kept[i].rollout_logprobs])
        inputs = dict(
            prompt_ids=ids[:, :1],
            prompt_mask=mask[:, :1],
            completion_ids=ids[:, 1:],
            completion_mask=mask[:, 1:],
            old_per_token_logps=old[:, 1:],
            tool_mask=sampled[:, 1:],
        )
        inputs["advantages"] = advantages[indices]
        return (
            trainer._compute_loss(trainer.model, inputs) * sampled.sum() / num_tokens
        )  # a mean of the micro-batch

    def run(module, work: list[list[int]], loss_of: Callable[[list[int]], torch.Tensor]) -> dict:
        total = 0.0
        for indices in work:
            loss = loss_of(indices)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), math.inf).item()
        module.zero_grad()
        return {"loss": total, "gradient norm": norm}

    packs, eights = (
        micro_batches(kept, config.micro_batch_tokens),
        torch.arange(len(kept)).view(-1, 8).tolist(),
    )
    variants = {
        "packed": lambda: run(
            policy, packs, partial(our_loss, lambda part: policy(pack(part), 1.0)[0])
        ),
        "padded": lambda: run(plain, eights, partial(our_loss, partial(padded_logprobs, plain))),
    }
    if installed("trl"):
        trainer, _ = trl_trainer(FOLDER, "a", per_device_train_batch_size=16)
        variants["TRL's GRPO loss, padded"] = lambda: run(
            trainer.model, eights, partial(trl_loss, trainer)
        )
    one, *others = (variant() for variant in variants.values())
    off = [
        x
        for o in others
        for x in (one["loss"] - o["loss"], one["gradient norm"] / o["gradient norm"] - 1)
    ]
    check(max(map(abs, off)) < 1e-5, f"packed {one}, others {others}")
    return compare(variants, repeats)


def measure_head(chunk: int, rows: int = 2048, vocabulary: int = 151_936) -> None:
    """Forward and backward of log-probs; prints CPU-seconds and the peak of memory above what was there before."""
    hidden, weight = (
        torch.randn(rows, 896, requires_grad=True),
        (torch.randn(vocabulary, 896) * 0.02).requires_grad_(),
    )
    weight.grad, targets = torch.zeros_like(weight).fill_(0), torch.randint(vocabulary, (rows, 1))
    before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    ours = chunked_logprobs(hidden, weight, targets[:, 0], chunk_size=chunk)[0] if chunk else None
    (ours if chunk else (hidden @ weight.T).log_softmax(-1).gather(1, targets)).sum().backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    print(json.dumps({"cpu_s": time.process_time() - cpu, "peak_mib": peak / 1024}))


def head(config: Config, repeats: int) -> dict:
    """2,048 positions, a process for each measurement, because the peak of a process never falls."""
    code = "import torch, bench; torch.set_num_threads(1); torch.manual_seed(0); bench.measure_head({})"
    run = lambda chunk: json.loads(
        subprocess.check_output([sys.executable, "-c", code.format(chunk)])
    )  # noqa: E731
    return compare(
        {"full logits": partial(run, 0), "1,024 columns at a time": partial(run, 1024)}, repeats
    )


def trained(*arguments: str, ranks: int = 1, iterations: int = 4) -> dict[str, float]:
    """Medians of what a run of train.py logs about its iterations, without the first."""
    out_dir = "out/bench_run"
    shutil.rmtree(out_dir, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={ranks}",
        "train.py",
    ]
    command += [
        *arguments,
        f"--num_iterations={iterations}",
        f"--out_dir={out_dir}",
        "--filter_keep=1.0",
    ]
    command += ["--eval_size=1", "--eval_every=0", "--save_every=0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stdout[-2000:]}")
    rows = read_rows(Path(out_dir, "metrics.jsonl"))[1:]
    numbers = [key for key in rows[0] if all(isinstance(r[key], float) for r in rows)]
    row = {key: float(np.median([r[key] for r in rows])) for key in numbers}
    return row | {"wall_s": row["rollout_s"] + row["update_s"]}


def iteration(config: Config, repeats: int) -> dict:
    """Bandit, one turn: 128 replies of the base model to one of two prompts, then one step on all of them. Of four
    iterations the first warms up. The policy is the same, so are the lengths of its replies, within sampling error."""

    def ours() -> dict:
        row = trained("config/bandit_grpo.py", "config/tiny.py", "--batch_size=128")
        lengths.append(128 * row["response_length"])
        return {"cpu_s": row["cpu_s"], "wall_s": row["wall_s"], "sampled tokens": lengths[-1]}

    variants, lengths = {"ours": ours}, []
    if installed("trl"):
        messages = make_episode(load_config(["config/bandit_grpo.py", "config/tiny.py"])[0]).reset(
            (0,)
        )
        prompt = [
            dict(role=role, content=text)
            for role, text in zip(("system", "user"), messages, strict=True)
        ]
        trainer, sampled = trl_trainer(
            config.model, prompt, per_device_train_batch_size=128, max_steps=4
        )

        def theirs() -> dict:
            cpu, wall = time.process_time(), time.perf_counter()
            trainer.train()  # four iterations; what it sets up for them is a hundredth of its time
            spent, tokens = (
                (time.process_time() - cpu, time.perf_counter() - wall),
                np.mean(sampled[-4:]),
            )
            check(
                abs(tokens / lengths[-1] - 1) < 0.05,
                f"TRL samples {tokens} tokens an iteration, we {lengths[-1]}",
            )
            return {"cpu_s": spent[0] / 4, "wall_s": spent[1] / 4, "sampled tokens": tokens}

        variants["TRL's GRPOTrainer"] = theirs
    return compare(variants, repeats)


def scale(config: Config, repeats: int) -> dict:
    """Iterations of train.py at growing sizes; exponents are slopes of log CPU time (ranks: wall time), without the
    smallest size. Turns: Sokoban, one action a turn; the mean number of turns that were played is what counts, replies
    are cut at 24 tokens, or those of late turns, for which the base was not made, would be longer."""
    rows: dict = {}
    lake, room = (
        [f"config/{name}_grpo.py", "config/tiny.py", "--batch_size=16"]
        for name in ("frozenlake", "sokoban")
    )
    room += [
        "--num_groups=4",
        "--actions_per_turn=1",
        "--max_context_tokens=4000",
        "--max_response_tokens=24",
    ]
    sizes = {
        "trajectories": [(n, [*lake, f"--num_groups={n // 16}"]) for n in (16, 64, 256, 1024)],
        "turns": [
            (n, [*room, f"--max_turns={n}", f"--actions_per_traj={n}"]) for n in (1, 2, 5, 10, 20)
        ],
        "ranks": [(1, lake), (2, lake)],
    }
    for what, runs in sizes.items():
        for n, arguments in runs:
            row = rows[f"{n} {what}"] = trained(
                *arguments, ranks=n if what == "ranks" else 1, iterations=1 + repeats
            )
            row["n"] = row["num_turns"] if what == "turns" else n
            print(
                "|",
                n,
                what,
                *(f"| {key} {row[key]:.2f}" for key in ("num_turns", "cpu_s", "wall_s")),
                flush=True,
            )
        points = [
            (row["n"], row["wall_s" if what == "ranks" else "cpu_s"])
            for key, row in rows.items()
            if what in key
        ]
        rows[f"exponent of {what}"] = float(np.polyfit(*np.log(points[len(points) > 2 :]).T, 1)[0])
        print(f"time grows like {what}^{rows[f'exponent of {what}']:.2f}")
    return rows


def workload(rng: np.random.Generator, observation: int, vocabulary: int) -> list[Trajectory]:
    """128 trajectories of five turns, 150 tokens sampled in each; groups of 16 share a first prompt of 400."""
    draw = lambda n: rng.integers(vocabulary, size=n).tolist()  # noqa: E731
    openings = [draw(400) for _ in range(8)]
    turn = lambda i, j: Turn(draw(observation) if j else openings[i // 16], draw(150), [0.0] * 150)  # noqa: E731
    return [Trajectory((i,), 0, [turn(i, j) for j in range(5)]) for i in range(128)]


def flop_of(batch: PackedBatch, shape: dict, body: int, head: int) -> float:
    """Forward and backward: 6 a weight and token, of the head for sampled tokens only, 12 layers width a key seen."""
    layout = PackedLayout(batch)
    sizes = zip(layout.lengths, layout.key_lengths, strict=True)
    keys = sum(n * (total - n / 2) for n, total in sizes)
    attention = 12.0 * shape["num_hidden_layers"] * shape["hidden_size"] * keys
    return 6.0 * (body * len(batch.ids) + head * len(batch.response_index)) + attention


def gpu(config: Config, repeats: int, *, shape: dict = QWEN, sizes=(16_384, 32_768)) -> dict:
    """The update of W1 (400 tokens before every turn) and W2 (400, then 80) as the trainer makes it: forward, backward,
    clip, AdamW. GRPO's is the policy's, PPO's the sum of both. MFU: FLOP of `flop_of` without padding / time / peak."""
    device, rows, rng = torch.device(config.device), {}, np.random.default_rng(0)
    works = {name: workload(rng, n, shape["vocab_size"]) for name, n in (("W1", 400), ("W2", 80))}
    cases = product(works, sizes, ("varlen", "SDPA"), (False, True), ("policy", "critic"))
    print(
        f"MFU = (6 x (body x tokens + head x sampled) + 12 x layers x width x keys seen) / s / {PEAK:.3g}"
    )
    for name, size, kernel, compiled, what in cases:
        packing.has_varlen_kernel = lambda _, kernel=kernel: kernel == "varlen"
        network = Qwen2ForCausalLM(Qwen2Config(**shape, attn_implementation="layout")).to(device)
        model.compile_blocks(network.model.layers if compiled else ())
        head = network.lm_head.weight.numel()
        body = sum(p.numel() for p in network.parameters()) - head
        module, args = (
            (Policy(network), (1.0,))
            if what == "policy"
            else (Critic(network.model).to(device), ())
        )
        parallel.shard(module, network.model.layers, parallel.make_mesh(device), torch.bfloat16)
        optimizer = torch.optim.AdamW(module.parameters(), 1e-6, fused=config.device == "cuda")
        packs = [[works[name][i] for i in part] for part in micro_batches(works[name], size)]
        batches = [pack(part, device, pad_to=size * compiled) for part in packs]

        def run(module=module, args=args, batches=batches, optimizer=optimizer) -> dict:
            for batch in batches:
                outputs = module(batch, *args)
                (outputs[0] if args else outputs).sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if config.device == "cuda":
                torch.cuda.synchronize()
            return {"peak GiB, so far": torch.cuda.max_memory_allocated() / 2**30}

        label = f"{name} {what}, {size} tokens, {kernel}{', compiled' * compiled}"
        row = compare({label: run}, repeats)[label]
        counts = [
            (flop_of(b, shape, body, head * bool(args)), len(b.ids)) for b in map(pack, packs)
        ]
        (flop, tokens), wall_s = np.sum(counts, axis=0), row["wall_s"][0]
        figures = {
            "roofline s": flop / PEAK,
            "MFU": flop / PEAK / wall_s,
            "tokens/s": tokens / wall_s,
        }
        print("  ", *(f"{key} {value:,.3g}" for key, value in figures.items()))
        rows[label] = row | figures
    return rows


def main(argv: list[str]) -> None:
    benches = {f.__name__: f for f in (rollout, update, iteration, head, scale, gpu)}
    if not argv or argv[0] not in benches:
        raise UserError(f"give one of {', '.join(benches)}; got {argv[:1] or 'nothing'}")
    config, options, _ = load_config([*SETTINGS, *argv[1:]], extra={"repeats": 5, "json": ""})
    if options["repeats"] < 1:
        raise UserError(f"repeats must be 1 or more, got {options['repeats']}")
    if argv[0] == "gpu":
        config = replace(config, device="cuda", num_threads=0)
    parallel.init_distributed(config)
    for part in build_tiny(config.seed, config.tiny_shape):
        part.save_pretrained(FOLDER)
    rows = benches[argv[0]](config, options["repeats"])
    if options["json"]:
        Path(options["json"]).write_text(
            json.dumps({"command": argv, "torch": torch.__version__, "rows": rows}) + "\n"
        )


if __name__ == "__main__":
    run_main(main)
