"""Quest: find an item in a house, and take it or put it somewhere, as in TextWorld."""

from configurator import UserError

import numpy as np

from envs import MAX_DRAWS
from worlds.text.base import Effects, Facts, World, listing

Link = tuple[str, str, str, str]  # room, direction, the room in this direction, door or ""

WAYS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
OPPOSITE = {"north": "south", "east": "west", "south": "north", "west": "east"}
COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey", "silver", "golden")
BOXES = ("chest", "box", "cabinet", "safe", "crate")
TABLES = ("table", "shelf", "desk", "bench", "stand")
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
MAX_DOORS = 3  # in a house
MAX_GOALS = 9  # goals to try before another house is drawn


class Quest(World):
    """Take an item, or put it somewhere, in a house of `w` rooms and `o` objects.

    Objects are furniture, keys and items; doors do not count. A shortest solution has exactly `q`
    commands. The task shows all of these commands with `goal=full`, only the last command with
    `goal=last`, and no command with `goal=none`.
    """

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
        sizes_fit = 1 <= w <= 9 and 2 <= o <= 16 and 1 <= q <= 12
        if not sizes_fit or goal not in ("full", "last", "none"):
            raise UserError(
                "quest needs w 1..9 rooms, o 2..16 objects, q 1..12 commands, "
                f"goal full, last or none, got w={w}, o={o}, q={q}, goal={goal}"
            )
        self.num_rooms = w
        self.num_objects = o
        self.length = q
        self.goal_shown = goal

    # ---------- instances

    def draw(self, rng: np.random.Generator) -> tuple:
        """Draw houses until one has a goal whose shortest solution has exactly `q` commands.

        Returns: ("quest", links of rooms, (furniture, room) pairs, first facts, goal, solution).
        """
        for _ in range(MAX_DRAWS):
            house = self._draw_house(rng)
            goals = rng.permutation(_possible_goals(house)).tolist()
            for thing, place in goals[:MAX_GOALS]:
                self._start(("quest", *house, (thing, place), ()))
                path = self.search(self.length)
                if path and len(path) == self.length:
                    return ("quest", *house, (thing, place), path)
        raise UserError(
            f"no quest with w={self.num_rooms}, o={self.num_objects}, q={self.length} in "
            f"{MAX_DRAWS} attempts; use a smaller q, or more rooms and objects"
        )

    def _draw_house(self, rng: np.random.Generator) -> tuple[tuple, tuple, tuple]:
        """Draw a house. Return its links, its (furniture, room) pairs and its initial facts."""
        rooms = rng.permutation(ROOMS)[: self.num_rooms].tolist()
        colours = rng.permutation(COLOURS).tolist()
        start = rooms[rng.integers(len(rooms))]
        links = _draw_links(rooms, colours, rng)
        doors = [door for *_, door in links if door]

        num_furniture = 1 + (self.num_objects - 2) // 3
        furniture = rng.permutation(BOXES + TABLES)[:num_furniture].tolist()
        furniture = [f"{colours.pop()} {kind}" if kind in BOXES else kind for kind in furniture]
        boxes = [name for name in furniture if " " in name]  # a box has a colour, a table has none

        num_left = self.num_objects - len(furniture)
        shuffled = rng.permutation(doors + boxes).tolist()
        locked = shuffled[: rng.integers(num_left)]
        keys = [_key_for(name) for name in locked]
        items = rng.permutation(ITEMS)[: num_left - len(keys)].tolist()

        facts = {"you": start}
        for name in doors + boxes:
            facts[name] = "locked" if name in locked else "closed"
        for name in keys + items:
            facts[name] = str(rng.choice(rooms + furniture))
        placed = [(name, str(rng.choice(rooms))) for name in furniture]
        return tuple(links), tuple(placed), tuple(facts.items())

    def key(self, instance: tuple) -> tuple:
        """Return a key that is the same for instances of the same house and goal.

        The order of links, furniture and facts does not matter, nor does the order of the two
        rooms in a link.
        """
        kind, links, furniture, facts, goal, _ = instance
        passages = frozenset([*links, *map(_reversed_link, links)])
        return (kind, goal, passages, frozenset(furniture), frozenset(facts))

    def _start(self, instance: tuple) -> None:
        _, links, furniture, facts, self.goal, path = instance
        self.exits = {room: {} for room in ROOMS}  # room -> {way: (room there, door or "")}
        self.fixed = {room: [] for room in ROOMS}  # room -> doors and furniture
        for link in links:
            for room, way, beyond, door in (link, _reversed_link(link)):
                self.exits[room][way] = (beyond, door)
                if door:
                    self.fixed[room].append(door)
        for name, room in furniture:
            self.fixed[room].append(name)

        self.first_facts = dict(facts)
        self.movable = []
        for name, state in facts:
            if name != "you" and state not in ("closed", "locked"):
                self.movable.append(name)
        plan_text = f" {' ; '.join(path)} "
        self.handled = [name for name in self.first_facts if f" {name} " in plan_text]
        shown = {"full": path, "last": path[-1:], "none": ()}[self.goal_shown]
        task = f"Task: {', '.join(shown)}." if shown else ""
        self._open(self.first_facts, task, path[-1] if path else "")

    # ---------- commands

    def effects(self, facts: Facts, only: set[str] | None = None) -> Effects:
        effects = self._walking(facts)
        effects |= self._opening(facts, only)
        effects |= self._carrying(facts, only)
        if only is None:
            effects |= dict.fromkeys(self._looking(facts), {})
        return effects

    def _walking(self, facts: Facts) -> Effects:
        effects = {}
        for way, (room, door) in self.exits[facts["you"]].items():
            if not door or facts[door] == "open":
                effects[f"go {way}"] = {"you": room}
        return effects

    def _opening(self, facts: Facts, only: set[str] | None) -> Effects:
        effects = {}
        for name in self.fixed[facts["you"]]:
            state = facts.get(name)  # None for a table, which cannot be closed
            key = _key_for(name)
            if state == "closed" and (only is None or name in only):
                effects[f"open {name}"] = {name: "open"}
            elif state == "open" and only is None:
                effects[f"close {name}"] = {name: "closed"}
            elif state == "locked" and facts[key] == "you":
                effects[f"unlock {name} with {key}"] = {name: "closed"}
        return effects

    def _carrying(self, facts: Facts, only: set[str] | None) -> Effects:
        effects = {}
        room = facts["you"]
        holders = self._open_furniture(facts)
        for thing in self.movable:
            if only is not None and thing not in only:
                continue
            place = facts[thing]
            if place == room:
                effects[f"take {thing}"] = {thing: "you"}
            elif place in holders:
                effects[f"take {thing} from {place}"] = {thing: "you"}
            elif place == "you":
                if only is None:
                    effects[f"drop {thing}"] = {thing: room}
                for holder in holders:
                    if only is None or (thing, holder) == self.goal:
                        preposition = "in" if holder in facts else "on"
                        effects[f"put {thing} {preposition} {holder}"] = {thing: holder}
        return effects

    def _looking(self, facts: Facts) -> list[str]:
        """Return the commands that change nothing."""
        room = facts["you"]
        reachable = ("you", room, *self._open_furniture(facts))
        seen = self.fixed[room] + [thing for thing in self.movable if facts[thing] in reachable]
        return ["look", "inventory"] + [f"examine {name}" for name in seen]

    def _open_furniture(self, facts: Facts) -> list[str]:
        fixed = self.fixed[facts["you"]]
        furniture = [name for name in fixed if not name.endswith("door")]
        return [name for name in furniture if facts.get(name, "open") == "open"]

    # ---------- the task

    def relevant(self, facts: Facts) -> set[str]:
        """Return the things and places that a shortest plan may need.

        `World.search` passes these things and places to `effects` as the argument `only`.
        """
        only = {*self.goal, *(name for name in facts if name.endswith("door"))}
        while True:
            containers = {facts[name] for name in only if name in facts}
            keys = {_key_for(name) for name in only if facts.get(name) == "locked"}
            if containers | keys <= only:
                return only
            only |= containers | keys

    def progress(self, facts: Facts) -> float:
        """Return the share of the task's steps that are done (0 to 1), or 1 if the goal is reached.

        Each key, item, box or door that the shortest solution names counts as one step. The step
        is done while this object has another place or state than at the start. The goal is one more
        step.
        """
        thing, place = self.goal
        if facts[thing] == place:
            return 1.0
        num_changed = sum(facts[name] != self.first_facts[name] for name in self.handled)
        return num_changed / (len(self.handled) + 1)

    # ---------- texts

    def statements(self) -> list[str]:
        room = self.facts["you"]
        contents = self._contents()

        seen = []
        for name in self.fixed[room]:
            if not name.endswith("door"):
                state = self.facts.get(name, "open")
                inside = listing(contents.get(name, ())) if state == "open" else state
                seen.append(f"{name} ({inside})")
        seen += [name for name in contents[room] if name != "you"]

        exits = []
        for way, (_, door) in self.exits[room].items():
            exits.append(f"{way} ({door} {self.facts[door]})" if door else way)

        return [
            f"Room {room}.",
            f"Here {listing(seen)}.",
            f"Exits {listing(exits)}.",
            f"Carrying {listing(contents.get('you', ()))}.",
        ]

    def rules(self) -> str:
        return (
            "Do a task in a house; you see one room. Commands: go WAY, open X, close X, "
            "unlock X with KEY (of the same colour), take X, take X from Y, put X in Y, "
            "put X on Y, drop X, look, inventory, examine X. Reward 1 in all, in parts."
        )


def _draw_links(rooms: list[str], colours: list[str], rng: np.random.Generator) -> list[Link]:
    """Draw links that form a tree of rooms on a grid.

    A door takes its colour out of `colours`, so that no other door or box gets the same colour. A
    key unlocks the door or box of its colour.
    """
    cells = {(0, 0): rooms[0]}
    links = []
    num_doors = 0
    while len(cells) < len(rooms):
        row, column = list(cells)[rng.integers(len(cells))]
        way = list(WAYS)[rng.integers(len(WAYS))]
        cell = (row + WAYS[way][0], column + WAYS[way][1])
        if cell in cells:
            continue
        cells[cell] = rooms[len(cells)]
        door = ""
        if num_doors < MAX_DOORS and rng.random() < 0.5:
            door = f"{colours.pop()} door"
            num_doors += 1
        links.append((cells[row, column], way, cells[cell], door))
    return links


def _reversed_link(link: Link) -> Link:
    room, way, beyond, door = link
    return (beyond, OPPOSITE[way], room, door)


def _possible_goals(house: tuple[tuple, tuple, tuple]) -> list[tuple[str, str]]:
    """Return (item, place) for every item and every place where the item does not start.

    A place is a piece of furniture, or "you" for the player."""
    _, furniture, facts = house
    places = ["you", *(name for name, _ in furniture)]
    goals = []
    for item, start in facts:
        if item in ITEMS:
            goals += [(item, place) for place in places if place != start]
    return goals


def _key_for(lock: str) -> str:
    return f"{lock.split()[0]} key"
