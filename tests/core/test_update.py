"""Tests of one iteration of train.py: advantages, losses, gradients, checkpoints."""

import copy
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from learners import backward, both_losses, collect_and_target, make_learner, weighted
from torch._dynamo.utils import counters

import model
import parallel
import starpo
import train
from dialogue import Chat
from packing import pack
from rollout import Trajectory, Turn
from support import checkpoint
from support.checkpoint import Saver
from support.records import trajectory_record

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_rank")]


# ---------- advantages


def small_trajectory(rewards, lengths):
    turns = []
    for reward, length in zip(rewards, lengths, strict=True):
        logprobs = [-0.5 * (i + 1) for i in range(length)]
        turns.append(Turn([1, 3, 4], list(range(5, 5 + length)), logprobs, reward))
    return Trajectory((0,), 0, turns)


def test_targets_by_hand(trained_folder):
    kept = [small_trajectory([-0.1, 1.0], [2, 1]), small_trajectory([0.0], [2])]
    old = [-0.5, -1.0, -0.5, -0.5, -1.0]

    experience = train.build_experience(make_learner(trained_folder), kept)
    assert experience.ref_logprobs is None
    assert experience.rollout_logprobs.tolist() == experience.old_logprobs.tolist() == old
    assert experience.old_values.tolist() == [0.0] * 5
    # With gamma = lam = 1 and values of 0, a return is the reward still to come. The returns have
    # mean 0.56 and unbiased variance 0.263.
    torch.testing.assert_close(experience.returns, torch.tensor([0.9, 0.9, 1.0, 0.0, 0.0]))
    spread = math.sqrt((2 * 0.34**2 + 0.44**2 + 2 * 0.56**2) / 4)
    expected = torch.tensor([0.34, 0.34, 0.44, -0.56, -0.56]) / spread
    torch.testing.assert_close(experience.advantages, expected, rtol=1e-5, atol=1e-6)

    learner = make_learner(trained_folder, estimator="grpo", group_size=2, batch_size=2)
    experience = train.build_experience(learner, kept)
    assert experience.ref_logprobs is experience.old_values is experience.returns is None
    assert experience.rollout_logprobs.tolist() == experience.old_logprobs.tolist() == old
    # The scores 0.9 and 0 have mean 0.45 and unbiased std sqrt(2 * 0.45^2) = 0.9 / sqrt(2).
    expected = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]) / math.sqrt(2)
    torch.testing.assert_close(experience.advantages, expected, rtol=1e-5, atol=1e-5)


NEUTRAL = dict(
    reward_density="native",
    think_reward=0.0,
    context_turns=0,
    turn_level=False,
    turn_gamma=1.0,
    turn_lam=1.0,
    reward_norm="none",
    filter_strategy="fraction",
    filter_by="reward_std",
    filter_loss_scale="none",
    dual_clip=0.0,
    aggregation="token_mean",
    kl_in="loss",
    kl_coef=0.1,
    mask_observations=True,
)


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_neutral_settings_leave_the_targets_of_plain_ppo_and_grpo(trained_folder, estimator):
    learner = make_learner(trained_folder, bias=True, estimator=estimator, **NEUTRAL)
    kept, experience = collect_and_target(learner)
    assert experience.old_logprobs.tolist() == experience.rollout_logprobs.tolist()
    expected = []
    for i, trajectory in enumerate(kept):
        group = kept[i // 4 * 4 : i // 4 * 4 + 4]
        scores = torch.tensor([member.score for member in group])
        relative = (trajectory.score - scores.mean().item()) / (scores.std().item() + 1e-6)
        for k, turn in enumerate(trajectory.turns):
            to_go = sum(later.reward for later in trajectory.turns[k:])
            expected += [to_go if estimator == "gae" else relative] * len(turn.response_ids)
    expected = torch.tensor(expected)
    if estimator == "gae":
        torch.testing.assert_close(experience.returns, expected, rtol=1e-5, atol=1e-5)
        expected = expected - experience.old_values
        expected = (expected - expected.mean()) / expected.std()
    torch.testing.assert_close(experience.advantages, expected, rtol=1e-4, atol=1e-4)


def test_scores_come_in_the_order_of_the_trajectories(trained_folder):
    learner = make_learner(trained_folder, bias=True)
    kept, experience = collect_and_target(learner)
    assert len({len(trajectory.ids) for trajectory in kept}) > 1
    with torch.no_grad():
        packs = [pack([trajectory]) for trajectory in kept]
        values_alone = torch.cat([learner.critic(batch) for batch in packs])
        logprobs_alone = torch.cat([learner.policy(batch, 1.0)[0] for batch in packs])
    for micro_batch_tokens in (640, 100_000):
        config = replace(learner.config, micro_batch_tokens=micro_batch_tokens)
        (values,) = parallel.forward_sequences(learner.critic, kept, config)
        logprobs, _ = parallel.forward_sequences(learner.policy, kept, config, 1.0)
        torch.testing.assert_close(values, values_alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logprobs, logprobs_alone, rtol=1e-5, atol=1e-5)
        assert values.std() > 1e-3
        torch.testing.assert_close(logprobs, experience.old_logprobs, rtol=1e-4, atol=1e-4)


# ---------- the update


def captured_update(start, monkeypatch, **changes):
    learner = make_learner(start, bias=True, **changes)
    kept, experience = collect_and_target(learner)
    if experience.ref_logprobs is not None:
        experience.ref_logprobs = experience.ref_logprobs - 0.3  # so that the KL is not 0
    wave = torch.sin(torch.arange(len(experience.old_logprobs)))
    experience.old_logprobs = experience.old_logprobs + 0.1 * wave
    steps = []
    optimizer_step = train.optimizer_step

    def spy(learner, metrics):
        modules = [m for m in (learner.policy, learner.critic) if m is not None]
        weights = [p for module in modules for p in module.parameters()]
        steps.append([p.grad.full_tensor().clone() for p in weights])
        return optimizer_step(learner, metrics)

    monkeypatch.setattr(train, "optimizer_step", spy)
    metrics = train.update(learner, experience)
    monkeypatch.undo()
    return metrics, steps


MICRO_BATCHES = {
    "gae": dict(estimator="gae", entropy_coef=0.001, temperature=0.7),
    "grpo": dict(estimator="grpo", kl_coef=0.1, entropy_coef=0.1, temperature=0.7),
    "windows": dict(context_turns=2, aggregation="seq_mean_token_mean", entropy_coef=0.1),
}


@pytest.mark.parametrize("kind", MICRO_BATCHES)
def test_micro_batches_change_nothing(trained_folder, monkeypatch, kind):
    changes = dict(batch_size=8) | MICRO_BATCHES[kind]
    found = []
    for micro_batch_tokens in (640, 100_000):
        changes["micro_batch_tokens"] = micro_batch_tokens
        found.append(captured_update(trained_folder, monkeypatch, **changes))
    (small, [in_small]), (large, [in_large]) = found
    assert small.keys() == large.keys()
    assert {"pg_loss", "grad_norm", "entropy", "approx_kl"} <= small.keys()
    assert small == pytest.approx(large, rel=1e-5, abs=1e-5)
    assert small["grad_norm"] > 0.01 and small["approx_kl"] > 1e-4
    for gradient, expected in zip(in_small, in_large, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def trajectories_in(batch):
    """Return all token ids of each trajectory in `batch`, including its shared prefixes."""
    parts = batch.ids.split(batch.lengths)
    inner = {i for context in batch.contexts for i in context}
    found = []
    for i, context in enumerate(batch.contexts):
        if i not in inner:
            ids = torch.cat([parts[j] for j in (*context, i)])
            found.append(tuple(ids.tolist()))
    return found


def test_update_visits_every_trajectory_once_an_epoch(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, num_epochs=3)
    kept, experience = collect_and_target(learner)
    packs = []
    policy_loss = train.policy_loss

    def spy(learner, batch, micro_batch, num_tokens, num_observation_tokens):
        packs.append((batch, num_tokens, micro_batch))
        return policy_loss(learner, batch, micro_batch, num_tokens, num_observation_tokens)

    monkeypatch.setattr(train, "policy_loss", spy)
    train.update(learner, experience)
    numbers = {tuple(trajectory.ids): i for i, trajectory in enumerate(kept)}
    assert len(numbers) == 8 and len(packs) == 3 * 2
    lengths = [trajectory.num_response_tokens for trajectory in kept]
    pieces = [experience.select([i]) for i in range(len(kept))]
    orders = []
    for batch, num_tokens, micro_batch in packs:
        chosen = [numbers[ids] for ids in trajectories_in(batch)]
        assert num_tokens == sum(lengths[i] for i in chosen)
        assert micro_batch.token_weights.tolist() == [1.0] * num_tokens
        for field in fields(train.Experience):
            value = getattr(micro_batch, field.name)
            expected = [getattr(pieces[i], field.name) for i in chosen]
            if field.name == "token_weights":
                continue
            if isinstance(value, list):
                assert value == [part for [part] in expected]
            elif value is None:
                assert expected == [None] * len(chosen)
            else:
                assert torch.equal(value, torch.cat(expected))
        orders.append(set(chosen))
    epochs = [orders[0:2], orders[2:4], orders[4:6]]
    assert all(first | second == set(range(8)) for first, second in epochs)
    assert any(epoch != epochs[0] for epoch in epochs)
    assert epochs[0] != [{0, 1, 2, 3}, {4, 5, 6, 7}]


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_masked_tokens_get_zero_gradient(trained_folder, monkeypatch, estimator):
    coefficients = dict(kl_coef=0.1, entropy_coef=0.1)
    learner = make_learner(trained_folder, bias=True, estimator=estimator, **coefficients)
    kept, experience = collect_and_target(learner)
    hidden = []
    packed_hidden = model.packed_hidden

    def spy(*args):
        hidden.append(packed_hidden(*args))
        hidden[-1].retain_grad()
        return hidden[-1]

    monkeypatch.setattr(model, "packed_hidden", spy)
    batch = pack(kept)
    for loss, _ in both_losses(learner, batch, experience):
        loss.backward()
    turns = [turn for trajectory in kept for turn in trajectory.turns]
    sampled = [token for turn in turns for token in turn.response_ids]
    assert batch.ids[batch.response_index].tolist() == sampled
    chooses = torch.zeros(len(batch.ids), dtype=torch.bool)
    chooses[batch.response_index - 1] = True
    assert len(hidden) == (2 if estimator == "gae" else 1)
    for rows in hidden:
        assert rows.grad.shape == (len(batch.ids), 64)
        assert (rows.grad[~chooses] == 0).all()
        assert (rows.grad[chooses].abs().amax(1) > 0).all()


def test_prompt_text_is_not_trained(trained_folder):
    learner = make_learner(trained_folder, estimator="grpo")
    kept, experience = collect_and_target(learner)
    # The new policy is not sharded, so the test can call its parts alone.
    learner.policy = model.Policy(model.load_model(str(trained_folder))[0])
    batch = pack(kept)
    weight = learner.policy.model.lm_head.weight
    untied = torch.nn.Parameter(weight.detach().clone())
    learner.policy.model.lm_head.weight = untied
    experience.advantages = torch.ones_like(experience.advantages)
    learner.config = replace(learner.config, entropy_coef=0.0)
    for loss, _ in both_losses(learner, batch, experience):
        loss.backward()
    # At ratio 1 and advantage 1, the gradient of the lm_head weight is -1/R times the sum of
    # (onehot - p) h^T over the R sampled tokens. Here h is the hidden state that predicts the
    # token, and p are the probabilities.
    with torch.no_grad():
        hidden = model.packed_hidden(learner.policy.model.model, batch)
        states = hidden[batch.response_index - 1]  # (R, 64)
        chosen = batch.ids[batch.response_index]  # (R,)
        probabilities = (states @ untied.T).softmax(-1)  # (R, 768)
        error = torch.nn.functional.one_hot(chosen, 768) - probabilities
        expected = -(error.T @ states) / len(chosen)
    torch.testing.assert_close(untied.grad, expected, rtol=1e-3, atol=1e-5)


def test_the_loss_moves_probability_towards_advantage(trained_folder):
    learner = make_learner(trained_folder, estimator="grpo", learning_rate=1e-5, batch_size=8)
    kept, experience = collect_and_target(learner)
    before = parallel.forward_sequences(learner.policy, kept, learner.config, 1.0)[0]
    train.update(learner, experience)
    gain = parallel.forward_sequences(learner.policy, kept, learner.config, 1.0)[0] - before
    assert (gain * experience.advantages).mean() > 0


def compile_without_compiler(monkeypatch):
    compile_module = torch.nn.Module.compile

    def compile_eagerly(module, **options):
        compile_module(module, backend="aot_eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_eagerly)
    torch._dynamo.reset()
    counters.clear()


def test_one_compilation_serves_rows_of_all_lengths(trained_folder, monkeypatch):
    compile_without_compiler(monkeypatch)
    policy = model.Policy(model.load_model(str(trained_folder))[0])
    trajectories = [small_trajectory([1.0], [length]) for length in (20, 33, 57)]
    expected = [policy(pack([trajectory]), 1.0)[0] for trajectory in trajectories]
    model.compile_blocks(policy.model.model.layers)
    for trajectory, logprobs in zip(trajectories, expected, strict=True):
        found, _ = policy(pack([trajectory]), 1.0)
        torch.testing.assert_close(found, logprobs, rtol=1e-5, atol=1e-5)
        assert counters["stats"]["unique_graphs"] == 2  # one graph for the norms, one for the MLPs


def test_compiled_parts_change_nothing(trained_folder, monkeypatch):
    compile_without_compiler(monkeypatch)
    sizes = dict(batch_size=8, micro_batch_tokens=640)
    found, _ = captured_update(trained_folder, monkeypatch, compile=True, **sizes)
    assert counters["stats"]["unique_graphs"] >= 2
    expected, _ = captured_update(trained_folder, monkeypatch, **sizes)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_recomputed_log_probs_are_the_trainers(trained_folder):
    learner = make_learner(trained_folder, recompute_old_logprobs=True)
    kept = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for trajectory in kept:
        for turn in trajectory.turns:
            turn.rollout_logprobs = [logprob - 0.5 for logprob in turn.rollout_logprobs]
    experience = train.build_experience(learner, kept)
    expected, _ = parallel.forward_sequences(learner.policy, kept, learner.config, 1.0)
    assert torch.equal(experience.old_logprobs, expected)
    metrics = train.update(learner, experience)
    assert metrics["logprob_diff_mean"] == pytest.approx(0.5, abs=1e-3)
    assert metrics["logprob_diff_max"] == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize("engine_dtype, low, high", [("auto", 0, 1e-6), ("bfloat16", 1e-4, 0.05)])
def test_an_engine_of_another_type_gives_other_log_probs(trained_folder, engine_dtype, low, high):
    learner = make_learner(trained_folder, engine_dtype=engine_dtype)
    expected = torch.float32 if engine_dtype == "auto" else torch.bfloat16
    assert {weight.dtype for weight in learner.engine.model.parameters()} == {expected}
    assert learner.dtype == torch.float32
    kept = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    metrics = train.update(learner, train.build_experience(learner, kept))
    assert low <= metrics["logprob_diff_mean"] < high


def test_epsilon_of_adam_damps_small_gradients(trained_folder):
    """In Adam's first step, the bias-corrected moments of a gradient g are g and g^2. So the step
    subtracts learning_rate * g / (abs(g) + adam_eps) from the weight."""
    sizes = dict(learning_rate=1e-3, adam_eps=0.01, weight_decay=0.0, grad_clip=1e9)
    learner = make_learner(trained_folder, **sizes)
    kept, experience = collect_and_target(learner)
    metrics = backward(learner, experience)
    head = learner.policy.model.lm_head.weight
    before = head.detach().full_tensor().clone()
    gradient = head.grad.full_tensor().clone()
    train.optimizer_step(learner, metrics)
    moved = before - head.detach().full_tensor()
    torch.testing.assert_close(
        moved, 1e-3 * gradient / (gradient.abs() + 0.01), atol=1e-7, rtol=1e-3
    )


def test_vllm_is_not_asked_for_what_the_trainer_computes(trained_folder):
    learner = make_learner(trained_folder, recompute_old_logprobs=True)
    kept = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    known = train.build_experience(learner, kept)
    for trajectory in kept:
        for turn in trajectory.turns:
            turn.rollout_logprobs = [math.nan] * len(turn.response_ids)
    learner.config = replace(learner.config, engine="vllm")
    assert not learner.config.engine_gives_logprobs()
    experience = train.build_experience(learner, kept)
    assert torch.equal(experience.rollout_logprobs, experience.old_logprobs)
    assert torch.equal(experience.old_logprobs, known.old_logprobs)
    metrics = train.update(learner, experience)
    assert metrics["logprob_diff_mean"] is metrics["logprob_diff_max"] is None
    assert metrics["grad_norm"] > 0
    record = trajectory_record(kept[0], learner.tokenizer)
    assert record["turns"][0]["surprise"] == [] and record["turns"][0]["tokens"]


def test_the_entropy_bonus_lowers_the_loss(trained_folder):
    learner = make_learner(trained_folder, estimator="grpo", entropy_coef=0.5)
    kept, experience = collect_and_target(learner)
    num_tokens = len(experience.advantages)
    experience.advantages = torch.zeros(num_tokens)
    loss, metrics = train.policy_loss(learner, pack(kept), weighted(experience), num_tokens)
    mean_entropy = metrics["entropy"].item()
    assert mean_entropy > 0.01
    assert loss.item() == pytest.approx(-0.5 * mean_entropy, rel=1e-5)


def test_aggregation_weighs_the_value_loss(trained_folder):
    """The value loss under seq_mean_token_sum is the value loss under token_mean times the mean
    number of sampled tokens per trajectory."""
    losses = {}
    for aggregation in ("token_mean", "seq_mean_token_sum"):
        learner = make_learner(trained_folder, aggregation=aggregation, batch_size=8)
        kept, experience = collect_and_target(learner)
        losses[aggregation] = train.update(learner, experience)["vf_loss"]
    mean_tokens = len(experience.advantages) / 8
    assert mean_tokens > 2
    expected = losses["token_mean"] * mean_tokens
    assert losses["seq_mean_token_sum"] == pytest.approx(expected, rel=1e-5)


def test_metrics_are_means_over_the_tokens_of_all_steps(trained_folder, monkeypatch):
    learner = make_learner(trained_folder)
    kept, experience = collect_and_target(learner)
    means, backward = [], train.backward

    def spy(learner, mini_batch):
        metrics = backward(learner, mini_batch)
        num_tokens = len(mini_batch.advantages)
        means.append((metrics["entropy"].item(), metrics["vf_loss"].item(), num_tokens))
        return metrics

    monkeypatch.setattr(train, "backward", spy)
    metrics = train.update(learner, experience)
    entropies, value_losses, num_tokens = zip(*means, strict=True)
    assert len(means) == 2 and num_tokens[0] != num_tokens[1]
    assert metrics["entropy"] == pytest.approx(np.average(entropies, weights=num_tokens))
    assert metrics["vf_loss"] == pytest.approx(np.average(value_losses, weights=num_tokens))


def test_every_iteration_draws_its_own_instances(trained_folder):
    learner = make_learner(trained_folder)
    chat = Chat(learner.tokenizer)
    seeds = []
    for learner.step in (0, 1):
        played = train.collect_rollouts(learner, learner.engine, chat)
        seeds.append({trajectory.seed for trajectory in played})
    assert len(seeds[0]) == len(seeds[1]) == 4 and not seeds[0] & seeds[1]


def test_a_mixture_draws_an_environment_for_each_group(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, num_groups=400, group_size=2)
    asked = []

    def mixture_at(spec, step):
        return {"a": 0.25, "b": 0.75} if step else {spec: 1.0}

    def collect_all(*args, envs, **options):
        asked.append(envs)

    monkeypatch.setattr(train, "mixture_at", mixture_at)
    monkeypatch.setattr(parallel, "collect_all", collect_all)
    for learner.step in (1, 1, 2, 0):
        train.collect_rollouts(learner, learner.engine, None)
    first, again, second, alone = asked
    assert first == again != second and set(alone) == {learner.config.env}
    assert first[::2] == first[1::2] and len(first) == 800
    assert {type(env) for env in first} == {str}
    deviation = (0.25 * 0.75 / 400) ** 0.5
    assert first.count("a") / 800 == pytest.approx(0.25, abs=4 * deviation)


# ---------- steps that are not finite


def state_of(learner):
    weights = [p for m in (learner.policy, learner.critic) for p in m.parameters()]
    return [p.detach().full_tensor().clone() for p in weights]


def unchanged(learner, before):
    pairs = zip(state_of(learner), before, strict=True)
    return all(torch.equal(weight, old) for weight, old in pairs)


def spoil(where, learner, monkeypatch):
    policy_loss, backward = starpo.ppo_loss, train.backward

    def spoilt_loss(*args, **options):
        return policy_loss(*args, **options)[0] * math.nan, {}

    def spoilt_backward(*args):
        metrics = backward(*args)
        module.weight.grad.mul_(math.inf)
        return metrics

    if where == "loss":
        monkeypatch.setattr(starpo, "ppo_loss", spoilt_loss)
        return
    norm = learner.policy.model.model.norm
    module = norm if where == "policy gradient" else learner.critic.value_head
    monkeypatch.setattr(train, "backward", spoilt_backward)


@pytest.mark.parametrize("where", ["loss", "policy gradient", "critic gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(
    trained_folder, monkeypatch, where, capsys
):
    learner = make_learner(trained_folder, batch_size=8, max_bad_steps=3)
    kept, experience = collect_and_target(learner)
    before = state_of(learner)
    capsys.readouterr()
    spoil(where, learner, monkeypatch)
    message = (
        "iteration 1: a loss, a metric or the gradient is not finite; optimizer step skipped\n"
    )
    for count in (1, 2):
        train.update(learner, experience)
        assert capsys.readouterr().out == message
        assert learner.bad_steps == count and unchanged(learner, before)
        assert all(p.grad is None for p in learner.policy.parameters())
    with pytest.raises(ValueError) as error:
        train.update(learner, experience)
    assert str(error.value) == (
        "a loss, a metric or the gradient was not finite in 3 optimizer steps in a row "
        "(iteration 1); "
        "lower learning_rate or critic_lr, and start with another --out_dir"
    )
    assert unchanged(learner, before)

    learner.bad_steps = 2
    monkeypatch.undo()
    for optimizer in learner.optimizers.values():
        optimizer.zero_grad()
    train.update(learner, experience)
    assert learner.bad_steps == 0 and not unchanged(learner, before)


# ---------- float16


def gradients_of(learner, experience):
    learner.config = replace(learner.config, grad_clip=1e9)
    backward(learner, experience)
    learner.clip_gradients()
    found = []
    for module in learner.modules.values():
        for parameter in module.parameters():
            found.append(parameter.grad.full_tensor().flatten())
            parameter.grad = None
    return torch.cat(found)


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_gradients_of_a_scaled_loss_in_float16(trained_folder):
    settings = dict(estimator="grpo", entropy_coef=0.0)
    exact = make_learner(trained_folder, **settings)
    kept, experience = collect_and_target(exact)
    experience.advantages = experience.advantages * 1e-3
    expected = gradients_of(exact, experience)
    learner = make_learner(trained_folder, dtype="float16", **settings)
    assert learner.loss_scale == 65536.0 and exact.loss_scale == 1.0
    scaled = relative_error(gradients_of(learner, experience), expected)
    learner.loss_scale = 1.0
    unscaled = relative_error(gradients_of(learner, experience), expected)
    assert scaled < 0.02 and unscaled > 0.2, (scaled, unscaled)


def test_gradients_in_bfloat16(trained_folder):
    exact = make_learner(trained_folder)
    kept, experience = collect_and_target(exact)
    expected = gradients_of(exact, experience)
    learner = make_learner(trained_folder, dtype="bfloat16")
    error = relative_error(gradients_of(learner, experience), expected)
    assert 0 < error < 0.1 and learner.loss_scale == 1.0


def test_an_overflow_in_float16_halves_the_loss_scale(trained_folder, tmp_path, capsys):
    learner = make_learner(trained_folder, batch_size=8, dtype="float16", max_bad_steps=1)
    kept, experience = collect_and_target(learner)
    before = state_of(learner)
    learner.loss_scale = 2.0**24
    capsys.readouterr()
    train.update(learner, experience)
    assert learner.loss_scale == 2.0**23 and learner.bad_steps == 0 and unchanged(learner, before)
    assert capsys.readouterr().out == (
        "iteration 1: the gradient is too large for float16; optimizer step skipped and loss "
        "scale lowered to 8.38861e+06\n"
    )
    with Saver(tmp_path, 2) as saver:
        checkpoint.save_learner(learner, saver)
    other = make_learner(trained_folder, dtype="float16")
    checkpoint.load_learner(other, tmp_path / "checkpoint-000000")
    assert other.loss_scale == 2.0**23
    while unchanged(learner, before):
        train.update(learner, experience)
    assert 1 < learner.loss_scale < 2.0**23 and learner.bad_steps == 0


def test_a_loss_that_is_not_finite_keeps_the_loss_scale(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, batch_size=8, dtype="float16", max_bad_steps=2)
    kept, experience = collect_and_target(learner)
    spoil("loss", learner, monkeypatch)
    train.update(learner, experience)
    assert learner.loss_scale == 65536.0 and learner.bad_steps == 1


# ---------- checkpoints


def test_learner_saves_and_loads_everything(trained_folder, tmp_path):
    learner = make_learner(trained_folder, bias=True)
    kept, experience = collect_and_target(learner)
    train.update(learner, experience)
    learner.step = 7
    learner.bad_steps = 1
    with Saver(tmp_path, 2) as saver:
        checkpoint.save_learner(learner, saver)
    other = make_learner(trained_folder)
    checkpoint.load_learner(other, tmp_path / "checkpoint-000007")
    assert (other.step, other.bad_steps) == (7, 1)
    assert unchanged(other, state_of(learner))
    for each in (learner, other):
        train.update(each, copy.deepcopy(experience))
    assert unchanged(other, state_of(learner))
    with Saver(tmp_path, 2) as saver:
        for learner.step in (8, 9):
            checkpoint.save_learner(learner, saver)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-000008", "checkpoint-000009"]


def test_learning_rates_fall_linearly(trained_folder):
    """Both learning rates fall towards a fifth of their first values. After 1 of 4 iterations,
    each rate is its first value times (0.2 + 0.8 * 3/4)."""
    learner = make_learner(
        trained_folder, learning_rate=0.1, critic_lr=0.2, final_lr=0.2, num_iterations=4
    )
    rates = {}
    for learner.step in (0, 1, 3):
        learner.schedule_learning_rates()
        groups = [optimizer.param_groups[0] for optimizer in learner.optimizers.values()]
        rates[learner.step] = [group["lr"] for group in groups]
    assert rates == {
        0: pytest.approx([0.1, 0.2]),
        1: pytest.approx([0.08, 0.16]),
        3: pytest.approx([0.04, 0.08]),
    }


def test_an_update_uses_the_learning_rate_of_its_iteration(trained_folder):
    """In AdamW's first step, the largest move of a weight is about the learning rate. With
    final_lr=0, half of the learning rate is left in the second of two iterations."""
    settings = dict(estimator="grpo", batch_size=8, learning_rate=0.01, weight_decay=0.0)
    moved = {}
    for step, final_lr in ((0, 0.0), (1, 0.0), (1, 1.0)):
        learner = make_learner(trained_folder, final_lr=final_lr, num_iterations=2, **settings)
        (before,) = learner.policy.model.model.norm.parameters()
        before = parallel.full_tensor(before).clone()
        learner.step = step
        train.update(learner, collect_and_target(learner)[1])
        (after,) = learner.policy.model.model.norm.parameters()
        largest = (parallel.full_tensor(after) - before).abs().max()
        moved[step, final_lr] = largest.item()
    assert moved[0, 0.0] == pytest.approx(0.01, rel=0.01)
    assert moved[1, 0.0] == pytest.approx(0.005, rel=0.01)
    assert moved[1, 1.0] == pytest.approx(0.01, rel=0.01)
