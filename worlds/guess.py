"""Guess a number: a game with gymnasium's interface, and a wrapper that makes it trainable.

To train:

    python train.py config/frozenlake_grpo.py config/models/tiny.py \\
        --env=worlds/guess.py:Guess,largest=50 --out_dir=out/guess
"""

import string

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from envs import Env, Move


class NumberGame(gymnasium.Env):
    """Guess a number from 1 to `largest`."""

    observation_space = Text(20, charset=string.ascii_lowercase + string.digits + " ")
    action_space = Text(9, charset=string.digits)

    def __init__(self, largest: int = 100):
        self.largest = largest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options and "secret" in options:
            self.secret = options["secret"]
        else:
            self.secret = int(self.np_random.integers(1, self.largest + 1))
        return f"1 to {self.largest}", {}

    def step(self, action: str):
        guess = int(action)
        if guess == self.secret:
            return "right", 1.0, True, False, {}
        answer = "higher" if guess < self.secret else "lower"
        return answer, 0.0, False, False, {}


class Guess(Env):
    """`NumberGame` as an environment for training."""

    repeats = True  # training and evaluation may share secrets, because there are few numbers

    def __init__(self, *, largest: int = 100, **common):
        super().__init__(**common)
        self.game = NumberGame(largest)

    def draw(self, rng: np.random.Generator) -> tuple:
        return ("guess", int(rng.integers(1, self.game.largest + 1)))

    def _start(self, instance: tuple) -> None:
        self.text, _ = self.game.reset(seed=0, options={"secret": instance[1]})
        self.low = 1  # the answers so far imply low <= secret <= high
        self.high = self.game.largest

    def _read(self, action: str) -> int | None:
        is_number = action.isascii() and action.isdigit() and len(action) < 10
        return int(action) if is_number else None

    def _move(self, guess: int) -> Move:
        self.text, reward, won, _, _ = self.game.step(str(guess))
        if self.text == "higher":
            self.low = max(self.low, guess + 1)
        elif self.text == "lower":
            self.high = min(self.high, guess - 1)
        else:
            self.low = self.high = guess
        return Move(reward, terminated=won, success=won, effective=True)

    def observe(self) -> str:
        if self.num_actions == 0:
            return f"A number from {self.text}."
        return f"Your last guess: {self.text}."

    def rules(self) -> str:
        return (
            f"Find a hidden number of 1 to {self.game.largest}. "
            "An action is a guess; higher or lower is the answer."
        )

    def statements(self) -> list[str]:
        return [f"Between {self.low} and {self.high}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [str((self.low + self.high) // 2)]

    def greedy(self) -> str:
        """Guess the lowest number that agrees with all answers."""
        return str(self.low)

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return a random guess as a demonstration for SFT.

        The guess ignores the answers. So after SFT on such guesses, only RL can teach the policy to
        use "higher" and "lower"."""
        return self.random(1, rng)

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return rng.integers(1, self.game.largest + 1, count).astype(str).tolist()
