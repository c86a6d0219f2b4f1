"""Tests of rollout.py and of the torch engine.

A forward pass of the Hugging Face model is the reference for tokens and log-probs.
"""

from configurator import UserError

import itertools
import math
import random
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learners import two_trajectories
from shared_fixtures import small_config
from transformers import AutoModelForCausalLM

import dialogue
import engine as engine_module
import envs
import methods
import parallel
import rollout
from engine import Sample, make_engine
from engines import torch_engine
from engines.torch_engine import sample_tokens
from rollout import (
    Chat,
    collect,
    split_by_context,
    unmask,
)
from support.preflight import check_installed

STARTS = [((4, group), member) for group in range(4) for member in range(4)]
OPTIONS = dict(split="train", temperature=1.0, noise_seed=(7,))


def play(model, chat, config, starts=STARTS, **options):
    engine = make_engine(config, model, chat)
    return collect(engine, chat, config, starts, **(OPTIONS | options))


def pairs_with_logits(model, folder, trajectories):
    """Pair each trajectory with the logits of the Hugging Face model."""
    model.save_pretrained(folder)
    load = AutoModelForCausalLM.from_pretrained
    reference = load(folder, attn_implementation="sdpa", dtype=torch.float32)
    pairs = []
    with torch.no_grad():
        for trajectory in trajectories:
            logits = reference(input_ids=torch.tensor([trajectory.ids])).logits[0]
            pairs.append((trajectory, logits))
    return pairs


def sampled_logprobs(trajectory, logits):
    chosen = torch.tensor(trajectory.ids)[1:, None]
    logprobs = logits.log_softmax(-1)[:-1].gather(1, chosen)[:, 0]
    return logprobs[torch.tensor(trajectory.response_mask)[1:]]


class Spy:
    def __init__(self, engine):
        self.engine = engine
        self.asked = {}
        self.returned = {}
        self.released = []

    busy = property(lambda self: self.engine.busy)

    def add(self, key, ids, **options):
        self.asked.setdefault(key, []).append((list(ids), options))
        self.engine.add(key, ids, **options)

    def step(self):
        samples = self.engine.step()
        for sample in samples:
            self.returned.setdefault(sample.key, []).append(sample)
        return samples

    def release(self, key):
        self.released.append(key)
        self.engine.release(key)


class Script:
    def __init__(self, replies):
        self.replies = list(replies)
        self.prompts = []
        self.busy = False

    def add(self, key, ids, **_):
        self.prompts.append(list(ids))
        self.busy = True

    def step(self):
        ids = list(self.replies.pop(0))
        return [Sample(0, ids, [-1.0] * len(ids))]

    def release(self, key):
        self.busy = False


# ---------- what the engine samples


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("max_running", [64, 5])
def test_engine_logprobs_equal_a_plain_forward(
    random_model, chat, tmp_path, temperature, max_running
):
    config = small_config(max_turns=4, max_running=max_running)
    played = play(random_model, chat, config, temperature=temperature)
    assert len(played) == 16 and min(len(t.turns) for t in played) >= 3
    for trajectory, logits in pairs_with_logits(random_model, tmp_path, played):
        expected = sampled_logprobs(trajectory, logits / temperature)
        assert len(expected) == trajectory.num_response_tokens > 24
        found = torch.tensor(trajectory.rollout_logprobs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_greedy_picks_the_arg_max(random_model, chat, tmp_path):
    played = play(random_model, chat, small_config(), STARTS[::4], temperature=0.0)
    for trajectory, logits in pairs_with_logits(random_model, tmp_path, played):
        places = np.flatnonzero(trajectory.response_mask)
        chosen = [trajectory.ids[place] for place in places]
        assert logits[places - 1].argmax(-1).tolist() == chosen
        assert len(places) == 36
        # At temperature 0 log-probs are not defined, so the engine returns them for temperature 1.
        expected = logits[places - 1].log_softmax(-1).amax(-1)
        found = torch.tensor(trajectory.rollout_logprobs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampling_frequencies(temperature):
    p = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])
    n = 20_000
    streams = [np.random.default_rng((0, 32, 5, i)) for i in range(n)]
    noise = torch.tensor([stream.random(1, np.float32)[0] for stream in streams])
    logits = (p.log() + 3.0).expand(n, -1)
    tokens, logprobs = sample_tokens(logits, torch.full((n,), temperature), noise)
    # softmax(log p / T) = p ** (1 / T) / sum
    expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    frequencies = torch.bincount(tokens, minlength=5) / n
    assert ((frequencies - expected).abs() < 4 * (expected * (1 - expected) / n).sqrt()).all()
    torch.testing.assert_close(logprobs, expected.log()[tokens])


def test_a_token_without_probability_is_never_drawn():
    p = torch.tensor([0.0, 0.0, 0.3, 0.0, 0.7, 0.0, 0.0])
    noise = torch.tensor([0.0, 0.29, 0.31, 1 - 2**-24])
    tokens, logprobs = sample_tokens(p.log().expand(4, -1), torch.ones(4), noise)
    assert tokens.tolist() == [2, 2, 4, 4]
    assert torch.isfinite(logprobs).all()


# ---------- ids and masks


def test_trained_ids_are_the_sampled_ids(trained_model, chat):
    config = small_config(max_response_tokens=5)
    spy = Spy(make_engine(config, trained_model, chat))
    played = collect(spy, chat, config, STARTS, **OPTIONS)
    assert len(spy.asked) == len(spy.returned) == 16 and sorted(spy.released) == list(range(16))
    for i, t in enumerate(played):
        assert len(t.turns) == len(spy.asked[i]) == len(spy.returned[i])
        seen = []
        trained = []
        for turn, (asked, _), returned in zip(t.turns, spy.asked[i], spy.returned[i], strict=True):
            assert asked == seen + turn.prompt_ids
            assert returned.ids == turn.response_ids and returned.logprobs == turn.rollout_logprobs
            assert 1 <= len(returned.ids) <= 5 and len(returned.logprobs) == len(returned.ids)
            trained += [False] * (len(asked) - len(seen)) + [True] * len(returned.ids)
            seen = asked + returned.ids
            without_end = [token for token in returned.ids if token != chat.end]
            assert turn.text == chat.tokenizer.decode(without_end)
        assert t.ids == seen and t.response_mask == trained
        assert t.num_response_tokens == sum(trained) and len(t.rollout_logprobs) == sum(trained)


def test_every_response_is_sampled_with_a_seed_of_its_own(trained_model, chat):
    config = small_config()
    spy = Spy(make_engine(config, trained_model, chat))
    collect(spy, chat, config, STARTS, **OPTIONS)
    seeds = [options["seed"] for requests in spy.asked.values() for _, options in requests]
    assert len(seeds) > len(STARTS)
    assert len(set(seeds)) == len(seeds)


def test_the_end_token_is_trained_when_sampled_and_not_when_forced(trained_model, chat):
    config = small_config(max_response_tokens=5)
    played = play(trained_model, chat, config)
    kinds = set()
    for t in played:
        for turn, after in zip(t.turns, [*t.turns[1:], None], strict=True):
            sampled = turn.response_ids[-1] == chat.end
            assert chat.end not in turn.response_ids[:-1]
            if not sampled:
                assert len(turn.response_ids) == 5
            if after:
                assert (after.prompt_ids[0] == chat.end) == (not sampled)
            kinds.add((sampled, after is not None))
        ends = [place for place, token in enumerate(t.ids) if token == chat.end]
        trained = [place for place in ends if t.response_mask[place]]
        assert len(trained) == sum(turn.response_ids[-1] == chat.end for turn in t.turns)
    assert kinds == {(True, True), (False, True), (True, False), (False, False)}


def test_members_share_the_first_prompt_and_nothing_else(trained_model, chat):
    played = play(trained_model, chat, small_config())
    for group in range(4):
        members = played[4 * group : 4 * group + 4]
        assert len({tuple(t.turns[0].prompt_ids) for t in members}) == 1
        assert len({tuple(t.ids) for t in members}) > 2
        assert [(t.seed, t.member) for t in members] == STARTS[4 * group : 4 * group + 4]
    assert len({tuple(t.turns[0].prompt_ids) for t in played}) == 4


# ---------- windows


def window_by_hand(chat, t, last, context_turns):
    """Return the prompt ids of turn `last`.

    The prompt has the system message, at most `context_turns` - 1 earlier turns, and turn `last`.
    """
    ids = chat.message("system", t.system)
    for k in range(max(0, last + 1 - context_turns), last + 1):
        ids += chat.message("user", t.turns[k].observation)
        ids += [chat.start, *chat.encode("assistant\n")]
        if k < last:
            reply = t.turns[k].response_ids
            ids += reply
            if reply[-1] != chat.end:
                ids.append(chat.end)
            ids += chat.encode("\n")
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("context_turns", [1, 2, 9])
def test_a_reply_sees_the_last_turns_only(trained_model, chat, tmp_path, context_turns):
    limits = dict(max_turns=4, max_running=5, max_response_tokens=5)
    config = small_config(context_turns=context_turns, **limits)
    spy = Spy(make_engine(config, trained_model, chat))
    played = collect(spy, chat, config, STARTS, **OPTIONS)
    assert max(len(t.turns) for t in played) == 4 and not spy.engine.row_keys
    assert sorted(spy.released) == sorted(i for i, t in enumerate(played) for _ in t.turns)
    closed = set()
    for i, t in enumerate(played):
        seen = zip(t.turns, spy.asked[i], spy.returned[i], strict=True)
        for k, (turn, (asked, _), returned) in enumerate(seen):
            assert turn.prompt_ids == asked == window_by_hand(chat, t, k, context_turns)
            assert turn.response_ids == returned.ids and turn.rollout_logprobs == returned.logprobs
            closed.add(returned.ids[-1] == chat.end)
    assert closed == {True, False}

    parts = split_by_context(played, config)  # one part for each turn
    assert [(part.seed, part.member, part.turns) for part in parts] == [
        (t.seed, t.member, [turn]) for t in played for turn in t.turns
    ]
    for part, logits in pairs_with_logits(trained_model, tmp_path, parts):
        expected = sampled_logprobs(part, logits)
        found = torch.tensor(part.rollout_logprobs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert part.ids[len(part.turns[0].prompt_ids) :] == part.turns[0].response_ids


def test_a_window_that_holds_everything_changes_nothing(trained_model, chat):
    config = small_config()
    whole = play(trained_model, chat, replace(config, context_turns=0))
    windows = play(trained_model, chat, replace(config, context_turns=config.max_turns))
    assert split_by_context(whole, config) == whole
    for one, other in zip(whole, windows, strict=True):
        replies = [turn.response_ids for turn in one.turns]
        assert replies == [turn.response_ids for turn in other.turns]
        assert one.ids == other.turns[-1].prompt_ids + other.turns[-1].response_ids


def test_a_window_that_does_not_fit_ends_the_trajectory(random_model, chat):
    config = small_config(context_turns=2)
    (t,) = play(random_model, chat, config, STARTS[:1])
    longest = max(len(turn.prompt_ids) for turn in t.turns)
    assert len(t.turns[0].prompt_ids) < longest
    assert [len(turn.response_ids) for turn in t.turns] == [12] * 3
    (t,) = play(random_model, chat, replace(config, max_context_tokens=longest), STARTS[:1])
    assert t.status == "out_of_tokens" and len(t.turns) < 3


# ---------- the mask of RAGEN v1


@pytest.mark.parametrize("context_turns", [0, 2])
def test_unmask_trains_on_everything_after_the_system_message(trained_model, chat, context_turns):
    config = small_config(context_turns=context_turns, max_response_tokens=5)
    played = play(trained_model, chat, config, STARTS[:6])
    assert max(len(t.turns) for t in played) > 1
    for t in played:
        before = [(list(turn.prompt_ids), list(turn.response_ids)) for turn in t.turns]
        opened = unmask(t, chat)
        cut = len(chat.message("system", t.system))
        assert [(turn.prompt_ids, turn.response_ids) for turn in t.turns] == before
        assert [turn.reward for turn in opened.turns] == [turn.reward for turn in t.turns]
        parts = split_by_context([t], config)
        opened_parts = split_by_context([opened], config)
        for old, new in zip(parts, opened_parts, strict=True):
            assert new.ids == old.ids
            assert new.response_mask == [False] * cut + [True] * (len(old.ids) - cut)
            known = iter(old.rollout_logprobs)
            expected = [next(known) if sampled else math.nan for sampled in old.response_mask[cut:]]
            assert new.rollout_logprobs == pytest.approx(expected, abs=0, nan_ok=True)


# ---------- rewards of turns, and mixtures of environments


def encode_reply(chat, actions):
    return [*chat.encode(dialogue.format_response("", actions, think=False)), chat.end]


def assert_rewards(trajectory, *parts):
    expected = [sum(of_turn) for of_turn in zip(*parts, strict=True)]
    assert [turn.reward for turn in trajectory.turns] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("density", ["sparse", "dense", "balanced", "plan"])
@pytest.mark.parametrize("spec, most", [("frozenlake:success_rate=1.0", 1), ("sokoban", 11)])
def test_densities_replace_the_rewards_of_the_environment_only(chat, density, spec, most):
    native = small_config(env=spec, max_turns=6, actions_per_traj=12, max_response_tokens=40)
    shaped = replace(native, reward_density=density)
    rng = random.Random(0)
    num_changed = 0
    wins = set()
    for seed, member in STARTS:
        env = envs.make_env(spec, max_actions=12)
        env.reset(seed, member=member)
        moves = env.demonstrate(12, np.random.default_rng(0)) if member % 2 else []
        while len(moves) < 12:
            moves.append(rng.choice([*env.actions, "Jump"]))
        pairs = [moves[k : k + 2] for k in range(0, 12, 2)]
        replies = [encode_reply(chat, pair) for pair in pairs]
        (old,) = collect(Script(replies), chat, native, [(seed, member)], **OPTIONS)
        (new,) = collect(Script(replies), chat, shaped, [(seed, member)], **OPTIONS)
        assert (old.ids, old.status) == (new.ids, new.status)
        remaining = [env.optimal_length()]
        rewards = []
        for pair in pairs[: len(old.turns)]:
            rewards.append(sum(env.step(action).reward for action in pair if not env.terminated))
            remaining.append(env.optimal_length())
        penalties = [0.0 if turn.record.format_ok else -0.1 for turn in old.turns]
        assert_rewards(old, rewards, penalties)
        options = dict(max_reward=most, plan_lengths=remaining)
        expected = methods.shape_rewards(rewards, old.success, density, **options)
        assert_rewards(new, expected, penalties)
        assert (new.score - sum(penalties) > 0.999) == old.success
        num_changed += sum(penalties) < 0 and new.score != old.score
        wins.add(old.success)
    assert wins == {True, False}
    assert (num_changed > 2) == (spec == "sokoban" or density == "plan")


def test_a_thought_is_paid_where_the_config_says_so(chat):
    config = small_config(think=True, think_reward=0.5, max_response_tokens=60)
    env = envs.make_env(config.env, max_actions=6)
    env.reset((4, 0))
    text = dialogue.format_response(" ".join(env.statements()), ["Jump"])
    replies = [[*chat.encode(text), chat.end]] * 3
    for think_reward in (0.5, 0.0):
        paying = replace(config, think_reward=think_reward)
        (t,) = collect(Script(replies), chat, paying, STARTS[:1], **OPTIONS)
        assert [turn.reward for turn in t.turns] == pytest.approx([think_reward - 0.1] * 3)


def test_groups_of_a_mixture_have_their_own_environments(trained_model, chat):
    config = small_config(env="bandit")
    engine = make_engine(config, trained_model, chat)
    policy = SimpleNamespace(version=engine.version)
    specs = ["bandit", "frozenlake:size=3", "sokoban", "bandit"]
    mixed = [spec for spec in specs for _ in range(4)]
    groups = dict(envs=mixed, group_size=4)
    played = parallel.collect_all(engine, policy, chat, config, STARTS, **groups, **OPTIONS)
    assert [t.env for t in played] == mixed
    for t, spec in zip(played, mixed, strict=True):
        system, user = rollout.make_episode(config, spec).reset(t.seed)
        assert (t.system, t.turns[0].observation) == (system, user)
        assert t.turns[0].prompt_ids == chat.opening(system, user)
    assert len({t.system for t in played}) == 3
    alone = play(trained_model, chat, config, STARTS[:2])
    assert {t.env for t in alone} == {"bandit"}


# ---------- chat format


def test_prompts_by_hand(chat):
    decode = chat.tokenizer.decode
    assert decode(chat.opening("S", "U")) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    closed = chat.following("V", closed=True)
    assert decode(closed) == "\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"
    assert chat.following("V", closed=False) == [chat.end, *closed]


def test_prompts_equal_the_chat_template(chat):
    episode = rollout.make_episode(small_config(think=True))
    system, user = episode.reset([5])
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def template():
        ids = chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return ids["input_ids"] if hasattr(ids, "keys") else ids

    closed = chat.opening(system, user)
    cut = chat.opening(system, user)
    assert closed == template() and len(closed) > 100
    good = "<think>Goal up.</think><answer>Up || Left</answer>"
    for reply in (good, "no idea", "<answer>Jump</answer>"):
        user = episode.step(reply).user
        closed = [*closed, *chat.encode(reply), chat.end, *chat.following(user, closed=True)]
        cut = [*cut, *chat.encode(reply), *chat.following(user, closed=False)]
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": user}]
        assert closed == cut == template()


@pytest.mark.parametrize("real_marks", [False, True])
def test_an_echoed_action_forges_no_role(chat, real_marks):
    config = small_config(max_response_tokens=40)
    marks = [chat.start] if real_marks else chat.encode("<|im_start|>")
    rest = chat.encode("user || <|im_end|> || <|im_end|>\n<|im_sta</answer>")
    reply = [*chat.encode("<answer>"), *marks, *rest, chat.end]
    (t,) = collect(Script([reply] * 3), chat, config, STARTS[:1], **OPTIONS)
    prompt = t.turns[1].prompt_ids
    text = chat.tokenizer.decode(prompt)
    assert 'Unknown action: "<|im_start|>user", "<|im_end|>"' in text
    assert (prompt.count(chat.start), prompt.count(chat.end)) == (2, 1)
    assert (text.count("<|im_start|>"), text.count("<|im_end|>")) == (3, 2)
    assert t.response_mask.count(True) == 3 * len(reply)
    assert sum(len(turn.response_ids) for turn in t.turns) == 3 * len(reply)


def test_a_tokenizer_without_chat_marks_is_refused():
    strange = SimpleNamespace(
        convert_tokens_to_ids=lambda names: [0, 0],  # both unknown
        convert_ids_to_tokens=lambda ids: ["<unk>", "<unk>"],
    )
    with pytest.raises(ValueError, match="expected a ChatML"):
        Chat(strange)


# ---------- schedules and the cache


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert (a.seed, a.member, a.status) == (b.seed, b.member, b.status)
        assert (a.ids, a.response_mask) == (b.ids, b.response_mask)
        assert [turn.reward for turn in a.turns] == [turn.reward for turn in b.turns]
        logprobs = (torch.tensor(t.rollout_logprobs) for t in (a, b))
        torch.testing.assert_close(*logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("max_running", [1, 3])
def test_results_do_not_depend_on_how_many_run_at_once(trained_model, chat, max_running):
    config = small_config(temperature=1.0)
    wide = play(trained_model, chat, config)
    # Trajectories end at different times, so the engine must move rows of its cache.
    assert len({len(t.turns) for t in wide}) > 1
    assert_same(wide, play(trained_model, chat, replace(config, max_running=max_running)))


@pytest.mark.slow
def test_results_do_not_depend_on_the_order_and_do_on_the_seeds(trained_model, chat):
    config = small_config(max_running=3)
    first = play(trained_model, chat, config)
    assert_same(first, play(trained_model, chat, config, STARTS[::-1])[::-1])
    other = play(trained_model, chat, config, noise_seed=(8,))
    assert sum(a.ids != b.ids for a, b in zip(first, other, strict=True)) > 12


def test_a_shared_prompt_is_prefilled_once(random_model, chat):
    engine = make_engine(small_config(), random_model, chat)
    boards = ("Board one.", "Another board, number two.")
    prompts = [chat.opening("Rules.", board) for board in boards]
    for key in range(10):
        engine.add(key, prompts[key % 2], max_tokens=4, temperature=1.0, seed=(0, key))
    assert engine.step() == []
    assert engine.num_prefilled == len(prompts[0]) - 1 + len(prompts[1]) - 1


def test_only_new_tokens_are_prefilled(trained_model, chat):
    config = small_config()
    engine = make_engine(config, trained_model, chat)
    played = collect(engine, chat, config, STARTS, **OPTIONS)
    first = sum(len(t.turns[0].prompt_ids) - 1 for t in played if t.member == 0)
    # The last token of a prompt is the input of a decode step, so the engine does not prefill this
    # token. For the prompt of a later turn, the engine also prefills the last token of the previous
    # reply, because the cache may lack this token. So if the prompt of a later turn has n tokens,
    # the engine prefills (n - 1) + 1 = n tokens.
    later = sum(len(turn.prompt_ids) for t in played for turn in t.turns[1:])
    assert later > 0 and engine.num_prefilled == first + later
    assert not engine.busy and engine.histories == engine.prompt_owner == {}


# ---------- limits


def test_context_limit_ends_a_trajectory(random_model, chat):
    config = small_config()
    (whole,) = play(random_model, chat, config, STARTS[:1])
    assert whole.status == "out_of_turns"
    opening = len(whole.turns[0].prompt_ids)
    following = len(whole.turns[1].prompt_ids)
    n = len(whole.turns[0].response_ids)

    def limited(limit):
        (t,) = play(random_model, chat, replace(config, max_context_tokens=limit), STARTS[:1])
        assert len(t.ids) <= limit
        return t.status, [len(turn.response_ids) for turn in t.turns]

    assert limited(opening + n) == ("out_of_tokens", [n])
    assert limited(opening + n + following) == ("out_of_tokens", [n])
    assert limited(opening + n + following + 1) == ("out_of_tokens", [n, 1])
    assert limited(opening + n + following + 7) == ("out_of_tokens", [n, 7])
    short = replace(config, max_context_tokens=opening)
    (failed,) = play(random_model, chat, short, STARTS[:1])
    message = f"the first prompt has {opening} tokens and max_context_tokens is {opening}; raise it"
    assert (failed.status, failed.error, failed.ids) == ("error", message, [])


def test_every_trajectory_is_reported_once_when_done(trained_model, chat):
    calls = []
    play(trained_model, chat, small_config(max_running=3), on_done=lambda: calls.append(1))
    assert len(calls) == 16


@pytest.mark.slow
def test_a_blocking_environment_steps_beside_the_decoding(trained_model, chat, monkeypatch):
    config = small_config()
    expected = play(trained_model, chat, config)
    spy = Spy(make_engine(config, trained_model, chat))
    sleeping = [0]
    busy_steps = []
    engine_step = spy.step
    env_step = dialogue.Episode.step

    def step():
        busy_steps.append(sleeping[0])
        return engine_step()

    def slow(episode, text):
        if episode.env.blocking:
            sleeping[0] += 1
            time.sleep(0.2)
            sleeping[0] -= 1
        return env_step(episode, text)

    monkeypatch.setattr(spy, "step", step)
    monkeypatch.setattr(dialogue.Episode, "step", slow)
    counter = itertools.count()
    make = rollout.make_episode

    def every_second(config, env):
        episode = make(config, env)
        episode.env.blocking = next(counter) % 2 == 1
        return episode

    monkeypatch.setattr(rollout, "make_episode", every_second)
    assert_same(expected, collect(spy, chat, config, STARTS, **OPTIONS))
    assert max(busy_steps) > 1
    assert sum(count > 0 for count in busy_steps) > 5


def test_a_context_longer_than_the_model_is_refused(trained_model, chat):
    config = small_config(max_context_tokens=4097, micro_batch_tokens=5000)
    with pytest.raises(ValueError) as error:
        make_engine(config, trained_model, chat)
    wanted = "max_context_tokens is 4097 and the model has 4096 positions; lower it"
    assert str(error.value) == wanted


def test_the_bfloat16_engine_keeps_the_rotary_frequencies(trained_model, chat):
    """Frequencies rounded to 16 bits would turn far positions by the wrong angle."""
    engine = make_engine(small_config(dtype="bfloat16"), trained_model, chat)
    assert engine.model.lm_head.weight.dtype == engine.cache.dtype == engine.dtype == torch.bfloat16
    frequencies = engine.model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, trained_model.model.rotary_emb.inv_freq)
    assert engine.model.lm_head.weight is engine.model.model.embed_tokens.weight


def free_bytes(monkeypatch, num_bytes):
    monkeypatch.setattr(torch_engine, "free_memory", lambda device: num_bytes)


# A cache row has float32 keys and values for 2 layers, one head of 32 numbers and 640 positions.
ROW_BYTES = 2 * 2 * 1 * 32 * 640 * 4


def test_an_engine_that_does_not_fit_is_one_sentence(trained_model, chat, monkeypatch):
    free_bytes(monkeypatch, ROW_BYTES - 1)
    with pytest.raises(UserError) as error:
        make_engine(small_config(), trained_model, chat)
    assert str(error.value) == (
        "the torch engine could not start (the keys and values of one trajectory of 640 tokens "
        "take 0.0 GB, and there are 0.0 GB of free memory); lower max_running or "
        "max_context_tokens, which size the KV cache"
    )


def test_memory_that_is_gone_before_the_first_step_is_one_sentence(trained_model, chat):
    engine = make_engine(small_config(), trained_model, chat)
    engine.row_shape = (1, 2**50, 32)
    engine.max_running = 2
    engine.add(0, [5], max_tokens=1, temperature=1.0, seed=(0,))
    with pytest.raises(UserError, match="the torch engine could not take .* GB for the keys and"):
        engine.step()


def test_the_cache_has_the_rows_that_are_asked_for(trained_model, chat, capsys):
    """max_running only limits how many trajectories run at once; it reserves no memory."""
    engine = make_engine(small_config(max_running=10**9), trained_model, chat)
    engine.load(trained_model.state_dict().items(), 1)
    assert engine.cache.nbytes == 0
    sizes = []
    for num_keys in (3, 4, 5, 13):
        for key in range(num_keys):
            engine.add(key, [5 + key], max_tokens=2, temperature=1.0, seed=(0, key))
        while engine.busy:
            engine.step()
        sizes.append(engine.cache.nbytes / ROW_BYTES)
        for key in range(num_keys):
            engine.release(key)
    assert sizes == [3, 6, 6, 13]
    assert capsys.readouterr().out == ""


def test_a_cache_that_grows_keeps_its_keys(trained_model, chat):
    found = []
    for others in (0, 5):
        engine = make_engine(small_config(), trained_model, chat)
        engine.load(trained_model.state_dict().items(), 1)
        engine.add(0, [5, 300, 17], max_tokens=8, temperature=1.0, seed=(3,))
        finished = engine.step()
        for key in range(1, 1 + others):
            engine.add(key, [7 + key], max_tokens=8, temperature=1.0, seed=(key,))
        while engine.busy:
            finished += engine.step()
        assert engine.cache.nbytes == (1 + others) * ROW_BYTES
        found.append(next(sample for sample in finished if sample.key == 0))
    alone, joined = found
    assert alone.ids == joined.ids and len(alone.ids) > 1
    assert alone.logprobs == pytest.approx(joined.logprobs, abs=1e-5)


def test_little_memory_means_few_rows_and_the_same_games(trained_model, chat, monkeypatch, capsys):
    """The cache may take half of the free memory. In this test, half is enough for five rows."""
    config = small_config(max_turns=2)
    expected = play(trained_model, chat, config)
    assert capsys.readouterr().out == ""
    free_bytes(monkeypatch, 11 * ROW_BYTES)
    found = play(trained_model, chat, config)
    assert_same(expected, found)
    said = capsys.readouterr().out
    assert said == (
        f"memory limits the torch engine to 5 trajectories at once; {len(STARTS)} were asked for, "
        "and the others wait\n"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_engine_on_a_cpu_keeps_one_copy_of_its_head_in_float32(trained_model, chat, dtype):
    name = str(dtype).removeprefix("torch.")
    engine = make_engine(small_config(dtype=name), trained_model, chat)
    weights = {key: 2 * value for key, value in trained_model.state_dict().items()}
    engine.load(weights.items(), 1)
    assert engine.head.dtype == torch.float32
    assert torch.equal(engine.head, weights["lm_head.weight"].to(dtype).float())
    whole = make_engine(small_config(), trained_model, chat)
    assert whole.head.data_ptr() == whole.model.lm_head.weight.data_ptr()  # no copy


def test_free_memory_is_shared_by_the_ranks_of_a_machine(monkeypatch):
    cpu = torch.device("cpu")
    alone = torch_engine.free_memory(cpu)
    assert alone > 10**8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torch_engine.free_memory(cpu) == pytest.approx(alone / 4, rel=0.2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_noise_of_a_response_does_not_depend_on_the_others(trained_model, chat, dtype):
    """In 16 bits, the batch size changes how logits are rounded, and so may change a response."""
    config = small_config(dtype=dtype, max_response_tokens=8)
    prompts = [[5 + i] * (3 + 7 * i) for i in range(6)]
    found = []
    for keys in ([2], range(6)):
        engine = make_engine(config, trained_model, chat)
        engine.load(trained_model.state_dict().items(), 1)
        for key in keys:
            engine.add(key, prompts[key], max_tokens=8, temperature=1.0, seed=(3, key))
        finished = engine.step()
        noise = engine.responses[2].noise
        while engine.busy:
            finished += engine.step()
        (sample,) = [sample for sample in finished if sample.key == 2]
        found.append((noise, sample))
    (noise, alone), (other_noise, together) = found
    assert noise == other_noise
    first = abs(alone.logprobs[0] - together.logprobs[0])
    if dtype == "float32":
        assert alone.ids == together.ids and first < 1e-5
    else:
        assert alone.ids[0] != together.ids[0] or first < 0.05


def test_batch_invariant_kernels_need_a_gpu(trained_model, chat, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(UserError, match=r"\(VLLM_BATCH_INVARIANT=1 needs a GPU; unset it\)"):
        make_engine(small_config(engine="vllm"), trained_model, chat)


def test_no_advice_for_an_unknown_cause(trained_model, chat, monkeypatch):
    """An engine that has no kernel for the model's head size fails at every value of max_running.
    So the error must not advise to lower max_running."""

    class Unsupported:
        def __init__(self, *_, **__):
            raise ValueError("1 validation error for VllmConfig\n  Value error, head size 12")

    monkeypatch.setattr(engine_module, "TorchEngine", Unsupported)
    with pytest.raises(UserError) as error:
        make_engine(small_config(), trained_model, chat)
    assert str(error.value) == (
        "the torch engine could not start "
        "(1 validation error for VllmConfig   Value error, head size 12)"
    )


def test_a_missing_vllm_is_named(trained_model, chat, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    message = "engine='vllm': .*vllm.*; pip install .* make vllm .* --engine=torch"
    with pytest.raises(ValueError, match=message):
        make_engine(small_config(engine="vllm"), trained_model, chat)
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "engine='vllm', but vLLM is not installed; pip install -r requirements.txt"
    with pytest.raises(ValueError, match=message):
        check_installed(small_config(engine="vllm"))
    check_installed(small_config())


@pytest.mark.slow
def test_the_engine_has_weights_of_its_own_and_takes_new_ones(trained_model, random_model, chat):
    config = small_config()
    engine = make_engine(config, trained_model, chat)
    first = collect(engine, chat, config, STARTS, **OPTIONS)
    new = dict(random_model.named_parameters())
    engine.load(((name, p.detach()) for name, p in new.items()), 5)
    assert engine.version == 5
    assert_same(collect(engine, chat, config, STARTS, **OPTIONS), play(random_model, chat, config))
    with torch.no_grad():
        for p in random_model.parameters():
            p.zero_()
    assert collect(engine, chat, config, STARTS, **OPTIONS)[0].ids != first[0].ids
    engine.add(0, chat.opening("a", "b"), max_tokens=2, temperature=1.0, seed=(0,))
    with pytest.raises(AssertionError, match="while a trajectory is under way"):
        engine.load(iter(()), 6)


def test_players_do_not_wait_for_torch():
    program = "import sys; import players, rollout; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---------- numbers and packs


def test_every_response_token_has_a_log_prob():
    # The replies of `first` have 1 and 3 tokens. The reply of `second` has 2 tokens.
    first, second = two_trajectories()
    assert len(first.rollout_logprobs) == first.num_response_tokens == 4
