"""Tests of the examples in docs/environments.md: my_env.py, my_data.jsonl and worlds/guess.py."""

import ast
import importlib
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

from envs import make_env
from worlds.guess import NumberGame

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "examples" / "my_env.py"
SOURCE = ROOT / "worlds" / "guess.py"


def test_the_template_works():
    env = make_env(f"{TEMPLATE}:Doors,reward=2")
    for seed in range(10):
        assert env.reset(seed) == "The prize is behind one of door 1 to 8."
        while not env.terminated:
            step = env.step(env.plan(1, 1)[0])
        assert step.success and step.reward == env.max_reward == 2
        # at worst, 3 actions reduce 2^3 = 8 doors to one door, and the fourth action opens it
        assert env.num_actions <= 4
    env.start(("doors", 2), [0])
    step = env.step("door 6")
    assert (step.reward, step.terminated, step.effective) == (0, False, True)
    assert step.observation == "The prize is behind one of door 1 to 5."
    assert env.statements() == ["Doors left 5."] and env.plan(1, 1) == ["door 3"]
    assert not env.step("door 7").effective


def commands_of_the_template():
    doc = ast.get_docstring(ast.parse(TEMPLATE.read_text(encoding="utf-8")))
    commands = []
    for line in doc.replace("\\\n", " ").splitlines():
        if line.startswith("python "):
            words = line.replace("python -m ", "").replace("python train.py", "train").split()
            commands.append(words)
    return commands


@pytest.mark.slow
def test_the_commands_of_the_template_work_as_they_stand(tmp_path, monkeypatch, capsys):
    for name in ("config", "examples"):
        (tmp_path / name).symlink_to(ROOT / name, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _: "door 4")
    small = ["--eval_size=2"]
    shorter = {
        "tools.check_env": [],
        "tools.play": [],
        "tools.sft": [*small, "--sft_steps=1"],
        "train": [*small, "--num_iterations=1", "--num_groups=2", "--batch_size=16"],
    }
    commands = commands_of_the_template()
    assert [script for script, *_ in commands] == list(shorter)
    for script, *arguments in commands:
        importlib.import_module(script).main([*arguments, *shorter[script]])
        out = capsys.readouterr().out
        assert ("warning: only 0 % of the replies are valid" in out) == (script == "tools.sft")
    assert (tmp_path / "out/doors/policy/config.json").is_file()


def test_every_question_of_the_example_data_can_be_answered():
    env = make_env(f"own_data:file={ROOT / 'examples/my_data.jsonl'}")
    num_calls = {}
    observations = {}
    for seed in range(200):
        question = env.reset(seed)
        num_calls[question] = 0
        while not env.terminated:
            step = env.step(env.plan(1, 8)[0])
            num_calls[question] += 1
            observations.setdefault(question, []).append(step.observation)
        assert step.success and step.reward == 1
    assert len(num_calls) == 12
    # Nine questions take two calls, a search and the answer. Three questions have the key "steps"
    # in the file and take more calls.
    assert sorted(num_calls.values()) == [2] * 9 + [3, 4, 4]
    seen = observations["What is the price of the red mug with delivery?"]
    assert "red mug: price 9, material clay." in seen[0]
    assert "Delivery: Delivery takes four days and costs 6." in seen[1]
    assert seen[2].endswith("9 + 6 = 15.")


def test_gymnasium_takes_the_game():
    check_env(NumberGame(50), skip_render_check=True)


def test_bisection_finds_every_number():
    env = make_env(f"{SOURCE}:Guess,largest=50")
    for secret in range(1, 51):
        env.start(("guess", secret), [0])
        while not env.terminated:
            step = env.step(env.plan(1, 1)[0])
        assert step.success and step.reward == 1 and env.num_actions <= 6  # 2^6 > 50
    env.start(("guess", 7), [0])
    assert not env.step("seven").valid and env.num_actions == 0
    assert env.step("9").observation == "Your last guess: lower."
    assert env.statements() == ["Between 1 and 8."]
