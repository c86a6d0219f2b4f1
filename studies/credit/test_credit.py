"""Tests of studies/credit/ that need no model.

python -m pytest -q studies/credit/test_credit.py
"""

import copy
import doctest
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from shared_fixtures import small_config

from dialogue import format_response
from engines.sample import Sample
from rollout import Reply, make_episode
from studies.credit import accuracy, regret
from studies.credit import measure as credit_measure
from studies.credit import report as credit_report
from studies.credit.accuracy import (
    Truth,
    measure,
    measure_critic,
    variance_shares,
    within_games,
)
from studies.credit.arguments import CREDIT_OPTIONS, read_credit
from studies.credit.optimal import (
    lake_values,
    optimal_advantages,
    planner_rewards,
    reply_value,
    shuffle_within_games,
    state_value,
)
from studies.credit.play import (
    Player,
    RecordedGame,
    monte_carlo,
    play_groups,
    restore,
    returns_from,
)
from support.run_folder import save_config
from worlds.planners import lake_transitions

LAKE = small_config(
    env="frozenlake:success_rate=0.8",
    observation="grid",
    max_turns=4,
    actions_per_turn=1,
    actions_per_traj=4,
    max_response_tokens=40,
    max_context_tokens=4096,
    num_groups=4,
    group_size=4,
    batch_size=1,
    filter_keep=1.0,
)
SOKOBAN = replace(LAKE, env="sokoban:size=6,boxes=1", actions_per_turn=2, actions_per_traj=6)
ACTIONS = ("Left", "Down", "Right", "Up")


class Letters:
    end = 3

    def opening(self, system, user):
        return [1, 2]  # any tokens: RandomMoves ignores them

    def following(self, user, *, closed):
        return [2]

    def is_closed(self, ids):
        return True

    def decode(self, ids):
        return "".join(map(chr, ids[:-1]))


class RandomMoves:
    """An engine whose policy replies with one uniformly random action."""

    busy = False

    def __init__(self, actions=ACTIONS):
        self.replies = [format_response("", [name], think=False) for name in actions]
        self.queue = []

    def add(self, key, ids, *, max_tokens, temperature, seed):
        choice = np.random.default_rng(seed).integers(len(self.replies))
        tokens = [*map(ord, self.replies[choice]), Letters.end]
        self.queue.append(Sample(key, tokens, [0.0] * len(tokens)))
        self.busy = True

    def step(self):
        samples = self.queue
        self.queue = []
        self.busy = False
        return samples

    def release(self, key):
        pass


@pytest.fixture
def lake():
    return Player(RandomMoves(), Letters(), LAKE)


def test_doctests():
    for module in (accuracy, credit_report):
        assert doctest.testmod(module).failed == 0


# ---------- continuations


def exact_values(env):
    """Return probabilities that random moves reach the goal, indexed by [actions left, cell]."""
    mean_move = lake_transitions(env.size, env.holes, env.goal, env.success_rate).mean(0)
    values = [np.eye(env.size**2)[env.goal]]
    for _ in range(env.max_actions):
        values.append(mean_move @ values[-1])
    return np.array(values)


def exact_advantage(state, action):
    env = state.env
    values = exact_values(env)
    moves = lake_transitions(env.size, env.holes, env.goal, env.success_rate)
    after = moves[ACTIONS.index(action), env.player] @ values[env.actions_left - 1]
    return after - values[env.actions_left, env.player]


@pytest.fixture(scope="module")
def continued():
    config = replace(LAKE, env="frozenlake:size=3,success_rate=0.8")
    player = Player(RandomMoves(), Letters(), config)
    games = play_groups(player, 3, 4)
    return games, monte_carlo(player, games, 60)


def test_continuations_find_the_exact_values_and_advantages(continued):
    games, continuations = continued
    found = Truth(continuations.before, continuations.reply)
    values = []
    advantages = []
    for game in games:
        for state, turn in zip(game.states, game.trajectory.turns, strict=True):
            values.append(exact_values(state.env)[state.env.actions_left, state.env.player])
            advantages.append(exact_advantage(state, turn.record.actions[0]))
    values = np.array(values)
    replies = values + np.array(advantages)
    assert len(found.values) == len(values) > 25
    # A return is 1 with probability p and 0 otherwise, so its variance is p (1 - p).
    variance = (values * (1 - values) + replies * (1 - replies)) / 60
    assert found.noise.mean() == pytest.approx(variance.mean(), rel=0.1)
    # In some turns p is close to 0 or 1, both before and after the reply. The estimated
    # advantages of these turns have a small variance, and their errors are not normally
    # distributed. In all other turns, the errors are about normally distributed.
    common = variance > 1e-3
    assert common.sum() > 15
    scores = (found.advantages - advantages)[common] / np.sqrt(variance[common])
    assert np.abs(scores).max() < 4
    assert 0.4 < (scores**2).mean() < 1.8, scores  # expected: 1
    assert np.abs(found.values - values).max() < 4 * 0.5 / 60**0.5
    assert np.corrcoef(found.advantages, advantages)[0, 1] > 0.8


def test_the_luck_of_the_slip_is_no_merit_of_the_reply(continued):
    """If two games begin with the same board and action, the true advantages of their first turns
    are equal, even if the moves slipped differently."""
    games, continuations = continued
    found = Truth(continuations.before, continuations.reply)
    starts = np.cumsum([0, *(game.num_turns for game in games)])[:-1]
    first_turns = {}  # (board, action) -> turns
    for index, start in enumerate(starts):
        action = games[index].trajectory.turns[0].record.actions[0]
        first_turns.setdefault((index // 4, action), []).append(start)
    pairs = []
    for turns in first_turns.values():
        pairs += itertools.combinations(turns, 2)
    assert pairs
    for i, j in pairs:
        noise = np.sqrt(found.noise[i] + found.noise[j])
        assert abs(found.advantages[i] - found.advantages[j]) < 4 * noise + 1e-9


def test_returns_are_sums_of_rewards_from_a_turn_on(lake):
    game = play_groups(lake, 4, 4)[0]
    for turn, reward in zip(game.trajectory.turns, (1.0, 2.0, 4.0, 8.0), strict=False):
        turn.reward = reward
    rewards = [turn.reward for turn in game.trajectory.turns]
    assert returns_from([game, game], [0, 1]).tolist() == [sum(rewards), sum(rewards[1:])]


def test_continuations_begin_in_the_state_of_the_turn(lake):
    games = play_groups(lake, 4, 4)
    found = monte_carlo(lake, games, 4)
    turns = [(game, turn) for game in games for turn in range(game.num_turns)]
    num_other_ends = 0
    for (game, turn), other in zip(turns, found.alternatives, strict=True):
        original = game.trajectory.turns
        repeated = other.trajectory.turns
        assert [t.text for t in repeated[: turn + 1]] == [t.text for t in original[: turn + 1]]
        assert [t.reward for t in repeated[:turn]] == [t.reward for t in original[:turn]]
        assert other.states[turn].env.player == game.states[turn].env.player
        assert other.states[turn].turn_idx == turn
        assert other.episode.env.num_actions <= LAKE.actions_per_traj
        num_other_ends += other.trajectory.ids != game.trajectory.ids
    assert num_other_ends > len(turns) / 4


def test_a_continuation_without_room_ends_out_of_tokens(lake):
    games = play_groups(lake, 2, 2)
    game = next(game for game in games if game.num_turns > 1)
    num_tokens = len(restore(game, 1).trajectory.ids)
    tight = replace(LAKE, max_context_tokens=num_tokens + 1, max_response_tokens=20)
    twin = restore(game, 1)
    Player(lake.engine, lake.chat, tight).play([twin], (0,))
    assert twin.trajectory.status == "out_of_tokens" and twin.num_turns == 1


# ---------- optimal play


def test_values_of_the_lake_are_those_of_the_best_sequences():
    holes = frozenset(range(4, 16))
    values = lake_values(4, holes, 3, 1.0, 2, 5, 3)  # goal in cell 3, two actions a turn, no slip
    assert values[1, 0, 5] == 0 and values[2, 0, 5] == 1  # three moves to the goal take two turns
    assert values[2, 0, 2] == 0 and values[1, 1, 2] == 1 and values[1, 1, 1] == 0
    slippery = lake_values(2, frozenset([2]), 1, 0.8, 1, 3, 3)
    # From cell 0, Right has probability 0.8 of reaching the goal, 0.1 of falling into the hole and
    # 0.1 of staying. Up reaches the goal with probability 0.1 and stays otherwise. With one or two
    # turns left, Right is best. So the value of cell 0 is 0.8 with one turn left, and
    # 0.8 + 0.1 * 0.8 = 0.88 with two turns left. With three turns left, the value of Up is
    # 0.1 + 0.9 * 0.88 = 0.892. The value of Right is lower: 0.8 + 0.1 * 0.88 = 0.888.
    assert slippery[1, 0, 3] == pytest.approx(0.8)
    assert slippery[2, 0, 3] == pytest.approx(0.88)
    assert slippery[3, 0, 3] == pytest.approx(0.892)
    assert slippery[3, 0, 1] == pytest.approx(0.8)


def test_the_optimal_player_earns_the_value_of_the_lake():
    config = replace(LAKE, actions_per_turn=2, actions_per_traj=6)
    wins = []
    values = []
    for index, member in itertools.product(range(40), range(10)):
        episode = make_episode(config)
        episode.reset((index,), split="eval", member=member)
        values.append(state_value(episode))
        status = None
        while status is None:
            actions = episode.env.plan(2, config.max_turns - episode.turn_idx)
            outcome = episode.step(format_response("", actions or ["Up"], think=False))
            status = outcome.status
        wins.append(status == "success")
    noise = np.sqrt(np.mean(np.array(values) * (1 - np.array(values))) / len(wins))
    assert abs(np.mean(wins) - np.mean(values)) < 3 * noise


def brute_force(env, actions_per_turn, turns):
    if env.terminated or env.actions_left == 0 or turns == 0:
        return 0.0
    best = -np.inf
    for length in range(1, min(actions_per_turn, env.actions_left) + 1):
        for moves in itertools.product(env.actions, repeat=length):
            twin = copy.deepcopy(env)
            reward = sum(twin.step(move).reward for move in moves)
            best = max(best, reward + brute_force(twin, actions_per_turn, turns - 1))
    return best


def test_values_of_sokoban_rooms():
    config = replace(SOKOBAN, max_turns=2, actions_per_turn=2, actions_per_traj=3)
    solved = []
    for index in range(12):
        episode = make_episode(config)
        episode.reset((index,), split="eval")
        value = state_value(episode)
        assert value == pytest.approx(brute_force(episode.env, 2, 2))
        length = episode.env.optimal_length()
        if length <= 3:
            solved.append(value)
            assert value == pytest.approx(11 - 0.1 * length)
        else:
            assert value < 1.0  # three actions cannot solve the room, and every action costs 0.1
    assert solved


def test_a_hopeless_room_costs_one_action_a_turn():
    config = replace(SOKOBAN, max_turns=3, actions_per_turn=2, actions_per_traj=4)
    for index in range(40):
        episode = make_episode(config)
        episode.reset((index,), split="eval")
        if episode.env.optimal_length() > 4:
            assert state_value(episode) == pytest.approx(-0.3)
            assert reply_value(episode, ["Up", "nonsense", "Down"]) <= -0.2
            return
    raise AssertionError("all rooms are solved in four actions")


@pytest.mark.parametrize("config", [LAKE, SOKOBAN], ids=["frozenlake", "sokoban"])
def test_optimal_advantages_are_losses_and_step_rewards_add_up(config):
    actions = ("Up", "Down", "Left", "Right")
    games = play_groups(Player(RandomMoves(actions), Letters(), config), 4, 4)
    advantages = optimal_advantages(games)
    assert advantages.max() < 1e-9 and advantages.min() < -0.01
    rewards = np.split(planner_rewards(games), np.cumsum([g.num_turns for g in games])[:-1])
    for game, of_game in zip(games, rewards, strict=True):
        gained = game.trajectory.score - state_value(game.states[0])
        assert of_game.sum() == pytest.approx(gained + state_value(game.episode))
    if config is SOKOBAN:  # no move slips, so the step rewards equal the optimal advantages
        np.testing.assert_allclose(np.concatenate(rewards), advantages, atol=1e-9)


def test_reply_value_averages_over_slips():
    episode = make_episode(LAKE)
    episode.reset((0,), split="eval")
    env = episode.env
    env.size, env.holes, env.goal, env.player = 2, frozenset([2]), 1, 0
    env.num_actions = 0
    # Right has probability 0.8 of reaching the goal, 0.1 of falling into the hole and 0.1 of
    # staying. Three turns are left after this turn. With three turns left, the value of cell 0 is
    # 0.892, as derived in test_values_of_the_lake_are_those_of_the_best_sequences.
    assert reply_value(episode, ["right"]) == pytest.approx(0.8 + 0.1 * 0.892)
    assert reply_value(episode, ["fly"]) == pytest.approx(0.892)


@pytest.mark.parametrize(
    "moves, losses",
    [
        (["Down", "Down", "Right", "Right"], (0, 0)),  # to the goal
        (["Right", "Right"], (1, 0)),  # the second move goes into the hole
        (["Right", "Right", "Down"], (1, 0)),
        (["Down", "Right", "Up", "Right"], (1, 0)),  # the first two moves go towards the goal
        (["fly"], (0, 0)),  # no legal action, but enough turns are left to win
    ],
)
def test_losses_of_a_game_by_hand(moves, losses):
    """Play one turn on this 3x3 lake without slip. S is the start, O a hole, G the goal.

    S _ O
    _ _ _
    _ _ G
    """
    config = replace(
        LAKE, env="frozenlake:size=3,success_rate=1.0", actions_per_turn=4, think=False
    )
    game = RecordedGame(make_episode(replace(config, actions_per_traj=8)), (0,))
    game.reset("train")
    env = game.episode.env
    env.holes, env.goal, env.player = frozenset([2]), 8, 0
    reply = format_response("", moves, think=False)
    game.add_turn(Reply(reply), game.execute(reply))
    assert regret.losses_of(game) == pytest.approx(losses)


def test_a_first_step_into_a_hole_is_in_the_rest():
    config = replace(LAKE, env="frozenlake:size=3,success_rate=1.0", think=False)
    game = RecordedGame(make_episode(config), (0,))
    game.reset("train")
    env = game.episode.env
    env.holes, env.goal, env.player = frozenset([1]), 8, 0
    reply = format_response("", ["Right"], think=False)
    game.add_turn(Reply(reply), game.execute(reply))
    assert regret.losses_of(game) == pytest.approx((0, 1))
    assert regret.planned([game]) == "1: 100%"  # LAKE allows one action a turn
    assert regret.shares(Counter({2: 3, 1: 1})) == "1: 25%, 2: 75%"


def test_shuffling_keeps_the_credits_of_each_game():
    class Counted:
        def __init__(self, num_turns):
            self.num_turns = num_turns

    credits = np.arange(40.0)
    shuffled = shuffle_within_games(credits, [Counted(20)] * 2, np.random.default_rng(0))
    assert sorted(shuffled[:20]) == list(credits[:20]) and list(shuffled) != list(credits)


# ---------- measures


def simulate(rng, num_turns=600, draws=16, spread=0.3, scatter=0.5):
    advantages = rng.normal(0, spread, num_turns)
    before = rng.normal(0, scatter, (num_turns, draws))
    reply = advantages[:, None] + rng.normal(0, scatter, (num_turns, draws))
    return advantages, Truth(before, reply)


def test_the_noise_of_the_truth_is_known():
    """An estimated advantage is the difference of two means of 16 returns each. In `simulate`, the
    noise of a return has standard deviation 0.5. So the noise of an estimated advantage has
    variance 2 * 0.5^2 / 16 = 0.03125. The true advantages have variance 0.3^2 = 0.09. The
    reliability is the share of the estimates' variance that is not noise:
    0.09 / (0.09 + 0.03125) = 0.742."""
    _, truth = simulate(np.random.default_rng(0), num_turns=4000)
    assert truth.noise.mean() == pytest.approx(0.03125, rel=0.03)
    assert truth.spread() == pytest.approx(0.09, rel=0.06)
    assert truth.reliability() == pytest.approx(0.742, abs=0.02)
    # `draws_for(0.95)` is the number of draws m at which Pearson's correlation of estimated and
    # exact advantages is 0.95. This correlation is the root of the reliability. With m draws, the
    # reliability is 0.09 / (0.09 + 0.5 / m). So a reliability of 0.95^2 = 0.9025 needs
    # m = 0.5 / 0.09 * 0.9025 / (1 - 0.9025) = 51.4 draws.
    assert truth.draws_for(0.95) == pytest.approx(51.4, abs=4)


def test_corrected_correlations_do_not_depend_on_the_number_of_draws():
    """Credit is the sum of two parts of equal variance: the true advantage and noise. So Pearson's
    correlation of credit with the true advantage is sqrt(1/2) = 0.71. For normal variables with
    this correlation, the rank correlation (`rank`) is 6 / pi * arcsin(0.71 / 2) = 0.69."""
    for draws in (4, 16, 64):
        rng = np.random.default_rng(1)
        advantages, truth = simulate(rng, num_turns=4000, draws=draws)
        credits = advantages + rng.normal(0, 0.3, 4000)
        boards = np.arange(4000) // 500
        found = measure(credits, credits, advantages, truth, np.arange(4000), boards)
        assert found["rank"][0] == pytest.approx(0.69, abs=0.05)
        assert found["signal"][0] == pytest.approx(0.5, abs=0.06)
        assert found["luck"][0] == 0
        assert found["gain"][0] == pytest.approx(0.69 - 1.0, abs=0.05)
        same = measure(credits, credits, credits, truth, np.arange(4000), boards)
        assert same["gain"] == [0.0, 0.0]
        assert truth.ceiling() == pytest.approx(truth.reliability() ** 0.5, abs=0.03)
    assert found["rank_raw"][0] < found["rank"][0]


def test_shares_separate_bias_from_luck():
    """The credit is 7 times the sum of three parts: the true advantage (variance 1), bias
    (variance 2) and luck (variance 3)."""
    rng = np.random.default_rng(2)
    advantages, truth = simulate(rng, num_turns=20_000, spread=1.0)
    systematic = advantages + rng.normal(0, 2**0.5, 20_000)
    one = 7 * (systematic + rng.normal(0, 3**0.5, 20_000))
    other = 7 * (systematic + rng.normal(0, 3**0.5, 20_000))
    assert variance_shares(one, other, truth) == pytest.approx((1 / 6, 1 / 3, 1 / 2), abs=0.02)
    constant = np.full(20_000, 0.1)
    assert variance_shares(constant, constant, truth) == (0.0, 0.0, 0.0)


@pytest.mark.filterwarnings("error")  # numpy must not warn if the jackknife keeps only one turn
def test_a_truth_of_noise_alone_is_not_known():
    truth = Truth(np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros((2, 2)))
    assert truth.spread() < 0 and truth.draws_for(0.95) == np.inf
    assert np.isnan(variance_shares(np.array([1.0, 2.0]), np.zeros(2), truth)).all()
    critic = measure_critic(np.array([1.0, 2.0]), truth, np.arange(2))
    assert np.isnan(critic["explained"][0]) and critic["bias"][0] == 1.0
    facts = {**dict.fromkeys(("turns", "games", "success", "draws", "cpu_s", "decided"), 1.0)}
    facts |= {"spread": 0.0, "noise": 0.2, "ceiling": np.nan, "draws_for_0.95": np.inf}
    assert "nan" not in credit_report.describe_truth(facts)
    assert credit_report.cell(np.nan, 0.1, in_percent=True) == "not known"
    assert credit_report.cell(0.5, np.nan, in_percent=True) == "50 [not known]"
    assert credit_report.without_nan({"a": [np.nan, 1.0, "x"]}) == {"a": [None, 1.0, "x"]}


def test_between_turns_of_a_game_by_hand():
    """Game 0 has the true advantages (1, 0), game 1 has (0, 1), and game 2 has a single turn."""
    games = np.array([0, 0, 1, 1, 2])
    exact = np.array([[1.0], [0.0], [0.0], [1.0], [5.0]]).repeat(2, 1)
    truth = Truth(np.zeros((5, 2)), exact)
    assert within_games(np.array([3.0, 1.0, 7.0, 9.0, -4.0]), truth, games) == pytest.approx(1.0)
    assert within_games(np.array([3.0, 1.0, 9.0, 7.0, -4.0]), truth, games) == pytest.approx(0.0)
    assert within_games(np.array([2.0, 2.0, 5.0, 5.0, 1.0]), truth, games) == 0.0
    rng = np.random.default_rng(3)
    advantages, noisy = simulate(rng, num_turns=6000)
    games = np.arange(6000) // 3
    credits = advantages + np.arange(6000) // 3  # each game has its own offset
    assert within_games(credits, noisy, games) == pytest.approx(1.0, abs=0.03)


def test_signs_count_where_the_truth_is_known():
    before = np.zeros((4, 2))
    # The sign of the last advantage is not known: its two returns are 5 and -4.
    reply = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [5.0, -4.0]])
    truth = Truth(before, reply)
    assert accuracy.is_decided(truth).tolist() == [True, True, True, False]
    assert accuracy.right_signs(np.array([2.0, 3.0, 0.0, 1.0]), truth) == 0.5


def test_the_critic_is_compared_with_the_true_values():
    rng = np.random.default_rng(4)
    values = rng.normal(0, 1, 4000)
    truth = Truth(values[:, None] + rng.normal(0, 2, (4000, 16)), np.zeros((4000, 16)))
    groups = np.arange(4000) // 500
    found = measure_critic(values + 0.5, truth, groups)
    assert found["correlation"][0] == pytest.approx(1.0, abs=0.02)
    assert found["bias"][0] == pytest.approx(0.5, abs=0.03)
    assert found["error"][0] == pytest.approx(0.5, abs=0.05)
    assert found["explained"][0] == pytest.approx(0.75, abs=0.05)


def test_intervals_contain_the_correlation():
    rng = np.random.default_rng(5)
    held = 0
    clusters = np.repeat(np.arange(8), 25)
    for _ in range(200):
        board = rng.normal(0, 0.15, 8)[clusters]
        advantages = board + rng.normal(0, 0.26, 200)
        truth = Truth(np.zeros((200, 16)), advantages[:, None] + rng.normal(0, 0.5, (200, 16)))
        credits = advantages + rng.normal(0, 0.3, 200)
        value, half_width = measure(credits, credits, credits, truth, clusters, clusters)["signal"]
        held += abs(value - 0.5) <= half_width
    assert held >= 180


# ---------- the command


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "no run was given; expected folders of runs, then --key=value"),
        (["config"], "config holds no run"),
        (["RUN", "--draws=1"], "draws must be 4 to 1000, got 1"),
        (["RUN", "--num_groups=1"], "needs num_groups of 2 or more, got 1"),
        (["RUN", "--checkpoints=end"], "has no checkpoint 'end'; it has start; train with"),
        (["RUN", "--checkpoints=start,start"], "checkpoints must be different, got 'start,start'"),
        (["RUN", "RUN"], "the folders of runs need different names, got a, a"),
        (["RUN", "--drows=8"], "unknown key 'drows'"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, words, message):
    save_config(small_config(), {}, tmp_path / "a")
    words = [word.replace("RUN", str(tmp_path / "a")) for word in words]
    with pytest.raises(ValueError, match=message):
        read_credit(words)


def test_runs_of_different_methods_are_not_pooled(tmp_path):
    """GRPO and GiGPO both have estimator="grpo", but GiGPO has a `state_weight` above 0."""
    save_config(small_config(estimator="grpo"), {}, tmp_path / "grpo")
    save_config(small_config(estimator="grpo", seed=1), {}, tmp_path / "grpo_s1")
    save_config(small_config(estimator="grpo", state_weight=1.0, seed=2), {}, tmp_path / "gigpo")
    save_config(small_config(estimator="rloo"), {}, tmp_path / "rloo")
    folders = {path.name: str(path) for path in tmp_path.iterdir()}
    read_credit([folders["grpo"], folders["grpo_s1"], folders["rloo"], "--checkpoints=start"])
    with pytest.raises(ValueError, match="gigpo have the same environment and estimator, but are"):
        read_credit([folders["grpo"], folders["gigpo"], "--checkpoints=start"])


def test_other_environments_are_refused(tmp_path):
    save_config(small_config(env="bandit"), {}, tmp_path / "run")
    with pytest.raises(
        ValueError, match="known only for one frozenlake or one sokoban, got env='ban"
    ):
        read_credit([str(tmp_path / "run"), "--checkpoints=start"])


@pytest.mark.parametrize("key", ["env", "eval_env"])
def test_a_run_folder_names_no_program(key, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    save_config(small_config(**{key: f"{tmp_path}/evil.py:X"}), {}, tmp_path / "run")
    with pytest.raises(ValueError, match="which can run programs or read files"):
        read_credit([str(tmp_path / "run"), "--checkpoints=start"])


def test_the_help_begins_with_the_own_options():
    for option in CREDIT_OPTIONS:
        assert f"--{option}" in credit_measure.__doc__, option
