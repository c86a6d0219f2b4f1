"""Helpers for tests of single updates: a small learner, its data and its gradients."""

from dataclasses import replace
from types import SimpleNamespace

import torch
from shared_fixtures import small_config

import model
import train
from dialogue import Chat, TurnRecord
from engine import make_engine
from learner import Learner
from rollout import Trajectory, Turn

# Some tests check each of these built-in estimators. An estimator that a user adds is left out,
# because it may lack the tested properties.
BUILT_IN = (
    "gae",
    "bi_level_gae",
    "turn_ppo",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
)


def make_learner(start, *, bias=False, **changes):
    """Return a learner that has small settings, an engine and the model in folder `start`.

    `bias` makes the value head random, because a head of zeros would hide mistakes in the values.
    """
    config = small_config(**(dict(num_groups=4) | changes))
    weights, tokenizer = model.load_model(str(start))
    reference = model.load_model(str(start))[0] if config.kl_coef else None
    engine = make_engine(config, weights, Chat(tokenizer))
    learner = Learner(config, weights, tokenizer, reference)
    learner.engine = engine
    if learner.critic and bias:
        head = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)) * 0.1
        local = learner.critic.value_head.weight.detach().to_local()
        local.copy_(head[: len(local)])  # the head has one row, so only one rank holds it
    return learner


def collect_and_target(learner):
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    groups = select_groups(learner.config, played)
    assert len(groups) == 2
    kept = [played[4 * group + i] for group in groups.tolist() for i in range(4)]
    return kept, train.build_experience(learner, kept)


def estimate(rewards, values, tokens_per_turn, turns_per_trajectory, states=None, **settings):
    turns = []
    for index, part in enumerate(rewards.split(tokens_per_turn)):
        state = states[index] if states else index
        reward = float(part.sum())
        turns.append(Turn([1], [2] * len(part), [0.0] * len(part), reward=reward, state=state))
    kept = []
    for count in turns_per_trajectory:
        kept.append(Trajectory((0,), 0, turns[:count]))
        turns = turns[count:]
    # By default all trajectories form one group. SimpleNamespace takes the place of Config, because
    # Config would refuse a group of one trajectory.
    config = SimpleNamespace(**{**vars(small_config()), "group_size": len(kept), **settings})
    learner = SimpleNamespace(config=config, estimator_state={})
    layout = train.layout_of(kept, config.group_size)
    return train.estimate_advantages(learner, kept, layout, rewards, values)


def select_groups(config, played):
    stats = train.stats_of_groups(played, config.group_size)
    values = train.ranking_values(config, played, stats)
    candidates = train.filter_candidates(config, stats)
    return train.select_groups(config, candidates, values, stats)


def backward(learner, experience):
    return train.backward(learner, weighted(experience))


def weighted(experience):
    """Return the experience with token weights of 1, so that the loss is the mean over tokens."""
    return replace(experience, token_weights=torch.ones(len(experience.advantages)))


def both_losses(learner, batch, experience):
    """Yield (loss, metrics) of the policy, then of the critic if there is one.

    No gradients are computed here: the caller must call loss.backward() for each loss.
    """
    num_tokens = len(experience.advantages)
    yield train.policy_loss(learner, batch, weighted(experience), num_tokens)
    if learner.critic:
        yield train.critic_loss(learner, batch, weighted(experience), num_tokens)


def two_trajectories():
    nothing = TurnRecord([], num_actions=0, format_ok=False, effective=0.0)
    two = TurnRecord([], num_actions=2, format_ok=True, effective=0.5)
    two = replace(two, statements_true=1, statements_checked=2)
    three = TurnRecord([], num_actions=3, format_ok=True, effective=1.0)
    three = replace(three, statements_true=2, statements_checked=2)
    turns = [
        Turn([5, 6, 7], [8], [-0.5], -0.1, record=nothing),
        Turn([9, 10], [11, 12, 13], [-0.5] * 3, 1.0, record=two),
    ]
    last = Turn([20], [21, 22], [-0.5] * 2, 0.0, record=three)
    first = Trajectory((1,), 0, turns, "success")
    second = Trajectory((2,), 1, [last], "failure")
    return first, second
