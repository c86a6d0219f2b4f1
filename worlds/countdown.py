"""Countdown: combine numbers to make a target number.

Rules and rewards are those of RAGEN (arXiv 2504.20073). There are two deliberate differences from
RAGEN:
- All problems are random and have a solution.
- Expressions are computed exactly, without `eval`.
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

from envs import Env, Move

OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}
EXPRESSION = re.compile(r"[-+*/() 0-9]{1,100}")  # up to 100 of these characters


class Countdown(Env):
    """Combine 2, 3 or 4 numbers to make the target. Each number is used once.

    A game has one action, an arithmetic expression. By default, numbers and targets have RAGEN's
    ranges. Numbers are sorted, largest first, so that problems that differ only in the order of
    their numbers become the same instance.
    """

    TARGETS = range(10, 101)
    PARTIAL_REWARD = 0.1  # for an expression that uses the right numbers but misses the target

    def __init__(self, *, numbers: int = 0, largest: int = 99, **common):
        common["max_actions"] = 1
        super().__init__(**common)
        if numbers not in (0, 2, 3, 4) or not 5 <= largest <= 999:
            raise UserError(
                "countdown needs numbers 2, 3, 4 or 0 (0 draws 3 or 4) and largest 5..999, "
                f"got numbers={numbers}, largest={largest}"
            )
        self.count = numbers
        self.largest = largest

    def draw(self, rng: np.random.Generator) -> tuple:
        count = self.count or int(rng.integers(3, 5))
        target = None
        while target not in self.TARGETS:
            numbers = sorted(rng.integers(1, self.largest + 1, count).tolist(), reverse=True)
            target, _ = random_expression(numbers, rng)
        return ("countdown", tuple(numbers), target)

    def _start(self, instance: tuple) -> None:
        _, self.numbers, self.target = instance

    def _read(self, action: str) -> tuple[list[int], Fraction] | None:
        return evaluate_expression(action)

    def _move(self, expression: tuple[list[int], Fraction]) -> Move:
        numbers, value = expression
        right_numbers = numbers == sorted(self.numbers)
        success = right_numbers and value == self.target
        reward = 0.0
        if success:
            reward = 1.0
        elif right_numbers:
            reward = self.PARTIAL_REWARD
        return Move(reward, terminated=True, success=success, effective=right_numbers)

    def observe(self) -> str:
        return " ".join(self.statements())

    def rules(self) -> str:
        return (
            "Make the target of the numbers, each used exactly once, with + - * / and parentheses. "
            "An action is an expression, such as (3 + 5) * 2. "
            f"Reward 1, {self.PARTIAL_REWARD} for a wrong value."
        )

    def statements(self) -> list[str]:
        return [f"Target {self.target}.", f"Numbers {' '.join(map(str, self.numbers))}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        parts = tuple((number, str(number)) for number in self.numbers)
        return [countdown_solution(parts, self.target)[1:-1]]  # without the outer parentheses

    def greedy(self) -> str:
        """Put + or - between the numbers, in their given order, to come closest to the target."""
        template = " {} ".join(map(str, self.numbers))
        sign_choices = product("+-", repeat=len(self.numbers) - 1)

        def distance(text: str) -> Fraction:
            _, value = evaluate_expression(text)
            return abs(value - self.target)

        return min((template.format(*signs) for signs in sign_choices), key=distance)

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return [random_expression(self.numbers, rng)[1] for _ in range(count)]


def evaluate_expression(text: str) -> tuple[list[int], Fraction] | None:
    """Compute an expression of whole numbers, + - * /, parentheses and spaces.

    The expression has at most 100 characters.

    Returns: the sorted numbers and the exact value; None if the text is no such expression or
        divides by 0.

    >>> evaluate_expression("(3 + 5) / 2 * 1")
    ([1, 2, 3, 5], Fraction(4, 1))
    """
    if not EXPRESSION.fullmatch(text):
        return None
    numbers = [int(digits) for digits in re.findall("[0-9]+", text)]
    if not numbers:
        return None
    without_zeros = re.sub(r"\b0+(?=[0-9])", "", text.strip())  # `ast.parse` refuses leading zeros
    try:
        tree = ast.parse(without_zeros, mode="eval")
        return sorted(numbers), _value(tree.body)
    except (SyntaxError, KeyError, AttributeError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> Fraction:
    """Compute + - * / of numbers.

    Raises: KeyError or AttributeError for other syntax, such as the sign in -3.
    """
    if isinstance(node, ast.BinOp):
        operator = OPERATORS[type(node.op)]
        return operator(_value(node.left), _value(node.right))
    return Fraction(node.value)


def combine_two(parts: Sequence[tuple[int, str]]) -> list[tuple]:
    """Find all ways to join two of the parts by + - * /.

    A part is the (value, text) of an expression.

    Returns: tuples of parts. Each tuple begins with the joined part, whose value is a whole number
        above 0. The other parts follow. Each order of the other parts gives a separate tuple.
    """
    results = []
    for (x, left), (y, right), *rest in permutations(parts):
        values = {"+": x + y, "-": x - y, "*": x * y, "/": 0 if x % y else x // y}
        for sign, value in values.items():
            if value > 0:
                results.append(((value, f"({left} {sign} {right})"), *rest))
    return results


def random_expression(numbers: Sequence[int], rng: np.random.Generator) -> tuple[int, str]:
    """Join all numbers by random operators, in random order. Return (value, text) of the result."""
    parts = [(number, str(number)) for number in numbers]
    while len(parts) > 1:
        choices = combine_two(parts)
        parts = choices[rng.integers(len(choices))]
    value, text = parts[0]
    return value, text[1:-1]  # without the outer parentheses


@lru_cache(maxsize=16384)
def countdown_solution(parts: tuple[tuple[int, str], ...], target: int) -> str | None:
    """Find an expression that joins all parts and has the value `target`.

    A part is the (value, text) of an expression. The search tries only expressions whose partial
    results are whole numbers above 0.

    Returns: the expression in parentheses; None if the search finds none.
    """
    if len(parts) == 1:
        value, text = parts[0]
        return text if value == target else None
    for fewer_parts in combine_two(parts):
        solution = countdown_solution(fewer_parts, target)
        if solution:
            return solution
    return None
