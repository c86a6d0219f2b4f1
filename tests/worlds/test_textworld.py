"""
Tests of worlds/text/textworld.py against the package textworld.

Most tests need the package, which this command installs:

    make test-extras
"""

from configurator import UserError

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
from worlds.text.base import drop_articles

ROOT = Path(__file__).resolve().parents[2]
PAPER_SIZES = [
    "w=2,o=3,q=4",
    "w=8,o=3,q=4",
    "w=2,o=12,q=4",
    "w=8,o=12,q=4",
    "w=4,o=6,q=8",
]
INSTALLED = find_spec("textworld") is not None
needs_textworld = pytest.mark.skipif(
    not INSTALLED, reason="no textworld: make test-extras installs it"
)


def opened(spec, index=0):
    env = make_env(spec, max_actions=99)
    env.start(env.draw(np.random.default_rng(index)), [0])
    return env


def words_of(game, text):
    """Return the names of rooms and things in a text. A name inside a longer name does not
    count."""
    names = sorted((x.name for x in game.infos.values() if x.name), key=len, reverse=True)
    text = text.lower()
    found = set()
    for name in map(str.lower, names):
        if name in text:
            found.add(name)
            text = text.replace(name, "")
    return found


def start_z_machine(game, folder):
    import textworld
    from textworld.generator import compile_game

    options = textworld.GameOptions()
    options.path = str(folder / "game.z8")
    wanted = ("admissible_commands", "score", "won", "lost", "description", "inventory")
    infos = textworld.EnvInfos(**dict.fromkeys(wanted, True))
    return textworld.start(compile_game(game, options), infos)


@pytest.mark.slow
@needs_textworld
@pytest.mark.parametrize("size", PAPER_SIZES)
def test_random_steps_agree_with_the_z_machine(size, tmp_path):
    env = opened(f"textworld:{size}")
    rng = np.random.default_rng(1)
    machine = start_z_machine(env.game, tmp_path)
    over = True
    for _ in range(200):
        if over:
            env.start(env.instance, [0])
            state = machine.reset()
            score = 0.0
        commands = {drop_articles(name): name for name in state.admissible_commands}
        assert list(env.commands) == sorted(commands)
        text = state.description.partition("-=")[2] + state.inventory
        assert words_of(env.game, " ".join(env.statements()[:4])) == words_of(env.game, text)
        exits = env.statements()[2].removeprefix("Exits ").rstrip(".").split(", ")
        open_ways = {way.split()[0] for way in exits if "(" not in way or "open)" in way}
        possible_ways = {name[3:] for name in commands if name.startswith("go ")}
        assert open_ways - {"nothing"} == possible_ways

        command = env.random(1, rng)[0]
        step = env.step(command)
        state, points, over = machine.step(commands[command])
        score += step.reward
        assert (score, step.terminated, step.success) == (points, over, state.won)
        env.num_actions = 0


@pytest.mark.slow
@needs_textworld
def test_a_game_is_that_of_tw_make(tmp_path):
    options = ["--world-size=2", "--nb-objects=3", "--quest-length=4", "--seed=7"]
    script = Path(sys.executable).with_name("tw-make")
    command = [sys.executable, script, "custom", *options, f"--output={tmp_path}/game.z8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    from worlds.text.textworld import textworld_game

    made = json.loads((tmp_path / "game.json").read_text())
    game = textworld_game("custom", 2, 3, 4, "dense", "detailed", 7)
    assert game.objective == made["objective"]
    assert game.metadata["walkthrough"] == made["metadata"]["walkthrough"]
    loaded = type(game).load(tmp_path / "game.json")
    assert sorted(map(str, game.world.facts)) == sorted(map(str, loaded.world.facts))


@pytest.mark.slow
@needs_textworld
@pytest.mark.parametrize(
    "spec",
    [
        *PAPER_SIZES,
        "game=simple,rewards=sparse",
        "game=simple,rewards=balanced",
        "game=simple,rewards=dense",
        "game=cooking,w=1,q=1",
        "game=cooking,w=6,q=3",
        "game=cooking,w=12,q=3",
    ],
)
def test_the_expert_wins_textworld(spec):
    env = opened(f"textworld:{spec}", 1)
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
    assert step.success
    assert total == pytest.approx(1)


@pytest.mark.slow
@needs_textworld
def test_densities_of_a_simple_game():
    """A win takes 8 commands. Sparse rewards pay only for the last command. Balanced rewards also
    pay for reaching the kitchen and taking the chips. Dense rewards also pay for opening the
    drawer, taking the key, unlocking the door and opening the door."""
    for rewards, payments in (("sparse", 1), ("balanced", 3), ("dense", 7)):
        env = opened(f"textworld:game=simple,rewards={rewards}", 1)
        paid = [env.step(command).reward for command in env.plan(99, 1)]
        assert len(paid) == 8
        assert [x for x in paid if x > 0] == pytest.approx([1 / payments] * payments)


@pytest.mark.slow
@needs_textworld
def test_a_lost_game_is_no_success():
    """The player gets 6 of the 7 rewards. Then the player eats the chips instead of putting them on
    the stove, and the game is lost."""
    env = opened("textworld:game=simple", 1)
    total = sum(env.step(command).reward for command in env.plan(99, 1)[:-1])
    step = env.step("eat half of a bag of chips")
    assert step.valid
    assert step.terminated
    assert not step.success
    assert total == pytest.approx(6 / 7)
    assert step.reward == 0
    assert env.plan(9, 1) == []


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
    assert first.startswith(f"Task: {env.game.objective}\nRoom bedchamber.")
    assert "go east" in env.game.objective
    assert not env.step("go west").valid
    assert env.num_actions == 0
    assert env.observe() == first

    step = env.step("  Go EAST. ")
    assert (step.success, step.valid, step.effective) == (False, True, True)
    assert env.statements()[1] == "Here spherical safe (locked), trunk (closed)."
    assert not env.step("look").effective
    note = env.step("examine the trunk").observation.split(". ")[-1]
    assert "trunk" in note
    assert "[" not in note

    assert opened("textworld:goal=none", 1).game.objective == ""
    assert len(opened("textworld:goal=brief", 1).game.objective) < len(env.game.objective)
    assert "Commands " in opened("textworld:show=all", 1).observe()


@needs_textworld
def test_a_cookbook_can_be_read():
    env = opened("textworld:game=cooking,w=1,q=1", 1)
    assert "roast the white onion" in env.step("examine cookbook").observation


@needs_textworld
def test_players_and_facts_of_textworld_are_possible_and_read_back():
    env = opened("textworld:game=cooking,w=6,q=3", 1)
    rng = np.random.default_rng(0)
    for _ in range(60):
        (command,) = env.random(3, rng)
        assert command in env.commands
        assert set(env.plan(1, 1)) <= env.commands.keys()
        facts = env.statements()
        assert check_thought(" ".join(facts), facts) == (len(facts), len(facts))
        if env.step(command).terminated:
            break


@pytest.mark.slow
@needs_textworld
def test_same_seed_same_game_of_textworld_in_another_process():
    spec = "textworld:w=8,o=12,q=4"
    code = (
        "import test_textworld\n"
        f"env = test_textworld.opened('{spec}', 3)\n"
        "print(env.observe(), env.plan(9, 1))"
    )
    env = opened(spec, 3)
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            text=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/worlds"},
        )
        assert found.stdout == f"{env.observe()} {env.plan(9, 1)}\n", found.stderr


@pytest.mark.parametrize(
    "options, message",
    [
        ("rewards=thick", "textworld needs game custom, simple or cooking, rewards sparse"),
        ("w=0", "needs w >= 1 rooms"),
        ("game=cooking", "needs w 1, 6, 9 or 12 rooms, q 1 to 5 ingredients, got w=2, q=4"),
    ],
)
def test_options_of_textworld_that_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_env(f"textworld:{options}")


@pytest.mark.skipif(INSTALLED, reason="textworld is installed")
def test_without_the_package_textworld_names_the_command():
    with pytest.raises(UserError, match="pip install -r requirements/textworld.txt"):
        make_env("textworld")


@pytest.mark.slow
@needs_textworld
def test_a_tiny_policy_trains_on_textworld(tmp_path):
    words = (
        "train.py config/quest_ppo.py config/models/tiny.py --env=textworld:w=2,o=3,q=4 "
        "--num_iterations=1 --num_groups=2 --group_size=2 --batch_size=2 --filter_keep=1.0 "
        "--eval_size=2 --max_context_tokens=2048 --max_turns=3 --actions_per_traj=3 "
        f"--max_response_tokens=32 --out_dir={tmp_path}/out"
    )
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert row["num_turns"] >= 1
    assert row["kept_trajectories"] == 4
