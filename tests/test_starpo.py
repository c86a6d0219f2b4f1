"""
Tests of starpo.py: numbers worked out by hand, slow obvious loops, enumerated expectations. CPU, a few seconds.

    python -m pytest -q tests/test_starpo.py
"""

import doctest
import inspect
import math
import re
import warnings

import pytest
import torch

import starpo

NAN, INF = float("nan"), float("inf")


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual, expected, tol=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol)


def test_doctests():
    results = doctest.testmod(starpo)
    assert results.attempted > 0
    assert results.failed == 0
    public = [f for name, f in vars(starpo).items() if inspect.isfunction(f) and not name.startswith("_")]
    assert len(public) == 11
    assert [f.__name__ for f in public if ">>>" not in f.__doc__] == []


# ---------- groups


def test_group_stats_by_hand():
    # group 0: mean 2, unbiased variance ((-2)^2 + 0 + 2^2) / 2 = 4; group 1: mean -1, variance (1 + 1 + 4) / 2 = 3
    mean, std, best = starpo.group_stats(doubles(0, 2, 4, -2, -2, 1), 3)
    close(mean, [2, -1])
    close(std, [2, math.sqrt(3)])
    close(best, [4, 1])


def test_group_stats_of_one_rollout_has_zero_std():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch.std of one number warns
        mean, std, best = starpo.group_stats(torch.tensor([3.0, -1.0]), 1)
    assert mean.tolist() == best.tolist() == [3.0, -1.0]
    assert std.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_noise_is_no_variance(dtype):
    low = torch.tensor([0.3, 9.0], dtype=dtype)
    high = torch.nextafter(low, low + 1)  # one bit apart; in float64 the first is 0.1 + 0.2
    assert dtype == torch.float32 or high[0].item() == 0.1 + 0.2 != low[0].item()
    scores = torch.stack([low, high], 1).flatten()
    assert starpo.group_stats(scores, 2)[1].tolist() == [0.0, 0.0]
    assert starpo.grpo_advantages(scores, 2).tolist() == [0.0] * 4
    assert starpo.filter_groups(scores, 2, 0.9).tolist() == []
    assert starpo.rollout_metrics(scores, torch.zeros(4), 2)["zero_std_frac"] == 1.0


def test_small_true_variance_survives():
    # one of two rollouts pays one format penalty of 0.1 on top of 10.9
    scores = torch.tensor([10.9, 10.8])
    assert starpo.group_stats(scores, 2)[1].item() == pytest.approx(0.1 / math.sqrt(2), rel=1e-4)
    assert starpo.filter_groups(scores, 2, 0.5).tolist() == [0]


def test_grpo_advantages_by_hand():
    # group 0: mean 2, std 2; group 1: mean -1, std sqrt(3); 1e-6 is added to the std
    s = math.sqrt(3) + 1e-6
    advantages = starpo.grpo_advantages(doubles(0, 2, 4, -2, -2, 1), 3)
    close(advantages, [-2 / 2.000001, 0, 2 / 2.000001, -1 / s, -1 / s, 2 / s])


def test_grpo_advantages_sum_to_zero_and_agree_with_loop():
    torch.manual_seed(0)
    scores = torch.randn(24, dtype=torch.float64) * 3 + 7
    advantages = starpo.grpo_advantages(scores, 4)
    assert advantages.view(6, 4).sum(1).abs().max() < 1e-12
    assert advantages.abs().max() > 0.5
    for i in range(24):
        group = scores[i // 4 * 4 : i // 4 * 4 + 4].tolist()
        mean = sum(group) / 4
        std = math.sqrt(sum((s - mean) ** 2 for s in group) / 3)
        assert advantages[i].item() == pytest.approx((scores[i].item() - mean) / (std + 1e-6), rel=1e-9)


def test_grpo_advantages_without_variance_are_zero():
    assert starpo.grpo_advantages(torch.tensor([3.0, -1.0]), 1).tolist() == [0.0, 0.0]  # N = 1
    # all equal (group 0) next to a group with variance: mean 1, std sqrt(2)
    advantages = starpo.grpo_advantages(doubles(5, 5, 0, 2), 2)
    close(advantages, [0, 0, -1 / (math.sqrt(2) + 1e-6), 1 / (math.sqrt(2) + 1e-6)])


# std of (0, x) is x / sqrt(2): the groups below have x = 1, 3, 0, 2
FOUR_GROUPS = (0, 1, 0, 3, 4, 4, 0, 2)


@pytest.mark.parametrize(
    "keep, kept",
    [
        (0.1, [1]),  # max(1, int(0.4)) = 1
        (0.25, [1]),
        (0.5, [1, 3]),
        (0.74, [1, 3]),  # int(2.96) = 2
        (0.75, [0, 1, 3]),
        (0.99, [0, 1, 3]),
        (1.0, [0, 1, 2, 3]),  # no filter: the group without variance stays
    ],
)
def test_filter_by_hand(keep, kept):
    groups = starpo.filter_groups(doubles(*FOUR_GROUPS), 2, keep)
    assert groups.dtype == torch.int64
    assert groups.tolist() == kept


def test_filter_never_fills_up_with_zero_variance():
    # int(0.75 * 4) = 3 groups are asked for, one has variance
    assert starpo.filter_groups(doubles(1, 1, 0, 0, 2, 3, 7, 7), 2, 0.75).tolist() == [2]


def test_filter_ties_go_to_the_lower_index():
    scores = doubles(0, 1, 0, 2, 5, 7, -2, 0, 1, 3, 0, 1)  # x = 1, 2, 2, 2, 2, 1
    assert starpo.filter_groups(scores, 2, 0.5).tolist() == [1, 2, 3]
    assert starpo.filter_groups(scores, 2, 0.9).tolist() == [0, 1, 2, 3, 4]
    many = doubles(0, 1, 0, 1, 0, 2).repeat(1000)  # 3000 groups, every third has the larger std
    assert starpo.filter_groups(many, 2, 0.1).tolist() == list(range(2, 900, 3))
    noisy = doubles(0, 0.3, 0, 0.1 + 0.2)  # the second std is larger by 4e-17: still a tie
    assert noisy[3] > noisy[1]
    assert starpo.filter_groups(noisy, 2, 0.5).tolist() == [0]


def test_filter_may_be_empty():
    groups = starpo.filter_groups(torch.ones(8), 4, 0.5)
    assert groups.dtype == torch.int64
    assert groups.shape == (0,)
    assert starpo.filter_groups(torch.tensor([1.0, 2.0, 3.0]), 1, 0.5).tolist() == []  # N = 1
    assert starpo.filter_groups(torch.ones(8), 4, 1.0).tolist() == [0, 1]


def test_filter_count_survives_float_product():
    # 0.29 * 100 = 28.999999999999996 in floats
    scores = torch.stack([torch.zeros(100), torch.arange(1.0, 101.0)], 1).flatten()
    assert starpo.filter_groups(scores, 2, 0.29).tolist() == list(range(71, 100))


# ---------- tokens


def test_gae_by_hand():
    # gamma = 0.5, lam = 0.5, gamma * lam = 0.25. Trajectory 0: V = 1, 2, 4, r = 0, 1, 2
    # delta = 0 + 0.5 * 2 - 1 = 0, 1 + 0.5 * 4 - 2 = 1, 2 - 4 = -2
    # A_2 = -2, A_1 = 1 - 0.25 * 2 = 0.5, A_0 = 0 + 0.25 * 0.5 = 0.125; trajectory 1: one token, A = 3 - 1 = 2
    advantages, returns = starpo.gae(doubles(0, 1, 2, 3), doubles(1, 2, 4, 1), [3, 1], 0.5, 0.5)
    close(advantages, [0.125, 0.5, -2, 2])
    close(returns, [1.125, 2.5, 2, 3])


def padded_gae_with_observations(rewards, values, response_mask, gamma, lam):
    """Slow reference: walk each (T,) row from its end over a full sequence, skipping what was not sampled."""
    B, T = response_mask.shape
    advantages = torch.zeros(B, T, dtype=values.dtype)
    for b in range(B):
        next_value = next_advantage = 0.0
        for t in reversed(range(T)):
            if not response_mask[b, t]:
                continue
            delta = rewards[b, t] + gamma * next_value - values[b, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[b, t]
            advantages[b, t] = next_advantage
    return advantages


@pytest.mark.parametrize("gamma, lam", [(0.9, 0.8), (1.0, 0.95), (0.97, 1.0), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)])
def test_gae_agrees_with_walk_over_observations(gamma, lam):
    generator = torch.Generator().manual_seed(1)
    # turns of 1 to 4 tokens (first trajectory: only one-token turns), gaps of 2 observation tokens before each turn
    turn_lengths = [[1, 1, 1], [4, 1, 2], [3], [1], [2, 2, 1, 1, 4]]
    turn_rewards = [[0.0, 0.0, 1.0], [-0.1, 0.0, 0.0], [0.0], [2.0], [0.0, -1.0, 0.0, 10.0, 0.0]]
    B, T = 5, 24
    response_mask = torch.zeros(B, T, dtype=torch.bool)
    rewards = torch.zeros(B, T, dtype=torch.float64)
    values = torch.randn(B, T, generator=generator, dtype=torch.float64)  # observation tokens have values too
    for b in range(B):
        t = 0
        for n, reward in zip(turn_lengths[b], turn_rewards[b], strict=True):
            t += 2
            response_mask[b, t : t + n] = True
            t += n
            rewards[b, t - 1] = reward
    expected = padded_gae_with_observations(rewards, values, response_mask, gamma, lam)[response_mask]

    lengths = [sum(turns) for turns in turn_lengths]
    advantages, returns = starpo.gae(rewards[response_mask], values[response_mask], lengths, gamma, lam)
    close(advantages, expected)
    close(returns, expected + values[response_mask])
    assert expected.abs().min() > 1e-4  # no token is trivially zero


def test_gae_without_discount_is_return_to_go_minus_value():
    generator = torch.Generator().manual_seed(2)
    lengths = [5, 1, 7]
    rewards, values = torch.randn(2, 13, generator=generator, dtype=torch.float64)
    advantages, returns = starpo.gae(rewards, values, lengths, 1.0, 1.0)
    to_go = torch.cat([part.flip(0).cumsum(0).flip(0) for part in rewards.split(lengths)])
    close(returns, to_go)
    close(advantages, to_go - values)


def test_gae_takes_empty_trajectories_and_half_precision():
    advantages, returns = starpo.gae(torch.tensor([1.0, 2.0]), torch.zeros(2).bfloat16(), [0, 1, 0, 1], 0.5, 0.5)
    assert advantages.dtype == returns.dtype == torch.float32
    assert advantages.tolist() == [1.0, 2.0]
    assert starpo.gae(torch.zeros(0), torch.zeros(0), [], 1.0, 1.0)[0].shape == (0,)


def test_gae_carries_no_gradient():
    values = torch.ones(2, requires_grad=True)
    advantages, returns = starpo.gae(torch.ones(2), values, [2], 1.0, 1.0)
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_whiten():
    # mean 3, unbiased variance (4 + 1 + 0 + 9) / 3
    s = math.sqrt(14 / 3) + 1e-8
    close(starpo.whiten(doubles(1, 2, 3, 6)), [-2 / s, -1 / s, 0, 3 / s])
    x = starpo.whiten(torch.randn(1000, generator=torch.Generator().manual_seed(3)) * 5 + 100)
    assert abs(x.mean().item()) < 1e-6
    assert x.std().item() == pytest.approx(1.0, abs=1e-5)


def test_whiten_without_variance():
    assert starpo.whiten(torch.tensor([7.0])).tolist() == [0.0]
    assert starpo.whiten(torch.zeros(0)).shape == (0,)
    assert starpo.whiten(torch.zeros(3)).tolist() == [0.0] * 3
    noise = starpo.whiten(doubles(0.3, 0.1 + 0.2, 0.3))  # spread 5e-17, must not become 1
    assert noise.abs().max() < 1e-15


# ---------- policy loss

# ratio, A -> term of -loss, d term / d logprob (= ratio * A where not clipped, else 0), clipped?
# clip_low = 0.2, clip_high = 0.28: bounds 0.8 and 1.28
CLIP_CASES = [
    (1.5, 2.0, 1.28 * 2.0, 0.0, 1),  # above, A > 0: held at 1.28
    (1.2, 2.0, 1.2 * 2.0, 1.2 * 2.0, 0),  # inside, beyond 1 + clip_low
    (0.5, 2.0, 0.5 * 2.0, 0.5 * 2.0, 0),  # below, A > 0: min takes the unclipped 1.0 < 1.6
    (0.5, -2.0, 0.8 * -2.0, 0.0, 1),  # below, A < 0: held at 0.8
    (0.9, -2.0, 0.9 * -2.0, 0.9 * -2.0, 0),  # inside
    (1.5, -2.0, 1.5 * -2.0, 1.5 * -2.0, 0),  # above, A < 0: min takes the unclipped -3 < -2.56
    (1.0, 3.0, 3.0, 3.0, 0),  # on policy
    (4.0, 0.0, 0.0, 0.0, 0),  # no advantage
]


@pytest.mark.parametrize("ratio, A, term, grad, clipped", CLIP_CASES)
def test_policy_clip_by_hand(ratio, A, term, grad, clipped):
    old = doubles(-1.5)
    logprobs = (old + math.log(ratio)).requires_grad_()
    loss, metrics = starpo.policy_loss(logprobs, old, doubles(A), clip_low=0.2, clip_high=0.28, num_tokens=1)
    loss.backward()
    assert loss.item() == pytest.approx(-term, abs=1e-12)
    assert logprobs.grad.item() == pytest.approx(-grad, abs=1e-12)
    if clipped:
        assert logprobs.grad.item() == 0.0
    assert metrics["clipfrac"].item() == clipped
    assert metrics["approx_kl"].item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-12)


def clip_batch():
    old = torch.linspace(-3.0, -0.5, len(CLIP_CASES), dtype=torch.float64)
    ratio, advantages, terms, grads, clipped = (doubles(*column) for column in zip(*CLIP_CASES, strict=True))
    return old, old + ratio.log(), advantages, terms, grads, clipped


def test_policy_loss_sums_tokens_over_the_given_denominator():
    old, new, advantages, terms, grads, clipped = clip_batch()
    logprobs = new.clone().requires_grad_()
    loss, metrics = starpo.policy_loss(logprobs, old, advantages, clip_low=0.2, clip_high=0.28, num_tokens=100)
    loss.backward()
    close(loss.detach(), -terms.sum() / 100)
    close(logprobs.grad, -grads / 100)
    assert metrics["clipfrac"].item() == clipped.sum().item() == 2.0
    assert not metrics["approx_kl"].requires_grad


def test_policy_loss_of_micro_batches_adds_up():
    old, new, advantages, _, _, _ = clip_batch()
    whole = new.clone().requires_grad_()
    args = dict(clip_low=0.2, clip_high=0.28, num_tokens=8)
    loss, metrics = starpo.policy_loss(whole, old, advantages, **args)
    loss.backward()
    parts, total, sums = new.clone().requires_grad_(), 0.0, {"clipfrac": 0.0, "approx_kl": 0.0}
    for piece in (slice(0, 1), slice(1, 6), slice(6, 6), slice(6, 8)):  # uneven, one empty
        part_loss, part_metrics = starpo.policy_loss(parts[piece], old[piece], advantages[piece], **args)
        part_loss.backward()
        total += part_loss.item()
        sums = {key: sums[key] + part_metrics[key].item() for key in part_metrics}
    assert total == pytest.approx(loss.item(), rel=1e-12)
    assert loss.item() != 0.0
    close(parts.grad, whole.grad)
    assert sums == pytest.approx({key: value.item() for key, value in metrics.items()}, rel=1e-12)


def test_policy_loss_survives_absurd_ratios_and_half_precision():
    logprobs = torch.tensor([0.0, -500.0]).bfloat16().requires_grad_()
    old = torch.tensor([-500.0, 0.0])
    loss, metrics = starpo.policy_loss(
        logprobs, old, doubles(-1, 1).float(), clip_low=0.2, clip_high=0.28, num_tokens=2
    )
    loss.backward()
    # ratios e^20 and e^-20: -(e^20 * -1 + e^-20 * 1) / 2
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.exp(20) / 2, rel=1e-5)
    assert torch.isfinite(logprobs.grad).all()
    assert torch.isfinite(metrics["approx_kl"])


# ---------- value loss

# value_clip = 0.5, old = 1: v is held in [0.5, 1.5]. v, R -> loss, gradient in v, clipped term larger?
VALUE_CASES = [
    (2.0, 3.0, 0.5 * 1.5**2, 0.0, 1),  # held at 1.5, (1.5 - 3)^2 = 2.25 > (2 - 3)^2
    (2.0, 0.0, 0.5 * 2.0**2, 2.0, 0),  # held at 1.5, but (2 - 0)^2 = 4 > 2.25: gradient v - R = 2
    (-1.0, -2.0, 0.5 * 2.5**2, 0.0, 1),  # held at 0.5, (0.5 + 2)^2 = 6.25 > (-1 + 2)^2
    (-1.0, 2.0, 0.5 * 3.0**2, -3.0, 0),  # held at 0.5, but (-1 - 2)^2 = 9 > 2.25
    (1.25, 2.0, 0.5 * 0.75**2, -0.75, 0),  # inside: both terms are the same
]


def value_batch():
    values, returns, losses, grads, clipped = (doubles(*column) for column in zip(*VALUE_CASES, strict=True))
    return values, returns, torch.ones_like(values), losses, grads, clipped


def test_value_loss_by_hand():
    values, returns, old_values, losses, grads, clipped = value_batch()
    for i in range(5):
        v = values[i : i + 1].clone().requires_grad_()
        loss, metrics = starpo.value_loss(v, old_values[:1], returns[i : i + 1], value_clip=0.5, num_tokens=1)
        loss.backward()
        close(loss.detach(), losses[i])
        close(v.grad, grads[i : i + 1])
        assert metrics["vf_clipfrac"].item() == clipped[i].item()


def test_value_loss_without_clip_is_half_squared_error():
    values, returns, old_values, _, _, _ = value_batch()
    loss, metrics = starpo.value_loss(values, old_values, returns, value_clip=INF, num_tokens=5)
    close(loss, 0.5 * ((values - returns) ** 2).mean())
    assert metrics["vf_clipfrac"].item() == 0.0


def test_value_loss_of_micro_batches_adds_up():
    values, returns, old_values, losses, grads, clipped = value_batch()
    parts, total, num_clipped = values.clone().requires_grad_(), 0.0, 0.0
    for piece in (slice(0, 3), slice(3, 4), slice(4, 5)):
        loss, metrics = starpo.value_loss(
            parts[piece], old_values[piece], returns[piece], value_clip=0.5, num_tokens=20
        )
        loss.backward()
        total, num_clipped = total + loss.item(), num_clipped + metrics["vf_clipfrac"].item()
    assert total == pytest.approx(losses.sum().item() / 20, rel=1e-12)
    close(parts.grad, grads / 20)
    assert num_clipped == clipped.sum().item() == 2.0


# ---------- KL estimators


def test_kl_estimators_by_hand():
    # d = logprob - ref: log 2, 0, -log 4, so ref / policy = 1/2, 1, 4
    logprobs, ref = doubles(-1, -2, -3), doubles(-1 - math.log(2), -2, -3 + math.log(4))
    close(starpo.kl_penalty(logprobs, ref, "k1"), [math.log(2), 0, -math.log(4)])
    close(starpo.kl_penalty(logprobs, ref, "k2"), [math.log(2) ** 2 / 2, 0, math.log(4) ** 2 / 2])
    close(starpo.kl_penalty(logprobs, ref, "k3"), [0.5 - 1 + math.log(2), 0, 4 - 1 - math.log(4)])


def test_k3_is_never_negative_even_for_tiny_ratios():
    generator = torch.Generator().manual_seed(4)
    logprobs = -torch.rand(10_000, generator=generator) * 5
    d = torch.randn(10_000, generator=generator) * 10 ** (torch.rand(10_000, generator=generator) * 8 - 7)
    k3 = starpo.kl_penalty(logprobs, logprobs - d, "k3")
    assert (k3 >= 0).all()
    assert k3.max() > 1
    assert torch.isfinite(starpo.kl_penalty(torch.tensor([-500.0]), torch.tensor([0.0]), "k3")).all()


def enumerated_policy():
    """A softmax of three logits and a reference: expectations are sums over three tokens, not samples."""
    logits = doubles(0.3, -0.7, 1.1).requires_grad_()
    ref_logprobs = doubles(0.5, 0.2, 0.3).log()
    return logits, torch.log_softmax(logits, 0), ref_logprobs


def test_k1_and_k3_have_the_kl_as_expectation():
    _, logprobs, ref = enumerated_policy()
    p, q = logprobs.exp().detach(), ref.exp()
    kl = (p * (p / q).log()).sum().item()
    assert kl > 0.05
    for estimator in ("k1", "k3"):
        mean = (p * starpo.kl_penalty(logprobs, ref, estimator)).sum().item()
        assert mean == pytest.approx(kl, abs=1e-12), estimator
    assert (p * starpo.kl_penalty(logprobs, ref, "k2")).sum().item() != pytest.approx(kl, abs=1e-3)  # biased


def expected_loss_gradient(estimator):
    """E_{y ~ p} [gradient in the logits of the estimator at y]: sampling does not see the gradient, p is fixed."""
    logits, logprobs, ref = enumerated_policy()
    p = logprobs.exp().detach()
    (p * starpo.kl_penalty(logprobs, ref, estimator)).sum().backward()
    return logits.grad


def test_k1_as_loss_has_zero_expected_gradient():
    close(expected_loss_gradient("k1"), [0, 0, 0])


def test_k2_and_k3_as_loss_have_the_gradients_of_the_two_kls():
    logits, logprobs, ref = enumerated_policy()
    (logprobs.exp() * (logprobs - ref)).sum().backward()  # KL(policy || reference)
    close(expected_loss_gradient("k2"), logits.grad)
    # the gradient of KL(reference || policy) in the logits is p - q
    gradient = (logprobs.exp() - ref.exp()).detach()
    close(expected_loss_gradient("k3"), gradient)
    assert gradient.abs().max() > 0.1


# ---------- metrics


def test_explained_variance():
    # Var(returns) of (0, 2) with mean 1 is 1 (n denominator), residuals (0, 1): variance 1/4
    assert starpo.explained_variance(doubles(0, 1), doubles(0, 2)) == pytest.approx(0.75)
    assert starpo.explained_variance(doubles(5, 7), doubles(0, 2)) == pytest.approx(1.0)  # an offset is no variance
    assert starpo.explained_variance(doubles(2, 0), doubles(0, 2)) == pytest.approx(-3.0)  # residuals (-2, 2)
    assert starpo.explained_variance(doubles(1, 2), doubles(4, 4)) == 0.0
    assert starpo.explained_variance(doubles(1, 2), doubles(0.3, 0.1 + 0.2)) == 0.0
    assert starpo.explained_variance(doubles(1), doubles(2)) == 0.0
    assert starpo.explained_variance(doubles(), doubles()) == 0.0


def test_rollout_metrics_by_hand():
    # groups (0, 2), (1, 1), (3, 7): means 1, 1, 5; std sqrt(2), 0, sqrt(8); max 2, 1, 7
    successes = torch.tensor([False, True, False, False, True, True])
    assert starpo.rollout_metrics(doubles(0, 2, 1, 1, 3, 7), successes, 2) == pytest.approx(
        {
            "in_group_reward_mean": 7 / 3,
            "in_group_reward_std": 3 * math.sqrt(2) / 3,
            "in_group_reward_max": 10 / 3,
            "zero_std_frac": 1 / 3,
            "success": 3 / 6,
            "pass@2": 2 / 3,
        }
    )


def test_rollout_metrics_of_single_rollouts():
    metrics = starpo.rollout_metrics(doubles(0, 2), torch.tensor([0.0, 1.0]), 1)
    assert metrics["pass@1"] == metrics["success"] == 0.5
    assert metrics["in_group_reward_std"] == 0.0


# ---------- errors and side effects


def test_inputs_stay_unmodified():
    generator = torch.Generator().manual_seed(5)
    x, y, z = torch.randn(3, 6, generator=generator)
    before = [t.clone() for t in (x, y, z)]
    lengths = [2, 4]
    starpo.group_stats(x, 2)
    starpo.filter_groups(x, 2, 0.5)
    starpo.grpo_advantages(x, 2)
    starpo.gae(x, y, lengths, 0.9, 0.9)
    starpo.whiten(x)
    starpo.policy_loss(x, y, z, clip_low=0.2, clip_high=0.2, num_tokens=6)
    starpo.value_loss(x, y, z, value_clip=0.2, num_tokens=6)
    for estimator in ("k1", "k2", "k3"):
        starpo.kl_penalty(x, y, estimator)
    starpo.explained_variance(x, y)
    starpo.rollout_metrics(x, y > 0, 2)
    assert all(torch.equal(now, then) for now, then in zip((x, y, z), before, strict=True))
    assert lengths == [2, 4]


ONE, TWO = torch.zeros(1), torch.zeros(2)
PPO = dict(clip_low=0.2, clip_high=0.2, num_tokens=1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: starpo.group_stats(torch.zeros(5), 2), "5 scores into groups of group_size=2"),
        (lambda: starpo.group_stats(TWO, 0), "group_size=0"),
        (lambda: starpo.group_stats(torch.zeros(0), 2), "0 scores"),
        (lambda: starpo.group_stats(torch.zeros(2, 2), 2), "{'scores': (2, 2)}"),
        (lambda: starpo.group_stats(torch.tensor([1, 2]), 2), "finite floats, got torch.int64 [1, 2]"),
        (lambda: starpo.grpo_advantages(torch.tensor([1, 2]), 2), "finite floats, got torch.int64 [1, 2]"),
        (lambda: starpo.filter_groups(torch.tensor([NAN, 2.0]), 2, 0.5), "finite floats, got torch.float32 [nan, 2.0]"),
        (lambda: starpo.filter_groups(TWO, 2, 0.0), "keep must be in (0, 1], got 0.0"),
        (lambda: starpo.filter_groups(TWO, 2, 25), "keep must be in (0, 1], got 25"),
        (lambda: starpo.gae(TWO, ONE, [2], 1.0, 1.0), "{'rewards': (2,), 'values': (1,)}"),
        (lambda: starpo.gae(TWO, TWO, [1, 2], 1.0, 1.0), "lengths [1, 2] must be counts that sum to the 2 resp"),
        (lambda: starpo.gae(TWO, TWO, [3, -1], 1.0, 1.0), "lengths [3, -1] must be counts that sum to the 2 resp"),
        (lambda: starpo.gae(TWO, TWO, [2], 1.5, 1.0), "gamma=1.5"),
        (lambda: starpo.gae(TWO, TWO, [2], 1.0, -0.5), "lam=-0.5"),
        (lambda: starpo.whiten(torch.zeros(2, 2)), "{'x': (2, 2)}"),
        (lambda: starpo.policy_loss(TWO, TWO, ONE, **PPO), "'advantages': (1,)"),
        (lambda: starpo.policy_loss(TWO, TWO, TWO, **{**PPO, "num_tokens": 0}), "num_tokens must be >= 1, got 0"),
        (lambda: starpo.policy_loss(TWO, TWO, TWO, **{**PPO, "clip_low": 1.2}), "clip_low=1.2"),
        (lambda: starpo.policy_loss(TWO, TWO, TWO, **{**PPO, "clip_high": -0.1}), "clip_high=-0.1"),
        (lambda: starpo.value_loss(TWO, ONE, TWO, value_clip=0.5, num_tokens=2), "'old_values': (1,)"),
        (lambda: starpo.value_loss(TWO, TWO, TWO, value_clip=0.0, num_tokens=2), "value_clip must be > 0, got 0.0"),
        (lambda: starpo.value_loss(TWO, TWO, TWO, value_clip=0.5, num_tokens=-1), "num_tokens must be >= 1, got -1"),
        (lambda: starpo.kl_penalty(TWO, TWO, "kl"), "'k1', 'k2' or 'k3', got 'kl'"),
        (lambda: starpo.kl_penalty(TWO, ONE, "k1"), "'ref_logprobs': (1,)"),
        (lambda: starpo.explained_variance(TWO, ONE), "'returns': (1,)"),
        (lambda: starpo.rollout_metrics(TWO, ONE, 1), "'successes': (1,)"),
    ],
)
def test_errors_name_what_was_given(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# ---------- the sampler's log-probs against the trainer's


def test_importance_weights_by_hand():
    new, rollout = torch.tensor([-1.0, -1.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -1.5, -1.0])
    # old = the engine's: 1 until the ratio exceeds the cap, then cap / ratio
    found = starpo.importance_weights(new, rollout, rollout, 2.0)
    close(found, [1.0, 2.0 / math.e, 1.0, 1.0], tol=1e-6)
    # old = the trainer's, no step yet: pi_old / pi_rollout, at most the cap
    found = starpo.importance_weights(new, new, rollout, 2.0)
    close(found, [1.0, 2.0, math.exp(0.5), math.exp(-1.0)], tol=1e-6)
    # in between: min(pi / pi_rollout, cap) / (pi / pi_old)
    old = torch.tensor([-1.0, -1.5, -1.0, -1.5])
    ratio = [1.0, math.exp(0.5), 1.0, math.exp(-0.5)]
    total = [1.0, 2.0, math.exp(0.5), math.exp(-1.0)]
    found = starpo.importance_weights(new, old, rollout, 2.0)
    close(found, [t / r for t, r in zip(total, ratio, strict=True)], tol=1e-6)


def test_importance_weights_truncate_the_gradient():
    """d loss / d logprob = -min(pi / pi_rollout, cap) A, where PPO alone would give -ratio A for A < 0."""
    new = torch.tensor([1.5, 0.1], requires_grad=True)
    old, advantages = torch.zeros(2), torch.tensor([-1.0, -1.0])
    weights = starpo.importance_weights(new, old, old, 2.0)
    assert not weights.requires_grad
    options = dict(clip_low=0.2, clip_high=0.28, num_tokens=1)
    starpo.policy_loss(new, old, advantages, importance=weights, **options)[0].backward()
    close(new.grad, [2.0, math.exp(0.1)], tol=1e-6)


def test_importance_weights_refuse_a_cap_below_one():
    with pytest.raises(ValueError, match=r"cap must be at least 1, got 0\.5"):
        starpo.importance_weights(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0.5)
