"""Tests of what is reported if a limit cuts off a reply or a game, or if a game cannot start."""

from configurator import UserError

import doctest
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from shared_fixtures import small_config, small_sft_config

import parallel
import train
from dialogue import Episode, TurnRecord
from engine import Sample
from envs import make_env, reserved_instances
from rollout import Trajectory, Turn, check_errors, collect, without_errors
from support import budget_warnings
from support.budget_warnings import budget_note, budget_summary, budget_warning, idle_summary
from support.records import trajectory_record, transcript
from support.scores import Scores, budget_notes, score, summarize
from tools import demonstrations, replay
from tools.chat_server import read_reply
from tools.viewer import data as view_data
from worlds.hubs import hub

OPTIONS = dict(split="train", temperature=1.0, noise_seed=(7,))
START = [((4, 0), 0)]
NO_CUTS = dict(cut_frac=0.0, cut_by_context_frac=0.0, out_of_tokens_frac=0.0)
ALL_CUT = NO_CUTS | dict(cut_frac=1.0)
RAISE_REPLY = (
    "100% of the replies were cut off at max_response_tokens: raise it, or teach shorter replies "
    "with tools.sft"
)


class Script:
    def __init__(self, *replies):
        self.replies = list(replies)
        self.busy = False
        self.num_requests = 0

    def add(self, key, ids, **_):
        self.key = key
        self.num_requests += 1
        self.busy = True

    def step(self):
        self.busy = False
        ids = list(self.replies.pop(0))
        return [Sample(self.key, ids, [-1.0] * len(ids))]

    def release(self, key):
        pass


def made_up(status, *turns, out_of_actions=None):
    """Return a trajectory. Each of `turns` is a pair (`cut_by`, number of reply tokens)."""
    made = []
    for cut_by, num_tokens in turns:
        error = "OSError: gone" if status == "error" else None
        record = TurnRecord([], cut_by=cut_by, out_of_actions=out_of_actions, error=error)
        made.append(Turn([1], [2] * num_tokens, [0.0] * num_tokens, record=record))
    return Trajectory((0,), 0, made, status, env="lake")


# ---------- what a record says


def test_doctests():
    results = doctest.testmod(budget_warnings)
    assert results.attempted > 0 and results.failed == 0


@pytest.mark.parametrize(
    "more, ends, cut_by",
    [(0, False, "max_response_tokens"), (1, False, "max_context_tokens"), (1, True, None)],
)
def test_a_cut_reply_names_the_budget(chat, more, ends, cut_by):
    text = chat.encode("<answer>Left")
    assert len(text) == 2
    reply = [*text, chat.end] if ends else list(text)
    config = small_config(max_turns=1, max_response_tokens=2 + more)
    (played,) = collect(Script(reply), chat, config, START, **OPTIONS)
    record = played.turns[0].record
    assert record.cut_by == cut_by
    fault = f"The reply was cut off at 2 tokens ({cut_by})."
    assert (fault in record.faults) == (fault in transcript(played)) == (not ends)
    row = trajectory_record(played)
    assert row["turns"][0].get("cut_by") == cut_by
    assert (fault in view_data.explain_faults(row["turns"][0], None, False)) == (not ends)


def test_a_valid_reply_that_was_cut_stays_valid(chat):
    reply = list(chat.encode("<answer>Left</answer>"))
    config = small_config(max_turns=1, max_response_tokens=len(reply))
    (played,) = collect(Script(reply), chat, config, START, **OPTIONS)
    record = played.turns[0].record
    assert (record.format_ok, record.faults) == (True, None)
    assert record.cut_by == "max_response_tokens"
    (row,) = json.loads(json.dumps(trajectory_record(played)["turns"]))
    assert view_data.explain_faults(row, None, False) == []
    cut = f"The reply was cut off at {len(reply)} tokens (max_response_tokens)."
    assert view_data.explain_cut(row) == cut


def test_an_old_record_of_a_cut_reply():
    turn = {"tokens": ["a", "b"], "surprise": [0.5, 0.5]}
    assert view_data.explain_cut(turn) == "The reply was cut off at 2 tokens."
    assert view_data.explain_cut({**turn, "tokens": ["a", "<|im_end|>"]}) == ""
    # a reference player samples no tokens, so its turns have no surprise (-log p of each token)
    assert view_data.explain_cut({**turn, "surprise": []}) == ""


def test_a_cut_game_can_be_replayed(chat, tokenizer):
    config = small_config(max_turns=2, max_response_tokens=2)
    cut, whole = chat.encode("<answer>Left"), chat.encode("<answer>Left</answer>")
    (played,) = collect(Script(cut, [*whole, chat.end]), chat, config, [((3,), 0)], **EVAL)
    record = trajectory_record(played, tokenizer) | {"policy": "p", "entropy": None}
    record = json.loads(json.dumps(record))
    again = replay.replay(config, record)
    assert not replay.differs(record, json.loads(json.dumps(trajectory_record(again))))
    assert again.turns[0].record.cut_by == "max_response_tokens"


EVAL = OPTIONS | dict(split="eval")


@pytest.mark.parametrize(
    "reason, count, cut_by",
    [
        ("length", 7, "max_response_tokens"),
        ("length", 3, "max_context_tokens"),
        ("stop", 7, None),
        (None, 7, None),
    ],
)
def test_a_server_says_that_it_cut_a_reply(reason, count, cut_by):
    choice = {"message": {"content": "a"}, "finish_reason": reason}
    answer = {"choices": [choice], "usage": {"completion_tokens": count}}
    assert read_reply(json.dumps(answer).encode(), 7).cut_by == cut_by


# ---------- metrics and sentences


def test_ends_and_cuts_by_hand():
    played = [
        made_up("success", (None, 2)),
        made_up("failure", (None, 2), out_of_actions=True),
        made_up("failure", ("max_response_tokens", 2), (None, 1), out_of_actions=False),
        made_up("out_of_turns", (None, 2)),
        made_up("out_of_tokens", (None, 2), ("max_context_tokens", 1)),
    ]
    found = summarize(played)
    expected = {
        "success": 1 / 5,
        "lost_frac": 1 / 5,
        "out_of_actions_frac": 1 / 5,
        "out_of_turns_frac": 1 / 5,
        "out_of_tokens_frac": 1 / 5,
        "cut_frac": 2 / 7,
        "cut_by_context_frac": 1 / 7,
    }
    assert {key: found[key] for key in expected} == expected
    failed = made_up("error", (None, 0))
    assert score([*played, failed])["error_frac"] == 1 / 6


def test_the_note_names_the_setting():
    assert budget_note(ALL_CUT) == RAISE_REPLY
    assert budget_note(NO_CUTS) == budget_note({}) == ""
    assert budget_note(NO_CUTS | dict(cut_frac=0.09, out_of_tokens_frac=0.09)) == ""
    mixed = dict(cut_frac=0.5, cut_by_context_frac=0.3, out_of_tokens_frac=0.25)
    assert budget_note(mixed) == (
        "20% of the replies were cut off at max_response_tokens: raise it, or teach shorter "
        "replies with tools.sft; the context was full at the end of 25% of the games and cut off "
        "30% of the replies below max_response_tokens: raise max_context_tokens, or set "
        "context_turns"
    )
    rows = {"start": Scores(NO_CUTS, []), "after RL": Scores(ALL_CUT, [])}
    assert budget_notes(rows) == f"after RL: {RAISE_REPLY}"


def test_a_run_says_it_once_and_at_its_end():
    history = [NO_CUTS] * 2 + [ALL_CUT] * 3 + [NO_CUTS] + [ALL_CUT]
    told = [budget_warning(history[:n]) for n in range(1, len(history) + 1)]
    assert told == ["", "", RAISE_REPLY, "", "", "", ""]
    # an older version wrote rows without metrics of cut replies
    assert budget_summary([{}] * 3) == budget_summary([]) == ""
    # Only the last 10 rows count. In 9 of these rows, all replies were cut off.
    wanted = RAISE_REPLY.replace("100%", "90%")
    found = budget_summary([NO_CUTS] * 90 + [ALL_CUT] * 9 + [NO_CUTS])
    assert found == f"in the last iterations, {wanted}"


def test_the_advice_of_an_idle_run_looks_at_budgets_first():
    idle = dict(kept_groups=0, valid_frac=0.0, success=0.0)
    assert idle_summary([idle | ALL_CUT]).endswith(
        f"(replies valid in 0%, success in 0%); {RAISE_REPLY}"
    )
    few = idle_summary([idle | NO_CUTS | dict(cut_frac=0.2)])
    assert few.endswith("with tools.sft; then teach the reply format with tools.sft")
    assert idle_summary([idle | NO_CUTS]).endswith("; teach the reply format with tools.sft first")


# ---------- an instance that cannot start


def test_a_first_prompt_that_does_not_fit_is_an_error_of_its_game(chat, monkeypatch):
    config = small_config(max_turns=1)
    reply = [*chat.encode("<answer>Left</answer>"), chat.end]
    starts = [((4, 0), member) for member in range(2)]
    expected = collect(Script(reply), chat, config, starts[:1], **OPTIONS)
    reset = Episode.reset

    def long_for_one(episode, seed, *, split, member):
        system, user = reset(episode, seed, split=split, member=member)
        return system, user + " word" * 700 * member

    monkeypatch.setattr(Episode, "reset", long_for_one)
    engine = Script(reply)
    ended = []
    played = collect(engine, chat, config, starts, on_done=lambda: ended.append(1), **OPTIONS)
    assert played[0].ids == expected[0].ids and engine.num_requests == 1 and len(ended) == 2
    failed = played[1]
    assert (failed.status, failed.score, failed.ids) == ("error", 0.0, [])
    assert failed.error.startswith("the first prompt has ")
    assert failed.error.endswith(" tokens and max_context_tokens is 640; raise it")
    assert len(failed.turns) == 1 and failed.turns[0].observation.endswith(" word")


def test_one_instance_that_cannot_start_ends_no_run():
    bad = made_up("error", (None, 0))
    good = made_up("failure", (None, 1))
    played = [good, good, bad, bad]
    config = small_config(max_error_frac=0.1)
    check_errors(played, config, 2)
    assert without_errors(played, 2) == [good, good]
    with pytest.raises(UserError, match="2 of 4 trajectories ended in an error"):
        check_errors(played, replace(config, max_error_frac=0.0), 2)
    with pytest.raises(UserError, match="3 of 6 trajectories"):
        check_errors([good, bad, bad, bad, good, good], config, 2)


def test_an_engine_that_samples_nothing_is_an_error(chat):
    (played,) = collect(Script([]), chat, small_config(), START, **OPTIONS)
    assert (played.status, played.error) == ("error", "the engine sampled no token")


def test_dynamic_sampling_replaces_a_group_with_an_error(monkeypatch):
    low, high = made_up("failure", (None, 1)), made_up("success", (None, 1))
    high.turns[0].reward = 1.0
    failed = made_up("error", (None, 0))
    groups = [[low, failed], [low, high], [high, failed], [high, low], [low, high]]
    asked = []

    def collect_groups(learner, engine, chat, rng, first_group, num_groups):
        asked.append(num_groups)
        chosen = groups[first_group : first_group + num_groups]
        return [member for group in chosen for member in group]

    monkeypatch.setattr(train, "collect_groups", collect_groups)
    monkeypatch.setattr(parallel, "sync_weights", lambda *_: None)
    config = small_config(num_groups=3, group_size=2, batch_size=2, filter_keep=1.0)
    config = replace(config, sampling_rounds=2, max_error_frac=0.5)
    learner = SimpleNamespace(config=config, step=0, policy=None)
    played = train.collect_rollouts(learner, None, None)
    # A group counts if its scores differ and none of its games ended in an error. Of the first
    # three groups, only [low, high] counts, so a second round plays two more groups. [high, failed]
    # has two different scores, but does not count, because one of its games ended in an error.
    assert asked == [3, 2]
    kept = without_errors(played, 2)
    scores = torch.tensor([trajectory.score for trajectory in kept])
    assert scores.view(-1, 2).std(1).gt(0).sum() == 3


# ---------- supervised learning


def test_a_cut_reply_is_learnt_without_an_end(chat, tmp_path):
    turns = [
        {"observation": "A", "response": "<answer>Le", "cut_by": "max_response_tokens"},
        {"observation": "B", "response": "<answer>Up</answer>"},
    ]
    record = {"seed": [1], "status": "out_of_tokens", "system": "S", "turns": turns}
    file = tmp_path / "demos.jsonl"
    file.write_text(json.dumps(record) + "\n")
    (demo,) = demonstrations.read_demonstrations(str(file), chat, small_sft_config())
    assert demo.turns[0].response_ids == list(chat.encode("<answer>Le"))
    assert demo.turns[1].prompt_ids[0] == chat.end
    assert demo.turns[1].response_ids == [*chat.encode("<answer>Up</answer>"), chat.end]
    assert demonstrations.describe_cuts([demo, made_up("success", (None, 1))]) == (
        "1 of 2 demonstrations end before their game, because max_context_tokens has no room for "
        "more turns; 1 of 3 replies were cut off when they were sampled; they are learnt without "
        "an end-of-turn token"
    )
    assert demonstrations.describe_cuts([made_up("success", (None, 1))]) == ""


def test_a_demonstration_that_fails_is_left_out(chat, monkeypatch, capsys):
    def demonstration(config, chat, index):
        if index % 10 == 3:
            raise UserError(f"demonstration {index} is too long")
        return index

    monkeypatch.setattr(demonstrations, "demonstration", demonstration)
    config = small_config(max_error_frac=0.1)
    found = demonstrations.demonstrations_at(config, chat, range(4))
    assert found == [0, 1, 2]
    said = "1 of 4 demonstrations are left out (the first, because demonstration 3 is too long)\n"
    assert capsys.readouterr().out == said
    for indices, settings in [
        ([3, 13, 1], config),  # 2 of 3 demonstrations fail
        ([3], config),  # no demonstration is left
        (range(4), replace(config, max_error_frac=0.0)),
    ]:
        with pytest.raises(UserError, match="demonstration 3 is too long"):
            demonstrations.demonstrations_at(settings, chat, indices)


# ---------- a hub


class Holes(hub.Hub):
    """Games of seeds 3, 13, 23 ... fail to start. With `all_fail`, no game can start."""

    def __init__(self, *, all_fail: bool = False, splits: str = "seen", **common):
        super().__init__(splits=splits, **common)
        self.all_fail = all_fail

    def begin(self, seed):
        if self.all_fail or seed % 10 == 3:
            raise KeyError(f"no game {seed}")
        return f"game {seed}"

    def _start(self, instance):
        self.begin(instance[1])

    def _read(self, action):
        return action

    def _move(self, action):
        return 0.0, True, False, True

    def observe(self):
        return "a game"

    def rules(self):
        return "rules"


def test_a_game_of_a_hub_that_cannot_begin_fails_when_it_is_played(monkeypatch):
    monkeypatch.setattr("envs.find_class", lambda place: Holes)
    spec = "tests/holes.py:Holes"
    evaluated = reserved_instances(spec)["eval"]
    broken = [index for index, (_, seed, _) in enumerate(evaluated) if seed % 10 == 3]
    assert 0 < len(broken) < 60 and all(evaluated[index][2] == "" for index in broken)
    env = make_env(spec)
    assert not env.repeats
    with pytest.raises(KeyError, match="no game"):
        env.reset(broken[0], split="eval")
    with pytest.raises(KeyError, match="no game 0"):
        reserved_instances(f"{spec},all_fail=True")
