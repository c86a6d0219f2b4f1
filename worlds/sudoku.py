"""Sudoku on 4x4 cells. Every puzzle has exactly one solution.

The agent can replace every digit that it wrote, so no mistake is final.

RAGEN-2 uses 9x9 cells and does not check that a puzzle has one solution. RAGEN-2's default limits
allow fewer actions than a puzzle has empty cells, so no agent can solve a puzzle within the limits.
"""

from configurator import UserError

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import numpy as np

from envs import MAX_DRAWS, Env, Move

SIZE = 4
NUM_CELLS = SIZE**2
DIGITS = range(1, SIZE + 1)
EMPTY = 0
MAX_EMPTY = 10  # boards with more empty cells rarely have only one solution
MAX_STATED = 3  # each sentence of `Sudoku.statements` lists at most this many digits
ACTION = re.compile(r"([1-4])[ ,]+([1-4])[ ,]+([1-4])")  # row, column, digit

Board = tuple[int, ...]  # the digits of the cells, row by row


def _peers(cell: int) -> tuple[int, ...]:
    """Return the other cells in the row, the column and the 2x2 box of a cell."""
    row, column = divmod(cell, SIZE)
    box = (row // 2, column // 2)
    peers = []
    for other in range(NUM_CELLS):
        other_row, other_column = divmod(other, SIZE)
        other_box = (other_row // 2, other_column // 2)
        if other != cell and (other_row == row or other_column == column or other_box == box):
            peers.append(other)
    return tuple(peers)


PEERS = tuple(map(_peers, range(NUM_CELLS)))


class Sudoku(Env):
    """Fill the empty cells of a 4x4 board."""

    def __init__(self, *, empty: int = 6, **common):
        super().__init__(**common)
        if not 1 <= empty <= MAX_EMPTY:
            raise UserError(f"sudoku needs 1..{MAX_EMPTY} empty cells, got empty={empty}")
        self.num_empty = empty

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw a full board and clear random cells. Repeat until only one solution exists."""
        boards = full_boards()
        for _ in range(MAX_DRAWS):
            board = list(boards[rng.integers(len(boards))])
            for cell in rng.permutation(NUM_CELLS)[: self.num_empty].tolist():
                board[cell] = EMPTY
            if len(list(islice(solutions(tuple(board)), 2))) == 1:
                return ("sudoku", tuple(board))
        raise UserError(f"no sudoku with {self.num_empty} empty cells in {MAX_DRAWS} attempts")

    def _start(self, instance: tuple) -> None:
        _, self.given = instance
        self.board = self.given
        self.solution = next(solutions(self.given))

    def _read(self, action: str) -> tuple[int, int] | None:
        match = ACTION.fullmatch(action)
        if not match:
            return None
        row, column, digit = map(int, match.groups())
        cell = SIZE * (row - 1) + column - 1
        return None if self.given[cell] else (cell, digit)

    def _move(self, choice: tuple[int, int]) -> Move:
        before = self.board
        self.board = write(before, *choice)
        success = self.board == self.solution
        changed = self.board != before
        return Move(float(success), terminated=success, success=success, effective=changed)

    # ---------- texts

    def observe(self) -> str:
        text = "".join(str(digit or "_") for digit in self.board)
        return "\n".join(text[start : start + SIZE] for start in range(0, NUM_CELLS, SIZE))

    def rules(self) -> str:
        return (
            "Fill the empty cells _ with 1 to 4. No row, no column and no 2x2 corner has a digit "
            "twice. An action is ROW COLUMN DIGIT, such as 2 4 1; it may replace a digit that you "
            "wrote. Reward 1."
        )

    def statements(self) -> list[str]:
        sure = sure_digits(self.board)[:MAX_STATED]
        clashing = clashes(self.board, self.given)[:MAX_STATED]
        return [f"Next {listing(sure)}.", f"Clash {listing(clashing)}."]

    # ---------- players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Correct wrong digits. Then fill the empty cells.

        Empty cells into which only one digit fits (see `sure_digits`) come first.
        """
        board = self.board
        actions = []
        while board != self.solution and len(actions) < max_actions:
            cell, digit = self._best_choice(board)
            board = write(board, cell, digit)
            actions.append(action_text(cell, digit))
        return actions

    def _best_choice(self, board: Board) -> tuple[int, int]:
        sure = dict(sure_digits(board))
        unfinished = [cell for cell in range(NUM_CELLS) if board[cell] != self.solution[cell]]

        def order(cell: int) -> tuple[bool, bool]:
            return board[cell] == EMPTY, cell not in sure

        cell = min(unfinished, key=order)  # if several cells tie, min returns the first
        return cell, self.solution[cell]

    def greedy(self) -> str:
        """Fill the first empty cell into which only one digit fits (see `sure_digits`).

        If there is no such cell, choose the first empty cell. If no cell is empty, choose the first
        cell that was not given. Write the lowest digit that fits this cell, or 1 if no digit fits.
        """
        empty = [cell for cell in range(NUM_CELLS) if self.board[cell] == EMPTY]
        writable = [cell for cell in range(NUM_CELLS) if not self.given[cell]]
        cell = (empty or writable)[0]
        choices = [*sure_digits(self.board), (cell, min(candidates(self.board, cell), default=1))]
        return action_text(*choices[0])

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        writable = [cell for cell in range(NUM_CELLS) if not self.given[cell]]
        cells = rng.choice(writable, count).tolist()
        digits = rng.choice(DIGITS, count).tolist()
        return [action_text(*choice) for choice in zip(cells, digits, strict=True)]


def action_text(cell: int, digit: int) -> str:
    row, column = divmod(cell, SIZE)
    return f"{row + 1} {column + 1} {digit}"


def listing(choices: list[tuple[int, int]]) -> str:
    return ", ".join(action_text(*choice) for choice in choices) or "none"


def write(board: Board, cell: int, digit: int) -> Board:
    return (*board[:cell], digit, *board[cell + 1 :])


def candidates(board: Board, cell: int) -> list[int]:
    """Return the digits that fit `cell`: no other cell in its row, column or box has them."""
    taken = {board[peer] for peer in PEERS[cell]}
    return [digit for digit in DIGITS if digit not in taken]


def sure_digits(board: Board) -> list[tuple[int, int]]:
    """Return (cell, digit) for each empty cell into which only one digit fits."""
    found = []
    for cell in range(NUM_CELLS):
        fitting = candidates(board, cell)
        if board[cell] == EMPTY and len(fitting) == 1:
            found.append((cell, fitting[0]))
    return found


def clashes(board: Board, given: Board) -> list[tuple[int, int]]:
    """Return (cell, digit) for the agent's digits that repeat in their row, column or box."""
    found = []
    for cell, digit in enumerate(board):
        written = digit != EMPTY and not given[cell]
        if written and any(board[peer] == digit for peer in PEERS[cell]):
            found.append((cell, digit))
    return found


def solutions(board: Board) -> Iterator[Board]:
    """Yield each way to fill the empty cells of `board` by the rules. Search depth-first."""
    if EMPTY not in board:
        yield board
        return
    cell = board.index(EMPTY)
    for digit in candidates(board, cell):
        yield from solutions(write(board, cell, digit))


@lru_cache(maxsize=1)
def full_boards() -> list[Board]:
    """Return the 288 full boards that keep the rules."""
    return list(solutions((EMPTY,) * NUM_CELLS))
