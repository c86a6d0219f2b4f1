"""Tests of tool_use.py and documents.py: games worked out by hand, the search, users' files."""

from configurator import load_config

import json
import math
import os
from itertools import permutations

import numpy as np
import pytest
from shared_fixtures import config_file

from dialogue import Episode
from envs import make_env
from mixtures import specs_that_run_programs
from tools.check_env import Subject, check_environment
from worlds.text.alfworld import read_game
from worlds.text.documents import Document, Index, bundled_towns, item, read_file, words_of
from worlds.text.tool_use import Step, Task, ToolUse

FILES = [config_file(name) for name in ("tools_ppo", "tiny")]
TOWNS = [
    item("Tavor", {"age": 52, "river": "Lum", "trade": "salt"}),
    item("Lunen", {"age": 31, "river": "Lum", "trade": "wool"}),
    item("New Tavor", {"age": 31, "river": "Ane", "trade": "salt"}),
]
PUT = Task(
    "Put the age of the town stored as box plus the number stored as wall into edge.",
    (("box", "Lunen"), ("wall", "12")),
    (
        Step("get box", "key box", "box Lunen"),
        Step("search Lunen", "document Lunen", "age of Lunen 31"),
        Step("get wall", "key wall", "wall 12"),
        Step("calc 31 + 12", "value 43", "sum 43"),
    ),
    ("put edge 43",),
)


def opened(task, **options):
    env = ToolUse(max_actions=20, **options)
    env.index = Index(TOWNS)
    env.start(("tools", *task), [0])
    return env


# ---------- a game by hand


def test_a_task_by_hand():
    env = opened(PUT)
    assert env.observe() == f"{PUT.question}\nStore: box, wall."
    assert env.statements() == ["Known nothing."]
    plan = ["get box", "search Lunen", "get wall", "calc 31 + 12", "put edge 43"]
    assert env.plan(9, 1) == plan
    results = [
        "box: Lunen.",
        "Lunen: age 31, river Lum, trade wool.",
        "wall: 12.",
        "31 + 12 = 43.",
    ]
    for call, result in zip(plan, results, strict=False):
        step = env.step(call)
        assert step.observation == f"{PUT.question}\nStore: box, wall.\n{result}"
        assert (step.reward, step.terminated, step.effective) == (0.0, False, True)
    assert env.statements() == ["Known box Lunen, age of Lunen 31, wall 12, sum 43."]
    assert env.plan(9, 1) == ["put edge 43"]
    last = env.step("put edge 43")
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)


def test_only_the_asked_key_ends_the_game():
    env = opened(PUT)
    assert not env.step("put corner 43").terminated
    assert env.observe().endswith("Store: box, wall, corner.\ncorner: 43.")
    assert env.step("get corner").observation.endswith("corner: 43.")
    assert not env.step("put box Tavor").terminated
    wrong = env.step("put edge 44")
    assert (wrong.reward, wrong.terminated, wrong.success) == (0.0, True, False)
    wrong = opened(PUT).step("answer 43")
    assert (wrong.reward, wrong.terminated, wrong.success) == (0.0, True, False)


@pytest.mark.parametrize("text", ["answer Tavor", "Answer  the tavor.", "ANSWER a TAVOR"])
def test_answers_may_have_another_form(text):
    task = Task("Which town?", (), (), ("answer Tavor", "answer New Tavor"))
    assert opened(task).step(text).success
    assert opened(task).step("answer new tavor").success
    assert not opened(task).step("answer Lunen").success
    assert not opened(task).step("answer Tavor Tavor").success


@pytest.mark.parametrize(
    "text",
    [
        *("search", "answer", "find Tavor", "calc", "calc 1 +", "calc 2 ** 9", "calc Tavor"),
        *("get", "get nothing", "get box wall", "put box", "put", "put a-b 3", "put box \ud800"),
        *("search a\0b", "search " + "a" * 201, "answer \u202e", "", "||"),
    ],
)
def test_what_is_no_call(text):
    env = opened(PUT)
    step = env.step(text)
    assert not step.valid and env.num_actions == 0
    assert step.observation == f"{PUT.question}\nStore: box, wall."


def test_a_call_without_a_new_result_has_no_effect():
    env = opened(PUT)
    assert env.step("search nowhere").observation.endswith("\nNothing found.")
    assert not env.step("search elsewhere").effective
    assert env.step("calc (3 + 4) / 2").observation.endswith("\n(3 + 4) / 2 = 7/2.")


def test_a_search_by_other_words_counts_as_well():
    env = opened(PUT)
    env.step("search wool")
    assert env.plan(9, 1) == ["get box", "get wall", "calc 31 + 12", "put edge 43"]


# ---------- search


def test_scores_by_hand():
    index = Index(TOWNS)
    names = [document.name for document in index.search("the SALT of new Tavor, 31", 3)]
    # If d of the 3 documents contain a word, the weight of the word is log(1 + 3/d). "new" is in 1
    # document; "salt", "tavor" and "31" are in 2 documents each.
    new, common = math.log(4), math.log(2.5)
    assert new + 3 * common > 2 * common > common
    assert names == ["New Tavor", "Tavor", "Lunen"]
    assert [document.name for document in index.search("lum", 3)] == ["Tavor", "Lunen"]
    assert [document.name for document in index.search("lum", 1)] == ["Tavor"]
    assert index.search("nowhere", 3) == index.search("", 3) == []
    assert words_of("Müller's 3-part") == {"müller", "s", "3", "part"}


def test_the_bundled_towns():
    towns = bundled_towns()
    assert len(towns) == len({town.name for town in towns}) == 60
    assert sum(len(town.attributes) for town in towns) == 300
    assert towns == bundled_towns()
    index = Index(towns)
    for town in towns:
        assert index.search(town.name, 1) == [town]


# ---------- tasks


@pytest.mark.parametrize("kind, num_calls", [("find", 2), ("fetch", 3), ("sum", 4), ("put", 5)])
def test_tasks_have_their_calls_and_right_answers(kind, num_calls):
    env = make_env(f"tools:task={kind}")
    facts = {town.name: town.attributes for town in bundled_towns()}
    rng = np.random.default_rng(0)
    for _ in range(30):
        instance = env.draw(rng)
        env.start(instance, [0])
        assert env.optimal_length() == num_calls
        words = env.question.rstrip("?.").split()
        last = env.plan(99, 1)[-1]
        store = env.store
        # The comment of each branch is an example of its question.
        if kind == "find":  # Which town has age at most 94 and trade iron?
            conditions = " ".join(words[3:]).replace("at most ", "<").split(" and ")
            fits = set(facts)
            for key, value in (condition.split() for condition in conditions):
                for name in set(fits):
                    own = facts[name][key]
                    good = own <= int(value[1:]) if value[0] == "<" else own == value
                    fits -= set() if good else {name}
            assert {call.removeprefix("answer ") for call in env.last_calls} == fits
        elif kind == "fetch":  # What is the river of the town stored as corner?
            assert last == f"answer {facts[store[words[-1]]][words[3]]}"
        elif kind == "sum":  # What is the age of Finil plus the age of Tamar?
            total = facts[words[5]][words[3]] + facts[words[-1]][words[3]]
            assert last == f"answer {total}"
        else:  # Put the age of the town stored as box plus the number stored as board into wall.
            total = facts[store[words[8]]][words[2]] + int(store[words[-3]])
            assert last == f"put {words[-1]} {total}"
        for call in env.plan(99, 1):
            step = env.step(call)
        assert step.success


def test_games_fit_the_tiny_model(chat):
    config = load_config([*FILES, "--think=False"])[0]
    episode = Episode(make_env("tools:task=put", max_actions=8), config)
    for index in range(20):
        system, user = episode.reset(index, split="eval")
        num_tokens = len(chat.opening(system, user))
        for call in episode.env.plan(99, 1):
            reply = f"<answer>{call}</answer>"
            outcome = episode.step(reply)
            num_tokens += len(chat.encode(reply)) + 1
            num_tokens += len(chat.following(outcome.user, closed=True))
            assert len(chat.encode(reply)) < config.max_response_tokens
        assert outcome.status == "success"
        assert num_tokens < config.max_context_tokens


def test_options_that_are_refused():
    message = "tools needs 1 to 20 results, and task=all or one of find, .*, put; got task=x, res"
    with pytest.raises(ValueError, match=message):
        make_env("tools:task=x")
    with pytest.raises(ValueError, match="got task=all, results=0"):
        make_env("tools:results=0")


# ---------- files of a user


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def shop(count):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        colour = str(rng.choice(["red", "blue", "green"]))
        price = float(rng.integers(10, 90)) / 2
        stock = int(rng.integers(2, 50))
        rows.append({"name": f"mug {number}", "colour": colour, "price": price, "stock": stock})
    return rows


def test_a_shop_passes_the_checks(tmp_path):
    path = write(tmp_path / "shop.jsonl", shop(150))
    subject = Subject(f"own_data:file={path},noun=mug")
    assert {f.title: f.problems for f in check_environment(subject) if f.problems} == {}
    env = subject.make()
    assert not env.repeats
    questions = set()
    for seed in range(60):
        env.reset([seed, 1])
        questions.add(env.question.split()[0])
    assert questions == {"Which", "What", "Put"}
    assert specs_that_run_programs(f"own_data:file={path}") == [f"own_data:file={path}"]
    assert specs_that_run_programs("tools") == []


def test_names_that_share_all_words(tmp_path):
    """All names consist of the same words, so a search for any name finds the first three items.
    Tasks must ask only about these three items."""
    words = "red big mug old pot tin".split()
    rows = []
    for number, name in zip(range(300), permutations(words), strict=False):
        rows.append({"name": " ".join(name), "price": number})
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)},task=fetch")
    assert env.repeats
    wanted = set()
    for seed in range(40):
        env.reset(seed)
        wanted.add(env.last_calls[0])
    assert wanted == {"answer 0", "answer 1", "answer 2"}


@pytest.mark.slow
def test_names_that_a_search_finds():
    rng = np.random.default_rng(0)
    documents = []
    for number in range(200):
        name = " ".join(rng.choice(list("abcdefg"), 3))
        documents.append(Document(name, f"{rng.choice(list('abc'))} {number}", {}))
    index = Index(documents)
    words = [words_of(f"{document.name} {document.text}") for document in documents]

    def plain_search(query, most):
        scores = []
        for number, own in enumerate(words):
            weights = []
            for word in sorted(words_of(query) & own):
                weights.append(math.log(1 + 200 / sum(word in other for other in words)))
            scores.append((-sum(weights), number))
        return [documents[number] for score, number in sorted(scores)[:most] if score]

    for most in (1, 2, 5):
        found = set()
        for number, document in enumerate(documents):
            shown = index.search(document.name, most)
            assert [id(d) for d in shown] == [id(d) for d in plain_search(document.name, most)]
            if any(other is document for other in shown):
                found.add(number)
        assert index.found_by_name(most) == found
        assert 7 < len(found) < 200


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = r"pipe cannot be read \(it is a named pipe or a device\)"
    with pytest.raises(ValueError, match=message):
        make_env(f"own_data:file={tmp_path / 'pipe'}")
    with pytest.raises(ValueError, match="is a named pipe or a device"):
        read_game(tmp_path / "pipe")
    with pytest.raises(ValueError, match=message.replace("pipe cannot", "null cannot")):
        make_env("own_data:file=/dev/null")


def test_a_question_about_a_price(tmp_path):
    rows = [
        {"name": "mug", "price": 9, "material": "clay"},
        {"name": "bowl", "price": 4.5, "material": "clay"},
    ]
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)},task=find")
    assert env.repeats
    seen = {}
    for seed in range(40):
        env.reset(seed)
        seen[env.question] = env.last_calls
    assert seen["Which item has material clay and price at most 4.5?"] == ("answer bowl",)
    both = ("answer mug", "answer bowl")
    assert seen["Which item has material clay and price at most 9?"] == both


def test_passages_and_questions(tmp_path):
    rows = [
        {"title": "The Nile", "text": "A river that ends in the Mediterranean."},
        {"title": "The Rhine", "text": "A river that ends in the North Sea."},
        {"question": "Where does the Rhine end?", "answer": ["the North Sea", "Rotterdam"]},
    ]
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)}")
    env.reset(0)
    assert env.observe() == "Where does the Rhine end?"
    assert env.plan(9, 1) == ["search The Rhine", "answer the North Sea"]
    found = env.step("search where does the rhine end").observation
    assert found.startswith("Where does the Rhine end?\nThe Rhine: A river that ends in the North")
    assert env.plan(9, 1) == ["answer the North Sea"]
    assert env.step("answer rotterdam").success


RIVERS = [
    {"title": "The Nile", "text": "A river that ends in the Mediterranean."},
    {"title": "Basel", "text": "A city at the Rhine, which ends in the North Sea."},
    {"title": "The Rhine", "text": "A river that ends in the North Sea."},
    {"title": "Geography", "text": f"{'Rivers and seas. ' * 20} The Elbe ends in Germany."},
]


@pytest.mark.parametrize(
    "question, answer, plan",
    [
        # The passages Basel and The Rhine both have the answer. The query is the title in the
        # question.
        ("Where does the Rhine end?", "the North Sea", ["search The Rhine"]),
        # The question names no title, so the query is all words of the question.
        ("Which city is at a river?", "Basel", ["search Which city is at a river"]),
        # Neither a search for the title in the question nor a search for all words of the question
        # shows the answer. So the player searches for the title, and then for the title of a
        # passage with the answer.
        (
            "Where is Mozart from, the Rhine?",
            "Mediterranean",
            ["search The Rhine", "search The Nile"],
        ),
        # A result shows only the first 300 characters of a passage. The answer comes later, so no
        # result can show the answer. The player searches only for all words of the question.
        ("Where does the Elbe end?", "Germany", ["search Where does the Elbe end"]),
        ("Is the Nile long?", "yes", ["search The Nile"]),
    ],
)
def test_the_expert_of_a_question_reads_before_it_answers(question, answer, plan, tmp_path):
    rows = [*RIVERS, {"question": question, "answer": answer}]
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)},results=1")
    env.reset(0)
    found = []
    while not env.terminated:
        (call,) = env.plan(5, 9)
        found.append(call)
        step = env.step(call)
    assert step.success
    assert found == [*plan, f"answer {answer}"]


def test_the_steps_of_a_file(tmp_path):
    steps = ["search Nile", "calc 6650 - 50", "search  The Rhine"]
    rows = [*RIVERS, {"question": "Which ends further south?", "answer": "Nile", "steps": steps}]
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)}")
    env.reset(0)
    calls = ["search Nile", "calc 6650 - 50", "search The Rhine", "answer Nile"]
    assert env.optimal_length() == 4 and env.plan(9, 1) == calls
    for call in calls:
        assert env.plan(9, 9) == [call] == env.demonstrate(9, np.random.default_rng(0))
        step = env.step(call)
    assert step.success


def test_answers_that_are_numbers(tmp_path):
    rows = [
        {"title": "The Nile", "text": "A river of 6650 km."},
        {"question": "How long is the Nile in km?", "answer": 6650},
    ]
    env = make_env(f"own_data:file={write(tmp_path / 'a.jsonl', rows)}")
    env.reset(0)
    assert env.plan(9, 1) == ["search The Nile", "answer 6650"]
    assert env.step("answer 6650.").success


GOOD = '{"name": "mug", "price": 9}'


@pytest.mark.parametrize(
    "lines, sentence",
    [
        ([GOOD, '{"name": 1 2}'], ":2: Expecting ',' delimiter at column 12"),
        ([GOOD, "", "[1]"], ":3: expected a JSON object"),
        ([GOOD, '{"price": 9}'], ":2: name must be a printable text of at most 80 characters, got"),
        ([GOOD, '{"name": "Mug"}'], ":2: the name 'Mug' is on an earlier line, too"),
        (['{"name": "?!"}'], ":1: name '?!' has no letter and no digit"),
        (['{"name": "a", "price": NaN}'], ":1: price is nan; expected an absolute value below"),
        (['{"name": "a", "price": true}'], ":1: price must be a printable text"),
        (['{"name": "a", "b": "\\u001b[2J"}'], ":1: b must be a printable text"),
        (
            ['{"name": "a || b"}'],
            ":1: name 'a || b' contains || or </answer>, which no action can contain",
        ),
        (['{"name": "a", "b": "c</answer>"}'], ":1: b 'c</answer>' contains || or </answer>"),
        (['{"name": "a", "b": null}'], ":1: b must be a printable text"),
        (['{"title": "a"}'], ":1: text must be a printable text"),
        (['{"question": "a", "answer": []}'], ":1: answer must be a printable text"),
        (
            [GOOD, '{"question": "a", "answer": "b", "steps": ["answer b"]}'],
            ":2: a step must be 'search WORDS' or 'calc EXPRESSION', got 'answer b'",
        ),
        (
            [GOOD, '{"question": "a", "answer": "b", "steps": "search b"}'],
            ":2: steps must be a list of calls, got 'search b'",
        ),
        (['{"question": "a", "answer": "b"}'], " has no items and no passages; "),
        (["[" * 100_000], ":1: "),
        ([GOOD, '{"title": "b", "text": "c"}'], " has no questions, so it must have items with"),
        ([], " has no items and no passages; "),
    ],
)
def test_files_that_are_refused(lines, sentence, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError) as error:
        make_env(f"own_data:file={path}")
    assert f"{path}{sentence}" in str(error.value)


def test_other_files_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read .No such file or directory."):
        make_env("own_data:file=nowhere.jsonl")
    with pytest.raises(ValueError, match="cannot be read .Is a directory."):
        make_env(f"own_data:file={tmp_path}")
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"name": "caf\xe9"}')
    with pytest.raises(ValueError, match="latin.jsonl:1: 'utf-8' codec can't decode byte 0xe9"):
        read_file(str(path))


def test_long_texts_are_cut():
    env = opened(PUT)
    env.index = Index([Document("Book", "word " * 200, {})])
    observation = env.step("search book").observation
    assert len(observation.splitlines()[-1]) == len("Book: ") + 300 + len(".")
