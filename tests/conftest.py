"""What several test files share: the path to the code, one thread, and a small model in place of the tiny one."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from configurator import Config

import pytest
import torch

import model
import train
from dialogue import Chat
from engine import make_engine
from support.learner import Learner
from tools import demonstrations, sft, tiny_model

torch.set_num_threads(1)  # one order of additions, and a core for others

# answers of a few tokens, three turns: a trajectory is about 320 tokens
SMALL_RUN = dict(
    engine="torch",
    device="cpu",
    num_threads=1,
    env="frozenlake:success_rate=0.8",
    observation="relations",
    think=False,
    max_turns=3,
    actions_per_turn=2,
    actions_per_traj=6,
    max_response_tokens=12,
    max_context_tokens=640,
    micro_batch_tokens=4096,
    max_running=64,
    num_groups=2,
    group_size=4,
    batch_size=4,
    filter_keep=0.5,
    eval_size=6,
    learning_rate=1e-4,
    critic_lr=1e-3,
    num_iterations=2,
    eval_every=2,
    save_every=2,
    num_samples=5,
)


def small_config(**changes) -> Config:
    return Config(**(SMALL_RUN | changes))


@pytest.fixture(scope="session")
def tokenizer():
    """The tiny model's own tokenizer; building it draws boards, so it is built once."""
    return tiny_model.build_tiny_tokenizer()


@pytest.fixture(scope="session")
def chat(tokenizer):
    return Chat(tokenizer)


@pytest.fixture
def small_tokenizer(monkeypatch, tokenizer):
    """`build_tiny` takes the tokenizer that is there."""
    monkeypatch.setattr(tiny_model, "build_tiny_tokenizer", lambda: tokenizer)


@pytest.fixture
def random_model(small_tokenizer):
    """Small, with weights large enough that a token depends visibly on everything before it."""
    built = tiny_model.build_tiny(0, "2x64")[0]
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if weight.ndim == 2:
                weight.mul_(0.16 / weight.std())
            elif "norm" not in name:
                weight.normal_(std=0.2)  # biases of q, k and v start at 0
    return built


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory, tokenizer):
    """A small model after 30 steps of imitation: about every second reply is well formed, so scores vary."""
    if "NANORAGEN_TEST_START" in os.environ:  # made by the test that runs this one under torchrun
        return pathlib.Path(os.environ["NANORAGEN_TEST_START"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model, "build_tiny_tokenizer", lambda: tokenizer)
        built = tiny_model.build_tiny(0, "2x64")[0]
    config = small_config(
        sft_lr=2e-2, sft_muon_lr=0.02, sft_batch_size=8, sft_actions=2, sft_steps=30
    )
    chat = Chat(tokenizer)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(128)]
    packs_of = lambda step: [[demos[(8 * step + i) % 128] for i in range(8)]]  # noqa: E731
    sft.imitate(model.Policy(built), packs_of, config)
    folder = tmp_path_factory.mktemp("small_start")
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def trained_model(trained_folder):
    return model.load_model(str(trained_folder))[0]


def make_learner(start, *, bias=False, **changes):
    """A learner on the small settings, from the model in folder `start`, with its engine as an attribute."""
    config = small_config(**(dict(num_groups=4) | changes))
    weights, tokenizer = model.load_model(str(start))
    reference = model.load_model(str(start))[0] if config.kl_coef else None
    engine = make_engine(config, weights, Chat(tokenizer))
    learner = Learner(
        config, weights, tokenizer, torch.device("cpu"), torch.float32, reference
    )
    learner.engine = engine
    if (
        learner.critic and bias
    ):  # a head of zeros would hide mistakes in the values; a head is one row, on one rank
        head = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)) * 0.1
        local = learner.critic.value_head.weight.detach().to_local()
        local.copy_(head[: len(local)])
    return learner


def backward(learner, kept, targets):
    """Gradients of these trajectories as one mini-batch, aggregated by the token mean."""
    groups = train.train_samples(kept, targets, learner.config)
    samples = [sample for group in groups for sample in group]
    num_tokens = len(targets.advantages)
    return train.backward(learner, samples, torch.ones(num_tokens), num_tokens)


def both_losses(learner, batch, targets):
    """The policy's loss and, with a critic, the critic's: (loss, metrics) each, not yet backward."""
    num_tokens = len(targets.advantages)
    yield train.policy_loss(learner, batch, targets, torch.ones(num_tokens), num_tokens)
    if learner.critic:
        yield train.critic_loss(learner, batch, targets, num_tokens)
