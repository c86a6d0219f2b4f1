"""Benchmark of the policy update: packed batches, padded batches, and TRL's GRPO loss."""

from configurator import Config

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

from dialogue import Chat
from engine import make_engine
from model import Policy, load_model
from packing import PackedBatch, micro_batches, pack
from rollout import Trajectory, collect
from starpo import ppo_loss
from studies.speed.bench_measure import Rows, check, compare, is_installed, starts
from studies.speed.bench_rollout import DrawnLengths
from support.training_metrics import Timer

CLIP_LOW = 0.2
CLIP_HIGH = 0.28
PADDED_BATCH = 8  # trajectories
# The allowed difference between variants in float32. It is absolute for the loss and relative for
# the gradient norm.
TOLERANCE = 5e-5

Part = Sequence[Trajectory]  # a micro-batch


def update(config: Config, repeats: int) -> Rows:
    """Time a forward and backward pass on up to 32 trajectories, each cut after 1 to 5 turns."""
    model, tokenizer = load_model(config.model)
    policy = Policy(model)
    plain = load_plain(config.model)
    batch = Batch(collect_shortened(config, model, Chat(tokenizer)))
    packs = micro_batches(batch.trajectories, config.micro_batch_tokens)
    indices = torch.arange(len(batch.trajectories))
    padded_parts = [part.tolist() for part in indices.split(PADDED_BATCH)]

    def packed_loss(indices: list[int]) -> Tensor:
        part = batch.part(indices)
        logprobs, _ = policy(pack(part), 1.0)
        return batch.loss(indices, logprobs)

    def padded_loss(indices: list[int]) -> Tensor:
        return batch.loss(indices, padded_logprobs(plain, batch.part(indices)))

    variants = {
        "packed": partial(forward_backward, policy, packs, packed_loss),
        "padded": partial(forward_backward, plain, padded_parts, padded_loss),
    }
    if is_installed("trl"):
        trainer, _ = make_trl_trainer(config, "a", per_device_train_batch_size=config.group_size)
        variants["TRL's GRPO loss, padded"] = partial(
            forward_backward, trainer.model, padded_parts, partial(trl_loss, trainer, batch)
        )
    check_results({name: run() for name, run in variants.items()})
    rows = compare(variants, repeats)
    operations = sum(num_operations(model, pack(batch.part(part))) for part in packs)
    print_share_of_peak(operations, rows["packed"]["cpu_s"][0])
    return rows


def load_plain(folder: str) -> PreTrainedModel:
    """Load a plain transformers model.

    As in train.py, the padding token's embedding gets a gradient. Without this gradient, the
    gradient norm could differ from that of the variant "packed".
    """
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    model.get_input_embeddings().padding_idx = None
    return model


def collect_shortened(config: Config, model: PreTrainedModel, chat: Chat) -> list[Trajectory]:
    trajectories = collect(
        DrawnLengths(make_engine(config, model, chat)),
        chat,
        config,
        starts(config)[:32],
        split="train",
        temperature=1.0,
        noise_seed=(0,),
    )
    shortened = []
    for i, trajectory in enumerate(trajectories):
        shortened.append(replace(trajectory, turns=trajectory.turns[: 1 + i % 5]))
    return shortened


class Batch:
    """Trajectories with made-up advantages from -1 to 1."""

    def __init__(self, trajectories: list[Trajectory]):
        self.trajectories = trajectories
        self.advantages = torch.linspace(-1, 1, len(trajectories))
        self.num_tokens = sum(trajectory.num_response_tokens for trajectory in trajectories)

    def part(self, indices: list[int]) -> list[Trajectory]:
        return [self.trajectories[i] for i in indices]

    def old_logprobs(self, indices: list[int]) -> Tensor:
        values = []
        for trajectory in self.part(indices):
            values += trajectory.rollout_logprobs
        return torch.tensor(values)  # (R,)

    def loss(self, indices: list[int], logprobs: Tensor) -> Tensor:
        """Sum the clipped policy loss over the response tokens of the trajectories `indices`.
        Return the sum, divided by the number of response tokens in the whole batch."""
        lengths = [trajectory.num_response_tokens for trajectory in self.part(indices)]
        advantages = self.advantages[indices].repeat_interleave(torch.tensor(lengths))  # (R,)
        loss, *_ = ppo_loss(
            logprobs,
            self.old_logprobs(indices),
            advantages,
            clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH,
            num_tokens=self.num_tokens,
        )
        return loss


def forward_backward(
    module: torch.nn.Module, parts: list[list[int]], loss_of: Callable[[list[int]], Tensor]
) -> dict[str, float]:
    total = 0.0
    for indices in parts:
        loss = loss_of(indices)
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), math.inf).item()
    module.zero_grad()
    return {"loss": total, "gradient norm": norm}


def check_results(results: dict[str, dict[str, float]]) -> None:
    """Compare the loss and gradient norm of each variant with those of the first variant. Raise
    UserError if a difference is TOLERANCE or more."""
    expected = next(iter(results.values()))
    for found in results.values():
        loss_error = abs(found["loss"] - expected["loss"])
        norm_error = abs(expected["gradient norm"] / found["gradient norm"] - 1)
        check(max(loss_error, norm_error) < TOLERANCE, str(results))


# ---------- share of the CPU's peak rate


def num_operations(model: PreTrainedModel, packed: PackedBatch) -> int:
    """Count the operations of matrix products with weights, in the forward and backward pass.

    For each token, a weight costs two operations in the forward pass and four in the backward pass.
    The output head is computed for sampled tokens only."""
    head = model.get_output_embeddings().weight.numel()
    embeddings = {id(model.get_output_embeddings().weight), id(model.get_input_embeddings().weight)}
    body = sum(weight.numel() for weight in model.parameters() if id(weight) not in embeddings)
    return 6 * (body * packed.ids.numel() + head * packed.response_index.numel())


def print_share_of_peak(operations: int, cpu_s: float) -> None:
    peak = measure_peak()
    share = operations / cpu_s / peak
    print(
        f"packed: {operations / 1e9:.0f} billion operations of matrix products with weights, "
        f"{share:.0%} of the peak of {peak / 1e9:.0f} billion a CPU second"
    )


def measure_peak() -> float:
    """Time five large float32 matrix products. Return the highest rate in operations per CPU
    second."""
    rows, width = 1024, 1536
    a = torch.randn(rows, width)
    b = torch.randn(width, width)
    best = 0.0
    for _ in range(5):
        timer = Timer()
        a @ b
        timer.stop()
        best = max(best, 2 * rows * width * width / timer.cpu_s)
    return best


# ---------- padded batches


def pad(part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, attention mask and response mask, each (B, T), padded on the right."""
    ids = [trajectory.ids for trajectory in part]
    attention_mask = [[1] * len(row) for row in ids]
    response_mask = [trajectory.response_mask for trajectory in part]
    return pad_rows(ids), pad_rows(attention_mask), pad_rows(response_mask)


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    tensors = [torch.tensor(row).long() for row in rows]
    return pad_sequence(tensors, batch_first=True)


def padded_logprobs(model: PreTrainedModel, part: Part) -> Tensor:
    """Compute logits at every position. Return the log-probs of the response tokens, (R,)."""
    ids, attention_mask, response_mask = pad(part)
    logits = model(ids, attention_mask=attention_mask).logits[:, :-1]  # (B, T-1, V)
    logprobs = logits.float().log_softmax(-1)
    sampled = logprobs.gather(2, ids[:, 1:, None])[..., 0]  # (B, T-1)
    return sampled[response_mask[:, 1:] > 0]


# ---------- TRL


def make_trl_trainer(config: Config, prompt, **options):
    """Make TRL's GRPOTrainer. The reward of a reply is its index in the group.

    Returns: the trainer, and a list. For each sampled batch, the trainer appends the total
        number of sampled tokens to the list.
    """
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from trl import GRPOConfig, GRPOTrainer

    trl_config = GRPOConfig(
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
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        learning_rate=1e-6,
        num_generations=config.group_size,
        max_completion_length=config.max_response_tokens,
        **options,
    )
    model = load_plain(config.model)
    table = InMemoryTable.from_pydict({"prompt": [prompt] * 512})
    prompts = Dataset(table, fingerprint="the same")
    num_sampled: list[int] = []

    def reward(completions, completion_ids, **_) -> list[float]:
        num_sampled.append(sum(len(ids) for ids in completion_ids))
        return [float(i % config.group_size) for i in range(len(completions))]

    _, tokenizer = load_model(config.model)
    trainer = GRPOTrainer(model, reward, trl_config, prompts, processing_class=tokenizer)
    # Set what trainer.train() would set, because `update` does not call trainer.train().
    trainer.current_gradient_accumulation_steps = 1
    return trainer, num_sampled


def trl_loss(trainer, batch: Batch, indices: list[int]) -> Tensor:
    ids, attention_mask, response_mask = pad(batch.part(indices))
    old_logprobs = torch.zeros(response_mask.shape)
    old_logprobs[response_mask > 0] = batch.old_logprobs(indices)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": attention_mask[:, :1],
        "completion_ids": ids[:, 1:],
        "completion_mask": attention_mask[:, 1:],
        "old_per_token_logps": old_logprobs[:, 1:],
        "tool_mask": response_mask[:, 1:],
        "advantages": batch.advantages[indices],
    }
    mean = trainer._compute_loss(trainer.model, inputs)  # over the response tokens of `indices`
    return mean * response_mask.sum() / batch.num_tokens
