"""Tests of tools/demonstrations.py: demonstrations are correct, keep limits and can be replayed."""

from configurator import load_config

from dataclasses import replace

import pytest
from shared_fixtures import config_file

from envs import SPLIT_SIZE
from rollout import make_episode
from tools import demonstrations
from tools.demonstrations import demonstration
from tools.sft_config import SftConfig


def tiny_config(experiment, **changes):
    files = [config_file(experiment), config_file("tiny")]
    return replace(load_config(files, kind=SftConfig)[0], **changes)


def first_demonstration(config, chat, num_turns):
    for i in range(50):
        demo = demonstration(config, chat, i)
        if len(demo.turns) >= num_turns:
            return demo
    raise AssertionError(f"no demonstration has {num_turns} or more turns")


@pytest.mark.parametrize("experiment", ["frozenlake_ppo", "sokoban_ppo", "bandit_ppo"])
@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_demonstrations_are_true_well_formed_and_replay(chat, experiment, noise):
    config = tiny_config(experiment, sft_noise=noise)
    for index in range(20):
        demo = demonstration(config, chat, index)
        episode = make_episode(config)
        system, user = episode.reset((config.seed, demonstrations.SEED_DEMOS, index))
        assert demo.system == system
        prompt = chat.opening(system, user)
        status = None
        for turn in demo.turns:
            assert status is None
            assert turn.observation == user and turn.prompt_ids == prompt
            assert turn.response_ids[-1] == chat.end and chat.end not in turn.response_ids[:-1]
            assert chat.tokenizer.decode(turn.response_ids[:-1]) == turn.text
            assert chat.decode(turn.response_ids) == turn.text
            assert len(turn.response_ids) <= config.max_response_tokens
            record = turn.record
            assert record.statements_true == record.statements_checked > 0 and record.format_ok
            most = min(config.sft_actions, config.actions_per_turn)
            assert 1 <= record.num_actions <= len(record.actions) <= most
            outcome = episode.step(turn.text)
            assert (outcome.reward, outcome.record) == (turn.reward, record)
            user, status = outcome.user, outcome.status
            prompt = chat.following(user, closed=True)
        assert demo.status == status in ("success", "failure", "out_of_turns")
        assert len(demo.ids) <= config.max_context_tokens
        assert demonstration(config, chat, index).ids == demo.ids


@pytest.mark.slow
def test_noise_spoils_the_action_and_not_the_thought(chat):
    config = tiny_config("frozenlake_ppo", env="frozenlake:success_rate=1")
    clean = [demonstration(replace(config, sft_noise=0.0), chat, i) for i in range(60)]
    noisy = [demonstration(replace(config, sft_noise=1.0), chat, i) for i in range(60)]
    num_won = sum(demo.success for demo in clean)
    assert num_won > 54 and sum(demo.success for demo in noisy) < num_won - 10
    # Without slips and noise, no game ends in a hole.
    assert {demo.status for demo in clean} <= {"success", "out_of_turns"}
    assert "failure" in {demo.status for demo in noisy}
    for demo, other in zip(clean, noisy, strict=True):
        first, spoilt = demo.turns[0], other.turns[0]
        assert first.prompt_ids == spoilt.prompt_ids
        assert first.text.split("</think>")[0] == spoilt.text.split("</think>")[0]


@pytest.mark.parametrize(
    "sizes", [dict(sft_steps=4, sft_batch_size=10), dict(sft_demos=40, sft_steps=99)]
)
def test_the_first_demonstrations_may_be_clean(chat, sizes):
    """In the first case, 4 steps take 10 demonstrations each, 40 in total. In the second case,
    sft_demos limits the demonstrations to 40. The first 0.75 * 40 = 30 demonstrations have no
    noise."""
    config = tiny_config("frozenlake_ppo", sft_noise=1.0, sft_clean=0.75, **sizes)
    for index in (0, 29, 30, 39):
        alone = replace(config, sft_noise=float(index >= 30), sft_clean=0.0)
        assert demonstration(config, chat, index).ids == demonstration(alone, chat, index).ids


@pytest.mark.slow
def test_clean_turns_commit_little_and_noisy_ones_anything(chat):
    for noise, least, most in ((0.0, 0.75, 0.95), (1.0, 0.25, 0.45)):
        config = tiny_config("frozenlake_ppo", sft_noise=noise)
        demos = [demonstration(config, chat, i) for i in range(150)]
        counts = [len(turn.record.actions) for demo in demos for turn in demo.turns]
        # Without noise, a turn has one action with probability 0.75. With noise, the probability is
        # 1/3. In both cases, the share of turns with one action is a little larger, because
        # plans near the goal are short, and because a long game has few actions left at the end.
        assert {1, 2, 3} == set(counts) and least < counts.count(1) / len(counts) < most


@pytest.mark.parametrize("experiment", ["frozenlake_ppo", "sokoban_ppo"])
def test_the_planner_demonstrates_the_optimal_plan_of_every_turn(chat, experiment):
    config = tiny_config(experiment, sft_player="planner")
    for index in range(10):
        demo = demonstration(config, chat, index)
        episode = make_episode(config)
        episode.reset((config.seed, demonstrations.SEED_DEMOS, index))
        for turn in demo.turns:
            best = episode.env.plan(3, config.max_turns - episode.turn_idx)
            assert turn.record.actions == best
            episode.step(turn.text)


def test_the_crowd_demonstrates_good_and_bad_play(chat):
    """With sft_planners=1, only the planner plays. With sft_planners=0, only the weaker players
    play."""
    config = tiny_config("sokoban_ppo", sft_player="crowd")
    rates = []
    for planners in (1.0, 0.0):
        demos = [demonstration(replace(config, sft_planners=planners), chat, i) for i in range(40)]
        rates.append(sum(demo.success for demo in demos) / len(demos))
    assert rates[0] > 0.75 and 0.1 < rates[1] < 0.6
    message = "sft_player=crowd plays frozenlake and sokoban, got env='quest'"
    with pytest.raises(ValueError, match=message):
        demonstration(tiny_config("quest_ppo", env="quest", sft_player="crowd"), chat, 0)


def test_a_demonstration_stays_inside_the_context(chat):
    config = tiny_config("frozenlake_ppo", sft_noise=0.9)
    whole = first_demonstration(config, chat, num_turns=3)
    index = whole.seed[-1]
    used = len(whole.turns[0].prompt_ids) + len(whole.turns[0].response_ids)
    limit = used + len(whole.turns[1].prompt_ids) - 1
    cut = demonstration(replace(config, max_context_tokens=limit), chat, index)
    assert (cut.status, len(cut.turns), cut.ids) == ("out_of_tokens", 1, whole.ids[:used])


def test_a_demonstration_sees_the_turns_that_the_policy_will_see(chat):
    config = tiny_config("frozenlake_ppo", sft_noise=0.9)
    whole = first_demonstration(config, chat, num_turns=4)
    for seen in (1, 3):
        demo = demonstration(replace(config, context_turns=seen), chat, whole.seed[-1])
        assert [turn.text for turn in demo.turns] == [turn.text for turn in whole.turns]
        for k, (turn, last) in enumerate(zip(demo.turns, whole.turns, strict=True)):
            first = max(0, k + 1 - seen)
            opening = chat.opening(whole.system, whole.turns[first].observation)
            rest = []
            for i in range(first, k):
                rest += whole.turns[i].response_ids + whole.turns[i + 1].prompt_ids
            assert turn.prompt_ids == opening + rest
            assert turn.response_ids == last.response_ids
    # If context_turns is set, max_context_tokens limits the prompt and reply of each turn, but not
    # the whole game.
    limit = max(len(turn.prompt_ids) for turn in demo.turns[1:]) + config.max_response_tokens
    short = replace(config, context_turns=3, max_context_tokens=limit)
    assert demonstration(short, chat, whole.seed[-1]).status == demo.status
    short = replace(short, max_context_tokens=limit - 1)
    assert demonstration(short, chat, whole.seed[-1]).status == "out_of_tokens"


def test_a_demonstration_keeps_the_limits_of_a_rollout(chat):
    config = tiny_config("frozenlake_ppo", sft_noise=0.9)
    whole = first_demonstration(config, chat, num_turns=4)
    index = whole.seed[-1]
    longest = max(len(turn.response_ids) for turn in whole.turns)
    fits = replace(config, max_response_tokens=longest)
    texts = [turn.text for turn in demonstration(fits, chat, index).turns]
    assert texts == [turn.text for turn in whole.turns]
    message = f"has a reply of {longest} tokens and max_response_tokens is {longest - 1}; raise it"
    with pytest.raises(ValueError, match=f"in frozenlake.* {message}"):
        demonstration(replace(config, max_response_tokens=longest - 1), chat, index)

    def within(max_context_tokens):
        return demonstration(replace(config, max_context_tokens=max_context_tokens), chat, index)

    cut = within(len(whole.ids) - 1)
    assert (cut.status, cut.ids) == ("out_of_tokens", replace(whole, turns=whole.turns[:-1]).ids)
    one_turn = len(whole.turns[0].prompt_ids) + len(whole.turns[0].response_ids)
    assert len(within(one_turn).turns) == 1
    message = f"one turn of a demonstration .* max_context_tokens, {one_turn - 1}; raise"
    with pytest.raises(ValueError, match=message):
        within(one_turn - 1)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["frozenlake:size=3", "sokoban:size=5,search_depth=30"])
def test_no_demonstration_shows_a_reserved_instance(chat, env):
    """There are few boards of these sizes. Without a check, many demonstrations would show boards
    that are reserved for evaluation."""
    config = tiny_config("frozenlake_ppo", env=env, observation="grid")
    episode = make_episode(config)
    reserved = set()
    for split in ("eval", "heldout"):
        first = {episode.reset((i,), split=split)[1] for i in range(SPLIT_SIZE)}
        assert len(first) == SPLIT_SIZE and not first & reserved
        reserved |= first
    demos = {demonstration(config, chat, i).turns[0].observation for i in range(150)}
    assert len(demos) > 100 and not demos & reserved
