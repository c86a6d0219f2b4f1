"""Tests of tools/view.py without a browser: data, template, GIF and messages."""

from configurator import Config, UserError

import doctest
import json
import shutil

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from view_rows import HOSTILE, LAKE, ROOM, SHOWN, record, to_lines, turn_record

from dialogue import Episode
from envs import make_env
from tools import view
from tools.viewer import data as view_data
from tools.viewer import gif as view_gif
from tools.viewer import pictures
from tools.viewer.pictures import COLORS, LAYERS, cells_of, split_message


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run with an evaluation and two iterations. The evaluation before RL has one bandit game.
    Iteration 1 has two games of one group on a lake. Iteration 2 has one game in a Sokoban room."""
    folder = tmp_path_factory.mktemp("runs") / "a_run"
    folder.mkdir()
    first = "Turn 1 of 5, 10 actions left.\nP_\nOG"
    tokens = ["<think>", "\ufffd", "<|im_end|>"]
    go_right = turn_record(first, "Go right.", ["Right"], -0.1, tokens, [0.0, 1.5, 3.004], ok=False)
    second = "Reward -0.1.\nTurn 2 of 5, 9 actions left.\n_P\nOG"
    go_down = turn_record(second, "Go down.", ["Down"], 1.0, ["a"], [0.25], closing="__\nO√")
    lose = turn_record(first, HOSTILE, ["constructor"], 0.0, ["a", HOSTILE], [0, 1])
    room = "Turn 1 of 5, 10 actions left.\nWWWW\nW.AW\nWGCW\nWB@W"
    push = turn_record(room, "", ["Up", "Left"])
    text = turn_record("Turn 1 of 1, 1 action left.\nArms: Phoenix, Dragon")
    trained = [
        record(LAKE, [go_right, go_down], "success", step=1, group=0),
        record(LAKE, [lose], member=1, step=1, group=0),
        record(ROOM, [push], "out_of_turns", step=2, group=0),
    ]
    lines = to_lines(trained)
    (folder / "eval_start.jsonl").write_text(to_lines([record("bandit", [text])]))
    (folder / "trajectories.jsonl").write_text(lines + lines[:99])
    (folder / "config.json").write_text('{"config": {"eval_size": 10}}')
    return folder


def near(picture, color, tolerance):
    """Return a mask of the pixels of an RGB picture that are nearly `color`, such as #e2733a."""
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return np.abs(picture - wanted).sum(-1) < tolerance


# ---------- records


def test_doctests():
    for module in (pictures, view_data):
        results = doctest.testmod(module)
        assert results.attempted >= 1 and results.failed == 0


@pytest.mark.parametrize("observation", ["grid", "coord", "relations"])
@pytest.mark.parametrize("spec", ["frozenlake", "sokoban", ROOM])
def test_the_board_is_found_in_what_the_environment_writes(spec, observation):
    env = make_env(spec, observation=observation)
    _, message = Episode(env, Config()).reset(3)
    parts = split_message(message, cells_of(spec))
    assert parts.board == env.render()
    assert parts.budget == "Turn 1 of 5, 10 actions left"
    assert parts.text == env.observe().removeprefix(env.render()).lstrip("\n")
    assert (parts.text == "") == (observation == "grid")


def test_symbols_have_pictures():
    for spec in ("frozenlake", "sokoban", ROOM):
        cells = cells_of(spec)
        assert cells
        for layers in cells.values():
            assert set(layers) <= LAYERS.keys()
    on_target = ("floor", "target", "player")
    assert cells_of(ROOM)["@"] == cells_of("sokoban:boxes=2")["S"] == on_target
    assert cells_of("bandit") == {}
    for shapes in LAYERS.values():
        assert {shape.color for shape in shapes} <= COLORS.keys()


def test_records_by_hand(run_folder):
    data = view_data.load_runs([run_folder])
    trajectories, texts = data["trajectories"], data["texts"]
    assert [(t["group"], t["member"], t["when"]) for t in trajectories] == [
        ("prompt 7", "before RL", "before RL"),
        ("iteration 1, group 0", "member 0", "iteration 1"),
        ("iteration 1, group 0", "member 1", "iteration 1"),
        ("iteration 2, group 0", "member 0", "iteration 2"),
    ]
    assert [t["address"] for t in trajectories] == [
        ["before RL", "7", "0"],
        ["1", "0", "0"],
        ["1", "0", "1"],
        ["2", "0", "0"],
    ]
    assert [t["prompt"] for t in trajectories] == [0, 1, 1, 2]
    assert [t["outcome"] for t in trajectories] == ["failure", "success", "failure", "out of turns"]
    turn = trajectories[1]["turns"][0]
    assert [texts[i] for i in turn.pop("tokens")] == ["<think>", "\ufffd", "<|im_end|>"]
    assert turn == {
        "report": "",
        "budget": "Turn 1 of 5, 10 actions left",
        "board": "P_\nOG",
        "text": "",
        "final_board": "",
        "final_text": "",
        "thought": "Go right.",
        "reply": "",
        "well_formed": False,
        "faults": ["The record does not say why the reply is not valid."],
        "cut": "",
        "actions": ["Right"],
        "reward": -0.1,
        "surprise": [0, 150, 300],
        "statements": [0, 0],
        "sentences": 1,
    }
    player = trajectories[0]["turns"][0]
    assert player["text"] == "Arms: Phoenix, Dragon" and player["surprise"] == []
    assert [texts[i] for i in player["tokens"]] == ["<think></think><answer></answer>"]


def test_a_file_of_trajectories_has_policies_instead_of_stages(tmp_path):
    turn = turn_record("Turn 1 of 5, 10 actions left.\nP_\nOG", "", ["Right"])
    rows = []
    for policy, member in (("optimal", 0), ("gpt \x1b", 0), ("gpt \x1b", 1)):
        row = record(LAKE, [turn], member=member, policy=policy, entropy=None)
        rows.append({**row, "system": "Reply <think>a</think>"})
    rows.append({**rows[0], "policy": LAKE})
    rows[2]["system"] = "Reply <answer>a</answer>"
    path = tmp_path / "games.jsonl"
    path.write_text(to_lines(rows))
    data = view_data.load_runs([path])
    shown = [(t["policy"], t["group"], t["member"], t["line"]) for t in data["trajectories"]]
    assert shown == [
        ("optimal", "prompt 7", "optimal", 1),
        (r"gpt \x1b", "prompt 7", r"gpt \x1b", 2),
        (r"gpt \x1b", "prompt 7", r"gpt \x1b, member 1", 3),
        ("recorded", "prompt 7", "recorded", 4),
    ]
    assert {t["prompt"] for t in data["trajectories"]} == {0}
    assert data["runs"][0]["name"] == "games.jsonl" and data["runs"][0]["steps"] == []
    assert [t["turns"][0]["reply"] == "" for t in data["trajectories"]] == [True, True, False, True]
    view.main([str(path)])
    assert (tmp_path / "games_view.html").is_file()


def test_false_statements_are_marked_with_their_facts(tmp_path):
    turn = turn_record("Turn 1 of 5, 10 actions left.\nP_\nOG", "Goal up. I go.  Goal left\x1b.")
    turn |= {"false_statements": {"Goal up.": "Goal down.", "Goal left\x1b.": HOSTILE}}
    path = tmp_path / "games.jsonl"
    path.write_text(to_lines([{**record(LAKE, [turn]), "system": "<think>"}]))
    (trajectory,) = view_data.load_runs([path])["trajectories"]
    assert trajectory["turns"][0]["marked_thought"] == [
        ("Goal up.", "Goal down."),
        (" I go.", ""),
        (r"  Goal left\x1b.", SHOWN),
    ]
    assert trajectory["turns"][0]["sentences"] == 3


def test_no_text_ends_the_script_tag(run_folder):
    data = view_data.load_runs([run_folder])
    html = view.fill_template(data)
    text = html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(text)["trajectories"] == data["trajectories"]
    assert json.loads(text)["texts"] == data["texts"] and SHOWN in data["texts"]
    assert text.isascii() and "<" not in text


def test_the_template_has_each_placeholder_once_and_needs_each_part():
    template = view.TEMPLATE.read_text(encoding="utf-8")
    for placeholder in (view.STYLE, view.DATA, view.SCRIPTS):
        assert template.count(placeholder) == 1
    names = {path.name for path in view.PAGE.iterdir()}
    assert names == {"page.html", "page.css", *(f"{name}.js" for name in view.SCRIPT_NAMES)}


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("Go right.\nThen up.\t\u00fc \u05d0 \u00a0", "Go right.\nThen up.\t\u00fc \u05d0 \u00a0"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u2028b\u2029\u200b\ufeff", r"a\u2028b\u2029\u200b\ufeff"),
        ("\x1b[31m\r\x00\x7f", r"\x1b[31m\r\x00\x7f"),
        ("\ud800", r"\ud800"),
        ("\U000e0041" * 3, r"\U000e0041" * 3),
    ],
)
def test_what_cannot_be_seen_is_shown_as_an_escape(text, wanted):
    assert view_data.shown(text) == wanted


@pytest.mark.parametrize(
    "response, think, wanted",
    [
        ("Up", True, "it has no <think>"),
        ("<think>Up", True, "<think> is not closed"),
        ("<think>a</think>Up", True, "it has no <answer>"),
        ("<think>a</think><answer>Up", True, "<answer> is not closed"),
        ("Hi <answer>Up</answer>", False, 'it has text outside of the tags, "Hi"'),
        ("<answer>Up</answer>", False, ""),
        (
            "<answer>Up</answer>" + "x" * 50,
            False,
            f'it has text outside of the tags, "{"x" * 40}..."',
        ),
    ],
)
def test_what_is_wrong_with_a_reply_is_said_in_words(response, think, wanted):
    assert view_data.explain_form(response, think) == wanted


def test_faults_come_from_the_record_or_else_from_the_next_message():
    turn = turn_record("Turn 1 of 5, 9 actions left.\nA", "a", ["Jump"], ok=False)
    following = turn_record(
        'Reward -0.1. Unknown action: "Jump". No action was executed; nothing changed.\n'
        "Turn 2 of 5, 9 actions left.\nA"
    )
    said = ['Unknown action: "Jump". No action was executed; nothing changed.']
    assert view_data.explain_faults(turn, following, think=True) == said
    known = {**turn, "faults": ['Unknown action: "Jump".']}
    assert view_data.explain_faults(known, following, True) == ['Unknown action: "Jump".']
    general = "The reply was not in the required form."
    cut = {**known, "response": "<think>a", "faults": [general], "tokens": ["<think>", "a"]}
    assert view_data.explain_faults({**cut, "surprise": [0.5, 0.5]}, None, True) == [
        "The reply was not in the required form: <think> is not closed.",
        "The reply was cut off at 2 tokens.",
    ]
    assert view_data.explain_faults({**turn, "format_ok": True}, following, True) == []


def test_what_the_filter_did_is_a_sentence():
    config = Config(num_groups=8)
    rows = [{"step": 3, "kept_groups": 2.0}, {"step": 4, "kept_groups": None}]
    noted = {"step": 3, "kept": True, "filter_value": 0.45678}
    assert view_data.explain_filter(noted, config, rows) == (
        "The filter kept this group: the standard deviation of its scores is 0.457. "
        "It kept 2 of 8 groups."
    )
    dropped = {"step": 4, "kept": False, "filter_value": 0.0}
    assert view_data.explain_filter(dropped, Config(filter_by="length"), rows) == (
        "The filter dropped this group: its mean length is 0."
    )
    assert view_data.explain_filter({"step": 4}, config, rows) == ""


def test_curves_by_hand(run_folder, tmp_path):
    rows = [
        {"step": 1, "success": 0.25, "eval_success": None, "entropy": None, "regime": "diverse"},
        {"step": 2, "success": 0.5, "eval_success": 0.75, "entropy": None},
    ]
    (tmp_path / "metrics.jsonl").write_text(to_lines(rows))
    scores = {"random, closed loop": [0], "greedy, closed loop": [1, 0], "optimal": [1, 1]}
    (tmp_path / "scores.json").write_text(json.dumps({LAKE: scores, "bandit": {"greedy": [0]}}))
    for name in ("config.json", "eval_start.jsonl"):
        shutil.copy(run_folder / name, tmp_path)
    (run,) = view_data.load_runs([tmp_path])["runs"]
    assert run["steps"] == [1, 2] and run["eval"] == [(0, 0.0), (2, 0.75)]
    assert run["curves"] == {"success": {"label": "success", "values": [0.25, 0.5]}}
    assert run["players"] == [("greedy", 0.5), ("optimal", 1.0)]


def test_two_runs_share_the_numbers_of_their_prompts(run_folder, tmp_path):
    other = tmp_path / run_folder.name
    shutil.copytree(run_folder, other)
    data = view_data.load_runs([run_folder, other])
    names = [f"{run_folder.parent.name}/a_run", f"{tmp_path.name}/a_run"]
    assert [run["name"] for run in data["runs"]] == names
    assert [t["prompt"] for t in data["trajectories"]] == [0, 1, 1, 2] * 2
    assert [t["run"] for t in data["trajectories"]] == [0] * 4 + [1] * 4
    with pytest.raises(
        UserError, match="a_run is given twice; expected two runs or files to compare"
    ):
        view_data.load_runs([run_folder, run_folder])


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "expected run folders"),
        (["{}", "--gif"], "expected run folders"),
        (["{}", "--gif=2", "--panel"], "got"),
        (["{}", "--pannel"], "unknown option --pannel; expected --against"),
        (["{}", "--follow=1"], "got '.*--follow=1'"),
        (["{}", "{}", "--follow"], "expected run folders"),
        (["{}", "--follow", "--follow"], "--follow is given twice"),
        (["{}", "--against"], " does not exist; expected the folder of a run, or a file"),
        (["{}", "--against=none/b"], "none/b does not exist; expected the folder of a run"),
        (["{}/eval_start.jsonl", "--gif=0"], "eval_start.jsonl is a file; a plot, a GIF and"),
        (["{}/eval_start.jsonl", "--follow"], "eval_start.jsonl is a file; a plot, a GIF and"),
        (["{}/eval_start.jsonl", "{}"], "eval_start.jsonl is a file; a plot, a GIF and"),
        (
            ["{}/config.json"],
            "config.json:1 must be|config.json:1 does not have the expected content",
        ),
        (["{}", "--gif=4"], "from 0 to 3, got 4"),
        (["{}", "--png=4"], "unknown option --png; expected --against"),
        (["{}", "{}", "--gif=1"], "expected run folders"),
        (["{}/empty"], "holds no trajectories; expected a folder with one of eval_start.jsonl"),
        (["{}/empty", "{}/empty"], "empty has no evaluation yet"),
        (["{}/empty", "--panel"], "empty has no iteration yet"),
    ],
)
def test_mistakes_are_answered(run_folder, arguments, said):
    (run_folder / "empty").mkdir(exist_ok=True)
    shutil.copy(run_folder / "config.json", run_folder / "empty")
    with pytest.raises(UserError, match=said):
        view.main([argument.format(run_folder) for argument in arguments])


# ---------- figures


@pytest.fixture
def coarse(monkeypatch):
    """Make GIFs 350 pixels wide, because large GIFs take a second each."""
    monkeypatch.setattr(view_gif, "DPI", 50)


def read_frames(path):
    with Image.open(path) as gif:
        frames = []
        for k in range(gif.n_frames):
            gif.seek(k)
            frames.append(np.asarray(gif.convert("RGB"), int))
    return frames


def test_gif_has_a_frame_a_turn_and_the_end(run_folder, coarse):
    view.main([str(run_folder), "--gif=1"])
    frames = read_frames(run_folder / "trajectory_1.gif")
    assert len(frames) == 3
    players = [near(frame, COLORS["player"].light, 30) for frame in frames]
    assert all(mask.sum() > 200 for mask in players)
    (_, first_x), (second_y, second_x), (end_y, _) = [
        [indices.mean() for indices in mask.nonzero()] for mask in players
    ]
    assert second_x > first_x + 50
    assert end_y > second_y + 50


@pytest.fixture
def written(monkeypatch):
    texts = []
    monkeypatch.setattr(Axes, "text", lambda _, x, y, text, **__: texts.append(text))
    return texts


def test_frames_show_thought_answer_reward_and_outcome(run_folder, coarse, written):
    view.main([str(run_folder), "--gif=1"])
    thought, answer, reward = "Thought", "Answer", "Reward"
    first = [
        "Turn 1 of 5, 10 actions left",
        thought,
        "Go right.",
        answer,
        "→ Right",
        reward,
        "-0.1",
    ]
    second = ["Turn 2 of 5, 9 actions left", thought, "Go down.", answer, "↓ Down", reward, "1"]
    end = ["Success", thought, "Go down.", answer, "↓ Down", "Sum of rewards", "0.9"]
    assert written == first + second + end


def test_gif_wraps_the_text_of_an_environment_without_boards(run_folder, coarse, written):
    data = view_data.load_runs([run_folder])
    data["trajectories"][0]["turns"][0]["text"] = "Task: " + "go west, " * 20 + "\nRoom kitchen."
    view_gif.draw_gif(data, 0, run_folder / "text.gif")
    for text in written:
        assert all(len(line) <= view_gif.LINE_CHARACTERS for line in text.split("\n"))
    (observation, _) = [text for text in written if "Task" in text]
    assert "\nRoom kitchen." in observation
    assert " ".join(observation.split()).count("go west,") == 20


def test_a_frame_is_as_high_as_its_text(run_folder, coarse):
    data = view_data.load_runs([run_folder])
    data["trajectories"][0]["turns"][0]["text"] = "line\n" * 20
    view_gif.draw_gif(data, 0, run_folder / "long.gif")
    with Image.open(run_folder / "long.gif") as gif:
        assert gif.width == 350 and gif.height > 20 * view_gif.LINE_HEIGHT * 50


def test_gif_shows_slips_and_arrows_only_where_there_are_directions(run_folder, coarse, written):
    data = view_data.load_runs([run_folder])
    lake, text = data["trajectories"][1], data["trajectories"][0]
    lake["turns"][1]["moves"] = ["Left"]
    text["turns"][0]["actions"] = ["Right"]
    view_gif.draw_gif(data, 1, run_folder / "slip.gif")
    view_gif.draw_gif(data, 0, run_folder / "text.gif")
    assert "↓ Down (slipped: ← Left)" in written
    assert "Right" in written and "→ Right" in written


def test_gif_shows_text_that_no_font_can(run_folder, coarse):
    view.main([str(run_folder), "--gif=2"])


def test_a_run_that_does_not_exist():
    for options in ([], ["--panel"], ["--gif=1"]):
        with pytest.raises(UserError) as error:
            view.main(["out/none", *options])
        assert str(error.value) == (
            "out/none does not exist; expected the folder of a run, or a file of trajectories"
        )


def test_the_reason_of_an_end_is_shown(tmp_path):
    turn = turn_record("Turn 1 of 1, 1 action left.")
    failed = {**turn, "error": "OSError: \x1b[2Jgone"}
    rows = [record("bandit", [turn], "out_of_tokens"), record("bandit", [failed], "error")]
    rows.append(record("bandit", [turn], "success"))
    (tmp_path / "eval_start.jsonl").write_text(to_lines(rows))
    (tmp_path / "config.json").write_text('{"config": {}}')
    reasons = [
        trajectory["reason"] for trajectory in view_data.load_runs([tmp_path])["trajectories"]
    ]
    assert reasons == [
        "max_context_tokens had no room for another reply",
        r"OSError: \x1b[2Jgone",
        "",
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"turns": []}, "holds a trajectory without turns"),
        ({"error": 5}, "error must be a text, got '5'"),
        ({"closing": [1]}, r"closing must be a text, got '\[1\]'"),
    ],
)
def test_wrong_parts_of_a_record_are_one_sentence(tmp_path, change, message):
    row = record("bandit", [{**turn_record("Turn 1."), **change}])
    if "turns" in change:
        row["turns"] = []
    (tmp_path / "eval_start.jsonl").write_text(to_lines([row]))
    (tmp_path / "config.json").write_text('{"config": {}}')
    with pytest.raises(UserError, match=message):
        view_data.load_runs([tmp_path])
