"""
Tests of the adapters to GEM, reasoning-gym and gymnasium.

Many tests use fakes of GEM and reasoning-gym. Some other tests need GEM, reasoning-gym or gymnasium
itself. This command installs the three packages and runs the tests of this file:

    make test-hubs
"""

from configurator import UserError, load_config

import json
import logging
import os
import random
import subprocess
import sys
import time
import types
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from shared_fixtures import small_config

import envs
from dialogue import Episode
from envs import make_env, reserved_instances, reserved_keys, split_spec
from rollout import Reply, Rollout, make_episode, play
from support.arguments import check_envs
from worlds.hubs.gem import local_words, marks, search, with_answer_tags
from worlds.hubs.gymnasium_env import best_actions
from worlds.hubs.hub import Isolation, parse_settings
from worlds.hubs.reasoning_gym import HASH_DEPENDENT, REFUSED, SLOW, harmless

ROOT = Path(__file__).resolve().parents[2]
needs_gem = pytest.mark.skipif(find_spec("gem") is None, reason="make test-hubs installs gem-llm")
needs_rg = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="make test-hubs installs reasoning-gym"
)
needs_gymnasium = pytest.mark.skipif(
    find_spec("gymnasium") is None, reason="requirements/dev.txt installs gymnasium"
)
STRANGE = ["", " ", "||", "\\boxed{up}", "up}\\boxed{down", "9" * 5000, "\0", "٣", "reveal 1", "😀"]


def opened(spec, seed=0, *, max_actions=30, split="train"):
    env = make_env(spec, max_actions=max_actions)
    env.reset(seed, split=split)
    return env


def fake_module(monkeypatch, name, **values):
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(values)
    monkeypatch.setitem(sys.modules, name, module)
    return module


# ---------- a hub that behaves badly


class BadManners:
    """A fake GEM game that prints, warns, changes the root logger and seeds global generators."""

    def __init__(self, size=1000, max_turns=8, **_):
        random.seed(1)
        self.size = size or 1000
        self.max_turns = max_turns or 8

    def reset(self, seed=None):
        print("a banner")
        print("a complaint", file=sys.stderr)
        warnings.warn("a warning", stacklevel=1)
        logging.basicConfig(level=logging.DEBUG, force=True)
        if self.size < 0:
            time.sleep(30)
        random.seed(seed)
        np.random.seed(seed)
        self.secret = random.randrange(self.size)
        self.turns = 0
        example = rf"For example \boxed{{{random.randrange(100)}}}."
        return f"Guess. {example}", {"suffix": f"Hint {self.secret % self.size}."}

    def step(self, action):
        print("a remark")
        self.turns += 1
        random.seed(3)
        if "crash" in action:
            raise KeyError("lost")
        if "leave" in action:
            sys.exit("bye")
        if "sleep" in action:
            time.sleep(30)
        noise = np.random.rand()
        won = action == rf"\boxed{{{self.secret}}}"
        text = "Congratulations!" if won else f"No, {action}, noise {noise}."
        over = self.turns == self.max_turns
        return text, float(won), won or over, over and not won, {"suffix": f"Hint {self.secret}."}


REGISTRY = {
    "game:Many-v0": {"size": 10**6},
    "game:Few-v0": {"size": 50},
    "game:Sized-v0": {"size": None},
    "game:Never-v0": {"size": -1},
    "math:Elsewhere": {},
}


@pytest.fixture
def fake_gem(monkeypatch):
    registry = {name: types.SimpleNamespace(kwargs=kwargs) for name, kwargs in REGISTRY.items()}

    def make(name, **arguments):
        return BadManners(**(REGISTRY[name] | arguments))

    fake_module(monkeypatch, "gem")
    fake_module(monkeypatch, "gem.envs")
    fake_module(monkeypatch, "gem.envs.registration", ENV_REGISTRY=registry, make=make)


def state_of_process():
    handlers = list(logging.root.handlers)
    numpy_state = np.random.get_state()[1].tolist()
    return random.getstate(), numpy_state, handlers, logging.root.level


def test_code_of_a_hub_does_not_disturb_the_rest(fake_gem, capfd):
    random.seed(5)
    np.random.seed(5)
    before = state_of_process()
    with warnings.catch_warnings(record=True) as caught:
        env = opened("gem:game:Many-v0")
        assert not env.step("5").terminated
    assert state_of_process() == before
    assert capfd.readouterr() == ("", "")
    assert caught == []


def test_isolation_ends_with_an_error():
    isolation = Isolation()
    isolation.seed(7)
    before = state_of_process()
    with pytest.raises(SystemExit):
        with isolation.run():
            first = random.random()
            sys.exit("bye")
    assert state_of_process() == before
    with isolation.run():
        second = random.random()
    random.seed(7)
    assert [first, second] == [random.random(), random.random()]


def test_a_seed_is_the_same_game_in_every_order(fake_gem):
    def play_it(seed):
        env = opened("gem:game:Many-v0", seed)
        return env.instance, [env.observe(), *(env.step(text).observation for text in "12")]

    forward = {seed: play_it(seed) for seed in range(6)}
    random.seed(99)
    np.random.seed(99)
    backward = {seed: play_it(seed) for seed in reversed(range(6))}
    assert forward == backward
    assert len({json.dumps(game) for game in forward.values()}) == 6


@pytest.mark.parametrize(
    "action, message",
    [
        ("crash", "KeyError: 'lost'"),
        ("leave", "SystemExit: bye"),
        ("sleep", "no answer within 0.2 s"),
    ],
)
def test_a_game_that_fails_ends_its_trajectory_only(fake_gem, action, message):
    config = small_config(env="gem:game:Many-v0", step_timeout_s=0.2)
    rollout = Rollout(make_episode(config), (0,))
    rollout.reset("eval")
    trajectory = play(rollout, lambda _: Reply(f"<answer>{action}</answer>"))
    assert (trajectory.status, trajectory.error) == ("error", message)


def test_splits_have_nothing_in_common_that_is_seen(fake_gem):
    splits = reserved_instances("gem:game:Many-v0")
    seen = [instance[2] for split in ("eval", "heldout") for instance in splits[split]]
    assert len(set(seen)) == 512
    assert seen[0].startswith("Hint ")
    env = make_env("gem:game:Many-v0")
    for seed in range(50):
        env.reset(seed)
        assert env.key(env.instance) not in seen
        assert env.observe() == env.instance[2]


def test_splits_share_the_starts_of_a_hub_with_few(fake_gem):
    env = opened("gem:game:Few-v0")
    assert env.repeats
    assert env.instance[2] == ""
    by_seed = make_env("gem:game:Few-v0,splits=seed")
    assert not by_seed.repeats
    instances = reserved_instances("gem:game:Few-v0,splits=seed")["eval"]
    assert len({by_seed.key(instance) for instance in instances}) == 256


def test_a_mixture_of_67_environments_draws_the_splits_of_each_once(fake_gem):
    specs = [f"gem:game:Many-v0,splits=seed,settings=level={level}" for level in range(67)]
    before = reserved_instances.cache_info().misses
    keys = [reserved_keys(specs[first], *specs) for first in range(3)]
    assert reserved_instances.cache_info().misses - before == 67
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize("splits", ["seen", "seed"])
def test_settings_that_cannot_be_met_are_refused_before_the_run(fake_gem, monkeypatch, splits):
    monkeypatch.setattr(envs, "DRAW_LIMIT_S", 0.2)
    config = small_config(env=f"gem:game:Never-v0,splits={splits}", step_timeout_s=0.2)
    with pytest.raises(UserError, match="something impossible|no answer within 0.2 s$"):
        check_envs(config, [config.env])


def test_gem_reads_answers_and_keeps_its_limits(fake_gem):
    env = opened("gem:game:Many-v0", max_actions=30)
    assert env.rules() == with_answer_tags(env.rules())
    assert env.rules().startswith("Guess. For example <answer>")
    assert env.max_actions == 8
    assert opened("gem:game:Many-v0", max_actions=5).max_actions == 5
    assert "\\boxed{7}" in env.step("7").observation
    for text in ("", "a}\\boxed{b"):
        step = env.step(text)
        assert not step.valid
        assert env.num_actions == 1
    won = env.step(str(env.game.secret))
    assert (won.reward, won.terminated, won.success) == (1.0, True, True)

    lost = opened("gem:game:Many-v0", 1)
    steps = [lost.step("x") for _ in range(8)]
    assert [step.terminated for step in steps] == [False] * 7 + [True]
    assert not steps[-1].success


def test_a_game_whose_size_differs_shows_its_rules_in_each_message(fake_gem):
    env = opened("gem:game:Sized-v0")
    assert "each message has its rules" in env.rules()
    assert env.observe().startswith("Guess. For example <answer>")
    assert env.step("7").observation.startswith("Guess.")


# ---------- a fake of reasoning-gym


class FakeDataset:
    def __init__(self, seed, size, base=10):
        self.base = base

    def __getitem__(self, index):
        random.seed(4)
        print("made")
        return {"question": f"What is {index} + {self.base}?", "answer": str(index + self.base)}

    def score_answer(self, answer, entry):
        if answer == "crash":
            raise RuntimeError("cannot read it")
        return 1.0 if answer == entry["answer"] else 0.25 if answer.isdigit() else 0.0


@pytest.fixture
def fake_rg(monkeypatch):
    def create_dataset(name, **arguments):
        return FakeDataset(**arguments)

    names = dict.fromkeys(["fake_sum", *REFUSED, *HASH_DEPENDENT])
    fake_module(monkeypatch, "reasoning_gym")
    fake_module(monkeypatch, "reasoning_gym.factory", DATASETS=names, create_dataset=create_dataset)


def test_a_question_is_one_turn_and_its_score_the_reward(fake_rg):
    env = opened("rg:fake_sum")
    assert env.observe().startswith("What is ")
    assert env.max_actions == 1
    step = env.step("12345")
    assert (step.reward, step.terminated, step.truncated, step.success) == (
        0.25,
        False,
        True,
        False,
    )
    assert step.observation.endswith("Wrong, the score is 0.25.")
    step = opened("rg:fake_sum").step(env.entry["answer"])
    assert (step.reward, step.terminated, step.success) == (1.0, True, True)


def test_further_tries_pay_the_rise_of_the_score(fake_rg):
    env = opened("rg:fake_sum,tries=4,settings=base=20")
    answers = ["no", "crash", "5", env.entry["answer"]]
    steps = [env.step(answer) for answer in answers]
    assert [step.reward for step in steps] == [0, 0, 0.25, 0.75]
    assert [step.success for step in steps] == [False, False, False, True]
    assert "Wrong, the score is 0.\n" not in steps[0].observation
    assert steps[0].observation.endswith("Wrong, the score is 0.")
    assert env.plan(1, 1) == [env.entry["answer"]]
    assert int(env.entry["answer"]) >= 20


@pytest.mark.parametrize(
    "spec, message",
    [
        ("rg:fake_sun", "rg has no dataset 'fake_sun'; did you mean rg:fake_sum"),
        ("rg:codeio", "rg:codeio is refused: it runs programs that nobody has checked"),
        ("rg:fake_sum,tries=0", "rg needs tries of 1 or more, got 0"),
        ("rg:fake_sum,settings=bass=1", "rg:fake_sum cannot be made with settings='bass=1'"),
        ("rg:fake_sum,settings=base", "settings must be key=value;key=value, got 'base'"),
        ("rg:fake_sum,splits=half", "splits must be seen or seed, got 'half'"),
        ("rg:ransom_note", "start the command with PYTHONHASHSEED=0"),
        ("rg:knight_swap", "start the command with PYTHONHASHSEED=0"),
    ],
)
def test_datasets_that_are_refused(fake_rg, monkeypatch, spec, message):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(UserError) as caught:
        make_env(spec)
    assert message in str(caught.value)


def test_a_fixed_hash_seed_admits_the_other_datasets(fake_rg, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert make_env("rg:ransom_note").name == "ransom_note"


@pytest.mark.parametrize(
    "formula",
    [
        "94*4 - 61 - 6",
        "49*(85 - 1)/14 - 42",
        "-34*x**8/15 - 5*x/4 + C",
        "2*(-10*x - 10)**(3/2)/3 + C",
        "-2*x**3*cos(x) + 6*x**2*sin(x) + exp(-x)",
        "x**(-1)",
        "x**(3/2)/(2/3)",
        "log(Abs(sec(x) + tan(x)))",
        "exp(x*log(2))",
        "-2*cos(3*x + 2)**5/5",
        "-3*x**3*sin(x) - 9*x**2*cos(x) + 18*x*sin(x) + 18*cos(x) + C",
        "(1 + 2 + 3 + 4 + 5 + 6 + 7)**100",
        "(x + 1)**100",
    ],
)
def test_formulas_that_are_scored(formula):
    assert harmless(formula)


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')",
        "open('x', 'w')",
        "S('1')",
        "exec(x)",
        "x.free_symbols",
        "().__class__",
        "[x for x in y]",
        "lambda: 1",
        "x[0]",
        "f'{x}'",
        "9**9**9**9",
        "(9**99)**99",
        "9**(9*9)",
        "2**1000000",
        "9**(100/(1/100/100/100/100))",
        "9**(1/0)",
        "9**(~100)",
        "exp(exp(exp(exp(3.0))))",
        "exp(log(sinh(cosh(9.0))))",
        "(x + y + z + a + b + c + d)**100",
        "sin((x + y + z + a + b + c + d)**100)",
        "(sin(x) + cos(x))**100",
        "9" * 13,
        "'a'*9",
        "1;2",
        "x := 1",
        "sin(x, evaluate=open)",
        "(" * 200,
        "1+" * 200 + "1",
        "",
        "\0",
    ],
)
def test_formulas_that_are_programs(formula):
    assert not harmless(formula)


# ---------- gymnasium


@needs_gymnasium
@pytest.mark.parametrize(
    "name, first_line",
    [
        ("Taxi-v4", "+---------+"),
        ("FrozenLake-v1", "[S]FFF"),
        ("CliffWalking-v1", "o  o  o  o  o  o  o  o  o  o  o  o"),
        ("Blackjack-v1", "your sum "),
        ("CartPole-v1", "cart position "),
    ],
)
def test_games_of_gymnasium_work_as_they_come(name, first_line):
    rng = np.random.default_rng(0)
    env = opened(f"gymnasium:{name}")
    assert env.observe().startswith(first_line)
    assert "\x1b" not in env.observe()
    assert "Actions: " in env.rules()
    for text in STRANGE:
        assert not env.step(text).valid
    while not env.terminated and env.actions_left:
        step = env.step(env.random(1, rng)[0])
        assert step.valid


@needs_gymnasium
def test_texts_of_taxi_and_lake():
    taxi = make_env("gymnasium:Taxi-v4", max_actions=9)
    # with seed 3, gymnasium starts in state 42: row 0, column 2, passenger 0, destination 2
    taxi.begin(3)
    assert taxi.observe().splitlines() == [
        "+---------+",
        "|R: |[ ]: :G|",
        "| : | : : |",
        "| : : : : |",
        "| | : | : |",
        "|Y| : |B: |",
        "+---------+",
        "taxi row 0, taxi column 2, passenger 0, destination 2.",
    ]
    lake = opened("gymnasium:FrozenLake-v1,settings=is_slippery=False", max_actions=9)
    step = lake.step("Down")
    assert (step.effective, step.reward, step.terminated) == (True, 0.0, False)
    assert step.observation == "SFFF\n[F]HFH\nFFFH\nHFFG"
    assert not lake.step("left").effective
    drowned = lake.step("right")
    assert (drowned.terminated, drowned.success) == (True, False)


@needs_gymnasium
def test_the_reference_player_of_gymnasium_is_optimal():
    """The shortest paths have 6 moves on the lake and 13 along the cliff."""
    for name, length in (
        ("FrozenLake-v1,settings=is_slippery=False", 6),
        ("CliffWalking-v1", 13),
    ):
        env = opened(f"gymnasium:{name}", max_actions=50)
        steps = [env.step(action) for action in env.plan(50, 50)]
        assert len(steps) == length
        assert steps[-1].success
    assert best_actions("gymnasium:CliffWalking-v1")[36] == 0  # at the start (cell 36), go up
    with pytest.raises(UserError, match="gymnasium:Blackjack-v1 has no reference player"):
        opened("gymnasium:Blackjack-v1").plan(1, 1)


@needs_gymnasium
def test_members_of_a_group_share_the_start_but_not_the_noise():
    texts = []
    for member in (0, 0, 1, 2, 3):
        env = make_env("gymnasium:FrozenLake-v1", max_actions=9)
        start = env.reset(5, member=member)
        texts.append([start, *(env.step("right").observation for _ in range(6))])
    assert texts[0] == texts[1]
    assert len({text[0] for text in texts}) == 1
    assert len({json.dumps(text) for text in texts}) > 1


@needs_gymnasium
def test_an_environment_of_the_user_needs_names_only():
    import gymnasium

    class Lights(gymnasium.Env):
        metadata = {"render_modes": []}
        action_space = gymnasium.spaces.Discrete(2, start=5)
        observation_space = gymnasium.spaces.Box(0, 9, (2,))

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            print("a banner")
            np.random.seed(seed)
            self.level = self.np_random.integers(1000, size=2)
            return self.level, {}

        def step(self, action):
            assert action in (5, 6)
            return self.level + action, -1.0, action == 6, False, {}

    gymnasium.register("Lights-v0", Lights, max_episode_steps=4)
    env = opened("gymnasium:Lights-v0,names=off/on,values=light/hour,success=end", max_actions=9)
    assert env.max_actions == 4
    assert not env.repeats
    light, hour = env.game.unwrapped.level
    assert env.observe() == f"light {light}, hour {hour}."
    assert not env.step("dim").valid
    step = env.step("ON")
    assert (step.reward, step.terminated, step.success) == (-1.0, True, True)
    lasting = opened("gymnasium:Lights-v0,success=limit", 2)
    assert lasting.actions == ("0", "1")
    steps = [lasting.step("0") for _ in range(4)]
    assert steps[-1].success
    refused = {
        "gymnasium:Lights-v0,names=off": "has 2 actions, and names= has 1 names",
        "gymnasium:Pendulum-v1": "gymnasium:Pendulum-v1 has no numbered actions",
        "gymnasium:Nothing-v0": "gymnasium cannot make 'Nothing-v0'",
        "gymnasium:Lights-v0,success=never": "success must be one of reward, end, limit, got",
    }
    for spec, message in refused.items():
        with pytest.raises(UserError) as caught:
            make_env(spec)
        assert message in str(caught.value)
    with pytest.raises(UserError, match="shows 2 numbers, and values= has 1 names"):
        opened("gymnasium:Lights-v0,values=light,splits=seed")


# ---------- specs and small parts


def test_the_first_option_of_a_hub_is_a_name():
    assert split_spec("rg:maze,tries=3") == (
        "rg",
        "worlds.hubs.reasoning_gym:ReasoningGym",
        "name=maze,tries=3",
    )
    assert split_spec("gem:game:Sudoku-v0-easy")[2] == "name=game:Sudoku-v0-easy"


def test_an_unknown_game_of_gem_is_refused(fake_gem):
    for name in ("game:Man-v0", "math:Elsewhere", ""):
        with pytest.raises(UserError, match=f"gem has no game '{name}'; did you mean gem:game:"):
            make_env(f"gem:{name}")


@pytest.mark.skipif(find_spec("gem") is not None, reason="gem-llm is installed")
@pytest.mark.parametrize("spec", ["gem:game:Sudoku-v0-easy", "rg:maze"])
def test_without_the_package_a_hub_names_the_command(spec):
    with pytest.raises(UserError, match="pip install -r requirements/hubs.txt"):
        make_env(spec)


def test_settings_are_literals_or_texts():
    assert parse_settings("") == {}
    assert parse_settings("a=1;b=False;c=8x8;d=x=y") == {"a": 1, "b": False, "c": "8x8", "d": "x=y"}


def test_marks_of_a_guess():
    """The secret 'crepe' has two e, and the guess 'eerie' has three. The last e of the guess is in
    its place (G). The first e of the guess matches the other e of the secret (Y). For the second e
    of the guess, no e of the secret is left (X)."""
    assert "".join(marks("crepe", "eerie")) == "YXYXG"
    assert "".join(marks((1, 2, 3), (3, 2, 4))) == "YGX"


def test_search_finds_a_shortest_way_or_none():
    def moves(number):
        yield "double", 2 * number
        yield "add", number + 1

    assert search(1, 10, moves) == ["double", "double", "add", "double"]
    assert search(5, 5, moves) == []
    assert search(1, -1, moves) == []


# ---------- the packages themselves


def shipped_specs():
    config, *_ = load_config([str(ROOT / "config/envs/hubs.py")])
    return [spec.strip() for spec in config.env.split("+")]


SPECS = shipped_specs()


def test_the_config_lists_enough_of_each_hub():
    count = {hub: sum(spec.startswith(hub) for spec in SPECS) for hub in ("gem", "rg", "gymnasium")}
    assert count["gem"] >= 20
    assert count["rg"] >= 30
    assert count["gymnasium"] >= 4
    assert len(set(SPECS)) == len(SPECS)


RECORD = """
import hashlib, random, sys
import numpy as np
from envs import make_env

for spec in sys.argv[1:]:
    texts = []
    for seed in (1, 2):
        env = make_env(spec, max_actions=6)
        env.start(env.draw(np.random.default_rng(seed)), [seed])
        rng = np.random.default_rng(0)
        texts.append(env.observe())
        while not env.terminated and env.actions_left:
            texts.append(env.step(env.random(1, rng)[0]).observation)
    random.seed()
    np.random.seed()
    print(spec, hashlib.sha256(repr(texts).encode()).hexdigest())
"""


def record(specs, hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", RECORD, *specs],
        text=True,
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
@needs_gem
@needs_rg
def test_the_same_seeds_give_the_same_games_in_two_processes_and_another_order():
    first = record(SPECS, "1")
    second = record(SPECS[::-1], "2")
    assert len(first) == len(SPECS)
    assert first == second


@pytest.mark.slow
@needs_gem
def test_every_game_of_gem_accepts_any_text_and_its_random_player():
    from gem.envs.registration import ENV_REGISTRY

    games = [name for name in ENV_REGISTRY if name.startswith("game:")]
    assert len(games) >= 34
    rng = np.random.default_rng(0)
    for name in games:
        if name in ("game:Sokoban-v0-hard", "game:Sokoban-v0-random"):
            continue  # starting this game takes seconds
        env = make_env(f"gem:{name},splits=seed", max_actions=12)
        env.start(env.draw(rng), [0])
        for text in STRANGE:
            assert env.step(text).valid in (True, False)
        while not env.terminated and env.actions_left:
            (action,) = env.random(1, rng)
            assert env.step(action).valid, f"{name}: {action}"


@pytest.mark.slow
@needs_gem
@pytest.mark.parametrize(
    "name",
    [
        "GuessTheNumber-v0-hard",
        "Hangman-v0-easy",
        "Mastermind-v0-hard",
        "Sudoku-v0-easy",
        "TowerofHanoi-v0-hard",
        "Wordle-v0-easy",
        "FifteenPuzzle-v0-easy",
    ],
)
def test_reference_players_of_gem_win(name):
    """Half of all boards of the fifteen puzzle have no solution. The test skips these boards."""
    wins = games = 0
    for seed in range(12):
        env = opened(f"gem:game:{name},splits=seed", seed, max_actions=50)
        if not env.plan(99, 99):
            continue
        games += 1
        total = 0.0
        while not env.terminated and env.actions_left:
            step = env.step(env.plan(1, 1)[0])
            assert step.valid
            total += step.reward
        if step.success:
            wins += 1
            assert total == pytest.approx(1)
    few_turns = name.startswith(("GuessTheNumber", "Hangman", "Fifteen"))
    assert games >= 3
    assert wins >= games * (0.5 if few_turns else 1)


@needs_rg
def test_words_of_gem_need_no_download():
    common = local_words("en-basic")
    assert len(common) == len(set(common)) > 1000
    assert all(3 <= len(word) <= 8 and word.islower() for word in common)
    assert "newspaper" not in common and "the" in common
    assert len(local_words("en")) == 151367


@pytest.mark.slow
@needs_rg
def test_the_answers_of_the_datasets_are_right():
    from reasoning_gym.factory import DATASETS

    without_solution = []
    for name in sorted(DATASETS.keys() - REFUSED.keys() - set(SLOW) - set(HASH_DEPENDENT)):
        env = make_env(f"rg:{name},splits=seed,tries=99", max_actions=99)
        env.start(env.draw(np.random.default_rng(1)), [0])
        for text in STRANGE:
            assert 0 <= env.score(text) <= 1
        answer = env.plan(1, 1)
        if not answer:
            without_solution.append(name)
        else:
            assert env.step(answer[0]).success, name
    assert without_solution == ["boxnet", "rush_hour"]


@needs_rg
@pytest.mark.parametrize("name", ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"])
def test_an_answer_is_no_program(name, tmp_path):
    env = make_env(f"rg:{name},splits=seed")
    env.begin(0)
    path = tmp_path / "written"
    assert env.score(f"[open({str(path)!r}, 'w')]") < 1
    assert not path.exists()


def test_episodes_of_a_hub_state_the_reply_format(fake_gem):
    env = make_env("gem:game:Many-v0")
    episode = Episode(env, small_config(env="gem:game:Many-v0"))
    system, user = episode.reset(0, split="eval")
    assert "boxed" not in system
    assert "boxed" not in user
