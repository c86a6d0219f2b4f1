"""Tests of methods.py against slow loops and against numbers worked out by hand."""

from configurator import Config, UserError, load_config

import doctest
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from learners import backward, collect_and_target, estimate, make_learner, select_groups
from runs import run, untimed
from shared_fixtures import config_file, small_config
from transformers import AutoModelForCausalLM

import methods
import rollout
import starpo
import train
from dialogue import Chat, TurnRecord
from envs import make_env
from packing import pack
from support.no_effect import warn_inert


@pytest.mark.parametrize("module", [methods])
def test_doctests(module):
    results = doctest.testmod(module)
    assert results.attempted > 0 and results.failed == 0


def random_batch(seed, *, num_groups=3, group_size=4, num_states=3):
    rng = np.random.default_rng(seed)
    turns = rng.integers(1, 6, num_groups * group_size).tolist()
    num_turns = sum(turns)
    return dict(
        rewards=torch.tensor(rng.normal(size=num_turns)),
        turns=turns,
        tokens=rng.integers(1, 4, num_turns).tolist(),
        groups=torch.arange(num_groups).repeat_interleave(group_size),
        states=rng.integers(0, num_states, num_turns).tolist(),
    )


def on_last_tokens(turn_rewards, tokens_per_turn):
    rewards = torch.zeros(sum(tokens_per_turn), dtype=turn_rewards.dtype)
    rewards[torch.tensor(tokens_per_turn).cumsum(0) - 1] = turn_rewards
    return rewards


# ---------- reward density


@pytest.mark.parametrize(
    "rewards, success, density, most, expected",
    [
        ([0.0, 0.0, 1.0], True, "sparse", 1, [0, 0, 1]),
        # "sparse" pays nothing without success.
        ([0.5, 0.0, 0.5], False, "sparse", 1, [0, 0, 0]),
        ([1.0], True, "sparse", 1, [1]),
        # The last turn of a win makes the rewards sum to 1.
        ([-0.2, 0.8, 10.6], True, "dense", 11, [-0.2 / 11, 0.8 / 11, 1 - 0.6 / 11]),
        ([-0.2, 0.8, -0.3], False, "dense", 11, [-0.2 / 11, 0.8 / 11, -0.3 / 11]),
        # Without a win, the rewards sum to at most 0.99. A win raises the sum to 1.
        ([2.0, 0.0, 1.0], False, "dense", 2, [0.99, 0, 0]),
        ([2.0, 0.0, 1.0], True, "dense", 2, [0.99, 0, 0.01]),
        ([0.25], False, "dense", 1, [0.25]),
        ([0.25], True, "dense", 1, [1]),
        # Progress is (sum of the rewards so far) / 4, or 1 at the end of a win. "balanced" pays at
        # the turn with the second positive reward and at the last turn. A payment is the increase
        # of the progress since the last payment.
        ([1.0, 0.0, 1.0, 1.0, 0.0], False, "balanced", 4, [0, 0, 0.5, 0, 0.25]),
        ([1.0, 0.0, 1.0, 1.0, 0.0], True, "balanced", 4, [0, 0, 0.5, 0, 0.5]),
        ([1.0, -1.0, -1.0, 1.0], False, "balanced", 4, [0, 0, 0, 0]),
        ([1.0], True, "balanced", 4, [1]),
    ],
)
def test_shape_by_hand(rewards, success, density, most, expected):
    found = methods.shape_rewards(rewards, success, density, max_reward=most)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "remaining, success, expected",
    [
        ([4, 3, 3, 1], False, [1 / 4, 0, 2 / 4]),
        ([4, 3, 3, 0], True, [1 / 4, 0, 3 / 4]),
        ([2, 4, 1], False, [-1, 3 / 2]),
        # The distance of a state is the length of its plan. A later state without a plan has
        # twice the first state's distance. The next two rows have the distances [2, 2 * 2, 2 * 2]
        # and [3, 2 * 3, 1].
        ([2, None, None], False, [-1, 0]),
        ([3, None, 1], False, [-1, 5 / 3]),
        ([3, 0], True, [1]),
        ([3, 0], False, [-1]),  # without success, a plan of 0 moves counts as no plan
        ([3, None], True, [1]),  # the last state of a won game may have no plan
        ([None, 3, 0], True, [-2, 3]),  # without a plan at the start, the first distance is 1
        ([None, None], False, [-1]),
    ],
)
def test_plan_density_by_hand(remaining, success, expected):
    found = methods.shape_rewards(
        [0.0] * (len(remaining) - 1), success, "plan", plan_lengths=remaining
    )
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("density", ["sparse", "dense", "balanced", "plan"])
def test_every_win_pays_one_and_every_loss_less(density):
    rng = random.Random(0)
    sums = set()
    for _ in range(500):
        turns = rng.randint(1, 6)
        success = rng.random() < 0.5
        rewards = [rng.choice([-1.0, -0.1, 0.0, 0.5, 1.0, 10.0]) for _ in range(turns)]
        remaining = [rng.choice([None, 0, 1, 2, 5]) for _ in range(turns + 1)]
        shaped = methods.shape_rewards(
            rewards, success, density, max_reward=2.0, plan_lengths=remaining
        )
        assert len(shaped) == turns
        if success:
            assert sum(shaped) == pytest.approx(1.0)
        else:
            assert sum(shaped) < 0.995
        sums.add(round(sum(shaped), 6))
    assert len(sums) == 2 if density == "sparse" else len(sums) > 5


def test_a_density_that_is_none_is_refused():
    with pytest.raises(ValueError, match="must be sparse, dense, balanced or plan, got 'native'"):
        methods.shape_rewards([1.0], True, "native")


# ---------- GiGPO


def test_gigpo_by_hand():
    """Both trajectories start in state "a". The first trajectory then has two turns in state "b".

    The first trajectory has the score 1, and the second trajectory has the score 0.
    """
    rewards = torch.tensor([0.0, 0.0, 1.0, 0.0])
    # With gamma 0.5, the four turns have the returns G = [0.25, 0.5, 1, 0]. The mean of G is 0.125
    # in state "a" and 0.75 in state "b".
    states = ["a", "b", "b", "a"]
    batch = (rewards, None, [1, 1, 1, 1], [3, 1], states)
    options = dict(state_weight=2.0, turn_gamma=0.5)
    found, returns = estimate(*batch, estimator="dr_grpo", **options)
    # An advantage is (score - 0.5) + 2 * (G - mean of G in the state). The number 0.5 is the mean
    # score, and 2 is state_weight.
    assert found.tolist() == [0.75, 0.0, 1.0, -0.75]
    assert returns is None
    found, _ = estimate(*batch, estimator="grpo", **options)
    # Each difference above is a value minus the mean of two values. grpo divides the difference by
    # the std of the two values. The std of two values is their distance / sqrt(2), so the quotient
    # is +-1/sqrt(2).
    expected = torch.tensor([3.0, -1.0, 3.0, -3.0]) / 2**0.5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_state_seen_once_adds_nothing():
    rewards, groups = torch.tensor([0.0, 3.0, 1.0, 5.0]), torch.tensor([0, 0])
    states = ["a", "b", "a", "c"]
    for estimator in ("grpo", "dr_grpo", "rloo"):
        added = methods.gigpo_advantages(
            rewards, [1] * 4, [2, 2], groups, states, estimator=estimator, gamma=1.0
        )
        assert added[1] == added[3] == 0.0 and added[0] < 0.0 < added[2]


def test_equal_states_of_two_groups_are_not_compared():
    rewards, groups = torch.tensor([1.0, 2.0, 7.0, 9.0]), torch.tensor([0, 0, 1, 1])
    options = dict(estimator="dr_grpo", gamma=1.0)
    ones = [1] * 4
    found = methods.gigpo_advantages(rewards, ones, ones, groups, ["a"] * 4, **options)
    assert found.tolist() == [-0.5, 0.5, -1.0, 1.0]


def slow_gigpo(batch, *, weight, gamma, divide):
    """Compute the advantages turn by turn (arXiv 2505.10978, equation 3 and equations 5 to 8)."""
    steps = []
    for trajectory, count in enumerate(batch["turns"]):
        steps += [(trajectory, turn) for turn in range(count)]
    reward = dict(zip(steps, batch["rewards"].tolist(), strict=True))
    state = dict(zip(steps, batch["states"], strict=True))
    group = batch["groups"].tolist()

    def return_of(step):
        trajectory, first = step
        turns = range(first, batch["turns"][trajectory])
        return sum(gamma ** (turn - first) * reward[trajectory, turn] for turn in turns)

    def score_of(trajectory):
        return sum(reward[step] for step in steps if step[0] == trajectory)

    def relative(value, values):
        mean = sum(values) / len(values)
        if not divide or len(values) == 1:
            return value - mean
        variance = sum((other - mean) ** 2 for other in values) / (len(values) - 1)
        return (value - mean) / (variance**0.5 + 1e-6)

    found = []
    for step, tokens in zip(steps, batch["tokens"], strict=True):
        members = [i for i in range(len(group)) if group[i] == group[step[0]]]
        scores = [score_of(i) for i in members]
        peers = [peer for peer in steps if peer[0] in members and state[peer] == state[step]]
        episode = relative(score_of(step[0]), scores)
        turn = relative(return_of(step), [return_of(peer) for peer in peers])
        found += [episode + weight * turn] * tokens
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("seed", range(5))
def test_gigpo_equals_a_slow_loop(estimator, seed):
    batch = random_batch(seed)
    rewards = on_last_tokens(batch["rewards"], batch["tokens"])
    counts = (batch["tokens"], batch["turns"], batch["groups"])
    trajectories = starpo.trajectory_advantages(rewards, *counts, estimator)
    options = dict(estimator=estimator, gamma=0.95)
    turns = methods.gigpo_advantages(rewards, *counts, batch["states"], **options)
    found = trajectories + 0.7 * turns
    expected = slow_gigpo(batch, weight=0.7, gamma=0.95, divide=estimator == "grpo")
    assert (found - expected).abs().max() < 1e-6
    assert found.std() > 0.1


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus_baseline", "turn_ppo"])
def test_gigpo_is_for_some_estimators(estimator):
    sentence = "state_weight is for estimators grpo, dr_grpo, rloo; got '{}'"
    with pytest.raises(UserError, match=sentence.format(estimator)):
        Config(estimator=estimator, state_weight=1.0)


def play(env, *replies, **changes):
    config = small_config(env=env, max_turns=len(replies), **changes)
    episode = rollout.Rollout(rollout.make_episode(config, env), (0,))
    episode.reset("eval")
    texts = iter(replies)
    return rollout.play(episode, lambda _: rollout.Reply(f"<answer>{next(texts)}</answer>"))


def test_a_grid_names_a_turn_by_the_places_of_what_moves():
    env = make_env("sokoban")
    env.reset(0, split="eval")
    start = (env.player, frozenset(env.boxes))
    assert env.state_key() == start
    trajectory = play("sokoban", "jump", "jump", "jump")
    assert [turn.state for turn in trajectory.turns] == [start] * 3
    lake = make_env("frozenlake")
    lake.reset(0, split="eval")
    assert play("frozenlake", "jump").turns[0].state == lake.state_key() == lake.player


def test_a_text_world_names_a_turn_by_its_observation():
    trajectory = play("quest", "open red door", "nonsense", "nonsense")
    states = [turn.state for turn in trajectory.turns]
    for turn in trajectory.turns:
        assert isinstance(turn.state, str) and turn.observation.endswith(f"\n{turn.state}")
    assert states[0] != states[1] == states[2]


def test_a_state_key_must_be_hashable(tmp_path):
    file = tmp_path / "listed.py"
    file.write_text(
        "from worlds.bandit import Bandit\n\n\n"
        "class Listed(Bandit):\n"
        "    def state_key(self):\n"
        "        return [1]\n"
    )
    error = play(f"{file}:Listed", "x").error
    assert error == "Listed.state_key returned [1]; expected a hashable value"


# ---------- Turn-PPO


def test_turn_ppo_by_hand():
    """The first tokens of turns 1 and 2 have the values 1 and 2. The values of the other tokens
    must have no effect."""
    rewards = torch.tensor([0.5, 0.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    values = torch.tensor([1.0, 7.0, 2.0, 8.0, 9.0], dtype=torch.float64)
    # gamma and lam must have no effect, so they have the absurd value 9.
    discounts = starpo.Discounts(gamma=9.0, lam=9.0, turn_gamma=0.5, turn_lam=0.5)
    found, returns = methods.turn_ppo_advantages(rewards, values, [2, 3], [2], discounts)
    # Turn 2 has the advantage 4 - 2 = 2. Turn 1 has delta = 0.5 + 0.5 * 2 - 1 = 0.5 and the
    # advantage 0.5 + 0.25 * 2 = 1.
    assert found.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert returns.tolist() == [2.0, 2.0, 4.0, 4.0, 4.0]
    whitened, same_returns = estimate(
        rewards, values, [2, 3], [2], estimator="turn_ppo", **discounts._asdict()
    )
    torch.testing.assert_close(whitened, (found - 1.6) / found.std())
    assert torch.equal(returns, same_returns)


@pytest.mark.parametrize("seed", range(3))
def test_turn_ppo_equals_a_slow_loop(seed):
    batch = random_batch(seed)
    rewards = on_last_tokens(batch["rewards"], batch["tokens"])
    values = torch.randn(len(rewards), generator=torch.Generator().manual_seed(seed)).double()
    discounts = starpo.Discounts(gamma=1.0, lam=1.0, turn_gamma=0.99, turn_lam=0.9)
    found, returns = methods.turn_ppo_advantages(
        rewards, values, batch["tokens"], batch["turns"], discounts
    )
    first = [sum(batch["tokens"][:turn]) for turn in range(len(batch["tokens"]))]
    value_of = [values[i].item() for i in first]
    expected, expected_returns = [], []
    start = 0
    for count in batch["turns"]:
        for turn in range(start, start + count):
            total = 0.0
            for later in range(turn, start + count):
                is_last = later == start + count - 1
                following = 0.0 if is_last else value_of[later + 1]
                delta = batch["rewards"][later].item() + 0.99 * following - value_of[later]
                total += (0.99 * 0.9) ** (later - turn) * delta
            expected += [total] * batch["tokens"][turn]
            expected_returns += [total + value_of[turn]] * batch["tokens"][turn]
        start += count
    assert (found - torch.tensor(expected)).abs().max() < 1e-6
    assert (returns - torch.tensor(expected_returns)).abs().max() < 1e-6


def test_turn_ppo_trains_one_value_a_turn():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    turns = torch.tensor([5, 5, 5, 9])
    shared = methods.turn_ppo_values(values, turns)
    assert shared.tolist() == [1.0, 1.0, 1.0, 4.0]
    shared.sum().backward()
    assert values.grad.tolist() == [3.0, 0.0, 0.0, 1.0]


# ---------- GSPO


def random_tokens(seed, lengths=(3, 1, 4, 2)):
    """Return five tensors with one entry per token: log-probs of the policy, of the old policy and
    of the engine, advantages, and sequence numbers."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    old = -torch.rand(count, generator=generator, dtype=torch.float64) - 0.1
    new = old + 0.3 * torch.randn(count, generator=generator, dtype=torch.float64)
    engine = old + 0.2 * torch.randn(count, generator=generator, dtype=torch.float64)
    per_sequence = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) + 5
    return new, old, engine, per_sequence.repeat_interleave(torch.tensor(lengths)), numbers


def pieces_of(numbers):
    found = {}
    for index, number in enumerate(numbers.tolist()):
        found.setdefault(number, []).append(index)
    return list(found.values())


def slow_gspo(new, old, advantages, numbers, clip_low, clip_high):
    """Return the loss of equation 5 of arXiv 2507.18071, and its gradient.

    The ratio s of a sequence is the geometric mean of its token ratios. By equation 10, the
    gradient of s with respect to the log-prob of a token is s / (length of the sequence).
    """
    pieces = pieces_of(numbers)
    loss = 0.0
    gradient = torch.zeros(len(new), dtype=torch.float64)
    for piece in pieces:
        product = 1.0
        for t in piece:
            product *= (new[t] - old[t]).exp().item()
        s = product ** (1 / len(piece))
        advantage = advantages[piece[0]].item()
        clipped = min(max(s, 1 - clip_low), 1 + clip_high) * advantage
        loss -= min(s * advantage, clipped) / len(pieces)
        if s * advantage <= clipped:
            for t in piece:
                gradient[t] = -s * advantage / len(piece) / len(pieces)
    return loss, gradient


@pytest.mark.parametrize("seed", range(6))
def test_gspo_equals_a_slow_loop(seed):
    new, old, _, advantages, numbers = random_tokens(seed)
    leaf = new.clone().requires_grad_()
    log_ratio = methods.gspo_log_ratio(leaf, old, numbers)
    lengths = [len(piece) for piece in pieces_of(numbers)]
    weights = starpo.token_weights(lengths, "seq_mean_token_mean", 10).double()
    loss, metrics = starpo.ppo_loss(
        leaf,
        old,
        advantages,
        clip_low=0.1,
        clip_high=0.15,
        num_tokens=len(new),
        weights=weights,
        segment_log_ratio=log_ratio,
    )
    loss.backward()
    expected, gradient = slow_gspo(new, old, advantages, numbers, 0.1, 0.15)
    assert abs(loss.item() - expected) < 1e-6
    assert (leaf.grad - gradient).abs().max() < 1e-6
    assert leaf.grad.abs().max() > 0.01
    d = new - old
    assert metrics["approx_kl"].item() == pytest.approx((d.exp() - 1 - d).mean().item())


def test_gspo_by_hand():
    """The tokens with ratios 4 and 1 form one sequence: both get the geometric mean, 2."""
    new = torch.tensor([4.0, 1.0, 3.0]).log().requires_grad_()
    log_ratio = methods.gspo_log_ratio(new, torch.zeros(3), torch.tensor([2, 2, 8]))
    torch.testing.assert_close(log_ratio.exp(), torch.tensor([2.0, 2.0, 3.0]))
    log_ratio.exp().sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([2.0, 2.0, 3.0]))


def test_ratios_beyond_the_bound_have_no_gradient_in_any_form():
    """Log ratios are clamped to [-20, 20]. The tokens have the log ratios 19, 21 and -21, so only
    the first token has a gradient. The size of this gradient is exp(19)."""
    old = torch.tensor([-30.0, -30.0, -1.0])
    numbers = torch.arange(3)
    options = dict(clip_low=1.0, clip_high=float("inf"), num_tokens=1)
    for is_sequence in (False, True):
        new = torch.tensor([-11.0, -9.0, -22.0], requires_grad=True)
        log_ratio = methods.gspo_log_ratio(new, old, numbers) if is_sequence else None
        loss, _ = starpo.ppo_loss(new, old, torch.ones(3), segment_log_ratio=log_ratio, **options)
        loss.backward()
        torch.testing.assert_close(new.grad, torch.tensor([-(math.e**19), 0.0, 0.0]))


def test_gspo_of_sequences_of_one_token_is_ppo():
    new, old, _, advantages, _ = random_tokens(0)
    numbers = torch.arange(len(new))
    options = dict(clip_low=0.2, clip_high=0.28, num_tokens=len(new))
    log_ratio = methods.gspo_log_ratio(new, old, numbers)
    found, _ = starpo.ppo_loss(new, old, advantages, segment_log_ratio=log_ratio, **options)
    expected, _ = starpo.ppo_loss(new, old, advantages, **options)
    assert found.item() == expected.item()


# ---------- masks


@pytest.mark.parametrize("seed", range(4))
def test_the_masks_equal_slow_loops(seed):
    new, old, engine, advantages, numbers = random_tokens(seed)
    expected = torch.ones(len(new), dtype=torch.float64)
    for piece in pieces_of(numbers):
        product = 1.0
        for t in piece:
            product *= (new[t] - engine[t]).exp().item()
        if advantages[piece[0]] < 0 and product ** (1 / len(piece)) < 0.98:
            expected[piece] = 0.0
    found = methods.sequence_mask(new, engine, advantages, numbers, 0.98)
    assert torch.equal(found.to(expected.dtype), expected)

    found = methods.tv_mask(new, engine, advantages, 0.05)
    ratios = starpo.importance_weights(new, old, engine, cap=1.2)
    ratios = ratios * methods.icepop_mask(new, engine, floor=0.9, cap=1.2)
    for t in range(len(new)):
        p, mu = new[t].exp().item(), engine[t].exp().item()
        is_safe = p - mu <= 0.05 if advantages[t] > 0 else p - mu >= -0.05
        assert found[t].item() == float(is_safe)
        icepop = p / mu if 0.9 <= p / mu <= 1.2 else 0.0
        ratio = (new[t] - old[t]).exp().item()
        assert abs(ratios[t].item() * ratio - icepop) < 1e-6


def test_good_sequences_are_never_masked():
    new, engine = torch.tensor([-9.0, -9.0]), torch.tensor([-0.1, -0.1])
    numbers = torch.tensor([0, 0])
    for advantage, kept in ((1.0, 1.0), (0.0, 1.0), (-1.0, 0.0)):
        advantages = torch.full((2,), advantage)
        found = methods.sequence_mask(new, engine, advantages, numbers, 0.5)
        assert found.tolist() == [kept, kept]
    # If the advantages in a sequence differ, sequence_mask uses their mean.
    found = methods.sequence_mask(new, engine, torch.tensor([-1.0, 3.0]), numbers, 0.5)
    assert found.tolist() == [1.0, 1.0]


def test_tv_mask_by_hand():
    """The engine gives each token the probability 0.5. If the policy's probability is above
    0.5 + 0.2, a token with A > 0 is masked. If the policy's probability is below 0.5 - 0.2, a token
    with A < 0 is masked. In both cases, an update would move the probability further from 0.5."""
    new = torch.tensor([0.8, 0.8, 0.2, 0.2, 0.6, 0.8, 0.2]).log()
    engine = torch.full((7,), 0.5).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0, 0.0])
    expected = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert methods.tv_mask(new, engine, advantages, 0.2).tolist() == expected


def test_icepop_by_hand():
    new = torch.tensor([0.1, 0.25, 0.5, 0.9]).log()
    engine = torch.tensor([0.5, 0.5, 0.5, 0.1]).log()  # ratios 0.2, 0.5, 1, 9
    found = starpo.importance_weights(new, new, engine, cap=5.0)
    torch.testing.assert_close(found, torch.tensor([0.2, 0.5, 1.0, 5.0]))
    mask = methods.icepop_mask(new, engine, floor=0.4, cap=5.0)
    assert mask.tolist() == [False, True, True, False]


def test_the_settings_choose_ratio_weights_and_clip_range(monkeypatch):
    new, old, engine, advantages, numbers = random_tokens(1)
    importance = starpo.importance_weights(new, old, engine, 2.0)
    log_ratio, weights, clip_range = spied_loss(monkeypatch, Config(), seed=1)
    assert log_ratio is None and torch.equal(weights, importance) and clip_range == (0.2, 0.28)
    _, weights, _ = spied_loss(monkeypatch, Config(importance_floor=0.9), seed=1)
    assert torch.equal(weights, importance * methods.icepop_mask(new, engine, 0.9, 2.0))
    config = Config(tv_bound=0.05, sequence_mask=0.98, sequence_ratio=True)
    log_ratio, weights, clip_range = spied_loss(monkeypatch, config, seed=1)
    expected = methods.tv_mask(new, engine, advantages, 0.05).to(weights.dtype)
    expected *= methods.sequence_mask(new, engine, advantages, numbers, 0.98)
    assert torch.equal(weights, expected) and (expected == 0).any()
    assert torch.equal(log_ratio, methods.gspo_log_ratio(new, old, numbers))
    assert clip_range == (1.0, float("inf"))
    loss, metrics = starpo.ppo_loss(
        new, old, advantages, clip_low=1.0, clip_high=float("inf"), num_tokens=10
    )
    assert metrics["clipfrac"] == 0.0 and torch.isfinite(loss)


def spied_loss(monkeypatch, config, seed):
    new, old, engine, advantages, numbers = random_tokens(seed)
    experience = train.Experience(
        sequences=[],
        trajectory_ids=[],
        advantages=advantages,
        old_logprobs=old,
        rollout_logprobs=engine,
        turn_ids=numbers,
        segment_ids=numbers,
        token_weights=torch.ones_like(new),
    )
    given = {}

    def spy(*args, **options):
        given.update(options)
        return torch.tensor(0.0), {}

    with monkeypatch.context() as patch:
        patch.setattr(starpo, "ppo_loss", spy)
        train.clipped_loss(config, new, experience, num_tokens=len(new))
    return given["segment_log_ratio"], given["weights"], (given["clip_low"], given["clip_high"])


# ---------- dynamic sampling


def test_missing_groups_and_candidates_by_hand():
    std = torch.tensor([0.0, 0.3, 0.0, 0.2, 0.5])
    assert methods.num_missing_groups(std, 4) == 1
    assert methods.num_missing_groups(std, 3) == methods.num_missing_groups(std, 2) == 0
    assert methods.candidate_groups(std, 2).tolist() == [1, 3]
    # Groups 1, 3 and 4 have variance. The call asks for four groups, so group 0, the first group
    # without variance, is added.
    assert methods.candidate_groups(std, 4).tolist() == [0, 1, 3, 4]
    assert methods.candidate_groups(std, 5).tolist() == [0, 1, 2, 3, 4]
    assert methods.candidate_groups(std, 8).tolist() == [0, 1, 2, 3, 4]


def test_a_group_of_one_cannot_wait_for_variance():
    cure = "use --group_size=2 or more, or --sampling_rounds=1"
    with pytest.raises(UserError, match=f"group_size=1 leaves no other member.*; {cure}"):
        Config(group_size=1, sampling_rounds=2, filter_keep=1.0, batch_size=8)


# ---------- SimpleTIR


def made_up(*num_actions, start=1):
    """Return a trajectory. Turn i executes num_actions[i] actions and has i + 1 reply tokens."""
    turns = []
    for index, count in enumerate(num_actions):
        record = TurnRecord([], num_actions=count)
        ids = list(range(start, start + index + 1))
        turns.append(rollout.Turn([7] * 3, ids, [-0.5] * len(ids), record=record))
    return rollout.Trajectory((0,), 0, turns, "failure")


def test_trajectories_with_a_void_turn_are_not_trained_on():
    kept = [made_up(1, 2), made_up(1, 0), made_up(3)]
    is_void = [trajectory.has_void_turn for trajectory in kept]
    assert is_void == [False, True, False]
    assert methods.without_void_turns(is_void) == [0, 2]
    assert methods.without_void_turns([True]) == []
    assert methods.without_void_turns([]) == []


# ---------- ECHO


def test_observations_lie_between_replies():
    trajectory = made_up(1, 2)
    assert trajectory.ids == [7, 7, 7, 1, 7, 7, 7, 1, 2]
    assert trajectory.observation_mask == [False] * 4 + [True] * 3 + [False] * 2
    other = made_up(1, start=4)
    batch = pack([trajectory, other], observations=True)
    # The trajectories share [7, 7]. Then come the other tokens of the first trajectory,
    # [7, 1, 7, 7, 7, 1, 2], and those of the second, [7, 4].
    assert batch.ids.tolist() == [7, 7, 7, 1, 7, 7, 7, 1, 2, 7, 4]
    assert batch.observation_index.tolist() == [4, 5, 6]
    assert batch.predicted_index.tolist() == [3, 7, 8, 10, 4, 5, 6]
    plain = pack([trajectory, other])
    assert plain.observation_index is None
    assert plain.predicted_index.tolist() == [3, 7, 8, 10]


def test_echo_by_hand():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = methods.echo_loss(logprobs, num_observation_tokens=4)
    loss.backward()
    assert loss.item() == 3 / 4 and logprobs.grad.tolist() == [-0.25, -0.25]
    assert methods.echo_loss(torch.zeros(0), num_observation_tokens=0).item() == 0.0


# ---------- iterations


@pytest.fixture(scope="module")
def played(trained_folder):
    import parallel

    parallel.init_distributed(small_config())
    learner = make_learner(trained_folder, estimator="grpo", entropy_coef=0.0)
    return learner, *collect_and_target(learner)


def gradient_of(played, **changes):
    learner, kept, experience = played
    before = learner.config
    learner.config = replace(before, **changes)
    try:
        metrics = backward(learner, experience)
    finally:
        learner.config = before
    gradients = [p.grad.full_tensor().flatten() for p in learner.policy.parameters()]
    learner.optimizers["policy"].zero_grad(set_to_none=True)
    return torch.cat(gradients), {key: value.item() for key, value in metrics.items()}


NOTHING_TO_DO = dict(importance_floor=1e-6, sequence_mask=1e-6, tv_bound=1.0)


def test_masks_without_anything_to_drop_change_no_bit(played):
    gradient, metrics = gradient_of(played)
    same, same_metrics = gradient_of(played, **NOTHING_TO_DO)
    assert gradient.abs().max() > 0 and torch.equal(gradient, same)
    assert metrics == same_metrics and metrics["masked_frac"] == 0.0
    assert "observation_nll" not in metrics


@pytest.mark.parametrize("segment", ["trajectory", "turn"])
def test_gspo_is_ppo_in_the_first_step(played, segment):
    learner, kept, _ = played
    gradient, _ = gradient_of(played)
    experience = with_settings(learner, kept, segment=segment)
    nearly, _ = gradient_of((learner, kept, experience), sequence_ratio=True)
    assert (gradient - nearly).abs().max() < 1e-4 * gradient.abs().max()


@pytest.mark.parametrize("changes", [dict(sequence_ratio=True), dict(tv_bound=1.0)])
def test_the_ratio_and_the_clip_reach_the_loss(played, changes):
    learner, kept, experience = played
    noise = 0.5 * torch.randn(
        len(experience.advantages), generator=torch.Generator().manual_seed(0)
    )
    moved = replace(
        experience,
        old_logprobs=experience.old_logprobs + noise,
        rollout_logprobs=experience.rollout_logprobs + noise,
    )
    plain, plain_metrics = gradient_of((learner, kept, moved), importance_cap=1e6)
    found, metrics = gradient_of((learner, kept, moved), importance_cap=1e6, **changes)
    assert (found - plain).abs().max() > 0.01 * plain.abs().max()
    assert plain_metrics["clipfrac"] > 0
    assert metrics["clipfrac"] == 0 or "tv_bound" not in changes


def test_no_trajectory_with_a_void_turn_is_trained_on(trained_folder, one_rank, monkeypatch):
    learner = make_learner(trained_folder, estimator="grpo", drop_void=True)
    compared, trained = [], []

    def build_experience(learner, kept, kept_fraction):
        compared.extend(kept)
        return experience_of(learner, kept, kept_fraction)

    def update(learner, experience):
        trained.extend(experience.sequences)
        return {"pg_loss": 0.0}

    experience_of = train.build_experience
    monkeypatch.setattr(train, "build_experience", build_experience)
    monkeypatch.setattr(train, "update", update)
    train.iterate(learner, learner.engine, Chat(learner.tokenizer), [])
    assert len(compared) == 8
    assert trained == [trajectory for trajectory in compared if not trajectory.has_void_turn]
    assert 0 < len(trained) < len(compared)


def test_the_states_of_turns_reach_gigpo(played):
    learner, kept, _ = played
    turns = [turn for trajectory in kept for turn in trajectory.turns]
    states = [turn.state for turn in turns]
    assert 1 < len(set(states)) < len(states)
    batch = dict(
        rewards=torch.tensor([turn.reward for turn in turns], dtype=torch.float64),
        turns=[len(trajectory.turns) for trajectory in kept],
        tokens=[len(turn.response_ids) for turn in turns],
        groups=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        states=states,
    )
    experience = with_settings(learner, kept, state_weight=1.0, turn_gamma=0.9)
    expected = slow_gigpo(batch, weight=1.0, gamma=0.9, divide=True)
    torch.testing.assert_close(experience.advantages, expected.float(), rtol=1e-4, atol=1e-4)


def test_a_segment_is_a_trajectory_or_a_turn(played):
    learner, kept, experience = played
    num_turns = sum(len(trajectory.turns) for trajectory in kept)
    assert len(experience.segment_ids.unique()) == len(kept) < num_turns
    assert len(experience.turn_ids.unique()) == num_turns
    by_turn = with_settings(learner, kept, segment="turn")
    assert torch.equal(by_turn.segment_ids, experience.turn_ids)
    by_window = with_settings(learner, kept, context_turns=1)
    assert torch.equal(by_window.segment_ids, experience.turn_ids)


def with_settings(learner, kept, **changes):
    before = learner.config
    learner.config = replace(before, **changes)
    try:
        return train.build_experience(learner, kept)
    finally:
        learner.config = before


def test_a_masked_token_has_no_gradient(played):
    """The test raises the engine's log-probs by 1, so pi / pi_engine is about e^-1 = 0.37. This
    ratio is below the bound 0.9, so sequence_mask drops all tokens with A < 0."""
    learner, kept, experience = played
    far = replace(experience, rollout_logprobs=experience.rollout_logprobs + 1.0)
    good = replace(far, advantages=far.advantages.clamp(min=0.0))
    options = dict(importance_cap=1e6)
    masked, metrics = gradient_of((learner, kept, far), sequence_mask=0.9, **options)
    expected, _ = gradient_of((learner, kept, good), **options)
    assert torch.allclose(masked, expected, rtol=1e-5, atol=1e-9)
    bad_frac = (experience.advantages < 0).double().mean().item()
    assert bad_frac > 0 and metrics["masked_frac"] == pytest.approx(bad_frac)


def test_void_trajectories_leave_the_gradient_of_the_others(played):
    """A void turn executes no action. Dropping a trajectory with a void turn gives the same
    gradient as setting its advantages to 0 and leaving its tokens out of the loss's denominator."""
    learner, kept, experience = played
    lengths = torch.tensor([trajectory.num_response_tokens for trajectory in kept])
    void = torch.tensor([trajectory.has_void_turn for trajectory in kept])
    assert 0 < void.sum() < len(kept)
    left = experience.of_trajectories(methods.without_void_turns(void.tolist()))
    found, _ = gradient_of((learner, kept, left))
    is_void = void.repeat_interleave(lengths)
    zeroed = replace(experience, advantages=experience.advantages.masked_fill(is_void, 0.0))
    expected, _ = gradient_of((learner, kept, zeroed))
    expected = expected * len(is_void) / (~is_void).sum()
    assert found.abs().max() > 0
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_echo_equals_a_slow_loop(played, trained_folder):
    learner, kept, experience = played
    gradient, _ = gradient_of(played)
    both, metrics = gradient_of(played, observation_coef=0.5)
    plain = AutoModelForCausalLM.from_pretrained(trained_folder, dtype=torch.float32)
    total, count = 0.0, 0
    for trajectory in kept:
        logprobs = plain(torch.tensor([trajectory.ids])).logits[0].log_softmax(-1)
        for t, is_observed in enumerate(trajectory.observation_mask):
            if is_observed:
                total -= logprobs[t - 1, trajectory.ids[t]]
                count += 1
    (0.5 * total / count).backward()
    weights = dict(plain.named_parameters())
    names = [name.removeprefix("model.") for name, _ in learner.policy.named_parameters()]
    expected = torch.cat([weights[name].grad.flatten() for name in names])
    scale = expected.abs().max()
    assert scale > 0 and (both - gradient - expected).abs().max() < 1e-4 * scale
    assert metrics["observation_nll"] == pytest.approx((total / count).item(), rel=1e-5)


def test_rounds_of_sampling_add_groups(trained_folder, one_rank):
    """Without a format penalty, most scores are 0, so fewer than num_groups groups of the first
    round have variance."""
    once = make_learner(trained_folder, num_groups=2, format_penalty=0.0)
    more = make_learner(trained_folder, num_groups=2, format_penalty=0.0, sampling_rounds=3)
    chat = Chat(once.tokenizer)
    first = train.collect_rollouts(once, once.engine, chat)
    found = train.collect_rollouts(more, more.engine, chat)
    assert [t.ids for t in found[: len(first)]] == [t.ids for t in first]
    std = train.stats_of_groups(found, 4).std
    num_varied = int((std[:2] > 0).sum())
    assert num_varied < 2 and 2 < len(std) <= 2 + 2 * (2 - num_varied)
    assert len({t.seed for t in found}) == len(found) // 4
    kept = select_groups(replace(more.config, filter_keep=1.0), found).tolist()
    assert kept == methods.candidate_groups(std, 2).tolist()


# ---------- overlays


def rows(folder, start, **changes):
    return untimed(run(folder, start, eval_every=0, save_every=0, **changes))


OVERLAYS = [
    "dppo_tv",
    "dynamic_sampling",
    "echo",
    "gigpo",
    "gspo",
    "icepop",
    "sampo",
    "sequence_mask",
    "turn_ppo",
]


def settings_of(overlay):
    config, _, _ = load_config([config_file(overlay)])
    changed = {}
    for key, default in vars(Config()).items():
        if getattr(config, key) != default and key != "out_dir":
            changed[key] = getattr(config, key)
    return changed


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_overlay_sets_what_its_method_needs(overlay):
    assert settings_of(overlay)
    experiment = "sokoban_ppo" if overlay == "turn_ppo" else "frozenlake_grpo"
    paths = [config_file(experiment), config_file(overlay)]
    config, _, sources = load_config([*paths, "--device=cuda", "--dtype=bfloat16"])
    assert warn_inert(config, sources) == ""


def test_a_method_that_cannot_act_is_named_though_an_overlay_gives_it():
    paths = [config_file(name) for name in ("frozenlake_grpo", "gspo", "tiny")]
    config, _, sources = load_config([*paths, "--batch_size=32"])
    assert warn_inert(config, sources).startswith(
        "these settings have no effect: sequence_ratio: an iteration makes one optimizer step"
    )
    config, _, sources = load_config(paths)
    assert warn_inert(config, sources) == ""


def test_sampo_is_gspo_and_gigpo_with_a_filter():
    own = {"clip_low": 3e-3, "clip_high": 4e-3, "filter_strategy": "top_p", "filter_keep": 1.0}
    own["segment"] = "turn"
    parts = {**settings_of("gspo"), **settings_of("gigpo"), **own}
    del parts["batch_size"]
    assert settings_of("sampo") == {**parts, "estimator": "grpo"}


@pytest.mark.slow
def test_neutral_values_change_no_metric_of_a_run(trained_folder, tmp_path, one_rank):
    """An iteration takes four optimizer steps. After the first step, the policy differs from the
    engine, so the ratios are not 1."""
    settings = dict(estimator="grpo", batch_size=4, filter_keep=1.0)
    neutral = dict(importance_floor=1e-6, sequence_mask=1e-6, segment="turn")
    plain = rows(tmp_path / "plain", trained_folder, **settings)
    same = rows(tmp_path / "same", trained_folder, **settings, **neutral)
    assert plain == same and plain[-1]["approx_kl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_overlay_runs(overlay, trained_folder, tmp_path, one_rank):
    settings = dict(batch_size=4) | settings_of(overlay)
    settings["batch_size"] = min(4, settings["batch_size"])
    found = rows(tmp_path / "run", trained_folder, **(dict(estimator="grpo") | settings))
    assert len(found) == 2 and found[0]["grad_norm"] > 0 and found[0]["kept_groups"] > 0
