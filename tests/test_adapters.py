"""
Tests of TextWorld and ALFWorld behind our protocol against the packages themselves; skipped where these are missing.

    make test-extras
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dialogue import check_thought
from envs import make_env
from worlds import adapters

ROOT = Path(__file__).resolve().parent.parent
SIZES = [
    "w=2,o=3,q=4",
    "w=8,o=3,q=4",
    "w=2,o=12,q=4",
    "w=8,o=12,q=4",
    "w=4,o=6,q=8",
]  # of the paper
needs_textworld = pytest.mark.skipif(
    not find_spec("textworld"), reason="no textworld: make test-extras installs it"
)
needs_alfworld = pytest.mark.skipif(
    not find_spec("alfworld"), reason="no alfworld: make test-extras installs it"
)


def opened(spec, index=0, **options):
    env = make_env(spec, max_actions=99, **options)
    env.start(env.draw(np.random.default_rng(index)), [0])
    return env


def solve(env):
    """Play the expert's first command of every state; the last step and the sum of rewards."""
    total, optimal = 0.0, env.optimal_length()
    while True:
        step = env.step(env.plan(1, 1)[0])
        total += step.reward
        assert step.valid
        if step.terminated or step.truncated:
            assert env.plan(1, 1) == [] and (not optimal or env.num_actions <= optimal)
            return step, total


# ---------- TextWorld


def words_of(game, text):
    """Names of rooms and things of a game that a text mentions; a name inside a longer one does not count."""
    names, text = (
        sorted((x.name for x in game.infos.values() if x.name), key=len, reverse=True),
        text.lower(),
    )
    found = set()
    for name in map(str.lower, names):
        if name in text:
            found.add(name)
            text = text.replace(name, "")
    return found


@needs_textworld
@pytest.mark.parametrize("size", SIZES)
def test_random_steps_agree_with_the_z_machine(size, tmp_path):
    """200 in each of five sizes: possible commands, score, end and success, and which things can be seen."""
    import textworld
    from textworld.generator import compile_game

    env, rng, options = (
        opened(f"textworld:{size}"),
        np.random.default_rng(1),
        textworld.GameOptions(),
    )
    options.path = str(tmp_path / "game.z8")
    wanted = ("admissible_commands", "score", "won", "lost", "description", "inventory")
    machine = textworld.start(
        compile_game(env.game, options), textworld.EnvInfos(**dict.fromkeys(wanted, True))
    )
    state, over = machine.reset(), True
    for _ in range(200):
        if over:
            env.start(env.instance, [0])
            state, score = machine.reset(), 0.0
        commands = {adapters.bare(name): name for name in state.admissible_commands}
        assert list(env.commands) == sorted(commands)
        text = state.description.partition("-=")[2] + state.inventory
        assert words_of(env.game, " ".join(env.statements()[:4])) == words_of(env.game, text)
        exits = env.statements()[2].removeprefix("Exits ").rstrip(".").split(", ")
        open_ways = {way.split()[0] for way in exits if "(" not in way or "open)" in way} - {
            "nothing"
        }
        assert open_ways == {name[3:] for name in commands if name.startswith("go ")}
        name = env.random(1, rng)[0]
        step, (state, points, over) = env.step(name), machine.step(commands[name])
        score += step.reward
        assert (score, step.terminated, step.success) == (points, over, state.won)
        env.num_actions = 0


@needs_textworld
def test_a_game_is_that_of_tw_make(tmp_path):
    sizes = [
        "--world-size=2",
        "--nb-objects=3",
        "--quest-length=4",
        "--seed=7",
        f"--output={tmp_path}/game.z8",
    ]
    script = Path(sys.executable).with_name("tw-make")
    done = subprocess.run(
        [sys.executable, script, "custom", *sizes], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "game.json").read_text())
    game = adapters.textworld_game("custom", 2, 3, 4, "dense", "detailed", 7)
    assert (
        game.objective == made["objective"]
        and game.metadata["walkthrough"] == made["metadata"]["walkthrough"]
    )
    assert sorted(map(str, game.world.facts)) == sorted(
        map(str, type(game).load(tmp_path / "game.json").world.facts)
    )


@needs_textworld
@pytest.mark.parametrize(
    "spec",
    [
        *SIZES,
        "game=simple,rewards=sparse",
        "game=simple,rewards=balanced",
        "game=simple,rewards=dense",
        "game=cooking,w=1,q=1",
        "game=cooking,w=6,q=3",
        "game=cooking,w=12,q=3",
    ],
)
def test_the_expert_wins_textworld(spec):
    step, total = solve(opened(f"textworld:{spec}", 1))
    assert step.success and total == pytest.approx(1)


@needs_textworld
def test_densities_of_a_simple_game():
    """The same game (the chips lie in the refrigerator): the last command alone; the kitchen and the chips as well;
    also drawer, key, unlocked and opened door. 1, 3 and 7 payments in 8 commands."""
    for rewards, payments in (("sparse", 1), ("balanced", 3), ("dense", 7)):
        env = opened(f"textworld:game=simple,rewards={rewards}", 1)
        steps = [env.step(command).reward for command in env.plan(99, 1)]
        assert len(steps) == 8 and [r for r in steps if r > 0] == pytest.approx(
            [1 / payments] * payments
        )


@needs_textworld
def test_a_lost_game_is_no_success():
    """Eaten instead of cooked: the game is over, 6 of 7 milestones are paid."""
    env = opened("textworld:game=simple", 1)
    total = sum(env.step(command).reward for command in env.plan(99, 1)[:-1])
    step = env.step("eat half of a bag of chips")
    assert step.valid and step.terminated and not step.success
    assert total == pytest.approx(6 / 7) and step.reward == 0 and env.plan(9, 1) == []


@needs_textworld
def test_texts_of_textworld():
    env = opened("textworld", 1)
    first = env.observe()
    assert env.statements() == [
        "Room bedchamber.",
        "Here nothing.",
        "Exits east.",
        "Carrying nothing.",
    ]
    assert (
        first.startswith(f"Task: {env.game.objective}\nRoom bedchamber.")
        and "go east" in env.game.objective
    )
    assert not env.step("go west").valid and env.num_actions == 0 and env.observe() == first
    step = env.step("  Go EAST. ")
    assert (step.success, step.valid, step.effective) == (False, True, True)
    assert env.statements()[1] == "Here spherical safe (locked), trunk (closed)."
    assert not env.step("look").effective
    note = env.step("examine the trunk").observation.split(". ")[-1]
    assert "trunk" in note and "[" not in note
    assert opened("textworld:goal=none", 1).game.objective == ""
    assert len(opened("textworld:goal=brief", 1).game.objective) < len(env.game.objective)
    assert "Commands " in opened("textworld:show=all", 1).observe()


@needs_textworld
def test_a_cookbook_can_be_read():
    env = opened("textworld:game=cooking,w=1,q=1", 1)
    assert "roast the white onion" in env.step("examine cookbook").observation


@needs_textworld
def test_players_and_facts_of_textworld_are_possible_and_read_back():
    """It knows what can be done now, not what comes after; a recipe is a plan only as long as it can be walked."""
    env, rng = opened("textworld:game=cooking,w=6,q=3", 1), np.random.default_rng(0)
    for _ in range(60):
        (command,) = env.random(3, rng)
        assert command in env.commands and {*env.plan(1, 1)} <= env.commands.keys()
        facts = env.statements()
        assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))
        if env.step(command).terminated:
            break


@needs_textworld
def test_same_seed_same_game_of_textworld_in_another_process():
    code = "import test_adapters as t; e = t.opened('textworld:w=8,o=12,q=4', 3); print(e.observe(), e.plan(9, 1))"
    env = opened("textworld:w=8,o=12,q=4", 3)
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT / "tests",
            text=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )
        assert found.stdout == f"{env.observe()} {env.plan(9, 1)}\n", found.stderr


def test_options_of_textworld_that_are_refused():
    with pytest.raises(ValueError, match="textworld wants game"):
        make_env("textworld:rewards=thick")


@needs_textworld
def test_a_tiny_policy_trains_on_textworld(tmp_path):
    words = "train.py config/quest_ppo.py config/tiny.py --env=textworld:w=2,o=3,q=4 --num_iterations=1 --num_groups=2"
    words += " --group_size=2 --batch_size=2 --filter_keep=1.0 --eval_size=2 --max_context_tokens=2048 --max_turns=3"
    words += " --actions_per_traj=3 --max_response_tokens=32"
    done = subprocess.run(
        [sys.executable, *words.split(), f"--out_dir={tmp_path}/out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert row["num_turns"] >= 1 and row["kept_trajectories"] == 4


# ---------- ALFWorld

TASKS = list(adapters.ALFWorld.KEYS)


@needs_alfworld
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_wins_alfworld(task):
    """Four generated games of each of six types."""
    for index in range(4):
        env = opened(f"alfworld:task={task}", index)
        step, total = solve(env)
        assert step.success and total == 1 and 3 <= env.num_actions <= 20


STOCK = """
import json, sys
import numpy as np, textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
infos = textworld.EnvInfos(won=True, admissible_commands=True)
for path, seed in json.loads(sys.argv[1]):
    env, rng = textworld.start(path, infos, wrappers=[AlfredDemangler()]), np.random.default_rng(seed)
    state, seen = env.reset(), []
    for _ in range(20):
        command = str(rng.choice(state["admissible_commands"]))
        seen.append([state.feedback, state["won"], state["admissible_commands"], command])
        state, _, _ = env.step(command)
    print(json.dumps(seen))
"""


@needs_alfworld
def test_observations_of_alfworld_are_those_of_the_stock_engine(tmp_path):
    """20 random steps in a game of each type, in another process that has no patch."""
    games = []
    for i, task in enumerate(TASKS):
        games.append((str(tmp_path / f"{task}.tw-pddl"), i))
        data = adapters.alfworld_game(opened(f"alfworld:task={task}", i).instance)
        Path(games[-1][0]).write_text(json.dumps(data))
    stock = subprocess.run(
        [sys.executable, "-c", STOCK, json.dumps(games)], capture_output=True, text=True, check=True
    )
    for task, i, line in zip(TASKS, range(6), stock.stdout.splitlines()[-6:], strict=True):
        env = opened(f"alfworld:task={task}", i)
        for feedback, won, commands, command in json.loads(line):
            state = env.game.state
            assert (state.feedback, state["won"], state["admissible_commands"]) == (
                feedback,
                won,
                commands,
            )
            env.game.step(command)


@needs_alfworld
def test_a_game_of_alfworld_by_hand():
    env = make_env("alfworld", max_actions=9)
    things = (("egg 1", "microwave 1"), ("plate 1", "counter 1"))
    text = env.start(("household", "kitchen", "heat", "egg", "shelf", "", things), [0])
    assert text.endswith("\nYour task is to: put a hot egg in shelf.") and text.startswith(
        "You are in the middle"
    )
    step = env.step("go to the microwave 1")
    assert step.observation == f"{text}\nYou arrive at microwave 1. The microwave 1 is closed."
    assert env.statements() == ["You arrive at microwave 1.", "The microwave 1 is closed."]
    assert not env.step("take egg 1 from microwave 1").valid
    for command in (
        "open microwave 1",
        "take egg 1",
        "heat egg 1 with microwave 1",
        "go to shelf 1",
    ):
        assert env.step(command).effective
    assert not env.step("inventory").effective and env.statements() == [
        "You are carrying: a egg 1."
    ]
    step = env.step("move egg 1 to shelf 1")
    assert step.success and step.terminated and step.reward == 1


@needs_alfworld
def test_games_of_the_data_set_are_used_where_it_is(tmp_path, monkeypatch):
    """One solvable game of the type asked for; others are unsolvable, of another type, or with movable receptacles."""
    egg = ("household", "kitchen", "heat", "egg", "shelf", "", (("egg 1", "table 1"),))
    names = {
        "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_1": True,
        "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_2": False,
        "pick_cool_then_place_in_recep-Egg-None-Shelf-1/trial_3": True,
        "pick_heat_then_place_in_recep-EggSliced-None-Shelf-1/trial_4": True,
    }
    for name, solvable in names.items():
        file = tmp_path / "json_2.1.1/valid_unseen" / name / "game.tw-pddl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(adapters.alfworld_game(egg) | {"solvable": solvable}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    env = opened("alfworld:task=heat,part=valid_unseen", 5)
    assert env.instance == (
        "alfworld",
        "pick_heat_then_place_in_recep-Egg-None-Shelf-1/trial_1/game.tw-pddl",
    )
    assert solve(env)[0].success
    assert opened("alfworld:task=heat").instance[0] == "household"  # there is no part train
