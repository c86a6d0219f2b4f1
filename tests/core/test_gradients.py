"""Tests of the updates that training makes with each estimator, reward norm, filter and so on.

Most tests compare the gradient of a method with the gradient of a plain loop over trajectories.
"""

import pytest
import torch
from learners import collect_and_target, make_learner, select_groups
from shared_fixtures import SMALL_RUN, small_config
from transformers import AutoModelForCausalLM

import dialogue
import parallel
import rollout
import train
from dialogue import Chat
from worlds import grids

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_rank")]


def flatten(gradients):
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


class Update:
    """Runs an iteration of one optimizer step, but keeps the gradients instead of taking the step.

    `prepare(learner)` runs before `build_experience`, and `change(experience)` runs after it.
    """

    def __init__(self, start, prepare=None, change=None, **changes):
        settings = dict(estimator="grpo", batch_size=8, entropy_coef=0.0) | changes
        self.start = start
        learner = make_learner(start, bias=True, **settings)
        chat = Chat(learner.tokenizer)
        self.config = learner.config
        self.played = train.collect_rollouts(learner, learner.engine, chat)
        self.groups = select_groups(self.config, self.played).tolist()
        self.original = [t for group in self.groups for t in self.members(group)]
        self.kept = self.original
        if not self.config.mask_observations:
            self.kept = [rollout.unmask(trajectory, chat) for trajectory in self.original]
        if prepare:
            prepare(learner)
        kept_fraction = len(self.groups) / self.config.num_groups
        self.experience = train.build_experience(learner, self.kept, kept_fraction)
        if change:
            change(self.experience)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "optimizer_step", self.keep_gradients)
            self.metrics = train.update(learner, self.experience)

    def keep_gradients(self, learner, metrics):
        weights = learner.policy.model.named_parameters()
        self.gradient = flatten({name: p.grad.full_tensor().clone() for name, p in weights})
        self.critic_gradient = None
        if learner.critic:
            self.critic_gradient = learner.critic.value_head.weight.grad.full_tensor().clone()
        return {"grad_norm": 0.0}

    def members(self, group):
        return self.played[4 * group : 4 * group + 4]

    def advantages(self):
        tokens = iter(self.experience.advantages.tolist())
        found = []
        for trajectory in self.kept:
            found.append([[next(tokens) for _ in turn.response_ids] for turn in trajectory.turns])
        return found

    def token_weight(self, trajectory):
        num_tokens = sum(kept.num_response_tokens for kept in self.kept)
        batch = len(self.kept)
        return {
            "token_mean": 1 / num_tokens,
            "seq_mean_token_mean": 1 / batch / trajectory.num_response_tokens,
            "seq_mean_token_sum": 1 / batch,
            "constant": 1 / batch / (3 * 12),
        }[self.config.aggregation]

    def plain_gradient(self):
        """Return the gradient of a loss that is computed with one forward per turn.

        The loss is minus the sum of token_weight * advantage * log-prob over response tokens."""
        plain = AutoModelForCausalLM.from_pretrained(self.start, dtype=torch.float32)
        for trajectory, advantages in zip(self.kept, self.advantages(), strict=True):
            seen = []
            loss = 0.0
            for turn, weights in zip(trajectory.turns, advantages, strict=True):
                before = [] if self.config.context_turns else seen
                seen = [*before, *turn.prompt_ids, *turn.response_ids]
                length = len(turn.response_ids)
                logits = plain(torch.tensor([seen])).logits[0, -length - 1 : -1]
                responses = torch.tensor(turn.response_ids)[:, None]
                chosen = logits.log_softmax(-1).gather(1, responses)[:, 0]
                loss -= (chosen * torch.tensor(weights)).sum() * self.token_weight(trajectory)
            loss.backward()
        return flatten({name: p.grad for name, p in plain.named_parameters()})


@pytest.fixture(scope="module")
def neutral(trained_folder):
    parallel.init_distributed(small_config())
    return Update(trained_folder)


# ---------- what is read from an update


def same(tensor, expected):
    return torch.allclose(tensor, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def same_gradient(update, neutral, factor=1.0):
    return same(update.gradient, neutral.gradient * factor)


def scores_of(update):
    return torch.tensor([trajectory.score for trajectory in update.original]).double().view(-1, 4)


def centred(values):
    return values - values.mean(1, keepdim=True)


def first_advantages(update):
    return torch.tensor([turns[0][0] for turns in update.advantages()]).double().view(-1, 4)


def rewards_of(update):
    return {turn.reward for trajectory in update.played for turn in trajectory.turns}


def spread(update):
    spreads = []
    for turns in update.advantages():
        tokens = [advantage for turn in turns for advantage in turn]
        spreads.append(max(tokens) - min(tokens))
    return max(spreads)


def num_tokens(trajectories):
    return sum(trajectory.num_response_tokens for trajectory in trajectories)


def is_whitened(update):
    return abs(update.experience.advantages.std() - 1) < 1e-3


def trains_critic(update):
    return update.critic_gradient.abs().max() > 0


# ---------- longer checks for METHODS


def clips_normalised_scores(update, neutral):
    return same(first_advantages(update), centred(first_advantages(neutral).clamp(-1, 3)))


def divides_by_the_std_of_the_batch(update, neutral):
    deviation = scores_of(update).std() + 1e-6
    return same(first_advantages(update) * deviation, centred(scores_of(update)))


def keeps_the_two_smallest_means(update, neutral):
    means = [sum(t.score for t in update.members(group)) for group in range(4)]
    return sorted(means)[:2] == sorted(means[group] for group in update.groups)


def keeps_the_longest_group(update, neutral):
    longest = max(num_tokens(update.members(group)) for group in range(4))
    return num_tokens(update.kept) == longest


def keeps_the_group_of_highest_entropy(update, neutral):
    def surprise(group):
        logprobs = [torch.tensor(t.rollout_logprobs) for t in update.members(group)]
        return -torch.cat(logprobs).mean()

    return max(range(4), key=surprise) in update.groups


def keeps_the_group_of_largest_variance(update, neutral):
    return scores_of(update).std(1).min() == scores_of(neutral).std(1).max()


def sees_single_turns(update, neutral):
    turns = [turn for trajectory in update.kept for turn in trajectory.turns]
    return all(len(turn.prompt_ids) < 400 and turn.prompt_ids[0] == 1 for turn in turns)


def sees_all_tokens_of_windows(update, neutral):
    return len(update.experience.advantages) > 2 * num_tokens(update.original)


def trains_other_tokens_only(update, neutral):
    same_advantages = same(first_advantages(update), first_advantages(neutral))
    return same_advantages and not same_gradient(update, neutral)


def pays_for_plans(update, neutral):
    more_rewards = len(rewards_of(update)) > len(rewards_of(neutral))
    return more_rewards and not same_gradient(update, neutral)


def varies_by_turn_only(update):
    return all(len(set(turn)) == 1 for turns in update.advantages() for turn in turns)


def doubles_the_advantages(update, neutral):
    """Whether advantages are twice those of GRPO.

    With state_weight=1, the advantage of GiGPO is the sum of two terms. The first term compares the
    trajectories of a group. The second term compares turns of a group that start in the same state.
    Here each trajectory has one turn, and all turns of a group start in the same state, so the two
    terms are equal.
    """
    scores = scores_of(update)
    grpo = centred(scores) / (scores.std(1, keepdim=True) + 1e-6)
    return same(first_advantages(update), 2 * grpo)


ONE_GROUP = dict(filter_keep=1, filter_strategy="count", filter_zero_std=True, batch_size=4)
BATCH_NORM = dict(reward_norm="mean_std", reward_norm_over="batch", estimator="dr_grpo")
ALL_BY_SOFTMAX = dict(filter_strategy="top_p_softmax", filter_keep=1.0, filter_zero_std=True)
SMALLEST_MEANS = dict(filter_by="reward_mean", filter_smallest=True, filter_zero_std=True)

# Maps each method to its settings and a check. The check gets the update `u` of the method and the
# update `n` of plain GRPO.
METHODS = {
    "neutral": ({}, lambda u, n: torch.equal(u.gradient, n.gradient)),
    # estimators
    "gae": (dict(estimator="gae"), lambda u, n: spread(u) > 0 and trains_critic(u)),
    "bi_level_gae": (
        dict(estimator="bi_level_gae", turn_gamma=0.5),
        lambda u, n: abs(u.experience.advantages.mean()) < 1e-5 and trains_critic(u),
    ),
    "dr_grpo": (
        dict(estimator="dr_grpo"),
        lambda u, n: same(first_advantages(u), centred(scores_of(u))),
    ),
    "rloo": (
        dict(estimator="rloo"),
        lambda u, n: same(first_advantages(u), centred(scores_of(u)) * 4 / 3),
    ),
    "reinforce_plus_plus": (
        dict(estimator="reinforce_plus_plus", turn_gamma=0.5),
        lambda u, n: spread(u) > 0 and is_whitened(u),
    ),
    "reinforce_plus_plus_baseline": (
        dict(estimator="reinforce_plus_plus_baseline"),
        lambda u, n: spread(u) == 0 and is_whitened(u),
    ),
    "grpo, turn level": (
        dict(turn_level=True),
        lambda u, n: spread(u) > 0 and u.groups == n.groups,
    ),
    "rloo, turn level": (dict(estimator="rloo", turn_level=True), lambda u, n: spread(u) > 0),
    "gigpo": (dict(state_weight=1.0), lambda u, n: spread(u) > 0 and u.groups == n.groups),
    "gigpo of one turn": (dict(state_weight=1.0, max_turns=1), doubles_the_advantages),
    "turn_ppo": (
        dict(estimator="turn_ppo", turn_gamma=0.99, turn_lam=0.9),
        lambda u, n: spread(u) > 0 and varies_by_turn_only(u) and trains_critic(u),
    ),
    # Reward norms. "mean" does not change the update of GRPO, because GRPO subtracts the mean of a
    # group anyway. Dr. GRPO does not divide by the std, so "mean_std" turns Dr. GRPO into
    # plain GRPO.
    "mean": (dict(reward_norm="mean"), same_gradient),
    "mean_std": (dict(reward_norm="mean_std", estimator="dr_grpo"), same_gradient),
    "asym_clip": (dict(reward_norm="asym_clip", estimator="dr_grpo"), clips_normalised_scores),
    "mean_std over the batch": (BATCH_NORM, divides_by_the_std_of_the_batch),
    # aggregations
    "seq_mean_token_mean": (
        dict(aggregation="seq_mean_token_mean"),
        lambda u, n: not same_gradient(u, n),
    ),
    "seq_mean_token_sum": (
        dict(aggregation="seq_mean_token_sum"),
        lambda u, n: same_gradient(u, n, len(u.experience.advantages) / 8),
    ),
    "constant": (
        dict(aggregation="constant"),
        lambda u, n: same_gradient(u, n, len(u.experience.advantages) / 8 / 36),
    ),
    # filters
    "count": (dict(filter_strategy="count", filter_keep=2), same_gradient),
    "top_p": (
        dict(filter_strategy="top_p", filter_keep=0.01, batch_size=4),
        lambda u, n: len(u.groups) == 1 and u.groups[0] in n.groups,
    ),
    "top_p_softmax": (
        ALL_BY_SOFTMAX | dict(batch_size=16),
        lambda u, n: u.groups == [0, 1, 2, 3],
    ),
    "min_p": (
        dict(filter_strategy="min_p", filter_keep=1.0, batch_size=4),
        keeps_the_group_of_largest_variance,
    ),
    "by mean, smallest, unfiltered variance": (SMALLEST_MEANS, keeps_the_two_smallest_means),
    "by length": (ONE_GROUP | dict(filter_by="length"), keeps_the_longest_group),
    "by entropy": (ONE_GROUP | dict(filter_by="entropy"), keeps_the_group_of_highest_entropy),
    "a loss scaled by what was kept": (
        dict(filter_loss_scale="linear"),
        lambda u, n: same_gradient(u, n, 0.5),
    ),
    "a loss scaled by its root": (
        dict(filter_loss_scale="sqrt"),
        lambda u, n: same_gradient(u, n, 0.5**0.5),
    ),
    "single turns": (dict(context_turns=1), sees_single_turns),
    "two turns": (dict(context_turns=2), lambda u, n: max(len(t.turns) for t in u.kept) == 3),
    "two turns, all tokens": (
        dict(context_turns=2, mask_observations=False),
        sees_all_tokens_of_windows,
    ),
    "all tokens": (dict(mask_observations=False), trains_other_tokens_only),
    # Reward densities: FrozenLake pays 1 at the goal and nothing else, so "sparse", "balanced" and
    # "dense" leave its rewards as they are. "plan" adds rewards.
    "sparse": (dict(reward_density="sparse"), same_gradient),
    "balanced": (dict(reward_density="balanced"), same_gradient),
    "dense": (dict(reward_density="dense"), same_gradient),
    "plan": (dict(reward_density="plan"), pays_for_plans),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_the_update_that_it_names(trained_folder, neutral, method):
    settings, holds = METHODS[method]
    update = Update(trained_folder, **settings)
    for values in vars(update.experience).values():
        assert not isinstance(values, torch.Tensor) or torch.isfinite(values).all()
    assert update.metrics["logprob_diff_max"] < 1e-3 and update.metrics["approx_kl"] < 1e-6
    assert update.gradient.norm() > 1e-4
    assert holds(update, neutral)
    assert same(update.gradient, update.plain_gradient())


# ---------- KL


def perturb_reference(learner):
    with torch.no_grad():
        for weight in learner.ref.parameters():
            weight.mul_(1.1)


@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_by_hand(trained_folder, kl_estimator):
    changes = dict(kl_coef=0.1, kl_in="reward", kl_estimator=kl_estimator)
    estimator = "reinforce_plus_plus"
    update = Update(trained_folder, perturb_reference, estimator=estimator, **changes)
    difference = (update.experience.old_logprobs - update.experience.ref_logprobs).double()
    kl = {
        "k1": difference,
        "k2": difference**2 / 2,
        "k3": (-difference).exp() - 1 + difference,
    }[kl_estimator]
    assert kl.abs().mean() > 0.01
    rewards = []
    for trajectory in update.kept:
        for turn in trajectory.turns:
            rewards += [0.0] * (len(turn.response_ids) - 1) + [turn.reward]
    paid = torch.tensor(rewards) - 0.1 * kl
    parts = paid.split([trajectory.num_response_tokens for trajectory in update.kept])
    to_go = torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts])
    expected = (to_go - to_go.mean()) / to_go.std()
    advantages = update.experience.advantages.double()
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-4)
    assert same(update.gradient, update.plain_gradient())
    assert update.metrics["kl_ref"] == pytest.approx(kl.mean().item(), rel=1e-3)


@pytest.mark.parametrize("estimator", ["gae", "grpo", "reinforce_plus_plus"])
def test_the_kl_term_ignores_differences_between_engine_and_trainer(trained_folder, estimator):
    """The log-probs of the engine differ a little from those of the trainer. If this difference
    counted as KL, dividing the advantages by their std would magnify the difference."""
    kl = dict(kl_coef=0.1, kl_in="reward", kl_estimator="k1")
    learner = make_learner(trained_folder, estimator=estimator, **kl)
    kept, _ = collect_and_target(learner)
    for trajectory in kept:
        for turn in trajectory.turns:
            turn.reward = 0.0
            logprobs = turn.rollout_logprobs
            turn.rollout_logprobs = [lp + 1e-3 * (i % 2) for i, lp in enumerate(logprobs)]
    experience = train.build_experience(learner, kept)
    assert torch.equal(experience.old_logprobs, experience.ref_logprobs)
    assert experience.advantages.abs().max() == 0.0


@pytest.mark.parametrize("kl_estimator", ["k2", "k3"])
def test_kl_in_the_loss_by_hand(trained_folder, neutral, kl_estimator):
    update = Update(trained_folder, perturb_reference, kl_coef=0.1, kl_estimator=kl_estimator)
    assert torch.equal(update.experience.advantages, neutral.experience.advantages)
    difference = update.experience.old_logprobs - update.experience.ref_logprobs
    derivative = difference if kl_estimator == "k2" else 1 - (-difference).exp()
    update.experience.advantages -= 0.1 * derivative
    assert same(update.gradient, update.plain_gradient())
    assert not same_gradient(update, neutral)


# ---------- other parts of the loss and the reward


def test_dual_clip_bounds_what_bad_tokens_can_do(trained_folder):
    """All ratios are e^2 = 7.4, so PPO clips tokens with positive advantages. dual_clip = 3 also
    clips tokens with negative advantages. dual_clip = 0 turns dual clip off. dual_clip = 8 clips no
    token with a negative advantage, because 8 is above 7.4."""

    def move_away(experience):
        experience.old_logprobs = experience.old_logprobs - 2.0

    single = Update(trained_folder, change=move_away, dual_clip=0.0)
    loose = Update(trained_folder, change=move_away, dual_clip=8.0)
    tight = Update(trained_folder, change=move_away, dual_clip=3.0)
    single.experience.advantages.clamp_(max=0.0)
    assert same(single.gradient, single.plain_gradient()) and single.gradient.norm() > 1e-3
    assert torch.equal(loose.gradient, single.gradient)
    assert tight.gradient.abs().max() == 0.0


def test_true_thoughts_move_the_policy(trained_folder, neutral, monkeypatch):
    """A patched parser gives some replies a true thought, and the other replies a false thought."""
    parse = dialogue.parse_response

    def thoughtful(text, *, think):
        thought = "Ice is cold." if len(text) % 2 else "Ice is hot."
        return parse(text, think=think)._replace(thought=thought)

    monkeypatch.setattr(dialogue, "parse_response", thoughtful)
    monkeypatch.setattr(grids.FrozenLake, "statements", lambda env: ["Ice is cold.", "Goal up."])
    update = Update(trained_folder, think_reward=0.5)
    num_odd = 0
    for trajectory, before in zip(update.played, neutral.played, strict=True):
        for turn, plain in zip(trajectory.turns, before.turns, strict=True):
            is_odd = len(turn.text) % 2
            assert turn.response_ids == plain.response_ids
            assert turn.reward == pytest.approx(plain.reward + 0.25 * is_odd)
            num_odd += is_odd
    assert num_odd > 0 and not same_gradient(update, neutral)
    assert same(update.gradient, update.plain_gradient())


def test_scores_are_normalised_inside_of_each_environment(trained_folder, monkeypatch):
    mixture = {SMALL_RUN["env"]: 0.5, "bandit": 0.5}
    monkeypatch.setattr(train, "mixture_at", lambda spec, step: mixture)
    norm = dict(reward_norm="mean_std", reward_norm_over="env", estimator="dr_grpo")
    update = Update(trained_folder, batch_size=16, filter_keep=1.0, **norm)
    assert {trajectory.env for trajectory in update.kept} == set(mixture)
    assert len(update.kept) == 16
    scores_in = {env: [] for env in mixture}
    for trajectory in update.kept:
        scores_in[trajectory.env].append(trajectory.score)
    normalised = []
    for trajectory in update.kept:
        own = torch.tensor(scores_in[trajectory.env], dtype=torch.float64)
        normalised.append((trajectory.score - own.mean()) / (own.std() + 1e-6))
    normalised = torch.stack(normalised).view(-1, 4)
    assert normalised.std() > 0.5
    assert same(first_advantages(update), centred(normalised))
    assert same(update.gradient, update.plain_gradient())
