"""Tests that CRITIC_ESTIMATORS in configurator.py decides which estimators get a critic."""

import configurator
from configurator import (
    CRITIC_ESTIMATORS,
    GROUP_BASELINE_ESTIMATORS,
    OTHER_ESTIMATORS,
    Config,
    choices_of,
)

import pytest
import torch
from learners import BUILT_IN, estimate, make_learner


def test_every_estimator_is_of_one_kind():
    kinds = (CRITIC_ESTIMATORS, GROUP_BASELINE_ESTIMATORS, OTHER_ESTIMATORS)
    names = [name for kind in kinds for name in kind]
    assert sorted(names) == sorted(set(choices_of(Config)["estimator"]))


@pytest.mark.parametrize("estimator", BUILT_IN)
def test_only_some_estimators_need_values(estimator):
    rewards = torch.tensor([1.0, 0.0])
    values = torch.zeros(2) if estimator in CRITIC_ESTIMATORS else None
    found, returns = estimate(rewards, values, [1, 1], [1, 1], estimator=estimator)
    assert found[0] > 0 > found[1]
    assert (returns is None) == (values is None)


@pytest.mark.parametrize(
    "estimator, has_critic", [("gae", True), ("grpo", False), ("without_gae", False)]
)
def test_a_name_does_not_make_a_critic(
    estimator, has_critic, trained_folder, one_rank, monkeypatch
):
    choices = choices_of(Config)
    choices["estimator"] += ("without_gae",)
    monkeypatch.setattr(configurator, "choices_of", lambda kind: choices)
    learner = make_learner(trained_folder, estimator=estimator)
    assert (learner.critic is not None) == has_critic
