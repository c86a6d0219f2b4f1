"""Repair: find and mend the single fault (bug) of a short Python function.

The task follows the SWE-Gym task of arXiv 2510.01132, at a size for small models. Deliberate
differences:
- `mini_python.py` interprets the code that a policy writes, so no sandbox is needed.
- Tests that the faulty code already passes earn no reward. Otherwise an edit without effect
  could earn a part of the reward.
"""

from configurator import UserError

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envs import Env, Move
from worlds.code.mini_python import interpret

NUM_TESTS = 10
NUM_VISIBLE = 4  # tests that the command `run` shows; the other tests are hidden
MAX_LINE = 100  # an edit may write at most this many characters

# Each block is one function: the line "name(parameter): description", then the body. K stands for
# a number that `draw` chooses.
LIBRARY_TEXT = """
above(xs): how many of xs exceed K
    n = 0
    for x in xs:
        if x > K: n += 1
    return n

multiples(xs): the sum of multiples of K
    s = 0
    for x in xs:
        if x % K == 0: s += x
    return s

clip(xs): xs with K for all that exceeds K
    out = []
    for x in xs:
        out += [min(x, K)]
    return out

last(xs): the last index of K or -1
    at = -1
    for i in range(len(xs)):
        if xs[i] == K: at = i
    return at

find(xs): the first index of K or -1
    for i in range(len(xs)):
        if xs[i] == K: return i
    return -1

digits(n): the sum of digits in base K
    s = 0
    while n > 0:
        s += n % K
        n = n // K
    return s

sums(xs): the sums from K on
    s = K
    out = []
    for x in xs:
        s += x
        out += [s]
    return out

between(xs): how many are in K..2*K
    n = 0
    for x in xs:
        if x >= K and x <= 2 * K: n += 1
    return n

steps(n): how often K can be taken away
    s = 0
    while n >= K:
        n -= K
        s += 1
    return s

spread(xs): max - min, at most K
    if len(xs) < 2: return 0
    return min(max(xs) - min(xs), K)

every(xs): those at 0, K, 2*K, ...
    out = []
    i = 0
    while i < len(xs):
        out += [xs[i]]
        i += K
    return out

jumps(xs): how many neighbours differ by over K
    n = 0
    for i in range(1, len(xs)):
        if abs(xs[i] - xs[i - 1]) > K: n += 1
    return n
"""
# Maps a title, such as "above(xs): how many of xs exceed K", to the body of the function.
LIBRARY = dict(block.split("\n", 1) for block in LIBRARY_TEXT.strip().split("\n\n"))

# Maps a correct operator to the wrong operator that a fault puts in its place.
SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.And: ast.Or,
}


class Command(NamedTuple):
    """An action that `Repair._read` has parsed."""

    verb: str  # read, run, submit or edit
    index: int = 0  # index of the edited line, counted from 0
    text: str = ""  # new text of the edited line


class Result(NamedTuple):
    """The result of one test."""

    argument: int | list[int]
    given: int | list[int] | str | None  # the value that the code returns, or "error: ..."
    expected: int | list[int]


class Repair(Env):
    """Mend a function so that it returns what the task describes.

    The policy can run 4 of the 10 tests. The 6 hidden tests decide about success.

    `reward=binary` pays 1 if all hidden tests pass, else 0. For `reward=ratio`, let p be the share
    of hidden tests that the submitted code passes, and f the share that the faulty code passes.
    `reward=ratio` pays (p - f) / (1 - f), but never less than 0.
    """

    def __init__(self, *, reward: str = "binary", **common):
        super().__init__(**common)
        if reward not in ("binary", "ratio"):
            raise UserError(f"repair needs reward binary or ratio, got {reward!r}")
        self.reward = reward

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw an instance: ("repair", key of LIBRARY, value of K, faulty code)."""
        title = str(rng.choice(list(LIBRARY)))
        k = int(rng.integers(2, 16))
        return ("repair", title, k, str(rng.choice(faults(title, k))))

    def _start(self, instance: tuple) -> None:
        _, self.title, self.k, faulty_code = instance
        self.name = self.title.split("(")[0]
        self.faulty_lines = faulty_code.split("\n")
        self.lines = self.faulty_lines.copy()
        self.output = ""
        wanted = _insert_k(self.title, self.k).replace(": ", " should return ", 1)
        self.task = f"Task: {wanted}. One of {len(self.lines)} lines is wrong."

    # ---------- actions

    def _read(self, action: str) -> Command | None:
        if not action.isprintable():
            return None
        if re.fullmatch("(?i:read|run|submit)", action):
            return Command(action.lower())
        edit = re.fullmatch(rf"(?i:edit) (\d{{1,2}}): ?(\S.{{0,{MAX_LINE - 1}}})", action)
        if not edit or not 1 <= int(edit[1]) <= len(self.lines):
            return None
        return Command("edit", int(edit[1]) - 1, edit[2])

    def _move(self, command: Command) -> Move:
        old_lines = self.lines.copy()
        if command.verb == "edit":
            indentation = re.match(" *", old_lines[command.index])[0]
            self.lines[command.index] = indentation + command.text
            self.output = f"Line {command.index + 1} is now: {command.text}"
        elif command.verb == "read":
            numbered = [f"{i}: {line}" for i, line in enumerate(self.lines, start=1)]
            self.output = "\n".join(numbered)
        elif command.verb == "run":
            self.output = self._visible_report()

        if command.verb == "submit" or not self.actions_left:  # the last allowed action submits too
            return self._submit()
        changed = self.lines != old_lines
        return Move(0.0, terminated=False, success=False, effective=changed)

    def _visible_report(self) -> str:
        lines = []
        for test in self._results(self.lines)[:NUM_VISIBLE]:
            call = f"{self.name}({test.argument})"
            lines.append(f"{call} gives {test.given}, expected {test.expected}")
        return "\n".join(lines)

    def _submit(self) -> Move:
        passed = self._share_passed(self.lines)
        passed_unpatched = self._share_passed(self.faulty_lines)
        success = passed == 1
        reward = float(success)
        if self.reward == "ratio":
            reward = max(0.0, (passed - passed_unpatched) / (1 - passed_unpatched))
        return Move(reward, terminated=True, success=success, effective=True)

    def _share_passed(self, lines: list[str]) -> float:
        """Return the share of the hidden tests that the code passes."""
        deciding = self._results(lines)[NUM_VISIBLE:]
        return sum(test.given == test.expected for test in deciding) / len(deciding)

    def _results(self, lines: list[str]) -> list[Result]:
        return run_tests("\n".join(lines), self.title, self.k)

    # ---------- texts

    def observe(self) -> str:
        return f"{self.task}\n{self.output}".strip()

    def rules(self) -> str:
        return (
            "Mend a function. Commands: read (the code), edit LINE: TEXT (the line keeps its "
            "indentation), run (some tests), submit (others decide; the last action submits as "
            "well). Known are whole numbers, lists of these, if, for, while, return, abs, len, "
            "max, min, range, sum."
        )

    def statements(self) -> list[str]:
        changed = []
        for index, line in enumerate(self.lines):
            if line != self.faulty_lines[index]:
                changed.append(f"line {index + 1}")
        return [f"Function {self.name}.", f"Changed {', '.join(changed) or 'nothing'}."]

    # ---------- players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Restore the right lines if a hidden test fails, then submit."""
        if self.terminated:
            return []
        commands = []
        if self._share_passed(self.lines) < 1:
            right_lines = library(self.title, self.k).split("\n")
            for index, right in enumerate(right_lines):
                if self.lines[index] != right:
                    commands.append(f"edit {index + 1}: {right.strip()}")
        return [*commands, "submit"][:max_actions]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        if not self.output:
            return ["read"]  # a player cannot know the fault before reading the code
        return self.plan(count, 1)

    def greedy(self) -> str:
        return "submit" if self.num_actions else "run"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return random commands. An edit copies the text of a random line into a random line."""
        edits = []
        for _ in range(count):
            number = rng.integers(len(self.lines)) + 1
            edits.append(f"edit {number}: {rng.choice(self.lines).strip()}")
        return [str(rng.choice(["read", "run", "submit", edit])) for edit in edits]


# ---------- functions, tests and faults


def library(title: str, k: int) -> str:
    """Return the right code of a function, formatted by `ast`."""
    head = title.split(":")[0]
    body = _insert_k(LIBRARY[title], k)
    return ast.unparse(ast.parse(f"def {head}:\n{body}"))


def _insert_k(text: str, k: int) -> str:
    return re.sub(r"\bK\b", str(k), text)


@lru_cache(maxsize=1024)
def tests_of(title: str, k: int) -> list[tuple]:
    """Return (argument, right value) for all NUM_TESTS tests of a function."""
    rng = np.random.default_rng([list(LIBRARY).index(title), k])
    arguments = rng.integers(4 * k, size=NUM_TESTS).tolist()
    if "(xs)" in title:  # lists of numbers from -1 to 2 * K + 1; K is the most likely number
        numbers = [k, k, k, *range(-1, 2 * k + 2)]
        sizes = rng.integers(1, 9, NUM_TESTS)
        arguments = [rng.choice(numbers, size).tolist() for size in sizes]
    return list(zip(arguments, interpret(library(title, k), arguments), strict=True))


@lru_cache(maxsize=16384)
def run_tests(code: str, title: str, k: int) -> list[Result]:
    tests = tests_of(title, k)
    values = interpret(code, [argument for argument, _ in tests])
    results = []
    for (argument, expected), given in zip(tests, values, strict=True):
        results.append(Result(argument, given, expected))
    return results


@lru_cache(maxsize=1024)
def faults(title: str, k: int) -> list[str]:
    """Return all faulty versions of a function.

    A faulty version has one operator replaced as in SWAPS, or one number changed by 1. It fails
    at least one visible and one hidden test.
    """
    codes = []
    for code in dict.fromkeys(_mutations(ast.parse(library(title, k)))):
        failed = [test.given != test.expected for test in run_tests(code, title, k)]
        if any(failed[:NUM_VISIBLE]) and any(failed[NUM_VISIBLE:]):
            codes.append(code)
    return codes


def _mutations(tree: ast.Module) -> Iterator[str]:
    """Change one operator or number of `tree` at a time, and yield each changed code."""
    for node in list(ast.walk(tree)):
        field, values = _replacements(node)
        for value in values:
            original = getattr(node, field)
            setattr(node, field, value)
            yield ast.unparse(tree)
            setattr(node, field, original)


def _replacements(node: ast.AST) -> tuple[str, list[Any]]:
    """Return the field that a fault changes in `node`, and the wrong values of this field.

    Return ("", []) if no fault changes `node`."""
    match node:
        case ast.Constant(int(value)):
            return "value", [value - 1, value + 1]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            return "op", [SWAPS[type(op)]()]
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return "ops", [[SWAPS[type(op)]()]]
    return "", []
