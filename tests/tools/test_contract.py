"""Tests of tools/check_env.py: shipped environments pass all checks, and faults are reported."""

from configurator import UserError

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from tools.check_env import CHECKS, Subject, check_environment

slow = pytest.mark.slow

SHIPPED = [
    "bandit",
    "frozenlake",
    "rubik",
    "sudoku",
    "tools",
    "examples/my_env.py:Doors",
    "worlds/guess.py:Guess",
    pytest.param("countdown", marks=slow),
    pytest.param("frozenlake:success_rate=1,size=5", marks=slow),
    pytest.param("sokoban", marks=slow),
    pytest.param("rubik:scramble=6", marks=slow),
    pytest.param("sudoku:empty=9", marks=slow),
    pytest.param("quest:w=2,o=3,q=4", marks=slow),
    pytest.param("household", marks=slow),
    pytest.param("repair", marks=slow),
]


def failures(subject):
    return {title: problems for title, problems in check_environment(subject) if problems}


@pytest.mark.parametrize("spec", SHIPPED)
def test_every_environment_passes(spec):
    assert failures(Subject(spec)) == {}


# ---------- faults

OWN = '''
import random
import time
import numpy as np
from envs import Env, Move

calls = []


class Number(Env):
    """Say the number. Nothing in it is random."""

    actions = ("1", "2", "3", "4", "5", "6", "7", "8")

    def draw(self, rng):
        return ("number", int(rng.integers(8)), int(rng.integers(10**9)))

    def _start(self, instance):
        _, self.number, self.name = instance
        self.said = []

    def _move(self, index):
        self.said.append(index)
        found = index == self.number
        return Move(float(found), found, found, True)

    def observe(self):
        return f"Game {self.name}. Say {self.number + 1}. Said {self.said}."

    def rules(self):
        return "Say the number."

    def statements(self):
        return [f"Number {self.number + 1}."]

    def plan(self, max_actions, turns_left):
        return [self.actions[self.number]]
'''

ORDER = "a seed gives the same game in any order"
PROCESS = "a seed gives the same game in another process"
GLOBAL = "no global random generator is used"
SPLITS = "training games do not look like those of the evaluation"
BUDGET = "games end with the action budget, and rewards keep their limits"
TEXTS = "any text is handled"
SENTENCES = "rules and statements can be used"
PLAYERS = "players choose legal actions"
SKILL = "the expert wins clearly more often than random play"
SPEED = "steps and draws are fast"
PRINTS = "nothing is printed"
MOVE = "        self.said.append(index)\n"
READ = "    def _read(self, action):\n        {}\n\n    def random(self, count, rng):\n"
READ += "        return ['1'] * count\n\n    def rules"

FAULTS = {
    "memory": (
        "        self.said = []",
        "        calls.append(1)\n        self.said = [len(calls)]",
        ORDER,
        "a game depends on the games before it: in game 5, ",
    ),
    "shared list": (
        "        self.said = []",
        "        self.said = calls\n        calls.clear()",
        ORDER,
        "a game depends on another one that is played at the same time: in game 0, ",
    ),
    "observing changes it": (
        '        return f"Game',
        '        self.name += 1\n        return f"Game',
        ORDER,
        "observe, statements or plan changes the game: in game 0, ",
    ),
    "planning draws from the noise": (
        "        return [self.actions[self.number]]",
        "        self.name = int(self.rng.integers(9))\n        return [self.actions[self.number]]",
        ORDER,
        "observe, statements or plan changes the game: in game 0, ",
    ),
    "hash": (
        "        self.said = []",
        "        self.said = [hash(str(instance))]",
        PROCESS,
        "the same seed gives another game in another process; sort what comes from a set, and "
        "use no hash() and no clock",
    ),
    "python's generator": (
        MOVE,
        MOVE + "        random.random()\n",
        GLOBAL,
        "a game changes Python's global random state; draw from the argument rng, or from "
        "self.rng during a game",
    ),
    "numpy is seeded": (
        MOVE,
        MOVE + "        np.random.seed(3)\n",
        GLOBAL,
        "a game changes numpy's global random state; draw from the argument rng, or from "
        "self.rng during a game",
    ),
    "what does not matter is drawn": (
        "Game {self.name}. ",
        "",
        SPLITS,
        "100 of 100 training games look like a game of the evaluation: the same texts, plan and "
        "outcome; leave what does not matter out of draw(), or override key()",
    ),
    "a loss pays": (
        "Move(float(found)",
        "Move(1.0",
        BUDGET,
        "a lost game paid 1, not less than max_reward (1)",
    ),
    "a win pays too much": (
        "Move(float(found)",
        "Move(3.0 * found",
        BUDGET,
        "a won game paid 3, more than max_reward (1)",
    ),
    "a success that goes on": (
        "Move(float(found), found,",
        "Move(float(found), False,",
        BUDGET,
        "a step is a success and does not end the game",
    ),
    "no number": (
        "Move(float(found)",
        'Move(float("nan")',
        BUDGET,
        "a game paid nan; expected a finite number",
    ),
    "a text that it cannot read": (
        "    def rules",
        READ.format("return int(action) - 1"),
        TEXTS,
        "step('') ended with ValueError: invalid literal for int() with base 10: ''",
    ),
    "an illegal text that counts": (
        "    def rules",
        READ.format(
            'self.name += 1\n        return {"1": 0, "2": 1}.get(action)',
        ),
        TEXTS,
        "is no action, but step(",
    ),
    "rules of the instance": (
        '"Say the number."\n',
        'f"Say {self.number}."\n',
        SENTENCES,
        "rules() differs between instances; put what differs into observe()",
    ),
    "rules of no text": (
        'return "Say the number."',
        "return None",
        SENTENCES,
        "a game ended with Number.rules returned None; expected a text",
    ),
    "statements of no list": (
        'return [f"Number {self.number + 1}."]',
        "return None",
        SENTENCES,
        "a game ended with Number.statements returned None; expected a list of texts",
    ),
    "a loss with no text": (
        "    def rules",
        "    def why_lost(self):\n        return 3\n\n    def rules",
        SENTENCES,
        "a game ended with Number.why_lost returned 3; expected a text",
    ),
    "two sentences in one": (
        '[f"Number {self.number + 1}."]',
        '[f"Number {self.number + 1}. Say it."]',
        SENTENCES,
        "each must be one sentence that ends with the only full stop in it",
    ),
    "an illegal plan": (
        "[self.actions[self.number]]",
        '[f"say {self.number + 1}"]',
        PLAYERS,
        "which is no action now",
    ),
    "a long demonstration": (
        "    def rules",
        "    def demonstrate(self, count, rng):\n        return ['1'] * 9\n\n    def rules",
        PLAYERS,
        "demonstrate returned 9 actions; expected at most 3",
    ),
    "a bad expert": (
        "[self.actions[self.number]]",
        '["1"]',
        SKILL,
        "in 50 actions, although nothing in the game is random",
    ),
    "nothing to learn": (
        "found = index == self.number",
        "found = True",
        SKILL,
        "random play wins 40 games and the expert 40 of 40; there is little to learn",
    ),
    "slow steps": (
        MOVE,
        MOVE + "        time.sleep(0.02)\n",
        SPEED,
        "s; speed it up, or set blocking = True if it waits",
    ),
    "prints": (
        MOVE,
        MOVE + '        print("debug")\n',
        PRINTS,
        "it prints 'debug debug",
    ),
    "exits": (
        MOVE,
        MOVE + "        raise SystemExit(0)\n",
        BUDGET,
        "a game ended with SystemExit: 0",
    ),
}


def write(folder, before="", after=""):
    assert before in OWN
    path = folder / "my_env.py"
    path.write_text(OWN.replace(before, after) if before else OWN)
    return Subject(f"{path}:Number")


def test_the_template_of_the_faults_passes(tmp_path):
    assert failures(write(tmp_path)) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_gives_its_sentence(name, tmp_path, monkeypatch):
    before, after, title, sentence = FAULTS[name]
    if name == "slow steps":
        monkeypatch.setattr("tools.check_env.SLOW_STEP_S", 0.01)
    # Run only the check for this fault, because another check starts a process, which is slow.
    check = GLOBAL if title == PRINTS else title
    monkeypatch.setattr("tools.check_env.CHECKS", {check: CHECKS[check]})
    found = failures(write(tmp_path, before, after))
    assert list(found) == [title]
    assert any(sentence in problem for problem in found[title]), found


def test_what_is_shared_is_noted(tmp_path):
    subject = write(tmp_path, "    actions =", "    repeats = True\n    actions =")
    assert failures(subject) == {}
    assert subject.notes[0] == "training and evaluation share instances (repeats = True)"
    assert subject.notes[1].startswith("the expert wins 40 of 40 games, and random play ")


def test_global_generators_are_as_before(tmp_path):
    random.seed(5)
    np.random.seed(5)
    expected = (random.random(), np.random.random())
    random.seed(5)
    np.random.seed(5)
    check_environment(write(tmp_path))
    assert (random.random(), np.random.random()) == expected


def test_an_environment_without_players(tmp_path):
    text = OWN.split("    def plan")[0].replace("    actions", "    names")
    path = tmp_path / "my_env.py"
    reader = "\n    def _read(self, action):\n        return 0 if action == '1' else None\n"
    path.write_text(text + reader)
    subject = Subject(f"{path}:Number")
    found = failures(subject)
    assert found[PLAYERS] == ["there is no random player; define random(count, rng)"]
    assert "plan() is not defined, so there is no optimal player" in subject.notes


def run_tool(*arguments, hash_seed="random"):
    command = [sys.executable, "-m", "tools.check_env", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command(tmp_path):
    done = run_tool("examples/my_env.py:Doors")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[:11] == [f"ok    {title}" for title in [*CHECKS, PRINTS]]
    assert lines[11] == "training and evaluation share instances (repeats = True)"

    subject = write(tmp_path, "[self.actions[self.number]]", '["1"]')
    done = run_tool(subject.spec)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert f"FAIL  {SKILL}" in lines
    assert lines[-1] == "1 of 11 checks failed"


@pytest.mark.parametrize(
    "before, moment",
    [
        ('        return ("number"', "its instances were drawn"),
        (MOVE, f'"{ORDER}" was checked'),
    ],
)
def test_an_environment_that_ends_its_process_fails(tmp_path, before, moment):
    subject = write(tmp_path, before, f"        import os\n        os._exit(0)\n{before}")
    done = run_tool(subject.spec)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-3:] == [
        "FAIL  the environment lets the process go on",
        f"      - it ended its process (exit code 0) while {moment}",
        "1 of 1 checks failed",
    ]


def test_an_environment_that_ends_another_process(tmp_path):
    """If the hash seed of a process is 1 or 2, a move ends the process. The tool runs with hash
    seed 0, but repeats games in a process with hash seed 1."""
    leave = '        import os\n        os.environ["PYTHONHASHSEED"] in "12" and os._exit(0)\n'
    subject = write(tmp_path, MOVE, leave + MOVE)
    done = run_tool(subject.spec, hash_seed="0")
    assert done.returncode == 1
    assert "      - another process ended with exit code 0" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "1 of 11 checks failed"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], "expected one environment, such as my_env.py:MyEnv or frozenlake:size=5, and "),
        (["bandit", "rubik"], "got bandit rubik"),
        (["nowhere.py:Env"], "nowhere.py does not exist; expected a file with a subclass"),
        (["rubik", "--size=3"], "unknown key 'size' from command line"),
        (["frozenlake:size=2"], "has too few distinct instances"),
    ],
)
def test_what_cannot_be_built(arguments, sentence):
    done = run_tool(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and sentence in done.stderr


def test_an_error_of_draw_is_raised(tmp_path):
    subject = write(tmp_path, "int(rng.integers(10**9))", "[1]")
    with pytest.raises(UserError, match="it must be hashable"):
        check_environment(subject)


def test_a_draw_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.check_env.CHECK_LIMIT_S", 0.2)
    subject = write(
        tmp_path, '        return ("number"', '        time.sleep(60)\n        return ("n"'
    )
    message = "cannot draw the instances of its splits: no answer within 0.2 s"
    with pytest.raises(UserError, match=message):
        check_environment(subject)
