"""
Tests of faults: runs that are killed, told to end, out of disk, on damaged checkpoints, with broken environments. CPU.

    python -m pytest -q tests/test_reliability.py
"""

import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fuzz
import pytest
import torch
from conftest import SMALL_RUN, make_learner, small_config
from fuzz import Script
from safetensors.torch import load_file
from test_parallel import needs_vllm
from test_train import assert_same_checkpoint, rows_of, run, untimed

import dialogue
import envs
import eval as evaluation
import parallel
import rollout
import train
from engine import VLLMEngine
from rollout import Trajectory, Turn, collect
from support import checkpoint
from support.checkpoint import EXIT_INTERRUPTED, Saver, find_corruption, locked, newest
from support.log import Log
from support.run_folder import write_whole

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def one_rank():
    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def whole(trained_folder, tmp_path_factory):
    """Three iterations, each evaluated and saved, without a fault."""
    out_dir = tmp_path_factory.mktemp("whole") / "out"
    parallel.init_distributed(small_config())
    return out_dir, run(out_dir, trained_folder, num_iterations=3, **EACH)


EACH = dict(eval_every=1, save_every=1)


def copied(whole, tmp_path, *, drop=()):
    """A copy of a run that was ended before its report."""
    out_dir = tmp_path / "out"
    shutil.copytree(whole[0], out_dir)
    for name in ("scores.md", *drop):
        (shutil.rmtree if (out_dir / name).is_dir() else Path.unlink)(out_dir / name)
    return out_dir


def flip(path, at=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


# ---------- checkpoints


def test_the_last_checkpoints_and_the_best_are_kept(whole):
    out_dir, rows = whole
    assert [path.name for path in sorted(out_dir.glob("checkpoint-*"))] == [
        "checkpoint-000002",
        "checkpoint-000003",
    ]
    written = {p.name for p in (out_dir / "checkpoint-000003").iterdir()}
    assert written == {"state", "state.json", "config.json", "manifest.json"}
    assert json.loads((out_dir / "checkpoint-000003/state.json").read_text()) == {
        "format": 1,
        "step": 3,
        "bad_steps": 0,
    }
    for name in ("best", "policy"):
        assert (out_dir / name / "model.safetensors").is_file() and (
            out_dir / name / "config.json"
        ).is_file()
    # no pickle, and nothing half written
    files = [
        path for path in out_dir.rglob("*") if path.is_file() and "tensorboard" not in path.parts
    ]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jsonl", ".md", ".jinja"}
    assert not (out_dir / "partial").exists() and not (out_dir / "lock").exists()


def test_best_is_the_first_of_the_best_evaluations(trained_folder, tmp_path, monkeypatch):
    successes, exported = (
        iter([0.0, 0.5, 0.25, 0.5, 0.5]),
        [],
    )  # of the start, then of four iterations
    evaluate_all, export = train.evaluate_all, checkpoint.export

    def scripted(config, *args):
        ((env, (metrics, played)),) = evaluate_all(config, *args).items()
        return {env: (metrics | {"success": next(successes)}, played)}

    def spy(folder, *args):
        exported.append((folder.name, len(rows_of(tmp_path / "out"))))
        export(folder, *args)

    monkeypatch.setattr(train, "evaluate_all", scripted)
    monkeypatch.setattr(checkpoint, "export", spy)
    run(tmp_path / "out", trained_folder, num_iterations=4, **EACH)
    assert exported == [("best", 0), ("policy", 4)]


@pytest.mark.parametrize(
    "fault, problem",
    [
        ("truncated", r"the checksum of state/.+\.safetensors is wrong"),
        ("flipped", r"the checksum of state/.+ is wrong"),
        ("counts", r"the checksum of state.json is wrong"),
        ("missing", r"FileNotFoundError: .+safetensors'"),
        ("manifest", r"JSONDecodeError: .+"),
    ],
)
def test_damage_is_found_and_named(whole, tmp_path, fault, problem):
    folder = tmp_path / "checkpoint-000003"
    shutil.copytree(whole[0] / folder.name, folder)
    assert find_corruption(folder) == ""
    (weights,) = (folder / "state").iterdir()
    if fault == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif fault == "missing":
        weights.unlink()
    elif fault == "manifest":
        os.truncate(folder / "manifest.json", 40)
    else:
        flip(weights if fault == "flipped" else folder / "state.json")
    assert re.fullmatch(problem, find_corruption(folder))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, trained_folder, tmp_path, capsys):
    out_dir = copied(whole, tmp_path, drop=["policy"])
    (weights,) = (out_dir / "checkpoint-000003" / "state").iterdir()
    flip(weights)
    rows = run(out_dir, trained_folder, num_iterations=3, **EACH)
    out = capsys.readouterr().out
    assert (
        f"{out_dir}/checkpoint-000003 is damaged (the checksum of state/{weights.name} is wrong); "
        in out
    )
    assert (
        "going back to the one before it" in out and f"continuing {out_dir} from iteration 2" in out
    )
    assert untimed(rows) == untimed(whole[1])
    assert_same_checkpoint(whole[0], out_dir)


def test_no_whole_checkpoint_and_another_format_are_said(whole, tmp_path):
    out_dir = copied(whole, tmp_path)
    for folder in out_dir.glob("checkpoint-*"):
        flip(folder / "state.json")
    with pytest.raises(ValueError) as error:
        newest(out_dir)
    assert (
        str(error.value)
        == f"no checkpoint in {out_dir} is whole; give another --out_dir, or empty this one"
    )
    folder = out_dir / "checkpoint-000009"
    folder.mkdir()
    (folder / "state.json").write_text('{"format": 2}')
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ValueError) as error:
        newest(out_dir)
    assert str(error.value) == f"{folder} has format 2, this code reads format 1"
    assert newest(tmp_path / "nothing") is None


def test_what_is_left_of_later_checkpoints_is_dropped(trained_folder, tmp_path):
    states = {"policy": {"weights": {"w": torch.arange(3.0)}}}
    for steps, keep in (((1, 2, 7), 9), ((3,), 1)):  # after falling back from 7, keep one
        with Saver(tmp_path, keep) as saver:
            for step in steps:
                saver.save(states, {"step": step, "bad_steps": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000003"]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    weights, disk, sync = torch.arange(3.0), threading.Event(), checkpoint.sync
    monkeypatch.setattr(checkpoint, "sync", lambda path: disk.wait(60) and sync(path))
    with Saver(tmp_path, 2) as saver:
        saver.save({"policy": {"weights": {"w": weights}}}, {"step": 1, "bad_steps": 0})
        weights += 1  # the next optimizer step
        assert newest(tmp_path) is None and not saver.writing.done()
        disk.set()
    (file,) = (newest(tmp_path) / "state").iterdir()
    assert load_file(file)["policy.weights.w"].tolist() == [0.0, 1.0, 2.0]

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "sync", full)
    with Saver(tmp_path, 2) as saver:
        saver.save(
            {"policy": {"weights": {"w": weights}}}, {"step": 2, "bad_steps": 0}
        )  # fails beside training
        with pytest.raises(ValueError) as error:
            saver.save({"policy": {"weights": {"w": weights}}}, {"step": 3, "bad_steps": 0})
    assert str(error.value) == (
        f"{tmp_path}/checkpoint-000002 could not be written ([Errno 28] No space left on device); what was saved "
        "before is whole: make room, and start again to go on from it"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001"]


def test_a_full_disk_is_one_sentence_and_costs_no_checkpoint(trained_folder, tmp_path, monkeypatch):
    out_dir, write = tmp_path / "out", Saver._write
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(saver, states, counts):
        if counts["step"] == 2:  # from now on no file may be larger
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
        write(saver, states, counts)

    monkeypatch.setattr(Saver, "_write", full)
    try:
        with pytest.raises(ValueError) as error:
            run(out_dir, trained_folder, num_iterations=2, eval_every=0, save_every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sentence = str(error.value)
    assert (
        sentence.startswith(f"{out_dir}/checkpoint-000002 could not be written (")
        and "File too large" in sentence
    )
    assert sentence.endswith(
        "what was saved before is whole: make room, and start again to go on from it"
    )
    assert "\n" not in sentence
    assert newest(out_dir) == out_dir / "checkpoint-000001" and not (out_dir / "partial").exists()


@pytest.mark.parametrize(
    "number, words", [(28, "No space left on device"), (30, "Read-only file system")]
)
def test_a_log_that_cannot_be_written_is_one_sentence(
    trained_folder, tmp_path, monkeypatch, number, words
):
    out_dir, write = tmp_path / "out", Log.write

    def fail(log, row, samples):
        if row["step"] == 2:
            raise OSError(number, words)
        write(log, row, samples)

    monkeypatch.setattr(Log, "write", fail)
    with pytest.raises(ValueError) as error:
        run(out_dir, trained_folder, num_iterations=2, eval_every=0, save_every=1)
    assert str(error.value) == (
        f"{out_dir} could not be written ([Errno {number}] {words}); what was saved before is "
        "whole: make room, and start again to go on from it"
    )
    assert newest(out_dir) == out_dir / "checkpoint-000001"


def test_a_read_only_folder_is_said_at_once(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        ValueError, match=r"out_dir=.* cannot be written \(\[Errno 30\] Read-only file system\)"
    ):
        with locked(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError) as error, locked(tmp_path / "file" / "out"):
        pass
    given = f"{str(tmp_path / 'file' / 'out')!r}"
    assert str(error.value).startswith(
        f"out_dir={given} cannot be written ([Errno 20] Not a directory"
    )


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_whole(path, "old")
    monkeypatch.setattr(
        os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_other_settings_are_taken_with_a_flag(whole, trained_folder, tmp_path):
    out_dir = copied(whole, tmp_path)
    file = tmp_path / "other.py"
    changed = (
        SMALL_RUN
        | dict(model=str(trained_folder), num_groups=4, clip_high=0.4, num_iterations=4)
        | EACH
    )
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in changed.items()))
    with pytest.raises(ValueError) as error:
        train.main([str(file), f"--out_dir={out_dir}"])
    assert (
        "holds another run (clip_high is 0.28 there and 0.4 here); give another --out_dir, or"
        in str(error.value)
    )
    train.main([str(file), f"--out_dir={out_dir}", "--take_config=True"])
    assert untimed(rows_of(out_dir))[:3] == untimed(whole[1]) and len(rows_of(out_dir)) == 4
    assert json.loads((out_dir / "config.json").read_text())["config"]["clip_high"] == 0.4


def test_what_a_checkpoint_lacks_is_one_sentence(whole, trained_folder, tmp_path):
    out_dir = copied(whole, tmp_path)
    file = tmp_path / "other.py"
    changed = (
        SMALL_RUN
        | dict(model=str(trained_folder), num_groups=4, lora_rank=2, num_iterations=4)
        | EACH
    )
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in changed.items()))
    with pytest.raises(
        ValueError, match=r"checkpoint-000003 is of a run that trained something else \(.*lora_A"
    ):
        train.main([str(file), f"--out_dir={out_dir}", "--take_config=True"])


def test_a_save_before_the_first_step_changes_no_step(trained_folder):
    def steps(learner):
        states = checkpoint.states_of(learner.modules, learner.optimizers).values()
        return {float(moment["step"]) for state in states for moment in state["moments"].values()}

    weights = []
    for saved in (False, True):
        learner = make_learner(trained_folder)
        assert not saved or steps(learner) == {0.0}
        for module in learner.modules.values():
            for p in module.parameters():
                p.grad = torch.ones_like(p)
        for optimizer in learner.optimizers.values():
            optimizer.step()
        assert steps(learner) == {1.0}
        weights.append([parallel.full_tensor(p.detach()) for p in learner.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


# ---------- two runs, signals


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with locked(tmp_path / "out"):
        with pytest.raises(ValueError) as error, locked(tmp_path / "out"):
            pass
        holder = f"process {os.getpid()} on {os.uname().nodename}"
        assert (
            str(error.value)
            == f"out_dir={str(tmp_path / 'out')!r} is in use by {holder}; give another --out_dir"
        )
    assert not (tmp_path / "out").exists()  # nothing was written
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lock").write_text(
        "process 4194000 on elsewhere"
    )  # of a process that was killed
    with locked(tmp_path / "out"):
        assert (tmp_path / "out" / "lock").read_text() == holder
        (tmp_path / "out" / "config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_iteration(
    whole, trained_folder, tmp_path, monkeypatch, capfd, number
):
    iterate = train.iterate

    def signalled(learner, *args):
        if learner.step == 1:
            os.kill(os.getpid(), number)
        return iterate(learner, *args)

    monkeypatch.setattr(train, "iterate", signalled)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as left:
        run(tmp_path / "out", trained_folder, num_iterations=3, eval_every=1, save_every=0)
    assert left.value.code == EXIT_INTERRUPTED == 75 and signal.getsignal(number) == before
    said = capfd.readouterr()
    assert f"{number.name}: ending after this iteration, in 60 s at most" in said.err
    assert "interrupted at iteration 2; started again, the run continues" in said.out
    assert untimed(rows_of(tmp_path / "out")) == untimed(whole[1][:2])
    monkeypatch.undo()
    parallel.init_distributed(small_config())
    assert untimed(run(tmp_path / "out", trained_folder, num_iterations=3, **EACH)) == untimed(
        whole[1]
    )
    assert_same_checkpoint(whole[0], tmp_path / "out")


CHILD = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from support.checkpoint import Interruption
with Interruption({grace_s}):
    for number in {numbers}:
        os.kill(os.getpid(), number)
    time.sleep(30)
"""


@pytest.mark.parametrize(
    "numbers, grace_s, code, sentence",
    [
        (
            [signal.SIGTERM, signal.SIGTERM],
            0.2,
            EXIT_INTERRUPTED,
            "no iteration ended within grace_s (0.2 s); started again, the run continues from its checkpoint",
        ),
        (
            [signal.SIGINT, signal.SIGINT],
            60,
            130,
            "interrupted twice: ended at once; started again, the run continues from its checkpoint",
        ),
    ],
)
def test_the_end_of_the_grace_and_a_second_interrupt(numbers, grace_s, code, sentence):
    script = CHILD.format(
        root=str(ROOT), grace_s=grace_s, numbers=[int(number) for number in numbers]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code and done.stderr.strip().splitlines()[-1] == sentence, done.stderr


# ---------- environments that fail


def broken(monkeypatch, member, fault, *, method, blocking):
    """Let the environment of one member fail."""
    reset, healthy = dialogue.Episode.reset, getattr(dialogue.Episode, method)

    def marked(episode, *args, **options):
        episode.member = options["member"]
        return (faulty if method == "reset" else reset)(episode, *args, **options)

    def faulty(episode, *args, **options):
        outcome = healthy(episode, *args, **options)
        return fault(outcome) if episode.member == member else outcome

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


def pays_nothing_known(outcome):
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
        (pays_nothing_known, "step", True, "its reward is nan"),
        (raises, "reset", False, "OSError: the server is gone"),
        (hangs, "reset", False, "no answer within 0.3 s"),
    ],
)
def test_a_failing_environment_ends_its_trajectory_only(
    chat, monkeypatch, fault, method, blocking, sentence
):
    reply = [*chat.encode("<answer>Left</answer>"), chat.end]
    config = small_config(step_timeout_s=0.3)
    expected = collect(Script(reply), chat, config, STARTS, **OPTIONS)
    broken(monkeypatch, 2, fault, method=method, blocking=blocking)
    found = collect(Script(reply), chat, config, STARTS, **OPTIONS)
    assert (
        found[2].status == "error"
        and found[2].turns[-1].info["error"].removeprefix("TimeoutError: ") == sentence
    )
    assert (
        len(found[2].turns) == 1
        and found[2].score == 0
        and found[2].response_mask.count(True) == len(reply)
    )
    for i in (0, 1, 3):
        assert found[i].ids == expected[i].ids
        assert (found[i].status, found[i].score) == (expected[i].status, expected[i].score)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_player_whose_environment_fails_has_no_plan_to_be_paid_for(monkeypatch, method):
    broken(monkeypatch, 2, raises, method=method, blocking=False)
    config, answer = (
        small_config(reward_density="plan"),
        lambda *_: Turn([], [], [], text="<answer>Left</answer>"),
    )
    t = evaluation.play(config, answer, (0,), 2)
    assert (
        t.status == "error"
        and t.score == 0
        and t.turns[-1].info["error"] == "OSError: the server is gone"
    )


def test_a_thread_does_not_stop_the_clock_of_the_main_one():
    def hangs_beside_a_thread():
        thread = threading.Thread(target=rollout.call_with_timeout, args=(5.0, int))
        thread.start()
        thread.join()
        time.sleep(3)

    with pytest.raises(rollout.EnvError, match=r"no answer within 0.3 s"):
        rollout.call_with_timeout(0.3, hangs_beside_a_thread)


def test_groups_with_errors_are_left_out_of_the_update(
    trained_folder, tmp_path, monkeypatch, capsys
):
    make, made, wrong = (
        rollout.make_episode,
        [],
        2 + 6 + 5,
    )  # two checks, the start's evaluation, one of group 1

    def some_fail(config, env=""):
        episode = make(config, env)
        made.append(episode)
        if len(made) == wrong:
            monkeypatch.setattr(episode, "step", lambda text: raises(None))
        return episode

    monkeypatch.setattr(rollout, "make_episode", some_fail)
    seen, choose = [], train.select_groups
    monkeypatch.setattr(
        train, "choose", lambda config, t, scores: (seen.append(t), choose(config, t, scores))[1]
    )
    shares, targets = [], train.compute_targets
    monkeypatch.setattr(
        train, "token_targets", lambda *args: (shares.append(args[2]), targets(*args))[1]
    )
    rows = run(tmp_path / "out", trained_folder, num_iterations=1, eval_every=0)
    assert shares == [4 / 12]  # of the groups that the filter saw
    assert (
        rows[0]["error_frac"] == 1 / 16 and rows[0]["kept_trajectories"] == 4
    )  # half of three groups, rounded down
    assert len(seen[0]) == 12 and all(t.status != "error" for t in seen[0])
    assert {t.seed for t in seen[0]} == {(0, 31, 0, group) for group in (0, 2, 3)}
    sentence = "1 of 16 trajectories ended in an error of their environment (the first, frozenlake:success_rate=0.8: "
    assert (
        f"{sentence}OSError: the server is gone); they fail an evaluation"
        in capsys.readouterr().out
    )


def test_a_run_stops_above_the_share_of_errors():
    t = Trajectory(
        (0,), 0, [Turn([1], [2], [0.0], info={"error": "OSError: gone"})], "error", env="lake"
    )
    good = Trajectory((0,), 0, [Turn([1], [2], [0.0])], "failure")
    config = small_config(max_error_frac=0.25)
    assert rollout.without_errors([good, good, t, good], config, 2) == [good, good]
    for played, share in (([t, t, good, good], "2 of 4"), ([good, t, good, good], "1 of 4")):
        with pytest.raises(ValueError) as error:
            rollout.without_errors(played, config, 4)  # too many; or none of the groups is whole
        assert str(error.value) == (
            f"{share} trajectories ended in an error of their environment (the first, lake: OSError: gone); "
            "max_error_frac is 0.25, and whole groups must be left"
        )


# ---------- an engine that fails


@pytest.mark.parametrize(
    "kind", [RuntimeError, AssertionError, KeyError, type("EngineDeadError", (Exception,), {})]
)
def test_an_engine_that_dies_is_one_sentence(kind):
    def step():
        raise kind(
            "CUDA error: an illegal memory access\nand what follows"
            if kind is not KeyError
            else "key"
        )

    engine = VLLMEngine.__new__(VLLMEngine)  # vLLM itself is not needed to fail
    engine.num_steps, engine.engine = 0, SimpleNamespace(step=step)
    with pytest.raises(ValueError) as error:
        engine.step()
    why = "'key'" if kind is KeyError else "CUDA error: an illegal memory access"
    assert str(error.value) == (
        f"vLLM failed while sampling ({why}); lower max_running or max_context_tokens; "
        "started again, a run continues from its checkpoint"
    )


# ---------- hostile text


@pytest.mark.parametrize("maker", [fuzz.grammar, fuzz.damaged])
def test_hostile_replies_forge_nothing(chat, maker):
    """Some of those of which `python tests/fuzz.py` makes as many as wanted."""
    assert maker(chat, 500) >= 500


# ---------- kills


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("8", "6"), "8 kills (rollout 2, write 2, update 1, rename 1, evaluation 1, log 1)"),
        pytest.param(
            ("2", "3", "2"), "2 kills (rollout 1, write 1, ", marks=needs_vllm
        ),  # vLLM on two ranks
    ],
)
def test_killed_runs_end_like_one_that_was_not(tmp_path, arguments, said):
    """Kills -9 at moments of rollout, update, evaluation, log, write and rename that a seed draws."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "tests/soak.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert said in done.stdout and "metrics, trajectories and weights are equal" in done.stdout
