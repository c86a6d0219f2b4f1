"""Tests of the speedrun: its rules, its clock, a short run that is killed, results and tables.

python -m pytest -q tests/test_speedrun.py
"""

from configurator import UserError, load_config

import itertools
import json
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL_RUN
from runs import read_lines
from safetensors.torch import load_file

import support.available
from support.process import EXIT_CTRL_C, EXIT_INTERRUPTED
from tools import speedrun, speedrun_rules, speedrun_seed
from tools.speedrun_rules import NEVER, TRACKS, Finish, Track, crossing, finish_of, read_entry

ROOT = Path(speedrun.__file__).resolve().parent.parent
LAKE = "train.py config/frozenlake_ppo.py config/tiny.py"
SHORT_SFT = "tools.sft small.py --sft_steps=2 --save_every=1 --sft_lr=0.001"
SHORT_RL = "train.py small.py --save_every=10"
MACHINE = "4 cores"


def write_entry(folder, name="mine", tracks=("frozenlake",), **changes):
    """An entry file. `changes` replace steps, checks, or a text of the file."""
    steps = changes.pop("steps", [LAKE])
    checks = changes.pop("checks", [10, 20])
    values = {"title": "A title", "tuning": "none"} | changes
    for track in tracks:
        values[track] = {"steps": steps, "checks": checks}
    path = Path(folder, f"{name}.py")
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in values.items()))
    return path


# ---------- crossing the threshold


@pytest.mark.parametrize(
    "wins, expected",
    [
        ([70, 81, 79, 80, 85], 3),  # a single check above the threshold does not count
        ([80, 80], 0),
        ([79, 80], None),  # no check follows the last one
        ([81, 79, 81, 79], None),
        ([81, None], None),
        ([70, 80, 80, None], 1),
        ([], None),
    ],
)
def test_two_checks_in_a_row_must_reach_the_threshold(wins, expected):
    assert crossing(wins, games=100, threshold=0.8) == expected


def test_the_threshold_is_compared_with_all_games():
    games = 256 * 16
    assert crossing([3276, 3277], games, 0.8) is None  # 79.98 %
    assert crossing([3277, 3277], games, 0.8) == 0  # 80.005 %


def seed_row(wins, failure="", commit="abc", factor=1):
    """A seed with checks at iterations 10, 20, ..., at 10, 20, ... CPU-s times `factor`."""
    checks = []
    for number, won in enumerate(wins, start=1):
        checks.append(
            {
                "iteration": 10 * number,
                "cpu_s": 10.0 * number * factor,
                "sampled": 1000 * number * factor,
                "imitated": 7,
                "wins": won,
                "games": 100,
            }
        )
    return {"commits": [commit], "machine": MACHINE, "failure": failure, "checks": checks}


def test_the_time_is_that_of_the_first_check_of_the_two():
    assert finish_of(seed_row([70, 81, 79, 80, 85]), 0.8) == Finish(40.0, 4000, 7)
    assert finish_of(seed_row([70, 79, 81]), 0.8) == NEVER
    assert finish_of(seed_row([70, 79, None]), 0.8) is None
    assert finish_of(seed_row([], failure="it failed"), 0.8) == NEVER
    assert math.isinf(NEVER.cpu_s) and math.isinf(NEVER.sampled)


# ---------- entries


def test_the_papers_entry_keeps_the_rules():
    for track in TRACKS:
        entry = read_entry(ROOT / "docs/speedrun/paper.py", track)
        assert [stage.script for stage in entry.stages()] == ["train.py"]
        assert entry.name == f"paper-{track}"


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"checks": [10]}, "checks must be 2 to 40 rising iterations, got 10"),
        ({"checks": [20, 10]}, "checks must be 2 to 40 rising iterations, got 20, 10"),
        ({"checks": [10, 10]}, "checks must be 2 to 40 rising iterations, got 10, 10"),
        ({"checks": list(range(41))}, "checks must be 2 to 40 rising iterations"),
        ({"checks": [1.5, 2]}, "checks[0] must be a whole number, 0 or more, got '1.5'"),
        ({"checks": "10"}, "checks must be a list"),
        ({"checks": [10, 201]}, "the last check, 201, is after the last iteration, 200"),
        ({"tuning": " "}, "title and tuning must not be empty"),
        ({"tunning": "none"}, "assigns tunning; an entry assigns title, tuning, frozenlake, soko"),
        ({"steps": []}, "any number of tools.sft, then one train.py; got none"),
        ({"steps": [LAKE, LAKE]}, "then one train.py; got train.py, train.py"),
        ({"steps": ["sh -c date"]}, "must begin with tools.sft or train.py, got 'sh -c date'"),
        ({"steps": [""]}, "must begin with tools.sft or train.py, got ''"),
        ({"steps": ["train.py config/frozenlake_ppo.py"]}, "add config/tiny.py"),
        ({"steps": [f"{LAKE} --model=out/best/policy"]}, "has model='out/best/policy'"),
        ({"steps": [f"{LAKE} --seed=7"]}, "sets seed, which tools.speedrun sets"),
        ({"steps": [f"{LAKE} --out_dir=x"]}, "sets out_dir, which tools.speedrun sets"),
        ({"steps": [f"{LAKE} --device=cuda"]}, "the clock counts CPU time"),
        ({"steps": [f"{LAKE} --sft_file=x.jsonl"]}, "must be made on the clock"),
        ({"steps": [f"{LAKE} --env=mine.py:Mine"]}, "runs programs or reads files"),
        ({"steps": [f"{LAKE} --learning_rat=1"]}, "did you mean learning_rate"),
        ({"steps": [LAKE.replace("train.py", "tools.sft"), LAKE]}, "give --sft_steps=N"),
        (
            {"steps": [f"tools.sft {LAKE[9:]} --sft_steps=1 --env=bandit+sokoban", LAKE]},
            "supervised learning takes one environment",
        ),
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused(tmp_path, changes, problem):
    with pytest.raises(UserError) as error:
        read_entry(write_entry(tmp_path, **changes), "frozenlake")
    assert problem in str(error.value)


def test_a_file_that_is_no_entry_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_entry(tmp_path / "no.py", "frozenlake")
    with pytest.raises(UserError, match="has no steps for track 'sokoban'"):
        read_entry(write_entry(tmp_path), "sokoban")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(UserError, match="fails with ZeroDivisionError"):
        read_entry(broken, "frozenlake")


def test_each_step_starts_from_the_model_before_it(tmp_path):
    steps = [f"tools.sft {LAKE[9:]} --sft_steps=3", LAKE]
    entry = read_entry(write_entry(tmp_path, steps=steps), "frozenlake")
    first, second = entry.stages_of_seed(2, Path("out/x"))
    assert (first.config.model, first.config.out_dir) == ("base", "out/x/step-0")
    assert (second.config.model, second.config.out_dir) == ("out/x/step-0/model", "out/x/step-1")
    assert first.config.seed == second.config.seed == 2


def test_policies_are_scored_as_the_rest_of_the_repository_scores_them():
    """Five turns of five actions, ten in a game, temperature 0.5, the 256 fixed prompts."""
    for track, name in (("frozenlake", "frozenlake_ppo"), ("sokoban", "sokoban_ppo")):
        trained, _, _ = load_config([f"config/{name}.py", "config/tiny.py"])
        scoring = TRACKS[track].scoring("eval")
        keys = (
            "env observation think max_turns actions_per_turn actions_per_traj context_turns engine"
            " max_response_tokens max_context_tokens eval_split eval_size eval_temperature"
        )
        for key in keys.split():
            assert getattr(scoring, key) == getattr(trained, key), key
        assert TRACKS[track].scoring("heldout").eval_split == "heldout"
    assert (scoring.max_turns, scoring.actions_per_turn, scoring.actions_per_traj) == (5, 5, 10)
    assert (scoring.eval_size, scoring.eval_temperature) == (256, 0.5)
    assert (TRACKS["frozenlake"].threshold, TRACKS["sokoban"].threshold) == (0.8, 0.7)


def test_the_hash_of_the_base_depends_on_every_file(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun_rules, "BASE", tmp_path)
    hashes = set()
    for name, text in (("a", "1"), ("a", "2"), ("b", "2"), ("b", "")):
        (tmp_path / name).write_text(text)
        hashes.add(speedrun_rules.base_hash())
    assert len(hashes) == 4 and {len(text) for text in hashes} == {16}


# ---------- the clock


def test_the_clock_continues_from_its_last_complete_row(tmp_path, monkeypatch):
    path = tmp_path / "clock.jsonl"
    row = {"stage": 0, "iteration": 4, "cpu_s": 10.5, "sampled": 70, "imitated": 3}
    path.write_text(json.dumps(row) + "\n" + '{"stage": 0, "iter')
    monkeypatch.setattr(speedrun_seed, "cpu_seconds", lambda: 2.25)
    clock = speedrun_seed.Clock(path)
    clock.sampled += 5
    clock.write(stage=1, iteration=1)
    expected = {"stage": 1, "iteration": 1, "cpu_s": 12.75, "sampled": 75, "imitated": 3}
    assert read_lines(path) == [row, expected]


def write_stat(folder, pid, name, parent, ticks):
    """/proc/PID/stat: fields 14 to 17 are user, system and the same of ended children."""
    (folder / str(pid)).mkdir()
    fields = ["S", parent, *[9] * 9, *ticks, 20, 0]
    text = f"{pid} ({name}) {' '.join(map(str, fields))}\n"
    (folder / str(pid) / "stat").write_text(text)


def test_living_child_processes_are_on_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun_seed, "PROC", tmp_path)
    write_stat(tmp_path, os.getpid(), "python", 1, [900, 900, 900, 900])
    write_stat(tmp_path, 5, "a child) 1 2", os.getpid(), [1, 20, 300, 0])
    write_stat(tmp_path, 6, "its child", 5, [0, 0, 0, 4000])
    write_stat(tmp_path, 7, "a stranger", 1, [50000, 0, 0, 0])
    (tmp_path / "8").mkdir()  # a process that has just ended
    assert speedrun_seed.children_seconds() == 4321 / os.sysconf("SC_CLK_TCK")


def test_ended_child_processes_are_on_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun_seed, "PROC", tmp_path)
    times = SimpleNamespace(children_user=3.0, children_system=0.5)
    monkeypatch.setattr(speedrun_seed, "os", SimpleNamespace(**vars(os) | {"times": lambda: times}))
    monkeypatch.setattr(speedrun_seed.time, "process_time", lambda: 10.25)
    assert speedrun_seed.cpu_seconds() == 13.75


# ---------- a short run


class Killed(Exception):
    """Stands for the signal that ends a process."""


@pytest.fixture
def desk(tmp_path, monkeypatch, trained_folder):
    """An empty folder with an entry of 2 SFT steps and 3 iterations from a small base model.

    The clock shows 1, 2, 3, ... CPU-s. Call `restart` to begin a new process at 0."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(support.available, "BASE", trained_folder)
    monkeypatch.setattr(speedrun_rules, "BASE", trained_folder)
    settings = SMALL_RUN | dict(model="base", num_groups=4, num_iterations=50)
    Path("small.py").write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    entries = Path("docs/speedrun")
    entries.mkdir(parents=True)
    write_entry(entries, steps=[SHORT_SFT, SHORT_RL], checks=[0, 1, 3])
    marks = [f"<!-- table: {name} -->\nold\n<!-- end of table -->\n" for name in TRACKS]
    Path("docs/speedrun.md").write_text("top\n" + "middle\n".join(marks) + "end\n")

    def restart():
        seconds = itertools.count(1.0)
        monkeypatch.setattr(speedrun_seed, "cpu_seconds", lambda: next(seconds))

    restart()
    return SimpleNamespace(path=entries / "mine.py", restart=restart)


def clock_of(folder):
    rows = read_lines(folder / "clock.jsonl")
    return [(row["stage"], row["iteration"], row["cpu_s"]) for row in rows]


def test_a_killed_seed_continues_and_its_clock_is_kept(desk, monkeypatch):
    entry = read_entry(desk.path, "frozenlake")
    whole, killed = Path("out/whole"), Path("out/killed")
    whole.mkdir(parents=True)
    killed.mkdir()
    speedrun_seed.train_seed(entry, 0, whole)
    # 2 SFT steps, the policy before RL, three iterations
    expected = [(0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4), (1, 2, 5), (1, 3, 6)]
    assert clock_of(whole) == expected
    policies = sorted(path.name for path in whole.glob("policy-*"))
    assert policies == ["policy-000000", "policy-000001", "policy-000003"]

    iterate = speedrun_seed.iterate

    def iterate_twice(learner, *others):
        if learner.step == 2:
            raise Killed
        return iterate(learner, *others)

    desk.restart()
    monkeypatch.setattr(speedrun_seed, "iterate", iterate_twice)
    with pytest.raises(Killed):
        speedrun_seed.train_seed(entry, 0, killed)
    assert clock_of(killed) == expected[:-1]

    # The checkpoint of iteration 1 is the newest, so iteration 2 is repeated. It counts twice.
    desk.restart()
    monkeypatch.setattr(speedrun_seed, "iterate", iterate)
    speedrun_seed.train_seed(entry, 0, killed)
    assert clock_of(killed) == [*expected[:-1], (1, 2, 6), (1, 3, 7)]
    rows, again = read_lines(whole / "clock.jsonl"), read_lines(killed / "clock.jsonl")
    second_iteration = rows[4]["sampled"] - rows[3]["sampled"]
    assert second_iteration > 0
    assert again[-1]["sampled"] == rows[-1]["sampled"] + second_iteration
    assert again[-1]["imitated"] == rows[-1]["imitated"] > 0

    one = load_file(whole / "policy-000003/model.safetensors")
    other = load_file(killed / "policy-000003/model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    start = load_file(whole / "policy-000000/model.safetensors")
    sft = load_file(whole / "step-0/model/model.safetensors")
    assert all(torch.equal(start[name], sft[name]) for name in sft)
    assert any(not torch.equal(start[name], one[name]) for name in one)

    speedrun_seed.train_seed(entry, 0, killed)  # a trained seed stays as it is
    assert clock_of(killed)[-1] == (1, 3, 7)


def test_a_signal_saves_the_iteration_and_ends_the_process(desk, monkeypatch):
    path = write_entry(desk.path.parent, steps=[SHORT_RL], checks=[2, 4])
    entry = read_entry(path, "frozenlake")
    monkeypatch.setattr(speedrun_seed.Interruption, "requested", lambda _: True)
    Path("out/x").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        speedrun_seed.train_seed(entry, 0, Path("out/x"))
    assert ended.value.code == EXIT_INTERRUPTED
    assert [path.name for path in Path("out/x/step-0").iterdir()] == ["checkpoint-000001"]
    assert {EXIT_INTERRUPTED, EXIT_CTRL_C} == set(speedrun.INTERRUPTED)


def test_scoring_stops_after_the_pair_and_continues_where_it_was_killed(desk, monkeypatch):
    path = write_entry(desk.path.parent, steps=[SHORT_RL], checks=[10, 20, 30, 40, 50])
    entry = read_entry(path, "frozenlake")
    folder = Path("out/x")
    folder.mkdir(parents=True)
    # of 4,096 games; 80 % are 3,276.8
    won = {10: 3000, 20: 3300, 30: 3276, 40: 3277, 50: 3280}
    scored = []

    def count_wins(config, model_folder):
        iteration = int(model_folder.name.removeprefix("policy-"))
        if iteration == 20 and iteration not in scored:
            scored.append(iteration)
            raise Killed
        scored.append(iteration)
        return won[iteration]

    monkeypatch.setattr(speedrun_seed, "count_wins", count_wins)
    with pytest.raises(Killed):
        speedrun_seed.score_seed(entry, folder, "eval")
    speedrun_seed.score_seed(entry, folder, "eval")
    assert scored == [10, 20, 20, 30, 40, 50]
    won[10] = 3277  # read from the file now, not counted again
    speedrun_seed.score_seed(entry, folder, "eval")
    assert len(scored) == 6
    wins = json.loads((folder / "scores-eval.json").read_text())
    assert wins == {"10": 3000, "20": 3300, "30": 3276, "40": 3277, "50": 3280}

    won[10] = won[20] = 4000
    speedrun_seed.score_seed(entry, folder, "heldout")
    assert scored[6:] == [10, 20]  # the later policies are not needed


def shorten_scoring(monkeypatch, threshold):
    """Score 3 prompts with 2 games each, in the small model's own settings."""
    changes = dict(SMALL_RUN, eval_size=3)
    monkeypatch.setattr(speedrun_rules, "SCORING", speedrun_rules.Config(**changes))
    monkeypatch.setattr(speedrun, "SCORING", speedrun_rules.SCORING)
    for module in (speedrun, speedrun_seed, speedrun_rules):
        monkeypatch.setattr(module, "GAMES_PER_PROMPT", 2)
    track = Track("a short track", SMALL_RUN["env"], threshold)
    monkeypatch.setitem(TRACKS, "frozenlake", track)


def launch_here(desk, launched):
    """Stands for `launch`: runs the part in this process."""

    def launch(words, folder):
        launched.append((words[0], *words[3:]))
        desk.restart()
        speedrun_seed.main(words)
        return ""

    return launch


def test_one_command_runs_scores_and_lists_an_entry(desk, monkeypatch, capsys):
    shorten_scoring(monkeypatch, threshold=0.0)  # every policy reaches it
    launched = []
    monkeypatch.setattr(speedrun, "launch", launch_here(desk, launched))
    monkeypatch.setattr(speedrun, "commit_of", lambda _: "abc")
    arguments = [str(desk.path), "--track=frozenlake"]
    speedrun.main([*arguments, "--seeds=0"])
    assert launched == [("train", "0"), ("score", "0", "eval")]
    out = capsys.readouterr().out
    assert "mine-frozenlake, seed 0: crosses after 3.0 CPU-s and 0 sampled tokens" in out
    assert "mine-frozenlake.json is not listed: seeds 1, 2, 3, 4 are missing" in out
    result = json.loads(Path("docs/results/speedrun/mine-frozenlake.json").read_text())
    first, second, third = result["seeds"]["0"]["checks"]
    assert (first["iteration"], second["iteration"], third["iteration"]) == (0, 1, 3)
    assert (first["cpu_s"], second["cpu_s"], third["cpu_s"]) == (3.0, 4.0, 6.0)
    assert first["games"] == 6 and 0 <= first["wins"] <= 6 and third["wins"] is None
    assert result["settings"][1]["num_groups"] == 4 and result["seeds"]["0"]["commits"] == ["abc"]

    speedrun.main([*arguments, "--seeds=0"])  # a finished seed is not repeated
    assert len(launched) == 2
    speedrun.main([*arguments, "--seeds=0", "--split=heldout"])  # trained already, scored anew
    assert launched[2:] == [("train", "0"), ("score", "0", "heldout")]
    assert Path("out/speedrun/mine-frozenlake_s0/scores-heldout.json").is_file()
    assert json.loads(Path("docs/results/speedrun/mine-frozenlake.json").read_text()) == result

    write_entry(desk.path.parent, steps=[SHORT_RL], checks=[0, 2])
    with pytest.raises(UserError, match="mine-frozenlake.json differs in its checks"):
        speedrun.main(arguments)


def test_a_seed_continues_only_with_its_own_settings_and_base(desk, monkeypatch):
    entry = read_entry(desk.path, "frozenlake")
    folder = Path("out/x")
    monkeypatch.setattr(speedrun, "commit_of", lambda _: "abc")
    assert speedrun.begin(entry, folder) == ["abc"]
    monkeypatch.setattr(speedrun, "commit_of", lambda _: "def-dirty")
    assert speedrun.begin(entry, folder) == ["abc", "def-dirty"]
    Path("small.py").write_text(Path("small.py").read_text() + "seed = 0\nclip_low = 0.1\n")
    with pytest.raises(UserError, match="sets seed"):
        speedrun.begin(entry, folder)
    Path("small.py").write_text(Path("small.py").read_text().replace("seed = 0\n", ""))
    with pytest.raises(
        UserError, match="out/x holds a run that differs in its settings; remove it"
    ):
        speedrun.begin(entry, folder)
    base = Path("other_base")
    base.mkdir()
    monkeypatch.setattr(speedrun_rules, "BASE", base)
    with pytest.raises(UserError, match="out/x holds a run that differs in its base; remove it"):
        speedrun.begin(entry, folder)


def test_a_result_that_lacks_a_new_setting_has_its_default(desk):
    now = read_entry(desk.path, "frozenlake").description()
    older = json.loads(json.dumps(now))
    del older["settings"][1]["clip_high"]
    assert speedrun_rules.differing_key(older, now) == ""
    older["settings"][1]["clip_high"] = 0.5
    assert speedrun_rules.differing_key(older, now) == "settings"
    assert speedrun_rules.differing_key(now | {"base": "0123"}, now) == "base"
    assert speedrun_rules.differing_key(now | {"checks": [1, 2]}, now) == "checks"


def test_a_failed_seed_never_crosses_and_an_interrupted_one_is_not_counted(desk, monkeypatch):
    entry = read_entry(desk.path, "frozenlake")
    codes = [1, EXIT_INTERRUPTED, -9]

    def popen(command, stdout, stderr):
        stdout.write("first line\nerror: the loss is nan\n")
        code = codes.pop(0)
        return SimpleNamespace(wait=lambda: code)

    fake = SimpleNamespace(Popen=popen, run=subprocess.run)
    monkeypatch.setattr(speedrun, "subprocess", fake)
    row = speedrun.run_seed(entry, 0, "eval")
    assert row["failure"] == "train failed with exit code 1: error: the loss is nan"
    assert row["checks"] == [] and finish_of(row, 0.8) == NEVER
    for _ in range(2):
        with pytest.raises(UserError, match="mine-frozenlake_s0 was interrupted; start again"):
            speedrun.run_seed(entry, 0, "eval")


# ---------- results and tables


def result_of(rows, **changes):
    seeds = {str(seed): row for seed, row in enumerate(rows)}
    result = {
        "entry": "docs/speedrun/mine.py",
        "title": "A | title",
        "track": "frozenlake",
        "base": speedrun_rules.base_hash(),
        "seeds": seeds,
    }
    return result | changes


CROSSING = [70, 80, 80]  # at 20 CPU-s times the factor, with 2,000 tokens times the factor
FIVE = [seed_row(CROSSING, factor=factor) for factor in (5, 1, 40, 2, 3)]


def test_the_table_shows_the_median_of_five_seeds():
    never = seed_row([70, 79, 81])
    slow = result_of([FIVE[0], never, FIVE[2], never, never], title="slow")
    table = speedrun.table([slow, result_of(FIVE)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    assert cells[2] == [
        "60",
        "100, 20, 800, 40, 60",
        "6,000",
        "7",
        "[A \\| title](speedrun/mine.py) ([result](results/speedrun/mine-frozenlake.json))",
        MACHINE,
    ]
    assert cells[3][:3] == ["never", "100, never, 800, never, never", "never"]
    assert speedrun.table([]) == "No entry for this base."


@pytest.mark.parametrize(
    "result, reason",
    [
        (result_of(FIVE), ""),
        (result_of(FIVE, entry="out/mine.py"), "its entry is not in docs/speedrun/"),
        (result_of(FIVE, base="0123"), "it started from base 0123, and base/ is "),
        (result_of(FIVE[:3]), "seeds 3, 4 are missing"),
        (
            result_of([*FIVE[:4], seed_row(CROSSING, commit="abc-dirty")]),
            "seed 4 ran with files that its commit does not have",
        ),
        (
            result_of([*FIVE[:4], seed_row([79, 80, None])]),
            "seed 4 has checks that are not scored",
        ),
        (result_of([*FIVE[:4], seed_row([], failure="it failed")]), ""),
    ],
)
def test_results_that_do_not_compare_are_not_listed(result, reason):
    assert speedrun.why_not_listed(result).startswith(reason)
    assert bool(speedrun.why_not_listed(result)) == bool(reason)


def test_the_page_shows_the_results_of_this_base(monkeypatch):
    written = {}
    monkeypatch.setattr(speedrun, "write_atomically", written.__setitem__)
    speedrun.write_page()
    advice = "python -m tools.speedrun --draw=True writes the tables"
    assert written[speedrun.PAGE] == speedrun.PAGE.read_text(), advice


def test_an_entry_that_is_not_committed_is_marked(monkeypatch):
    monkeypatch.setattr(speedrun, "git_commit", lambda: "abc")
    assert speedrun.commit_of(SimpleNamespace(path="docs/speedrun/none.py")) == "abc-dirty"
    assert speedrun.commit_of(SimpleNamespace(path="configurator.py")) == "abc"
    monkeypatch.setattr(speedrun, "git_commit", lambda: None)
    assert speedrun.commit_of(SimpleNamespace(path="configurator.py")) == "unknown-dirty"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ("", "give one entry, such as docs/speedrun/paper.py, or --draw=True; got nothing"),
        ("a.py b.py --track=sokoban", "give one entry"),
        ("a.py --draw=True", "give one entry"),
        ("a.py", "track must be one of frozenlake, sokoban, got ''"),
        ("a.py --track=bandit", "track must be one of frozenlake, sokoban, got 'bandit'"),
        ("a.py --track=sokoban --seeds=5", "seeds must be different numbers among 0, 1, 2, 3, 4"),
        ("a.py --track=sokoban --seeds=1,1", "seeds must be different numbers"),
        ("a.py --track=sokoban --seeds=", "seeds must be different numbers"),
        ("a.py --track=sokoban --split=train", "split must be eval or heldout, got 'train'"),
        ("a.py --track=sokoban --learning_rate=1", "an entry holds its settings"),
    ],
)
def test_wrong_arguments_are_refused(arguments, problem):
    with pytest.raises(UserError) as error:
        speedrun.main(arguments.split())
    assert problem in str(error.value)


def test_a_track_without_entries_says_so():
    assert speedrun.table([]) == "No entry for this base."
