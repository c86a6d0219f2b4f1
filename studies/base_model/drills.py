"""Drills: dialogues that ask questions about a board, to teach the base model to read boards."""

from configurator import Config

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dialogue import Episode, TurnOutcome, TurnRecord
from rollout import Trajectory
from worlds.grids import FrozenLake, Grid

# The kinds of questions. A kind that is listed four times is drawn four times as often as a kind
# that is listed once. "line" stands for "Row 1", "Column 1" and so on. "move" stands for the name
# of an action. Every other kind, such as "Where", is itself the question.
KINDS = [
    "Where",
    "Where",
    "Where",
    "Where",
    "Around",
    "Facts",
    "Facts",
    "Plan",
    "line",
    "line",
    "line",
    "move",
    "move",
]


@dataclass
class DrillRecord(TurnRecord):
    """A question, its right answer (`truth`) and the given answer."""

    question: str = ""
    truth: str = ""
    answer: str = ""


class Drill(Episode):
    """An episode of questions about a board of a grid world. A right answer earns a reward of 1.

    The question "Left" asks for the board after the action Left. Moves do not slip. The drill
    executes the action, so later questions are about the new board."""

    def __init__(self, env: Grid, questions: list[str], rng: np.random.Generator):
        super().__init__(env, Config())
        self.questions = questions
        self.rng = rng
        self.truth = ""  # the right answer to the present question
        if isinstance(env, FrozenLake):
            env.success_rate = 1.0

    def system(self) -> str:
        return f"{self.env.rules()}\nAnswer questions about the board."

    def _turn_text(self, observation: str, report: str = "") -> str:
        question = self.questions[self.turn_idx]
        self.truth = self._answer(question)
        return f"{observation}\n{question}?"

    def _answer(self, question: str) -> str:
        """Return the right answer. If the question is an action, execute the action first."""
        env = self.env
        size = env.size
        kind, *number = question.split()
        if number:
            index = int(number[0]) - 1
            if kind == "Row":
                return env.words(range(index * size, (index + 1) * size))
            return env.words(range(index, size * size, size))
        if kind == "Plan":
            return " || ".join(env.demonstrate(5, self.rng)) or "none"
        if kind in env.actions:
            env.step(kind)
            return env.render()
        if kind == "Where":
            return env.coordinates()
        if kind == "Around":
            return env.relations()
        assert kind == "Facts", question
        return " ".join(env.statements())

    def step(self, response: str) -> TurnOutcome:
        record = DrillRecord(
            actions=[],
            question=self.questions[self.turn_idx],
            truth=self.truth,
            answer=response,
        )
        self.turn_idx += 1
        is_over = self.turn_idx == len(self.questions) or self.env.terminated
        user = "" if is_over else self._turn_text(self.env.observe())
        reward = float(response == record.truth)
        return TurnOutcome(user, reward, "success" if is_over else None, record)


def draw_questions(env: Grid, rng: np.random.Generator, count: int) -> list[str]:
    lines = [f"{kind} {i + 1}" for kind in ("Row", "Column") for i in range(env.size)]
    choices = {"line": lines, "move": env.actions}
    questions = []
    for kind in rng.choice(KINDS, count):
        questions.append(str(rng.choice(choices.get(kind, [kind]))))
    return questions


def score_reading(drills: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of right answers about each thing, such as "player" or "next_board"."""
    right = defaultdict(list)
    for drill in drills:
        for turn in drill.turns:
            record = turn.record
            kind = record.question.split()[0]
            given = answer_parts(kind, record.answer)
            for i, part in enumerate(answer_parts(kind, record.truth)):
                is_right = given[i : i + 1] == [part]
                for name in scored_as(kind, part):
                    right[name].append(is_right)
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(right.items())}


def answer_parts(kind: str, answer: str) -> list[str]:
    if kind == "Where":
        return answer.rstrip(".").split(". ")
    if kind in ("Row", "Column"):
        return answer.split()
    return [answer]


def scored_as(kind: str, part: str) -> list[str]:
    if kind == "Where":
        return [part.split()[0].lower()]
    if kind in ("Row", "Column"):
        return ["cell", "wall"] if part == "wall" else ["cell"]
    return ["next_board"]
