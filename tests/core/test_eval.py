"""Tests of eval.py: reference players, pass@k, tables, records and several policies."""

from configurator import UserError, load_config

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import read_lines, rows_in
from shared_fixtures import config_file, small_config
from transformers import AutoModelForCausalLM

import eval as evaluation
import model
from dialogue import TurnRecord
from engine import make_engine
from eval import play_reference
from rollout import Trajectory, Turn, make_episode
from support.arguments import PLAYERS, policy_of
from support.records import trajectory_record, write_jsonl
from support.run_folder import save_config
from support.scores import (
    Scores,
    differences,
    score,
    score_table,
    success_interval,
    summarize,
)
from support.statistics import wilson_interval
from tools import replay
from worlds.grids import FrozenLake

pytestmark = pytest.mark.slow

ROOT = Path(evaluation.__file__).parent
LAKE = [f"{ROOT}/config/frozenlake_ppo.py", f"{ROOT}/config/models/tiny.py"]
CLOSED_LOOP = [f"{player}, closed loop" for player in ("random", "greedy", "optimal")]


def tiny_config(experiment, **changes):
    files = [config_file(experiment), config_file("tiny")]
    return replace(load_config(files)[0], **changes)


# ---------- reference players


def test_players_rank_as_they_should():
    config = tiny_config("frozenlake_ppo", eval_size=64)
    config = evaluation.reference_settings(config)["random, closed loop"]
    assert (config.max_turns, config.actions_per_turn, config.actions_per_traj) == (10, 1, 10)
    rates = {}
    for player in PLAYERS:
        played = play_reference(config, player)
        assert [trajectory.seed for trajectory in played] == [(i,) for i in range(64)]
        for trajectory in played:
            records = [turn.record for turn in trajectory.turns]
            assert all(record.format_ok and record.num_actions == 1 for record in records)
            assert not any("||" in turn.text for turn in trajectory.turns)
            assert trajectory.status in ("success", "failure", "out_of_turns")
            assert len(records) <= 10
        rates[player] = summarize(played)["success"]
    assert rates["optimal"] >= rates["greedy"] >= rates["random"]
    assert rates["optimal"] > rates["random"] + 0.3


def test_players_see_the_evaluation_instances_and_are_repeatable():
    config = tiny_config("frozenlake_ppo", eval_size=6)
    episode = make_episode(config)
    for split in ("eval", "heldout"):
        config = replace(config, eval_split=split)
        played = play_reference(config, "random")
        boards = [episode.reset((i,), split=split)[1] for i in range(6)]
        assert [trajectory.turns[0].observation for trajectory in played] == boards
        again = play_reference(config, "random")
        assert [trajectory_record(t) for t in again] == [trajectory_record(t) for t in played]


def test_reference_rows():
    config = tiny_config("frozenlake_ppo", eval_size=2)
    rows = evaluation.reference_rows(config)
    plans = {k: f"optimal, {k} a turn" for k in (1, 2, 5)}
    assert list(rows) == [*CLOSED_LOOP, *plans.values()]
    largest = {}
    for k, name in plans.items():
        trajectories = rows[name].trajectories
        assert all(len(trajectory.turns) <= 5 for trajectory in trajectories)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        largest[k] = max(turn.record.num_actions for turn in turns)
    assert largest[1] == 1 and largest[2] == 2 < largest[5] <= 5
    bandit = evaluation.reference_rows(tiny_config("bandit_ppo", eval_size=2))
    assert list(bandit) == [*CLOSED_LOOP, "optimal, 1 a turn"]


def test_a_player_who_fails_loses(monkeypatch):
    monkeypatch.setattr(FrozenLake, "plan", lambda *_: 1 // 0)
    config = small_config(env="frozenlake", eval_size=2, max_error_frac=1.0)
    message = "2 of 2 trajectories .*ZeroDivisionError: integer division or modulo by zero"
    with pytest.raises(ValueError, match=message):
        play_reference(config, "optimal")
    found = {trajectory.status for trajectory in play_reference(config, "greedy")}
    assert found <= {"success", "failure", "out_of_turns"}


def test_a_player_whose_games_cannot_begin_says_why(monkeypatch):
    config = load_config([f"{ROOT}/config/frozenlake_ppo.py", "--eval_size=2"])[0]
    monkeypatch.setattr(FrozenLake, "_start", lambda *_: 1 / 0)
    with pytest.raises(ValueError, match="2 of 2 trajectories ended .*ZeroDivisionError"):
        play_reference(config, "optimal")


# ---------- evaluation of a model


def test_evaluate_a_model(trained_model, trained_folder, chat):
    config = small_config()
    engine = make_engine(config, trained_model, chat)
    policy = model.Policy(trained_model)
    metrics, played = evaluation.evaluate(config, engine, chat, policy)
    assert [(t.seed, t.member) for t in played] == [((i,), 0) for i in range(6)]
    episode = make_episode(config)
    boards = [episode.reset((i,), split="eval")[1] for i in range(6)]
    assert [trajectory.turns[0].observation for trajectory in played] == boards
    reference = AutoModelForCausalLM.from_pretrained(trained_folder)
    entropies = []
    for trajectory in played:
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([trajectory.ids])).logits[0, :-1]
        distribution = torch.distributions.Categorical(logits=logits / 0.5)
        sampled = torch.tensor(trajectory.response_mask)[1:]
        entropies.append(distribution.entropy()[sampled])
    expected = summarize(played) | {"entropy": torch.cat(entropies).mean().item()}
    expected["error_frac"] = 0.0
    assert metrics == pytest.approx(expected, rel=1e-4)
    assert metrics["entropy"] > 0.01
    again, _ = evaluation.evaluate(config, engine, chat, policy)
    assert again == metrics
    config = replace(config, eval_split="heldout")
    other, _ = evaluation.evaluate(config, engine, chat, policy)
    assert other != metrics


# ---------- several samples of a prompt


def samples_by_hand(wins):
    """Return trajectories. `wins` has one string for each prompt, such as "10". Each character is
    the result of a sample: 1 is a success."""
    record = TurnRecord([], num_actions=1, format_ok=True, effective=1.0)
    played = []
    for seed, row in enumerate(wins):
        for member, win in enumerate(row):
            turn = Turn([], [], [], float(win), record=record)
            status = "success" if win == "1" else "failure"
            played.append(Trajectory((seed,), member, [turn], status))
    return played


def test_scores_of_several_samples_by_hand():
    played = samples_by_hand(["1000", "0000", "1110"])
    found = score(played)
    # The three prompts have a pass@2 of 1 - 3/6, 0, and 1 - 0/6. They have a pass@4 of 1, 0, and 1.
    pass_at = {key: found[key] for key in found if "pass@" in key}
    assert pass_at == pytest.approx({"pass@2": 1.5 / 3, "pass@4": 2 / 3})
    # The prompts have success rates of 1/4, 0, and 3/4. success_interval() adds two rates, 0 and 1.
    # The variance of these five rates is (1/16 + 9/16 + 1) / 5 - (2 / 5)^2 = 0.165, so the mean
    # over three prompts has variance 0.165 / 3. The mean of the three prompts' rates is 1/3. A game
    # that is won with probability 1/3 has variance 2/9, so the mean over num_trials games has
    # variance (2/9) / num_trials. The value of num_trials makes the variances of both means equal.
    num_trials = 3 * (2 / 9) / 0.165
    assert success_interval(played) == pytest.approx(wilson_interval(num_trials / 3, num_trials))
    single = samples_by_hand("10")
    assert score(single) == summarize(single) | {"error_frac": 0.0}
    keys = score(samples_by_hand(["101010"] * 2))
    assert [key for key in keys if "@" in key] == ["pass@2", "pass@4", "pass@6"]
    one = samples_by_hand("100")
    lines = score_table({"a": Scores(found, played), "b": Scores(score(one), one)}).split("\n")
    cells = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines]
    assert cells[0] == ["", "success % [95 %]", "pass@2", "pass@4"]
    assert cells[2] == ["a", "33.3 [7.6, 75.4]", "50.0", "66.7"]
    assert cells[3] == ["b", "33.3 [6.1, 79.2]", "-", "-"]
    assert len(cells) == 4


def test_prompts_may_have_different_numbers_of_samples():
    """The results "1110" and "10" each give a pass@2 of 1, and the results "001" give 2/3."""
    found = score(samples_by_hand(["1110", "10", "001"]))
    assert found["pass@2"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert [key for key in found if "@" in key] == ["pass@2"]
    alone = score(samples_by_hand(["1110", "1"]))
    assert not any("@" in key for key in alone)


def test_rows_are_paired_with_one_of_them():
    """Row p has the success rates (1, 0.5, 0) on the three prompts, and row q has (0.5, 0, 0). The
    mean of p - q is 1/3."""
    models = {"m": ["11", "11", "11"], "n": ["00", "00", "00"]}
    players = {"p": ["11", "10", "00"], "q": ["10", "00", "00"], "r": ["00", "00", "00"]}
    rows = {}
    for name, wins in (models | players).items():
        metrics = {"entropy": 0.1} if name in models else {}
        rows[name] = Scores(metrics, samples_by_hand(wins))
    *lines, m_is_apart, n_is_apart = differences(rows, "r").split("\n")[1:]
    assert m_is_apart.startswith("  m is not pooled") and n_is_apart.startswith("  n is not pooled")
    found = dict(line.strip().split(": ") for line in lines)
    # Row n minus row r is 0 for all three prompts. The interval adds two prompts that have the
    # differences +1 and -1. The variance over these five prompts is 2 / 5, so the variance of the
    # mean is 2 / 25.
    assert found["n"] == "0.0 [-55.4, 55.4]" and found["m"].startswith("100.0 [")
    assert list(found) == ["m", "n", "p", "q"]
    assert "  p: 33.3 [" in differences(rows, "q")
    message = r"--against must be the beginning of 'm' or .* or 'r', got 's'"
    with pytest.raises(ValueError, match=message):
        differences(rows, "s")
    elsewhere = {}
    for name, scores in rows.items():
        played = [replace(trajectory, env="B") for trajectory in scores.trajectories]
        elsewhere[f"B: {name}"] = Scores(scores.metrics, played)
    both = differences(rows | elsewhere, "q").split("\n")
    assert "  p: 33.3 [" in "\n".join(both) and "  B: p: 33.3 [" in "\n".join(both)
    assert (
        both[0].startswith("success - q, ")
        and "success - B: q, paired by prompt, % [95 %]:" in both
    )
    alone = differences(rows | elsewhere, "B: q").split("\n")
    assert alone[0].startswith("success - B: q, ") and "  B: p: 33.3 [" in "\n".join(alone)
    assert not any(line.startswith("  p: ") for line in alone)
    del rows["p"][1][:2]
    with pytest.raises(ValueError, match="rows of different prompts cannot be paired"):
        differences(rows, "r")


def test_the_first_sample_is_what_one_sample_is(trained_model, chat):
    config = small_config(eval_size=4)
    engine = make_engine(config, trained_model, chat)
    policy = model.Policy(trained_model)
    _, once = evaluation.evaluate(config, engine, chat, policy, 1)
    metrics, thrice = evaluation.evaluate(config, engine, chat, policy, 3)
    assert [(t.seed, t.member) for t in thrice] == [((i,), m) for i in range(4) for m in range(3)]
    assert [trajectory_record(t) for t in thrice[::3]] == [trajectory_record(t) for t in once]
    texts = {tuple(turn.text for turn in trajectory.turns) for trajectory in thrice[:3]}
    assert len(texts) > 1 and {"pass@2", "pass@3", "entropy"} <= metrics.keys()
    first = [trajectory_record(t) for t in play_reference(config, "random", 1)]
    both = [trajectory_record(t) for t in play_reference(config, "random", 2)]
    assert both[::2] == first and both[1::2] != first


# ---------- tables and records


def turn_by_hand(text, reward, num_actions):
    record = TurnRecord(
        actions=["Up"] * num_actions,
        num_actions=num_actions,
        format_ok=num_actions > 0,
        effective=0.5,
    )
    return Turn([1], [2, 3, 4], [-1.0] * 3, reward, text, f"before {text}", record)


def played_by_hand():
    turns = [turn_by_hand("first", -0.1, 0), turn_by_hand("second", 1.0, 2)]
    won = Trajectory((0,), 0, turns, "success", "rules")
    lost = Trajectory((1,), 0, [turn_by_hand("third", -0.25, 1)], "failure", "rules")
    return [won, lost]


SECOND_TURN = {
    "observation": "before second",
    "response": "second",
    "reward": 1.0,
    "surprise": [1.0] * 3,
    "actions": ["Up", "Up"],
    "num_actions": 2,
    "format_ok": True,
    "effective": 0.5,
    "statements_true": 0,
    "statements_checked": 0,
    "env_reward": 0.0,
}
FIRST_TURN = SECOND_TURN | {
    "observation": "before first",
    "response": "first",
    "reward": -0.1,
    "actions": [],
    "num_actions": 0,
    "format_ok": False,
}


def test_a_record_has_every_reward_at_the_turn_that_earned_it(tokenizer):
    half = tokenizer("\u00e9")["input_ids"][:1]  # the first of the two bytes of e-acute
    played = played_by_hand()[0]
    played.turns[0].response_ids = [*half, *tokenizer("a<think>")["input_ids"]]
    record = trajectory_record(played, tokenizer)
    tokens = [turn.pop("tokens") for turn in record["turns"]]
    assert tokens[0] == ["\ufffd", "a", "<think>"]
    assert [len(part) for part in tokens] == [3, 3]
    assert record == {
        "env": "",
        "split": "",
        "seed": (0,),
        "member": 0,
        "status": "success",
        "success": True,
        "score": 0.9,
        "system": "rules",
        "turns": [FIRST_TURN, SECOND_TURN],
    }


def test_records_of_real_play_add_up(tmp_path):
    config = tiny_config("sokoban_ppo", eval_size=3)
    played = play_reference(config, "optimal")
    write_jsonl(tmp_path / "played.jsonl", {"optimal": Scores(summarize(played), played)})
    records = read_lines(tmp_path / "played.jsonl")
    assert len(records) == 3
    for index, record in enumerate(records):
        episode = make_episode(config)
        episode.reset((index,), split="eval")
        for turn in record["turns"]:
            assert episode.step(turn["response"]).reward == pytest.approx(turn["reward"])
        assert record["score"] == pytest.approx(sum(turn["reward"] for turn in record["turns"]))
        assert record["success"] and record["turns"][-1]["reward"] > 9


TABLE = """
|          | success % [95 %] | reward | turns | actions | valid | effective | entropy | tokens |
| ---      | ---              | ---    | ---   | ---     | ---   | ---       | ---     | ---    |
| a player | 50.0 [9.5, 90.5] | 0.33   | 1.50  | 1.50    | 0.67  | 0.50      | -       | 4.50   |
| us       | 50.0 [9.5, 90.5] | 0.33   | 1.50  | 1.50    | 0.67  | 0.50      | 0.13    | 4.50   |
"""


def test_table_by_hand():
    """One of two games succeeds: the Wilson interval is (0.0945, 0.9055). The mean reward is
    (0.9 - 0.25) / 2 = 0.325. On average a game has 3/2 turns, 3/2 actions, and 9/2 tokens. Of the
    three turns, two are valid."""
    played = played_by_hand()
    player = Scores(summarize(played), played)
    us = Scores(summarize(played) | {"entropy": 0.126}, played)
    assert score_table({"a player": player, "us": us}) == TABLE.strip("\n")


def test_a_measured_zero_is_a_number():
    played = played_by_hand()
    for trajectory in played:
        for turn in trajectory.turns:
            turn.reward = 0.0
    (line,) = score_table({"us": Scores(summarize(played), played)}).split("\n")[2:]
    assert line.split("|")[3].strip() == "0.00"


# ---------- eval.py on a run or a player


@pytest.fixture
def run(tmp_path, trained_folder):
    folder = tmp_path / "run"
    save_config(small_config(eval_size=4), {}, folder)
    shutil.copytree(trained_folder, folder / "best")
    return folder


def test_the_policy_of_a_run_is_the_last_else_the_best(run):
    assert policy_of(run) == run / "best"
    (run / "policy").mkdir()
    assert policy_of(run) == run / "policy"


def test_eval_of_a_run(run, tmp_path, trained_model, chat, capsys):
    scores, lines = tmp_path / "scores.json", tmp_path / "played.jsonl"
    files = [f"--json={scores}", f"--jsonl={lines}"]
    evaluation.main([str(run), *files, "--eval_split=heldout", "--eval_size=5"])
    config = small_config(eval_size=5, eval_split="heldout")
    engine = make_engine(config, trained_model, chat)
    expected = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    metrics, played = expected
    ((name, row),) = json.loads(scores.read_text()).items()
    assert name == str(run / "best")
    successes = [int(trajectory.success) for trajectory in played]
    assert (row["successes"], row["n"]) == (successes, 5)
    assert row["interval"] == pytest.approx(wilson_interval(sum(successes), 5))
    assert {key: row[key] for key in metrics} == pytest.approx(metrics)
    assert [record["score"] for record in read_lines(lines)] == [t.score for t in played]
    out = capsys.readouterr().out
    assert score_table({name: expected}) in out and "5 heldout prompts, T=0.5" in out


def test_eval_of_a_run_is_checked_against_the_settings_of_the_run(run):
    evaluation.main([str(run), "--player=greedy", "--eval_size=2", "--actions_per_turn=6"])
    message = r"actions_per_turn \(7\) must not exceed actions_per_traj \(6\)"
    with pytest.raises(ValueError, match=message):
        evaluation.main([str(run), "--player=greedy", "--actions_per_turn=7"])


def test_eval_of_a_player(capsys):
    evaluation.main([LAKE[0], "--player=greedy", "--eval_size=3", "--num_threads=1"])
    assert "| greedy, closed loop |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--player=oracle"], "player must be one of random, greedy, optimal, got 'oracle'"),
        (["--eval_split=train"], "eval_split must be one of eval, heldout, got 'train'"),
        (["--model=./nothing"], "model='./nothing' is not a model folder: it has no config.json"),
        (
            ["no/such/run"],
            "no/such/run is not a folder; expected folders of runs first, then config/name.py "
            "files and --key=value",
        ),
    ],
)
def test_eval_messages(argv, message):
    with pytest.raises(ValueError) as error:
        evaluation.main(argv)
    assert str(error.value) == message


def test_eval_of_a_run_without_a_policy(tmp_path):
    save_config(small_config(), {}, tmp_path)
    with pytest.raises(ValueError) as error:
        evaluation.main([str(tmp_path)])
    assert str(error.value) == (
        f"{tmp_path} holds no policy/ or best/; train.py writes them at the end "
        "and at the best evaluation"
    )


def test_options_that_do_not_fit():
    with pytest.raises(UserError, match="samples must be between 1 and 1000, got 0"):
        evaluation.main([*LAKE, "--samples=0"])


@pytest.mark.parametrize(
    "old, new",
    [
        ("--api_base=http://x", "python -m tools.api_models"),
        ("--api_model=x", "python -m tools.api_models"),
        ("--repeat=x.jsonl", "python -m tools.replay RUN --record=PATH"),
    ],
)
def test_an_old_option_names_the_new_command(old, new):
    with pytest.raises(UserError, match=f"{old} is an option of another command: {new}"):
        evaluation.main([*LAKE, old])


# ---------- several policies


def test_several_policies_and_players_in_one_table(two_runs, trained_folder, tmp_path, capsys):
    lines, scores = tmp_path / "all.jsonl", tmp_path / "all.json"
    first, second = two_runs / "a", two_runs / "b"
    files = [f"--jsonl={lines}", f"--json={scores}"]
    options = ["--player=greedy,optimal", "--samples=2"]
    evaluation.main([str(first), str(second), *options, *files])
    rows = rows_in(capsys.readouterr().out)
    names = [str(first / "policy"), str(second / "best"), *CLOSED_LOOP[1:]]
    names += ["optimal, 1 a turn", "optimal, 2 a turn"]
    assert list(rows)[2:] == names
    assert rows[names[0]].split("|")[2:] == rows[names[1]].split("|")[2:]
    saved = json.loads(scores.read_text())
    assert list(saved) == names
    assert all(len(row["successes"]) == row["n"] == 6 for row in saved.values())
    replay.main([str(second), f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(second / "config.json", bare)
    replay.main([str(bare), f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows
    # Commas separate models, but a folder whose name has a comma is one model.
    (tmp_path / "c,lr=1").symlink_to(first, target_is_directory=True)
    evaluation.main([str(tmp_path / "c,lr=1"), "--eval_size=2"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [f"{tmp_path}/c,lr=1/policy"]
    evaluation.main([str(first), f"--model={trained_folder},{second}/best", "--eval_size=2"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [str(trained_folder), f"{second}/best"]


def test_a_record_that_cannot_be_written_is_said_first(tmp_path):
    message = "nowhere/x.json cannot be written: there is no folder .*nowhere"
    with pytest.raises(ValueError, match=message):
        evaluation.main([*LAKE, "--player=optimal", f"--json={tmp_path}/nowhere/x.json"])
