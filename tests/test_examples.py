"""The example of docs/environments.md: gymnasium's checker takes the game; test_readme.py runs its commands.

Run with:  python -m pytest -q tests/test_examples.py
"""

from pathlib import Path

from gymnasium.utils.env_checker import check_env

from envs import make_env

ROOT = Path(__file__).resolve().parent.parent


def test_gymnasium_takes_the_game(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "worlds"))
    import guess

    check_env(guess.Number(50), skip_render_check=True)


def test_the_wrapper_is_short():
    source = (ROOT / "worlds/guess.py").read_text().split("class Guess")[1]
    assert 1 + len([line for line in source.splitlines()[1:] if line.strip()]) < 30


def test_bisection_finds_every_number():
    env = make_env(f"{ROOT}/worlds/guess.py:Guess,largest=50")
    for secret in range(1, 51):
        env.start(("guess", secret), [0])
        while not env.terminated:
            step = env.step(env.plan(1, 1)[0])
        assert step.success and step.reward == 1 and env.num_actions <= 6  # 2^6 > 50
    env.start(("guess", 7), [0])
    assert not env.step("seven").valid and env.num_actions == 0
    assert env.step("9").observation == "Your last guess: lower." and env.statements() == [
        "Between 1 and 8."
    ]
