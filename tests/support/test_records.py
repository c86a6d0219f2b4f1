"""Tests of support/records.py: records of trajectories, and what filter and update add to them."""

from configurator import Config, UserError

import json
from types import SimpleNamespace

import pytest
import torch

from dialogue import TurnRecord
from rollout import Trajectory, Turn, unmask
from support.records import (
    TRAJECTORY,
    note_credit,
    note_filter,
    trajectory_record,
    transcript,
    why_ended,
    write_samples,
)
from support.run import Run
from utils.files import read_rows


class Words:
    def decode(self, ids, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return f"w{ids[0]}"


def trajectory_of(*lengths):
    turns = []
    for length in lengths:
        ids = list(range(length))
        turns.append(Turn([7, 2, 8, 9], ids, [-0.5] * length, record=TurnRecord(["Up"])))
    return Trajectory((3,), 0, turns, "failure")


def test_what_the_filter_did_is_noted_in_each_member():
    played = [trajectory_of(1) for _ in range(6)]
    note_filter(played, torch.tensor([0.25, 0.0, 0.5]), torch.tensor([0, 2]), group_size=2)
    assert [trajectory.kept for trajectory in played] == [True, True, False, False, True, True]
    assert [trajectory.filter_value for trajectory in played] == [0.25, 0.25, 0, 0, 0.5, 0.5]


@pytest.mark.parametrize(
    "settings, num_bytes, wanted",
    [
        # By default sample_every is 2, so the even iterations are recorded. Iteration 1 and the
        # evaluated iteration 5 are recorded, too.
        ({}, 0, [1, 2, 4, 5, 6, 8, 10]),
        ({"sample_every": 4}, 0, [1, 4, 5, 8]),
        ({"sample_every": 0}, 0, []),
        # Iteration i of 10 is recorded if the file has at most i/10 of 64 MB.
        ({"sample_every": 1}, 32_000_000, [5, 6, 7, 8, 9, 10]),
        ({"sample_every": 1}, 64_000_001, []),
    ],
)
def test_iterations_are_recorded_up_to_a_size(tmp_path, settings, num_bytes, wanted):
    path = tmp_path / "trajectories.jsonl"
    with path.open("wb") as file:
        file.truncate(num_bytes)
    recorded = []
    for step in range(1, 11):
        run = SimpleNamespace(
            config=Config(num_iterations=10, **settings),
            learner=SimpleNamespace(step=step),
            samples_path=path,
        )
        if Run._sampling_due(run, {"lake": None} if step == 5 else None):
            recorded.append(step)
    assert recorded == wanted


def test_credit_is_the_mean_advantage_and_the_value_before_the_reply():
    kept = [trajectory_of(2, 1), trajectory_of(1)]
    advantages = torch.tensor([1.0, 2.0, -1.0, 0.5])
    note_credit(kept, advantages, torch.tensor([0.1, 0.9, 0.25, 0.75]))
    first, second = [turn.credit for turn in kept[0].turns]
    assert (first.advantage, first.value) == (1.5, pytest.approx(0.1))
    assert (second.advantage, second.value) == (-1.0, 0.25)
    assert kept[1].turns[0].credit.advantage == 0.5


def test_copies_of_a_turn_share_its_credit():
    original = trajectory_of(1)
    system = SimpleNamespace(message=lambda role, text: [7, 2, 8])
    # Tokens 7, 2 and 8 are the system message and stay masked. The response of the copy has two
    # tokens, the last prompt token (9) and the original response (0).
    copy = unmask(original, system)
    note_credit([copy], torch.tensor([1.0, 3.0]), None)
    assert trajectory_record(original, Words())["turns"][0]["advantage"] == 2.0


def test_records_hold_the_notes_and_nothing_that_is_unknown(tmp_path):
    noted, plain = trajectory_of(1), trajectory_of(1)
    note_filter([noted], torch.tensor([0.125]), torch.tensor([0]), group_size=1)
    note_credit([noted], torch.tensor([1.0]), torch.tensor([0.5]))
    write_samples(tmp_path / "trajectories.jsonl", 4, [noted, plain], 2, Words())
    first, second = read_rows(tmp_path / "trajectories.jsonl", shape=TRAJECTORY)
    assert (first["kept"], first["filter_value"]) == (True, 0.125)
    assert (first["turns"][0]["advantage"], first["turns"][0]["value"]) == (1.0, 0.5)
    unknown = {"advantage", "value", "moves", "faults", "out_of_actions", "closing", "error"}
    assert not unknown & second["turns"][0].keys() and "kept" not in second


@pytest.mark.parametrize(
    "key, value, sentence",
    [
        ("kept", 1, "kept must be true or false, got '1'"),
        ("filter_value", "x", "filter_value must be a finite number, not above 1e300, got 'x'"),
    ],
)
def test_notes_of_another_kind_are_refused(tmp_path, key, value, sentence):
    path = tmp_path / "trajectories.jsonl"
    record = {**trajectory_record(trajectory_of(1), Words()), key: value}
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError) as error:
        read_rows(path, shape=TRAJECTORY)
    assert str(error.value) == f"{path}:1 does not have the expected content: {sentence}"


def test_a_failure_is_told_by_what_ended_it():
    assert why_ended("failure", {"out_of_actions": True}) == "its last action was used"
    assert why_ended("failure", {"out_of_actions": False}) == "the game was lost"
    old = "the game ended, or its last action was used, without a success"
    assert why_ended("failure", {}) == old
    hole = {"out_of_actions": False, "why_lost": "fell into a hole at (2,3)\x1b"}
    assert why_ended("failure", hole) == r"fell into a hole at (2,3)\x1b"
    assert why_ended("success", hole) == ""
    stuck = {"out_of_actions": True, "why_lost": "a box is stuck", "cut_by": "max_response_tokens"}
    assert why_ended("failure", stuck) == (
        "its last action was used; a box is stuck; its last reply was cut off by "
        "max_response_tokens"
    )
    assert why_ended("out_of_turns", {"why_lost": "a box is stuck"}) == (
        "the game was not over after max_turns replies; a box is stuck"
    )


def test_a_transcript_names_false_statements_and_their_facts():
    played = trajectory_of(1)
    record = TurnRecord(["Up"], out_of_actions=False, why_lost="fell into a hole at (1,2)")
    record.false_statements = {"Goal up.": "Goal down."}
    played.turns[0].record = record
    text = transcript(played)
    assert "\n\nfalse: Goal up. The fact: Goal down.\n\n" in text
    assert text.endswith("failure (fell into a hole at (1,2)), score 0")
