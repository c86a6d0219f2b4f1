"""Tests of faults in whole runs, such as kills, full disks and broken environments."""

from configurator import UserError

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import fuzz
import pytest
import torch
from fuzz import Script
from runs import assert_same_checkpoint, rows_of, run, untimed
from shared_fixtures import SMALL_RUN, small_config
from test_parallel import needs_vllm

import dialogue
import envs
import parallel
import rollout
import train
from engines.vllm_engine import VLLMEngine
from rollout import Trajectory, Turn, collect
from support import checkpoint
from support.checkpoint import Saver, newest
from support.log import Log
from support.run_folder import DISK_ADVICE

EACH = dict(eval_every=1, save_every=1)


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


# ---------- checkpoints


@pytest.fixture(scope="module")
def whole(trained_folder, tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("whole") / "out"
    parallel.init_distributed(small_config())
    return out_dir, run(out_dir, trained_folder, num_iterations=3, **EACH)


def copied(whole, tmp_path):
    out_dir = tmp_path / "out"
    shutil.copytree(whole[0], out_dir)
    (out_dir / "scores.md").unlink()
    return out_dir


@pytest.mark.slow
def test_the_files_of_a_run(whole):
    out_dir, _ = whole
    checkpoints = sorted(path.name for path in out_dir.glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-000002", "checkpoint-000003"]
    last = out_dir / "checkpoint-000003"
    written = {path.name for path in last.iterdir()}
    assert written == {"state", "state.json", "config.json", "logs.json", "manifest.json"}
    state = json.loads((last / "state.json").read_text())
    assert state == {"format": 1, "step": 3, "bad_steps": 0, "estimator_state": {}}
    for name in ("best", "policy"):
        assert (out_dir / name / "model.safetensors").is_file()
        assert (out_dir / name / "config.json").is_file()
    files = [path for path in out_dir.rglob("*") if path.is_file()]
    endings = {path.suffix for path in files if "tensorboard" not in path.parts}
    assert endings <= {".diff", ".safetensors", ".json", ".jsonl", ".md", ".jinja"}
    assert not (out_dir / "partial").exists() and not (out_dir / "lock").exists()


@pytest.mark.slow
def test_best_is_the_first_of_the_best_evaluations(trained_folder, tmp_path, monkeypatch):
    successes = iter([0.0, 0.5, 0.25, 0.5, 0.5])
    exported = []
    first_results = []
    evaluate_all = train.evaluate_all
    export = checkpoint.export

    def scripted(config, *args):
        if not first_results:
            first_results.append(evaluate_all(config, *args))
        ((env, scores),) = first_results[0].items()
        metrics = scores.metrics | {"success": next(successes)}
        return {env: scores._replace(metrics=metrics)}

    def spy(folder, *args):
        exported.append((folder.name, len(rows_of(tmp_path / "out"))))
        export(folder, *args)

    monkeypatch.setattr(train, "evaluate_all", scripted)
    monkeypatch.setattr(checkpoint, "export", spy)
    settings = dict(num_iterations=4, num_groups=2, filter_keep=1.0, eval_every=1, save_every=0)
    run(tmp_path / "out", trained_folder, **settings)
    assert exported == [("best", 0), ("policy", 4)]


@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, trained_folder, tmp_path, capsys):
    out_dir = copied(whole, tmp_path)
    shutil.rmtree(out_dir / "policy")
    (weights,) = (out_dir / "checkpoint-000003" / "state").iterdir()
    os.truncate(weights, weights.stat().st_size // 2)
    rows = run(out_dir, trained_folder, num_iterations=3, **EACH)
    out = capsys.readouterr().out
    assert f"{out_dir}/checkpoint-000003 is damaged (wrong checksum of state/{weights.name})" in out
    assert f"continuing {out_dir} from iteration 2" in out
    assert untimed(rows) == untimed(whole[1])
    assert_same_checkpoint(whole[0], out_dir)


@pytest.mark.slow
def test_other_settings_are_taken_with_a_flag(whole, trained_folder, tmp_path):
    out_dir = copied(whole, tmp_path)
    file = tmp_path / "other.py"
    settings = SMALL_RUN | EACH | dict(model=str(trained_folder), num_groups=4)
    settings |= dict(clip_high=0.4, num_iterations=4)
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    with pytest.raises(ValueError) as error:
        train.main([str(file), f"--out_dir={out_dir}"])
    assert (
        "(clip_high was 0.28 and is now 0.4); give another --out_dir, or --take_config=True "
        in str(error.value)
    )
    train.main([str(file), f"--out_dir={out_dir}", "--take_config=True"])
    assert untimed(rows_of(out_dir))[:3] == untimed(whole[1]) and len(rows_of(out_dir)) == 4
    assert json.loads((out_dir / "config.json").read_text())["config"]["clip_high"] == 0.4


# ---------- disks


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_costs_no_checkpoint(trained_folder, tmp_path, monkeypatch):
    out_dir = tmp_path / "out"
    write = Saver._write
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(saver, state, counts, log_sizes):
        if counts["step"] == 2:  # from now on no file may exceed 300 kB
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
        write(saver, state, counts, log_sizes)

    monkeypatch.setattr(Saver, "_write", full)
    try:
        with pytest.raises(ValueError) as error:
            run(out_dir, trained_folder, num_iterations=2, eval_every=0, save_every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sentence = str(error.value)
    assert sentence.startswith(f"{out_dir}/checkpoint-000002 could not be written (")
    assert "File too large" in sentence and sentence.endswith(DISK_ADVICE)
    assert "\n" not in sentence
    assert newest(out_dir) == out_dir / "checkpoint-000001" and not (out_dir / "partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, words", [(28, "No space left on device"), (30, "Read-only file system")]
)
def test_a_log_that_cannot_be_written_is_one_sentence(
    trained_folder, tmp_path, monkeypatch, number, words
):
    out_dir = tmp_path / "out"
    write = Log.write

    def fail(log, row, samples):
        if row["step"] == 2:
            raise OSError(number, words)
        write(log, row, samples)

    monkeypatch.setattr(Log, "write", fail)
    with pytest.raises(ValueError) as error:
        run(out_dir, trained_folder, num_iterations=2, eval_every=0, save_every=1)
    reason = f"[Errno {number}] {words}"
    assert str(error.value) == f"{out_dir} could not be written ({reason}); {DISK_ADVICE}"
    assert newest(out_dir) == out_dir / "checkpoint-000001"


# ---------- signals


@pytest.mark.slow
def test_a_signal_ends_a_run_after_the_iteration(
    whole, trained_folder, tmp_path, monkeypatch, capfd
):
    iterate = train.iterate

    def signalled(learner, *args):
        if learner.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return iterate(learner, *args)

    monkeypatch.setattr(train, "iterate", signalled)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as left:
        run(tmp_path / "out", trained_folder, num_iterations=3, eval_every=1, save_every=0)
    assert left.value.code == 75 and signal.getsignal(signal.SIGINT) == before
    captured = capfd.readouterr()
    assert "SIGINT: ending after this iteration, in 60 s at most" in captured.err
    assert "interrupted at iteration 2; start again to continue" in captured.out
    assert untimed(rows_of(tmp_path / "out")) == untimed(whole[1][:2])
    monkeypatch.undo()
    parallel.init_distributed(small_config())
    rows = run(tmp_path / "out", trained_folder, num_iterations=3, **EACH)
    assert untimed(rows) == untimed(whole[1])
    assert_same_checkpoint(whole[0], tmp_path / "out")


# ---------- trajectories that end in an error


def break_environment(monkeypatch, member, fault, *, method, blocking):
    reset = dialogue.Episode.reset
    healthy = getattr(dialogue.Episode, method)

    def faulty(episode, *args, **options):
        outcome = healthy(episode, *args, **options)
        return fault(outcome) if episode.member == member else outcome

    def marked(episode, *args, **options):
        episode.member = options["member"]
        return (faulty if method == "reset" else reset)(episode, *args, **options)

    monkeypatch.setattr(envs.Env, "blocking", blocking)
    monkeypatch.setattr(dialogue.Episode, method, faulty)
    monkeypatch.setattr(dialogue.Episode, "reset", marked)


def raises(outcome):
    raise OSError("the server is gone")


def hangs(outcome):
    time.sleep(20)
    return outcome


def spins(outcome):
    while True:
        pass


def pays_nan(outcome):
    return outcome._replace(reward=math.nan)


STARTS = [((4, 0), member) for member in range(4)]
OPTIONS = dict(split="train", temperature=1.0, noise_seed=(7,))


@pytest.mark.parametrize(
    "fault, method, blocking, sentence",
    [
        (raises, "step", False, "OSError: the server is gone"),
        (raises, "step", True, "OSError: the server is gone"),
        (hangs, "step", False, "no answer within 0.3 s"),
        (hangs, "step", True, "no answer within 0.3 s"),
        (spins, "step", False, "no answer within 0.3 s"),
        (pays_nan, "step", True, "its reward is nan"),
        (raises, "reset", False, "OSError: the server is gone"),
        (hangs, "reset", False, "no answer within 0.3 s"),
        (raises, "reset", True, "OSError: the server is gone"),
        (hangs, "reset", True, "no answer within 0.3 s"),
    ],
)
def test_a_failing_environment_ends_its_trajectory_only(
    chat, monkeypatch, fault, method, blocking, sentence
):
    reply = [*chat.encode("<answer>Left</answer>"), chat.end]
    config = small_config(step_timeout_s=0.3)
    expected = collect(Script(reply), chat, config, STARTS, **OPTIONS)
    break_environment(monkeypatch, 2, fault, method=method, blocking=blocking)
    found = collect(Script(reply), chat, config, STARTS, **OPTIONS)
    failed = found[2]
    assert failed.status == "error" and failed.score == 0 and len(failed.turns) == 1
    assert failed.turns[-1].record.error == sentence
    assert failed.response_mask.count(True) == (0 if method == "reset" else len(reply))
    for i in (0, 1, 3):
        assert found[i].ids == expected[i].ids
        assert (found[i].status, found[i].score) == (expected[i].status, expected[i].score)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_player_whose_environment_fails_is_paid_for_no_plan(monkeypatch, method):
    break_environment(monkeypatch, 2, raises, method=method, blocking=False)

    episode = rollout.make_episode(small_config(reward_density="plan"))
    started = rollout.Rollout(episode, (0,), member=2)
    started.reset("eval")
    played = rollout.play(started, lambda _: rollout.Reply("<answer>Left</answer>"))
    assert played.status == "error" and played.score == 0
    assert played.turns[-1].record.error == "OSError: the server is gone"


def test_a_thread_does_not_stop_the_clock_of_the_main_one():
    def hangs_beside_a_thread():
        thread = threading.Thread(target=rollout.call_with_timeout, args=(5.0, int))
        thread.start()
        thread.join()
        time.sleep(3)

    with pytest.raises(rollout.EnvError, match=r"no answer within 0.3 s"):
        rollout.call_with_timeout(0.3, hangs_beside_a_thread)


@pytest.mark.slow
def test_groups_with_errors_are_left_out_of_the_update(
    trained_folder, tmp_path, monkeypatch, capsys
):
    # The first six episodes are evaluation games, so the 13th episode is the 7th training episode.
    # Group 0 has the training episodes 1 to 4, and group 1 has 5 to 8.
    wrong = 6 + 7
    episodes = []
    filtered = []
    kept_fractions = []
    make_episode = rollout.make_episode
    ranking_values = train.ranking_values
    build_experience = train.build_experience

    def some_fail(config, env=""):
        episode = make_episode(config, env)
        episodes.append(episode)
        if len(episodes) == wrong:
            monkeypatch.setattr(episode, "step", lambda text: raises(None))
        return episode

    def spy_on_filter(config, trajectories, stats):
        filtered.extend(trajectories)
        return ranking_values(config, trajectories, stats)

    def spy_on_advantages(learner, kept, kept_fraction):
        kept_fractions.append(kept_fraction)
        return build_experience(learner, kept, kept_fraction)

    monkeypatch.setattr(rollout, "make_episode", some_fail)
    monkeypatch.setattr(train, "ranking_values", spy_on_filter)
    monkeypatch.setattr(train, "build_experience", spy_on_advantages)
    (row,) = run(tmp_path / "out", trained_folder, num_iterations=1, eval_every=0)
    assert kept_fractions == [4 / 12]
    # the filter keeps half of three groups, rounded down
    assert row["error_frac"] == 1 / 16 and row["kept_trajectories"] == 4
    assert len(filtered) == 12 and all(played.status != "error" for played in filtered)
    assert {played.seed for played in filtered} == {(0, 31, 0, group) for group in (0, 2, 3)}
    assert (
        "1 of 16 trajectories ended in an error (the first, in "
        "frozenlake:success_rate=0.8: OSError: the server is gone); training drops their groups"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("num_errors, counted", [(2, "2 of 4"), (1, "1 of 4")])
def test_a_run_stops_without_a_whole_group(num_errors, counted):
    error_turn = Turn([1], [2], [0.0], record=dialogue.TurnRecord([], error="OSError: gone"))
    failed = Trajectory((0,), 0, [error_turn], "error", env="lake")
    good = Trajectory((0,), 0, [Turn([1], [2], [0.0])], "failure")
    config = small_config(max_error_frac=0.25)
    assert rollout.without_errors([good, good, failed, good], 2) == [good, good]
    played = [failed] * num_errors + [good] * (4 - num_errors)
    with pytest.raises(ValueError) as error:
        rollout.check_errors(played, config, 4)
    assert str(error.value) == (
        f"{counted} trajectories ended in an error (the first, in lake: "
        "OSError: gone); the limit is 4 (max_error_frac is 0.25), and at least one group must "
        "have no error"
    )


# ---------- an engine that fails


KV_CACHE_ADVICE = "; lower max_running or max_context_tokens, which size the KV cache"


@pytest.mark.parametrize(
    "error, said",
    [
        (KeyError("key"), "('key')"),
        (AssertionError(), "(AssertionError)"),
        (
            type("EngineDeadError", (Exception,), {})("CUDA error: an illegal memory access\nmore"),
            "(CUDA error: an illegal memory access more)",
        ),
        (
            RuntimeError("Unsupported CPU attention configuration: head_dim=12"),
            "(Unsupported CPU attention configuration: head_dim=12)",
        ),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "(CUDA out of memory. Tried to allocate 2.00 GiB.)" + KV_CACHE_ADVICE,
        ),
        (ValueError("a" * 10**6), f"({'a' * 300})"),
    ],
)
def test_an_engine_that_dies_is_one_sentence(error, said):
    def step():
        raise error

    engine = VLLMEngine.__new__(VLLMEngine)
    engine.num_steps = 0
    engine.engine = SimpleNamespace(step=step)
    with pytest.raises(UserError) as raised:
        engine.step()
    assert str(raised.value) == f"vLLM failed while sampling {said}"


# ---------- hostile text


@pytest.mark.slow
@pytest.mark.parametrize("maker", [fuzz.grammar, fuzz.damaged])
def test_hostile_replies_forge_nothing(chat, maker):
    assert maker(chat, 500) >= 500


# ---------- kills


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, said",
    [
        (("8", "6"), "8 kills (write 2, rollout 2, update 1, rename 1, evaluation 1, log 1)"),
        # vLLM runs on two ranks. Rank 0 is killed in iteration 2, at a write to disk (os.fsync).
        pytest.param(
            ("1", "2", "2"),
            "1 kills (write 1, rollout 0, update 0, rename 0, evaluation 0, log 0), "
            "the last in iteration 2 of 2: ",
            marks=needs_vllm,
            id="vLLM",
        ),
    ],
)
def test_killed_runs_end_like_one_that_was_not(tmp_path, arguments, said):
    settings = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "tests/helpers/soak.py", *arguments]
    done = subprocess.run(command, env=os.environ | settings, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert said in done.stdout and "metrics, trajectories and weights are equal" in done.stdout
