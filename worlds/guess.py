"""An environment of one's own: a gymnasium game with text, and its wrapper for training. See docs/environments.md.

python train.py config/frozenlake_grpo.py config/tiny.py --env=examples/guess.py:Guess,largest=50 --out_dir=out/guess
"""

import string

import gymnasium
from gymnasium.spaces import Text

from envs import Env


class Number(gymnasium.Env):
    """Guess a number of 1..largest; the answer to a guess is 'higher', 'lower' or 'right'."""

    observation_space = Text(20, charset=string.ascii_lowercase + string.digits + " ")
    action_space = Text(9, charset=string.digits)

    def __init__(self, largest: int = 100):
        self.largest = largest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret = int(
            (options or {}).get("secret") or self.np_random.integers(1, self.largest + 1)
        )
        return f"1 to {self.largest}", {}

    def step(self, action: str):
        guess = int(action)
        answer = "right" if guess == self.secret else "higher" if guess < self.secret else "lower"
        return answer, float(answer == "right"), answer == "right", False, {}


class Guess(Env):
    """The wrapper: what is drawn, what a move does, what is shown; and players to compare with."""

    repeats = True  # fewer instances than the splits need: training and evaluation share them

    def __init__(self, *, largest: int = 100, **common):
        super().__init__(**common)
        self.game = Number(largest)

    def draw(self, rng) -> tuple:
        return ("guess", int(rng.integers(1, self.game.largest + 1)))

    def _start(self, instance: tuple) -> None:
        self.text, _ = self.game.reset(seed=0, options={"secret": instance[1]})
        self.low, self.high = 1, self.game.largest

    def _read(self, action: str) -> int | None:
        return int(action) if action.isascii() and action.isdigit() and len(action) < 10 else None

    def _move(self, guess: int) -> tuple[float, bool, bool, bool]:
        self.text, reward, won, _, _ = self.game.step(str(guess))
        low, high = {"higher": (guess + 1, self.high), "lower": (self.low, guess - 1)}.get(
            self.text, (guess, guess)
        )
        self.low, self.high = max(self.low, low), min(self.high, high)
        return reward, won, won, True  # reward, is it over, is it a success, did anything change

    def observe(self) -> str:
        return (
            f"Your last guess: {self.text}." if self.num_actions else f"A number from {self.text}."
        )

    def rules(self) -> str:
        return f"Find a hidden number of 1 to {self.game.largest}. An action is a guess; higher or lower is the answer."

    def statements(self) -> list[str]:
        return [f"Between {self.low} and {self.high}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [str((self.low + self.high) // 2)]

    def random(self, count: int, rng) -> list[str]:
        return rng.integers(1, self.game.largest + 1, count).astype(str).tolist()
