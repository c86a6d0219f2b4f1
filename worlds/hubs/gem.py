"""GEM: the text games of the package `gem-llm` (github.com/axon-rl/gem), as `--env=gem:ID`.

The package is optional. docs/hubs.md lists the deliberate differences from GEM.
"""

from configurator import UserError

import difflib
import importlib
import re
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from itertools import permutations
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from envs import Move
from worlds.hubs.hub import REQUIREMENTS, Hub, Isolation, parse_settings
from worlds.text.base import require_package

DIRECTIONS = ("up", "down", "left", "right")
BOXED = re.compile(r"\\boxed\{(.*?)\}")
# These games start slowly, so they get splits=seed (see `Hub`).
SLOW = ("Sokoban-v0-hard", "Sokoban-v0-random", "Sudoku-v0-hard", "Sudoku-v0-random")
MOVES_DRAW = ("Game2048",)  # kinds of games whose moves draw random numbers
MAX_STATES = 20_000  # `search` gives up if it has found more states than this
# gem-llm 0.1.0 cannot make these two games without these arguments. The values do not matter,
# because each game's `reset` replaces them.
REPAIRS = {
    "game:FifteenPuzzle-v0-random": {"num_rows": 2},
    "game:Crosswords-v0-random": {"hardcore": False},
}
# Maps a kind of games to the module of GEM in which `use_local_words` replaces the words.
MODULES_WITH_WORDS = {"Hangman": "hangman", "Wordle": "wordle", "WordSearch": "word_search"}
WORD_LENGTHS = range(3, 9)  # lengths of the words that `local_words` takes from a story


class Gem(Hub):
    """A text game of GEM. `name` is its id, such as game:Sudoku-v0-easy."""

    def __init__(self, *, name: str = "", settings: str = "", splits: str = "seen", **common):
        if name.removeprefix("game:") in SLOW:
            splits = "seed"
        super().__init__(splits=splits, **common)
        require_package("gem", REQUIREMENTS)
        self.name = name
        with self.isolation.run():
            defaults = find_game(name)
        self.arguments = REPAIRS.get(name, {}) | parse_settings(settings)
        # If an argument is None, GEM draws its value at the start of each game, so the rules vary.
        self.has_fixed_rules = None not in (defaults | self.arguments).values()
        self.kind = KINDS.get(kind_of(name), OTHER)

    # ---------- instances

    def begin(self, seed: int) -> str:
        """Start the game of this seed.

        If the rules vary, return the rules and the board. Otherwise return only the board."""
        self.isolation.seed(seed)
        with self.isolation.run():
            self.game = make_game(self.name, self.arguments)
            instructions, info = self.game.reset(seed)
        self.instructions = with_answer_tags(instructions)
        self.board = info.get("suffix", "")
        self.note = "" if self.board else "The game begins."
        if self.has_fixed_rules:
            return self.board
        # GEM puts random example actions in \boxed{}. `Hub.key` takes the returned text as the key
        # of the game, and equal games need equal keys. So the examples are removed.
        return BOXED.sub("", instructions) + self.board

    def _start(self, instance: tuple) -> None:
        _, seed, _ = instance
        self.begin(seed)
        if kind_of(self.name) in MOVES_DRAW:
            self.isolation.seed(int(self.rng.integers(2**31)))
        self.limit_actions(vars(self.game).get("max_turns"))

    # ---------- the game

    def _read(self, action: str) -> str | None:
        text = " ".join(action.lower().split())
        return text if self.kind.pattern.fullmatch(text) else None

    def _move(self, action: str) -> Move:
        board = self.board
        with self.isolation.run():
            self.note, reward, terminated, truncated, info = self.game.step(f"\\boxed{{{action}}}")
        self.board = info.get("suffix", "")
        won = terminated and not truncated and self.note.startswith("Congratulations")
        changed = self.kind.guesses or won or self.board != board
        return Move(reward, terminated=terminated or truncated, success=won, effective=changed)

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return [self.kind.random(self.game, rng) for _ in range(count)]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        if self.terminated:
            return []
        if self.kind.plan is None:
            raise UserError(f"gem:{self.name} has no reference player but random")
        return self.kind.plan(self.game)[:max_actions]

    # ---------- texts

    def observe(self) -> str:
        instructions = "" if self.has_fixed_rules else self.instructions
        texts = (instructions, self.note, self.board)
        return "\n".join(text.strip() for text in texts if text.strip())

    def rules(self) -> str:
        if self.has_fixed_rules:
            return first_instructions(self.name, tuple(self.arguments.items()))
        return "A game of GEM. Its size differs from game to game, so each message has its rules."


# ---------- the package


def kind_of(name: str) -> str:
    """Return 'Sudoku' for 'game:Sudoku-v0-easy'."""
    return name.removeprefix("game:").split("-")[0]


def find_game(name: str) -> dict[str, Any]:
    """Return the default arguments of a game. Raises: UserError if GEM has no game `name`."""
    from gem.envs.registration import ENV_REGISTRY

    games = [key for key in ENV_REGISTRY if key.startswith("game:")]
    if name not in games:
        near = difflib.get_close_matches(name, games, n=3, cutoff=0.4) or games[:3]
        raise UserError(f"gem has no game {name!r}; did you mean gem:{' or gem:'.join(near)}?")
    return ENV_REGISTRY[name].kwargs


def make_game(name: str, arguments: dict[str, Any]) -> Any:
    """Make a game of GEM. Its first state is random, so call `reset` with a seed next."""
    from gem.envs.registration import make

    module_name = MODULES_WITH_WORDS.get(kind_of(name))
    if module_name:
        use_local_words(module_name)
    return make(name, **arguments)


@lru_cache
def first_instructions(name: str, arguments: tuple) -> str:
    """Return the instructions of the game with seed 0.

    `Gem.rules` uses these instructions for all seeds if the rules are fixed."""
    with Isolation().run():
        instructions, _ = make_game(name, dict(arguments)).reset(0)
    return with_answer_tags(instructions)


def with_answer_tags(text: str) -> str:
    r"""Replace \boxed{} in instructions by <answer>, the tag of this repository.

    >>> with_answer_tags(r"Type \boxed{up}.")
    'Type <answer>up</answer>.'
    """
    return BOXED.sub(r"<answer>\1</answer>", text).strip()


def use_local_words(module_name: str) -> None:
    """Make a word game use words of reasoning-gym, because NLTK would download its own words."""
    module = importlib.import_module(f"gem.envs.game_env.{module_name}")
    module.words = SimpleNamespace(words=local_words)
    module.nltk = SimpleNamespace(download=lambda name: True)


@lru_cache
def local_words(language: str) -> list[str]:
    """Return the words used instead of NLTK's word list `language`.

    The words of "en" come from a dictionary. The words of "en-basic" come from a story."""
    from reasoning_gym.data import read_data_file

    if language == "en":
        return read_data_file("words3to10.txt").split()
    words = set(re.findall(r"\b[a-z]+\b", read_data_file("in_the_year_2889.txt")))
    return sorted(word for word in words if len(word) in WORD_LENGTHS)


# ---------- random players: each function maps (game, rng) to an action


def random_direction(game: Any, rng: np.random.Generator) -> str:
    return str(rng.choice(DIRECTIONS))


def random_number(game: Any, rng: np.random.Generator) -> str:
    return str(rng.integers(game.min_number, game.max_number + 1))


def random_code(game: Any, rng: np.random.Generator) -> str:
    digits = rng.permutation(game.num_numbers)[: game.code_length] + 1
    return " ".join(map(str, digits))


def random_reveal(game: Any, rng: np.random.Generator) -> str:
    return f"reveal {rng.integers(game.rows)} {rng.integers(game.cols)}"


def random_word(game: Any, rng: np.random.Generator) -> str:
    return str(rng.choice(game.available_words))


def random_letter(game: Any, rng: np.random.Generator) -> str:
    return str(rng.choice(list("abcdefghijklmnopqrstuvwxyz")))


def random_digit(game: Any, rng: np.random.Generator) -> str:
    row, col, digit = rng.integers(1, game.scale + 1, 3)
    return f"{row} {col} {digit}"


def random_towers(game: Any, rng: np.random.Generator) -> str:
    source, target = rng.choice(list("abc"), 2, replace=False)
    return f"{source} {target}"


def random_crossing(game: Any, rng: np.random.Generator) -> str:
    row, col = rng.integers(len(game.board), size=2)
    return f"{row} {col} {random_letter(game, rng)}"


def random_span(game: Any, rng: np.random.Generator) -> str:
    row, start, end = rng.integers(len(game.game_board), size=3)
    return f"{row} {start} {row} {end}"


def random_of_game(game: Any, rng: np.random.Generator) -> str:
    isolation = Isolation()
    isolation.seed(int(rng.integers(2**31)))
    with isolation.run():
        action = game.sample_random_action()
    return action.removeprefix("\\boxed{").removesuffix("}")


# ---------- reference players: each function maps a game to actions
# The actions depend only on what a player can know.


def plan_sudoku(game: Any) -> list[str]:
    """Write the missing digits. A player can infer them, because the solution is unique."""
    cells = []
    for row, digits in enumerate(game.full_grid):
        for col, digit in enumerate(digits):
            if game.board[row][col] == 0:
                cells.append(f"{row + 1} {col + 1} {digit}")
    return cells


def plan_towers(game: Any) -> list[str]:
    def moves(towers: tuple) -> Iterator[tuple[str, tuple]]:
        for source, target in permutations(range(3), 2):
            disks = towers[source]
            if disks and (not towers[target] or towers[target][-1] > disks[-1]):
                new = list(towers)
                new[source] = disks[:-1]
                new[target] = (*towers[target], disks[-1])
                yield f"{'abc'[source]} {'abc'[target]}", tuple(new)

    start = tuple(tuple(game.board[name]) for name in "ABC")
    goal = ((), (), tuple(range(game.num_disks, 0, -1)))
    return search(start, goal, moves)


def plan_tiles(game: Any) -> list[str]:
    """Return a shortest solution, or [] if `search` finds none.

    In gem-llm 0.1.0, half of the boards of FifteenPuzzle have no solution."""
    size = game.num_rows
    sources = {"up": (1, 0), "down": (-1, 0), "left": (0, 1), "right": (0, -1)}

    def moves(tiles: tuple) -> Iterator[tuple[str, tuple]]:
        row, col = divmod(tiles.index(None), size)
        for name, (down, across) in sources.items():
            other_row, other_col = row + down, col + across
            if 0 <= other_row < size and 0 <= other_col < size:
                new = list(tiles)
                new[row * size + col] = tiles[other_row * size + other_col]
                new[other_row * size + other_col] = None
                yield name, tuple(new)

    start = tuple(tile for row in game.board for tile in row)
    return search(start, (*range(1, size * size), None), moves)


def search(start: Hashable, goal: Hashable, moves: Callable) -> list[str]:
    """Return a shortest list of actions to the goal, or [] if breadth-first search finds none.

    Args: moves: maps a state to pairs (action, next state), one pair for each legal action.
    """
    paths = {start: ()}
    queue = [start]
    for state in queue:  # the loop also visits the states that it appends
        if state == goal:
            return list(paths[state])
        if len(queue) > MAX_STATES:
            break
        for action, following in moves(state):
            if following not in paths:
                paths[following] = (*paths[state], action)
                queue.append(following)
    return []


def plan_number(game: Any) -> list[str]:
    """Guess the middle of the numbers that agree with all answers of the game."""
    low = game.min_number
    high = game.max_number
    for guess in game.previous_guesses:
        if guess < game.game_number:
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return [str((low + high) // 2)]


def plan_code(game: Any) -> list[str]:
    """Guess the first code that agrees with all answers of the game."""

    def pegs(secret: tuple, guess: tuple) -> tuple[int, int]:
        answer = marks(secret, guess)
        return answer.count("G"), answer.count("Y")

    secret = tuple(game.game_code)
    for code in permutations(range(1, game.num_numbers + 1), game.code_length):
        if all(pegs(code, guess) == pegs(secret, guess) for guess in game.previous_guesses):
            return [" ".join(map(str, code))]
    return []


def plan_word(game: Any) -> list[str]:
    """Guess the first word that agrees with all answers of the game."""
    for word in game.available_words:
        secret = word.upper()
        guesses = game.previous_guesses
        if all(marks(secret, guess) == marks(game.secret_word, guess) for guess in guesses):
            return [word]
    return []


def marks(secret: str | tuple, guess: str | tuple) -> list[str]:
    """Return a mark for each sign of a guess, as in Wordle. A sign is a letter or a number.

    G: the secret has the sign in this place. Y: the secret has the sign in another place.
    X: all other signs. Each place of the secret counts for one G or Y at most. Every G is set
    first, then each Y from left to right.

    >>> marks("abca", "aaxb")
    ['G', 'Y', 'X', 'Y']
    """
    left = [sign for sign, guessed in zip(secret, guess, strict=True) if sign != guessed]
    answer = []
    for sign, guessed in zip(secret, guess, strict=True):
        if sign == guessed:
            answer.append("G")
        elif guessed in left:
            left.remove(guessed)
            answer.append("Y")
        else:
            answer.append("X")
    return answer


def plan_letters(game: Any) -> list[str]:
    """If only one word fits all answers of the game, guess this word.

    Otherwise, for each letter not guessed yet, count the fitting words that contain it. Guess the
    letter with the highest count."""
    fitting = []
    wrong = game.guessed_letters - set(game.board)
    for word in map(str.upper, game.available_words):
        shown = [letter if letter in game.guessed_letters else "_" for letter in word]
        if shown == game.board and not wrong.intersection(word):
            fitting.append(word)
    if len(fitting) == 1:
        return [fitting[0].lower()]
    letters = sorted(set("".join(fitting)) - game.guessed_letters)
    if not letters:
        return [fitting[0].lower()]
    return [max(letters, key=lambda letter: sum(letter in word for word in fitting)).lower()]


# ---------- kinds of games


class Kind(NamedTuple):
    """The actions, the random player and the reference player of a kind of games."""

    pattern: re.Pattern  # matches each lower-case action that the game can read
    random: Callable[[Any, np.random.Generator], str]
    plan: Callable[[Any], list[str]] | None = None
    guesses: bool = False  # whether a move is effective even if the board stays the same


NUMBER = r"[0-9]{1,3}"
DIRECTION = re.compile("|".join(DIRECTIONS))
OTHER = Kind(re.compile(r"[^{}]+"), random_of_game, guesses=True)
KINDS = {
    "Crosswords": Kind(re.compile(rf"{NUMBER} {NUMBER} [a-z]"), random_crossing, guesses=True),
    "FifteenPuzzle": Kind(DIRECTION, random_direction, plan_tiles),
    "Game2048": Kind(DIRECTION, random_direction),
    "GuessTheNumber": Kind(re.compile(r"[1-9][0-9]{0,2}"), random_number, plan_number, True),
    "Hangman": Kind(re.compile(r"[a-z]+"), random_letter, plan_letters, True),
    "Mastermind": Kind(re.compile(rf"{NUMBER}( {NUMBER})*"), random_code, plan_code, True),
    "Minesweeper": Kind(re.compile(rf"(reveal|flag) {NUMBER} {NUMBER}"), random_reveal),
    "Sokoban": Kind(DIRECTION, random_direction),
    "Sudoku": Kind(re.compile(rf"{NUMBER} {NUMBER} {NUMBER}"), random_digit, plan_sudoku),
    "TowerofHanoi": Kind(re.compile(r"[abc] ?,? ?[abc]"), random_towers, plan_towers),
    "WordSearch": Kind(re.compile(rf"{NUMBER}( {NUMBER}){{3}}"), random_span, guesses=True),
    "Wordle": Kind(re.compile(r"[a-z]+"), random_word, plan_word, True),
}
