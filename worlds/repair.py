"""Repair: code with a fault to find and mend, an environment behind the protocol of `envs.Env`.

It follows the SWE-Gym task of arXiv 2510.01132 at a size for small models. What differs, on purpose:
- code that a policy writes is interpreted here, in a language of whole numbers and lists of them with limits on steps
  and sizes. Neither `exec` nor a process runs it, so it needs no sandbox;
- the ratio leaves out what the unpatched code passes, or a harmless patch would earn most of it.
"""

from configurator import UserError

import ast
import operator
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from statistics import mean

import numpy as np

from envs import Env

VISIBLE, TESTS = 4, 10  # tests of a function: those that can be run, and all; the others decide


class Repair(Env):
    """Mend the one fault of a short function: what it should return is told, some tests can be run, others decide.

    `reward=ratio` pays what share of the tests that decide passes, from 0 for the unpatched code or worse to 1."""

    LIBRARY = {  # function and what it returns -> its body, for a number K
        "above(xs): how many of xs exceed K": "n = 0\nfor x in xs:\n if x > K: n += 1\nreturn n",
        "multiples(xs): the sum of multiples of K": "s = 0\nfor x in xs:\n if x % K == 0: s += x\nreturn s",
        "clip(xs): xs with K for all that exceeds K": "out = []\nfor x in xs:\n out += [min(x, K)]\nreturn out",
        "last(xs): the last index of K or -1": "at = -1\nfor i in range(len(xs)):\n if xs[i] == K: at = i\nreturn at",
        "find(xs): the first index of K or -1": "for i in range(len(xs)):\n if xs[i] == K: return i\nreturn -1",
        "digits(n): the sum of digits in base K": "s = 0\nwhile n > 0:\n s += n % K\n n = n // K\nreturn s",
        "sums(xs): the sums from K on": "s = K\nout = []\nfor x in xs:\n s += x\n out += [s]\nreturn out",
        "between(xs): how many are in K..2*K": "n = 0\nfor x in xs:\n if x >= K and x <= 2 * K: n += 1\nreturn n",
        "steps(n): how often K can be taken away": "s = 0\nwhile n >= K:\n n -= K\n s += 1\nreturn s",
        "spread(xs): max - min, at most K": "if len(xs) < 2: return 0\nreturn min(max(xs) - min(xs), K)",
        "every(xs): those at 0, K, 2*K, ...": "out = []\ni = 0\nwhile i < len(xs):\n out += [xs[i]]\n i += K\nreturn out",
        "jumps(xs): how many neighbours differ by over K": "n = 0\nfor i in range(1, len(xs)):\n if abs(xs[i] - xs[i - 1]) > K: n += 1\nreturn n",
    }

    def __init__(self, *, reward: str = "binary", **common):
        super().__init__(**common)
        if reward not in ("binary", "ratio"):
            raise UserError(f"repair wants reward binary or ratio, got {reward!r}")
        self.reward = reward

    def draw(self, rng: np.random.Generator) -> tuple:
        title, k = str(rng.choice(list(self.LIBRARY))), int(rng.integers(2, 16))
        return ("repair", title, k, str(rng.choice(faults(title, k))))

    def _start(self, instance: tuple) -> None:
        _, title, k, wrong = instance
        self.key, self.name, self.output = (title, k), title.split("(")[0], ""
        self.lines, self.wrong = wrong.split("\n"), wrong.split("\n")
        told = re.sub(r"\bK\b", str(k), title).replace(": ", " should return ", 1)
        self.task = f"Task: {told}. One of {len(self.lines)} lines is wrong."

    def _read(self, action: str) -> tuple[str, int, str] | None:
        """(verb, line index, new text), or None."""
        match = re.fullmatch(r"(?i:(read|run|submit)|edit (\d{1,2}): ?(\S.{0,99}))", action)
        if not match or not action.isprintable() or not 1 <= int(match[2] or 1) <= len(self.lines):
            return None
        return (match[1] or "edit").lower(), int(match[2] or 1) - 1, match[3] or ""

    def _move(self, move: tuple[str, int, str]) -> tuple[float, bool, bool, bool]:
        (verb, index, text), old = move, self.lines[:]
        if verb == "edit":
            self.lines[index] = re.match(" *", old[index])[0] + text
            self.output = f"Line {index + 1} is now: {text}"
        elif verb == "read":
            self.output = "\n".join(f"{i}: {line}" for i, line in enumerate(old, start=1))
        elif verb == "run":
            results = outcomes("\n".join(old), *self.key)[:VISIBLE]
            self.output = "\n".join(
                f"{self.name}({x}) gives {given}, expected {right}" for x, given, right in results
            )
        if verb != "submit" and self.actions_left:  # the last action submits as well
            return 0.0, False, False, self.lines != old
        share, base = (self._share_passed(lines) for lines in (self.lines, self.wrong))
        ratio = max(0.0, (share - base) / (1 - base))
        return ratio if self.reward == "ratio" else float(share == 1), True, share == 1, True

    def _share_passed(self, lines: list[str]) -> float:
        return mean(
            given == right for _, given, right in outcomes("\n".join(lines), *self.key)[VISIBLE:]
        )

    def observe(self) -> str:
        return f"{self.task}\n{self.output}".strip()

    def rules(self) -> str:
        return (
            "Mend a function. Commands: read (the code), edit LINE: TEXT (the line keeps its indentation), run "
            "(some tests), submit (others decide; the last action submits as well). Known are whole numbers, lists "
            "of these, if, for, while, return, abs, len, max, min, range, sum."
        )

    def statements(self) -> list[str]:
        changed = [f"line {i + 1}" for i, line in enumerate(self.lines) if line != self.wrong[i]]
        return [f"Function {self.name}.", f"Changed {', '.join(changed) or 'nothing'}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Bring back the right lines, unless the code is right, and submit: from the start nothing is shorter."""
        lines = [] if self._share_passed(self.lines) == 1 else library(*self.key).split("\n")
        pairs = enumerate(zip(self.lines, lines, strict=False), start=1)
        edits = [f"edit {i}: {right.strip()}" for i, (line, right) in pairs if line != right]
        return [] if self.terminated else [*edits, "submit"][:max_actions]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        return self.plan(count, 1) if self.output else ["read"]  # nobody can know the code before

    def greedy(self) -> str:
        return "submit" if self.num_actions else "run"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Random commands; an edit puts the text of one line into another."""
        edits = [
            f"edit {rng.integers(len(self.lines)) + 1}: {rng.choice(self.lines).strip()}"
            for _ in range(count)
        ]
        return [str(rng.choice(["read", "run", "submit", edit])) for edit in edits]


def library(title: str, k: int) -> str:
    """The right function, as `ast` writes it."""
    body = re.sub(r"\bK\b", str(k), Repair.LIBRARY[title]).replace("\n", "\n ")
    return ast.unparse(ast.parse(f"def {title.split(':')[0]}:\n {body}"))


@lru_cache(maxsize=1024)
def tests_of(title: str, k: int) -> list[tuple]:
    """(argument, right value) of all tests, the visible ones first."""
    rng = np.random.default_rng([list(Repair.LIBRARY).index(title), k])
    arguments = rng.integers(4 * k, size=TESTS).tolist()
    if "(xs)" in title:  # lists of numbers around K and 2 K, in which K itself is frequent
        numbers = [k, k, k, *range(-1, 2 * k + 2)]
        arguments = [rng.choice(numbers, size).tolist() for size in rng.integers(1, 9, TESTS)]
    return list(zip(arguments, interpret(library(title, k), arguments), strict=True))


@lru_cache(maxsize=16384)
def outcomes(source: str, title: str, k: int) -> list[tuple]:
    """(argument, what the code gives, right value) of all tests."""
    tests = tests_of(title, k)
    given = interpret(source, [argument for argument, _ in tests])
    return [(argument, value, right) for (argument, right), value in zip(tests, given, strict=True)]


@lru_cache(maxsize=1024)
def faults(title: str, k: int) -> list[str]:
    """The right code with one operator or comparison swapped or one number off by one, if tests of both kinds fail."""
    tree, found = ast.parse(library(title, k)), []
    for node, field in product(list(ast.walk(tree)), ("op", "ops", "value")):
        if field in node._fields:
            old = getattr(node, field)
            sign = type(old[0] if field == "ops" else old)
            for new in (
                [old - 1, old + 1] if sign is int else [SWAPS[sign]()] if sign in SWAPS else []
            ):
                setattr(node, field, [new] if field == "ops" else new)
                found.append(ast.unparse(tree))
            setattr(node, field, old)
    fails = {
        code: [given != right for _, given, right in outcomes(code, title, k)] for code in found
    }
    return [
        code for code, failed in fails.items() if any(failed[:VISIBLE]) and any(failed[VISIBLE:])
    ]


# ---------- the language of Repair

STEPS, LARGEST, LONGEST = (
    200,
    10**6,
    64,
)  # of a run, three times what the library needs; of numbers; of lists
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
FUNCTIONS = {
    "abs": abs,
    "len": len,
    "max": max,
    "min": min,
    "sum": sum,
    "range": lambda *bounds: list(range(*bounds)[: LONGEST + 1]),
    ast.List: lambda *parts: [
        operator.index(part) for part in parts
    ],  # lists of lists could double at every step
    ast.Mult: lambda a, b: (
        operator.index(a) * operator.index(b)
    ),  # a list times a number could fill the memory
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Subscript: operator.getitem,
}


ERRORS = (
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


def interpret(source: str, arguments: Sequence[int | list[int]]) -> list:
    """What the one function of one argument in the text returns for each of these; "error: ..." where it fails.
    >>> interpret("def half(n): return 6 // n", [2, 0]), interpret("def leave(n): return exit(n)", [1])
    ([3, 'error: integer division or modulo by zero'], ['error: exit(n) is not known'])
    """
    program, results = Program(), []
    try:
        function = ast.parse(source).body[0]
        (name,), call = function.args.args, program.block(function.body)
    except (*ERRORS, AttributeError) as error:  # of a module that is not this one function
        return [f"error: {error}"] * len(arguments)
    for argument in arguments:
        program.names, program.steps = {name.arg: argument}, 0
        try:
            results.append((call() or [None])[0])
        except ERRORS as error:
            results.append(f"error: {error}")
    return results


class Program:
    """Turns statements and expressions into functions that do them, on whole numbers, truth values, None and lists of
    numbers, which never change. These raise ValueError at a limit, and what Python raises for a wrong operand. They
    work on `names`, from name to value, and count their `steps`."""

    def block(self, nodes: list[ast.stmt]) -> Callable[[], list | None]:
        """Executes statements; returns [value] after `return`, else None. Raises: UserError for an unknown kind."""
        parts = [self.statement(node) for node in nodes]
        return lambda: next(filter(None, (self.count() or part() for part in parts)), None)

    def count(self) -> None:
        """One step: a statement or an operation. Every turn of a loop has one, so that all loops end."""
        self.steps += 1
        if self.steps > STEPS:
            raise UserError("too many steps")

    def statement(self, node: ast.stmt) -> Callable[[], list | None]:
        match node:
            case ast.Return(value):
                value = self.expression(value or ast.Constant(None))
                return lambda: [value()]
            case ast.Assign([ast.Name(name)], value):
                value = self.expression(value)
                return lambda: self.names.update({name: value()})
            case ast.AugAssign(ast.Name() as name, op, value):
                return self.statement(ast.Assign([name], ast.BinOp(name, op, value)))
            case ast.If(test, inner, other):
                test, inner, other = self.expression(test), self.block(inner), self.block(other)
                return lambda: inner() if test() else other()
            case ast.While(test, inner, []):
                test, inner = self.expression(test), self.block(inner)
                return lambda: next(
                    filter(None, (inner() for _ in iter(lambda: bool(test()), False))), None
                )
            case ast.For(ast.Name(name), values, inner, []):
                values, inner = self.expression(values), self.block(inner)
                return lambda: next(
                    filter(None, (self.names.update({name: x}) or inner() for x in values())), None
                )
        raise UserError(f"{ast.unparse(node)} is not known")

    def expression(self, node: ast.expr) -> Callable:
        parts, kind = (
            [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)],
            type(node),
        )
        match node:
            case ast.Constant(int() | None as value):
                return lambda: value
            case ast.Name(name):
                return lambda: self.names[name]
            case ast.BoolOp(op, [left, *rest]):  # which may leave the rest alone
                left, is_and = self.expression(left), isinstance(op, ast.And)
                rest = self.expression(ast.BoolOp(op, rest)) if rest else left
                return lambda: rest() if bool(value := left()) == is_and else value
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.Compare(ops=[op]):
                kind = type(op)
            case ast.Call(ast.Name(name), parts, []):
                kind = name
        if kind not in FUNCTIONS:
            raise UserError(f"{ast.unparse(node)} is not known")
        function, parts = FUNCTIONS[kind], [self.expression(part) for part in parts]

        def call() -> int | list[int]:
            self.count()
            value = function(*[part() for part in parts])
            if len(value) > LONGEST if isinstance(value, list) else abs(value) > LARGEST:
                raise UserError("too large")
            return value

        return call
