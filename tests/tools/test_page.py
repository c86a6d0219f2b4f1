"""Browser tests of the page that tools/view.py writes. They are skipped without a browser."""

import json
import re
import shutil
from urllib.parse import parse_qs, urlencode

import pytest
from view_rows import HOSTILE, LAKE, ROOM, SHOWN, record, to_lines, turn_record

from tools import view

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000

START = "Turn 1 of 5, 10 actions left.\nP_\nOG"
SECOND = "Reward -0.1.\nTurn 2 of 5, 9 actions left.\n_P\nOG"
ARMS = "Turn 1 of 1, 1 action left.\nArms: Right, Dragon"


def lake_group():
    tokens = ["<think>", "\ufffd", "<|im_end|>"]
    invalid = turn_record(START, "Go right.", ["Right", "Jump"], -0.1, tokens, [0.0, 1.5, 3.004])
    invalid |= {"format_ok": False, "moves": ["Right", ""], "faults": ['Unknown action: "Jump".']}
    invalid |= {"advantage": 1.5, "value": 0.25, "statements_checked": 2, "statements_true": 1}
    slip = turn_record(SECOND, "Go down.", ["Left"], 1.0, ["a", "<|im_end|>"], [0.25, 0.35])
    slip |= {"moves": ["Down"], "closing": "__\nO√", "advantage": 0.5, "value": 0.75}
    lost = turn_record(START, HOSTILE, ["constructor"], 0.0, ["a", HOSTILE], [0, 1])
    lost |= {"advantage": -1.0, "value": 0.0, "out_of_actions": False, "closing": "__\nXG"}
    kept = {"step": 1, "group": 0, "kept": True, "filter_value": 0.5}
    return [
        record(LAKE, [invalid, slip], "success", **kept),
        record(LAKE, [lost], member=1, **kept),
    ]


def write_run(folder, trained, successes, started=()):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"config": {"eval_size": 10}}')
    (folder / "eval_start.jsonl").write_text(to_lines(started))
    (folder / "trajectories.jsonl").write_text(to_lines(trained))
    rows = [
        {"step": step, "success": success, "kept_groups": 1, "entropy": 0.5}
        for step, success in enumerate(successes, start=1)
    ]
    (folder / "metrics.jsonl").write_text(to_lines(rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs. `a` has a bandit game before RL, both games of `lake_group()` and a Sokoban game.
    `b` has a game on the same lake and a game in the same Sokoban room."""
    folder = tmp_path_factory.mktemp("runs")
    text = turn_record(ARMS, "The dragon.", ["Right"], 0.5, ["x"] * 5, [2.0] * 5)
    push = turn_record(
        "Turn 1 of 5, 10 actions left.\nWWWW\nW.AW\nWGCW\nWB@W", "", ["Up", "Left"], -0.2
    )
    push["tokens"] = ["<answer>"]
    room = record(ROOM, [push], "out_of_turns", step=3, group=0, kept=False, filter_value=0.0)
    lake = lake_group()
    write_run(folder / "a", [*lake, room], [0.2, 0.4, 0.6, 0.8], [record("bandit", [text])])
    other = record(LAKE, [turn_record(START, "Go left.", ["Left"])], step=1, group=0)
    write_run(folder / "b", [other, {**room, "step": 2}], [0.1, 0.1, 0.3])
    return folder


@pytest.fixture(scope="module")
def tab(browser):
    """All tests share one tab, because a busy machine opens a new tab slowly."""
    tab = browser.new_page(color_scheme="dark")
    tab.set_default_timeout(PATIENCE_MS)
    return tab


@pytest.fixture
def open_page(tab):
    opened, requested, errors = {"about:blank"}, set(), []
    listeners = {
        "request": lambda request: requested.add(request.url.partition("#")[0]),
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_path(path, place="", width=1280):
        opened.add(path.as_uri())
        tab.set_viewport_size({"width": width, "height": 860})
        # Leave the page first. A URL that differs only in its fragment would not reload the page.
        tab.goto("about:blank")
        tab.goto(f"{path.as_uri()}#{place}")
        return tab

    yield open_path
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert errors == [] and requested <= opened


@pytest.fixture(scope="module")
def html(runs):
    view.main([str(runs / "a")])
    return runs / "a" / "view.html"


@pytest.fixture
def page(open_page, html):
    return open_page(html)


@pytest.fixture
def games(tmp_path):
    turn = turn_record(START, "Goal up. I go.", ["Down"], 0.0, ["a"], [0.5])
    turn |= {"statements_checked": 1, "statements_true": 0, "out_of_actions": False}
    turn |= {"false_statements": {"Goal up.": HOSTILE}, "why_lost": "fell into a hole at (2,1)"}
    rows = [
        {**record(LAKE, [turn], policy=policy), "system": "<think>"} for policy in ("tiny", HOSTILE)
    ]
    path = tmp_path / "games.jsonl"
    path.write_text(to_lines(rows))
    view.main([str(path)])
    return tmp_path / "games_view.html"


def texts_of(page, *selectors):
    return [page.text_content(selector) for selector in selectors]


def boards_of(page, selector):
    return page.locator(selector).evaluate_all("all => all.map(svg => svg.ariaLabel)")


def rows_of(page):
    return page.locator(".row .row-name").all_text_contents()


def offered(page, name):
    return page.locator(f"#{name} option").all_text_contents()


def place_of(page, wanted):
    page.wait_for_function("text => decodeURIComponent(location.hash).includes(text)", arg=wanted)
    return {key: values[0] for key, values in parse_qs(page.url.partition("#")[2]).items()}


LAKE_GROUP = "iteration 1, group 0"


# ---------- a trajectory


def test_arrow_keys_step_through_turns_and_trajectories(page):
    assert texts_of(page, ".title", ".text") == ["prompt 7, before RL", "Arms: Right, Dragon"]
    assert texts_of(page, "#count") == ["4 of 4 trajectories, 1 successful"]
    assert texts_of(page, ".progress") == ["Turn 1 of 1, 1 action left"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 0"]
    assert page.text_content(".about") == f"successscore 0.90{LAKE}"
    assert texts_of(page, ".thought") == ["Go right."]
    boards = ".observation svg"
    assert boards_of(page, boards) == ["P_\nOG"]
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        assert boards_of(page, boards) == ["_P\nOG", "__\nO√"]
    assert texts_of(page, ".progress") == ["Turn 2 of 5, 9 actions left. Reward -0.1."]
    page.keyboard.press("ArrowLeft")
    assert boards_of(page, boards) == ["P_\nOG"]
    # four cells of ice, one player, its two eyes, one hole (water), one flag (goal)
    assert count_colors(page, "ice", "player", "eye", "water", "goal") == [4, 1, 2, 1, 1]
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert texts_of(page, ".title") == ["iteration 3, group 0, member 0"]
    assert page.text_content(".about").startswith(
        "out of turnsthe game was not over after max_turns repliesscore −0.20"
    )
    # three shapes have the color "goal": a free target, a box on a target, a target under a player
    assert count_colors(page, "wall", "wood", "goal", "player") == [10, 1, 3, 2]


def count_colors(page, *colors):
    board = page.locator(".observation svg").first
    fills = board.evaluate("svg => [...svg.children].map(shape => shape.style.fill)")
    return [fills.count(f"var(--{color})") for color in colors]


def test_slips_faults_and_credit_are_shown(page):
    page.select_option("#outcome", "success")
    assert page.locator(".action").all_text_contents() == ["→ Right", "Jump not executed"]
    assert texts_of(page, ".invalid") == ['! not validUnknown action: "Jump".']
    assert page.locator(".fact").all_text_contents() == [
        "reward −0.10",
        "advantage +1.50",
        "value 0.25",
        "true statements 1 of 2",
    ]
    assert page.locator(".turns .mark").all_text_contents() == ["!", "⤳"]
    page.keyboard.press("ArrowRight")
    assert texts_of(page, ".slip .chosen", ".slip .actual") == ["← Left", "⤳ slipped ↓ Down"]
    assert page.locator(".fact").all_text_contents()[-1] == "✓ valid"
    note = "The filter kept this group: the standard deviation of its scores is 0.5. "
    assert texts_of(page, "#filter-note") == [f"{note}It kept 1 of 8 groups."]
    # A bar shows an advantage and begins in the middle. So the largest advantage of the group, 1.5,
    # fills 50 % of the width, and the advantage 0.5 fills 17 %.
    # Each member of the group has a card, which shows the selected turn, turn 2. If a game ended
    # earlier, its card shows its last turn.
    widths = "all => all.map(fill => Math.round(parseFloat(fill.style.width)))"
    assert page.locator(".turns .bar i").evaluate_all(widths) == [50, 17]
    assert page.locator(".card .bar").evaluate_all("all => all.map(bar => bar.className)") == [
        "bar",
        "bar negative",
    ]


def test_outcomes_differ_in_shape_and_name(page):
    icons = page.locator(".row .icon")
    assert icons.evaluate_all("all => all.map(icon => icon.getAttribute('aria-label'))") == [
        "failure",
        "success",
        "lost",
        "out of turns",
    ]
    signs = page.locator(".row .icon .sign").evaluate_all("all => all.map(s => s.outerHTML)")
    assert len(set(signs[1:])) == 3
    assert "lost" in page.locator(".row .details").all_text_contents()[2]


def test_arrows_only_where_moves_have_directions(page):
    assert page.locator(".action").all_text_contents() == ["Right"]
    page.keyboard.press("ArrowDown")
    assert page.locator(".action").first.text_content() == "→ Right"


def test_members_of_a_group_stand_side_by_side(page):
    page.select_option("#outcome", "success")
    page.keyboard.press("ArrowRight")
    assert texts_of(page, "#members") == ["Group of 2, turn 2"]
    assert boards_of(page, ".card svg.board") == ["_P\nOG", "P_\nOG"]
    first, second = page.locator(".card .answer-line").all_text_contents()
    assert (first, second) == ("←⤳↓", "constructor")
    card = page.locator(".card").nth(1)
    assert "ended" in card.get_attribute("class")
    card.click()
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 1"]


def test_surprise_colors_tokens(page):
    page.select_option("#outcome", "success")
    tokens = page.locator(".tokens span")
    assert tokens.all_text_contents() == ["<think>", "\ufffd", "<|im_end|>"]
    titles = tokens.evaluate_all("all => all.map(token => token.title)")
    assert titles == ["0.00 nats", "1.50 nats", "3.00 nats"]
    alpha = r"+getComputedStyle(token).backgroundColor.match(/[\d.]+(?=\)$)/)"
    assert tokens.evaluate_all(f"all => all.map(token => {alpha})")[:2] == [0, 0.5]


def test_light_and_dark(page):
    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert background() == "rgb(21, 23, 26)"
    page.click("#theme")
    assert background() == "rgb(248, 247, 244)"
    page.click("#theme")
    assert background() == "rgb(21, 23, 26)"


# ---------- the page of a file of trajectories; stars, notes and their export


def test_a_file_shows_what_was_false_and_why_a_game_was_lost(open_page, games):
    page = open_page(games)
    assert page.text_content(".about").startswith("lostfell into a hole at (2,1)score")
    assert texts_of(page, ".thought s", ".statements li b") == ["Goal up.", SHOWN]
    assert texts_of(page, ".statements > .gray") == ["1 of 2 sentences not checked"]
    assert texts_of(page, "#members") == ["Same prompt, 2 trajectories, turn 1"]
    assert offered(page, "policy") == ["all", "tiny", SHOWN]
    assert not page.is_visible("#strip") and not page.is_visible("#iteration")
    assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0


def test_selected_rows_with_notes_are_exported(open_page, games):
    page = open_page(games)
    page.evaluate("localStorage.clear()")
    page = open_page(games)
    page.click(".star")
    page.fill(".note", HOSTILE.replace("\ud800", ""))
    page.keyboard.press("Enter")
    page.select_option("#marks", "selected")
    assert rows_of(page) == ["prompt 7"]
    page = open_page(games)
    assert page.text_content(".star") == "★ selected"
    page.select_option("#marks", "with a note")
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "games.jsonl_selection.jsonl"
    row = json.loads(download.value.path().read_text(encoding="utf-8"))  # one line
    assert (row["file"], row["line"], row["when"]) == ("games.jsonl", 1, "tiny")
    assert row["selected"] and row["note"] == HOSTILE.replace("\ud800", "").strip()
    assert row["outcome"] == "lost" and row["reason"] == "fell into a hole at (2,1)"
    assert row["turns"][0]["false_statements"] == [["Goal up.", SHOWN]]
    page.select_option("#marks", "")
    page.click(".star")
    page.fill(".note", "")
    page.keyboard.press("Enter")
    assert not page.is_visible("#marks")


# ---------- search, order and filters


def test_filters_leave_what_fits(page):
    page.select_option("#iteration", "iteration 1")
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 0"]
    assert texts_of(page, "#count") == ["2 of 4 trajectories, 1 successful"]
    assert offered(page, "outcome") == ["all", "success", "no success", "lost"]
    page.select_option("#outcome", "lost")
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 1"]
    page.select_option("#outcome", "")
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 1"]
    page.select_option("#iteration", "")
    page.select_option("#environment", ROOM)
    assert texts_of(page, ".title") == ["iteration 3, group 0, member 0"]
    page.select_option("#environment", "")
    assert set(offered(page, "replies")[1:]) == {
        "an invalid reply",
        "a reply that was cut off",
        "a slip",
        "a false statement",
    }
    page.select_option("#replies", "a slip")
    assert rows_of(page) == [LAKE_GROUP]
    assert page.locator(".turns .selected").text_content().startswith("turn 2")
    page.select_option("#replies", "")
    page.select_option("#training", "dropped by the filter")
    assert rows_of(page) == ["iteration 3, group 0"]


def test_search_finds_thoughts_and_answers(page):
    page.fill("#search", "go DOWN")
    assert rows_of(page) == [LAKE_GROUP]
    assert texts_of(page, ".turns .selected", ".thought mark") == ["turn 2 1.00⤳", "Go down"]
    page.fill("#search", "dragon")  # found in a thought; observations are not searched
    assert rows_of(page) == ["prompt 7"]
    page.fill("#search", "constructor")
    assert texts_of(page, "#count") == ["1 of 4 trajectories, 0 successful"]
    page.fill("#search", "nothing like this")
    assert rows_of(page) == []
    assert texts_of(page, "#count") == ["no trajectory fits; change the search or the filters"]
    page.fill("#search", "")
    assert len(rows_of(page)) == 4
    page.keyboard.press("ArrowRight")
    assert page.locator(".turns .selected").text_content().startswith("turn 1")


ORDERS = {
    # Trajectories 0 to 3 have the scores 0.5, 0.9, 0, -0.2. Their numbers of tokens are 5, 5, 2, 1.
    "lowest score first": [3, 2, 0, 1],
    "highest score first": [1, 0, 2, 3],
    "shortest first": [3, 2, 0, 1],
    "longest first": [0, 1, 2, 3],
    # Trajectories 0 to 2 have mean surprises (-logprob) of 2, 1.02 and 0.5 nats. Trajectory 3 has
    # none. The number 1.02 is (0 + 1.5 + 3 + 0.25 + 0.35) / 5.
    "most surprising first": [0, 1, 2, 3],
    "least surprising first": [3, 2, 1, 0],
}


def test_order(page):
    for order, wanted in ORDERS.items():
        page.select_option("#order", order)
        numbers = page.locator(".row .number").all_text_contents()[1::2]
        assert [int(number) for number in numbers] == wanted, order
        assert page.locator(".row.selected .number").nth(1).text_content() == str(wanted[0])


# ---------- links


def test_the_address_names_what_is_shown(page, open_page, html):
    page.select_option("#outcome", "success")
    page.fill("#search", "go down")
    page.select_option("#order", "longest first")
    assert place_of(page, "longest") == {
        "run": "a",
        "iteration": "1",
        "group": "0",
        "member": "0",
        "turn": "2",
        "environment": LAKE,
        "only-outcome": "success",
        "search": "go down",
        "order": "longest first",
    }
    open_page(html, page.url.partition("#")[2])
    assert texts_of(page, ".title", ".thought") == [f"{LAKE_GROUP}, member 0", "Go down."]
    assert page.input_value("#search") == "go down"
    assert page.input_value("#outcome") == "success"
    assert page.input_value("#order") == "longest first"
    assert rows_of(page) == [LAKE_GROUP]


def test_links_by_hand(page):
    def go(**place):
        page.evaluate("hash => { location.hash = hash }", urlencode(place))

    go(run="a", iteration="1", group="0", member="1")
    page.locator(".title", has_text=f"{LAKE_GROUP}, member 1").wait_for()
    go(iteration="before RL", group="7")
    page.locator(".title", has_text="prompt 7, before RL").wait_for()
    assert not page.is_visible("#notice")
    go(iteration="999", group=HOSTILE.replace("\ud800", ""), search="<img src=x onerror=alert()>")
    page.locator("#notice").wait_for()
    assert texts_of(page, "#notice") == [
        "The link names a trajectory that this page does not hold."
    ]
    assert page.locator("img").count() == 0 and rows_of(page) == []


# ---------- curves


def click_iteration(page, step):
    x = page.evaluate(f"layOutStrip(element('curve').value).x({step})")
    box = page.locator("#strip svg").bounding_box()
    page.mouse.move(box["x"] + x + 3, box["y"] + 40)
    tip = page.text_content(".tip")
    page.mouse.click(box["x"] + x + 3, box["y"] + 40)
    return tip


def test_a_click_on_the_curve_opens_its_trajectories(page):
    assert page.locator("#strip .stage").count() == 3
    tip = click_iteration(page, 3)
    assert tip == "iteration 3: 60 % · a click opens iteration 3"
    assert texts_of(page, ".title") == ["iteration 3, group 0, member 0"]
    assert page.input_value("#iteration") == "iteration 3"
    assert texts_of(page, "#count") == ["1 of 4 trajectories, 0 successful"]
    page.select_option("#outcome", "out of turns")
    click_iteration(page, 1)
    assert rows_of(page) == [LAKE_GROUP] * 2
    # Iteration 4 has no records, so the nearest iteration with records opens.
    click_iteration(page, 4)
    assert page.input_value("#iteration") == "iteration 3"
    place = place_of(page, "only-iteration=iteration+3")
    assert place["only-iteration"] == "iteration 3"


def test_the_curve_has_its_points(page):
    ends = page.evaluate("""() => {
        const place = layOutStrip('success')
        return data.runs[0].steps.map(step => place.x(step))
    }""")
    points = page.locator("#strip polyline.faint").get_attribute("points").split()
    assert [float(point.split(",")[0]) for point in points] == pytest.approx(ends)
    heights = [float(point.split(",")[1]) for point in points]
    # 0 % is 98 pixels below the top edge, and 100 % is 12 pixels below it; see STRIP in strip.js
    assert heights == pytest.approx([98 - 86 * rate for rate in (0.2, 0.4, 0.6, 0.8)])
    page.select_option("#curve", "entropy")
    assert page.locator("#strip polyline.faint").count() == 0
    assert place_of(page, "curve=")["curve"] == "entropy"


# ---------- two runs


@pytest.fixture
def two(runs, open_page):
    view.main([str(runs / "a"), f"--against={runs / 'b'}"])
    return open_page(runs / "a" / "view_against.html")


def test_two_runs_stand_side_by_side_on_the_same_start(two):
    assert two.locator(".pane").count() == 2
    assert two.locator("#strip polyline.run-1").count() == 2
    second = two.locator(".pane").nth(1)
    no_other = "This run has no recorded trajectory from the same start."
    assert second.text_content() == f"b{no_other}"
    two.select_option("#outcome", "success")
    assert two.locator(".pane .run-name").all_text_contents() == ["a", "b"]
    assert two.locator(".pane .thought").all_text_contents() == ["Go right.", "Go left."]
    two.keyboard.press("ArrowRight")
    assert two.locator(".pane .thought").all_text_contents() == ["Go down.", "Go left."]
    assert texts_of(two, ".pane .ended-note") == ["It ended at turn 1."]
    assert texts_of(two, "#members") == ["Same start, turn 2"]
    assert two.locator(".card").count() == 3
    two.locator(".card").nth(2).click()
    assert place_of(two, "run=b") == {
        "run": "b",
        "iteration": "1",
        "group": "0",
        "member": "0",
        "turn": "1",
        "environment": LAKE,
        "only-outcome": "success",
    }
    assert two.locator(".pane.selected .run-name").text_content() == "b"


def test_two_runs_are_filtered_by_who_succeeds(two):
    assert set(offered(two, "comparison")) == {
        "all",
        "no common prompt",
        "only a succeeds",
        "neither succeeds",
    }
    two.select_option("#comparison", "only a succeeds")
    # Member 0 succeeded in run a and failed in run b. Run b has no member 1, so member 1 of run a
    # is compared with member 0 of run b. Both members failed, so member 1 of run a is not listed.
    assert two.locator(".row .details").all_text_contents() == [
        "member 0 · success · 2 turns · a",
        "member 0 · failure · 1 turn · b",
    ]
    keys = two.locator(".row .key").evaluate_all("all => all.map(key => key.className)")
    assert keys == ["key run-0", "key run-1"]
    two.select_option("#run", "b")
    assert rows_of(two) == [LAKE_GROUP]


# ---------- a run that still trains


def test_follow_writes_the_page_until_the_run_is_finished(runs, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    written = []
    write_page = view.write_page

    def note_page(runs, path, refresh_s=0):
        write_page(runs, path, refresh_s)
        written.append((len(view.load_runs(runs)["trajectories"]), refresh_s))

    def add_files(_):
        for name in ("config.json", "metrics.jsonl", "trajectories.jsonl"):
            (folder / name).write_text((runs / "a" / name).read_text())

    def add_row(_):
        with (folder / "trajectories.jsonl").open("a") as file:
            file.write(to_lines(lake_group()))

    def finish(_):
        (folder / "scores.md").write_text("done")

    moments = iter([lambda _: None, add_files, lambda _: None, add_row, finish])
    monkeypatch.setattr(view, "write_page", note_page)
    monkeypatch.setattr(view.time, "sleep", lambda seconds: next(moments)(seconds))
    view.main([str(folder), "--follow"])
    assert written == [(3, view.REFRESH_S), (5, view.REFRESH_S), (5, 0)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "waiting for the first trajectories; Ctrl-C ends"
    assert re.fullmatch(r"wrote .*run/view.html; open file:///.*/run/view.html", lines[1])
    assert lines[2:] == ["finished"]


def test_ctrl_c_leaves_a_page_that_is_not_loaded_again(runs, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(runs / "b", folder)

    def interrupt(_):
        assert '"refresh_s":5' in (folder / "view.html").read_text()
        raise KeyboardInterrupt

    monkeypatch.setattr(view.time, "sleep", interrupt)
    view.main([str(folder), "--follow"])
    assert '"refresh_s":0' in (folder / "view.html").read_text()


def test_the_page_is_loaded_again_and_keeps_its_place(runs, open_page, tmp_path, monkeypatch):
    monkeypatch.setattr(view, "REFRESH_S", 1)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "metrics.jsonl", "trajectories.jsonl"):
        (folder / name).write_text((runs / "a" / name).read_text())
    path = folder / "view.html"
    view.write_page([folder], path, refresh_s=1)
    page = open_page(path, "iteration=1&group=0&member=1&only-iteration=iteration+1")
    assert texts_of(page, "#count") == ["2 of 3 trajectories, 1 successful"]
    assert page.text_content("#follow").startswith("following, ")
    again = [{**row, "member": 2 + i} for i, row in enumerate(lake_group())]
    with (folder / "trajectories.jsonl").open("a") as file:
        file.write(to_lines(again))
    view.write_page([folder], path)
    page.locator("#count", has_text="4 of 5 trajectories").wait_for()
    assert texts_of(page, ".title") == [f"{LAKE_GROUP}, member 1"]
    assert page.input_value("#iteration") == "iteration 1"
    assert not page.is_visible("#follow")


# ---------- hostile texts and many trajectories


def test_hostile_text_is_text(page):
    page.select_option("#outcome", "lost")
    assert texts_of(page, ".thought", ".tokens") == [SHOWN, "a" + SHOWN]
    assert page.locator(".action").all_text_contents() == ["constructor"]
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_every_text_of_a_record_may_be_hostile(runs, open_page, tmp_path):
    turn = turn_record(f"Turn 1 of 5, 9 actions left.\n{HOSTILE}", HOSTILE, [HOSTILE])
    turn |= {"format_ok": False, "moves": [f"slip {HOSTILE}"], "faults": [HOSTILE]}
    turn |= {"closing": HOSTILE, "error": HOSTILE, "tokens": [HOSTILE], "surprise": [1.0]}
    broken = {**turn, "response": f"<think>{HOSTILE}", "error": HOSTILE}
    rows = [
        record(HOSTILE, [turn, broken], status, member=i)
        for i, status in enumerate(["error", "failure", HOSTILE, "__proto__"])
    ]
    for row in rows:
        row["system"] = HOSTILE
    folder = tmp_path / "<img src=x onerror=alert()>\u202e"
    folder.mkdir()
    (folder / "config.json").write_text('{"config": {}}')
    (folder / "eval_start.jsonl").write_text(to_lines(rows))
    (folder / "scores.json").write_text(json.dumps({HOSTILE: {HOSTILE: [1], "optimal": [1]}}))
    view.main([str(folder), f"--against={runs / 'b'}"])
    page = open_page(folder / "view_against.html")
    for _ in range(4):
        for _ in range(2):
            assert page.evaluate("window.hacked") is None
            assert page.locator("img").count() == 0 and page.locator("script").count() == 2
            hidden = r"/[\u0000-\u0008\u000b-\u001f\u2028-\u202e\ud800-\udfff]/u"
            assert not page.evaluate(f"{hidden}.test(document.body.innerText + document.title)")
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert r"onerror=alert()>\u202e" in page.text_content("#name")
    page.fill("#search", "onerror")
    assert page.locator("mark").first.text_content() == "onerror"


def test_five_thousand_trajectories(open_page, tab, tmp_path):
    first = "Turn 1 of 5, 10 actions left.\nP___\nOG__\n____\n____"
    turns = [turn_record(first, "Goal 1 down ice.", ["Down"], 0.0, ["word"] * 40, [0.123] * 40)] * 5
    rows = []
    for i in range(5000):
        row = record(LAKE, turns, step=i // 16, group=i % 16 // 4, member=i % 4)
        rows.append({**row, "seed": [0, 31, i // 16, i % 16 // 4]})
    write_run(tmp_path / "run", rows, [0.5] * 313)
    view.main([str(tmp_path / "run")])
    html = tmp_path / "run" / "view.html"
    assert html.stat().st_size < 20e6
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page = open_page(html)
    assert texts_of(page, "#count") == ["5000 of 5000 trajectories, 0 successful"]
    assert page.locator(".row").count() <= 60
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    print(f"{html.stat().st_size / 1e6:.1f} MB, {metrics['TaskDuration']:.2f} CPU-s to open")
    page.select_option("#iteration", "iteration 312")
    assert texts_of(page, "#count") == ["8 of 5000 trajectories, 0 successful"]


def test_nothing_is_wider_than_the_window(open_page, html):
    for width in (1280, 390):
        page = open_page(html, "iteration=1&group=0&member=1", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
