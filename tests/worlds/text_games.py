"""Helpers and hand-made instances for the tests of the text worlds.

This file imports little, because a test loads it in new processes.
"""

import hashlib

import numpy as np

from envs import make_env
from worlds.code.repair import Repair
from worlds.text.household import Household
from worlds.text.quest import Quest

QUEST = "quest:w=2,o=3,q=4"
LONG_QUEST = "quest:w=4,o=6,q=8"
BLIND_QUEST = "quest:w=8,o=12,q=4,goal=none,show=all"
SPECS = [QUEST, LONG_QUEST, BLIND_QUEST, "household", "repair", "repair:reward=ratio"]

# A closed door is between cellar and attic. The coin is in a locked box, whose key lies in the
# attic.
HOUSE = (
    "quest",
    (("cellar", "east", "attic", "blue door"),),
    (("red box", "cellar"), ("table", "attic")),
    (
        ("you", "cellar"),
        ("blue door", "closed"),
        ("red box", "locked"),
        ("red key", "attic"),
        ("coin", "red box"),
    ),
    ("coin", "table"),
    (
        "open blue door",
        "go east",
        "take red key",
        "go west",
        "unlock red box with red key",
        "open red box",
        "take coin from red box",
        "go east",
        "put coin on table",
    ),
)
HOUSE_PLAN = list(HOUSE[-1])

# The task of KITCHEN is to put a hot apple on the table.
APPLE_AND_MUG = (("apple 1", "drawer 1"), ("mug 1", "table 1"))
KITCHEN = ("household", "kitchen", "heat", "apple", "table", "", APPLE_AND_MUG)
STUDY = ("household", "bedroom", "light", "book", "desklamp", "desk 1", (("book 1", "bed 1"),))

ABOVE = """
def above(xs):
    n = 0
    for x in xs:
        if x >= 3:
            n += 1
    return n
""".strip()
FAULTY = ("repair", "above(xs): how many of xs exceed K", 3, ABOVE)


def opened(instance, *, max_actions=30, **options):
    kind = {"quest": Quest, "household": Household, "repair": Repair}[instance[0]]
    env = kind(max_actions=max_actions, **options)
    env.start(instance, [0])
    return env


def drawn(spec, count, *, max_actions=24):
    env = make_env(spec, max_actions=max_actions)
    return env, [env.draw(np.random.default_rng([5, i])) for i in range(count)]


def play(env, commands):
    return [env.step(command) for command in commands]


def digest():
    sha = hashlib.sha256()
    for spec in SPECS:
        env, instances = drawn(spec, 6)
        for instance in instances:
            env.start(instance, [0])
            rng = np.random.default_rng(0)
            texts = [env.rules(), *env.plan(99, 1), env.greedy(), *env.random(3, rng)]
            observations = [step.observation for step in play(env, texts)]
            sha.update(f"{instance}{texts}{observations}".encode())
    return sha.hexdigest()
