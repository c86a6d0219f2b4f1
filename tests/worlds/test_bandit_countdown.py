"""Tests of Bandit and Countdown, with Python's own parser as the reference for expressions."""

from configurator import Config, load_config

import ast
import math
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from boards import SIMPLE, SMALL_COUNTDOWN, raw_draws
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_fixtures import config_file

import envs
from dialogue import Episode
from envs import make_env
from tools.sft_config import SftConfig
from worlds.countdown import countdown_solution, evaluate_expression

ROOT = Path(__file__).resolve().parents[2]


# ---------- Bandit


def test_bandit_is_the_documented_exception():
    # Splits share no instance, unless the environment has repeats = True (envs.py). Bandit has
    # repeats = True, because a pair of arms has only two prompts. All splits share the two prompts.
    env = make_env("bandit")
    both = {"Arms: Phoenix, Dragon", "Arms: Dragon, Phoenix"}
    for split in envs.SPLITS:
        assert {env.reset(i, split=split) for i in range(30)} == both
    assert env.repeats and not make_env(SIMPLE).repeats


def test_bandit_pays_by_hand():
    env = make_env("bandit")
    paid = []
    for seed in range(1000):
        env.reset(seed)
        low = env.step("phoenix")
        assert (low.reward, low.terminated, low.success) == (0.1, True, False)
        env.reset(seed)
        high = env.step("Dragon")
        assert high.terminated and high.success
        paid.append(high.reward)
    assert set(paid) == {0.0, 1.0}
    # the sum has mean 250 and standard deviation 13.7
    assert abs(sum(paid) - 250) < 3.5 * math.sqrt(1000 * 0.25 * 0.75)


# ---------- Countdown: rewards and expressions


def problem(numbers, target):
    env = make_env("countdown")
    env.start(("countdown", numbers, target), [0])
    return env


@pytest.mark.parametrize(
    "action, reward",
    [
        ("(3 + 5) * 2", 1.0),
        (" 2*(5+3) ", 1.0),
        ("((3)+(05)) * 2", 1.0),
        ("5 * 3 + 2 / 2", 0.0),  # value 16, but 2 is used twice
        ("3 * 5 + 1", 0.0),  # value 16, but 1 is not given
        ("(3 + 5)", 0.0),  # 2 is not used
        ("32 / 5", 0.0),  # 32 is not given
        ("3 + 5 * 2", 0.1),  # value 13, not 16: products come first
        ("5 - 3 - 2", 0.1),  # value 0
        ("2 / (3 - 5)", 0.1),  # value -1
    ],
)
def test_countdown_pays_by_hand(action, reward):
    env = problem((5, 3, 2), 16)
    step = env.step(action)
    assert (step.reward, step.terminated, step.truncated) == (reward, True, False)
    assert (step.success, step.valid, step.effective) == (reward == 1, True, reward > 0)
    assert not env.step("(3 + 5) * 2").valid


def test_countdown_is_exact():
    # In floats, 8 / (3 - 8 / 3) is 23.99.. instead of 24. countdown_solution() finds no solution,
    # because it allows only whole intermediate results.
    assert problem((8, 8, 3, 3), 24).step("8 / (3 - 8 / 3)").success
    assert countdown_solution(tuple((n, str(n)) for n in (8, 8, 3, 3)), 24) is None
    assert countdown_solution(((6, "6"), (2, "2")), 3) == "(6 / 2)"
    assert countdown_solution(((2, "2"), (6, "6")), 4) == "(6 - 2)"


NO_EXPRESSIONS = (
    *("", " ", "Up", "3 +", "+ 3", "-3 + 5", "3 5", "3 + 5 = 8", "2 ** 3", "9**9**9**9", "7 // 2"),
    *("2(3)", "(2)(3)", "()", "(3 + 5", "3 + 5)", "1)+(2", "5 / 0", "5 / (3 - 3)"),
    *("3.5 + 1", "1e2", "1_0", "0x1", "3,5", "٣ + ٥", "３+５", "²+1", "1\0+1", "1\n+1", "1\t+1"),
    *("1 || 2", "__import__('os')", "end"),
    *("9" * 100_000, "1+" * 100_000, "(" * 100_000, "(" * 50_000 + "1" + ")" * 50_000),
    *("(" * 100, ")" * 100, "(" * 50 + "1" + ")" * 50),
)


@pytest.mark.parametrize("text", NO_EXPRESSIONS, ids=range(len(NO_EXPRESSIONS)))
def test_no_expression_is_no_action(text):
    env = problem((5, 3, 2), 16)
    assert evaluate_expression(text) is None
    step = env.step(text)
    assert (step.reward, step.terminated, step.truncated, step.valid) == (0.0, False, False, False)
    assert env.step("(3 + 5) * 2").success


def test_longest_expressions():
    assert evaluate_expression("9" * 100) == ([10**100 - 1], 10**100 - 1)
    assert evaluate_expression("(" * 49 + "12" + ")" * 49) == ([12], 12)  # 100 characters
    assert evaluate_expression("1" + "+1" * 49 + " ") == ([1] * 50, 50)


def python_reads(text):
    """Read an expression with Python's own parser.

    Return (numbers, value), or None if the expression is not legal.
    """
    if len(text) > 100 or not set(text) <= set("0123456789+-*/() "):
        return None
    without_zeros = re.sub(r"\b0+(?=\d)", "", text).strip()  # Python allows no leading zeros
    try:
        tree = ast.parse(without_zeros, mode="eval")
    except SyntaxError:
        return None
    legal = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Constant)
    nodes = list(ast.walk(tree))
    if not all(isinstance(node, legal) for node in nodes):
        return None
    numbers = sorted(node.value for node in nodes if isinstance(node, ast.Constant))
    exact = re.sub(r"(\d+)", r"Fraction('\1')", text).strip()
    try:
        return numbers, eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        return None


def join_parts(drawn):
    left, operator, right, form = drawn
    return form.format(f"{left}{operator} {right}")


FORMS = st.sampled_from(("{}", "({})", " ( {} )"))
EXPRESSIONS = st.recursive(
    st.integers(0, 30).map(str),
    lambda part: st.tuples(part, st.sampled_from("+-*/"), part, FORMS).map(join_parts),
    max_leaves=8,
)
LEGAL_CHARACTERS = st.text("0123456789+-*/() ", max_size=12)


@settings(deadline=None, max_examples=150)
@given(EXPRESSIONS, LEGAL_CHARACTERS, st.integers(0, 99), st.integers(0, 3))
def test_expressions_are_read_as_python_reads_them(text, inserted, at, removed):
    with_hole = text[:at] + text[at + removed :]
    with_more = text[:at] + inserted + text[at:]
    for changed in (text, inserted, with_hole, with_more):
        assert evaluate_expression(changed) == python_reads(changed), changed


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=120))
def test_any_text_is_an_expression_or_not(text):
    assert evaluate_expression(text) == python_reads(text)
    episode = Episode(problem((5, 3, 2), 16), Config(max_turns=1))
    episode.open(episode.env.observe())
    outcome = episode.step(f"<think></think><answer>{text}</answer>")
    assert outcome.status in ("success", "failure", "out_of_turns")
    assert -0.1 <= outcome.reward <= 1


# ---------- Countdown: problems, texts, players


@pytest.mark.parametrize(
    "spec, counts, largest",
    [
        ("countdown", (3, 4), 99),
        ("countdown:numbers=2", (2,), 99),
        (SMALL_COUNTDOWN, (3,), 9),
        ("countdown:numbers=4", (4,), 99),
    ],
)
def test_countdown_problems_can_be_solved(spec, counts, largest):
    env, instances = raw_draws(spec, 60)
    rng = np.random.default_rng(0)
    wins = Counter()
    for instance in instances:
        _, numbers, target = instance
        assert len(numbers) in counts and 10 <= target <= 100
        assert list(numbers) == sorted(numbers, reverse=True)
        assert numbers[-1] >= 1 and numbers[0] <= largest
        for player in ("random", "greedy", "optimal"):
            env.start(instance, [0])
            actions = {
                "random": lambda: env.random(1, rng)[0],
                "greedy": env.greedy,
                "optimal": lambda: env.plan(1, 1)[0],
            }
            text = actions[player]()
            used, value = python_reads(text)
            assert used == sorted(numbers)
            assert player == "greedy" or (value > 0 and value.denominator == 1)
            wins[player] += env.step(text).success
            assert env.terminated and env.optimal_length() == 1
    assert wins["optimal"] == 60 > wins["greedy"]


def test_countdown_draws():
    _, instances = raw_draws("countdown", 600)
    four = sum(len(numbers) == 4 for _, numbers, _ in instances)
    assert abs(four - 300) < 3.5 * math.sqrt(600 / 4)
    # counts the targets in each of the ranges 10 to 40, 41 to 71, and 72 to 100
    thirds = Counter((target - 10) // 31 for _, _, target in instances)
    assert set(thirds) == {0, 1, 2} and min(thirds.values()) > 120
    drawn = set()
    for _, numbers, _ in instances:
        drawn.update(numbers)
    assert drawn == set(range(1, 100))
    plans = "".join(problem(*instance[1:]).plan(1, 1)[0] for instance in instances)
    assert set(plans) == set("0123456789+-*/() ")


@pytest.mark.slow
def test_countdown_splits_know_no_order_of_numbers():
    # Splits must not share a problem, even if its numbers are in another order.
    env = make_env(SMALL_COUNTDOWN)
    reserved = set()
    for instances in envs.reserved_instances(SMALL_COUNTDOWN).values():
        reserved.update((tuple(sorted(numbers)), target) for _, numbers, target in instances)
    train = set()
    for seed in range(600):
        env.reset([seed, 1])
        train.add((tuple(sorted(env.numbers)), env.target))
    assert len(reserved) == 512 and len(train) > 200
    assert not train & reserved


def test_countdown_texts():
    env = problem((25, 7, 3), 96)
    assert env.observe() == "Target 96. Numbers 25 7 3."
    assert env.statements() == ["Target 96.", "Numbers 25 7 3."]
    assert env.greedy() == "25 + 7 + 3"  # value 35, nearest to 96; other signs give 29, 21 or 15
    assert problem((25, 7, 3), 20).greedy() == "25 - 7 + 3"
    assert env.plan(5, 5) == ["(25 + 7) * 3"]
    assert problem((5, 2), 10).plan(1, 1) == ["5 * 2"]
    first = make_env("countdown").reset(3)
    for mode in envs.OBSERVATIONS:
        assert make_env("countdown", observation=mode).reset(3) == first


@pytest.mark.parametrize("options", ["numbers=5", "numbers=1", "largest=4", "largest=1000"])
def test_countdown_options_that_are_refused(options):
    message = r"countdown needs numbers 2, 3, 4 or 0 \(0 draws 3 or 4\) and largest 5\.\.999"
    with pytest.raises(ValueError, match=message):
        make_env(f"countdown:{options}")


def test_countdown_dialogue():
    episode = Episode(make_env("countdown"), Config())
    system, _ = episode.reset(0)
    assert system == episode.reset(1)[0]
    assert "Actions:" not in system and "At most 1 action a turn." in system
    episode.env.start(("countdown", (5, 3, 2), 16), [0])
    outcome = episode.step(
        "<think>Target 16. Numbers 5 3.</think><answer>(3 + 5) * 2 = 16</answer>"
    )
    assert outcome.user == (
        'Reward -0.1. Unknown action: "(3 + 5) * 2 = 16". No action was executed; nothing changed.'
        "\nTurn 2 of 5, 1 action left.\nTarget 16. Numbers 5 3 2."
    )
    assert (outcome.record.statements_checked, outcome.record.statements_true) == (2, 1)
    # the reply has two actions, but the game has only one action left
    outcome = episode.step("<think></think><answer>(3 + 5) * 2 || 3 + 5 + 2</answer>")
    assert (outcome.status, outcome.record.actions) == ("success", ["(3 + 5) * 2"])
    # reward 1, minus 0.1 because the second action is over the limit
    assert outcome.reward == pytest.approx(0.9)


@pytest.mark.slow
def test_countdown_players_and_demonstrations(chat):
    from eval import play_reference
    from support.arguments import PLAYERS
    from tools.demonstrations import demonstration

    files = [config_file(name) for name in ("countdown_ppo", "tiny")]
    words = [*files, f"--env={SMALL_COUNTDOWN}", "--eval_size=64"]
    config, _, _ = load_config(words, kind=SftConfig)
    rates = {}
    for player in PLAYERS:
        played = play_reference(config, player)
        assert all(len(trajectory.turns) == 1 for trajectory in played)
        assert all(trajectory.turns[0].record.format_ok for trajectory in played)
        rates[player] = sum(trajectory.success for trajectory in played) / 64
    assert rates["optimal"] == 1 > rates["greedy"] > rates["random"]
    for noise in (0.0, 1.0):
        noisy = replace(config, sft_noise=noise)
        demos = [demonstration(noisy, chat, i) for i in range(30)]
        assert all(demo.turns[0].record.format_ok and demo.score >= 0.1 for demo in demos)
        assert all(demo.success for demo in demos) == (noise == 0)
