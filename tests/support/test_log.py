"""Tests of support/log.py: metrics.jsonl and TensorBoard's event files."""

import doctest
import os
from dataclasses import replace

import pytest
from shared_fixtures import small_config
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import train
from dialogue import TurnRecord
from rollout import Trajectory, Turn
from support import log as log_module
from support.log import Log, tag_of
from support.metrics import metric_groups, metric_names
from support.run_folder import load_saved
from utils.files import read_rows

CONFIG = small_config()


def a_row(step, **values):
    return dict.fromkeys(metric_names(CONFIG)) | {"step": step} | values


def events_of(out_dir, reader=event_accumulator):
    everything = {"scalars": 0, "tensors": 0}
    return reader.EventAccumulator(str(out_dir / "tensorboard"), everything).Reload()


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def texts(out_dir, tag):
    """Return the texts that TensorBoard shows for `tag`, as pairs (step, text).

    The reader is plugin_event_accumulator. If an iteration was repeated, event_accumulator would
    also return the texts that were replaced.
    """
    events = events_of(out_dir, plugin_event_accumulator).Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    log = Log(tmp_path, [], CONFIG)
    for step, reward in [(1, None), (2, 0.5), (3, 9.0)]:
        log.write(a_row(step, reward=reward, regime="diverse"))
    history = read_rows(tmp_path / "metrics.jsonl", 2)
    log = Log(tmp_path, history, CONFIG)
    assert read_rows(tmp_path / "metrics.jsonl") == history and len(history) == 2
    last = a_row(3, reward=1.0, regime="template")
    log.write(last)
    assert read_rows(tmp_path / "metrics.jsonl") == [*history, last]
    events = events_of(tmp_path)
    # the restart drops the reward 9.0, because its row is after the checkpoint
    assert points(events, "rollout/reward") == [(2, 0.5), (3, 1.0)]
    assert events.Tags()["scalars"] == ["rollout/reward"]
    assert texts(tmp_path, "collapse/regime") == [(1, "diverse"), (2, "diverse"), (3, "template")]


def test_a_row_has_the_metrics_of_the_list(tmp_path):
    log = Log(tmp_path, [], CONFIG)
    row = a_row(1)
    unknown = row | {"x": 1.0}
    missing = {name: value for name, value in row.items() if name != "reward"}
    for wrong, name in ((unknown, "x"), (missing, "reward")):
        with pytest.raises(ValueError, match=rf"metrics of support/metrics.py; check \['{name}'\]"):
            log.write(wrong)
    assert read_rows(tmp_path / "metrics.jsonl") == []
    log.write(row)
    assert read_rows(tmp_path / "metrics.jsonl") == [row]


def test_tags_name_each_group_once(tmp_path):
    Log(tmp_path, [], CONFIG).write(a_row(1, reward=0.5, eval_success=0.25, rollout_s=2.0))
    tags = events_of(tmp_path).Tags()["scalars"]
    assert tags == ["rollout/reward", "eval/success", "cost/rollout_s"]
    results = doctest.testmod(log_module)
    assert results.attempted > 0 and results.failed == 0


def test_settings_are_a_table_of_text(tmp_path):
    config = replace(CONFIG, out_dir="out/`my`|run", learning_rate=3e-4)
    Log(tmp_path, [a_row(1)], config)
    ((step, text),) = texts(tmp_path, "settings")
    assert step == 2
    lines = text.split("\n")
    assert lines[:2] == ["| setting | value |", "|---|---|"]
    assert {"| out_dir | `out/'my'/run` |", "| learning_rate | `0.0003` |"} <= set(lines)
    assert len(lines) == 2 + len(vars(config))


def test_text_of_trajectories_is_not_interpreted(tmp_path):
    turns = [
        Turn([], [], [], -0.1, "<answer>*Up*</answer>", "Turn 1.\n\nP_"),
        Turn([], [], [], 1.0, "# b", "Turn 2."),
    ]
    trajectory = Trajectory((0,), 0, turns, "success", "rules", "lake")
    Log(tmp_path, [], CONFIG).write(a_row(1), [trajectory])
    ((step, text),) = texts(tmp_path, "trajectories/0")
    assert step == 1
    lines = text.split("\n")
    assert all(line.startswith("    ") for line in lines)  # preformatted in Markdown
    paragraphs = "\n".join(line.removeprefix("    ") for line in lines).split("\n\n")
    assert paragraphs == [
        "lake",
        "Turn 1.",
        "P_",
        "<answer>*Up*</answer>",
        "reward -0.1",
        "Turn 2.",
        "# b",
        "reward 1",
        "success, score 0.9",
    ]


def test_a_failed_trajectory_tells_why(tmp_path):
    failed = Turn([], [], [], 0.0, "", "", TurnRecord([], error="OSError: \x1b[2J gone"))
    played = Turn([], [], [])
    used_up = Turn([], [], [], record=TurnRecord([], out_of_actions=True))
    ends = {"error": [failed], "out_of_turns": [played], "failure": [used_up]}
    samples = [Trajectory((0,), 0, turns, status) for status, turns in ends.items()]
    Log(tmp_path, [], CONFIG).write(a_row(1), samples)
    found = [texts(tmp_path, f"trajectories/{i}")[0][1].split("\n")[-1] for i in range(3)]
    assert found == [
        r"    error (OSError: \x1b[2J gone), score 0",
        "    out_of_turns (the game was not over after max_turns replies), score 0",
        "    failure (its last action was used), score 0",
    ]


# ---------- a full disk


def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path, capsys):
    log = Log(tmp_path, [], CONFIG)
    log.write(a_row(1, reward=0.5))
    log.board.file.close()
    log.board.file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    log.write(a_row(2, reward=0.5))
    log.write(a_row(3, reward=0.5))
    sentence = "TensorBoard gets no more data ([Errno 28] No space left on device); "
    captured = capsys.readouterr()
    assert captured.out == f"{sentence}metrics.jsonl has all metrics\n" and captured.err == ""
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert points(events_of(tmp_path), "rollout/reward") == [(1, 0.5)]


def test_a_folder_that_cannot_be_made_ends_tensorboard_and_not_the_run(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("in the way")
    Log(tmp_path, [], CONFIG).write(a_row(1))
    assert capsys.readouterr().out.startswith("TensorBoard gets no more data ([Errno 17] File exi")
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 1


# ---------- a run


@pytest.fixture(scope="module")
def continued(trained_folder, tmp_path_factory):
    """A run of four iterations. The first call of train.main is interrupted after iteration 3. The
    last checkpoint is that of iteration 2, so the second call repeats iteration 3."""
    out_dir = tmp_path_factory.mktemp("runs") / "run"
    settings = small_config(
        model=str(trained_folder),
        out_dir=str(out_dir),
        num_iterations=4,
        estimator="grpo",
        batch_size=8,
        num_groups=4,
    )
    arguments = [f"--{field}={value}" for field, value in vars(settings).items() if value != ""]
    write = Log.write

    def interrupted(log, row, samples):
        write(log, row, samples)
        if row["step"] == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Log, "write", interrupted)
        train.main(arguments)
    assert [row["step"] for row in read_rows(out_dir / "metrics.jsonl")] == [1, 2, 3]
    train.main(arguments)
    return out_dir, read_rows(out_dir / "metrics.jsonl"), events_of(out_dir)


@pytest.mark.slow
def test_event_files_hold_the_rows_of_metrics(continued):
    out_dir, rows, events = continued
    groups = metric_groups(load_saved(out_dir))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    wanted = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                wanted.setdefault(tag_of(name, groups[name]), []).append((row["step"], value))
    for tag, values in wanted.items():
        found = points(events, tag)
        assert [step for step, _ in found] == [step for step, _ in values], tag
        expected = [value for _, value in values]
        assert [value for _, value in found] == pytest.approx(expected, rel=1e-6), tag
    assert len(events.Tags()["scalars"]) == len(wanted)
    shown = {tag.split("/")[0] for tag in wanted}
    assert shown == {"rollout", "update", "eval", "cost"}
    assert {"rollout/reward", "update/entropy", "eval/success", "cost/cpu_s"} <= wanted.keys()
    assert [step for step, _ in wanted["eval/success"]] == [2, 4]


@pytest.mark.slow
def test_event_files_hold_settings_and_samples(continued):
    out_dir, rows, events = continued
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    saved = HParamsPluginData.FromString(content).session_start_info.hparams
    config = load_saved(out_dir)
    assert saved["estimator"].string_value == "grpo"
    assert saved["learning_rate"].number_value == config.learning_rate
    assert set(saved) == set(vars(config))
    records = [row for row in read_rows(out_dir / "trajectories.jsonl") if row["step"] == 4]
    for i in range(4):
        shown = texts(out_dir, f"trajectories/{i}")
        assert [step for step, _ in shown] == [1, 2, 4]
        replies = [turn["response"] for turn in records[i]["turns"]]
        assert all(reply.split("\n")[0] in shown[2][1] for reply in replies)
