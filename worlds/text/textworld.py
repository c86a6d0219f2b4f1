"""TextWorld: games of the package `textworld`, as in arXiv 2510.01132.

The package is optional. Deliberate differences from arXiv 2510.01132:
- Games run in the Python code of the package. They are not compiled for a z-machine interpreter.
- An observation states the visible facts in short sentences (see `TextWorld.statements`).
- The reward of a command is the rise of the score, divided by the largest possible score.
"""

from configurator import UserError

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dialogue import sentences_of
from envs import Move
from worlds.text.base import (
    Effects,
    Facts,
    World,
    drop_articles,
    listing,
    require_package,
)

GAMES = ("custom", "simple", "cooking")
REWARDS = ("sparse", "balanced", "dense")
GOALS = ("detailed", "brief", "none")
COOKING_ROOMS = (1, 6, 9, 12)
COOKING_INGREDIENTS = range(1, 6)
HOLDERS = ("c", "s", "oven", "stove", "toaster")  # types of things that can hold other things
STATES = (
    "open",
    "closed",
    "locked",
    "raw",
    "roasted",
    "fried",
    "grilled",
    "uncut",
    "sliced",
    "diced",
    "chopped",
)


class TextWorld(World):
    """Games of TextWorld. Training games and evaluation games differ only in their seeds.

    - `game=custom`: `w` rooms, `o` objects and a quest of `q` commands.
    - `game=simple`: a house of six fixed rooms.
    - `game=cooking`: `w` rooms and `q` ingredients.
    """

    runs_programs = True

    def __init__(
        self,
        *,
        game: str = "custom",
        w: int = 2,
        o: int = 3,
        q: int = 4,
        rewards: str = "dense",
        goal: str = "detailed",
        show: str = "none",
        **common,
    ):
        super().__init__(show=show, **common)
        if game not in GAMES or rewards not in REWARDS or goal not in GOALS:
            raise UserError(
                f"textworld needs game {_either(GAMES)}, rewards {_either(REWARDS)}, "
                f"goal {_either(GOALS)}, got game={game}, rewards={rewards}, goal={goal}"
            )
        if game == "custom" and (w < 1 or o < 0 or q < 1):
            raise UserError(
                "a custom game of textworld needs w >= 1 rooms, o >= 0 objects and "
                f"q >= 1 commands, got w={w}, o={o}, q={q}"
            )
        if game == "cooking" and (w not in COOKING_ROOMS or q not in COOKING_INGREDIENTS):
            raise UserError(
                f"a cooking game of textworld needs w {_either(COOKING_ROOMS)} rooms, "
                f"q 1 to 5 ingredients, got w={w}, q={q}"
            )
        require_package("textworld", "requirements/textworld.txt")
        self.options = (game, w, o, q, rewards, goal)

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw the seed of a game.

        `_start` makes the game later, because making a game takes half a second and some drawn
        games are never played.
        """
        return ("textworld", *self.options, int(rng.integers(2**31)))

    def _start(self, instance: tuple) -> None:
        from textworld.generator.game import GameProgression
        from textworld.generator.inform7 import Inform7Game

        self.game = textworld_game(*instance[1:])
        self.state = GameProgression(self.game)
        self.writer = Inform7Game(self.game)
        self.note = ""  # the description of what the last command examined
        self.walkthrough = []
        for command in map(drop_articles, self.game.metadata["walkthrough"]):
            # The walkthrough of a cooking game says "open X" whenever it takes food from a
            # container X or goes through a door X. Only the first "open X" is kept, because X is
            # open from then on.
            if not command.startswith("open ") or command not in self.walkthrough:
                self.walkthrough.append(command)
        self._open({}, f"Task: {self.game.objective}", self.walkthrough[-1])

    # ---------- commands

    def _commands(self, actions: list) -> list[str]:
        return [drop_articles(text) for text in self.writer.gen_commands_from_actions(actions)]

    def effects(self, facts: Facts, only: set[str] | None = None) -> Effects:
        return {command: {} for command in sorted(self._commands(self.state.valid_actions))}

    def _move(self, command: str) -> Move:
        actions = self.state.valid_actions
        action = actions[self._commands(actions).index(command)]
        self.state.update(action)
        if self.walkthrough[:1] == [command]:
            self.walkthrough.pop(0)
        self.note = self._description(command)
        changed = set(action.preconditions) != set(action.postconditions)
        move = super()._move(command)
        return move._replace(terminated=self.state.done, effective=changed)

    def _description(self, command: str) -> str:
        """Return the description of the thing that `command` examines, or "" if there is none."""
        text = ""
        for info in self.game.infos.values():
            if info.name and command == f"examine {drop_articles(info.name)}":
                text += info.desc
        # In a description, "[if open]..." begins a part that depends on the state. Keep only the
        # whole sentences before the first "[".
        fixed, conditional, _ = text.partition("[")
        return fixed.rpartition(".")[0] if conditional else fixed

    # ---------- the task

    def progress(self, facts: Facts) -> float:
        if self.state.completed:
            return 1.0
        return min(0.99, self.state.score / self.game.max_score)

    def search(self, max_length: int) -> tuple[str, ...]:
        """Return TextWorld's own plan from the present state. The plan may not be a shortest one.

        If TextWorld has no plan, return the commands of the walkthrough that are left. But if the
        first of these commands is impossible now, return ().
        """
        if self.state.done:
            return ()
        plan = self._commands(self.state.winning_policy or ())
        if not plan and self.walkthrough and self.walkthrough[0] in self.commands:
            plan = self.walkthrough
        return tuple(plan)

    # ---------- texts

    def statements(self) -> list[str]:
        """Return sentences such as "Room kitchen." about the visible facts of the game.

        If the last command examined a thing, the description of the thing follows.
        """
        infos = self.game.infos
        facts = []
        for fact in self.state.state.facts:
            names = [infos[variable.name].name or variable.name for variable in fact.arguments]
            facts.append((fact.name, *names))
        scene = Scene(holders=[info.name for info in infos.values() if info.type in HOLDERS])
        scene.read(sorted(facts))
        seen = [
            f"Room {scene.room}.",
            f"Here {scene.inside(scene.room)}.",
            f"Exits {listing(scene.exits())}.",
            f"Carrying {scene.inside('I')}.",
        ]
        return seen + sentences_of(self.note)

    def rules(self) -> str:
        return (
            "Do a task in a house; you see one room. Commands: go WAY, open X, close X, "
            "unlock X with KEY, lock X with KEY, take X, take X from Y, put X on Y, "
            "insert X into Y, drop X, eat X, look, inventory, examine X; to cook: "
            "cook X with Y, slice, chop or dice X with Y, prepare meal. Reward 1 in all, in parts."
        )


@dataclass
class Scene:
    """The facts of a game, sorted into the parts of an observation."""

    holders: list[str]  # names of the things that can hold other things
    room: str = ""
    contents: dict[str, list[str]] = field(default_factory=dict)  # place -> things
    states: dict[str, str] = field(default_factory=dict)  # thing -> states, such as "raw uncut"
    doors: dict[str, str] = field(default_factory=dict)  # room behind the door -> door
    ways: list[tuple[str, str]] = field(default_factory=list)  # (direction, room there)

    def read(self, facts: list[tuple[str, ...]]) -> None:
        """Fill the fields from facts such as ("at", "P", "kitchen"); "P" is the player."""
        for name, thing, *others in facts:
            if (name, thing) == ("at", "P"):
                self.room = others[0]
        for name, thing, *others in facts:
            if name in ("at", "in", "on") and thing != "P":
                self.contents.setdefault(others[0], []).append(thing)
            elif name in STATES:
                self.states[thing] = f"{self.states.get(thing, '')} {name}".strip()
            elif name == "link" and thing == self.room:
                door, beyond = others
                self.doors[beyond] = door
            elif name.endswith("_of") and others == [self.room]:
                self.ways.append((name.removesuffix("_of"), thing))

    def inside(self, place: str) -> str:
        return listing([self.describe(thing) for thing in self.contents.get(place, ())])

    def describe(self, thing: str) -> str:
        state = self.states.get(thing, "")
        if thing not in self.holders:
            return f"{state} {thing}".strip()
        if state in ("closed", "locked"):
            return f"{thing} ({state})"
        return f"{thing} ({self.inside(thing)})"

    def exits(self) -> list[str]:
        exits = []
        for way, room in self.ways:
            door = self.doors.get(room)
            exits.append(f"{way} ({door} {self.states[door]})" if door else way)
        return exits


@lru_cache(maxsize=512)  # cached, because all episodes of a group play the same game
def textworld_game(kind: str, w: int, o: int, q: int, rewards: str, goal: str, seed: int):
    """Make a textworld.Game like `tw-make custom`, `tw-make tw-simple` or `tw-make tw-cooking`."""
    import textworld

    options = textworld.GameOptions()
    options.seeds = seed
    if kind != "custom":
        return _challenge(kind, w, q, rewards, goal, options)
    options.nb_rooms = w
    options.nb_objects = o
    options.quest_length = q
    options.chaining.max_breadth = 5
    options.grammar.only_last_action = goal == "brief"
    game = textworld.generator.make_game(options)
    if goal == "none":
        game.objective = ""
    return game


def _challenge(kind: str, w: int, q: int, rewards: str, goal: str, options):
    from textworld.challenges import CHALLENGES

    _, make, _ = CHALLENGES[f"tw-{kind}"]
    simple_settings = {"rewards": rewards, "goal": goal, "test": False}
    cooking_settings = {
        "go": w,
        "recipe": q,
        "take": q,
        "open": True,
        "cook": True,
        "cut": True,
        "drop": True,
        "recipe_seed": 0,
        "split": None,
    }
    return make(simple_settings if kind == "simple" else cooking_settings, options)


def _either(values: tuple) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}"
