"""The text games of ALFWorld. They need the optional package `alfworld`."""

from configurator import UserError

import copy
import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from dialogue import sentences_of
from envs import Move
from worlds.text.base import Effects, Facts, require_package
from worlds.text.documents import check_plain
from worlds.text.household import LAMP, OPENABLE, ROOMS, Household, kind_of, numbered

PARTS = ("train", "valid_seen", "valid_unseen")
GOALS = {  # maps each task type of `Household` to the task type of ALFWorld
    "place": "pick_and_place_simple",
    "two": "pick_two_obj_and_place",
    "light": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
}
GAME_KEYS = ("pddl_domain", "grammar", "pddl_problem")  # the engine needs these keys in every game
IDLE_VERBS = ("look", "inventory", "examine", "help")  # commands with these verbs change nothing


class ALFWorld(Household):
    """Games of ALFWorld's data set, or games of `Household` if there is no data set.

    The data set is in the folder $ALFWORLD_DATA, by default ~/.cache/alfworld.

    If `Env.blocking` is True, each step runs in a thread. ALFWorld's engine does not support
    threads, so `Env.blocking` stays False here and games step one after another.
    """

    runs_programs = True

    def __init__(
        self,
        *,
        task: str = "all",
        things: int = 8,
        part: str = "train",
        show: str = "none",
        **common,
    ):
        super().__init__(task=task, things=things, show=show, **common)
        if part not in PARTS:
            raise UserError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
        require_package("alfworld", "requirements/alfworld.txt")
        data = os.environ.get("ALFWORLD_DATA", Path.home() / ".cache/alfworld")
        self.folder = Path(data, "json_2.1.1", part)
        # The parts valid_seen and valid_unseen have too few games to give each split its own games.
        # So in these parts, training and evaluation may share games.
        self.repeats = part != "train"

    # ---------- instances

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw ("alfworld", file name), or an instance of `Household` if there is no data set."""
        names = game_files(self.folder, tuple(GOALS[task] for task in self.tasks))
        if not names:
            return super().draw(rng)
        for name in rng.permutation(names):
            if read_game(self.folder / name)["solvable"]:
                return ("alfworld", str(name))
        raise UserError(f"no game in {self.folder} is solvable")

    def key(self, instance: tuple) -> tuple:
        return super().key(instance) if instance[0] == "household" else instance

    def _start(self, instance: tuple) -> None:
        if instance[0] == "household":
            game = alfworld_game(instance)
        else:
            game = read_game(self.folder / instance[1])
        self.engine = start_engine(game)
        self.note = ""  # the engine's answer to the last command
        _welcome, task = self.engine.reset().feedback.split("\n\n", 1)
        task = task.replace("\n\n", "\n")
        self._open({}, task, task.split("\n")[-1].rstrip("."))

    # ---------- the game

    def effects(self, facts: Facts, only: set[str] | None = None) -> Effects:
        return {command: {} for command in self.engine.state["admissible_commands"]}

    def progress(self, facts: Facts) -> float:
        return float(self.engine.state["won"])

    def _move(self, command: str) -> Move:
        state, *_ = self.engine.step(command)
        self.note = state.feedback
        changed = command.split()[0] not in IDLE_VERBS
        return super()._move(command)._replace(effective=changed)

    def search(self, max_length: int) -> tuple[str, ...]:
        """Return the plan that ALFWorld's planner finds from the present state."""
        if self.terminated:
            return ()
        return tuple(self.engine._pddl_state.replan(self.engine._entity_infos))

    # ---------- texts

    def statements(self) -> list[str]:
        return sentences_of(self.note)

    def rules(self) -> str:
        return (
            "Do a task in a room. Commands: go to PLACE, open PLACE, close PLACE, take X from "
            "PLACE, move X to PLACE, clean X with PLACE, heat X with PLACE, cool X with PLACE, "
            "use X, slice X with Y, look, inventory, examine X. Reward 1 for a success."
        )


# ---------- files and engine


@lru_cache
def game_files(folder: Path, goals: tuple[str, ...]) -> list[str]:
    """Return the game files whose task type is in `goals`, as paths relative to `folder`.

    The engine cannot play games with movable receptacles or sliced things. The list omits such
    games.
    """
    names = []
    for path in sorted(folder.glob("*/*/game.tw-pddl")):
        name = str(path.relative_to(folder))
        if name.startswith(goals) and "movable" not in name and "Sliced" not in name:
            names.append(name)
    return names


def read_game(path: Path) -> dict:
    """Read a file `game.tw-pddl`. Raises: UserError if the file is not a game."""
    try:
        check_plain(path)
        game = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a game of ALFWorld: {error}") from error
    missing = [key for key in (*GAME_KEYS, "solvable") if key not in game]
    if missing:
        raise UserError(f"{path} is not a game of ALFWorld: it has no {', '.join(missing)}")
    return game


def start_engine(game: dict):
    """Load a game into a `PddlEnv` of TextWorld. Set the names that ALFWorld displays."""
    from alfworld.agents.utils.misc import Demangler
    from textworld.envs.pddl.pddl import PddlEnv

    cache_engine_functions()
    engine = PddlEnv()
    engine.load(game)
    things = engine._entity_infos
    demangler = Demangler(game_infos=things)
    for info in things.values():
        info.name = demangler.demangle_alfred_name(info.id)
    return engine


@lru_cache
def cache_engine_functions() -> None:
    """Make the engine faster: cache three slow functions, and let `copy_context` copy less.

    Without the caches, the engine parses its grammar about 50 times per step. The caches shorten a
    step from 48 ms to 2 ms on one CPU core. Observations stay the same.
    """
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    parse_grammar = lru_cache(maxsize=None)(textgen._parse_and_convert)

    def parse_and_copy(*args, **kwargs):
        return copy.deepcopy(parse_grammar(*args, **kwargs))  # callers change the result

    def copy_context(context: dict) -> dict:
        variables = dict(context["variables"])
        mapping = dict(context["mapping"])
        return context | {"variables": variables, "mapping": mapping}

    textgen._parse_and_convert = parse_and_copy
    textgen.copy_context = copy_context
    Rule.parse_conjunctive_query = staticmethod(lru_cache(None)(Rule.parse_conjunctive_query))
    fast_downward.pddl2sas = lru_cache(maxsize=64)(fast_downward.pddl2sas)


# ---------- games of Household in ALFWorld's format


def alfworld_game(instance: tuple) -> dict:
    """Convert an instance of `Household` to the content of a file `game.tw-pddl`."""
    from alfworld.gen.goal_library import gdict
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    _, room, task, wanted, target, lamp, things = instance
    places = numbered(ROOMS[room].places.split())
    thing_places = dict(things)
    if lamp:
        thing_places[LAMP] = lamp
    objects, facts = _types(places, list(thing_places))
    for place in places:
        _add_place(place, objects, facts)
    for thing, place in thing_places.items():
        _add_thing(thing, place, objects, facts)

    goal = gdict[GOALS[task]]
    words = {"obj": wanted, "recep": target, "toggle": "desklamp", "mrecep": ""}
    problem = (
        f"(define (problem one) (:domain alfred) (:objects {' '.join(objects)}) "
        f"(:init {' '.join(facts)})"
    )
    # goal["pddl"] also closes the parenthesis of "(define"
    problem += goal["pddl"].replace("#", "-").format(**words)
    goal_text = goal["templates"][0].format(**words)
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace("UNKNOWN GOAL", goal_text)
    domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    return {"pddl_domain": domain, "grammar": grammar, "pddl_problem": problem}


def _types(places: list[str], things: list[str]) -> tuple[list[str], list[str]]:
    """Return the PDDL objects and facts for the player, its first location and all types."""
    place_types = {f"{kind_of(place)}Type" for place in places}
    thing_types = {f"{kind_of(thing)}Type" for thing in things}
    # the PDDL domain mentions the five types below, so every room must declare them
    declared_places = place_types | {"sinkbasinType", "microwaveType", "fridgeType"}
    declared_things = thing_types | {"knifeType", "butterknifeType"}
    objects = ["agent1 - agent", "spot0 - location"]
    objects += [f"{name} - rtype" for name in sorted(declared_places)]
    objects += [f"{name} - otype" for name in sorted(declared_things)]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 spot0)"]
    for place_type in sorted(place_types):
        facts += [f"(canContain {place_type} {thing_type})" for thing_type in sorted(thing_types)]
    return objects, facts


def _add_place(place: str, objects: list[str], facts: list[str]) -> None:
    name = _mangled(place)
    objects.append(f"at_{name} - location")
    objects.append(f"{name} - receptacle")
    facts.append(f"(receptacleAtLocation {name} at_{name})")
    facts.append(f"(receptacleType {name} {kind_of(place)}Type)")
    if kind_of(place) in OPENABLE:
        facts.append(f"(openable {name})")


def _add_thing(thing: str, place: str, objects: list[str], facts: list[str]) -> None:
    name = _mangled(thing)
    place_name = _mangled(place)
    objects.append(f"{name} - object")
    facts.append(f"(objectType {name} {kind_of(thing)}Type)")
    facts.append(f"(inReceptacle {name} {place_name})")
    facts.append(f"(objectAtLocation {name} at_{place_name})")
    uses = ["pickupable", "cleanable", "heatable", "coolable"]
    if thing == LAMP:
        uses = ["toggleable"]
    for use in uses:
        facts.append(f"({use} {name})")


def _mangled(name: str) -> str:
    """Return ALFWorld's identifier of a thing or place: 'mug_bar_1' for 'mug 1'."""
    kind, number = name.split()
    if kind == "sinkbasin":  # ALFWorld adds the word sink, as in sink_bar_1_bar_sinkbasin
        return f"sink_bar_{number}_bar_{kind}"
    return f"{kind}_bar_{number}"
