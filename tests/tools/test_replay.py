"""Tests of tools/replay.py: games are played again from records, and differences are found."""

from configurator import UserError

import json
from pathlib import Path

import pytest
from runs import read_lines, rows_in
from shared_fixtures import small_config

import eval as evaluation
import model
from engine import make_engine
from support.records import write_jsonl
from support.run_folder import save_config
from tools import replay

pytestmark = pytest.mark.slow

ROOT = Path(evaluation.__file__).parent
LAKE = [f"{ROOT}/config/frozenlake_ppo.py", f"{ROOT}/config/models/tiny.py"]


def test_a_record_of_two_environments_and_players_is_repeated(tmp_path, capsys):
    lines = tmp_path / "two.jsonl"
    two = [*LAKE, "--eval_env=sokoban + frozenlake:success_rate=0.8", "--eval_size=2"]
    evaluation.main([*two, "--player=greedy,optimal", f"--jsonl={lines}"])
    rows = rows_in(capsys.readouterr().out)
    replay.main([*two, f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows and len(rows) > 8


def test_a_record_that_went_otherwise_is_found(tmp_path):
    lines = tmp_path / "greedy.jsonl"
    evaluation.main([*LAKE, "--player=greedy", "--eval_size=3", f"--jsonl={lines}"])
    records = read_lines(lines)
    records[1]["turns"][-1]["reward"] += 0.5
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    message = "1 of the trajectories of .+ differ from their records, the first: prompt 1 of "
    with pytest.raises(ValueError, match=message):
        replay.main([*LAKE, f"--record={lines}"])
    with pytest.raises(ValueError, match="3 of the trajectories of"):
        replay.main([*LAKE, f"--record={lines}", "--eval_split=heldout"])


SLEEPER = """
import time
from pathlib import Path
from worlds.grids import FrozenLake

class Sleeper(FrozenLake):
    def _move(self, move):
        if Path(__file__).with_name("tired").exists():
            time.sleep(30)
        return super()._move(move)
"""


def test_a_game_that_takes_too_long_cannot_be_compared(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    lake = [*LAKE, f"--env={tmp_path}/sleeper.py:Sleeper", "--eval_size=1", "--step_timeout_s=0.3"]
    lines = tmp_path / "random.jsonl"
    evaluation.main([*lake, "--player=random", f"--jsonl={lines}"])
    replay.main([*lake, f"--record={lines}"])
    (tmp_path / "tired").touch()
    message = (
        "^1 of the trajectories of .+ cannot be compared with their records, because the time "
        "limit of a turn was exceeded in one of the two, the first: prompt 0 of random, closed "
        "loop in "
    )
    with pytest.raises(UserError, match=message):
        replay.main([*lake, f"--record={lines}"])
    (tmp_path / "tired").unlink()
    (record,) = read_lines(lines)
    record["turns"][-1]["error"] = "no answer within 9 s"
    lines.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match=message):
        replay.main([*lake, f"--record={lines}"])


def test_a_record_without_the_newer_facts_is_repeated(tmp_path):
    lines = tmp_path / "random.jsonl"
    lake = [*LAKE, "--env=frozenlake:success_rate=0.5", "--actions_per_turn=1"]
    evaluation.main([*lake, "--player=greedy", "--eval_size=8", f"--jsonl={lines}"])
    records = read_lines(lines)
    assert any("moves" in turn for record in records for turn in record["turns"])
    for record in records:
        del record["split"]
        for turn in record["turns"]:
            for key in ("moves", "faults", "out_of_actions"):
                turn.pop(key, None)
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    replay.main([*lake, f"--record={lines}"])
    records[0]["turns"][0]["moves"] = ["Jump"]
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(UserError, match="1 of the trajectories of .+ differ from their records"):
        replay.main([*lake, f"--record={lines}"])


@pytest.fixture
def record(two_runs, tmp_path, capsys):
    lines = tmp_path / "one.jsonl"
    evaluation.main([str(two_runs / "a"), "--eval_size=2", f"--jsonl={lines}"])
    capsys.readouterr()
    return lines


def test_two_records_of_one_policy_are_two_rows(two_runs, record, tmp_path, capsys):
    policy = f"{two_runs}/a/policy"
    first = record.read_text().splitlines()
    again = [json.dumps(json.loads(line) | {"entropy": 9.0}) for line in first]
    more = tmp_path / "more.jsonl"
    more.write_text("\n".join([*first, *again]))
    replay.main([str(two_runs / "a"), f"--record={more}"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [policy, f"{policy} (2)"]
    # If the file holds a game twice, the tool assumes that the second copy is from a second
    # evaluation. The copy is not a second sample of the prompt, so no pass@k is shown.
    more.write_text("\n".join([*first, *first]))
    replay.main([str(two_runs / "a"), f"--record={more}"])
    out = capsys.readouterr().out
    assert list(rows_in(out))[2:] == [policy, f"{policy} (2)"]
    assert "pass@" not in out


@pytest.mark.parametrize("option", ["--player=greedy", "--samples=2", "--model=tiny"])
def test_a_replay_takes_no_player_or_model(two_runs, record, option):
    message = "tools.replay takes no model, player or samples; it only plays the record"
    with pytest.raises(ValueError, match=message):
        replay.main([str(two_runs / "a"), f"--record={record}", option])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ("", " holds no trajectories"),
        ("xx", ":1 must be JSON, got 'xx'"),
        ("[" * 5000, f":1 must be JSON, got '{'[' * 80}'"),
        ("[1]", ":1 does not have the expected content: it must be a JSON object, got '[1]'"),
        ("{}", ":1 does not have the expected content: env must be a text, but it is missing"),
        ({"seed": []}, ":1 holds no trajectory: 'seed' is empty"),
        ({"turns": []}, ":1 holds no trajectory: 'turns' is empty"),
        ({"turns": [{}]}, "turns[0].response must be a text, but it is missing"),
        ({"turns": [3]}, "turns[0] must be a JSON object, got '3'"),
        ({"seed": [True]}, "seed[0] must be a whole number, 0 or more, got 'True'"),
        ({"seed": [-1]}, "seed[0] must be a whole number, 0 or more, got '-1'"),
        ({"member": 1e300}, "member must be a whole number, 0 or more, got '1e+300'"),
        ({"policy": []}, "policy must be a text, got '[]'"),
        ({"entropy": float("nan")}, "entropy must be a finite number, not above 1e300, got 'nan'"),
    ],
)
def test_a_file_without_trajectories_is_refused(record, change, sentence):
    text = change
    if isinstance(change, dict):
        text = json.dumps(json.loads(record.read_text().splitlines()[0]) | change)
    record.write_text(text)
    with pytest.raises(UserError) as error:
        replay.main([*LAKE, f"--record={record}"])
    assert str(error.value).endswith(sentence)
    assert str(error.value).startswith(str(record))


def test_no_record_and_no_run_chooses_code_to_run(tmp_path):
    """The environment of a record may be a file of code, which runs only if the user names the
    file."""
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    env = f"{tmp_path}/evil.py:X"
    lines = tmp_path / "lines.jsonl"
    turn = {"response": "", "tokens": [], "surprise": []}
    lines.write_text(json.dumps({"env": env, "seed": [0], "member": 0, "turns": [turn]}) + "\n")
    message = r"lines.jsonl has games of '.*evil.py:X'; add --env=.*evil.py:X to play"
    with pytest.raises(ValueError, match=message):
        replay.main([*LAKE, f"--record={lines}"])
    run = tmp_path / "run"
    save_config(small_config(env=env), {}, run)
    (run / "policy").mkdir()
    message = r"which can run programs or read files; if you trust it, add --env=.*evil.py:X"
    with pytest.raises(ValueError, match=message):
        evaluation.main([str(run)])
    save_config(small_config(eval_env=env), {}, run)
    message = r"which can run programs or read files; if you trust it, add --eval_env=.*evil.py:X"
    with pytest.raises(ValueError, match=message):
        evaluation.main([str(run), "--env=bandit"])
    save_config(small_config(env=env), {}, run)
    with pytest.raises(UserError, match="evil.py cannot be loaded: SystemExit: it ran"):
        replay.main([str(run), f"--env={env}", f"--record={lines}"])


def test_a_record_of_shaped_rewards_and_full_contexts_is_repeated(trained_model, chat, tmp_path):
    config = small_config(reward_density="plan", max_context_tokens=250, eval_size=5)
    engine = make_engine(config, trained_model, chat)
    result = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    assert "out_of_tokens" in {trajectory.status for trajectory in result[1]}
    write_jsonl(tmp_path / "lines.jsonl", {"us": result}, chat.tokenizer)
    job = evaluation.Job(config, {"record": str(tmp_path / "lines.jsonl")}, [])
    ((env, name, (metrics, played), _),) = replay.replayed_rows(job)
    assert (env, name, metrics) == (config.env, "us", result[0])
    assert [trajectory.score for trajectory in played] == [t.score for t in result[1]]
