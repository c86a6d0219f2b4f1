"""Tests of Repair with hand-made games, and of the interpreter of Repair against Python."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_games import FAULTY, opened, play

from worlds.code import mini_python, repair
from worlds.code.mini_python import interpret

FAULTY_TESTS = repair.tests_of(*FAULTY[1:3])
FIX = "edit 4: if x > 3:"


# ---------- Repair by hand


def test_repair_by_hand():
    env = opened(FAULTY, reward="ratio")
    task = "Task: above(xs) should return how many of xs exceed 3. One of 6 lines is wrong."
    assert env.observe() == task
    assert env.demonstrate(1, None) == ["read"]
    assert env.plan(9, 1) == [FIX, "submit"]

    assert "4:         if x >= 3:" in env.step("Read").observation
    assert env.demonstrate(1, None) == [FIX]

    lines = env.step("run").observation.split("\n")[1:]
    for line, (xs, right) in zip(lines, FAULTY_TESTS[: repair.NUM_VISIBLE], strict=True):
        given_value = sum(x >= 3 for x in xs)
        assert right == sum(x > 3 for x in xs)
        assert line == f"above({xs}) gives {given_value}, expected {right}"

    assert env.step(FIX).effective
    assert env.statements()[1] == "Changed line 4."
    assert env.lines[3] == "        if x > 3:"
    assert env.optimal_length() == 1

    step = env.step("submit")
    assert (step.reward, step.terminated, step.success) == (1.0, True, True)
    assert env.plan(9, 1) == []


@pytest.mark.parametrize("reward", ["binary", "ratio"])
def test_repair_leaves_out_what_the_unpatched_code_passes(reward):
    deciding = FAULTY_TESTS[repair.NUM_VISIBLE :]
    num_unpatched = sum(right == sum(x >= 3 for x in xs) for xs, right in deciding)
    # The unpatched code passes some hidden tests. If the reward were the share of passed hidden
    # tests, the reward would be positive even without an edit.
    assert num_unpatched > 0
    assert opened(FAULTY, reward=reward).step("submit").reward == 0

    last = play(opened(FAULTY, reward=reward), ["edit 6: return 1000", "submit"])[-1]
    assert last.reward == 0
    assert last.terminated
    assert not last.success

    num_passed = sum(right == sum(x > 4 for x in xs) for xs, right in deciding)
    ratio = max(0, (num_passed - num_unpatched) / (len(deciding) - num_unpatched))
    last = play(opened(FAULTY, reward=reward), ["edit 4: if x > 4:", "submit"])[-1]
    assert last.reward == (0 if reward == "binary" else pytest.approx(ratio))


def test_the_last_action_submits():
    env = opened(FAULTY, max_actions=2)
    first, last = play(env, ["read", FIX])
    assert not first.terminated
    assert last.terminated
    assert last.success
    assert last.reward == 1


@pytest.mark.parametrize(
    "text",
    [
        "edit 7: n = 1",
        "edit 0: n = 1",
        "edit 4:",
        "edit 4: ",
        "edit x: n",
        "edit 1: a\nb",
        "edit 2: \x00",
        "edit 2: " + "n" * 101,
        "run it",
        "",
    ],
)
def test_what_is_no_command_of_repair(text):
    assert not opened(FAULTY).step(text).valid


def test_every_fault_is_one_line_and_found_by_both_kinds_of_tests():
    count = 0
    for title in repair.LIBRARY:
        for k in (2, 7, 15):
            right = repair.library(title, k).split("\n")
            assert not any(isinstance(value, str) for _, value in repair.tests_of(title, k))
            for wrong in repair.faults(title, k):
                results = repair.run_tests(wrong, title, k)
                failed = [result.given != result.expected for result in results]
                assert any(failed[: repair.NUM_VISIBLE])
                assert any(failed[repair.NUM_VISIBLE :])
                pairs = zip(wrong.split("\n"), right, strict=True)
                assert sum(line != other for line, other in pairs) == 1
                count += 1
    assert count > 150


# ---------- the interpreter


def test_programs_do_what_python_does():
    compared = 0
    for title in repair.LIBRARY:
        name = title.split("(")[0]
        for code in [repair.library(title, 4), *repair.faults(title, 4)]:
            names = {}
            exec(code, names)
            for argument, given_value, _ in repair.run_tests(code, title, 4):
                if not isinstance(given_value, str):
                    assert names[name](argument) == given_value
                    compared += 1
    assert compared > 500


ATOMS = st.sampled_from(["n", "0", "1", "7", "True", "None", "[1, n]"])
PAIRS = st.sampled_from(
    [
        "({} + {})",
        "({} * {})",
        "({} // {})",
        "({} % {})",
        "({} < {})",
        "({} and {})",
        "({} or {})",
        "min({}, {})",
        "{}[{}]",
        "range({}, {})",
        "[-{}, {}]",
    ]
)


def pair_of(part):
    return st.tuples(PAIRS, part, part).map(lambda made: made[0].format(*made[1:]))


def list_range(*bounds):
    return list(range(*bounds))


@settings(deadline=None, max_examples=200)
@given(st.recursive(ATOMS, pair_of, max_leaves=8), st.integers(-3, 9))
def test_expressions_do_what_python_does(text, n):
    value = interpret(f"def f(n):\n    return {text}", [n])[0]
    if not isinstance(value, str):
        assert value == eval(text, {"n": n, "range": list_range})


HOSTILE = [
    "while True: n = 1",
    "for i in range(64): n = n * n",
    "import os",
    "return open('x', 'w')",
    "return exec('1')",
    "return ().__class__",
    "return n.real",
    "return '%99999999d' % n",
    "return 'a' * n",
    "return [0] * 99999999",
    "return range(999999999)",
    "return [[n, n], [n, n]]",
    "return (lambda: 1)()",
    "return f(n)",
    "return 2 ** 99",
    "return " + "-" * 90 + "n.x",
    "return [x for x in range(9)]",
    "return len(*[[1]])",
    "return max(key=n)",
    "raise SystemExit",
    "global n",
    "return __import__('os')",
    "return print(n)",
    "del n",
    "return " + "(" * 90,
    "for i in 3: n = 1",
    "while n: n = [n]",
    "xs[0] = 1",
    "return 9" + "9" * 80 + " * n",
    "return m",
    "return \\",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_code_is_an_error(line):
    assert interpret(f"def f(n):\n    {line}\n    return n", [3])[0].startswith("error: ")


def test_nested_loops_and_growing_lists_end():
    depth = 8
    lines = [*(f"for a{i} in xs:" for i in range(depth)), "x = 1"]
    loops = "\n".join("    " * i + line for i, line in enumerate(lines, start=1))
    assert interpret(f"def f(xs):\n{loops}\n    return 1", [[1] * 60]) == ["error: too many steps"]
    doubling = "def f(xs):\n    while len(xs) > 0:\n        xs = xs + xs\n    return xs"
    assert interpret(doubling, [[1]]) == ["error: too large"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "n = 1",
        "def f(): return 1",
        "def f(a, b): return 1",
        "class F: pass",
        "def f(",
        "x" * 1000,
        "def f(n):\n    return 1\n  x",
    ],
)
def test_what_is_no_function(source):
    assert interpret(source, [1, 2])[1].startswith("error: ")


def test_arguments_are_not_changed():
    xs = [1, 2]
    code = "def f(xs):\n    ys = xs\n    ys += [3]\n    return ys"
    assert interpret(code, [xs]) == [[1, 2, 3]]
    assert xs == [1, 2]


def test_examples_in_docstrings():
    assert doctest.testmod(mini_python).failed == 0
