"""Tests of environments in a user's own file: --env=my_env.py:Class,key=value."""

from configurator import Config

import subprocess
import sys

import numpy as np
import pytest

import envs
from envs import make_env, missing_method
from mixtures import mixture_at
from players import reference_actions
from rollout import Reply, Rollout, make_episode, play

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

    def rules(self):
        return "Guess."

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
    assert mixture_at(f"2*{path}:Guess,doors=4 + bandit", 0) == {
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
            r"my_env\.py has no environment 'Gues'; expected .*\.py:CLASS; "
            r"subclasses of envs\.Env in this module: Guess, Plain",
        ),
        ("", "has no environment ''"),
        (":make_env", "has no environment 'make_env'"),
        (":Guess,door=3", "unknown option 'door' in env=.* has doors"),
        (":Guess,max_actions=3", "unknown option 'max_actions'"),
        (":Guess,doors=many", "doors must be int, got 'many'"),
    ],
)
def test_names_and_options_that_are_refused(path, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_env(f"{path}{options}")


@pytest.mark.parametrize(
    "text, message",
    [
        (None, " does not exist; expected a file with a subclass of envs.Env"),
        ("class", " cannot be loaded: SyntaxError"),
        ("import nowhere", " cannot be loaded: ModuleNotFoundError: No mod"),
    ],
)
def test_files_that_cannot_be_loaded(tmp_path, text, message):
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"broken\.py{message}"):
        make_env(f"{path}:Guess")


# ---------- what a class must define


@pytest.mark.parametrize(
    "before, after, message",
    [
        (
            "def rules",
            "def rulez",
            r"my_env\.py:Guess does not define rules; docs/environments\.md",
        ),
        ("def _start", "def start_", r"Guess does not define _start; "),
        ("doors: int = 2", "doors", r"argument doors of .*:Guess\.__init__ must be a keyword"),
        ("doors: int = 2", "doors: int = None", r"argument doors of .* a default that is a number"),
        ("*, doors: int = 2, locked", "doors: int = 2, /, locked", r"argument doors of .* keyword"),
        ("locked: bool = True, **common", "locked: bool = True", r"must take \*\*common and call"),
        ("super().__init__(**common)", "pass", r"__init__ of .* must call super\(\)\.__init__"),
        ('("left", "right")', '"left"', r"actions of Guess must be a tuple of .* got 'left'"),
        ('("left", "right")', '("left", "Left")', r"actions of Guess .* different names"),
        ('("left", "right")', '("left", 1)', r"actions of Guess must be a tuple"),
        ('("left", "right")', '(" left", "right")', r"actions of Guess .* end with a space"),
        ('("left", "right")', '("a||b", "right")', r"actions of Guess .* hold no '\|\|'"),
        ("actions =", "max_reward = 0; actions =", r"max_reward of Guess .* above 0, got 0"),
        ("self.doors,", "raise RuntimeError; self.doors,", r"cannot be built: RuntimeError$"),
        ("self.doors,", "sys.exit(0); self.doors,", r"cannot be built: SystemExit: 0$"),
        ("from envs import Env", "from envs import Env; sys.exit(0)", r"be loaded: SystemExit: 0$"),
        (
            "class Guess(Env):",
            "import abc\nclass Guess(Env, abc.ABC):\n    go = abc.abstractmethod(lambda self: 1)",
            "cannot be built: TypeError: Can't instantiate abstract class Guess",
        ),
        ("class Guess(Env)", "class Guess", r"no environment 'Guess'; .* in this module: none"),
    ],
)
def test_a_wrong_class_is_one_sentence(path, before, after, message):
    text = OWN.split("class Plain")[0]
    assert before in text
    path.write_text("import sys\n" + text.replace(before, after))
    with pytest.raises(ValueError, match=message):
        make_env(f"{path}:Guess")


def test_options_without_a_star(path):
    path.write_text(OWN.replace("*, doors", "doors"))
    assert make_env(f"{path}:Guess,doors=3").doors == 3


def test_files_beside_it_and_dataclasses(path):
    (path.parent / "my_numbers.py").write_text("LARGEST = 7")
    more = """
from __future__ import annotations
from dataclasses import dataclass
from my_numbers import LARGEST

@dataclass
class Point:
    x: int = LARGEST
"""
    path.write_text(more + OWN)
    assert make_env(f"{path}:Guess").doors == 2


@pytest.mark.parametrize(
    "draw, message",
    [
        ("return ['guess', 1]", r"Guess\.draw returned \['guess', 1\]; expected a tuple"),
        ("return ('guess', [1])", r"Guess\.draw returned .* it must be hashable \(unhashable type"),
        ("import random; return (random.random(),)", "take all randomness from its argument rng"),
        ("raise SystemExit(0)", "cannot draw its instances: SystemExit: 0"),
    ],
)
def test_instances_that_are_refused(path, draw, message):
    path.write_text(OWN.replace(DRAW, draw))
    with pytest.raises(ValueError, match=message):
        make_episode(Config(env=f"{path}:Guess"))


# ---------- what the methods of a class return

METHODS = """
    def statements(self):
        return ["A fact."]

    def plan(self, max_actions, turns_left):
        return ["left"]

class Plain"""
MOVE = "return float(index == self.number % 2), True, index == self.number % 2, True"


def played(path, before, after, **settings):
    text = OWN.replace("\nclass Plain", METHODS)
    assert before in text
    path.write_text("import sys\nimport numpy as np\n" + text.replace(before, after))
    config = Config(env=f"{path}:Guess", **settings)
    rollout = Rollout(make_episode(config), (0,))
    rollout.reset("eval")

    def player(rollout):
        (action,) = reference_actions(rollout.episode, "optimal", np.random.default_rng(0))
        return Reply(f"<think>A fact.</think><answer>{action}</answer>")

    return play(rollout, player)


@pytest.mark.parametrize(
    "before, after, error",
    [
        ('return f"Number {self.number}."', "return 7", "Guess.reset returned 7; expected a text"),
        ('return f"Number {self.number}."', "return None", "Guess.reset returned None; expected a"),
        (
            'return f"Number {self.number}."',
            'return "a" if not self.num_actions else "b\\ud800"',
            r"Guess.observe returned a text with the lone surrogate '\ud800'; expected characters",
        ),
        ('return "Guess."', 'return b"Guess."', "Guess.rules returned b'Guess.'; expected a text"),
        ('return ["A fact."]', 'return "A fact."', "Guess.statements returned 'A fact.'; expected"),
        ('return ["A fact."]', "return [None]", "Guess.statements returned None; expected a text"),
        ('return ["A fact."]', 'return [" "]', "Guess.statements returned an empty sentence"),
        (MOVE, "return None", "Guess._move returned None; expected (reward, terminated, success, "),
        (MOVE, "return 1.0, True, True", "Guess._move returned (1.0, True, True); expected ("),
        (
            MOVE,
            'return "1", True, True, True',
            "Guess._move returned the reward '1'; expected a number",
        ),
        (
            MOVE,
            "return None, True, True, True",
            "Guess._move returned the reward None; expected a number",
        ),
        (MOVE, "return 1e12, True, True, True", "its reward is 1e+12"),
        (MOVE, "sys.exit(0)", "SystemExit: 0"),
        (
            "def rules",
            "def step(self, action): pass\n    def rules",
            "Guess.step returned None; ex",
        ),
        ('actions = ("left", "right")', "", "Guess has no actions; set actions, or define _read("),
    ],
)
def test_a_wrong_value_is_an_error_of_the_environment(path, before, after, error):
    trajectory = played(path, before, after)
    assert (trajectory.status, trajectory.score) == ("error", 0.0)
    assert trajectory.error.startswith(error)


@pytest.mark.parametrize("reward", ["np.float32(1)", "True", "1", "np.array(1.0)"])
def test_numbers_that_are_rewards(path, reward):
    trajectory = played(path, MOVE, f"return {reward}, np.True_, 1, True")
    assert (trajectory.status, trajectory.score) == ("success", 1.0)


def test_a_distance_that_is_no_count(path):
    more = "def optimal_length(self):\n        return 'far'\n\n    def rules"
    trajectory = played(path, "def rules", more, reward_density="plan")
    assert trajectory.error == "Guess.optimal_length returned 'far'; expected a whole number"


@pytest.mark.parametrize("plan", ["7", "'left'", "[7]"])
def test_a_plan_that_is_no_list_of_actions(path, plan):
    path.write_text(OWN.replace("\nclass Plain", METHODS).replace('["left"]', plan))
    episode = make_episode(Config(env=f"{path}:Guess"))
    episode.reset(0)
    with pytest.raises(ValueError, match=r"optimal player of Guess returned .*; expected a list"):
        reference_actions(episode, "optimal", np.random.default_rng(0))


# ---------- reference players


def test_the_random_player_chooses_one_action():
    episode = make_episode(Config(env="frozenlake"))
    episode.reset(0)
    assert len(reference_actions(episode, "random", np.random.default_rng(0))) == 1


def test_defaults_of_methods(path):
    env = make_env(f"{path}:Guess")
    env.reset(0)
    assert (env.statements(), env.plan(1, 1), env.optimal_length()) == ([], [], 0)
    assert env.greedy() in env.actions


def test_uses_that_lack_a_method(path):
    env = make_env(f"{path}:Guess")
    uses = ("optimal", "greedy", "demonstrations", "reward_density=plan", "random")
    missing = [missing_method(env, use) for use in uses]
    assert missing == [
        "plan",
        "greedy or plan",
        "demonstrate or plan",
        "optimal_length or plan",
        "",
    ]
    assert not any(missing_method(make_env("frozenlake"), use) for use in uses)
    path.write_text(OWN.replace('actions = ("left", "right")', "_read = lambda self, text: 1"))
    envs.find_class.cache_clear()
    assert missing_method(make_env(f"{path}:Guess"), "random") == "random or actions"
    with pytest.raises(ValueError, match="'reward_density=plan' needs optimal_length or plan"):
        make_episode(Config(env=f"{path}:Guess", reward_density="plan"))


@pytest.mark.parametrize("player", ["greedy", "random,optimal"])
def test_a_player_without_a_plan_is_refused_before_the_games(path, player):
    command = [sys.executable, "eval.py", f"--env={path}:Guess", f"--player={player}"]
    done = subprocess.run(command, capture_output=True, text=True)
    method = {"greedy": "greedy or plan", "random,optimal": "plan"}[player]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: '{player.split(',')[-1]}' needs {method}, which Guess does not define "
        f"(env='{path}:Guess'); docs/environments.md says what to define\n"
    )


def test_a_run_whose_environment_exits_does_not_end_with_0(path):
    path.write_text(OWN.replace(MOVE, "raise SystemExit(0)"))
    command = [sys.executable, "eval.py", f"--env={path}:Guess", "--player=random", "--eval_size=3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: env='{path}:Guess' could not play the first turn of 3 evaluation games; the last "
        "one ended with: SystemExit: 0\n"
    )
