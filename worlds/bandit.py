"""Bandit: the two-armed bandit of RAGEN."""

from configurator import UserError

import numpy as np

from envs import Env, Move


class Bandit(Env):
    """The policy chooses once between two arms, and knows only their names.

    The low arm always pays 0.1. The high arm pays 1 with probability 0.25, else 0.
    """

    # Maps a value of the option `pair` to one or more pairs of arms. A pair is written LOW/HIGH.
    # A game draws one of these pairs.
    PAIRS = {
        "phoenix": "Phoenix/Dragon",
        "trader": "Trader/Librarian",
        "engineer": "Engineer/Teacher",
        "teacher": "Teacher/Engineer",
        "librarian": "Librarian/Trader",
        "jobs": "Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker "
        "Engineer/RealEstateAgent Pharmacist/Musician Clerk/Freelancer Technician/Youtuber "
        "Planner/Artist Postman/Pilot Banker/VentureCapitalist Gardener/Cryptominer",
        "jobs_test": "Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant "
        "SocialWorker/Photographer Mechanic/GameDesigner Secretary/Entrepreneur "
        "Cashier/DataScientist CivilServant/StartupAccelerator",
    }
    LOW_REWARD = 0.1
    HIGH_PROB = 0.25  # probability that the high arm pays 1
    repeats = True  # a pair of arms has only two orders, so training and evaluation share prompts

    def __init__(self, *, pair: str = "phoenix", **common):
        common["max_actions"] = 1
        super().__init__(**common)
        if pair not in self.PAIRS:
            raise UserError(f"bandit pair must be one of {', '.join(self.PAIRS)}, got {pair!r}")
        self.pair = pair

    def draw(self, rng: np.random.Generator) -> tuple:
        low, high = rng.choice(self.PAIRS[self.pair].split()).split("/")
        high_is_first = bool(rng.integers(2))
        return ("bandit", low, high, high_is_first)

    def _start(self, instance: tuple) -> None:
        _, self.low, self.high, high_is_first = instance
        self.actions = (self.high, self.low) if high_is_first else (self.low, self.high)

    def _move(self, index: int) -> Move:
        if self.actions[index] == self.low:
            return Move(self.LOW_REWARD, terminated=True, success=False, effective=True)
        reward = float(self.rng.random() < self.HIGH_PROB)
        return Move(reward, terminated=True, success=True, effective=True)

    def why_lost(self) -> str:
        return f"chose {self.low}, which pays less on average" if self.terminated else ""

    def observe(self) -> str:
        return f"Arms: {self.actions[0]}, {self.actions[1]}"

    def rules(self) -> str:
        return (
            "Choose one of two arms by its name. Each pays by its own unknown distribution; "
            "choose the arm that pays more on average."
        )

    def statements(self) -> list[str]:
        return [f"The arms are {self.actions[0]} and {self.actions[1]}."]

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        return [self.high]

    def demonstrate(self, count: int, rng: np.random.Generator) -> list[str]:
        """Choose a random arm, so that demonstrations do not tell which arm is better.

        Only RL can find the better arm."""
        return [self.actions[rng.integers(2)]]

    def greedy(self) -> str:
        return self.low
