"""Tests of the dialogue with the grid worlds: effects of replies, messages, random replies."""

from configurator import Config

import math
import re
from functools import cache
from itertools import product

import pytest
from boards import LAKE_BOARD, LAKE_V1, LARGER, ROOM_BOARD, SIMPLE, episode_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialogue import Episode, TurnRecord, check_thought, find_false, format_response, parse_response
from envs import make_env
from worlds import grids

NEARLY_SOLVED = "######\n#____#\n#OXP_#\n#____#\n#____#\n######"


# ---------- parsing


def test_parse_by_hand():
    text = "<think> a </think>\n<answer> Up||Left || </answer> "
    assert parse_response(text) == ("a", ["Up", "Left"], True)
    assert parse_response("<think></think><answer></answer>") == ("", [], True)
    for text in (
        "so <think>a</think><answer>Up</answer>",
        "<think>a</think> so <answer>Up</answer>",
        "<think>a</think><answer>Up</answer> so",
    ):
        assert parse_response(text) == ("a", ["Up"], False)
    for text in (
        "",
        "Up",
        "<think>a<answer>Up</answer>",
        "<think>a</think><answer>Up",
        "<answer>Up</answer>",
    ):
        assert parse_response(text) == ("", [], False)
    assert parse_response("<answer>Up || Down</answer>", think=False) == ("", ["Up", "Down"], True)
    assert parse_response("<think>a</think><answer>Up</answer>", think=False) == ("", ["Up"], False)


@pytest.mark.parametrize("think", [True, False])
def test_formatted_responses_are_read_back(think):
    thought = "go" if think else ""
    text = format_response(thought, ["Up", "Left"], think=think)
    assert parse_response(text, think=think) == (thought, ["Up", "Left"], True)


def test_check_thought_by_hand():
    facts = ["Next ice hole.", "Goal up."]
    # In the first text, three sentences begin with the first word of a fact, "Goal" or "Next".
    # "Goal up." and "Next ice hole." are true, and "Next hole hole." is false.
    assert check_thought("Goal up. Next ice hole. I go. Next hole hole.", facts) == (3, 2)
    assert check_thought("", facts) == (0, 0)
    assert check_thought("Solved. I go.", ["Solved."]) == (1, 1)
    false = "Goal down. Next hole. Next ice hole. Goal down. Box left."
    facts = ["Goal up.", "Next ice ice.", "Next ice hole."]
    assert find_false(false, facts) == {"Goal down.": "Goal up.", "Next hole.": "Next ice hole."}
    assert find_false("Goal up.", facts) == {}


def test_the_end_of_a_lost_game_says_why():
    lake = make_env("frozenlake:size=2,success_rate=1")
    episode = Episode(lake, Config())
    episode.open(lake.start(("frozenlake", 2, (2,), 0, 3), [0]))
    outcome = episode.step("<think>a</think><answer>Down</answer>")
    assert outcome.status == "failure" and outcome.record.why_lost == "fell into a hole at (2,1)"
    episode.open(lake.start(("frozenlake", 2, (2,), 0, 3), [0]))
    outcome = episode.step("<think>a</think><answer>Right || Down</answer>")
    assert outcome.status == "success" and outcome.record.why_lost is None


def test_a_box_in_a_corner_is_said():
    stuck = episode_in("#####\n#O__#\n#___#\n#X_P#\n#####").env
    assert stuck.why_lost() == "a box is stuck in a corner at (4,2)"
    for board in (
        "#####\n#O__#\n#_XP#\n#___#\n#####",  # in the middle
        "#####\n#OX_#\n#__P#\n#___#\n#####",  # at a wall
        "#####\n#√P_#\n#___#\n#___#\n#####",  # on its target
    ):
        assert episode_in(board).env.why_lost() == "", board


# ---------- turns by hand


def test_turn_with_two_actions():
    episode = episode_in(ROOM_BOARD)
    # The player goes from (4,3) to (4,2), and then to (3,2). "Box 1 up." is true: the box is one
    # cell above (4,3). "Target 1 left." is false: from the box, the target is one cell up and one
    # cell left.
    outcome = episode.step("<think>Box 1 up. Target 1 left. Go.</think><answer>Left || Up</answer>")
    board = "######\n#O___#\n#PX#_#\n#____#\n#____#\n######"
    assert outcome.user == f"Reward -0.2.\nTurn 2 of 5, 8 actions left.\n{board}"
    assert outcome.reward == pytest.approx(-0.2) and outcome.status is None
    assert outcome.record == TurnRecord(
        actions=["Left", "Up"],
        num_actions=2,
        format_ok=True,
        effective=1.0,
        statements_checked=2,
        statements_true=1,
        false_statements={"Target 1 left.": "Target 1 up 1 left."},
        env_reward=-0.2,
    )


def test_first_messages():
    episode = episode_in(ROOM_BOARD)
    system, user = episode.reset(0)
    assert user == f"Turn 1 of 5, 10 actions left.\n{episode.env.observe()}"
    assert system == episode.reset(1)[0] == episode.system()
    assert "Actions: Up, Down, Left, Right." in system
    form = re.search(r"Reply (.*) in at most 400 tokens", system).group(1)
    parsed = parse_response(form)
    assert parsed.well_formed and parsed.thought and len(parsed.actions) == 2


def test_unknown_action_is_reported_and_penalised():
    episode = episode_in(ROOM_BOARD)
    outcome = episode.step("<think>a</think><answer>Left || Jump || up</answer>")
    # Each of the two moves costs 0.1, and the format penalty is 0.1. The unknown action is no move.
    assert outcome.reward == pytest.approx(-0.3)
    head = 'Reward -0.3. Unknown action: "Jump".\nTurn 2 of 5, 8 actions left.\n'
    assert outcome.user.startswith(head)
    assert outcome.record.num_actions == 2 and not outcome.record.format_ok
    assert outcome.record.moves == ["Left", "", "up"]
    assert outcome.record.faults == ['Unknown action: "Jump".']
    outcome = episode.step("<think>a</think><answer>Jump</answer>")
    assert outcome.reward == pytest.approx(-0.1)
    head = 'Reward -0.1. Unknown action: "Jump". No action was executed; nothing changed.'
    assert outcome.user.startswith(f"{head}\nTurn 3 of 5, 8 actions left.\n")


def test_surplus_actions_are_reported():
    episode = episode_in(ROOM_BOARD, actions_per_turn=2)
    outcome = episode.step("<think>a</think><answer>Left || Right || Left || Right</answer>")
    assert outcome.reward == pytest.approx(-0.3) and outcome.record.num_actions == 2
    head = "Reward -0.3. Not executed, over the limit: 2.\nTurn 2 of 5, 8 actions left.\n"
    assert outcome.user.startswith(head)
    # max_actions is 3. The first reply takes two actions, so the second has one action too many.
    episode = episode_in(ROOM_BOARD, max_actions=3)
    reply = "<think>a</think><answer>Left || Right</answer>"
    assert episode.step(reply).reward == pytest.approx(-0.2)
    outcome = episode.step(reply)
    assert outcome.reward == pytest.approx(-0.2)
    assert outcome.status == "failure" and outcome.record.num_actions == 1
    assert outcome.record.out_of_actions is True
    assert outcome.record.faults == ["Not executed, over the limit: 1."]


def test_slips_and_actions_after_the_end_are_recorded(monkeypatch):
    episode = Episode(make_env("frozenlake:size=2,success_rate=1"), Config(actions_per_turn=5))
    episode.open(episode.env.start(("frozenlake", 2, (1,), 0, 3), [0]))
    directions = iter([1, 3, 2])  # Down, a slip from Left to Up, and Right into the hole
    move = episode.env._move
    names = episode.env.actions

    def slippery(index):
        direction = next(directions)
        result = move(direction)
        episode.env.slipped_to = names[direction] if direction != index else ""
        return result

    monkeypatch.setattr(episode.env, "_move", slippery)
    outcome = episode.step("<think>a</think><answer>down || Left || Right || Up</answer>")
    assert outcome.record.moves == ["down", "Up", "Right", ""]
    assert outcome.record.faults is None and outcome.record.out_of_actions is False
    assert outcome.status == "failure" and outcome.record.num_actions == 3


def test_malformed_reply():
    episode = episode_in(ROOM_BOARD)
    outcome = episode.step("I go up")
    assert outcome.user == (
        "Reward -0.1. The reply was not in the required form. No action was executed; nothing "
        f"changed.\nTurn 2 of 5, 10 actions left.\n{ROOM_BOARD}"
    )
    assert outcome.reward == pytest.approx(-0.1) and not outcome.record.format_ok
    empty = episode.step("<think>a</think><answer></answer>")
    head = "Reward -0.1. No action was executed; nothing changed.\nTurn 3 of 5"
    assert empty.user.startswith(head)


def test_text_outside_the_tags_is_penalised_but_executed():
    reply = "Sure! <think>a</think><answer>Left</answer>"
    outcome = episode_in(ROOM_BOARD).step(reply)
    assert outcome.reward == pytest.approx(-0.2) and outcome.record.num_actions == 1
    head = "Reward -0.2. The reply was not in the required form."
    assert outcome.user.startswith(f"{head}\nTurn 2 of 5, 9 actions left.\n")
    assert episode_in(ROOM_BOARD, format_penalty=0.0).step(reply).reward == pytest.approx(-0.1)


def test_no_think_variant():
    episode = episode_in(ROOM_BOARD, think=False)
    assert "<think>" not in episode.system()
    form = re.search(r"Reply (.*) in at most 400 tokens", episode.system()).group(1)
    parsed = parse_response(form, think=False)
    assert parsed.well_formed and len(parsed.actions) == 2
    outcome = episode.step("<answer>Left</answer>")
    assert outcome.reward == pytest.approx(-0.1) and outcome.record.format_ok
    assert not episode.step("<think>a</think><answer>Left</answer>").record.format_ok


def test_turn_limit():
    episode = episode_in(ROOM_BOARD, max_turns=2)
    assert episode.step("<think>a</think><answer>Left</answer>").status is None
    outcome = episode.step("nothing")
    assert (outcome.status, outcome.user) == ("out_of_turns", "")


def test_action_budget():
    episode = episode_in(ROOM_BOARD, max_actions=2)
    outcome = episode.step("<think>a</think><answer>Left || Right</answer>")
    assert (outcome.status, outcome.user) == ("failure", "")
    assert outcome.reward == pytest.approx(-0.2)
    episode = episode_in(NEARLY_SOLVED, max_actions=1, max_turns=1)
    assert episode.step("<think>a</think><answer>Left</answer>").status == "success"


def test_success_ends():
    outcome = episode_in(NEARLY_SOLVED).step("<think>a</think><answer>Left || Right || Up</answer>")
    assert (outcome.status, outcome.user) == ("success", "")
    # The reward is -0.1 for the move, 1 for the box on its target and 10 for the win. Actions after
    # the end are neither executed nor penalised.
    assert outcome.reward == pytest.approx(10.9)
    assert outcome.record.num_actions == 1 and outcome.record.format_ok


def test_hole_ends_in_failure():
    outcome = episode_in(LAKE_BOARD).step("<think>a</think><answer>Right || Right || Left</answer>")
    assert (outcome.status, outcome.user, outcome.reward) == ("failure", "", 0.0)
    assert outcome.record.num_actions == 2


@pytest.mark.parametrize(
    "per_turn, in_all, turns", [(5, 10, 5), (2, 10, 5), (3, 4, 9), (7, 35, 2), (1, 2, 3)]
)
def test_stated_limits_are_executed(per_turn, in_all, turns):
    options = {"actions_per_turn": per_turn, "max_turns": turns, "max_response_tokens": 321}
    episode = episode_in(ROOM_BOARD, max_actions=in_all, **options)
    system, user = episode.reset(0)
    assert f"At most {per_turn} action{'s' * (per_turn > 1)} a turn." in system
    assert "in at most 321 tokens" in system
    assert user.startswith(f"Turn 1 of {turns}, {in_all} actions left.\n")

    episode = episode_in(ROOM_BOARD, max_actions=in_all, **options)
    reply = "<think>a</think><answer>" + " || ".join(["Down"] * 50) + "</answer>"
    counts, status = [], None
    while status is None:
        outcome = episode.step(reply)
        counts.append(outcome.record.num_actions)
        status = outcome.status
        if status is None:
            head = re.search(r"Turn (\d+) of (\d+), (\d+) actions? left\.", outcome.user)
            expected = [len(counts) + 1, turns, in_all - sum(counts)]
            assert [int(number) for number in head.groups()] == expected
    assert counts[:-1] == [per_turn] * (len(counts) - 1)
    assert sum(counts) == min(in_all, per_turn * turns)
    assert status == ("failure" if sum(counts) == in_all else "out_of_turns")


def test_one_action_prompt():
    env = make_env("bandit", max_actions=1)
    system = Episode(env, Config(max_turns=1, actions_per_turn=1)).system()
    assert "At most 1 action a turn." in system and "||" not in system
    assert "Phoenix" not in system


# ---------- any text


FRAGMENTS = (
    *("<think>", "</think>", "<answer>", "</answer>", "<think></think><answer>", "<", "</"),
    *("||", " || ", "\n", " ", ".", "<|im_end|>", "<|im_start|>", "EXIT_INTERRUPTED"),
    *("Up", "down", "Right", "Phoenix", "Dragon", "Jump", "Goal up.", "Box here."),
    "<think>go</think><answer>Right || Down</answer>",
    "<think>a</think><answer>Left || Up || Up || Right</answer>",
    "<answer>Up || Left || Jump</answer>",
)
# ANY_TEXT replaces each ASCII character of a generated text by one of the FRAGMENTS
TO_FRAGMENTS = {code: FRAGMENTS[code % len(FRAGMENTS)] for code in range(128)}
ANY_TEXT = st.text(max_size=8).map(lambda text: text.translate(TO_FRAGMENTS))
WRAPS = (
    "{}",
    "<think>a</think><answer>{}</answer>",
    "<answer>{}</answer>",
    "<think>{}</think><answer>Up</answer>",
)
SPECS = ("bandit", LAKE_V1, SIMPLE, LARGER)


def assert_parses(text):
    for think in (True, False):
        parsed = parse_response(text, think=think)
        assert all(a and a == a.strip() and "||" not in a for a in parsed.actions)
        assert isinstance(parsed.thought, str) and isinstance(parsed.well_formed, bool)
        if parsed.well_formed:
            assert text.strip().startswith("<think>" if think else "<answer>")
            assert text.strip().endswith("</answer>")


@cache
def shared_env(spec):
    return make_env(spec, max_actions=6)


def assert_legal(env):
    assert 0 <= env.num_actions <= env.max_actions
    if isinstance(env, grids.FrozenLake):
        assert 0 <= env.player < env.size**2
        assert env.terminated == (env.player in env.holes or env.player == env.goal)
    if isinstance(env, grids.Sokoban):
        assert env.player in env.floor and env.player not in env.boxes
        assert len(set(env.boxes)) == len(env.boxes) == env.num_boxes
        assert env.floor.issuperset(env.boxes)


def play_any_text(text, setting):
    spec, index, wrap, think = setting
    env = shared_env(spec)
    episode = Episode(env, Config(think=think, max_turns=2, actions_per_turn=3))
    episode.reset(index, split="eval")
    for response in (wrap.format(text), text):
        assert_parses(response)
        before = env.num_actions
        outcome = episode.step(response)
        assert_legal(env)
        assert outcome.record.num_actions == env.num_actions - before <= 3
        assert 0 <= outcome.record.statements_true <= outcome.record.statements_checked
        assert math.isfinite(outcome.reward) and episode.turn_idx <= 2
        assert outcome.status in (None, "success", "failure", "out_of_turns")
        assert (outcome.user == "") == (outcome.status is not None)
        if outcome.status is not None:
            break
    assert outcome.status is not None


@pytest.mark.parametrize("max_examples", [300, pytest.param(4000, marks=pytest.mark.slow)])
def test_any_text_parses_and_plays(max_examples):
    situations = list(product(SPECS, range(20), WRAPS, (True, False)))
    budget = settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    budget(given(ANY_TEXT, st.sampled_from(situations))(play_any_text))()


def test_long_responses_take_linear_time():
    # quadratic work on 100,000 repeats would take minutes
    many = 100_000
    bars = "<think>a</think><answer>" + "||" * many + "</answer>"
    assert parse_response(bars) == ("a", [], True)
    ups = "<think>a</think><answer>" + "Up||" * many + "</answer>"
    assert len(parse_response(ups).actions) == many
    for piece in ("<think>", "<think></think>", "<answer>", "</answer>", "<think></think><answer>"):
        for think in (True, False):
            parsed = parse_response(piece * many, think=think)
            assert parsed.actions == [] and not parsed.well_formed
    reply = "<think>" + "Box 1 up. " * many + "</think><answer>" + "Up||" * many + "</answer>"
    outcome = episode_in(ROOM_BOARD).step(reply)
    assert outcome.record.num_actions == 5 and outcome.record.statements_true == many
