"""
Tests of worlds/guess.py, the example of docs/environments.md. test_readme.py runs its commands.

    python -m pytest -q tests/test_examples.py
"""

from pathlib import Path

from gymnasium.utils.env_checker import check_env

from envs import make_env
from worlds.guess import NumberGame

SOURCE = Path(__file__).resolve().parent.parent / "worlds" / "guess.py"


def test_gymnasium_takes_the_game():
    check_env(NumberGame(50), skip_render_check=True)


def test_the_wrapper_is_short():
    wrapper = SOURCE.read_text(encoding="utf-8").split("class Guess")[1]
    assert len([line for line in wrapper.splitlines() if line.strip()]) < 45


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
