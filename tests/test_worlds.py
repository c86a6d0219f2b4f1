"""
Tests of the text environments: by hand, against a search that leaves nothing out, against Python, with any text.

    python -m pytest -q tests/test_worlds.py
"""

from configurator import Config, load_config

import doctest
import hashlib
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envs
from dialogue import Episode, check_thought, shape
from envs import make_env
from rollout import make_episode
from worlds import repair
from worlds import text_worlds as worlds
from worlds.repair import interpret

ROOT = pathlib.Path(envs.__file__).parent
QUEST, LONG_QUEST = "quest:w=2,o=3,q=4", "quest:w=4,o=6,q=8"
SPECS = [
    QUEST,
    LONG_QUEST,
    "quest:w=8,o=12,q=4,goal=none,show=all",
    "household",
    "repair",
    "repair:reward=ratio",
]

# hall of a cellar and an attic: a locked box holds the coin, its key lies on the floor beyond a closed door
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
# a kitchen with an apple in the closed drawer; a hot one is wanted on the table
KITCHEN = (
    "household",
    "kitchen",
    "heat",
    "apple",
    "table",
    "",
    (("apple 1", "drawer 1"), ("mug 1", "table 1")),
)
STUDY = ("household", "bedroom", "light", "book", "desklamp", "desk 1", (("book 1", "bed 1"),))
ABOVE = "def above(xs):\n    n = 0\n    for x in xs:\n        if x >= 3:\n            n += 1\n    return n"
FAULTY = ("repair", "above(xs): how many of xs exceed K", 3, ABOVE)


def opened(instance, **options):
    kind = {"quest": worlds.Quest, "household": worlds.Household, "repair": repair.Repair}[
        instance[0]
    ]
    env = kind(**({"max_actions": 30} | options))
    env.start(instance, [0])
    return env


def drawn(spec, count, **options):
    """The environment and `count` raw draws."""
    env = make_env(spec, **({"max_actions": 24} | options))
    return env, [env.draw(np.random.default_rng([5, i])) for i in range(count)]


def play(env, commands):
    return [env.step(command) for command in commands]


# ---------- Quest by hand


def test_quest_by_hand():
    env = opened(HOUSE, goal="last", show="all")
    task, scene, commands = env.observe().split("\n")
    assert task == "Task: put coin on table."
    assert (
        scene
        == "Room cellar. Here red box (locked). Exits east (blue door closed). Carrying nothing."
    )
    assert (
        commands == "Commands open blue door, look, inventory, examine blue door, examine red box."
    )
    assert (
        env.plan(99, 1) == list(HOUSE[-1])
        and env.optimal_length() == 9
        and env.plan(2, 1) == list(HOUSE[-1][:2])
    )
    steps = play(env, HOUSE[-1])
    # door, key, box (unlocked) and coin change hands on the way, the coin on the table is the fifth part
    assert [s.reward for s in steps] == pytest.approx([0.2, 0, 0.2, 0, 0.2, 0, 0.2, 0, 0.2])
    assert [s.success for s in steps] == [False] * 8 + [True] and steps[-1].terminated
    assert (
        env.optimal_length() == 0 and env.plan(3, 1) == [] and not env.step("go west").valid
    )


def test_quest_shows_the_present_room_only():
    env = opened(HOUSE, goal="full")
    assert env.observe().split("\n")[0] == f"Task: {', '.join(HOUSE[-1])}."
    env = opened(HOUSE, goal="none")
    assert (
        "coin" not in env.observe() and "table" not in env.observe()
    )  # shut away; in another room
    play(env, ["open blue door", "go east"])
    assert (
        env.observe()
        == "Room attic. Here table (nothing), red key. Exits west (blue door open). Carrying nothing."
    )
    play(env, ["take red key", "go west", "unlock red box with red key"])
    assert (
        env.observe()
        == "Room cellar. Here red box (closed). Exits east (blue door open). Carrying red key."
    )
    play(env, ["open red box"])
    assert env.statements()[1] == "Here red box (coin)."


@pytest.mark.parametrize("text", ["Open the blue door.", "  OPEN   blue door ", "open a blue door"])
def test_free_forms_of_a_command(text):
    step = opened(HOUSE).step(text)
    assert (step.success, step.valid, step.effective) == (False, True, True)


@pytest.mark.parametrize(
    "text", ["go east", "open red box", "open", "take coin", "unlock red box with red key", "fly"]
)
def test_what_is_not_possible_is_no_action(text):
    env = opened(HOUSE)
    before = env.observe()
    step = env.step(text)
    assert not step.valid and step.observation == before and env.num_actions == 0


def test_a_thing_is_taken_without_its_place():
    env = opened(HOUSE)
    play(env, HOUSE[-1][:6])
    assert env.step("take coin").effective and env.facts["coin"] == "you"
    assert not env.step("look").effective


def test_parts_are_paid_once_and_a_late_game_less_than_a_win():
    env = opened(HOUSE, max_actions=11)
    steps = play(
        env,
        [
            *HOUSE[-1][:7],
            "put coin in red box",
            "take coin",
            "put coin in red box",
            "take coin",
            "look",
        ],
    )
    assert (
        sum(s.reward for s in steps) == pytest.approx(0.8)
        and steps[-2].truncated
        and not steps[-1].valid
    )


# ---------- Household by hand


def test_household_by_hand():
    env = opened(KITCHEN)
    assert env.observe().split("\n")[1:] == [
        "Task: put some hot apple in/on table.",
        "At the middle of the room (nothing). Carrying nothing.",
    ]
    way = [
        "go to drawer 1",
        "open drawer 1",
        "take apple 1 from drawer 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
        "go to table 1",
        "put apple 1 in/on table 1",
    ]
    assert env.plan(99, 1) == way and env.optimal_length() == 7
    steps = play(env, way)
    assert [s.reward for s in steps] == pytest.approx([0, 0, 1 / 3, 0, 1 / 3, 0, 1 / 3])
    assert "At drawer 1 (closed). Carrying nothing." in steps[0].observation
    assert "At drawer 1 (apple 1). Carrying nothing." in steps[1].observation
    assert (
        "At table 1 (mug 1). Carrying hot apple 1." in steps[5].observation
        and steps[-1].success
    )


def test_household_wants_the_treatment_asked_for():
    env = opened(KITCHEN)
    play(
        env,
        [
            "go to drawer 1",
            "open drawer 1",
            "take apple 1",
            "go to fridge 1",
            "cool apple 1 with fridge 1",
        ],
    )
    cold = play(env, ["go to table 1", "put apple 1 in/on table 1"])
    assert not cold[-1].success and env.best == pytest.approx(1 / 3)
    assert env.plan(99, 1)[:2] == ["take apple 1 from table 1", "go to microwave 1"]


def test_household_takes_a_treated_thing_where_none_is_asked_for():
    env = opened((*KITCHEN[:2], "place", *KITCHEN[3:]))
    way = [
        "go to drawer 1",
        "open drawer 1",
        "take apple 1",
        "go to fridge 1",
        "cool apple 1 with fridge 1",
    ]
    steps = play(env, [*way, "go to table 1", "put apple 1 in/on table 1"])
    assert [s.reward for s in steps] == [0, 0, 0.5, 0, 0, 0, 0.5] and steps[-1].success


def test_household_light_by_hand():
    env = opened(STUDY)
    assert "look at some book under the desklamp" in env.observe()
    way = ["go to bed 1", "take book 1 from bed 1", "go to desk 1", "use desklamp 1"]
    assert env.plan(99, 1) == way
    steps = play(env, way)
    assert [s.reward for s in steps] == [0, 0.5, 0, 0.5] and steps[-1].success
    env = opened(STUDY)  # the lamp alone is nothing
    assert [s.reward for s in play(env, ["go to desk 1", "use desklamp 1"])] == [0, 0]
    env = opened(
        (*STUDY[:5], "drawer 1", STUDY[6])
    )  # in a closed drawer it is neither seen nor used
    assert env.plan(99, 1) == [*way[:2], "go to drawer 1", "open drawer 1", "use desklamp 1"]
    assert "use desklamp 1" not in [play(env, way[:2] + ["go to drawer 1"]), list(env.commands)][1]


def test_household_carries_one_thing():
    env = opened(
        (
            "household",
            "kitchen",
            "two",
            "mug",
            "table",
            "",
            (("mug 1", "shelf 1"), ("mug 2", "shelf 1")),
        )
    )
    play(env, ["go to shelf 1", "take mug 1"])
    assert not env.step("take mug 2").valid
    assert env.optimal_length() == 6 and "put two mug in/on table" in env.observe()
    way = [
        "go to table 1",
        "put mug 1 in/on table 1",
        "go to shelf 1",
        "take mug 2",
        "go to table 1",
    ]
    assert not any(s.success for s in play(env, way)) and env.best == pytest.approx(3 / 4)
    assert env.step("put mug 2 in/on table 1").success


# ---------- Repair by hand


def test_repair_by_hand():
    env = opened(FAULTY, reward="ratio")
    assert (
        env.observe()
        == "Task: above(xs) should return how many of xs exceed 3. One of 6 lines is wrong."
    )
    assert env.demonstrate(1, None) == ["read"] and env.plan(9, 1) == [
        "edit 4: if x > 3:",
        "submit",
    ]
    assert "4:         if x >= 3:" in env.step("Read").observation and env.demonstrate(1, None) == [
        "edit 4: if x > 3:"
    ]
    lines = env.step("run").observation.split("\n")[1:]
    for line, (xs, right) in zip(lines, env_tests(FAULTY)[: repair.VISIBLE], strict=True):
        given_value = sum(x >= 3 for x in xs)
        assert (
            right == sum(x > 3 for x in xs)
            and line == f"above({xs}) gives {given_value}, expected {right}"
        )
    assert (
        env.step("edit 4: if x > 3:").effective and env.statements()[1] == "Changed line 4."
    )
    assert env.lines[3] == "        if x > 3:" and env.optimal_length() == 1
    step = env.step("submit")
    assert (step.reward, step.terminated, step.success, env.plan(9, 1)) == (
        1.0,
        True,
        True,
        [],
    )


def env_tests(instance):
    return repair.tests_of(*instance[1:3])


@pytest.mark.parametrize("reward", ["binary", "ratio"])
def test_repair_leaves_out_what_the_unpatched_code_passes(reward):
    env = opened(FAULTY, reward=reward)
    hidden = env_tests(FAULTY)[repair.VISIBLE :]
    assert any(
        right == sum(x >= 3 for x in xs) for xs, right in hidden
    )  # so a ratio of all tests would pay
    assert env.step("submit").reward == 0
    env = opened(FAULTY, reward=reward)
    last = play(env, ["edit 6: return 1000", "submit"])[-1]
    assert last.reward == 0 and last.terminated and not last.success
    env, base = (
        opened(FAULTY, reward=reward),
        sum(right == sum(x >= 3 for x in xs) for xs, right in hidden),
    )
    right_below = [
        sum(x > 4 for x in xs) == right for xs, right in hidden
    ]  # another wrong comparison
    paid = play(env, ["edit 4: if x > 4:", "submit"])[-1].reward
    assert paid == (
        0 if reward == "binary" else pytest.approx(max(0, (sum(right_below) - base) / (6 - base)))
    )


def test_the_last_action_submits():
    env = opened(FAULTY, max_actions=2)
    first, last = play(env, ["read", "edit 4: if x > 3:"])
    assert not first.terminated and last.terminated and last.success and last.reward == 1


@pytest.mark.parametrize(
    "text",
    [
        "edit 7: n = 1",
        "edit 0: n = 1",
        "edit 4:",
        "edit 4: ",
        "edit x: n",
        "edit 1: a\nb",
        "edit 2: \x00",
        "edit 2: " + "n" * 101,
        "run it",
        "",
    ],
)
def test_what_is_no_command_of_repair(text):
    assert not opened(FAULTY).step(text).valid


def test_every_fault_is_one_line_and_found_by_both_kinds_of_tests():
    count = 0
    for title in repair.Repair.LIBRARY:
        for k in (2, 7, 15):
            right = repair.library(title, k).split("\n")
            assert not any(isinstance(value, str) for _, value in repair.tests_of(title, k))
            for wrong in repair.faults(title, k):
                failed = [got != value for _, got, value in repair.outcomes(wrong, title, k)]
                assert any(failed[: repair.VISIBLE]) and any(failed[repair.VISIBLE :])
                assert sum(a != b for a, b in zip(wrong.split("\n"), right, strict=True)) == 1
                count += 1
    assert count > 150


# ---------- the interpreter


def test_programs_do_what_python_does():
    compared = 0
    for title in repair.Repair.LIBRARY:
        for code in [repair.library(title, 4), *repair.faults(title, 4)]:
            names = {}
            for argument, got, _ in repair.outcomes(code, title, 4):
                if not isinstance(got, str):  # so it ends
                    exec(code, names)
                    assert names[title.split("(")[0]](argument) == got
                    compared += 1
    assert compared > 500


EXPRESSION = st.recursive(
    st.sampled_from(["n", "0", "1", "7", "True", "None", "[1, n]"]),
    lambda part: st.tuples(
        st.sampled_from(
            [
                "({} + {})",
                "({} * {})",
                "({} // {})",
                "({} % {})",
                "({} < {})",
                "({} and {})",
                "({} or {})",
                "min({}, {})",
                "{}[{}]",
                "range({}, {})",
                "[-{}, {}]",
            ]
        ),
        part,
        part,
    ).map(lambda made: made[0].format(*made[1:])),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(EXPRESSION, st.integers(-3, 9))
def test_expressions_do_what_python_does(text, n):
    value = interpret(f"def f(n):\n    return {text}", [n])[0]
    if not isinstance(value, str):
        assert value == eval(text, {"n": n, "range": lambda *bounds: list(range(*bounds))})


HOSTILE = [
    "while True: n = 1",
    "for i in range(64): n = n * n",
    "import os",
    "return open('x', 'w')",
    "return exec('1')",
    "return ().__class__",
    "return n.real",
    "return '%99999999d' % n",
    "return 'a' * n",
    "return [0] * 99999999",
    "return range(999999999)",
    "return [[n, n], [n, n]]",
    "return (lambda: 1)()",
    "return f(n)",
    "return 2 ** 99",
    "return " + "-" * 90 + "n.x",
    "return [x for x in range(9)]",
    "return len(*[[1]])",
    "return max(key=n)",
    "raise SystemExit",
    "global n",
    "return __import__('os')",
    "return print(n)",
    "del n",
    "return " + "(" * 90,
    "for i in 3: n = 1",
    "while n: n = [n]",
    "xs[0] = 1",
    "return 9" + "9" * 80 + " * n",
    "return m",
    "return \\",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_code_is_an_error(line):
    assert interpret(f"def f(n):\n    {line}\n    return n", [3])[0].startswith("error: ")


def test_nested_loops_and_growing_lists_end():
    depth = 8
    lines = [*(f"for a{i} in xs:" for i in range(depth)), "x = 1"]
    loops = "\n".join("    " * i + line for i, line in enumerate(lines, start=1))
    assert interpret(f"def f(xs):\n{loops}\n    return 1", [[1] * 60]) == ["error: too many steps"]
    doubling = "def f(xs):\n    while len(xs) > 0:\n        xs = xs + xs\n    return xs"
    assert interpret(doubling, [[1]]) == ["error: too large"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "n = 1",
        "def f(): return 1",
        "def f(a, b): return 1",
        "class F: pass",
        "def f(",
        "x" * 1000,
        "def f(n):\n    return 1\n  x",
    ],
)
def test_what_is_no_function(source):
    assert interpret(source, [1, 2])[1].startswith("error: ")


def test_arguments_are_not_changed():
    xs = [1, 2]
    assert interpret("def f(xs):\n    ys = xs\n    ys += [3]\n    return ys", [xs]) == [
        [1, 2, 3]
    ] and xs == [1, 2]


# ---------- all of them


@pytest.mark.parametrize("spec", SPECS)
def test_plans_solve_200_instances(spec):
    env, instances = drawn(spec, 200)
    lengths = []
    for instance in instances:
        env.start(instance, [0])
        length, plan, total = env.optimal_length(), env.plan(99, 1), 0.0
        assert len(plan) == length
        for left, command in zip(range(length - 1, -1, -1), plan, strict=True):
            step = env.step(command)
            total += step.reward
            assert step.success == (left == 0)
        assert total == pytest.approx(env.max_reward) and env.optimal_length() == 0
        lengths.append(length)
    expected = {QUEST: {4}, LONG_QUEST: {8}, SPECS[2]: {4}, "household": set(range(3, 12))}.get(
        spec, {2}
    )
    assert set(lengths) <= expected and len(set(instances)) > 150


def brute_force(env, most):
    """Commands of a shortest solution among all possible ones, without leaving any out, or None."""
    states, seen = [env.facts], {tuple(env.facts.values())}
    for depth in range(most + 1):
        if any(env.progress(facts) == 1 for facts in states):
            return depth
        after = [facts | changes for facts in states for changes in env.effects(facts).values()]
        states = [seen.add(key) or f for f in after if (key := tuple(f.values())) not in seen]
    return None


@pytest.mark.parametrize(
    "spec, most", [(QUEST, 6), ("quest:w=3,o=5,q=6", 8), ("household:things=2", 5)]
)
def test_plans_are_shortest_also_after_random_moves(spec, most):
    env, instances = drawn(spec, 12)
    rng, agreed = np.random.default_rng(0), 0
    for instance in instances:
        env.start(instance, [0])
        for _ in range(2):
            length = env.optimal_length()
            if length <= most:
                assert brute_force(env, length) == length
                agreed += 1
            play(env, env.random(3, rng))
    assert agreed >= 8


@pytest.mark.parametrize("task", worlds.Household.TASKS)
def test_each_task_type_alone(task):
    env, instances = drawn(f"household:task={task}", 12)
    for instance in instances:
        env.start(instance, [0])
        assert instance[2] == task and env.progress(env.facts) == 0
        assert play(env, env.plan(99, 1))[-1].success


def successes(spec, instances, episodes, **options):
    env, drawn_instances = drawn(spec, instances, **options)
    rng, wins = np.random.default_rng(1), 0
    for i in range(episodes):
        env.start(drawn_instances[i % instances], [0])
        total, step = 0.0, None
        while step is None or not (step.terminated or step.truncated):
            step = env.step(env.random(1, rng)[0])
            assert step.valid
            total += step.reward
        assert (total == pytest.approx(1)) == step.success and total < 1 + 1e-9
        wins += step.success
    return wins / episodes


def test_a_random_player_is_as_weak_as_in_textworld():
    assert 0.01 < successes(QUEST, 150, 600, max_actions=12) < 0.08  # 3.3 % there in 12 commands
    assert successes(LONG_QUEST, 30, 60, max_actions=24) <= 0.05
    assert (
        successes("household", 60, 60) <= 0.05
        and successes("repair:reward=ratio", 60, 60, max_actions=8) <= 0.05
    )


@pytest.mark.parametrize("density", ["sparse", "balanced", "dense", "plan"])
def test_a_win_is_worth_more_than_any_loss(density):
    env, instances = drawn(QUEST, 20, max_actions=8)
    rng = np.random.default_rng(2)
    for instance in instances:
        env.start(instance, [0])
        player = [iter(env.plan(99, 1)), None][rng.integers(2)]
        rewards, remaining, step = [], [env.optimal_length()], None
        while step is None or not (step.terminated or step.truncated):
            step = env.step(next(player) if player else env.random(1, rng)[0])
            rewards.append(step.reward)
            remaining.append(env.optimal_length())
        total = sum(shape(rewards, step.success, density, remaining=remaining))
        assert total == pytest.approx(1) if step.success else total < 1


def told_otherwise(instance):
    """The same game: what lies in it in another order, passages from their other end, things with other numbers."""
    if instance[0] == "household":
        *parts, things = instance
        kinds = [name.split()[0] for name, _ in things[::-1]]
        places = [place for _, place in things[::-1]]
        return (*parts, tuple(zip(worlds.numbered(kinds), places, strict=True)))
    name, links, furniture, facts, goal, path = instance
    links = tuple((b, worlds.Quest.BACK[way], a, door) for a, way, b, door in links[::-1])
    return (name, links, furniture[::-1], facts[::-1], goal, (*path, "look"))


@pytest.mark.parametrize("spec", ["quest:w=4,o=6,q=4", "household"])
def test_the_same_game_told_otherwise_is_not_for_training(spec, monkeypatch):
    env = make_env(spec)
    reserved = [i for part in envs.reserved_instances(spec).values() for i in part]
    others = [told_otherwise(i) for i in reserved]
    assert not {*others} & {*reserved} and [env.key(i) for i in others] == [
        env.key(i) for i in reserved
    ]
    assert len({env.key(i) for i in reserved}) == 512
    fresh = envs.draw_instance(spec, (5,), "train")
    draws = iter([*others[:3], fresh])
    monkeypatch.setattr(type(env), "draw", lambda *_: next(draws))
    assert envs.draw_instance.__wrapped__(spec, (6,), "train") == fresh


def test_what_changes_nothing_has_no_effect():
    env = opened(KITCHEN)
    for command in (
        "go to drawer 1",
        "open drawer 1",
        "take apple 1 from drawer 1",
        "go to microwave 1",
    ):
        assert env.step(command).effective
    again = [env.step("heat apple 1 with microwave 1") for _ in range(2)]
    assert [(step.valid, step.effective) for step in again] == [(True, True), (True, False)]


@pytest.mark.parametrize("spec", [QUEST, "household", "repair"])
def test_splits_are_disjoint(spec):
    env = make_env(spec)
    reserved = envs.reserved_instances(spec)
    held = {*reserved["eval"], *reserved["heldout"]}
    assert len(held) == 512
    train = set()
    for seed in range(150):
        env.reset([seed, 1])
        train.add(env.instance)
    assert not train & held and len(train) > 100


def digest():
    """Of instances, texts and what random players get."""
    sha = hashlib.sha256()
    for spec in SPECS:
        env, instances = drawn(spec, 6)
        for instance in instances:
            env.start(instance, [0])
            texts = [
                env.rules(),
                *env.plan(99, 1),
                env.greedy(),
                *env.random(3, np.random.default_rng(0)),
            ]
            sha.update(f"{instance}{texts}{[s.observation for s in play(env, texts)]}".encode())
    return sha.hexdigest()


def test_same_seed_same_game_in_another_process():
    paths = [str(ROOT), str(ROOT / "tests")]
    code = f"import sys; sys.path[:0] = {paths!r}; import test_worlds; print(test_worlds.digest())"
    environs = [{**os.environ, "PYTHONHASHSEED": hash_seed} for hash_seed in ("1", "2")]
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=e, stdout=subprocess.PIPE, text=True)
        for e in environs
    ]
    assert {run.communicate(timeout=300)[0].strip() for run in runs} == {digest()}


VOCABULARY = """go to take put open close unlock edit 2: read run submit east drawer 1 table fridge in on in/on
from with red key box coin apple return n x > = ( [ while True: for if"""
WORDS = st.lists(st.sampled_from(VOCABULARY.split()))
TEXTS = st.lists(
    st.one_of(st.text(max_size=40), WORDS.map(" ".join), st.integers(0, 40)),
    min_size=8,
    max_size=14,
)


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(TEXTS, st.integers(0, 5))
@pytest.mark.parametrize("instance", [HOUSE, KITCHEN, FAULTY], ids=lambda instance: instance[0])
def test_any_text_is_a_command_or_not(instance, texts, seed):
    env = opened(instance, max_actions=9)
    total, rng, success = 0.0, np.random.default_rng(seed), False
    for text in texts:
        if isinstance(text, int):  # one that is possible
            text = env.random(1, rng)[0]
        before, left = env.observe(), env.actions_left
        step = env.step(text)
        total, success = total + step.reward, success or step.success
        assert step.valid == (env.actions_left < left)
        assert step.valid or (step.observation == before and step.reward == 0)
        assert (total > 1 - 1e-9) == success and 0 <= total < 1 + 1e-9


@pytest.mark.parametrize("spec", [QUEST, "household", "repair"])
def test_statements_are_true_and_read_back(spec):
    env, instances = drawn(spec, 10)
    rng = np.random.default_rng(3)
    for instance in instances:
        env.start(instance, [0])
        for command in env.random(6, rng):
            facts = env.statements()
            assert len({fact.split()[0] for fact in facts}) == len(facts)
            assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))
            assert spec == "repair" or " ".join(facts) in env.observe()
            env.step(command)


def test_dialogue_of_a_quest():
    episode = Episode(
        make_env(QUEST, max_actions=12), Config(think=False, max_turns=12, actions_per_turn=1)
    )
    system, _ = episode.reset(0)
    assert (
        system == episode.reset(1)[0]
        and "Actions:" not in system
        and "At most 1 action a turn." in system
    )
    outcome = episode.step("<answer>dance</answer>")
    assert outcome.user.startswith(
        'Reward -0.1. Unknown action: "dance". No action was executed; nothing changed.'
    )
    for command in episode.env.plan(99, 1):
        outcome = episode.step(f"<answer>{command}</answer>")
    assert outcome.status == "success"


@pytest.mark.parametrize("name", ["quest_ppo", "household_ppo", "repair_grpo"])
def test_players_and_demonstrations(name, chat):
    from eval import play_reference
    from tools.corpus import (
        demonstration,
    )  # here: they need torch, and other processes import this file

    config = load_config([str(ROOT / "config" / f"{name}.py")])[0]
    config = replace(config, eval_size=12, sft_actions=1)
    rates = {}
    for player in ("random", "greedy", "optimal"):
        played = play_reference(config, player)
        assert all(turn.info["format_ok"] for t in played for turn in t.turns)
        rates[player] = sum(t.success for t in played) / len(played)
    assert rates["optimal"] == 1 > rates["random"]
    demos = [demonstration(replace(config, max_context_tokens=16384), chat, i) for i in range(3)]
    assert all(demo.success for demo in demos)


# ---------- names and options


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            "quest:w=0",
            "quest wants w 1..9 rooms, o 2..16 objects, q 1..12 commands, goal full, last or none, got w=0",
        ),
        ("quest:goal=some", "got w=2, o=3, q=4, goal=some"),
        (
            "quest:show=some",
            "show must be none, or all for a list of the possible commands, got 'some'",
        ),
        ("quest:rooms=2", "unknown option 'rooms' in env='quest:rooms=2'; quest has "),
        (
            "household:task=cook",
            "household wants task all, place, two, light, clean, heat, cool and 2 to 30 things",
        ),
        ("repair:reward=half", "repair wants reward binary or ratio, got 'half'"),
        ("qest", "unknown environment 'qest' in env='qest'; did you mean quest"),
    ],
)
def test_options_that_are_refused(spec, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        make_env(spec)


def test_a_quest_that_does_not_exist(monkeypatch):
    monkeypatch.setattr(worlds, "MAX_DRAWS", 20)
    with pytest.raises(
        ValueError,
        match="no quest with w=1, o=2, q=12 in 20 attempts; use a smaller q, or more rooms",
    ):
        worlds.Quest(w=1, o=2, q=12).draw(np.random.default_rng(0))


OWN = """
from envs import Env

class Guess(Env):
    actions = ("left", "right")

    def __init__(self, *, doors: int = 2, locked: bool = True, **common):
        super().__init__(**common)
        self.doors, self.locked = doors, locked

    def draw(self, rng):
        return ("guess", int(rng.integers(10**6)))

    def _start(self, instance):
        self.number = instance[1]

    def _move(self, index):
        return float(index == self.number % 2), True, index == self.number % 2, True

    def observe(self):
        return f"Number {self.number}."

class Plain(Guess):
    def __init__(self, **common):
        super().__init__(**common)
"""


def test_an_environment_of_ones_own(tmp_path):
    path = tmp_path / "my_env.py"
    path.write_text(OWN)
    env = make_env(f"{path}:Guess,doors=3", max_actions=1)
    assert make_env(f"{path}:Guess,locked=False").locked is False and env.locked is True
    assert env.doors == 3 and env.reset(0) == f"Number {env.number}."
    assert env.step(["left", "right"][env.number % 2]).success
    assert (
        make_env(f"{path}:Plain").doors == 2
        and len(envs.reserved_instances(f"{path}:Guess")["eval"]) == 256
    )
    assert envs.mixture_at(f"2*{path}:Guess,doors=4 + bandit", 0) == {
        f"{path}:Guess,doors=4": pytest.approx(2 / 3),
        "bandit": pytest.approx(1 / 3),
    }
    path.write_text(
        OWN.replace('return ("guess", int(rng.integers(10**6)))', "raise KeyError('gone')")
    )
    envs.find_class.cache_clear()
    with pytest.raises(
        ValueError, match=r"env='.*:Guess,doors=9' cannot draw its instances: KeyError: 'gone'"
    ):
        make_episode(Config(env=f"{path}:Guess,doors=9"))
    for spec, message in [
        (
            f"{path}:Gues",
            r"my_env\.py has no environment 'Gues'; name one as .*\.py:CLASS, a subclass of envs\.Env",
        ),
        (f"{path}", "has no environment ''"),
        (f"{path}:make_env", "has no environment 'make_env'"),
        (f"{path}:Guess,door=3", "unknown option 'door' in env=.* has doors"),
        (f"{path}:Guess,max_actions=3", "unknown option 'max_actions'"),
        (f"{path}:Guess,doors=many", "doors wants int, got 'many'"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            make_env(spec)
    with pytest.raises(ValueError, match=r"nothing\.py cannot be loaded: FileNotFoundError"):
        make_env(f"{tmp_path}/nothing.py:Guess")
    for name, text, message in (
        ("a", "class", "SyntaxError"),
        ("b", "import nowhere", "ModuleNotFoundError: No mod"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(ValueError, match=rf"{name}\.py cannot be loaded: {message}"):
            make_env(f"{tmp_path}/{name}.py:Guess")


@pytest.mark.parametrize("module", [worlds, repair])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0
