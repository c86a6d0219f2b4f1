"""
Tests of eval.py beyond one model: pass@k, several policies in a table, records played again, servers and their faults.

    python -m pytest -q tests/test_eval.py
"""

from configurator import UserError, load_config

import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import small_config

import eval as evaluation
import model
import parallel
from dialogue import Chat, TurnRecord
from engine import VLLM_ENVIRONMENT, make_engine
from grids import FrozenLake
from rollout import Trajectory, Turn, make_episode, summarize
from support import checkpoint
from support.records import trajectory_record, write_jsonl
from support.run_folder import save_config
from support.scores import Scores, differences, score, score_table, success_interval
from support.statistics import wilson_interval
from tools import api_models, replay

ROOT = evaluation.Path(evaluation.__file__).parent
LAKE = [f"{ROOT}/config/frozenlake_ppo.py", f"{ROOT}/config/tiny.py"]


# ---------- several samples of a prompt


def samples_by_hand(wins):
    """A trajectory for each 0 or 1 in the string of a prompt."""
    record = TurnRecord([], num_actions=1, format_ok=True, effective=1.0)
    return [
        Trajectory(
            (seed,),
            member,
            [Turn([], [], [], float(win), record=record)],
            "success" if win == "1" else "failure",
        )
        for seed, row in enumerate(wins)
        for member, win in enumerate(row)
    ]


def test_scores_of_several_samples_by_hand():
    played = samples_by_hand(["1000", "0000", "1110"])
    # pass@2: 1 - 3/6, 0, 1 - 0/6; pass@4: 1, 0, 1
    found = score(played)
    assert {key: found[key] for key in found if "pass@" in key} == pytest.approx(
        {"pass@2": 1.5 / 3, "pass@4": 2 / 3}
    )
    assert success_interval(played) == pytest.approx(
        wilson_interval(1, 3)
    )  # 4 of 12, three prompts
    assert score(samples_by_hand("10")) == summarize(
        samples_by_hand("10")
    )  # single samples have no pass@k
    assert [key for key in score(samples_by_hand(["101010"] * 2)) if "@" in key] == [
        "pass@2",
        "pass@4",
        "pass@6",
    ]
    one = samples_by_hand("100")
    lines = score_table({"a": Scores(found, played), "b": Scores(score(one), one)}).split("\n")
    cells = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines]
    assert cells[0] == ["", "success % [95 %]", "pass@2", "pass@4"]
    assert cells[2:] == [
        ["a", "33.3 [6.1, 79.2]", "50.0", "66.7"],
        ["b", "33.3 [6.1, 79.2]", "-", "-"],
    ]


def test_rows_are_paired_with_one_of_them():
    """Prompts with samples 11, 10, 00 minus 10, 00, 00: (0.5 + 0.5 + 0) / 3; models together are two seeds."""
    played = {
        "m": ["11", "11", "11"],
        "n": ["00", "00", "00"],
        "p": ["11", "10", "00"],
        "q": ["10", "00", "00"],
        "r": ["00", "00", "00"],
    }
    rows = {
        name: Scores({"entropy": 0.1} if name in "mn" else {}, samples_by_hand(wins))
        for name, wins in played.items()
    }
    found = dict(
        line.strip().split(": ") for line in differences(rows, "r").split("\n")[1:]
    )
    assert found["m"] == "100.0 [100.0, 100.0]" and found["n"] == "0.0 [0.0, 0.0]"
    assert found["all 2 models, as seeds"] == "50.0 [0.0, 100.0]" and len(found) == 5
    assert "  p: 33.3 [" in differences(rows, "q")
    with pytest.raises(
        ValueError, match=r"--against must be the beginning of 'm' or .* or 'r', got 's'"
    ):
        differences(rows, "s")
    del rows["p"][1][:2]  # the samples of a prompt
    with pytest.raises(ValueError, match="rows of different prompts cannot be paired"):
        differences(rows, "r")


def test_the_first_sample_is_what_one_sample_is(trained_model, chat):
    config = small_config(eval_size=4)
    engine, policy = make_engine(config, trained_model, chat), model.Policy(trained_model)
    (_, once), (metrics, thrice) = (
        evaluation.evaluate(config, engine, chat, policy, n) for n in (1, 3)
    )
    assert [(t.seed, t.member) for t in thrice] == [((i,), m) for i in range(4) for m in range(3)]
    assert [trajectory_record(t) for t in thrice[::3]] == [trajectory_record(t) for t in once]
    texts = {tuple(turn.text for turn in t.turns) for t in thrice[:3]}
    assert len(texts) > 1 and {"pass@2", "pass@3", "entropy"} <= metrics.keys()
    players = (evaluation.play_reference(config, "random", n) for n in (1, 2))
    first, both = ([trajectory_record(t) for t in played] for played in players)
    assert both[::2] == first and both[1::2] != first


# ---------- several policies, and records


@pytest.fixture(scope="module")
def runs(trained_folder, tmp_path_factory):
    """Two runs in one folder, with the same policy under one name or the other."""
    folder = tmp_path_factory.mktemp("runs")
    for name, kind in (("a", "policy"), ("b", "best")):
        save_config(small_config(eval_size=3), {}, folder / name)
        (folder / name / kind).symlink_to(trained_folder, target_is_directory=True)
    return folder


def rows_in(text):
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}


def test_several_policies_and_players_in_one_table(runs, trained_folder, tmp_path, capsys):
    lines, scores = tmp_path / "all.jsonl", tmp_path / "all.json"
    evaluation.main(
        [
            str(runs / "a"),
            str(runs / "b"),
            "--player=greedy,optimal",
            "--samples=2",
            f"--jsonl={lines}",
            f"--json={scores}",
        ]
    )
    rows = rows_in(capsys.readouterr().out)
    names = [
        str(runs / "a/policy"),
        str(runs / "b/best"),
        "greedy, closed loop",
        "optimal, closed loop",
        "optimal, 1 a turn",
        "optimal, 2 a turn",
    ]
    assert list(rows)[2:] == names
    assert rows[names[0]].split("|")[2:] == rows[names[1]].split("|")[2:]
    saved = json.loads(scores.read_text())
    assert list(saved) == names and all(
        len(row["successes"]) == row["n"] == 6 for row in saved.values()
    )
    # the record alone makes the same table, from a run or from the files of its settings
    replay.main([str(runs / "b"), f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows
    # and needs no policy
    (runs / "bare").mkdir(), shutil.copy(runs / "b/config.json", runs / "bare")
    replay.main([str(runs / "bare"), f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows
    # a folder's name may hold the comma that parts names of models
    (runs / "c,lr=1").symlink_to(runs / "a", target_is_directory=True)
    evaluation.main([str(runs / "c,lr=1"), "--eval_size=2"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [f"{runs}/c,lr=1/policy"]
    # models are scored beside players only where they are named
    evaluation.main([str(runs / "a"), f"--model={trained_folder},{runs}/b/best", "--eval_size=2"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [str(trained_folder), f"{runs}/b/best"]


def test_a_record_that_cannot_be_written_is_said_first(tmp_path):
    with pytest.raises(
        ValueError, match="nowhere/x.json cannot be written: there is no folder .*nowhere"
    ):
        evaluation.main([*LAKE, "--player=optimal", f"--json={tmp_path}/nowhere/x.json"])


def test_a_record_of_two_environments_and_players_is_repeated(tmp_path, capsys):
    lines, two = (
        tmp_path / "two.jsonl",
        [*LAKE, "--eval_env=sokoban + frozenlake:success_rate=0.8", "--eval_size=2"],
    )
    evaluation.main([*two, "--player=greedy,optimal", f"--jsonl={lines}"])
    rows = rows_in(capsys.readouterr().out)
    replay.main([*two, f"--record={lines}"])
    assert rows_in(capsys.readouterr().out) == rows and len(rows) > 8


def test_a_record_that_went_otherwise_is_found(runs, tmp_path, capsys):
    lines = tmp_path / "greedy.jsonl"
    evaluation.main([*LAKE, "--player=greedy", "--eval_size=3", f"--jsonl={lines}"])
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    records[1]["turns"][-1]["reward"] += 0.5
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    capsys.readouterr()
    with pytest.raises(
        ValueError,
        match="1 trajectories of .+ differ from their records, the first: prompt 1 of ",
    ):
        replay.main([*LAKE, f"--record={lines}"])
    with pytest.raises(ValueError, match="3 trajectories of"):  # of other instances
        replay.main([*LAKE, f"--record={lines}", "--eval_split=heldout"])


def test_two_records_of_one_policy_are_two_rows_and_none_is_said(runs, tmp_path, capsys):
    lines, more = tmp_path / "one.jsonl", tmp_path / "more.jsonl"
    evaluation.main([str(runs / "a"), "--eval_size=2", f"--jsonl={lines}"])
    capsys.readouterr()
    first = lines.read_text().splitlines()
    again = [json.dumps(json.loads(line) | {"entropy": 9.0}) for line in first]
    more.write_text("\n".join([*first, *again]))
    replay.main([str(runs / "a"), f"--record={more}"])
    assert list(rows_in(capsys.readouterr().out))[2:] == [
        f"{runs}/a/policy",
        f"{runs}/a/policy (2)",
    ]
    more.write_text(
        "\n".join([*first, *first])
    )  # the same games twice are no two samples of a prompt
    replay.main([str(runs / "a"), f"--record={more}"])
    out = capsys.readouterr().out
    assert (
        list(rows_in(out))[2:] == [f"{runs}/a/policy", f"{runs}/a/policy (2)"]
        and "pass@" not in out
    )
    for given in ("--player=greedy", "--samples=2", "--model=base"):
        with pytest.raises(
            ValueError,
            match="tools.replay takes no model, player or samples; it only plays the record",
        ):
            replay.main([str(runs / "a"), f"--record={lines}", given])
    for text in (
        "",
        '{"seed": [0]}\n',
        "[1]\n",
        "xx\n",
        json.dumps(json.loads(first[0]) | {"turns": [{}]}),
    ):
        lines.write_text(text)
        with pytest.raises(
            ValueError, match="one.jsonl does not hold trajectories as --jsonl writes them"
        ):
            replay.main([*LAKE, f"--record={lines}"])


def test_no_record_and_no_run_chooses_code_to_run(runs, tmp_path):
    """Names of environments may be files, which are code: only those that the user names are run."""
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    env, lines = f"{tmp_path}/evil.py:X", tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"env": env, "seed": [0], "member": 0, "turns": []}) + "\n")
    with pytest.raises(
        ValueError, match=r"lines.jsonl has games of '.*evil.py:X'; add --env=.*evil.py:X to play"
    ):
        replay.main([*LAKE, f"--record={lines}"])
    save_config(small_config(env=env), {}, tmp_path / "run")
    (tmp_path / "run/policy").mkdir()
    with pytest.raises(
        ValueError, match=r"run names code to run; if you trust it, add --env=.*evil.py:X"
    ):
        evaluation.main([str(tmp_path / "run")])
    save_config(
        small_config(eval_env=env), {}, tmp_path / "run"
    )  # which is what is scored, whatever env is
    with pytest.raises(
        ValueError, match=r"run names code to run; if you trust it, add --eval_env=.*evil.py:X"
    ):
        evaluation.main([str(tmp_path / "run"), "--env=bandit"])
    save_config(small_config(env=env), {}, tmp_path / "run")
    with pytest.raises(SystemExit, match="it ran"):
        replay.main([str(tmp_path / "run"), f"--env={env}", f"--record={lines}"])


def replayed(config, path):
    """The rows of a record that is played again."""
    job = evaluation.Job(config, {"record": str(path)}, [])
    return replay.replayed_rows(job)


def test_a_player_who_fails_loses(monkeypatch):
    monkeypatch.setattr(FrozenLake, "plan", lambda *_: 1 // 0)
    config = small_config(env="frozenlake", eval_size=2, max_error_frac=1.0)
    with pytest.raises(
        ValueError,
        match="2 of 2 trajectories .*ZeroDivisionError: integer division or modulo by zero",
    ):
        evaluation.play_reference(config, "optimal")
    assert {t.status for t in evaluation.play_reference(config, "greedy")} <= {
        "success",
        "failure",
        "out_of_turns",
    }


def test_a_record_of_shaped_rewards_and_full_contexts_is_repeated(
    trained_model, trained_folder, chat, tmp_path
):
    config = small_config(reward_density="plan", max_context_tokens=250, eval_size=5)
    engine = make_engine(config, trained_model, chat)
    result = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    assert "out_of_tokens" in {t.status for t in result[1]}
    write_jsonl(tmp_path / "lines.jsonl", {"us": result}, chat.tokenizer)
    ((env, name, (metrics, played), _),) = replayed(config, tmp_path / "lines.jsonl")
    assert (env, name, metrics) == (config.env, "us", result[0])
    assert [t.score for t in played] == [t.score for t in result[1]]


def test_options_that_do_not_fit():
    with pytest.raises(UserError, match="samples must be 1 or more, got 0"):
        evaluation.main([*LAKE, "--samples=0"])
    for argument in ("--api_base=http://x", "--api_model=x"):
        with pytest.raises(UserError, match="api_base and api_model must be given together; got"):
            api_models.main([*LAKE, argument])


@pytest.mark.parametrize(
    "old, new",
    [
        ("--api_base=http://x", "python -m tools.api_models"),
        ("--api_model=x", "python -m tools.api_models"),
        ("--repeat=x.jsonl", "python -m tools.replay RUN --record=PATH"),
    ],
)
def test_an_old_option_names_the_new_command(old, new):
    with pytest.raises(UserError, match=f"{old} moved to another command: {new}"):
        evaluation.main([*LAKE, old])


# ---------- a server that has its faults


GOOD = "<answer>Right || Down</answer>"


@pytest.fixture
def server(monkeypatch):
    """A server of chat completions. `answers(body)` gives a status and bytes; `seen` are requests and headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.seen.append((self.path, body, self.headers["Authorization"]))
            status, reply, *length = self.server.answers(body)
            self.send_response(status)
            self.send_header("Content-Length", str(*length or [len(reply)]))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    monkeypatch.setattr(api_models, "PAUSE_S", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.seen, found.answers = [], lambda body: (200, said(GOOD))
        found.url = f"http://127.0.0.1:{found.server_port}/v1"
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def said(text, count=7):
    return json.dumps(
        {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": count}}
    ).encode()


def test_a_server_is_asked_what_the_policy_is_asked(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    config = small_config(eval_size=2, eval_temperature=0.25)
    played = api_models.play_fixed_prompts(config, server.url + "/", "some/model", samples=2)
    assert [(t.seed, t.member) for t in played] == [((0,), 0), ((0,), 1), ((1,), 0), ((1,), 1)]
    for t in played:
        episode = make_episode(config)
        system, user = episode.reset(t.seed, split="eval", member=t.member)
        messages = [{"role": "system", "content": system}]
        for turn in t.turns:
            messages.append({"role": "user", "content": user})
            asked = [entry for entry in server.seen if entry[1]["messages"] == messages]
            assert asked, "this dialogue was never sent"
            assert (turn.observation, turn.text, len(turn.response_ids)) == (user, GOOD, 7)
            messages.append({"role": "assistant", "content": GOOD})
            user, reward, status, info = episode.step(GOOD)
            assert (turn.reward, turn.record) == (reward, info)
        assert t.status == status
    assert len({body["seed"] for _, body, _ in server.seen}) == len(server.seen)
    for path, body, key in server.seen:
        assert (path, key) == ("/v1/chat/completions", "Bearer secret")
        assert {k: body[k] for k in body.keys() - {"messages", "seed"}} == {
            "model": "some/model",
            "max_tokens": 12,
            "temperature": 0.25,
        }


def test_a_window_of_turns_is_all_that_a_server_sees(server):
    server.answers = lambda body: (200, said("<answer>Nowhere</answer>"))
    (t,) = api_models.play_fixed_prompts(small_config(eval_size=1, context_turns=2), server.url, "m")
    users = [turn.observation for turn in t.turns]
    sent = [[message["content"] for message in body["messages"][1:]] for _, body, _ in server.seen]
    nowhere = "<answer>Nowhere</answer>"
    assert sent == [users[:1], [users[0], nowhere, users[1]], [users[1], nowhere, users[2]]]


FAULTS = {
    "500": lambda: (500, b"out of luck"),
    "429": lambda: (429, b"slow down"),
    "no json": lambda: (200, b"<html>"),
    "no choices": lambda: (200, b'{"choices": []}'),
    "no text": lambda: (200, said(None)),
    "a list": lambda: (200, b"[]"),
    "cut off": lambda: (200, said(GOOD)[:20], 999),
    "too late": lambda: time.sleep(0.6) or (200, said(GOOD)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_of_a_server_are_survived(server, monkeypatch, kind):
    monkeypatch.setattr(api_models, "TIMEOUT_S", 0.3)
    count = itertools.count()
    server.answers = lambda body: FAULTS[kind]() if next(count) in (0, 1, 3) else (200, said(GOOD))
    (t,) = api_models.play_fixed_prompts(small_config(eval_size=1), server.url, "m")
    (expected,) = api_models.play_fixed_prompts(small_config(eval_size=1), server.url, "m")
    assert t == expected and t.status != "error"


def test_what_a_server_never_answers_is_a_failure(server, tmp_path, capsys):
    config, first = small_config(eval_size=3), []

    def answers(body):
        first.append(body["messages"][1]["content"])
        return (503, b"busy") if body["messages"][1]["content"] == lost else (200, said(GOOD))

    lost, server.answers = make_episode(config).reset((1,), split="eval")[1], answers
    played = api_models.play_fixed_prompts(config, server.url, "m")
    assert [t.status == "error" for t in played] == [False, True, False]
    assert first.count(lost) == api_models.ATTEMPTS == 5
    where = f"{server.url}/chat/completions: HTTP Error 503: Service Unavailable: busy"
    sentence = (
        f"1 of 3 trajectories of m ended in an error, the first by {where}; they count as failures"
    )
    assert capsys.readouterr().out.strip() == sentence
    assert score(played)["success"] <= 2 / 3 and played[1].turns[0].record.error == where
    write_jsonl(tmp_path / "lines.jsonl", {"m": Scores(score(played), played)})
    ((_, _, (metrics, again), _),) = replayed(config, tmp_path / "lines.jsonl")
    assert again == played and metrics == score(played)


def test_a_wrong_key_is_said_at_once(server):
    server.answers = lambda body: (401, b"no such key")
    with pytest.raises(
        ValueError, match="3 of 3 trajectories of m ended in an error, .+401: Unauthorized: no such"
    ):
        api_models.play_fixed_prompts(small_config(eval_size=3), server.url, "m")
    assert len(server.seen) == 3


def test_no_server_at_all(server, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(
        ValueError, match="2 of 2 trajectories of m ended in an error, the first by .+refused"
    ):
        api_models.main([*LAKE, f"--api_base={url}", "--api_model=m", "--eval_size=2"])


def test_a_server_beside_players(server, capsys):
    api_models.main(
        [*LAKE, f"--api_base={server.url}", "--api_model=m,n", "--player=greedy", "--eval_size=2"]
    )
    assert list(rows_in(capsys.readouterr().out))[2:] == [
        "m (API)",
        "n (API)",
        "greedy, closed loop",
    ]


# ---------- vLLM's own server


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory):
    """vllm serve of the base model as checkpoint.py exports it, by the module behind the command, which asks for a
    package named vllm."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
        port, master = free.getsockname()[1], other.getsockname()[1]
    parallel.init_distributed(load_config(LAKE)[0])
    weights, tokenizer = model.load_model("base")
    folder = tmp_path_factory.mktemp("exported") / "policy"
    checkpoint.export(folder, model.Policy(weights), tokenizer)
    # one process for engine and worker; blocks and chunks as in engine.py
    options = f"""--model {folder} --served-model-name base --port {port} --dtype float32
        --max-model-len 1024 --max-num-seqs 64 --block-size 32 --enforce-eager --generation-config vllm
        --max-num-batched-tokens 8192 --no-enable-chunked-prefill --distributed-executor-backend external_launcher"""
    environment = (
        os.environ
        | VLLM_ENVIRONMENT
        | dict(
            OMP_NUM_THREADS="1",
            VLLM_CPU_KVCACHE_SPACE="1",
            HF_HUB_OFFLINE="1",
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(master),
        )
    )
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options.split()]
    log = folder.with_name("log")
    with (
        log.open("w") as out,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out) as server,
    ):
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
        server.terminate()


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def test_a_real_server_scores_like_the_engine_in_process(vllm_url):
    config = replace(load_config(LAKE)[0], eval_size=64)
    weights, tokenizer = model.load_model("base")
    chat = Chat(tokenizer)
    engine, policy = make_engine(config, weights, chat), model.Policy(weights)
    _, ours = evaluation.evaluate(config, engine, chat, policy)
    theirs = api_models.play_fixed_prompts(config, vllm_url, "base")
    low, high = success_interval(ours)
    assert (
        low < score(theirs)["success"] < high
    )  # the same numbers at T=0.5, but not the same draws
    greedy = replace(config, eval_temperature=0.0, eval_size=16)
    _, ours = evaluation.evaluate(greedy, engine, chat, policy)
    theirs = api_models.play_fixed_prompts(greedy, vllm_url, "base")
    said = [
        [
            [(turn.observation, turn.text, len(turn.response_ids)) for turn in t.turns]
            for t in played
        ]
        for played in (ours, theirs)
    ]
    assert said[0] == said[1]
    assert [(t.status, t.score) for t in theirs] == [(t.status, t.score) for t in ours]


def test_a_player_whose_games_cannot_begin_says_why():
    config = load_config(["config/frozenlake_ppo.py", "--eval_size=2"])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grids.FrozenLake._start", lambda *_: 1 / 0)
        with pytest.raises(ValueError, match="2 of 2 trajectories ended .*ZeroDivisionError"):
            evaluation.play_reference(config, "optimal")
