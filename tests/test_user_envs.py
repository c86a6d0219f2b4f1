"""
Tests of environments in a user's own file: --env=my_env.py:Class,key=value.

    python -m pytest -q tests/test_user_envs.py
"""

from configurator import Config

import pytest

import envs
from envs import make_env
from rollout import make_episode

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
DRAW = 'return ("guess", int(rng.integers(10**6)))'


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "my_env.py"
    path.write_text(OWN)
    return path


def test_an_environment_of_ones_own(path):
    env = make_env(f"{path}:Guess,doors=3", max_actions=1)
    assert (env.doors, env.locked) == (3, True)
    assert make_env(f"{path}:Guess,locked=False").locked is False
    assert make_env(f"{path}:Plain").doors == 2
    assert env.reset(0) == f"Number {env.number}."
    assert env.step(["left", "right"][env.number % 2]).success
    assert len(envs.reserved_instances(f"{path}:Guess")["eval"]) == 256
    assert envs.mixture_at(f"2*{path}:Guess,doors=4 + bandit", 0) == {
        f"{path}:Guess,doors=4": pytest.approx(2 / 3),
        "bandit": pytest.approx(1 / 3),
    }


def test_an_environment_that_cannot_draw(path):
    path.write_text(OWN.replace(DRAW, "raise KeyError('gone')"))
    message = r"env='.*:Guess,doors=9' cannot draw its instances: KeyError: 'gone'"
    with pytest.raises(ValueError, match=message):
        make_episode(Config(env=f"{path}:Guess,doors=9"))


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ":Gues",
            r"my_env\.py has no environment 'Gues'; name one as .*\.py:CLASS, "
            r"a subclass of envs\.Env",
        ),
        ("", "has no environment ''"),
        (":make_env", "has no environment 'make_env'"),
        (":Guess,door=3", "unknown option 'door' in env=.* has doors"),
        (":Guess,max_actions=3", "unknown option 'max_actions'"),
        (":Guess,doors=many", "doors wants int, got 'many'"),
    ],
)
def test_names_and_options_that_are_refused(path, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_env(f"{path}{options}")


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "FileNotFoundError"),
        ("class", "SyntaxError"),
        ("import nowhere", "ModuleNotFoundError: No mod"),
    ],
)
def test_files_that_cannot_be_loaded(tmp_path, text, message):
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"broken\.py cannot be loaded: {message}"):
        make_env(f"{path}:Guess")
