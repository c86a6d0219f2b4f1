"""`World`, the base class of four text games. `World.search` finds shortest plans.

`quest.py` and `household.py` follow the TextWorld and ALFWorld tasks of arXiv 2510.01132, at a size
for small models. `textworld.py` and `alfworld.py` play the games of the original packages.
Deliberate differences from arXiv 2510.01132:
- The return of a game is the largest share of the task that was done at any moment.
- A command that is impossible in the present state is an illegal action.
- Every observation repeats the task.
- The optimal player of `quest.py` and `household.py` searches for a shortest solution from the
  present state.
"""

from configurator import UserError

import importlib.util
from collections.abc import Sequence

import numpy as np

from envs import Env, Move

# Maps a thing to its place or state, such as "open". The value of "you" is the player's place.
Facts = dict[str, str]
# Maps a possible command to the new values of the facts that the command changes.
Effects = dict[str, Facts]

ARTICLES = ("a", "an", "the")
MAX_PLAN_LENGTH = 99


class World(Env):
    """A game whose state is a dict of facts.

    In `TextWorld` and `ALFWorld` the dict is empty, because the original package keeps the state.

    A subclass defines:
    - `relevant`: returns the things that a shortest plan may need. A subclass with its own `search`
      needs no `relevant`.
    - `effects`: returns all possible commands with the facts that they change. `search` passes
      the relevant things to `effects` as the argument `only`. If `only` is given, `effects` may
      leave out commands that a shortest plan does not need.
    - `progress`: returns the share of the task that is done, 0..1.
    - `_start`: sets up an instance and ends with a call of `_open`.
    """

    def __init__(self, *, show: str, **common):
        super().__init__(**common)
        if show not in ("none", "all"):
            raise UserError(
                f"show must be none or all, got {show!r}; show=all lists the possible commands"
            )
        self.show = show

    def _open(self, facts: Facts, task: str, final_command: str) -> None:
        """Start the game.

        Args:
            task: the text that begins every observation.
            final_command: the last command of a solution, or the aim of the task. The greedy player
                prefers commands that share words with `final_command`.
        """
        self.task = task
        self.final_words = set(final_command.split())
        self.best_progress = 0.0
        self.facts = facts
        self.commands = self.effects(facts)

    def _read(self, action: str) -> str | None:
        """Return the possible command that a text means, or None.

        Case, articles and a full stop do not matter, and `take X from Y` may omit `from Y`.
        """
        text = drop_articles(action.rstrip("."))
        for command in self.commands:
            if text in (command, command.split(" from ")[0]):
                return command
        return None

    def _move(self, command: str) -> Move:
        old_facts = self.facts
        old_best = self.best_progress
        self.facts = old_facts | self.commands[command]
        self.commands = self.effects(self.facts)
        self.best_progress = max(old_best, self.progress(self.facts))
        success = self.best_progress == 1
        reward = self.best_progress - old_best
        changed = self.facts != old_facts
        return Move(reward, terminated=success, success=success, effective=changed)

    def observe(self) -> str:
        lines = [self.task, " ".join(self.statements())]
        if self.show == "all":
            lines.append(f"Commands {', '.join(self.commands)}.")
        return "\n".join(line for line in lines if line)

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return `count` random commands. Each is possible after the previous commands.

        If `self.facts` is empty, return only one command. Without facts, `effects` knows only the
        commands that are possible now.
        """
        facts = self.facts
        commands = []
        for _ in range(count if facts else 1):
            effects = self.effects(facts)
            command = list(effects)[rng.integers(len(effects))]
            commands.append(command)
            facts = facts | effects[command]
        return commands

    def greedy(self) -> str:
        """Return the possible command that shares most words with `final_command` (see `_open`).

        If several commands share equally many words, return the first.
        """
        return max(self.commands, key=lambda name: len(self.final_words.intersection(name.split())))

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        path = self.search(MAX_PLAN_LENGTH) or ()
        return list(path[:max_actions])

    def search(self, max_length: int) -> tuple[str, ...] | None:
        """Find a shortest solution breadth-first.

        Returns: the commands; None if no solution has at most `max_length` commands.
        """
        only = self.relevant(self.facts)
        queue = [(self.facts, ())]
        seen = {tuple(self.facts.values())}
        for facts, path in queue:  # the loop also visits the states that it appends
            if self.progress(facts) == 1:
                return path
            if len(path) == max_length:
                continue
            for command, changes in self.effects(facts, only).items():
                next_facts = facts | changes
                state = tuple(next_facts.values())
                if state not in seen:
                    seen.add(state)
                    queue.append((next_facts, (*path, command)))
        return None

    def _contents(self) -> dict[str, list[str]]:
        """Map each place to its things. A thing's state precedes its name, as in 'hot apple 1'."""
        contents = {}
        for name, place in self.facts.items():
            state = self.facts.get(f"{name} is", "")
            contents.setdefault(place, []).append(f"{state} {name}".strip())
        return contents


def listing(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def drop_articles(text: str) -> str:
    """Return the text in lower case, without articles and extra spaces.

    >>> drop_articles("Open  the blue door")
    'open blue door'
    """
    return " ".join(word for word in text.lower().split() if word not in ARTICLES)


def require_package(name: str, requirements: str) -> None:
    """Check that an optional package is installed.

    Raises: UserError with the command that installs the package.
    """
    if importlib.util.find_spec(name) is None:
        raise UserError(f"{name} is not installed; install it with pip install -r {requirements}")
