"""Tests of the text worlds: games by hand, plans compared with
brute force, and random texts as commands."""

from configurator import Config, load_config

import doctest
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_fixtures import config_file
from text_games import (
    BLIND_QUEST,
    FAULTY,
    HOUSE,
    HOUSE_PLAN,
    KITCHEN,
    LONG_QUEST,
    QUEST,
    SPECS,
    STUDY,
    digest,
    drawn,
    opened,
    play,
)

import envs
from dialogue import Episode, check_thought
from envs import make_env
from methods import shape_rewards
from tools.sft_config import SftConfig
from worlds.text import base, household, quest

ROOT = pathlib.Path(envs.__file__).parent


# ---------- Quest by hand


def test_quest_by_hand():
    env = opened(HOUSE, goal="last", show="all")
    assert env.observe().split("\n") == [
        "Task: put coin on table.",
        "Room cellar. Here red box (locked). Exits east (blue door closed). Carrying nothing.",
        "Commands open blue door, look, inventory, examine blue door, examine red box.",
    ]
    assert env.plan(99, 1) == HOUSE_PLAN
    assert env.plan(2, 1) == HOUSE_PLAN[:2]
    assert env.optimal_length() == 9

    steps = play(env, HOUSE_PLAN)
    # Five commands are paid: open door, take key, unlock box, take coin, put coin on table.
    rewards = [step.reward for step in steps]
    assert rewards == pytest.approx([0.2, 0, 0.2, 0, 0.2, 0, 0.2, 0, 0.2])
    assert [step.success for step in steps] == [False] * 8 + [True]
    assert steps[-1].terminated
    assert env.optimal_length() == 0
    assert env.plan(3, 1) == []
    assert not env.step("go west").valid


def test_quest_shows_the_present_room_only():
    env = opened(HOUSE, goal="full")
    assert env.observe().split("\n")[0] == f"Task: {', '.join(HOUSE_PLAN)}."

    env = opened(HOUSE, goal="none")
    assert "coin" not in env.observe()
    assert "table" not in env.observe()
    play(env, ["open blue door", "go east"])
    assert env.observe() == (
        "Room attic. Here table (nothing), red key. Exits west (blue door open). Carrying nothing."
    )
    play(env, ["take red key", "go west", "unlock red box with red key"])
    assert env.observe() == (
        "Room cellar. Here red box (closed). Exits east (blue door open). Carrying red key."
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
    assert not step.valid
    assert step.observation == before
    assert env.num_actions == 0


def test_a_thing_is_taken_without_its_place():
    env = opened(HOUSE)
    play(env, HOUSE_PLAN[:6])
    assert env.step("take coin").effective
    assert env.facts["coin"] == "you"
    assert not env.step("look").effective


def test_parts_are_paid_once_and_a_late_game_less_than_a_win():
    env = opened(HOUSE, max_actions=11)
    again = ["put coin in red box", "take coin"]
    steps = play(env, [*HOUSE_PLAN[:7], *again, *again, "look"])
    assert sum(step.reward for step in steps) == pytest.approx(0.8)
    assert steps[-2].truncated
    assert not steps[-1].valid


# ---------- Household by hand


def test_household_by_hand():
    env = opened(KITCHEN)
    assert env.observe().split("\n")[1:] == [
        "Task: put some hot apple in/on table.",
        "At the middle of the room (nothing). Carrying nothing.",
    ]
    plan = [
        "go to drawer 1",
        "open drawer 1",
        "take apple 1 from drawer 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
        "go to table 1",
        "put apple 1 in/on table 1",
    ]
    assert env.plan(99, 1) == plan
    assert env.optimal_length() == 7

    steps = play(env, plan)
    assert [step.reward for step in steps] == pytest.approx([0, 0, 1 / 3, 0, 1 / 3, 0, 1 / 3])
    assert "At drawer 1 (closed). Carrying nothing." in steps[0].observation
    assert "At drawer 1 (apple 1). Carrying nothing." in steps[1].observation
    assert "At table 1 (mug 1). Carrying hot apple 1." in steps[5].observation
    assert steps[-1].success


COOL_APPLE = [
    "go to drawer 1",
    "open drawer 1",
    "take apple 1",
    "go to fridge 1",
    "cool apple 1 with fridge 1",
    "go to table 1",
    "put apple 1 in/on table 1",
]


def test_household_wants_the_treatment_of_the_task():
    env = opened(KITCHEN)
    steps = play(env, COOL_APPLE)
    assert not steps[-1].success
    assert env.best_progress == pytest.approx(1 / 3)
    assert env.plan(99, 1)[:2] == ["take apple 1 from table 1", "go to microwave 1"]


def test_household_takes_a_treated_thing_if_the_task_wants_no_treatment():
    env = opened((*KITCHEN[:2], "place", *KITCHEN[3:]))
    steps = play(env, COOL_APPLE)
    assert [step.reward for step in steps] == [0, 0, 0.5, 0, 0, 0, 0.5]
    assert steps[-1].success


def test_household_light_by_hand():
    env = opened(STUDY)
    assert "look at some book under the desklamp" in env.observe()
    plan = ["go to bed 1", "take book 1 from bed 1", "go to desk 1", "use desklamp 1"]
    assert env.plan(99, 1) == plan
    steps = play(env, plan)
    assert [step.reward for step in steps] == [0, 0.5, 0, 0.5]
    assert steps[-1].success

    env = opened(STUDY)
    assert [step.reward for step in play(env, ["go to desk 1", "use desklamp 1"])] == [0, 0]

    env = opened((*STUDY[:5], "drawer 1", STUDY[6]))
    assert env.plan(99, 1) == [*plan[:2], "go to drawer 1", "open drawer 1", "use desklamp 1"]
    play(env, [*plan[:2], "go to drawer 1"])
    assert "use desklamp 1" not in env.commands


def test_household_carries_one_thing():
    mugs = (("mug 1", "shelf 1"), ("mug 2", "shelf 1"))
    env = opened(("household", "kitchen", "two", "mug", "table", "", mugs))
    play(env, ["go to shelf 1", "take mug 1"])
    assert not env.step("take mug 2").valid
    assert env.optimal_length() == 6
    assert "put two mug in/on table" in env.observe()
    first = ["go to table 1", "put mug 1 in/on table 1"]
    second = ["go to shelf 1", "take mug 2", "go to table 1"]
    assert not any(step.success for step in play(env, first + second))
    assert env.best_progress == pytest.approx(3 / 4)
    assert env.step("put mug 2 in/on table 1").success


def test_household_stores_two_things_where_the_player_is():
    """The task is to put two newspapers into one drawer. Both drawers are open, and the player is
    at drawer 2 with newspaper 1. The shortest plan uses drawer 2. A plan with drawer 1 needs one
    more command."""
    papers = (("newspaper 1", "armchair 1"), ("newspaper 2", "table 1"))
    env = opened(("household", "livingroom", "two", "newspaper", "drawer", "", papers))
    way = ["go to armchair 1", "take newspaper 1", "go to drawer 1", "open drawer 1"]
    play(env, [*way, "go to drawer 2", "open drawer 2"])
    assert env.plan(99, 1) == [
        "put newspaper 1 in/on drawer 2",
        "go to table 1",
        "take newspaper 2 from table 1",
        "go to drawer 2",
        "put newspaper 2 in/on drawer 2",
    ]


def test_what_changes_nothing_has_no_effect():
    env = opened(KITCHEN)
    way = ["go to drawer 1", "open drawer 1", "take apple 1 from drawer 1", "go to microwave 1"]
    assert all(step.effective for step in play(env, way))
    again = [env.step("heat apple 1 with microwave 1") for _ in range(2)]
    assert [(step.valid, step.effective) for step in again] == [(True, True), (True, False)]


# ---------- plans

# Maps a spec to the numbers of commands that a plan may have. Plans of other specs have 2 commands.
PLAN_LENGTHS = {QUEST: {4}, LONG_QUEST: {8}, BLIND_QUEST: {4}, "household": set(range(3, 12))}


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS)
def test_plans_solve_instances(spec, count):
    env, instances = drawn(spec, count)
    lengths = set()
    for instance in instances:
        env.start(instance, [0])
        length = env.optimal_length()
        plan = env.plan(99, 1)
        assert len(plan) == length
        steps = play(env, plan)
        assert [step.success for step in steps] == [False] * (length - 1) + [True]
        assert sum(step.reward for step in steps) == pytest.approx(env.max_reward)
        assert env.optimal_length() == 0
        lengths.add(length)
    assert lengths <= PLAN_LENGTHS.get(spec, {2})
    assert len(set(instances)) > 0.75 * count


def brute_force(env, max_length):
    """Return the number of commands of a shortest solution, or None if it is above `max_length`."""
    states = [env.facts]
    seen = {tuple(env.facts.values())}
    for length in range(max_length + 1):
        if any(env.progress(facts) == 1 for facts in states):
            return length
        next_states = []
        for facts in states:
            for changes in env.effects(facts).values():
                after = facts | changes
                key = tuple(after.values())
                if key not in seen:
                    seen.add(key)
                    next_states.append(after)
        states = next_states
    return None


@pytest.mark.parametrize(
    "spec, max_length", [(QUEST, 6), ("quest:w=3,o=5,q=6", 8), ("household:things=2", 5)]
)
def test_plans_are_shortest_also_after_random_moves(spec, max_length):
    env, instances = drawn(spec, 12)
    rng = np.random.default_rng(0)
    compared = 0
    for instance in instances:
        env.start(instance, [0])
        for _ in range(2):
            length = env.optimal_length()
            if length <= max_length:
                assert brute_force(env, length) == length
                compared += 1
            play(env, env.random(3, rng))
    assert compared >= 8


@pytest.mark.parametrize("task", household.TASKS)
def test_each_task_type_alone(task):
    env, instances = drawn(f"household:task={task}", 12)
    for instance in instances:
        env.start(instance, [0])
        assert instance[2] == task
        assert env.progress(env.facts) == 0
        assert play(env, env.plan(99, 1))[-1].success


# ---------- players and rewards


def random_success_rate(spec, num_instances, num_episodes, max_actions=24):
    env, instances = drawn(spec, num_instances, max_actions=max_actions)
    rng = np.random.default_rng(1)
    wins = 0
    for episode in range(num_episodes):
        env.start(instances[episode % num_instances], [0])
        total = 0.0
        done = False
        while not done:
            step = env.step(env.random(1, rng)[0])
            assert step.valid
            total += step.reward
            done = step.terminated or step.truncated
        assert (total == pytest.approx(1)) == step.success
        assert total < 1 + 1e-9
        wins += step.success
    return wins / num_episodes


@pytest.mark.slow
def test_a_random_player_is_as_weak_as_in_textworld():
    # In TextWorld, a random player wins 3.3 % of games within 12 commands.
    assert 0.01 < random_success_rate(QUEST, 150, 600, max_actions=12) < 0.08
    assert random_success_rate(LONG_QUEST, 30, 60) <= 0.05
    assert random_success_rate("household", 60, 60) <= 0.05
    assert random_success_rate("repair:reward=ratio", 60, 60, max_actions=8) <= 0.05


@pytest.mark.parametrize("density", ["sparse", "balanced", "dense", "plan"])
def test_a_win_is_worth_more_than_any_loss(density):
    env, instances = drawn(QUEST, 20, max_actions=8)
    rng = np.random.default_rng(2)
    for instance in instances:
        env.start(instance, [0])
        plan = env.plan(99, 1)
        follows_plan = rng.integers(2) == 0
        rewards = []
        plan_lengths = [env.optimal_length()]
        done = False
        while not done:
            step = env.step(plan.pop(0) if follows_plan else env.random(1, rng)[0])
            rewards.append(step.reward)
            plan_lengths.append(env.optimal_length())
            done = step.terminated or step.truncated
        total = sum(shape_rewards(rewards, step.success, density, plan_lengths=plan_lengths))
        assert total == pytest.approx(1) if step.success else total < 1


# ---------- instances


def listed_otherwise(instance):
    """Return an instance that describes the same game in another way.

    A quest gets reversed lists of links, furniture and facts. Each link is written from its other
    end, and the solution `path` gets one more command, `look`. The list of things in a household is
    reversed, and the things get new numbers.
    """
    if instance[0] == "household":
        *parts, things = instance
        kinds = [name.split()[0] for name, _ in things[::-1]]
        places = [place for _, place in things[::-1]]
        return (*parts, tuple(zip(household.numbered(kinds), places, strict=True)))
    name, links, furniture, facts, goal, path = instance
    links = tuple((b, quest.OPPOSITE[way], a, door) for a, way, b, door in links[::-1])
    return (name, links, furniture[::-1], facts[::-1], goal, (*path, "look"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["quest:w=4,o=6,q=4", "household"])
def test_the_same_game_listed_otherwise_is_not_for_training(spec, monkeypatch):
    env = make_env(spec)
    reserved = []
    for instances in envs.reserved_instances(spec).values():
        reserved += instances
    others = [listed_otherwise(instance) for instance in reserved]
    assert not set(others) & set(reserved)
    keys = [env.key(instance) for instance in reserved]
    assert keys == [env.key(instance) for instance in others]
    assert len(set(keys)) == 512

    fresh = envs.draw_instance(spec, (5,), "train")
    draws = iter([*others[:3], fresh])
    monkeypatch.setattr(type(env), "draw", lambda *_: next(draws))
    assert envs.draw_instance.__wrapped__(spec, (6,), "train") == fresh


@pytest.mark.parametrize(
    "spec", [pytest.param("quest:w=4,o=6,q=4", marks=pytest.mark.slow), "household", "repair"]
)
def test_splits_are_disjoint(spec):
    env = make_env(spec)
    reserved = envs.reserved_instances(spec)
    held_out = {*reserved["eval"], *reserved["heldout"]}
    assert len(held_out) == 512
    train = set()
    for seed in range(150):
        env.reset([seed, 1])
        train.add(env.instance)
    assert not train & held_out
    assert len(train) > 100


@pytest.mark.slow
def test_same_seed_same_game_in_another_process():
    paths = [str(ROOT), str(ROOT / "tests/worlds")]
    code = f"import sys; sys.path[:0] = {paths!r}; import text_games; print(text_games.digest())"
    runs = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        runs.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    assert {run.communicate(timeout=300)[0].strip() for run in runs} == {digest()}


# ---------- texts

VOCABULARY = """go to take put open close unlock edit 2: read run submit east drawer 1 table fridge
in on in/on from with red key box coin apple return n x > = ( [ while True: for if"""
WORDS = st.lists(st.sampled_from(VOCABULARY.split()))
POSSIBLE = st.integers(0, 40)
TEXTS = st.one_of(st.text(max_size=40), WORDS.map(" ".join), POSSIBLE)


@pytest.mark.slow
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(TEXTS, min_size=8, max_size=14), st.integers(0, 5))
@pytest.mark.parametrize("instance", [HOUSE, KITCHEN, FAULTY], ids=lambda instance: instance[0])
def test_any_text_is_a_command_or_not(instance, texts, seed):
    env = opened(instance, max_actions=9)
    rng = np.random.default_rng(seed)
    total = 0.0
    success = False
    for text in texts:
        if isinstance(text, int):
            text = env.random(1, rng)[0]
        before = env.observe()
        left = env.actions_left
        step = env.step(text)
        total += step.reward
        success = success or step.success
        assert step.valid == (env.actions_left < left)
        if not step.valid:
            assert step.observation == before
            assert step.reward == 0
        assert (total > 1 - 1e-9) == success
        assert 0 <= total < 1 + 1e-9


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
    config = Config(think=False, max_turns=12, actions_per_turn=1)
    episode = Episode(make_env(QUEST, max_actions=12), config)
    system, _ = episode.reset(0)
    assert system == episode.reset(1)[0]
    assert "Actions:" not in system
    assert "At most 1 action a turn." in system
    outcome = episode.step("<answer>dance</answer>")
    assert outcome.user.startswith(
        'Reward -0.1. Unknown action: "dance". No action was executed; nothing changed.'
    )
    for command in episode.env.plan(99, 1):
        outcome = episode.step(f"<answer>{command}</answer>")
    assert outcome.status == "success"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quest_ppo", "household_ppo", "repair_grpo"])
def test_players_and_demonstrations(name, chat):
    from eval import play_reference
    from tools.demonstrations import demonstration

    config = load_config([config_file(name)], kind=SftConfig)[0]
    config = replace(config, eval_size=12, sft_actions=1)
    rates = {}
    for player in ("random", "greedy", "optimal"):
        trajectories = play_reference(config, player)
        for trajectory in trajectories:
            assert all(turn.record.format_ok for turn in trajectory.turns)
        rates[player] = sum(t.success for t in trajectories) / len(trajectories)
    assert rates["optimal"] == 1 > rates["random"]
    config = replace(config, max_context_tokens=16384)
    assert all(demonstration(config, chat, index).success for index in range(3))


# ---------- names and options


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            "quest:w=0",
            "quest needs w 1..9 rooms, o 2..16 objects, q 1..12 commands, "
            "goal full, last or none, got w=0",
        ),
        ("quest:goal=some", "got w=2, o=3, q=4, goal=some"),
        (
            "quest:show=some",
            "show must be none or all, got 'some'; show=all lists the possible commands",
        ),
        ("quest:rooms=2", "unknown option 'rooms' in env='quest:rooms=2'; quest has "),
        (
            "household:task=cook",
            "household needs 2 to 30 things, and task=all or one of place, two, light, clean, "
            "heat, cool; got task=cook, things=8",
        ),
        ("repair:reward=half", "repair needs reward binary or ratio, got 'half'"),
        ("qest", "unknown environment 'qest' in env='qest'; did you mean quest"),
    ],
)
def test_options_that_are_refused(spec, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        make_env(spec)


def test_a_quest_that_does_not_exist(monkeypatch):
    monkeypatch.setattr(quest, "MAX_DRAWS", 20)
    message = "no quest with w=1, o=2, q=12 in 20 attempts; use a smaller q, or more rooms"
    with pytest.raises(ValueError, match=message):
        quest.Quest(w=1, o=2, q=12).draw(np.random.default_rng(0))


def test_a_missing_package_is_named_with_its_command():
    command = "nothing_here is not installed; install it with pip install -r requirements/none.txt"
    with pytest.raises(ValueError, match=command):
        base.require_package("nothing_here", "requirements/none.txt")


@pytest.mark.parametrize("module", [base, quest, household])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0
