"""Tests of corpus.py, drills.py and the scripted players of tools/crowd.py."""

from configurator import Config

import itertools
from collections import Counter

import numpy as np
import pytest

from dialogue import Episode, parse_response
from envs import Env, make_env, reserved_instances
from studies.base_model.corpus import documents
from studies.base_model.drills import Drill, DrillRecord
from tools import crowd
from tools.crowd import Player, crowd_reply
from tools.sft_config import SftConfig
from worlds.bandit import Bandit
from worlds.grids import Sokoban


def read(chat, path, count, progress=0.5):
    seed, step, index = path
    config = SftConfig(seed=seed, max_context_tokens=1024, micro_batch_tokens=10**6)
    drawn = itertools.islice(documents(config, chat, step, index, progress), count)
    return [document.trajectory for document in drawn]


# ---------- drills


def answers(env, instance, questions):
    drill = Drill(env, questions, np.random.default_rng(0))
    drill.open(env.start(instance, [0]))
    found = []
    for _ in questions:
        found.append(drill.truth)
        if drill.step(drill.truth).status:
            break
    return found


def test_drills_on_a_lake_drawn_by_hand():
    # P_O_
    # __O_
    # _G__
    # ___O
    instance = ("frozenlake", 4, (2, 6, 15), 0, 9)
    questions = ["Where", "Row 1", "Column 2", "Row 4", "Facts", "Left", "Down", "Around", "Plan"]
    assert answers(make_env("frozenlake:success_rate=0.3"), instance, questions) == [
        "Player (1,1). Goal (3,2). Holes (1,3) (2,3) (4,4).",
        "you ice hole ice",
        "ice ice goal ice",
        "ice ice ice hole",
        "Next edge ice ice edge. Goal 2 down 1 right. Way down down right.",
        "P_O_\n__O_\n_G__\n___O",  # "Left" against the border changes nothing
        "__O_\nP_O_\n_G__\n___O",  # "Down" does not slip, although success_rate is 0.3
        "Away left edge, up ice. Goal 1 down ice ice, 1 right ice hole, corner goal.",
        "Right || Down",  # one of two shortest paths
    ]


def test_a_drill_ends_with_the_game():
    instance = ("frozenlake", 4, (1,), 0, 4)
    lost = answers(make_env("frozenlake"), instance, ["Right", "Where"])
    assert lost == ["_X__\nG___\n____\n____"]
    won = answers(make_env("frozenlake"), instance, ["Down", "Where"])
    assert won == ["_O__\n√___\n____\n____"]


def test_drills_in_a_room_drawn_by_hand():
    # #####
    # #P_O#
    # #_X_#
    # #__##
    # #####
    floor = (6, 7, 8, 11, 12, 13, 16, 17)
    instance = ("sokoban", "default", 5, floor, (8,), 6, (12,))
    questions = ["Where", "Row 2", "Column 4", "Facts", "Down", "Right", "Up"]
    assert answers(make_env("sokoban:size=5"), instance, questions) == [
        "Player (2,2). Boxes (3,3). Targets (2,4).",
        "wall you floor target wall",
        "wall target floor wall wall",
        "Next wall floor wall floor. Box 1 down 1 right. Target 1 up 1 right.",
        "#####\n#__O#\n#PX_#\n#__##\n#####",
        "#####\n#__O#\n#_PX#\n#__##\n#####",
        "#####\n#_PO#\n#__X#\n#__##\n#####",
    ]


def test_a_wrong_answer_earns_nothing_and_the_next_question_comes():
    drill = Drill(make_env("frozenlake"), ["Row 1", "Row 2"], np.random.default_rng(0))
    system, user = drill.reset((3,), split="heldout")
    assert system.endswith("\nAnswer questions about the board.") and user.endswith("\nRow 1?")
    outcome = drill.step("you")
    assert outcome.user == user.replace("Row 1", "Row 2")
    assert (outcome.reward, outcome.status) == (0.0, None)
    assert drill.step(drill.truth)[:3] == ("", 1.0, "success")


# ---------- the corpus


@pytest.mark.slow
def test_the_same_path_gives_the_same_documents(chat):
    first, again, other = (read(chat, path, 3) for path in ((0, 5, 0), (0, 5, 0), (0, 6, 0)))
    assert [d.ids for d in first] == [d.ids for d in again] != [d.ids for d in other]
    assert len({d.system for d in first}) == 1


@pytest.mark.slow
def test_documents_are_right_and_of_every_kind(chat):
    systems = []
    num_actions = set()
    for i in range(60):
        for document in read(chat, (0, i, 0), 3):
            systems.append(document.system)
            assert document.status in ("success", "failure", "out_of_turns", "out_of_tokens")
            assert len(document.ids) <= 1024
            for turn in document.turns:
                record = turn.record
                assert chat.decode(turn.response_ids) == turn.text
                if isinstance(record, DrillRecord):
                    assert turn.reward == 1
                else:
                    assert record.format_ok
                    assert record.statements_true == record.statements_checked
                    num_actions.add(record.num_actions)
    parts = ["Answer questions", "<think>", "Reply <answer>", "hole O", "two arms", "slips"]
    for part in [*parts, "Below", "Places"]:
        assert any(part in system for system in systems), part
    assert num_actions == {1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("planners", [0.0, 0.5, 1.0])
def test_every_game_has_a_player_of_the_crowd(chat, planners):
    """The argument `planners` is the planner's share of the games. The three other players play the
    rest, in proportion to crowd.SHARES."""
    sizes = dict(max_context_tokens=1024, micro_batch_tokens=1024)
    config = SftConfig(seed=7, sft_planners=planners, **sizes)
    counts = Counter()
    for step in range(500):
        document = next(documents(config, chat, step, 0, 0.5))
        counts[document.kind] += 1
    games = {kind: n for kind, n in counts.items() if kind != "drill" and "arm" not in kind}
    total = sum(games.values())
    shares = {"planner": planners}
    shares |= {name: share * (1 - planners) for name, share in crowd.SHARES.items()}
    for name, share in shares.items():
        error = 4 * (share * (1 - share) / total) ** 0.5  # four standard deviations
        assert abs(games.get(name, 0) / total - share) <= error, name
    assert 200 < total < 300 and set(games) <= set(shares)


def test_a_game_with_errors_has_random_turns():
    """With errors=1.0 all moves are random, so about half of them are Left or Up, away from the
    goal."""
    env = make_env("frozenlake:success_rate=1")
    episode = Episode(env, Config(actions_per_turn=1))
    episode.open(env.start(("frozenlake", 4, (), 0, 15), [0]))
    rng = np.random.default_rng(0)
    clumsy = Player("greedy", errors=1.0)
    replies = [crowd_reply(episode, clumsy, rng) for _ in range(200)]
    away = sum("Left" in reply or "Up" in reply for reply in replies)
    assert 70 < away < 130
    replies = {crowd_reply(episode, Player("greedy"), rng) for _ in range(20)}
    thought = "Next edge ice ice edge. Goal 3 down 3 right. Way down down down right right."
    assert replies == {f"<think>{thought}</think><answer>Down</answer>"}


@pytest.mark.slow
def test_reserved_boards_and_heldout_names_are_never_shown(chat, monkeypatch):
    """Reserved boards are the evaluation and held-out boards. With frozen_prob=0.9 a drawn board is
    often reserved, so draw_unreserved must draw another board."""
    started = []
    start = Env.start

    def spy(env, instance, noise):
        started.append((instance, env))
        return start(env, instance, noise)

    monkeypatch.setattr(Env, "start", spy)
    texts = []
    for i in range(150):
        for document in read(chat, (1, i, 0), 12):
            texts.append(document.system + document.turns[0].observation)
    reserved = set()
    for spec in ("frozenlake:frozen_prob=0.8", "frozenlake:frozen_prob=0.9", "sokoban"):
        for instances in reserved_instances(spec).values():
            reserved |= set(instances)
    assert len(started) > 1500 and not {instance for instance, _ in started} & reserved
    roles = Sokoban.SYMBOLS["newvocab"]
    for _, env in started:
        if isinstance(env, Sokoban):
            assert len(set(env.alphabet)) == 7
            assert all(own != role for own, role in zip(env.alphabet, roles, strict=True))
            assert env.size in (6, 8)
    for name in Bandit.PAIRS["jobs_test"].replace("/", " ").split():
        assert not any(name in text for text in texts), name


def test_answers_of_games_are_parsed_as_written(chat):
    for i in range(40):
        for document in read(chat, (0, i, 0), 1):
            for turn in document.turns:
                if not isinstance(turn.record, DrillRecord):
                    parsed = parse_response(turn.text, think="<think>" in document.system)
                    assert parsed.actions == turn.record.actions


@pytest.mark.slow
def test_both_arms_of_a_bandit_are_shown(chat):
    packs = [read(chat, (4, i, 0), 6) for i in range(60)]
    bandits = [pack for pack in packs if "two arms" in pack[0].system]
    assert bandits
    for first, second in (pack[i : i + 2] for pack in bandits for i in (0, 2, 4)):
        assert first.turns[0].observation == second.turns[0].observation
        arms = [document.turns[0].record.actions[0] for document in (first, second)]
        assert first.turns[0].observation.endswith(f"Arms: {arms[0]}, {arms[1]}")


@pytest.mark.slow
def test_half_of_the_games_begin_with_few_actions_left(chat):
    heads = [d.turns[0].observation for i in range(120) for d in read(chat, (5, i, 0), 4)]
    games = [head for head in heads if head.startswith("Turn 1") and "Arms" not in head]
    left = [int(head.split(", ")[1].split()[0]) for head in games]
    assert set(left) == set(range(1, 11))
    # In half of the games, the number of actions already used is drawn from 0 to 9. Only a 0 leaves
    # all 10 actions. So 0.5 * 9 / 10 = 0.45 of all games start with fewer than 10 actions left.
    assert 0.4 < sum(n < 10 for n in left) / len(left) < 0.5


@pytest.mark.slow
def test_easy_documents_come_first(chat):
    """Training begins with four easy stages. They show boards of size 4, then 4 and 6, then 6 and
    8, then 8. Boards of size 4 are lakes. Larger boards are rooms."""
    sizes_at = {0.0: {4}, 0.049: {4}, 0.051: {4, 6}, 0.099: {4, 6}, 0.101: {6, 8}, 0.151: {8}}
    for progress, sizes in sizes_at.items():
        played = [d for i in range(20) for d in read(chat, (3, i, 0), 2, progress)]
        for document in played:
            assert len(document.turns) == 1
            assert document.system.endswith("\nAnswer questions about the board.")
        found = {document.turns[0].observation.index("\n") for document in played}
        assert found == sizes, progress
