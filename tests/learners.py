"""Helpers of tests that make single updates: a small learner, its data and its gradients."""

import torch
from shared_fixtures import small_config

import model
import train
from dialogue import Chat
from engine import make_engine
from support.learner import Learner


def make_learner(start, *, bias=False, **changes):
    """A learner on the small settings, from the model in folder `start`, with attribute `engine`.

    With `bias` the value head is random: a head of zeros would hide mistakes in the values."""
    config = small_config(**(dict(num_groups=4) | changes))
    weights, tokenizer = model.load_model(str(start))
    reference = model.load_model(str(start))[0] if config.kl_coef else None
    engine = make_engine(config, weights, Chat(tokenizer))
    cpu = torch.device("cpu")
    dtype = model.pick_dtype(config.dtype, cpu)
    learner = Learner(config, weights, tokenizer, cpu, dtype, reference)
    learner.engine = engine
    if learner.critic and bias:
        head = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)) * 0.1
        local = learner.critic.value_head.weight.detach().to_local()
        local.copy_(head[: len(local)])  # the head has one row, so only one rank holds it
    return learner


def collect_and_target(learner):
    """Two groups whose scores differ, and their targets."""
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    scores = torch.tensor([trajectory.score for trajectory in played], dtype=torch.float64)
    groups = train.select_groups(learner.config, played, scores)
    assert len(groups) == 2
    kept = [played[4 * group + i] for group in groups.tolist() for i in range(4)]
    return kept, train.compute_targets(learner, kept)


def backward(learner, kept, targets):
    """Gradients of these trajectories as one mini-batch, aggregated by the token mean."""
    groups = train.train_samples(kept, targets, learner.config)
    samples = [sample for group in groups for sample in group]
    num_tokens = len(targets.advantages)
    return train.backward(learner, samples, torch.ones(num_tokens), num_tokens)


def both_losses(learner, batch, targets):
    """Yields (loss, metrics) of the policy and, with a critic, of the critic. Neither has been
    differentiated."""
    num_tokens = len(targets.advantages)
    yield train.policy_loss(learner, batch, targets, torch.ones(num_tokens), num_tokens)
    if learner.critic:
        yield train.critic_loss(learner, batch, targets, torch.ones(num_tokens), num_tokens)
