"""Tests of rewards for thoughts, and of tools/play.py."""

from configurator import Config

import subprocess
import sys

import pytest

from dialogue import Episode, format_response
from envs import make_env

# ---------- thoughts


def outcome_of(thought, *, think_reward, think=True, env=None, text=None):
    env = env or make_env("frozenlake:success_rate=1.0")
    episode = Episode(env, Config(think=think, think_reward=think_reward))
    episode.reset(3)
    return episode.step(text or format_response(thought, ["Left"], think=think))


def bonus(thought, most=0.6, **options):
    """Return what the thought adds to the reward, and check that no message shows this bonus."""
    paid = outcome_of(thought, think_reward=most, **options)
    unpaid = outcome_of(thought, think_reward=0.0, **options)
    assert (paid.user, paid.status, paid.record) == (unpaid.user, unpaid.status, unpaid.record)
    return paid.reward - unpaid.reward


def test_think_reward_by_hand():
    env = make_env("frozenlake:success_rate=1.0")
    env.reset(3)
    third, first, second = env.statements()
    false = "Goal 9 up."
    assert first.startswith("Goal ") and first != false
    for thought, expected in [
        (f"{first} {second}", 0.6),
        (f"{first} {second} {third}", 0.9),
        (f"{second}\n{first}", 0.6),
        (first, 0.3),
        (first.removesuffix("."), 0.3),
        (f"{first} " * 5, 0.3),  # a repeated fact is paid once
        (f"{first} I go left. {second}", 0.6),
        (f"{first} {second} {false}", 0.3),
        (f"{first} {false}", 0.0),
        (f"{first} {false} {false}", 0.0),
        (false, 0.0),
        (f"Not {first} Not {second}", 0.0),  # a fact inside another sentence does not count
        ("", 0.0),
    ]:
        assert bonus(thought, most=0.9) == pytest.approx(expected, abs=1e-12), thought


def test_no_thought_earns_no_think_reward():
    env = make_env("frozenlake:success_rate=1.0")
    env.reset(3)
    facts = " ".join(env.statements())
    assert bonus(facts, think=False) == 0.0
    assert bonus("", think=False, text=f"<think>{facts}</think><answer>Left</answer>") == 0.0
    assert bonus("", text=facts) == 0.0
    unclosed = f"<think>{facts}<answer>Left</answer>"
    assert bonus("", text=unclosed) == 0.0


def test_facts_are_a_set_and_may_be_none(monkeypatch):
    env = make_env("frozenlake:success_rate=1.0")
    monkeypatch.setattr(env, "statements", lambda: ["Target 1 up.", "Target 1 up.", "Box here."])
    assert bonus("Target 1 up.", env=env) == pytest.approx(0.3)
    assert bonus("Target 1 up. Box here.", env=env) == pytest.approx(0.6)
    monkeypatch.setattr(env, "statements", lambda: [])
    assert bonus("Target 1 up.", env=env) == 0.0


# ---------- by hand


def play(*arguments, typed=""):
    command = [sys.executable, "-m", "tools.play", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True)


def test_a_game_by_hand_has_the_prompt_and_the_parser_of_the_policy():
    typed = ["down||Right", "<answer>Up</answer>", "<think></think><answer>Jump</answer>"]
    lines = "".join(line + "\n" for line in typed)
    done = play("frozenlake:success_rate=1", "--seed=3", typed=lines)
    episode = Episode(make_env("frozenlake:success_rate=1"), Config())
    system, first = episode.reset(3)
    # tools.play adds tags only to a typed line without tags.
    tagged = ["<think></think><answer>down || Right</answer>", typed[1], typed[2]]
    users = [first, *(episode.step(text).user for text in tagged)]
    assert "not in the required form" in users[2] and 'Unknown action: "Jump"' in users[3]
    assert (done.returncode, done.stderr) == (0, "")
    printed = "\n".join([system, *(f"\n{user}\n> " for user in users)])
    printed = printed.replace("> \n", "> ")
    assert done.stdout == f"{printed}\nthe input ended before the game\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "player, last", [("--expert", "success after 4 turns, score 1\n"), ("--random", None)]
)
def test_reference_players_are_shown(player, last):
    done = play("frozenlake:success_rate=1", "--seed=3", player)
    assert done.returncode == 0
    assert done.stdout.count("<answer>") == 1 + done.stdout.count("\nTurn ")
    assert done.stdout == play("frozenlake:success_rate=1", "--seed=3", player).stdout
    assert last is None or done.stdout.endswith(last)


EXPECTED = "expected an environment or a config file, settings such as --seed=3, and --expert,"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], EXPECTED),
        (["frozenlake", "--expert", "--random"], EXPECTED),
        (["frozenlake", "sokoban"], EXPECTED),
        (["worlds/bandit.py"], EXPECTED),  # a file without settings is not a config file
        (["frozenlake", "--sed=1"], "unknown key 'sed' from command line: did you mean seed?"),
        (["frozenlake + bandit"], "give one environment to play: frozenlake or bandit"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(arguments, sentence):
    done = play(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sentence}")


def test_play_obeys_the_settings():
    lake = "frozenlake:success_rate=1"
    done = play(lake, "--seed=3", "--max_turns=2", "--think=False", typed="Up\nUp\nUp\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Turn 2 of 2" in done.stdout and "Reply <answer>" in done.stdout
    assert done.stdout.splitlines()[-1] == "out_of_turns after 2 turns, score 0"
    shown = play("config/countdown_ppo.py", "--seed=3").stdout
    assert "At most 1 action a turn." in shown and "Target" in shown


def test_an_unknown_action_costs_nothing_by_hand():
    done = play("frozenlake:success_rate=1", "--seed=3", typed="Dwon || Up\n\nUp\n")
    refused = "is no action; the actions are Left, Down, Right, Up"
    assert done.stdout.count(refused) == 2
    assert f"> 'Dwon' {refused}\n> '' {refused}\n> \n" in done.stdout
    assert done.stdout.count("\nTurn 1 of 5") == 1
    assert "Turn 2 of 5, 9 actions left" in done.stdout
    done = play("quest", "--seed=3", typed="dance\n")
    assert "'dance' is no action now; a possible one is: " in done.stdout


def test_an_unknown_action_where_no_example_is_known(tmp_path):
    (tmp_path / "count.py").write_text(
        "from envs import Env\n\n\n"
        "class Count(Env):\n"
        "    draw = lambda self, rng: (int(rng.integers(10**6)),)\n"
        "    _start = lambda self, instance: None\n"
        "    _read = lambda self, text: int(text) if text.isdigit() else None\n"
        "    _move = lambda self, number: (1.0, True, True, True)\n"
        "    observe = lambda self: 'Count.'\n"
        "    rules = lambda self: 'Count.'\n"
    )
    done = play(f"{tmp_path}/count.py:Count", typed="foo\n5\n")
    assert "> 'foo' is no action now\n> \nCount.\nsuccess after 1 turn, score 1\n" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_boards_of_an_environment_obey_no_terminal_codes(tmp_path):
    (tmp_path / "esc.py").write_text(
        "from worlds.bandit import Bandit\n\n\n"
        "class Esc(Bandit):\n"
        "    def observe(self):\n"
        "        return 'a\\x1b[2J\\nb'\n"
    )
    done = play(f"{tmp_path}/esc.py:Esc", "--seed=3", "--expert")
    assert r"a\x1b[2J" in done.stdout and "\nb\n" in done.stdout and "\x1b" not in done.stdout
