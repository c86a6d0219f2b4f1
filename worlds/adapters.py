"""Adapters: the games of TextWorld and ALFWorld behind the protocol of `envs.Env`.

They are the text worlds of arXiv 2510.01132. The packages are optional (requirements-textworld.txt and
requirements-alfworld.txt) and imported when a game begins. What differs, on purpose:
- TextWorld is played by the logic of its JSON backend, which needs no compiler, with text of our own: `statements`;
- a lost game is over and no success; a turn earns what the score rises by, as a share of the highest;
- ALFWorld's engine does no work twice, with the same observations.
"""

from configurator import UserError

import copy
import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from worlds.text_worlds import Facts, Household, World, listing, numbered


class TextWorld(World):
    """Games of TextWorld: custom ones of w rooms, o objects and a quest of q commands; simple ones, whose score is
    sparse, balanced or dense; cooking in w (1, 6, 9 or 12) rooms with q (1 to 3) ingredients. Apart by seed only."""

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
        legal = (
            ("custom", "simple", "cooking"),
            ("sparse", "balanced", "dense"),
            ("detailed", "brief", "none"),
        )
        if any(
            given not in names for given, names in zip((game, rewards, goal), legal, strict=True)
        ):
            raise UserError(
                f"textworld wants game, rewards, goal of {legal}, got {game}, {rewards}, {goal}"
            )
        self.options = (game, w, o, q, rewards, goal)

    def draw(self, rng: np.random.Generator) -> tuple:
        return (
            "textworld",
            *self.options,
            int(rng.integers(2**31)),
        )  # by seed, as to make a game takes half a second

    def _start(self, instance: tuple) -> None:
        from textworld.generator.game import GameProgression
        from textworld.generator.inform7 import Inform7Game

        self.game = textworld_game(*instance[1:])
        self.state, self.writer, self.note = GameProgression(self.game), Inform7Game(self.game), ""
        path = [
            *map(bare, self.game.metadata["walkthrough"])
        ]  # which opens a thing for each ingredient in it
        self.script = [
            x for i, x in enumerate(path) if not (x.startswith("open ") and x in path[:i])
        ]
        self._open({}, f"Task: {self.game.objective}", self.script[-1])

    def _texts(self, actions: list) -> list[str]:
        return [bare(text) for text in self.writer.gen_commands_from_actions(actions)]

    def effects(self, facts: Facts, only: set[str] | None = None) -> dict[str, Facts]:
        return {name: {} for name in sorted(self._texts(self.state.valid_actions))}

    def progress(self, facts: Facts) -> float:
        return 1.0 if self.state.completed else min(0.99, self.state.score / self.game.max_score)

    def _move(self, command: str) -> tuple[float, bool, bool, bool]:
        action = self.state.valid_actions[self._texts(self.state.valid_actions).index(command)]
        self.state.update(action)
        self.script = self.script[self.script[:1] == [command] :]
        about = [
            x.desc
            for x in self.game.infos.values()
            if x.name and f"examine {bare(x.name)}" == command
        ]
        text, conditional, _ = "".join(about).partition("[")
        self.note = text.rpartition(".")[0] if conditional else text  # whole sentences
        reward, _, won, _ = super()._move(command)
        return reward, self.state.done, won, set(action.preconditions) != set(action.postconditions)

    def search(self, most: int) -> tuple[str, ...]:
        """TextWorld's own plan from here, not always the shortest; where it has none, the rest of its walkthrough,
        as long as that can be walked."""
        script = self.script if {*self.script[:1]} <= self.commands.keys() else ()
        return (
            () if self.state.done else tuple(self._texts(self.state.winning_policy or ()) or script)
        )

    def statements(self) -> list[str]:
        """What can be seen, read off the facts of the game and worded as in `worlds.Quest`."""
        infos, inside, states, doors, ways = self.game.infos, {}, {}, {}, []
        facts = sorted(
            (f.name, *(infos[v.name].name or v.name for v in f.arguments))
            for f in self.state.state.facts
        )
        here = next(place for name, thing, *place in facts if (name, thing) == ("at", "P"))[0]
        for name, thing, *others in facts:
            if name in ("at", "in", "on") and thing != "P":
                inside.setdefault(others[0], []).append(thing)
            elif name in self.STATES:
                states[thing] = f"{states.get(thing, '')} {name}".strip()
            elif name == "link" and thing == here:
                doors[others[1]] = others[0]
            elif name.endswith("_of") and others == [here]:
                ways.append((name.removesuffix("_of"), thing))
        holders = [
            info.name
            for info in infos.values()
            if info.type in ("c", "s", "oven", "stove", "toaster")
        ]

        def listed(place: str) -> str:
            return listing([tell(thing) for thing in inside.get(place, ())])

        def tell(thing: str) -> str:
            state = states.get(thing, "")
            shut = state in ("closed", "locked")
            return (
                f"{thing} ({state if shut else listed(thing)})"
                if thing in holders
                else f"{state} {thing}".strip()
            )

        exits = [
            f"{w} ({doors[room]} {states[doors[room]]})" if room in doors else w for w, room in ways
        ]
        seen = [
            f"Room {here}.",
            f"Here {listed(here)}.",
            f"Exits {listing(exits)}.",
            f"Carrying {listed('I')}.",
        ]
        return [*seen, *sentences(self.note)]

    def rules(self) -> str:
        return (
            "Do a task in a house; you see one room. Commands: go WAY, open X, close X, unlock X with KEY, lock "
            "X with KEY, take X, take X from Y, put X on Y, insert X into Y, drop X, eat X, look, inventory, "
            "examine X; to cook: cook X with Y, slice, chop or dice X with Y, prepare meal. Reward 1 in all, in "
            "parts."
        )


def bare(text: str) -> str:
    """A command as `World` reads it: without capitals and articles."""
    return " ".join(word for word in text.lower().split() if word not in ("a", "an", "the"))


def sentences(text: str) -> list[str]:
    return [sentence.strip() + "." for sentence in text.split(".") if sentence.strip()]


@lru_cache(maxsize=512)  # the members of a group share it
def textworld_game(kind: str, w: int, o: int, q: int, rewards: str, goal: str, seed: int):
    """The textworld.Game that `tw-make custom`, `tw-make tw-simple` or `tw-make tw-cooking` makes of these options."""
    import textworld
    from textworld.challenges import CHALLENGES

    options = textworld.GameOptions()
    options.seeds = seed
    if kind != "custom":
        settings = dict(
            rewards=rewards,
            goal=goal,
            test=False,
            recipe=q,
            take=q,
            go=w,
            recipe_seed=0,
            split=None,
        )
        return CHALLENGES[f"tw-{kind}"][1](
            settings | dict.fromkeys(("open", "cook", "cut", "drop"), True), options
        )
    options.nb_rooms, options.nb_objects, options.quest_length = w, o, q
    options.chaining.max_breadth, options.grammar.only_last_action = 5, goal == "brief"
    game = textworld.generator.make_game(options)
    game.objective = "" if goal == "none" else game.objective
    return game


class ALFWorld(Household):
    """The text games of ALFWorld: those of its data set (`part` train, valid_seen or valid_unseen) where ALFWORLD_DATA
    or ~/.cache/alfworld has it, else games of `Household` put into its terms. Its engine bears no threads."""

    KEYS = {
        "place": "pick_and_place_simple",
        "two": "pick_two_obj_and_place",
        "light": "look_at_obj_in_light",
        "clean": "pick_clean_then_place_in_recep",
        "heat": "pick_heat_then_place_in_recep",
        "cool": "pick_cool_then_place_in_recep",
    }

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
        self.folder = Path(
            os.environ.get("ALFWORLD_DATA", Path.home() / ".cache/alfworld"), "json_2.1.1", part
        )
        self.repeats = part != "train"  # which are too few to keep 512 apart

    def draw(self, rng: np.random.Generator) -> tuple:
        if not (
            names := alfworld_names(self.folder, tuple(self.KEYS[task] for task in self.tasks))
        ):
            return super().draw(rng)
        solvable = (
            name
            for name in rng.permutation(names)
            if json.loads((self.folder / name).read_text())["solvable"]
        )
        return ("alfworld", next(solvable))

    def _start(self, instance: tuple) -> None:
        data = (
            alfworld_game(instance)
            if len(instance) > 2
            else json.loads((self.folder / instance[1]).read_text())
        )
        self.game, self.note = fast_pddl()(), ""
        self.game.load(data)
        task = (
            self.game.reset().feedback.split("\n\n", 1)[1].replace("\n\n", "\n")
        )  # without the welcome
        self._open({}, task, task.split("\n")[-1].rstrip("."))

    def effects(self, facts: Facts, only: set[str] | None = None) -> dict[str, Facts]:
        return {name: {} for name in self.game.state["admissible_commands"]}

    def progress(self, facts: Facts) -> float:
        return float(self.game.state["won"])

    def _move(self, command: str) -> tuple[float, bool, bool, bool]:
        self.note = self.game.step(command)[0].feedback
        *outcome, _ = super()._move(command)
        return *outcome, command.split()[0] not in ("look", "inventory", "examine", "help")

    def search(self, most: int) -> tuple[str, ...]:
        """The plan of ALFWorld's planner from here."""
        return () if self.terminated else tuple(self.game.plan())

    def statements(self) -> list[str]:
        return sentences(self.note)

    def rules(self) -> str:
        return (
            "Do a task in a room. Commands: go to PLACE, open PLACE, close PLACE, take X from PLACE, move X to "
            "PLACE, clean X with PLACE, heat X with PLACE, cool X with PLACE, use X, slice X with Y, look, "
            "inventory, examine X. Reward 1 for a success."
        )


@lru_cache
def alfworld_names(folder: Path, tasks: tuple[str, ...]) -> list[str]:
    """Games of these types in a part of the data set, without those that the text engine cannot play."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.glob("*/*/game.tw-pddl"))]
    return [
        name
        for name in names
        if name.startswith(tasks) and "movable" not in name and "Sliced" not in name
    ]


def alfworld_game(instance: tuple) -> dict:
    """What ALFWorld's file game.tw-pddl would hold for an instance of `Household`."""
    from alfworld.gen.goal_library import gdict
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    def name(thing: str) -> str:  # as it must be for ALFWorld to call it by kind and number
        kind, number = thing.split()
        return f"sink_bar_{number}_bar_{kind}" if kind == "sinkbasin" else f"{kind}_bar_{number}"

    _, room, task, wanted, target, lamp, things = instance
    places, things = (
        numbered(Household.ROOMS[room][0].split()),
        dict(things) | ({Household.LAMP: lamp} if lamp else {}),
    )
    rtypes, otypes = ({f"{x.split()[0]}Type" for x in names} for names in (places, things))
    objects, facts = (
        ["agent1 - agent", "spot0 - location"],
        ["(= (total-cost) 0)", "(atLocation agent1 spot0)"],
    )
    objects += [
        f"{kind} - rtype"
        for kind in sorted(rtypes | {"sinkbasinType", "microwaveType", "fridgeType"})
    ]
    objects += [f"{kind} - otype" for kind in sorted(otypes | {"knifeType", "butterknifeType"})]
    facts += [f"(canContain {r} {o})" for r in sorted(rtypes) for o in sorted(otypes)]
    for place in places:
        kind, own, spot = place.split()[0], name(place), f"at_{name(place)}"
        objects += [f"{spot} - location", f"{own} - receptacle"]
        facts += [f"(receptacleAtLocation {own} {spot})", f"(receptacleType {own} {kind}Type)"]
        facts += [f"(openable {own})"] * (kind in Household.OPENABLE)
    for thing, place in things.items():
        objects.append(f"{name(thing)} - object")
        facts += [
            f"(objectType {name(thing)} {thing.split()[0]}Type)",
            f"(inReceptacle {name(thing)} {name(place)})",
        ]
        can = (
            ["toggleable"]
            if thing == Household.LAMP
            else ["pickupable", "cleanable", "heatable", "coolable"]
        )
        facts += [
            f"(objectAtLocation {name(thing)} at_{name(place)})",
            *(f"({word} {name(thing)})" for word in can),
        ]
    goal, words = (
        gdict[ALFWorld.KEYS[task]],
        dict(obj=wanted, recep=target, toggle="desklamp", mrecep=""),
    )
    problem = f"(define (problem one) (:domain alfred) (:objects {' '.join(objects)}) (:init {' '.join(facts)})"
    problem += goal["pddl"].replace("#", "-").format(**words)  # which closes the bracket of define
    grammar = (
        Path(ALFRED_TWL2_PATH)
        .read_text()
        .replace("UNKNOWN GOAL", goal["templates"][0].format(**words))
    )
    return {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": grammar,
        "pddl_problem": problem,
    }


@lru_cache
def fast_pddl() -> type:
    """TextWorld's PddlEnv with ALFWorld's names and the same observations, in which no work is done twice."""
    import fast_downward
    from alfworld.agents.utils.misc import Demangler
    from textworld.envs.pddl import pddl, textgen
    from textworld.logic import Rule

    parse = lru_cache(None)(
        textgen._parse_and_convert
    )  # the stock one reads grammars some 50 times a step
    textgen._parse_and_convert = lambda *args, **options: copy.deepcopy(parse(*args, **options))
    textgen.copy_context = lambda c: (
        c | {"variables": dict(c["variables"]), "mapping": dict(c["mapping"])}
    )
    Rule.parse_conjunctive_query = staticmethod(lru_cache(None)(Rule.parse_conjunctive_query))
    fast_downward.pddl2sas = lru_cache(64)(fast_downward.pddl2sas)

    class FastPddlEnv(pddl.PddlEnv):
        """One game. Its `state` has no facts."""

        def load(self, data: dict) -> None:
            super().load(data)
            demangler, self.texts = Demangler(game_infos=self._entity_infos), {}
            for info in self._entity_infos.values():
                info.name = demangler.demangle_alfred_name(info.id)

        def _text(self, action) -> str:
            key = (action.name, *(variable.name for variable in action.mapping.values()))
            if key not in self.texts:
                infos, mapping = self._entity_infos, action.mapping
                variables = {ph.name: infos[variable.name] for ph, variable in mapping.items()}
                context = {
                    "state": self._pddl_state,
                    "facts": [],
                    "variables": variables,
                    "mapping": mapping,
                }
                context["entity_infos"] = infos
                action.command_template = self._logic.grammar.derive(
                    action.command_template, context
                )
                self.texts[key] = action.format_command({k: info.name for k, info in infos.items()})
            return self.texts[key]

        def _gather_infos(self) -> None:
            actions = list(self._pddl_state.all_applicable_actions())
            texts = [self._text(action) for action in actions]
            self.state.update(
                _valid_actions=actions,
                _valid_commands=texts,
                admissible_commands=sorted(set(texts)),
            )
            self.state.update(won=self._pddl_state.check_goal(), lost=False)

        def plan(self) -> list[str]:
            return self._pddl_state.replan(self._entity_infos)

    return FastPddlEnv
