"""An interpreter for a small part of Python, with whole numbers and lists of whole numbers.

`repair.py` uses this interpreter to run the code that a policy writes. No sandbox is needed,
because the interpreter limits steps and sizes, and knows only the statements and functions below.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

# A step is an executed statement or operation. `interpret` allows MAX_STEPS steps for each
# argument. The right code in `repair.LIBRARY` takes at most 64 steps in each test.
MAX_STEPS = 200
MAX_NUMBER = 10**6  # largest absolute value that an operator or a function may give
MAX_LENGTH = 64  # numbers in a list

ERRORS = (
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class ProgramError(ValueError):
    """The program uses unknown syntax or exceeds a limit."""


def interpret(source: str, arguments: Sequence[int | list[int]]) -> list:
    """Call a function once for each argument.

    Args: source: the text of one function with one parameter.
    Returns: for each argument, the value of the function, or "error: ..." if the call fails.

    >>> interpret("def half(n): return 6 // n", [2, 0])
    [3, 'error: integer division or modulo by zero']
    >>> interpret("def leave(n): return exit(n)", [1])
    ['error: exit(n) is not known']
    """
    program = Program()
    try:
        function = ast.parse(source).body[0]
        parameters = function.args.args
        run = program.block(function.body)
        (parameter,) = parameters
    except (*ERRORS, AttributeError) as error:  # AttributeError if `body[0]` is not a function
        return [f"error: {error}"] * len(arguments)

    results = []
    for argument in arguments:
        program.names = {parameter.arg: argument}
        program.steps = 0
        try:
            returned = run()
            results.append(returned.value if returned else None)
        except ERRORS as error:
            results.append(f"error: {error}")
    return results


def _product(left: int, right: int) -> int:
    """Multiply. Raises: TypeError for a list, because a list times a number could fill memory."""
    return operator.index(left) * operator.index(right)


def _list(*parts: int) -> list[int]:
    """Make a list. Raises: TypeError for a nested list, whose size could double at every step."""
    return [operator.index(part) for part in parts]


def _range(*bounds: int) -> list[int]:
    return list(range(*bounds)[: MAX_LENGTH + 1])


FUNCTIONS = {
    "abs": abs,
    "len": len,
    "max": max,
    "min": min,
    "sum": sum,
    "range": _range,
}
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _product,
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
}


class Returned(NamedTuple):
    """The result of a `Statement` that executed a `return`."""

    value: int | list[int] | None


# executes a statement; gives `Returned` if the statement executed a `return`, else None
Statement = Callable[[], Returned | None]
Expression = Callable[[], int | list[int] | None]  # computes a value


class Program:
    """Compiles syntax trees into Python functions that execute them.

    Values are whole numbers, True, False, None and lists of whole numbers. No operation may change
    a list in place, because `repair.py` reuses the argument lists. Compiling raises ProgramError
    for unknown syntax. Executing raises ProgramError beyond a limit, and can raise errors of Python
    such as ZeroDivisionError.
    """

    def __init__(self):
        self.names = {}  # name -> value
        self.steps = 0  # executed statements and operations; reset to 0 for each argument

    def count_step(self) -> None:
        """Count one step. Each loop iteration has at least one step, so MAX_STEPS ends all loops.

        Raises: ProgramError after MAX_STEPS steps."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ProgramError("too many steps")

    # ---------- statements

    def block(self, nodes: list[ast.stmt]) -> Statement:
        statements = [self.statement(node) for node in nodes]

        def run_block() -> Returned | None:
            for statement in statements:
                self.count_step()
                returned = statement()
                if returned:
                    return returned
            return None

        return run_block

    def statement(self, node: ast.stmt) -> Statement:
        match node:
            case ast.Return(value):
                compute = self.expression(value or ast.Constant(None))
                return lambda: Returned(compute())
            case ast.Assign([ast.Name(name)], value):
                return self._assign(name, self.expression(value))
            case ast.AugAssign(ast.Name() as target, op, value):
                return self.statement(ast.Assign([target], ast.BinOp(target, op, value)))
            case ast.If(test, body, other):
                return self._if(self.expression(test), self.block(body), self.block(other))
            case ast.While(test, body, []):
                return self._while(self.expression(test), self.block(body))
            case ast.For(ast.Name(name), values, body, []):
                return self._for(name, self.expression(values), self.block(body))
        raise _unknown(node)

    def _assign(self, name: str, compute: Expression) -> Statement:
        def run_assign() -> None:
            self.names[name] = compute()

        return run_assign

    def _if(self, test: Expression, body: Statement, other: Statement) -> Statement:
        return lambda: body() if test() else other()

    def _while(self, test: Expression, body: Statement) -> Statement:
        def run_while() -> Returned | None:
            while test():
                returned = body()
                if returned:
                    return returned
            return None

        return run_while

    def _for(self, name: str, values: Expression, body: Statement) -> Statement:
        def run_for() -> Returned | None:
            for value in values():
                self.names[name] = value
                returned = body()
                if returned:
                    return returned
            return None

        return run_for

    # ---------- expressions

    def expression(self, node: ast.expr) -> Expression:
        match node:
            case ast.Constant(int() | None as value):
                return lambda: value
            case ast.Name(name):
                return lambda: self.names[name]
            case ast.BoolOp(op, values):
                operands = [self.expression(value) for value in values]
                return self._bool_op(isinstance(op, ast.Or), operands)
            case ast.BinOp(left, op, right):
                return self._call(node, OPERATIONS.get(type(op)), [left, right])
            case ast.UnaryOp(op, operand):
                return self._call(node, OPERATIONS.get(type(op)), [operand])
            case ast.Compare(left, [op], [right]):
                return self._call(node, OPERATIONS.get(type(op)), [left, right])
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(node, FUNCTIONS.get(name), arguments)
            case ast.List(parts):
                return self._call(node, _list, parts)
            case ast.Subscript(value, index):
                return self._call(node, operator.getitem, [value, index])
        raise _unknown(node)

    def _bool_op(self, decisive: bool, operands: list[Expression]) -> Expression:
        """Compile `or` if `decisive` is True, else `and`.

        The result is the first operand with the truth value `decisive`, else the last operand."""

        def compute() -> int | list[int] | None:
            for operand in operands:
                value = operand()
                if bool(value) == decisive:
                    return value
            # No operand has the truth value `decisive`, so the result is the last operand. The next
            # line computes the last operand again, so the steps of this operand count twice.
            return operands[-1]()

        return compute

    def _call(
        self, node: ast.expr, function: Callable | None, arguments: list[ast.expr]
    ) -> Expression:
        """Compile a call. `function` is None if the operator or function of `node` is unknown."""
        if function is None:
            raise _unknown(node)
        operands = [self.expression(argument) for argument in arguments]

        def compute() -> int | list[int]:
            self.count_step()
            value = function(*[operand() for operand in operands])
            if isinstance(value, list):
                too_large = len(value) > MAX_LENGTH
            else:
                too_large = abs(value) > MAX_NUMBER
            if too_large:
                raise ProgramError("too large")
            return value

        return compute


def _unknown(node: ast.AST) -> ProgramError:
    return ProgramError(f"{ast.unparse(node)} is not known")
