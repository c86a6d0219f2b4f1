"""
Tests of env=alfworld. Most of these tests need the package alfworld, which this command installs:

    make test-extras
"""

from configurator import UserError

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from envs import make_env
from worlds.text import alfworld

TASKS = list(alfworld.GOALS)
EGG_TO_SHELF = ("household", "kitchen", "heat", "egg", "shelf", "")
INSTALLED = find_spec("alfworld") is not None
needs_alfworld = pytest.mark.skipif(
    not INSTALLED, reason="no alfworld: make test-extras installs it"
)


def opened(spec, index=0):
    env = make_env(spec, max_actions=99)
    env.start(env.draw(np.random.default_rng(index)), [0])
    return env


def solve(env):
    """Make a new plan in every state, and play the first command of the plan."""
    optimal = env.optimal_length()
    total = 0.0
    done = False
    while not done:
        step = env.step(env.plan(1, 1)[0])
        assert step.valid
        total += step.reward
        done = step.terminated or step.truncated
    assert env.plan(1, 1) == []
    assert not optimal or env.num_actions <= optimal
    return step, total


@pytest.mark.slow
@needs_alfworld
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_wins_alfworld(task):
    for index in range(4):
        env = opened(f"alfworld:task={task}", index)
        step, total = solve(env)
        assert step.success
        assert total == 1
        assert 3 <= env.num_actions <= 20


STOCK = """
import json, sys
import numpy as np, textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

infos = textworld.EnvInfos(won=True, admissible_commands=True)
for path, seed in json.loads(sys.argv[1]):
    env = textworld.start(path, infos, wrappers=[AlfredDemangler()])
    rng = np.random.default_rng(seed)
    state, seen = env.reset(), []
    for _ in range(20):
        command = str(rng.choice(state["admissible_commands"]))
        seen.append([state.feedback, state["won"], state["admissible_commands"], command])
        state, _, _ = env.step(command)
    print(json.dumps(seen))
"""


@pytest.mark.slow
@needs_alfworld
def test_observations_of_alfworld_are_those_of_the_stock_engine(tmp_path):
    """The stock engine runs in another process, because worlds/text/alfworld.py replaces some
    functions of the engine in this process."""
    games = []
    for index, task in enumerate(TASKS):
        path = tmp_path / f"{task}.tw-pddl"
        data = alfworld.alfworld_game(opened(f"alfworld:task={task}", index).instance)
        path.write_text(json.dumps(data))
        games.append((str(path), index))
    command = [sys.executable, "-c", STOCK, json.dumps(games)]
    stock = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = stock.stdout.splitlines()[-len(TASKS) :]
    for index, task in enumerate(TASKS):
        engine = opened(f"alfworld:task={task}", index).engine
        for feedback, won, commands, command in json.loads(lines[index]):
            state = engine.state
            assert state.feedback == feedback
            assert state["won"] == won
            assert state["admissible_commands"] == commands
            engine.step(command)


@needs_alfworld
def test_a_game_of_alfworld_by_hand():
    env = make_env("alfworld", max_actions=9)
    things = (("egg 1", "microwave 1"), ("plate 1", "counter 1"))
    text = env.start((*EGG_TO_SHELF, things), [0])
    assert text.startswith("You are in the middle")
    assert text.endswith("\nYour task is to: put a hot egg in shelf.")
    step = env.step("go to the microwave 1")
    assert step.observation == f"{text}\nYou arrive at microwave 1. The microwave 1 is closed."
    assert env.statements() == ["You arrive at microwave 1.", "The microwave 1 is closed."]
    assert not env.step("take egg 1 from microwave 1").valid
    way = ["open microwave 1", "take egg 1", "heat egg 1 with microwave 1", "go to shelf 1"]
    assert all(env.step(command).effective for command in way)
    assert not env.step("inventory").effective
    assert env.statements() == ["You are carrying: a egg 1."]
    step = env.step("move egg 1 to shelf 1")
    assert step.success
    assert step.terminated
    assert step.reward == 1


@needs_alfworld
def test_games_of_the_data_set_are_used_if_it_is_installed(tmp_path, monkeypatch):
    """Only trial_1 can be used: trial_2 is unsolvable, trial_3 has another task type, and trial_4
    needs a sliced egg."""
    egg = (*EGG_TO_SHELF, (("egg 1", "table 1"),))
    names = {
        "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_1": True,
        "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_2": False,
        "pick_cool_then_place_in_recep-Egg-None-Shelf-1/trial_3": True,
        "pick_heat_then_place_in_recep-EggSliced-None-Shelf-1/trial_4": True,
    }
    folder = tmp_path / "json_2.1.1/valid_unseen"
    for name, solvable in names.items():
        file = folder / name / "game.tw-pddl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(alfworld.alfworld_game(egg) | {"solvable": solvable}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    env = opened("alfworld:task=heat,part=valid_unseen", 5)
    name = "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_1/game.tw-pddl"
    assert env.instance == ("alfworld", name)
    assert solve(env)[0].success
    # The default is part=train. This test's data set lacks this part, so a game is generated.
    assert opened("alfworld:task=heat").instance[0] == "household"

    (folder / name).write_text("{}")
    with pytest.raises(UserError, match="has no pddl_domain, grammar, pddl_problem, solvable"):
        env.start(env.instance, [0])
    (folder / name).write_text("no game")
    with pytest.raises(UserError, match="cannot be read as a game of ALFWorld"):
        env.start(env.instance, [0])


def test_parts_of_the_data_set_that_are_refused():
    with pytest.raises(UserError, match="part must be one of train, valid_seen, valid_unseen"):
        make_env("alfworld:part=test")


@pytest.mark.skipif(INSTALLED, reason="alfworld is installed")
def test_without_the_package_alfworld_names_the_command():
    with pytest.raises(UserError, match="pip install -r requirements/alfworld.txt"):
        make_env("alfworld")
