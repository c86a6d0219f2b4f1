"""Countdown: make a number out of others, an environment behind the protocol of `envs.Env`.

Rules and rewards are RAGEN's (arXiv 2504.20073). What differs, on purpose: no dataset is needed, problems are drawn and
all can be solved; and expressions are read exactly and within bounds, never by `eval`.
"""

from configurator import UserError

import ast
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product
from operator import add, mul, sub, truediv

import numpy as np

from envs import Env

SIGNS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}


def countdown_steps(parts: Sequence[tuple[int, str]]) -> list[tuple]:
    """The parts, (value, text) each, after any two became one by + - * /; only whole values above 0."""
    steps = []
    for (x, left), (y, right), *rest in permutations(parts):
        made = {"+": x + y, "-": x - y, "*": x * y, "/": 0 if x % y else x // y}
        steps += [
            ((value, f"({left} {sign} {right})"), *rest)
            for sign, value in made.items()
            if value > 0
        ]
    return steps


def random_expression(numbers: Sequence[int], rng: np.random.Generator) -> tuple[int, str]:
    """(value, text) of an expression of all numbers, made in random steps."""
    parts = [(n, str(n)) for n in numbers]
    while len(parts) > 1:
        steps = countdown_steps(parts)
        parts = steps[rng.integers(len(steps))]
    return parts[0][0], parts[0][1][1:-1]


@lru_cache(maxsize=16384)
def countdown_solution(parts: tuple, target: int) -> str | None:
    """The first expression, in parentheses, of all (value, text) parts that makes `target`, or None: brute force."""
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    return next(
        filter(None, (countdown_solution(fewer, target) for fewer in countdown_steps(parts))), None
    )


def evaluate_expression(text: str) -> tuple[list[int], Fraction] | None:
    """Sorted numbers and exact value of whole numbers joined by + - * / and parentheses, at most 100 characters; None
    for anything else, or where it divides by 0. Never raises.
    >>> evaluate_expression("(3 + 5) / 2 * 1")
    ([1, 2, 3, 5], Fraction(4, 1))
    """
    numbers = re.findall("[0-9]+", text) if re.fullmatch(r"[-+*/() 0-9]{1,100}", text) else []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return SIGNS[type(node.op)](value(node.left), value(node.right))
        return Fraction(node.value)  # AttributeError: no number

    try:  # Python's grammar, without its leading zeros
        tree = (
            ast.parse(re.sub(r"\b0+(?=[0-9])", "", text.strip()), mode="eval") if numbers else None
        )
        return tree and (sorted(map(int, numbers)), value(tree.body))
    except (SyntaxError, KeyError, AttributeError, ZeroDivisionError):
        return None


class Countdown(Env):
    """Make the target of 3 or 4 numbers, each used once. The one action is an expression; other text is no action.
    Numbers and targets are as large as upstream's. Numbers are in falling order, so instances are their own keys."""

    TARGETS, PARTIAL = (
        range(10, 101),
        0.1,
    )  # PARTIAL: the reward for the right numbers and a wrong value
    _read = staticmethod(evaluate_expression)

    def __init__(self, *, numbers: int = 0, largest: int = 99, **common):
        super().__init__(**(common | {"max_actions": 1}))
        if numbers not in (0, 2, 3, 4) or not 5 <= largest <= 999:
            raise UserError(
                f"countdown wants numbers 2, 3, 4 or 0 (3 or 4), largest 5..999, got {numbers}, {largest}"
            )
        self.count, self.largest = numbers, largest

    def draw(self, rng: np.random.Generator) -> tuple:
        count, target = self.count or int(rng.integers(3, 5)), 0
        while target not in self.TARGETS:
            numbers = sorted(rng.integers(1, self.largest + 1, count).tolist(), reverse=True)
            target, _ = random_expression(numbers, rng)
        return ("countdown", tuple(numbers), target)

    def _start(self, instance: tuple) -> None:
        _, self.numbers, self.target = instance

    def _move(self, expression: tuple[list[int], Fraction]) -> tuple[float, bool, bool, bool]:
        right, success = (
            expression[0] == sorted(self.numbers),
            expression == (sorted(self.numbers), self.target),
        )
        return 1.0 if success else self.PARTIAL * right, True, success, right

    def observe(self) -> str:
        return " ".join(self.statements())

    def rules(self) -> str:
        task = (
            "Make the target of the numbers, each used exactly once, with + - * / and parentheses."
        )
        return f"{task} An action is an expression, such as (3 + 5) * 2. Reward 1, {self.PARTIAL} for a wrong value."

    def statements(self) -> list[str]:
        return [f"Target {self.target}.", f"Numbers {' '.join(map(str, self.numbers))}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [countdown_solution(tuple((n, str(n)) for n in self.numbers), self.target)[1:-1]]

    def greedy(self) -> str:
        """The numbers in the order shown, with the signs + and - that come closest to the target."""
        form, signs = (
            " {} ".join(map(str, self.numbers)),
            product("+-", repeat=len(self.numbers) - 1),
        )
        return min(
            (form.format(*s) for s in signs),
            key=lambda text: abs(evaluate_expression(text)[1] - self.target),
        )

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return [random_expression(self.numbers, rng)[1] for _ in range(count)]
