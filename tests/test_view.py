"""
Tests of view.py: records and boards by hand, the page in a browser, hostile text, figures by what is drawn.

    python -m pytest -q tests/test_view.py

The browser is playwright's Chromium, or one that is installed; without any, those tests are skipped.
"""

from configurator import Config

import doctest
import json
import shutil

import numpy as np
import photograph
import pytest
from matplotlib.axes import Axes
from PIL import Image

from dialogue import Episode
from envs import make_env
from support import echo_trap, pictures
from tools import view

LAKE = "frozenlake:size=2,success_rate=1"
ROOM = "sokoban:symbols=newvocab"
HOSTILE = '</script><script>window.hacked = 1</script><!-- <img src="x" onerror="window.hacked = 2"> & \u2028 \ud800'


def turn_record(
    observation, thought="", actions=(), reward=0.0, tokens=(), surprise=(), ok=True, **more
):
    response = f"<think>{thought}</think><answer>{' || '.join(actions)}</answer>"
    return {
        "observation": observation,
        "response": response,
        "actions": list(actions),
        "num_actions": len(actions),
        "format_ok": ok,
        "reward": reward,
        "tokens": list(tokens),
        "surprise": list(surprise),
    } | more


def record(env, turns, status="failure", member=0, **row):
    score = sum(turn["reward"] for turn in turns)
    return row | {
        "env": env,
        "seed": [7],
        "member": member,
        "status": status,
        "success": status == "success",
        "score": score,
        "system": f"rules of {env}",
        "turns": turns,
    }


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A player's game as text, then two members of a group on the lake, and a room in other symbols."""
    folder = tmp_path_factory.mktemp("runs") / "a_run"
    folder.mkdir()
    first, tokens = "Turn 1 of 5, 10 actions left.\nP_\nOG", ["<think>", "\ufffd", "<|im_end|>"]
    winner = [
        turn_record(first, "Go right.", ["Right"], -0.1, tokens, [0.0, 1.5, 3.004], ok=False),
        turn_record(
            "Reward -0.1.\nTurn 2 of 5, 9 actions left.\n_P\nOG",
            "Go down.",
            ["Down"],
            1.0,
            ["a"],
            [0.25],
            closing="__\nO√",
        ),
    ]
    loser = [turn_record(first, HOSTILE, ["constructor"], 0.0, ["a", HOSTILE], [0, 1])]
    room = "Turn 1 of 5, 10 actions left.\nWWWW\nW.AW\nWGCW\nWB@W"
    rows = [
        record(LAKE, winner, "success", step=1, group=0),
        record(LAKE, loser, member=1, step=1, group=0),
        record(ROOM, [turn_record(room, "", ["Up", "Left"])], "out_of_turns", step=2, group=0),
    ]
    text = "Turn 1 of 1, 1 action left.\nArms: Phoenix, Dragon"
    (folder / "eval_start.jsonl").write_text(
        json.dumps(record("bandit", [turn_record(text)])) + "\n"
    )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "trajectories.jsonl").write_text(lines + lines[:99])  # the last line was cut off
    (folder / "config.json").write_text('{"config": {"eval_size": 10}}')
    return folder


# ---------- records


def test_doctests():
    results = doctest.testmod(pictures)
    assert results.attempted >= 1 and results.failed == 0


@pytest.mark.parametrize("observation", ["grid", "coord", "relations"])
@pytest.mark.parametrize("spec", ["frozenlake", "sokoban", ROOM])
def test_the_board_is_found_in_what_the_environment_writes(spec, observation):
    env = make_env(spec, observation=observation)
    _, message = Episode(env, Config()).reset(3)
    parts = pictures.take_apart(message, pictures.symbols(spec))
    assert parts["board"] == env.render() and parts["budget"] == "Turn 1 of 5, 10 actions left"
    assert parts["text"] == env.observe().removeprefix(env.render()).lstrip("\n")
    assert (parts["text"] == "") == (observation == "grid")


def test_symbols_have_pictures():
    for known in map(pictures.symbols, ("frozenlake", "sokoban", ROOM)):
        assert known and all(
            layer in pictures.LAYERS for cell in known.values() for layer in cell.split()
        )
    assert (
        pictures.symbols(ROOM)["@"] == pictures.symbols("sokoban:boxes=2")["S"] == "floor ring you"
    )  # on a target
    assert pictures.symbols("bandit") == {}
    assert {
        color for shapes in pictures.LAYERS.values() for color, *_ in shapes
    } <= pictures.COLORS.keys()


def test_records_by_hand(run_folder):
    data = view.load(run_folder)
    trajectories, texts = data["trajectories"], data["texts"]
    assert [(t["group"], t["who"], t["when"]) for t in trajectories] == [
        ("prompt 7", "start", "start"),
        ("iteration 1, group 0", "member 0", "iteration 1"),
        ("iteration 1, group 0", "member 1", "iteration 1"),
        ("iteration 2, group 0", "member 0", "iteration 2"),
    ]
    turn = trajectories[1]["turns"][0]
    assert [texts[i] for i in turn.pop("tokens")] == ["<think>", "\ufffd", "<|im_end|>"]
    assert turn == {
        "report": "",
        "budget": "Turn 1 of 5, 10 actions left",
        "board": "P_\nOG",
        "text": "",
        "closing": "",
        "thought": "Go right.",
        "ok": False,
        "actions": ["Right"],
        "reward": -0.1,
        "surprise": [0, 150, 300],
    }
    player = trajectories[0]["turns"][
        0
    ]  # samples nothing: its answer is one piece without surprise
    assert player["text"] == "Arms: Phoenix, Dragon" and player["surprise"] == []
    assert [texts[i] for i in player["tokens"]] == ["<think></think><answer></answer>"]


def test_no_text_ends_the_script_tag(run_folder):
    data = view.load(run_folder)
    html = view.page(data)
    text = html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(text)["trajectories"] == data["trajectories"]
    assert json.loads(text)["texts"] == data["texts"] and HOSTILE in data["texts"]
    assert text.isascii() and "<" not in text


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "expected folders of runs"),
        (["{}", "--gif"], "expected folders"),
        (["{}", "--gif=2", "--panel"], "got"),
        (["{}", "--pannel"], "got '.*--pannel'"),
        (["{}", "--gif=4"], "from 0 to 3, got 4"),
        (["{}", "--png=4"], "got '.*--png=4'"),
        (["{}", "{}", "--gif=1"], "expected folders"),
        (["{}/empty"], "holds no trajectories; expected a folder with one of eval_start.jsonl"),
        (["{}/empty", "{}/empty"], "empty has no evaluation yet"),
        (["{}/empty", "--panel"], "empty has no iteration yet"),
    ],
)
def test_mistakes_are_answered(run_folder, arguments, said):
    (run_folder / "empty").mkdir(exist_ok=True)
    shutil.copy(run_folder / "config.json", run_folder / "empty")
    with pytest.raises(ValueError, match=said):
        view.main([argument.format(run_folder) for argument in arguments])


# ---------- figures


def test_gif_has_a_frame_a_turn_and_the_end(run_folder):
    view.main([str(run_folder), "--gif=1"])
    with Image.open(run_folder / "trajectory_1.gif") as gif:
        assert gif.n_frames == 3
        frames = [np.asarray(gif.convert("RGB"), int) for k in range(3) if gif.seek(k) is None]
    players = [np.abs(f - (0xE2, 0x73, 0x3A)).sum(-1) < 30 for f in frames]  # pixels of its colour
    assert all(mask.sum() > 200 for mask in players)
    assert players[1].nonzero()[1].mean() > players[0].nonzero()[1].mean() + 50  # it went right
    assert (
        players[2].nonzero()[0].mean() > players[1].nonzero()[0].mean() + 50
    )  # and down, to the goal


def test_gif_wraps_the_text_of_a_board_that_is_none(run_folder, monkeypatch):
    shown = []
    monkeypatch.setattr("matplotlib.axes.Axes.text", lambda _, x, y, text, **__: shown.append(text))
    data = view.load(run_folder)
    data["trajectories"][0]["turns"][0]["text"] = "Task: " + "go west, " * 20 + "\nRoom kitchen."
    view.draw_gif(data, 0, run_folder / "text.gif")
    assert (
        all(len(line) <= 44 for text in shown for line in text.split("\n"))
        and "\nRoom kitchen." in shown[0]
    )
    assert " ".join(shown[0].split()).count("go west,") == 20


def test_gif_shows_text_that_no_font_can(run_folder):
    view.main([str(run_folder), "--gif=2"])  # a lone surrogate in the thought


@pytest.fixture
def drawn(monkeypatch):
    """Arguments of what is drawn, by method."""
    calls = {"plot": [], "fill_between": [], "axhline": [], "axvline": []}

    def spy_on(name, original):
        def spy(self, *args, **options):
            calls[name].append([list(a) if hasattr(a, "__iter__") else a for a in args])
            return original(self, *args, **options)

        monkeypatch.setattr(Axes, name, spy)

    for name in calls:
        spy_on(name, getattr(Axes, name))
    return calls


def test_learning_curves(tmp_path, drawn):
    for name, rate in (("a", 0.5), ("b", 0.8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"config": {"eval_size": 10}}')
        rows = [{"step": 1, "eval_success": None}, {"step": 2, "eval_success": rate}]
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    scores = {"greedy": [1, 0], "optimal": [1, 1], "start": [0] * 10, "after RL": [1] * 10}
    scores = {"frozenlake": scores, "bandit": {"greedy": [0]}}
    (tmp_path / "a" / "scores.json").write_text(json.dumps(scores))
    view.main([str(tmp_path / "a"), str(tmp_path / "b")])
    assert Image.open(tmp_path / "a" / "curves.png").size == (1200, 675)
    assert drawn["plot"] == [[[0, 2], [0.0, 0.5]], [[2], [0.8]]]
    (_, low, high), (_, low_b, high_b) = drawn["fill_between"]
    # Wilson's 8 of 10 from his formula; 0 of 10: z^2 / (10 + z^2) = 3.8415 / 13.8415
    assert (*low_b, *high_b) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert (low[0], high[0]) == pytest.approx((0, 0.2775), abs=1e-4)
    assert drawn["axhline"] == [[0.5], [1.0]]


def test_panel_marks_what_appears_with_a_row(run_folder, drawn, monkeypatch):
    def new_warnings(history):
        return ["entropy drops"] if len(history) == 3 else []

    monkeypatch.setattr(echo_trap, "new_warnings", new_warnings)
    rows = [
        {
            "step": s,
            "reward": 1,
            "in_group_reward_std": 2,
            "entropy": None if s == 2 else 3,
            "grad_norm": 4,
        }
        for s in range(1, 6)
    ]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view.main([str(run_folder), "--panel"])
    assert (run_folder / "panel.png").stat().st_size > 10_000
    steps = [1, 2, 3, 4, 5]
    assert drawn["plot"] == [
        [steps, [1] * 5],
        [steps, [2] * 5],
        [[1, 3, 4, 5], [3] * 4],
        [steps, [4] * 5],
    ]
    assert drawn["axvline"] == [[3]] * 4


# ---------- the page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        try:
            opened = photograph.open_browser(started)
        except ValueError as error:
            pytest.skip(str(error))
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, run_folder):
    """The page, with a check that nothing failed and nothing but the file was asked for."""
    view.main([str(run_folder)])
    page, asked, errors = browser.new_page(color_scheme="dark"), [], []
    page.set_default_timeout(5000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto((run_folder / "view.html").as_uri())
    yield page
    assert asked == [(run_folder / "view.html").as_uri()] and errors == []
    page.close()


def test_a_photograph_is_the_page_at_a_trajectory(browser, run_folder):
    view.main([str(run_folder)])
    photograph.photograph(browser, run_folder / "view.html", 1, run_folder / "view.png")
    picture = np.asarray(Image.open(run_folder / "view.png").convert("RGB"), int)
    assert picture.shape == (860, 1280, 3)
    goal, you = (
        np.abs(picture - color).sum(-1) < 20 for color in ((0x34, 0xA0, 0x6A), (0xE2, 0x73, 0x3A))
    )
    assert goal.sum() > 1000 and you.sum() > 1000  # a flag and a player


def test_five_thousand_trajectories_stay_usable(browser, run_folder, tmp_path):
    """Of five turns and 40 tokens each; the page draws what is in sight only."""
    first = "Turn 1 of 5, 10 actions left.\nP___\nOG__\n____\n____"
    turns = [turn_record(first, "Goal 1 down ice.", ["Down"], 0.0, ["word"] * 40, [0.123] * 40)] * 5
    rows = [record(LAKE, turns, step=i // 16, group=i % 16 // 4, member=i % 4) for i in range(5000)]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(run_folder / "config.json", tmp_path)
    view.main([str(tmp_path)])
    assert (tmp_path / "view.html").stat().st_size < 20e6
    page = browser.new_page()
    page.goto((tmp_path / "view.html").as_uri())
    assert page.text_content("#count") == "5000 of 5000 trajectories, 0 successful"
    assert page.locator(".row").count() <= 60
    page.select_option("#iteration", "iteration 312")
    assert page.text_content("#count") == "8 of 5000 trajectories, 0 successful"
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
    print(f"{(tmp_path / 'view.html').stat().st_size / 1e6:.1f} MB, ready after {ready:.0f} ms")
    page.close()


def shown(page, *names):
    return [page.text_content(f"#{name}") for name in names]


def test_arrow_keys_step_through_turns_and_trajectories(opened):
    def boards():
        return opened.locator("#board svg, #closing svg").evaluate_all(
            "all => all.map(x => x.ariaLabel)"
        )

    assert shown(opened, "title", "count") == [
        "prompt 7, start",
        "4 of 4 trajectories, 1 successful",
    ]
    assert shown(opened, "text", "told") == ["Arms: Phoenix, Dragon", "Turn 1 of 1, 1 action left"]
    opened.keyboard.press("ArrowUp")  # there is nothing above
    opened.keyboard.press("ArrowDown")
    assert shown(opened, "title", "about") == [
        "iteration 1, group 0, member 0",
        "success with 0.90 in frozenlake:size=2,success_rate=1",
    ]
    assert boards() == ["P_\nOG"]
    assert shown(opened, "thought", "answer", "facts") == [
        "Go right.",
        "→ Right",
        "reward −0.10not valid",
    ]
    for _ in range(2):  # the last turn is the last
        opened.keyboard.press("ArrowRight")
        assert boards() == ["_P\nOG", "__\nO√"]  # before and after
    assert shown(opened, "thought", "told", "facts") == [
        "Go down.",
        "Turn 2 of 5, 9 actions left. Reward -0.1.",
        "reward 1.00valid",
    ]
    opened.keyboard.press("ArrowLeft")
    assert boards() == ["P_\nOG"]
    cell = opened.locator("#board svg")  # one of each: player with two eyes, hole, flag
    lake = [
        cell.locator(f"[style*='--{c}']").count() for c in ("ice", "you", "eye", "water", "goal")
    ]
    assert lake == [4, 1, 2, 1, 1]
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")  # nor is there anything below
    assert shown(opened, "title") == ["iteration 2, group 0, member 0"]
    room = [cell.locator(f"[style*='--{c}']").count() for c in ("wall", "wood", "you", "goal")]
    assert room == [
        10,
        1,
        2,
        3,
    ]  # targets: the free one, under the box that is placed, under the player


def test_filters_leave_what_fits(opened):
    def offered(name):
        return opened.locator(f"#{name} option").all_text_contents()

    opened.select_option("#iteration", "iteration 1")
    assert shown(opened, "title", "count") == [
        "iteration 1, group 0, member 0",
        "2 of 4 trajectories, 1 successful",
    ]
    assert offered("environment") == ["all", LAKE] and offered("group") == [
        "all",
        "iteration 1, group 0",
    ]
    assert opened.locator(".row").count() == 2
    opened.select_option("#outcome", "no success")
    assert shown(opened, "title", "count") == [
        "iteration 1, group 0, member 1",
        "1 of 4 trajectories, 0 successful",
    ]
    opened.select_option("#outcome", "")
    opened.select_option("#iteration", "")
    opened.select_option("#environment", ROOM)
    assert shown(opened, "title") == ["iteration 2, group 0, member 0"]


def test_members_of_a_group_stand_side_by_side(opened):
    opened.select_option("#outcome", "success")
    opened.keyboard.press("ArrowRight")
    assert shown(opened, "members") == ["2 of this group, turn 2"]
    assert opened.locator(".card svg").evaluate_all("all => all.map(x => x.ariaLabel)") == [
        "_P\nOG",
        "P_\nOG",
    ]
    assert "over" in opened.locator(".card").nth(1).get_attribute("class")  # it ended a turn before
    opened.locator(".card").nth(1).click()
    assert shown(opened, "title") == ["iteration 1, group 0, member 1"]


def test_surprise_colours_tokens(opened):
    opened.select_option("#outcome", "success")
    tokens = opened.locator("#tokens span")
    assert tokens.all_text_contents() == ["<think>", "\ufffd", "<|im_end|>"]
    assert [tokens.nth(i).get_attribute("title") for i in range(3)] == [
        "0.00 nats",
        "1.50 nats",
        "3.00 nats",
    ]
    alpha = tokens.evaluate_all(
        "all => all.map(x => +getComputedStyle(x).backgroundColor.match(/[\\d.]+(?=\\)$)/))"
    )
    assert alpha[:2] == [0, 0.5] and "surprise, −log p of the sampled token" in opened.text_content(
        "main"
    )


def test_hostile_text_is_text(opened):
    opened.select_option("#outcome", "no success")
    opened.select_option("#environment", LAKE)
    assert shown(opened, "thought", "tokens") == [HOSTILE, "a" + HOSTILE]
    assert shown(opened, "answer")[0].strip() == "constructor"
    assert opened.evaluate("window.hacked") is None and opened.locator("img").count() == 0
    assert opened.locator("script").count() == 2


def test_light_and_dark(opened):
    def paper():
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    assert paper() == "rgb(21, 23, 26)"
    opened.click("#theme")
    assert paper() == "rgb(248, 247, 244)"
    opened.click("#theme")
    assert paper() == "rgb(21, 23, 26)"
