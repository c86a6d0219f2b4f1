"""
Tests of two ranks that each run vLLM and train with FSDP2. test_parallel.py runs these tests:

    torchrun --standalone --nproc_per_node=2 -m pytest -q -s tests/core/ranks_vllm.py
"""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import inspect_in_this_process
from learners import backward, make_learner
from shared_fixtures import small_config
from transformers import AutoModelForCausalLM

import parallel
import train
from dialogue import Chat
from engine import make_engine
from engines.torch_engine import TorchEngine
from engines.vllm_engine import VLLMEngine
from model import Policy, load_model
from packing import pack
from parallel import all_gather_lists, rank
from rollout import collect
from studies.speed.bench_rollout import Barrier

CONFIG = small_config(engine="vllm", max_running=128, group_size=8)
STARTS = [((4, group), member) for group in range(16) for member in range(8)]
OPTIONS = dict(split="train", noise_seed=(7,))


def states():
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]


@pytest.fixture(scope="module")
def chat(trained_folder):
    return Chat(load_model(str(trained_folder))[1])


@pytest.fixture(scope="module")
def vllm(trained_folder, chat):
    parallel.init_distributed(CONFIG)
    inspect_in_this_process()
    torch.manual_seed(1)
    before = states()
    engine = make_engine(CONFIG, load_model(str(trained_folder))[0], chat)
    assert isinstance(engine, VLLMEngine)
    assert states() == before  # vLLM seeds random generators; our engine restores them
    torch.set_num_threads(2)  # vLLM replaces this function; our engine restores it
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert engine.engine.vllm_config.model_config.head_dtype == torch.float32
    yield engine
    parallel.shut_down(engine)
    assert not dist.is_initialized()


@pytest.fixture(scope="module")
def policy(trained_folder):
    return Policy(load_model(str(trained_folder))[0])


def spy_on_requests(vllm, monkeypatch):
    cached, step = [], vllm.engine.step

    def spy():
        finished = step()
        cached.extend(request.num_cached_tokens for request in finished if request.finished)
        return finished

    monkeypatch.setattr(vllm.engine, "step", spy)
    return cached


def test_without_log_probs_the_tokens_are_the_same(vllm, policy, chat, monkeypatch):
    starts = [((6, g), m) for g in range(2) for m in range(4)]
    parallel.sync_weights(vllm, policy)

    def play():
        return collect(vllm, chat, CONFIG, starts, temperature=1.0, **OPTIONS)

    known = play()
    monkeypatch.setattr(vllm, "gives_logprobs", False)
    unknown = play()
    assert [t.ids for t in unknown] == [t.ids for t in known]
    for trajectory in unknown:
        assert len(trajectory.rollout_logprobs) == trajectory.num_response_tokens
        assert all(math.isnan(logprob) for logprob in trajectory.rollout_logprobs)


def test_log_probs_equal_the_trainer_after_every_update(vllm, chat, trained_folder, monkeypatch):
    learner = make_learner(
        trained_folder, estimator="grpo", learning_rate=3e-3, max_context_tokens=640
    )
    learner.config = replace(learner.config, engine="vllm")
    cached = spy_on_requests(vllm, monkeypatch)
    starts = [((5, g), m) for g in range(2) for m in range(4)]
    last = None
    for _ in range(4):
        parallel.sync_weights(vllm, learner.policy)
        for temperature in (1.0, 0.5):
            cached.clear()
            played = parallel.collect_all(
                vllm,
                learner.policy,
                chat,
                learner.config,
                starts,
                group_size=4,
                temperature=temperature,
                **OPTIONS,
            )
            found = torch.tensor([lp for t in played for lp in t.rollout_logprobs])
            expected, _ = parallel.forward_sequences(
                learner.policy, played, learner.config, temperature
            )
            assert (found - expected).abs().max() < 1e-4
            assert min(len(t.first_prompt_ids) for t in played) > 2 * 32
            assert max(cached) >= 64
        # The check above finds stale weights in vLLM only if each update changes log-probs. The
        # check below makes sure that the last update changed them.
        if last is not None:
            trajectories, before = last
            after, _ = parallel.forward_sequences(learner.policy, trajectories, learner.config, 0.5)
            assert (after - before).abs().max() > 0.05
        last = played, expected
        sampled = torch.tensor([lp for t in played for lp in t.rollout_logprobs])
        experience = train.build_experience(learner, played)
        experience.advantages = torch.linspace(-1, 1, len(sampled))
        train.optimizer_step(learner, backward(learner, experience))


def test_a_head_that_is_not_named_is_an_error(vllm, policy):
    # named_parameters() leaves out the LM head, because the head is tied to the embedding
    named = ((name, p.detach()) for name, p in policy.model.named_parameters())
    message = "vLLM did not take all weights .*Head: Failed to load weights"
    with pytest.raises(RuntimeError, match=message):
        vllm.load(named, 10**9)


def test_the_cache_is_reset_with_the_weights_or_an_error(vllm, policy, chat, monkeypatch):
    cached = spy_on_requests(vllm, monkeypatch)
    prompt = chat.opening("Rules.", "A board of many words, " * 20)
    assert len(prompt) > 3 * 32

    def ask():
        vllm.add(0, prompt, max_tokens=4, temperature=1.0, seed=(0,))
        while vllm.busy:
            samples = vllm.step()
        return samples[0]

    parallel.sync_weights(vllm, policy)
    first = ask()
    assert ask() == first and cached[0] == 0 and cached[1] >= 64
    policy.bump_version()
    parallel.sync_weights(vllm, policy)
    assert ask() == first and cached[2] == 0
    vllm.add(0, prompt, max_tokens=4, temperature=1.0, seed=(0,))
    vllm.step()
    message = "vLLM did not reset its prefix cache: a trajectory is still under way"
    with pytest.raises(RuntimeError, match=message):
        vllm.load(parallel.stream_weights(policy), policy.version)
    while vllm.busy:
        vllm.step()


def test_members_of_a_group_differ_wherever_they_are_played(vllm, policy, chat):
    parallel.sync_weights(vllm, policy)
    options = dict(group_size=1, temperature=1.0, **OPTIONS)
    members = (0, 1, 2, 3, 1, 2, 3, 0)
    starts = [((8,), member) for member in members]
    played = parallel.collect_all(vllm, policy, chat, CONFIG, starts, **options)
    first = [t.turns[0].response_ids for t in played]
    assert len({tuple(ids) for ids in first[:4]}) > 2
    assert [first[i] for i in (7, 4, 5, 6)] == first[:4]
    seed = vllm.engine.vllm_config.model_config.seed
    assert all_gather_lists([seed]) == [[CONFIG.seed], [CONFIG.seed + 1]]


def test_no_barrier_between_turns_changes_no_token_and_needs_fewer_steps(vllm, policy, chat):
    """The engine `Barrier` makes all trajectories wait for each other at each turn."""
    config = replace(CONFIG, max_response_tokens=150)
    parallel.sync_weights(vllm, policy)
    counts = []
    played = []
    for engine in (vllm, Barrier(vllm)):
        before = vllm.num_steps
        played.append(collect(engine, chat, config, STARTS, temperature=2.0, **OPTIONS))
        counts.append(vllm.num_steps - before)
    assert len(played[0]) == 128
    assert [t.ids for t in played[0]] == [t.ids for t in played[1]]
    lengths = [len(turn.response_ids) for t in played[0] for turn in t.turns]
    assert min(lengths) < 5 and max(lengths) > 40
    longest = max(t.num_response_tokens for t in played[0])
    print(
        f"\nengine steps of 128 trajectories: continuous {counts[0]}, barrier {counts[1]}, "
        f"longest {longest} tokens"
    )
    assert longest <= counts[0] < counts[1]


def test_both_engines_agree_greedily(vllm, policy, chat, trained_folder):
    """The engines' tokens may differ only where the two best logits nearly tie."""
    config = replace(CONFIG, engine="torch")
    torch_engine = make_engine(config, load_model(str(trained_folder))[0], chat)
    assert isinstance(torch_engine, TorchEngine)
    parallel.sync_weights(vllm, policy)
    starts = [((6, i), 0) for i in range(64)]
    one = collect(vllm, chat, CONFIG, starts, temperature=0.0, **OPTIONS)
    two = collect(torch_engine, chat, CONFIG, starts, temperature=0.0, **OPTIONS)
    assert sum(len(t.turns) for t in one) > 100
    plain = AutoModelForCausalLM.from_pretrained(
        trained_folder, attn_implementation="sdpa", dtype=torch.float32
    )
    for a, b in zip(one, two, strict=True):
        if a.ids != b.ids:
            at = next(i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=False)) if x != y)
            with torch.no_grad():
                best = plain(input_ids=torch.tensor([a.ids[:at]])).logits[0, -1].topk(2).values
            assert best[0] - best[1] < 1e-4
    assert sum(a.ids == b.ids for a, b in zip(one, two, strict=True)) >= 60
    assert pack(one).response_index.numel() == sum(len(t.rollout_logprobs) for t in one)


def test_samples_do_not_depend_on_what_else_runs(vllm, policy, chat):
    parallel.sync_weights(vllm, policy)
    together = collect(vllm, chat, CONFIG, STARTS[:24], temperature=1.0, **OPTIONS)
    reverse = collect(vllm, chat, CONFIG, STARTS[:24][::-1], temperature=1.0, **OPTIONS)[::-1]
    alone = [
        collect(vllm, chat, CONFIG, [start], temperature=1.0, **OPTIONS)[0] for start in STARTS[:3]
    ]
    assert [t.ids for t in together] == [t.ids for t in reverse]
    assert [t.ids for t in together[:3]] == [t.ids for t in alone]
    ended = [turn.response_ids[-1] == chat.end for t in together for turn in t.turns]
    assert any(ended)


def test_a_full_context_ends_the_trajectory(vllm, policy, chat):
    parallel.sync_weights(vllm, policy)
    played = collect(vllm, chat, CONFIG, STARTS, temperature=1.0, **OPTIONS)
    start, free = next((s, t) for s, t in zip(STARTS, played, strict=True) if len(t.turns) > 1)
    limit = len(free.turns[0].prompt_ids) + len(free.turns[0].response_ids)
    tight = replace(CONFIG, max_context_tokens=limit)
    (cut,) = collect(vllm, chat, tight, [start], temperature=1.0, **OPTIONS)
    assert (cut.status, len(cut.turns)) == ("out_of_tokens", 1) and cut.ids == free.ids[:limit]


def test_a_rank_alone_does_not_wait(vllm, policy, chat):
    parallel.sync_weights(vllm, policy)
    if rank() == 1:
        collect(vllm, chat, CONFIG, STARTS[:4], temperature=1.0, **OPTIONS)
    assert all_gather_lists([rank()]) == [[0], [1]]
