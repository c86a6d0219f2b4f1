"""Tests of studies/credit/ that need a small model.

python -m pytest -q studies/credit/test_credit_estimators.py
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from learners import make_learner
from shared_fixtures import small_config

import train
from dialogue import Chat
from engine import make_engine
from model import Policy
from parallel import sync_weights
from studies.credit import measure as credit
from studies.credit.estimators import (
    ESTIMATORS,
    credits_of,
    credits_of_alternatives,
    critic_values,
    estimators_of,
    rounds_of_turns,
    shaped,
)
from studies.credit.play import (
    SEED_GAMES,
    Player,
    copy_episode,
    monte_carlo,
    play_groups,
    restore,
)

SETTINGS = small_config(
    env="frozenlake:success_rate=0.8",
    max_turns=4,
    actions_per_turn=2,
    actions_per_traj=8,
    max_response_tokens=12,
    max_context_tokens=1024,
)
ENVS = ("frozenlake:success_rate=0.8", "sokoban:size=6,boxes=1")


def facts_of(game):
    """Return the parts of a game that a replay with the same random numbers repeats exactly."""
    facts = []
    for turn in game.trajectory.turns:
        facts.append((turn.prompt_ids, turn.response_ids, turn.reward, turn.observation))
        facts.append((turn.text, turn.record, turn.state))
    return facts


@pytest.mark.parametrize("env", ENVS)
def test_a_restored_game_repeats_the_original(trained_model, tokenizer, one_rank, env):
    chat = Chat(tokenizer)
    config = replace(SETTINGS, env=env)
    player = Player(make_engine(config, trained_model, chat), chat, config)
    sync_weights(player.engine, Policy(trained_model))
    games = play_groups(player, 2, 3)
    again = [(game, restore(game, turn)) for game in games for turn in range(game.num_turns)]
    assert len(again) > 10
    player.play([twin for _, twin in again], (config.seed, SEED_GAMES))
    for game, twin in again:
        assert twin.trajectory.status == game.trajectory.status
        assert facts_of(twin) == facts_of(game)
        # The engine computed the original game's history turn by turn. For a restored game, the
        # engine computes the whole history in one prefill. So the logprobs of the two games differ
        # by rounding.
        logprobs = game.trajectory.rollout_logprobs
        assert twin.trajectory.rollout_logprobs == pytest.approx(logprobs, abs=1e-4)
        assert twin.episode.env.observe() == game.episode.env.observe()
        assert twin.episode.env.num_actions == game.episode.env.num_actions
        assert twin.episode.env.rng.random() == copy_episode(game.episode).env.rng.random()


# ---------- what estimators assign


@pytest.fixture
def played(trained_folder, one_rank):
    """Return a function that plays 2 groups of 4 games and returns (learner, games, player)."""

    def play(estimator, **changes):
        settings = dict(num_groups=2, filter_keep=1.0, batch_size=4, estimator=estimator)
        learner = make_learner(trained_folder, bias=True, **{**settings, **changes})
        player = Player(learner.engine, Chat(learner.tokenizer), learner.config)
        sync_weights(learner.engine, learner.policy)
        return learner, play_groups(player, 2, 4), player

    return play


@pytest.mark.parametrize("name", ESTIMATORS)
def test_credits_are_those_that_train_would_use(played, name):
    settings = ESTIMATORS[name]
    learner, games, _ = played(**settings)
    trajectories = [game.trajectory for game in games]
    experience = train.build_experience(learner, trajectories)
    lengths = train.count_tokens_per_turn(trajectories)
    expected = [part.mean() for part in experience.advantages.double().split(lengths)]
    if "reward_density" in settings:
        # `credits_of` applies the reward density itself. So `credits_of` must get games that were
        # played with reward_density="native", which leaves the environment's rewards unchanged.
        density = settings["reward_density"]
        native_learner, native_games, _ = played(settings["estimator"], turn_level=True)
        shaped_scores = [shaped(game, density).score for game in native_games]
        finished = [game.finish().score for game in games]
        assert shaped_scores == pytest.approx(finished)
        learner, games = native_learner, native_games
        trajectories = [shaped(game, density) for game in games]
        experience = train.build_experience(learner, trajectories)
        expected = [part.mean() for part in experience.advantages.double().split(lengths)]
    found = credits_of(learner, games, settings)
    np.testing.assert_allclose(found, torch.stack(expected).numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(found).max() > 0.01


def test_critic_estimators_need_a_critic(played):
    names = estimators_of(played("grpo")[0])
    assert "GRPO" in names and "GAE" not in names
    learner, games, _ = played("gae")
    assert estimators_of(learner).keys() == ESTIMATORS.keys()
    values = train.build_experience(learner, [game.trajectory for game in games]).old_values
    lengths = train.count_tokens_per_turn([game.trajectory for game in games])
    first = [part[0].item() for part in values.split(lengths)]
    assert critic_values(learner, games).tolist() == pytest.approx(first, abs=1e-5)


def test_alternatives_replace_one_turn_of_a_group_at_a_time(played):
    """GRPO compares only games of one group, so replacing a game changes no credit in other groups.
    So `credits_of_alternatives` may replace one game in each group before it calls `credits_of`.
    `credits_of_alternatives` replaces games in this way for all estimators, not only for GRPO."""
    learner, games, player = played("gae")
    alternatives = monte_carlo(player, games, 2).alternatives
    settings = ESTIMATORS["GRPO by turn"]
    found = credits_of_alternatives(learner, games, alternatives, settings)
    k = 0
    for index, game in enumerate(games):
        for turn in range(game.num_turns):
            changed = list(games)
            changed[index] = alternatives[k]
            start = sum(other.num_turns for other in changed[:index])
            alone = credits_of(learner, changed, settings)
            assert found[k] == pytest.approx(alone[start + turn], abs=1e-6)
            k += 1
    assert k == len(found) and np.isfinite(found).all()


def test_rounds_hold_every_turn_once():
    class Counted:
        def __init__(self, num_turns):
            self.num_turns = num_turns

    games = [Counted(n) for n in (2, 1, 3, 1)]
    rounds = rounds_of_turns(games, 2)
    assert rounds == [[(0, 0), (2, 0)], [(0, 1), (2, 1)], [(1, 0), (2, 2)], [(3, 0)]]


@pytest.mark.slow
def test_a_run_from_start_to_picture(trained_folder, tmp_path, capsys, monkeypatch):
    from runs import run

    run(tmp_path / "lake", trained_folder, estimator="gae", num_iterations=2, save_every=1)
    words = [str(tmp_path / "lake"), "--checkpoints=start,1,end", f"--out={tmp_path}/out"]
    words += ["--num_groups=2", "--group_size=4", "--draws=4"]
    credit.main(words)
    text = capsys.readouterr().out
    for name in (*ESTIMATORS, "planner's step reward", "optimal play"):
        assert f"| {name} |" in text
    assert (tmp_path / "out/credit.md").read_text() in text
    assert (tmp_path / "out/credit.png").stat().st_size > 10_000
    summaries = json.loads((tmp_path / "out/credit.json").read_text())
    assert [summary["label"] for summary in summaries] == ["start", "1", "end"]
    # Without `measure_policy`, measuring fails. So the next call of `credit.main` succeeds only if
    # it reads the measurements from the files in OUT/cases.
    monkeypatch.setattr(credit, "measure_policy", None)
    credit.main(words)
    assert (tmp_path / "out/credit.md").read_text() in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"measured with other settings \(draws\)"):
        credit.main([*words[:-1], "--draws=5"])
    with pytest.raises(ValueError, match=r"measured with other settings \(temperature\)"):
        credit.main([*words, "--temperature=0.9"])
