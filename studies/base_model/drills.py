"""Drills: dialogues that ask questions about a board. They teach the tiny base model to read."""

from configurator import Config

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dialogue import Episode, TurnOutcome, TurnRecord
from grids import FrozenLake, Grid
from rollout import Trajectory

# Kinds of questions to draw from. A kind that is listed twice is drawn twice as often.
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
    """One question and its answer."""

    question: str = ""
    truth: str = ""
    answer: str = ""


class Drill(Episode):
    """Questions about a board of a grid world; a turn earns 1 for the right answer.

    Each question shows the board. If a question is a move, the move never slips, and later
    questions are about the board after it."""

    def __init__(self, env: Grid, questions: list[str], rng: np.random.Generator):
        super().__init__(env, Config())
        self.questions = questions
        self.rng = rng
        self.truth = ""  # the answer to the present question
        if isinstance(env, FrozenLake):
            env.success_rate = 1.0

    def system(self) -> str:
        return f"{self.env.rules()}\nAnswer questions about the board."

    def _turn_text(self, observation: str, report: str = "") -> str:
        question = self.questions[self.turn_idx]
        self.truth = self._answer(question)
        return f"{observation}\n{question}?"

    def _answer(self, question: str) -> str:
        """The right answer to a question. A question that is a move also changes the board."""
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
    """Random questions about a board of this environment."""
    lines = [f"{kind} {i + 1}" for kind in ("Row", "Column") for i in range(env.size)]
    choices = {"line": lines, "move": env.actions}
    questions = []
    for kind in rng.choice(KINDS, count):
        questions.append(str(rng.choice(choices.get(kind, [kind]))))
    return questions


def score_reading(drills: Sequence[Trajectory]) -> dict[str, float]:
    """The share of right answers for each kind of fact.

    Answers to Where count by part: the player, the goal or all targets, all holes or all boxes.
    Answers to Row and Column count by cell, and walls once more on their own. The answer to a move
    counts as a whole: the board after it."""
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
    """The parts of an answer that are scored one by one."""
    if kind == "Where":
        return answer.rstrip(".").split(". ")
    if kind in ("Row", "Column"):
        return answer.split()
    return [answer]


def scored_as(kind: str, part: str) -> list[str]:
    """The names under which a part of an answer is scored."""
    if kind == "Where":
        return [part.split()[0].lower()]
    if kind in ("Row", "Column"):
        return ["cell", "wall"] if part == "wall" else ["cell"]
    return ["next_board"]
