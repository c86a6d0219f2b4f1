"""
Tests of log.py: metrics.jsonl and TensorBoard's event files, read back, say the same; also after a continuation.

    python -m pytest -q tests/test_log.py
"""

import json
import time
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from conftest import small_config
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import train
from rollout import Trajectory, Turn
from support.log import Log, group_of
from support.run_folder import load_saved, read_rows
from tools.pictures import COLORS


def rows_of(out_dir):
    return [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]


def events_of(out_dir, reader=event_accumulator):
    return reader.EventAccumulator(
        str(out_dir / "tensorboard"), {"scalars": 0, "tensors": 0}
    ).Reload()


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def texts(out_dir, tag):
    """(step, text), by the reader of TensorBoard's own pages: the other keeps texts from before a continuation."""
    events = events_of(out_dir, plugin_event_accumulator).Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


def test_rows_after_the_checkpoint_are_dropped_and_keys_are_fixed(tmp_path):
    log = Log(tmp_path, [], small_config())
    for step, x in [(1, None), (2, 0.5), (3, 9.0)]:
        log.write({"step": step, "x": x, "regime": "diverse"})
    time.sleep(
        1
    )  # event files are read in the order of their names: seconds, then a number without leading zeros
    log = Log(tmp_path, read_rows(tmp_path / "metrics.jsonl", 2), small_config())
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2]
    log.write({"step": 3, "x": 1.0, "regime": "template"})
    with pytest.raises(
        ValueError, match=r"metric keys changed during the run: \['regime', 'x', 'y'\]"
    ):
        log.write({"step": 4, "y": 1.0})
    assert rows_of(tmp_path)[2:] == [{"step": 3, "x": 1.0, "regime": "template"}]
    events = events_of(tmp_path)
    assert points(events, "rollout/x") == [(2, 0.5), (3, 1.0)]  # the 9 is forgotten
    # 0.9 * 0.5 + 0.1 * 1, from the first value on
    assert points(events, "rollout_ema/x") == [(2, 0.5), (3, pytest.approx(0.55))]
    assert texts(tmp_path, "collapse/regime") == [(1, "diverse"), (2, "diverse"), (3, "template")]


def test_an_episode_on_a_grid_is_a_strip_of_boards(tmp_path):
    """Two boards, 200 pixels wide each; a text world has no picture, nor has a grid that is told in words."""
    boards = [
        "Turn 1 of 5, 2 actions left.\nP_\nOG",
        "Reward 0.\nTurn 2 of 5, 1 action left.\n_P\nOG",
    ]
    grid, words = (
        [Turn([], [], [], 0.0, "", text, {"actions": ["Up"]}) for text in told]
        for told in (boards, ["a $room$", boards[0]])
    )
    played = [
        Trajectory((0,), 0, turns, "failure", "", env)
        for turns, env in ((grid, "frozenlake"), (words, "quest"))
    ]
    Log(tmp_path, [], small_config()).write(
        {"step": 7}, [*played, replace(played[1], env="frozenlake")]
    )
    events = events_of(tmp_path)
    assert events.Tags()["images"] == ["trajectories/0"]
    (event,) = events.Images("trajectories/0")
    picture = np.asarray(Image.open(BytesIO(event.encoded_image_string)).convert("RGB"))
    assert event.step == 7 and picture.shape == (260, 400, 3)
    goal, you = (
        [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        for color in (COLORS["goal"][0], COLORS["player"][0])
    )
    where = [np.argwhere((picture == color).all(-1))[:, 1] for color in (goal, you)]
    # a goal in the right half of each board; the agent in the left half of the first and the right half of the second
    assert ((where[0] > 100) & (where[0] < 200)).any() and (where[0] > 300).any()
    assert (
        (where[1] < 100).any()
        and (where[1] > 300).any()
        and not ((where[1] > 100) & (where[1] < 300)).any()
    )


def test_what_was_said_is_shown_as_it_is(tmp_path):
    turns = [
        Turn([], [], [], -0.1, "<answer>*Up*</answer>", "Turn 1.\n\nP_", {"actions": []}),
        Turn([], [], [], 1.0, "# b", "Turn 2.", {"actions": []}),
    ]
    Log(tmp_path, [], small_config()).write(
        {"step": 1}, [Trajectory((0,), 0, turns, "success", "rules", "lake")]
    )
    ((step, text),) = texts(tmp_path, "trajectories/0")
    assert step == 1 and all(line.startswith("    ") for line in text.split("\n"))
    said = [line.removeprefix("    ") for line in text.split("\n")]
    assert said == [
        "lake",
        "",
        "Turn 1.",
        "",
        "P_",
        "",
        "<answer>*Up*</answer>",
        "",
        "reward -0.1",
        "",
        "Turn 2.",
        "",
        "# b",
        "",
        "reward 1",
        "",
        "success, score 0.9",
    ]


@pytest.fixture(scope="module")
def continued(trained_folder, tmp_path_factory):
    """Three iterations; the third, which has no checkpoint, is lost, and made again by a second start."""
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
    assert [row["step"] for row in rows_of(out_dir)] == [1, 2, 3]
    train.main(arguments)
    return out_dir, rows_of(out_dir), events_of(out_dir)


def test_event_files_hold_the_rows_of_metrics(continued):
    _, rows, events = continued
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    wanted = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, (int, float)):
                wanted.setdefault(f"{group_of(key)}/{key}", []).append((row["step"], value))
    for tag, values in wanted.items():
        found = points(events, tag)
        assert [step for step, _ in found] == [step for step, _ in values], tag
        assert [value for _, value in found] == pytest.approx(
            [value for _, value in values], rel=1e-6
        ), tag
        average = values[0][1]
        for (_, value), (_, smooth) in zip(
            values, points(events, tag.replace("/", "_ema/", 1)), strict=True
        ):
            average = 0.9 * average + 0.1 * value
            assert smooth == pytest.approx(average, rel=1e-5, abs=1e-9), tag
    assert len(events.Tags()["scalars"]) == 2 * len(wanted)
    assert {tag.split("/")[0] for tag in wanted} == {
        "rollout",
        "update",
        "eval",
        "cost",
    }  # collapse was not measured
    assert {"rollout/reward", "update/entropy", "eval/eval_success", "cost/cpu_s"} <= wanted.keys()
    assert [step for step, _ in wanted["eval/eval_success"]] == [2, 4]


def test_event_files_hold_settings_and_samples(continued):
    out_dir, rows, events = continued
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    saved = HParamsPluginData.FromString(content).session_start_info.hparams
    config = load_saved(out_dir)
    assert (
        saved["estimator"].string_value == "grpo"
        and saved["learning_rate"].number_value == config.learning_rate
    )
    assert set(saved) == set(vars(config))
    lines = [json.loads(line) for line in (out_dir / "trajectories.jsonl").read_text().splitlines()]
    for i in range(config.num_samples):
        shown = texts(out_dir, f"trajectories/{i}")
        assert [step for step, _ in shown] == [2, 4]
        record = [line for line in lines if line["step"] == 4][i]
        assert all(turn["response"].split("\n")[0] in shown[1][1] for turn in record["turns"])
