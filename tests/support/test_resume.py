"""Tests of runs that continue with other settings, or in a damaged folder."""

from configurator import UserError

import json
import shutil

import pytest
from runs import RUN, read_lines, rows_of
from shared_fixtures import small_config
from test_checkpoint import flip_bit

import parallel
import train
from model import load_model
from support.run_folder import load_saved
from tools.plotting.arms import read_run
from tools.viewer.data import load_runs

EACH = dict(eval_every=1, save_every=1, final_lr=0.1, learning_rate=1e-4, critic_lr=2e-4)


@pytest.fixture(autouse=True)
def one_process():
    parallel.init_distributed(small_config())


def start(folder, out_dir, *flags, **changes):
    settings = RUN | EACH | dict(model=str(folder)) | changes
    arguments = [f"--{key}={value}" for key, value in settings.items()]
    train.main([*arguments, f"--out_dir={out_dir}", *flags])


@pytest.fixture(scope="module")
def finished(trained_folder, tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("resume") / "run"
    parallel.init_distributed(small_config())
    start(trained_folder, out_dir, num_iterations=2)
    return out_dir


@pytest.fixture
def out_dir(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_longer_schedule_is_refused_or_stays_visible(trained_folder, out_dir, capsys):
    with pytest.raises(UserError, match="num_iterations was 2 and is now 4, on which final_lr=0.1"):
        start(trained_folder, out_dir, num_iterations=4)
    others = dict(num_iterations=4, eval_env="bandit")
    start(trained_folder, out_dir, "--take_config=True", **others)
    said = "until iteration 2: num_iterations was 2 and is now 4, on which final_lr=0.1 depends, "
    assert f"{said}eval_en" in capsys.readouterr().out
    # With final_lr=0.1, both initial learning rates get the factor 1 - 0.9 * step / num_iterations.
    # Here step counts from 0. num_iterations is 2 for steps 0 and 1, and 4 for steps 2 and 3.
    factors = [1, 0.55, 0.55, 0.325]
    rows = rows_of(out_dir)
    for key, first in (("learning_rate", 1e-4), ("critic_lr", 2e-4)):
        assert [row[key] for row in rows] == pytest.approx([first * f for f in factors])
    # Iterations 1 and 2 were evaluated on the lake, iterations 3 and 4 on the bandit. A score on
    # the lake is not compared with a score on the bandit, so best/ holds the model of iteration 3
    # or 4.
    assert json.loads((out_dir / "best/iteration.json").read_text())["step"] > 2
    run = read_run(out_dir)
    assert list(run.evaluations) == [0, 3, 4]
    ((until, settings),) = run.earlier
    assert (until, settings.num_iterations, settings.eval_env) == (2, 2, "")
    assert load_saved(out_dir).num_iterations == 4
    assert [step for step, _ in load_runs([out_dir])["runs"][0]["eval"]] == [0, 3, 4]


@pytest.mark.slow
def test_damage_that_leaves_json_is_said(trained_folder, out_dir, capsys):
    flip_bit(out_dir / "best/model.safetensors")
    (out_dir / "trajectories.jsonl").unlink()
    with pytest.raises(UserError, match="best' is damaged .missing or changed: model.safetensors"):
        load_model(str(out_dir / "best"))
    start(trained_folder, out_dir, "--take_config=True", num_iterations=3)
    out = capsys.readouterr().out
    for sentence in (
        f"{out_dir}/trajectories.jsonl is not what the run wrote up to iteration 2: ",
        f"{out_dir}/best was lost (missing or changed: model.safetensors): from now on it holds ",
    ):
        assert out.count(sentence) == 2
    assert json.loads((out_dir / "best/iteration.json").read_text()) == {"step": 3}
    load_model(str(out_dir / "best"))


@pytest.mark.slow
def test_changed_metrics_are_refused(trained_folder, out_dir):
    path = out_dir / "metrics.jsonl"
    rows = read_lines(path)
    rows[0]["entropy"] += 0.5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="metrics.jsonl was changed: its rows up to iteration 2"):
        start(trained_folder, out_dir, num_iterations=2)
    with pytest.raises(UserError, match="metrics.jsonl is not what the run wrote"):
        read_run(out_dir)


@pytest.mark.slow
def test_a_run_continues_beside_links_and_a_folder_of_that_name(trained_folder, out_dir):
    (out_dir / "wandb").mkdir()
    (out_dir / "wandb/latest-run").symlink_to("offline-run-1")
    (out_dir / "newest").symlink_to("checkpoint-000002")
    (out_dir / "a.partial").mkdir()
    start(trained_folder, out_dir, "--take_config=True", num_iterations=3)
    assert [row["step"] for row in rows_of(out_dir)] == [1, 2, 3]
    assert (out_dir / "newest").is_symlink() and (out_dir / "a.partial").is_dir()
