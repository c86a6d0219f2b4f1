"""Household: a text game in one room, with the six task types of ALFWorld."""

from configurator import UserError

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worlds.text.base import Effects, Facts, World, listing


class Task(NamedTuple):
    """A task type. `tool` and `state` are "" if nothing must be cleaned, heated or cooled."""

    text: str
    tool: str = ""  # the kind of place that cleans, heats or cools the thing
    state: str = ""  # the state that the thing must have at the end


class Room(NamedTuple):
    """The kinds of places and things in a room, separated by spaces."""

    places: str  # a kind with n places appears n times
    things: str


TASKS = {
    "place": Task("put some {thing} in/on {target}"),
    "two": Task("put two {thing} in/on {target}"),
    "light": Task("look at some {thing} under the desklamp"),
    "clean": Task("put some clean {thing} in/on {target}", tool="sinkbasin", state="clean"),
    "heat": Task("put some hot {thing} in/on {target}", tool="microwave", state="hot"),
    "cool": Task("put some cool {thing} in/on {target}", tool="fridge", state="cool"),
}
ROOMS = {
    "kitchen": Room(
        places="cabinet cabinet cabinet drawer drawer counter counter table shelf "
        "fridge microwave sinkbasin",
        things="apple bread bowl cup egg lettuce mug plate potato tomato",
    ),
    "bathroom": Room(
        places="cabinet cabinet drawer drawer counter shelf shelf garbagecan toilet sinkbasin",
        things="cloth soapbar spraybottle candle towel",
    ),
    "bedroom": Room(
        places="bed desk drawer drawer drawer dresser shelf shelf table garbagecan",
        things="book cd cellphone keychain pen pencil pillow",
    ),
    "livingroom": Room(
        places="sofa armchair armchair table table drawer drawer shelf shelf garbagecan",
        things="book creditcard keychain newspaper remotecontrol statue vase watch",
    ),
}
READING_ROOMS = ["bedroom", "livingroom"]
OPENABLE = ("cabinet", "drawer", "fridge", "microwave")
LAMP = "desklamp 1"
START = "the middle of the room"


class Household(World):
    """A room with numbered places.

    The player sees only the things at its own place, and carries at most one thing.
    """

    def __init__(self, *, task: str = "all", things: int = 8, show: str = "none", **common):
        super().__init__(show=show, **common)
        if task not in (*TASKS, "all") or not 2 <= things <= 30:
            raise UserError(
                f"household needs 2 to 30 things, and task=all or one of {', '.join(TASKS)}; "
                f"got task={task}, things={things}"
            )
        self.tasks = list(TASKS) if task == "all" else [task]
        self.num_things = things

    # ---------- instances

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw an instance.

        Returns: ("household", room, task type, kind of the wanted thing, kind of the target place,
            place of the lamp or "", tuple of pairs (thing, place)).
        """
        task = str(rng.choice(self.tasks))
        room = str(rng.choice(_rooms_for(task)))
        kinds = ROOMS[room].things.split()
        place_kinds = ROOMS[room].places.split()
        places = numbered(place_kinds)

        wanted = str(rng.choice(kinds))
        target = "desklamp" if task == "light" else str(rng.choice(place_kinds))
        needed = [wanted, wanted] if task == "two" else [wanted]
        chosen = [*needed, *rng.choice(kinds, self.num_things)][: self.num_things]
        elsewhere = [place for place in places if kind_of(place) != target]
        spots = [str(rng.choice(elsewhere if kind == wanted else places)) for kind in chosen]
        lamp = str(rng.choice(places))
        if task != "light":
            lamp = ""
        things = tuple(zip(numbered(chosen), spots, strict=True))
        return ("household", room, task, wanted, target, lamp, things)

    def key(self, instance: tuple) -> tuple:
        """Return the same key for instances that differ only in the numbering of things."""
        *parts, things = instance
        return (*parts, *sorted((kind_of(name), place) for name, place in things))

    def _start(self, instance: tuple) -> None:
        _, room, self.task_type, wanted, target, self.lamp, things = instance
        self.places = numbered(ROOMS[room].places.split())
        self.things = [name for name, _ in things]
        self.wanted = [name for name in self.things if kind_of(name) == wanted]
        self.targets = [name for name in self.places if kind_of(name) == target]

        facts = {"you": START, LAMP: "off"}
        for place in self.places:
            if kind_of(place) in OPENABLE:
                facts[place] = "closed"
        facts |= dict(things)
        for name in self.things:
            facts[f"{name} is"] = ""

        aim = TASKS[self.task_type].text.format(thing=wanted, target=target)
        self._open(facts, f"Places: {', '.join(self.places)}.\nTask: {aim}.", aim)

    # ---------- commands

    def effects(self, facts: Facts, only: set[str] | None = None) -> Effects:
        place = facts["you"]
        held = next((name for name in self.things if facts[name] == "you"), "")
        effects = {}
        for other in self.places:
            if other != place and (only is None or other in only):
                effects[f"go to {other}"] = {"you": other}
        if facts.get(place) == "closed":
            effects[f"open {place}"] = {place: "open"}
        else:
            if place in facts and only is None:
                effects[f"close {place}"] = {place: "closed"}
            if held:
                effects |= self._putting(held, place, only)
            else:
                effects |= self._taking(facts, only)
        if held:
            effects |= self._treating(held, place)
        if place == self.lamp and facts.get(place) != "closed":
            effects[f"use {LAMP}"] = {LAMP: "off" if facts[LAMP] == "on" else "on"}
        return effects

    def _putting(self, held: str, place: str, only: set[str] | None) -> Effects:
        useful = self.places
        if only is not None and held in self.wanted:
            useful = self.targets
        return {f"put {held} in/on {place}": {held: place}} if place in useful else {}

    def _taking(self, facts: Facts, only: set[str] | None) -> Effects:
        effects = {}
        for name in self.things:
            if facts[name] == facts["you"] and (only is None or name in only):
                effects[f"take {name} from {facts['you']}"] = {name: "you"}
        return effects

    def _treating(self, held: str, place: str) -> Effects:
        effects = {}
        for verb, task in TASKS.items():
            if kind_of(place) == task.tool:
                effects[f"{verb} {held} with {place}"] = {f"{held} is": task.state}
        return effects

    # ---------- the task

    def relevant(self, facts: Facts) -> set[str]:
        """Return the things and places that a shortest plan may need.

        `World.search` passes these things and places to `effects` as the argument `only`.

        If several target places are in the same state, such as closed, a shortest plan needs only
        one of these places. So only the first of these places is returned. But the player's
        place and the places of wanted things are always returned."""
        tool = TASKS[self.task_type].tool
        targets = {}
        for place in self.targets:
            targets.setdefault(facts.get(place), place)
        only = {facts["you"], self.lamp, *self.wanted, *targets.values()}
        only.update(facts[name] for name in self.wanted)
        only.update(place for place in self.places if kind_of(place) == tool)
        return only

    def progress(self, facts: Facts) -> float:
        """Return the share of the task's steps that are done, 0..1.

        The task `place` has two steps: to hold the thing, and to store the thing in the target. A
        stored thing counts as held. The tasks `clean`, `heat` and `cool` have a third step: to
        clean, heat or cool the thing. For these tasks, a thing in the target counts as stored and
        held only after this step. The task `two` has the steps of `place` for each of two things,
        and both things must be stored in the same place. The task `light` has two steps: to hold
        the thing, and to be at the lit lamp. The lamp step counts only while the player holds the
        thing.
        """
        if self.lamp:
            return self._reading_progress(facts)
        task = TASKS[self.task_type]
        num_wanted = 2 if self.task_type == "two" else 1
        num_steps = 3 if task.state else 2
        most_done = 0
        for target in self.targets:
            done = sorted(self._steps_done(name, target, facts) for name in self.wanted)
            most_done = max(most_done, sum(done[-num_wanted:]))
        return most_done / (num_wanted * num_steps)

    def _reading_progress(self, facts: Facts) -> float:
        if all(facts[name] != "you" for name in self.wanted):
            return 0.0
        at_light = facts[LAMP] == "on" and facts["you"] == self.lamp
        return 1.0 if at_light else 0.5

    def _steps_done(self, name: str, target: str, facts: Facts) -> int:
        state = TASKS[self.task_type].state
        treated = not state or facts[f"{name} is"] == state
        stored = treated and facts[name] == target
        held = facts[name] == "you" or stored
        steps = [held, treated, stored] if state else [held, stored]
        return sum(steps)

    # ---------- texts

    def statements(self) -> list[str]:
        place = self.facts["you"]
        contents = self._contents()
        seen = [name for name in contents[place] if name != "you"]
        if place == self.lamp:
            seen.append(f"{LAMP} {self.facts[LAMP]}")
        inside = "closed" if self.facts.get(place) == "closed" else listing(seen)
        return [f"At {place} ({inside}).", f"Carrying {listing(contents.get('you', ()))}."]

    def rules(self) -> str:
        return (
            "Do a task in a room; you see what is where you are and carry one thing. "
            "Commands: go to PLACE, open PLACE, close PLACE, take X from PLACE, put X in/on PLACE, "
            "clean X with sinkbasin 1, heat X with microwave 1, cool X with fridge 1, "
            f"use {LAMP}. Reward 1 in all, in parts."
        )


def kind_of(name: str) -> str:
    """Return the kind in a name, such as 'drawer' in 'drawer 2'."""
    return name.split()[0]


def numbered(kinds: Sequence[str]) -> list[str]:
    """Number the items of each kind from 1.

    >>> numbered(["bed", "shelf", "shelf"])
    ['bed 1', 'shelf 1', 'shelf 2']
    """
    counts = Counter()
    names = []
    for kind in kinds:
        counts[kind] += 1
        names.append(f"{kind} {counts[kind]}")
    return names


def _rooms_for(task: str) -> list[str]:
    if task == "light":
        return READING_ROOMS
    tool = TASKS[task].tool
    return [name for name, room in ROOMS.items() if tool in room.places]
