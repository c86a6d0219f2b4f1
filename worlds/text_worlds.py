"""Quest and Household: text worlds behind the protocol of `envs.Env`, with nothing to download.

They follow the TextWorld and ALFWorld tasks of arXiv 2510.01132 at a size for small models. What differs, on purpose:
- an episode earns the largest share of the task that was done at any time: 1 for a success, less for all else;
- a command that is not possible now is no action, and the objective is part of every observation;
- optimal lengths are those of a breadth-first search from the present state, not of a recorded solution.
"""

from configurator import UserError

from collections.abc import Sequence

import numpy as np

from envs import MAX_DRAWS, Env

Facts = dict[str, str]  # thing -> where or how it is; "you" -> where the player is


class World(Env):
    """What Quest and Household share: facts, commands that change some of them, plans by breadth-first search.

    A subclass defines `effects` (possible commands with what they change; with `only` those of use when nothing but
    these things matters), `relevant` (what a shortest plan may deal with), `progress` (the share of the task that is
    done) and `_start`, which ends in `_open`."""

    def __init__(self, *, show: str, **common):
        super().__init__(**common)
        if show not in ("none", "all"):
            raise UserError(
                f"show must be none, or all for a list of the possible commands, got {show!r}"
            )
        self.show = show

    def _open(self, facts: Facts, task: str, aim: str) -> None:
        self.task, self.aim, self.best = task, set(aim.split()), 0.0
        self.facts, self.commands = facts, self.effects(facts)

    def _read(self, action: str) -> str | None:
        """A possible command; case, articles, a full stop and where something is taken from do not matter."""
        text = " ".join(
            word for word in action.lower().rstrip(".").split() if word not in ("a", "an", "the")
        )
        return next(
            (name for name in self.commands if text in (name, name.split(" from ")[0])), None
        )

    def _move(self, command: str) -> tuple[float, bool, bool, bool]:
        old, before, self.facts = self.facts, self.best, self.facts | self.commands[command]
        self.commands, self.best = self.effects(self.facts), max(before, self.progress(self.facts))
        return self.best - before, self.best == 1, self.best == 1, self.facts != old

    def observe(self) -> str:
        commands = f"Commands {', '.join(self.commands)}." if self.show == "all" else ""
        return "\n".join(filter(None, [self.task, " ".join(self.statements()), commands]))

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        """Random commands, each possible after those before it; one where no facts tell what comes after."""
        facts, names = self.facts, []
        for _ in range(count if facts else 1):
            effects = self.effects(facts)
            names.append(list(effects)[rng.integers(len(effects))])
            facts = facts | effects[names[-1]]
        return names

    def greedy(self) -> str:
        """The possible command with most words of the task's last command; ties: the first."""
        return max(self.commands, key=lambda name: len(self.aim.intersection(name.split())))

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """The first `max_actions` commands of a shortest solution from here."""
        return list((self.search(99) or ())[:max_actions])

    def search(self, most: int) -> tuple[str, ...] | None:
        """A shortest list of at most `most` commands that does the task, or None."""
        only, queue, seen = (
            self.relevant(self.facts),
            [(self.facts, ())],
            {tuple(self.facts.values())},
        )
        for facts, path in queue:  # which grows meanwhile
            if self.progress(facts) == 1:
                return path
            for command, changes in self.effects(facts, only).items() if len(path) < most else ():
                after = facts | changes
                if (key := tuple(after.values())) not in seen:
                    seen.add(key)
                    queue.append((after, (*path, command)))
        return None

    def _inside(self) -> dict[str, list[str]]:
        """Place -> the names of the things there, with what is said of them."""
        inside = {}
        for name, place in self.facts.items():
            inside.setdefault(place, []).append(
                f"{self.facts.get(f'{name} is', '')} {name}".strip()
            )
        return inside


def listing(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


class Quest(World):
    """Fetch something in a house of w rooms and o objects: furniture, keys, things to carry. Doors come on top. The
    task takes exactly q commands: no shorter way does it."""

    WAYS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
    BACK = {"north": "south", "east": "west", "south": "north", "west": "east"}
    ROOMS = (
        "kitchen",
        "pantry",
        "bedroom",
        "bathroom",
        "cellar",
        "attic",
        "garage",
        "office",
        "garden",
    )
    COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey", "silver", "golden")
    BOXES, TABLES = (
        ("chest", "box", "cabinet", "safe", "crate"),
        ("table", "shelf", "desk", "bench", "stand"),
    )
    ITEMS = (
        "apple",
        "book",
        "coin",
        "lamp",
        "rope",
        "cup",
        "hat",
        "map",
        "pen",
        "ring",
        "bell",
        "clock",
        "brush",
    )
    MAX_DOORS, MAX_GOALS = 3, 9  # of a house; that are tried in one

    def __init__(
        self,
        *,
        w: int = 2,
        o: int = 3,
        q: int = 4,
        goal: str = "full",
        show: str = "none",
        **common,
    ):
        super().__init__(show=show, **common)
        if not (1 <= w <= 9 and 2 <= o <= 16 and 1 <= q <= 12 and goal in ("full", "last", "none")):
            raise UserError(
                "quest wants w 1..9 rooms, o 2..16 objects, q 1..12 commands, goal full, last or none, "
                f"got w={w}, o={o}, q={q}, goal={goal}"
            )
        self.num_rooms, self.num_objects, self.length, self.told = w, o, q, goal

    def draw(self, rng: np.random.Generator) -> tuple:
        for _ in range(MAX_DRAWS):
            house, goals = self._house(rng)
            for goal in rng.permutation(goals)[: self.MAX_GOALS].tolist():
                self._start((*house, tuple(goal), ()))
                path = self.search(self.length)
                if path and len(path) == self.length:
                    return (*house, tuple(goal), path)
        raise UserError(
            f"no quest with w={self.num_rooms}, o={self.num_objects}, q={self.length} in {MAX_DRAWS} "
            "attempts; use a smaller q, or more rooms and objects"
        )

    def _house(self, rng: np.random.Generator) -> tuple[tuple, list]:
        """("quest", links, furniture, first facts), and (thing, place) to ask for. Rooms are a tree on a grid."""
        rooms, colours = (
            rng.permutation(self.ROOMS)[: self.num_rooms].tolist(),
            rng.permutation(self.COLOURS).tolist(),
        )
        cells, links, facts = {(0, 0): rooms[0]}, [], {"you": rooms[rng.integers(len(rooms))]}
        while len(cells) < len(rooms):
            near, way = list(cells)[rng.integers(len(cells))], list(self.WAYS)[rng.integers(4)]
            cell = tuple(a + b for a, b in zip(near, self.WAYS[way], strict=True))
            if cell not in cells:
                cells[cell] = rooms[len(cells)]
                door = (
                    f"{colours.pop()} door"
                    if len(facts) <= self.MAX_DOORS and rng.random() < 0.5
                    else ""
                )
                facts |= {door: "closed"} if door else {}
                links.append((cells[near], way, cells[cell], door))
        furniture = rng.permutation(self.BOXES + self.TABLES)[
            : 1 + (self.num_objects - 2) // 3
        ].tolist()
        furniture = [
            f"{colours.pop()} {name}" if name in self.BOXES else name for name in furniture
        ]
        facts |= {name: "closed" for name in furniture if " " in name}
        left = self.num_objects - len(furniture)
        locked = rng.permutation(list(facts)[1:])[: rng.integers(left)].tolist()
        items = rng.permutation(self.ITEMS)[: left - len(locked)].tolist()
        facts |= dict.fromkeys(locked, "locked")
        facts |= {x: str(rng.choice(rooms + furniture)) for x in [*map(self._key, locked), *items]}
        goals = [(item, end) for item in items for end in ("you", *furniture) if facts[item] != end]
        placed = tuple((name, str(rng.choice(rooms))) for name in furniture)
        return ("quest", tuple(links), placed, tuple(facts.items())), goals

    def key(self, instance: tuple) -> tuple:
        name, links, *parts, goal, _ = instance  # in whatever order things were drawn
        both = {
            (*link, door)
            for a, way, b, door in links
            for link in ((a, way, b), (b, self.BACK[way], a))
        }
        return (name, goal, *map(frozenset, (both, *parts)))

    @staticmethod
    def _key(locked: str) -> str:
        return f"{locked.split()[0]} key"

    def _start(self, instance: tuple) -> None:
        _, links, furniture, facts, self.goal, path = instance
        self.exits, self.fixed = ({room: kind() for room in self.ROOMS} for kind in (dict, list))
        for (
            a,
            way,
            b,
            door,
        ) in links:  # exits: room -> {way: (room, door or "")}; fixed: room -> doors and furniture
            for room, name, beyond in ((a, way, b), (b, self.BACK[way], a)):
                self.exits[room][name] = (beyond, door)
                self.fixed[room] += [door] if door else []
        for name, room in furniture:
            self.fixed[room].append(name)
        self.first, text = dict(facts), f" {' ; '.join(path)} "
        self.movable = [
            name for name, state in facts if name != "you" and state not in ("closed", "locked")
        ]
        self.parts = [
            name for name in self.first if f" {name} " in text
        ]  # what the plan takes, unlocks or opens
        shown = {"full": path, "last": path[-1:], "none": ()}[self.told]
        self._open(self.first, f"Task: {', '.join(shown)}." if shown else "", "".join(path[-1:]))

    def effects(self, facts: Facts, only: set[str] | None = None) -> dict[str, Facts]:
        here, ways = facts["you"], self.exits[facts["you"]].items()
        found = {
            f"go {way}": {"you": room}
            for way, (room, door) in ways
            if facts.get(door, "open") == "open"
        }
        for name in self.fixed[here]:
            if facts.get(name) == "closed" and (only is None or name in only):
                found[f"open {name}"] = {name: "open"}
            elif facts.get(name) == "open" and only is None:
                found[f"close {name}"] = {name: "closed"}
            elif facts.get(name) == "locked" and facts[self._key(name)] == "you":
                found[f"unlock {name} with {self._key(name)}"] = {name: "closed"}
        near = [
            name
            for name in self.fixed[here]
            if facts.get(name, "open") == "open" and not name.endswith("door")
        ]
        for thing in [name for name in self.movable if only is None or name in only]:
            place = facts[thing]
            if place == here or place in near:
                found[f"take {thing} from {place}" if place != here else f"take {thing}"] = {
                    thing: "you"
                }
            if place == "you" and only is None:
                found[f"drop {thing}"] = {thing: here}
            for name in near if place == "you" else ():
                if only is None or (thing, name) == self.goal:
                    found[f"put {thing} {'in' if name in facts else 'on'} {name}"] = {thing: name}
        seen = [*self.fixed[here], *(x for x in self.movable if facts[x] in ("you", here, *near))]
        return found | {
            name: {}
            for name in ("look", "inventory", *(f"examine {x}" for x in seen))
            if only is None
        }

    def relevant(self, facts: Facts) -> set[str]:
        """The goal and all doors, then again and again what these things are in and the keys of what is locked."""
        only, size = {*self.goal, *(name for name in facts if name.endswith("door"))}, 0
        while size < len(only):
            size = len(only)
            only |= {facts.get(x, x) for x in only} | {
                self._key(x) for x in only if facts.get(x) == "locked"
            }
        return only

    def progress(self, facts: Facts) -> float:
        if facts[self.goal[0]] == self.goal[1]:
            return 1.0
        return sum(facts[name] != self.first[name] for name in self.parts) / (len(self.parts) + 1)

    def statements(self) -> list[str]:
        here, inside = self.facts["you"], self._inside()
        states = {x: self.facts.get(x, "open") for x in self.fixed[here]}
        states = {
            x: listing(inside.get(x, ())) if state == "open" else state
            for x, state in states.items()
        }
        seen = [f"{x} ({state})" for x, state in states.items() if not x.endswith("door")]
        seen += [x for x in inside[here] if x != "you"]
        ways = [f"{w} ({d} {self.facts[d]})" if d else w for w, (_, d) in self.exits[here].items()]
        held = inside.get("you", ())
        return [
            f"Room {here}.",
            f"Here {listing(seen)}.",
            f"Exits {listing(ways)}.",
            f"Carrying {listing(held)}.",
        ]

    def rules(self) -> str:
        return (
            "Do a task in a house; you see one room. Commands: go WAY, open X, close X, unlock X with KEY (of the "
            "same colour), take X, take X from Y, put X in Y, put X on Y, drop X, look, inventory, examine X. "
            "Reward 1 in all, in parts."
        )


class Household(World):
    """The six task types of ALFWorld in one room. Things lie in or on numbered places and are seen from there; one can
    be carried. A thing is as it was treated last."""

    TASKS = dict.fromkeys(
        ("place", "two", "light"), ("", "")
    )  # type -> where a thing is treated, how it is then
    TASKS |= {
        "clean": ("sinkbasin", "clean"),
        "heat": ("microwave", "hot"),
        "cool": ("fridge", "cool"),
    }
    ROOMS = {  # kinds of places, of some several; kinds of things
        "kitchen": (
            "cabinet cabinet cabinet drawer drawer counter counter table shelf fridge microwave sinkbasin",
            "apple bread bowl cup egg lettuce mug plate potato tomato",
        ),
        "bathroom": (
            "cabinet cabinet drawer drawer counter shelf shelf garbagecan toilet sinkbasin",
            "cloth soapbar spraybottle candle towel",
        ),
        "bedroom": (
            "bed desk drawer drawer drawer dresser shelf shelf table garbagecan",
            "book cd cellphone keychain pen pencil pillow",
        ),
        "livingroom": (
            "sofa armchair armchair table table drawer drawer shelf shelf garbagecan",
            "book creditcard keychain newspaper remotecontrol statue vase watch",
        ),
    }
    OPENABLE, LAMP = ("cabinet", "drawer", "fridge", "microwave"), "desklamp 1"

    def __init__(self, *, task: str = "all", things: int = 8, show: str = "none", **common):
        super().__init__(show=show, **common)
        if task not in (*self.TASKS, "all") or not 2 <= things <= 30:
            raise UserError(
                f"household wants task all, {', '.join(self.TASKS)} and 2 to 30 things, got task={task}, "
                f"things={things}"
            )
        self.tasks, self.num_things = list(self.TASKS) if task == "all" else [task], things

    def draw(self, rng: np.random.Generator) -> tuple:
        task = str(rng.choice(self.tasks))
        legal = [room for room, (places, _) in self.ROOMS.items() if self.TASKS[task][0] in places]
        room = str(rng.choice(legal[-2:] if task == "light" else legal))  # where people read
        places, kinds = (text.split() for text in self.ROOMS[room])
        wanted, target = (
            str(rng.choice(kinds)),
            "desklamp" if task == "light" else str(rng.choice(places)),
        )
        chosen = [wanted, wanted, *rng.choice(kinds, self.num_things)][task != "two" :][
            : self.num_things
        ]
        elsewhere = [place for place in numbered(places) if place.split()[0] != target]
        spots = [rng.choice(elsewhere if kind == wanted else numbered(places)) for kind in chosen]
        lamp, things = (
            str(rng.choice(numbered(places))),
            zip(numbered(chosen), map(str, spots), strict=True),
        )
        return (
            "household",
            room,
            task,
            wanted,
            target,
            lamp if task == "light" else "",
            tuple(things),
        )

    def key(self, instance: tuple) -> tuple:
        *parts, things = (
            instance  # of a kind, numbers do not matter; ALFWorld's own games are known by name
        )
        alike = (
            sorted((name.split()[0], place) for name, place in things)
            if parts[0] == "household"
            else [things]
        )
        return (*parts, *alike)

    def _start(self, instance: tuple) -> None:
        _, room, self.type, wanted, target, self.lamp, things = instance
        self.places, self.things = (
            numbered(self.ROOMS[room][0].split()),
            [name for name, _ in things],
        )
        self.wanted = [name for name in self.things if name.split()[0] == wanted]
        self.targets = [name for name in self.places if name.split()[0] == target]
        closed = {place: "closed" for place in self.places if place.split()[0] in self.OPENABLE}
        self.tool, self.how = self.TASKS[self.type]
        verb = {"two": "put two", "light": "look at some"}.get(
            self.type, f"put some {self.how}"
        ).strip()
        aim = f"{verb} {wanted} {'under the desklamp' if self.lamp else f'in/on {target}'}"
        facts = {"you": "the middle of the room", self.LAMP: "off", **closed, **dict(things)}
        facts |= {f"{name} is": "" for name in self.things}
        self._open(facts, f"Places: {', '.join(self.places)}.\nTask: {aim}.", aim)

    def effects(self, facts: Facts, only: set[str] | None = None) -> dict[str, Facts]:
        here = facts["you"]
        found = {
            f"go to {x}": {"you": x}
            for x in self.places
            if x != here and (only is None or x in only)
        }
        held, state = (
            next((name for name in self.things if facts[name] == "you"), ""),
            facts.get(here, "open"),
        )
        if state == "closed":
            found[f"open {here}"] = {here: "open"}
        elif here in facts and only is None:
            found[f"close {here}"] = {here: "closed"}
        bound = self.targets if only is not None and held in self.wanted else self.places
        if state == "open" and held and here in bound:
            found[f"put {held} in/on {here}"] = {held: here}
        for name in self.things if state == "open" and not held else ():
            if facts[name] == here and (only is None or name in only):
                found[f"take {name} from {here}"] = {name: "you"}
        for verb, (tool, how) in self.TASKS.items():
            if held and here.split()[0] == tool:
                found[f"{verb} {held} with {here}"] = {f"{held} is": how}
        if here == self.lamp and state == "open":
            found[f"use {self.LAMP}"] = {self.LAMP: "off" if facts[self.LAMP] == "on" else "on"}
        return found

    def relevant(self, facts: Facts) -> set[str]:
        """The wanted things, where they are, what treats them, the lamp, and one of those targets that are alike."""
        alike = {facts.get(place): place for place in reversed(self.targets)}
        tools = [place for place in self.places if place.split()[0] == self.tool]
        return {
            *self.wanted,
            *(facts[name] for name in self.wanted),
            *tools,
            self.lamp,
            *alike.values(),
        }

    def progress(self, facts: Facts) -> float:
        """Done parts of: hold the thing (or it is stored), treat it, store it; hold it, be where the lamp is on."""
        if self.lamp:
            held = "you" in [facts[name] for name in self.wanted]
            return (held + (held and facts[self.LAMP] == "on" and facts["you"] == self.lamp)) / 2

        def parts(name: str, place: str) -> int:
            treated = self.how in ("", facts[f"{name} is"])
            stored = treated and facts[name] == place
            return (facts[name] == "you" or stored) + (treated and bool(self.how)) + stored

        count, most = 1 + (self.type == "two"), 2 + bool(self.how)
        best = max(
            sum(sorted(parts(name, place) for name in self.wanted)[-count:])
            for place in self.targets
        )
        return best / (count * most)

    def statements(self) -> list[str]:
        here, inside = self.facts["you"], self._inside()
        lamp = [f"{self.LAMP} {self.facts[self.LAMP]}"] if here == self.lamp else []
        seen = [name for name in inside[here] if name != "you"] + lamp
        seen = "closed" if self.facts.get(here) == "closed" else listing(seen)
        return [f"At {here} ({seen}).", f"Carrying {listing(inside.get('you', ()))}."]

    def rules(self) -> str:
        return (
            "Do a task in a room; you see what is where you are and carry one thing. Commands: go to PLACE, open "
            "PLACE, close PLACE, take X from PLACE, put X in/on PLACE, clean X with sinkbasin 1, heat X with "
            f"microwave 1, cool X with fridge 1, use {self.LAMP}. Reward 1 in all, in parts."
        )


def numbered(kinds: Sequence[str]) -> list[str]:
    """Each with its number among those of its kind.
    >>> numbered(["bed", "shelf", "shelf"])
    ['bed 1', 'shelf 1', 'shelf 2']
    """
    return [f"{kind} {list(kinds[: i + 1]).count(kind)}" for i, kind in enumerate(kinds)]
