"""The generated datasets of the package reasoning-gym, as `--env=rg:NAME`.

The package is optional. With one try, the score of the answer is the reward. With `tries=3` the
player has three tries and sees the score of each. The reward of a try is the increase of the best
score so far. So the rewards sum to the final best score.

Some datasets evaluate the answer as Python. `harmless` and WITH_LITERALS below keep an answer
from running as a program.
"""

from configurator import UserError

import ast
import difflib
import importlib
import json
import math
import os
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from envs import Move
from worlds.hubs.hub import REQUIREMENTS, Hub, parse_settings
from worlds.text.base import require_package

DATASET_SIZE = 2**20  # questions in a dataset; a dataset in ONE_BY_ONE has 1
MAX_CHARACTERS = 10_000  # of an answer
# Datasets that need more than 20 ms of CPU time per question. They always get splits=seed (see
# `Hub`), so that `draw` makes no question.
SLOW = (
    "advanced_geometry countdown futoshiki intermediate_integration knight_swap"
    " polynomial_equations puzzle24 quantum_lock rearc rubiks_cube sudoku zebra_puzzles"
).split()
# The dataset "acre" makes all its questions before it returns the first one. The dataset
# "word_ladder" cannot have DATASET_SIZE questions. So these two datasets are made anew for each
# question.
ONE_BY_ONE = ("acre", "word_ladder")
# These datasets depend on the order of a Python set, which differs from process to process.
HASH_DEPENDENT = (
    "isomorphic_strings",
    "knight_swap",
    "polynomial_multiplication",
    "ransom_note",
)
REFUSED = {  # maps a dataset to why it cannot be used, or to what to use instead
    "codeio": "it runs programs that nobody has checked",
    "composite": "mix environments with --env='rg:A + rg:B' instead",
}
# These datasets pass the answer to eval(), which `make_dataset` replaces by ast.literal_eval.
WITH_LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
# These datasets pass the answer to sympy's parser, which runs Python. So `harmless` checks the
# answer first.
WITH_FORMULAS = (
    "countdown intermediate_integration polynomial_multiplication puzzle24 simple_integration"
).split()
FUNCTIONS = (  # the functions that a formula may call
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs erf Ei Si Ci li"
).split()
# These functions never grow like exp. So `is_arithmetic` allows exp(sqrt(x)) and sqrt(exp(x)), but
# not exp(exp(x)).
SLOWLY_GROWING = "log ln sqrt Abs asin acos atan".split()
MAX_FORMULA = 300  # characters
MAX_EXPONENT = 100  # absolute value
MAX_TERMS = 200  # largest allowed number of terms of a formula after it is multiplied out
MAX_NUMBER = 10**12
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd)
# keys of a question's metadata that may hold a right answer
SOLUTIONS = ("example_correct_answer", "example_answer", "possible_answer", "solution")
# Errors that datasets raise for an answer that they cannot read.
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class ReasoningGym(Hub):
    """Questions of a dataset of reasoning-gym. `name` is the dataset, such as leg_counting."""

    def __init__(
        self,
        *,
        name: str = "",
        tries: int = 1,
        settings: str = "",
        splits: str = "seen",
        **common,
    ):
        super().__init__(splits="seed" if name in SLOW else splits, **common)
        if tries < 1:
            raise UserError(f"rg needs tries of 1 or more, got {tries}")
        require_package("reasoning_gym", REQUIREMENTS)
        with self.isolation.run():
            check_name(name)
            make_dataset(name, settings, 0)  # raises UserError for a wrong setting
        self.name = name
        self.settings = settings
        self.tries = tries

    # ---------- instances

    def begin(self, seed: int) -> str:
        self.dataset, self.entry = self._make(seed)
        return self.entry["question"]

    def _make(self, seed: int) -> tuple[Any, dict]:
        """Return a dataset and its entry (question, answer and metadata) for a seed."""
        index = seed % DATASET_SIZE
        self.isolation.seed(index)
        with self.isolation.run():
            if self.name in ONE_BY_ONE:
                dataset = make_dataset(self.name, self.settings, index)
                return dataset, dataset[0]
            dataset = make_dataset(self.name, self.settings, 0)
            return dataset, dataset[index]

    def _start(self, instance: tuple) -> None:
        _, seed, _ = instance
        self.begin(seed)
        self.limit_actions(self.tries)
        self.best = 0.0
        self.verdict = ""

    # ---------- the game

    def _read(self, action: str) -> str | None:
        return action if 0 < len(action) <= MAX_CHARACTERS else None

    def _move(self, answer: str) -> Move:
        score = self.score(answer)
        reward = max(0.0, score - self.best)
        self.best = max(self.best, score)
        won = score >= 1
        self.verdict = "Right." if won else f"Wrong, the score is {score:.3g}."
        return Move(reward, terminated=won, success=won, effective=True)

    def score(self, answer: str) -> float:
        """Return the score (0 to 1) of an answer. An unreadable or harmful answer scores 0."""
        if self.name in WITH_FORMULAS and not harmless(answer):
            return 0.0
        try:
            with self.isolation.run():
                return float(self.dataset.score_answer(answer=answer, entry=self.entry))
        except UNREADABLE:
            return 0.0

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return a list of one answer that scores 1; [] if none is known.

        The answer is the dataset's own, or one in the metadata of the question."""
        metadata = self.entry.get("metadata", {})
        for value in (self.entry["answer"], *map(metadata.get, SOLUTIONS)):
            if value is not None:
                answer = value if isinstance(value, str) else json.dumps(value)
                if self._read(answer) and self.score(answer) >= 1:
                    return [answer]
        return []

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the dataset's answers to random questions, as actions of the player "random"."""
        answers = []
        for _ in range(count):
            _, entry = self._make(int(rng.integers(DATASET_SIZE)))
            answers.append(str(entry["answer"]).strip() or "nothing")
        return answers

    # ---------- texts

    def observe(self) -> str:
        return f"{self.entry['question'].strip()}\n{self.verdict}".strip()

    def rules(self) -> str:
        text = "Answer the question. The action is the answer alone."
        if self.tries > 1:
            text += f" You have {self.tries} tries, and you see the score of each."
        return text


# ---------- the package


def check_name(name: str) -> None:
    """Raise UserError if dataset `name` is unknown or refused, or depends on a random hash seed."""
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4) or list(DATASETS)[:3]
        raise UserError(f"rg has no dataset {name!r}; did you mean rg:{' or rg:'.join(near)}?")
    if name in REFUSED:
        raise UserError(f"rg:{name} is refused: {REFUSED[name]}")
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    if name in HASH_DEPENDENT and hash_seed in ("", "random"):
        raise UserError(
            f"the questions or answers of rg:{name} depend on Python's hash seed, which differs "
            "between processes; start the command with PYTHONHASHSEED=0"
        )


@lru_cache(maxsize=256)
def make_dataset(name: str, settings: str, seed: int) -> Any:
    """Make a dataset of reasoning-gym. Raises: UserError if the dataset rejects the settings."""
    from reasoning_gym.factory import create_dataset

    arguments = parse_settings(settings)
    size = 1 if name in ONE_BY_ONE else DATASET_SIZE
    try:
        dataset = create_dataset(name, seed=seed, size=size, **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"rg:{name} cannot be made with settings={settings!r}: {error}") from error
    if name in WITH_LITERALS:
        module = importlib.import_module(type(dataset).__module__)
        module.eval = ast.literal_eval
    return dataset


def harmless(formula: str) -> bool:
    """Whether a formula has only numbers, names, arithmetic and mathematical functions.

    sympy's parser runs any Python expression, so a formula is checked first. Powers and nested
    functions are limited, because values such as 9**9**9**9 exceed the memory. Products of sums
    are limited, because sympy may multiply them out.
    """
    if len(formula) > MAX_FORMULA:
        return False
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except UNREADABLE:
        return False
    return is_arithmetic(tree)


def is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and node.value < MAX_NUMBER
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, OPERATORS) and is_arithmetic(node.operand)
    if isinstance(node, ast.Call):
        is_known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        if not is_known or node.keywords or not all(map(is_arithmetic, node.args)):
            return False
        # values such as exp(exp(exp(9))) would exceed the memory
        return not grows(node.func.id) or not any(map(has_growth, node.args))
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, OPERATORS):
        return False
    if isinstance(node.op, ast.Pow):
        base_has_power = any(isinstance(part, ast.Pow) for part in ast.walk(node.left))
        if base_has_power or not is_small(node.right):
            return False
    return is_arithmetic(node.left) and is_arithmetic(node.right) and num_terms(node) <= MAX_TERMS


def grows(function: str) -> bool:
    """Whether a function may grow like exp, as sin and cos do for imaginary arguments."""
    return function not in SLOWLY_GROWING


def has_growth(node: ast.expr) -> bool:
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(grows(call.func.id) for call in calls)


def is_small(exponent: ast.expr) -> bool:
    try:
        return abs(value_of(exponent)) <= MAX_EXPONENT
    except (ArithmeticError, ValueError):
        return False


def value_of(number: ast.expr) -> Fraction:
    """Return the value of an expression of numbers, signs and divisions.

    Raises: ValueError for any other expression; ArithmeticError for a division by 0 and for inf.
    """
    if isinstance(number, ast.UnaryOp) and isinstance(number.op, (ast.USub, ast.UAdd)):
        value = value_of(number.operand)
        return -value if isinstance(number.op, ast.USub) else value
    if isinstance(number, ast.BinOp) and isinstance(number.op, ast.Div):
        return value_of(number.left) / value_of(number.right)
    if not isinstance(number, ast.Constant) or type(number.value) not in (int, float):
        raise ValueError("no number")
    return Fraction(number.value)


def num_terms(node: ast.expr) -> int:
    """Return the largest number of terms that an expression can have once multiplied out.

    An expression without names is a number, so it is one term. A call of a function counts as two
    terms, because sympy may replace a call by a sum.
    """
    if isinstance(node, ast.UnaryOp):
        return num_terms(node.operand)
    if isinstance(node, ast.Call):
        return 2
    # a name is a variable or a function
    has_names = any(isinstance(part, ast.Name) for part in ast.walk(node))
    if not isinstance(node, ast.BinOp) or not has_names:
        return 1
    left = num_terms(node.left)
    if isinstance(node.op, ast.Pow):
        exponent = math.ceil(abs(value_of(node.right)))
        return math.comb(left + exponent - 1, exponent)
    right = num_terms(node.right)
    return left + right if isinstance(node.op, (ast.Add, ast.Sub)) else left * right
