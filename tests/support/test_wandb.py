"""Tests of support/wandb_log.py with a stand-in for wandb, and with wandb offline if installed."""

from configurator import Config, UserError

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from shared_fixtures import small_config

from dialogue import TurnRecord
from rollout import Trajectory, Turn
from support import preflight, wandb_log
from support.log import Log
from support.metrics import metric_names
from support.run_folder import MAY_CHANGE_ON_RESUME
from support.seed_groups import without_seed

HOSTILE = "<script>alert(1)</script><img onerror=x>\u202e\u2028\x1b[2J\ud800"
ESCAPED = r"<script>alert(1)</script><img onerror=x>\u202e\u2028\x1b[2J\ud800"
is_installed = getattr(importlib.util.find_spec("wandb"), "origin", None) is not None
needs_wandb = pytest.mark.skipif(not is_installed, reason="wandb is not installed")
CONFIG = small_config(wandb="lakes")


class WandbError(Exception):
    pass


class Artifact:
    def __init__(self, name, type):
        self.name = name
        self.type = type
        self.files = {}

    def add_file(self, path, name):
        self.files[name] = Path(path).read_text()


class FakeRun:
    def __init__(self, options):
        self.id = options["id"]
        self.options = options
        self.rows = []
        self.artifacts = []
        self.exit_code = None

    def log(self, row, step):
        self.rows.append((step, row))

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    fake = ModuleType("wandb")
    fake.runs = []
    fake.Error = WandbError
    fake.Settings = lambda **settings: settings
    fake.Table = lambda columns, data: SimpleNamespace(columns=columns, data=data)
    fake.Artifact = Artifact

    def init(**options):
        fake.runs.append(FakeRun(options))
        return fake.runs[-1]

    fake.init = init
    fake.teardown = lambda exit_code: None
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def page(monkeypatch):
    def make_page(out_dir):
        path = out_dir / "view.html"
        path.write_text("<html>page</html>")
        return path

    monkeypatch.setattr(wandb_log, "make_page", make_page)


def a_row(step, **values):
    return dict.fromkeys(metric_names(CONFIG)) | {"step": step} | values


def hostile_trajectory():
    turns = [Turn([], [], [], -0.1, HOSTILE, "Turn 1.\n\nP_", TurnRecord([]))]
    return Trajectory((7, 3), 2, turns, "failure", "rules", HOSTILE)


# ---------- with a stand-in


def test_a_run_gets_settings_metrics_and_a_table(tmp_path, wandb, page):
    (tmp_path / "lake_s1").mkdir()
    log = Log(tmp_path / "lake_s1", [], CONFIG)
    log.write(a_row(1, reward=0.5, regime="diverse"))
    log.write(a_row(2, reward=0.25, eval_success=0.75), [hostile_trajectory()])
    log.close()
    (run,) = wandb.runs
    assert run.options["project"] == "lakes" and run.options["name"] == "lake_s1"
    assert run.options["config"]["learning_rate"] == CONFIG.learning_rate
    assert run.options["settings"]["save_code"] is False
    (first, row), (second, other) = run.rows
    assert (first, row) == (1, {"rollout/reward": 0.5, "collapse/regime": "diverse"})
    table = other.pop("trajectories")
    assert (second, other) == (2, {"rollout/reward": 0.25, "eval/success": 0.75})
    assert table.columns == wandb_log.COLUMNS
    (cells,) = table.data
    assert cells[:6] == [2, ESCAPED, "7, 3", 2, "failure", -0.1]
    assert cells[6].startswith(f"{ESCAPED}\n\nTurn 1.\n\nP_\n\n{ESCAPED}\n\nreward -0.1\n\nfailure")
    (artifact,) = run.artifacts
    assert (artifact.name, artifact.type) == (f"page-{run.id}", "page")
    assert artifact.files == {"view.html": "<html>page</html>"} and run.exit_code == 0


def test_a_continued_run_goes_on_in_its_run(tmp_path, wandb):
    log = Log(tmp_path, [], CONFIG)
    log.close(75)
    assert wandb.runs[0].exit_code == 75 and wandb.runs[0].artifacts == []  # 75: interrupted
    Log(tmp_path, [a_row(1)], CONFIG)
    Log(tmp_path, [], CONFIG)
    first, second, third = [run.id for run in wandb.runs]
    assert first == second != third
    (tmp_path / "wandb_id").write_text("../../x\n")
    with pytest.raises(UserError, match="must hold the id of a W&B run"):
        Log(tmp_path, [a_row(1)], CONFIG)


def test_a_failed_start_says_what_to_do(tmp_path, wandb, monkeypatch):
    def init(**_):
        raise WandbError("no API key configured")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(UserError, match=r"W&B does not start \(no API key.*WANDB_MODE=offline"):
        Log(tmp_path, [], CONFIG)


@pytest.mark.parametrize("error", [WandbError("gone\x1b"), BrokenPipeError("gone\x1b")])
def test_a_later_error_ends_wandb_and_not_the_run(tmp_path, wandb, capsys, error):
    log = Log(tmp_path, [], CONFIG)

    def fail(*_, **__):
        raise error

    wandb.runs[0].log = fail
    log.write(a_row(1))
    log.write(a_row(2))
    log.close()
    said = "W&B gets no more data (gone\\x1b); metrics.jsonl has all metrics\n"
    assert capsys.readouterr().out == said
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_killed_process_of_wandb_leaves_no_traceback(tmp_path, wandb, monkeypatch):
    """wandb 0.31 registers a function with atexit. If wandb's process was killed, this function
    raises ConnectionResetError."""
    at_exit = []
    exit_codes = []

    def teardown(exit_code):
        exit_codes.append(exit_code)
        raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(wandb_log.atexit, "register", at_exit.append)
    monkeypatch.setattr(wandb, "teardown", teardown)
    log = Log(tmp_path, [], CONFIG)
    log.write(a_row(1))
    assert at_exit == []
    monkeypatch.setattr(wandb.runs[0], "log", lambda *_, **__: teardown(None))
    log.write(a_row(2))
    (at_end,) = at_exit
    at_end()
    assert exit_codes == [None, 1]


@pytest.mark.slow
def test_a_page_that_fails_is_left_out(tmp_path, wandb, capsys):
    Log(tmp_path, [], CONFIG).close()
    assert wandb.runs[0].exit_code == 0 and wandb.runs[0].artifacts == []
    assert capsys.readouterr().out.startswith("W&B gets no page of the run: error: ")


@pytest.mark.slow
def test_nothing_is_imported_unless_asked_for(tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'tests/helpers'); "
        "from shared_fixtures import small_config; "
        "import train; from support.log import Log; from pathlib import Path; "
        f"Log(Path({str(tmp_path)!r}), [], small_config()); "
        "assert not {'wandb', 'support.wandb_log'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_or_a_wrong_name_is_said_at_once(monkeypatch):
    preflight.check_wandb("")
    namespace = SimpleNamespace(origin=None)
    for found in (None, namespace):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, found=found: found)
        with pytest.raises(UserError, match="pip install -r requirements/wandb.txt"):
            preflight.check_wandb("lakes")
    for name in ("a/b", "a#b", "x" * 129, "a\x1bb"):
        with pytest.raises(UserError, match="wandb must be the name of a project"):
            preflight.check_wandb(name)


def test_where_a_run_is_logged_is_no_part_of_its_method():
    assert without_seed(Config(wandb="a", seed=1)) == without_seed(Config())
    assert "wandb" in MAY_CHANGE_ON_RESUME


# ---------- with the package, offline


def records_of(folder):
    """Return the records of the only offline run in a folder.

    The run's file begins with a header of 7 bytes. The rest has LevelDB's log format, which splits
    records into parts. No part crosses an offset that is a multiple of 32 KiB. A part begins with
    its checksum (4 bytes), size (2 bytes) and kind (1 byte). A part of kind 1 (a whole record) or
    kind 4 (the last part of a record) ends a record.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data = path.read_bytes()
    place = 7
    content = b""
    records = []
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # too short for checksum, size and kind
            place += left
            continue
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        content += data[place + 7 : place + 7 + size]
        if data[place + 6] in (1, 4):
            records.append(Record.FromString(content))
            content = b""
        place += 7 + size
    return records


def values_of(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@needs_wandb
@pytest.mark.slow
def test_an_offline_run_holds_everything_as_text(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "out").mkdir()
    log = Log(tmp_path / "out", [], CONFIG)
    log.write(a_row(1, reward=0.5, regime="diverse"))
    log.write(a_row(2, reward=0.25, eval_success=0.75), [hostile_trajectory()])
    log.close()
    records = records_of(tmp_path)
    rows = [values_of(record.history.item) for record in records if record.HasField("history")]
    assert rows[0]["rollout/reward"] == 0.5 and rows[0]["collapse/regime"] == "diverse"
    assert rows[1]["eval/success"] == 0.75 and rows[1]["_step"] == 2
    settings = {}
    for record in records:
        if record.HasField("run"):
            settings |= values_of(record.run.config.update)
    assert settings["estimator"] == CONFIG.estimator and settings["wandb"] == "lakes"
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/trajectories_*.json")
    content = json.loads(table.read_text())
    assert content["columns"] == wandb_log.COLUMNS
    assert content["data"][0][1] == ESCAPED and ESCAPED in content["data"][0][6]
    artifacts = [record.artifact for record in records if record.HasField("artifact")]
    names = {artifact.name: artifact.type for artifact in artifacts}
    assert names[f"page-{(tmp_path / 'out' / 'wandb_id').read_text().strip()}"] == "page"
