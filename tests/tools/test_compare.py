"""Tests of tools/compare.py with made-up runs."""

from configurator import Config, UserError

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.run_folder import load_saved, save_config
from support.statistics import difference_interval, seed_interval
from tools import compare
from tools.plotting import style
from tools.plotting.arms import make_arms, sampled_tokens

LAKE = "frozenlake:size=4"
NUM_PROMPTS = 8
PLAYERS = {"greedy, closed loop": 4, "optimal, closed loop": 8}  # player -> prompts solved


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch):
    """Draw in low resolution, and embed Type 3 instead of TrueType fonts in PDFs.

    This is three times faster."""
    monkeypatch.setitem(style.STYLE, "pdf.fonttype", 3)
    monkeypatch.setattr(style, "DPI", 40)


def games(num_solved):
    return [1] * num_solved + [0] * (NUM_PROMPTS - num_solved)


def write_run(name, solved, *, start=2, seed=0, env=LAKE, players=PLAYERS, **settings):
    """Write a finished run to out/`name`. Return its path.

    Args:
        start: number of prompts solved before RL.
        solved: list of the numbers of prompts solved at iterations 2, 4, and so on.
    """
    folder = Path("out", name)
    config = Config(
        out_dir=str(folder),
        seed=seed,
        env=LAKE,
        eval_size=NUM_PROMPTS,
        num_groups=2,
        group_size=16,
        filter_keep=1.0,
        **settings,
    )
    save_config(config, {}, folder)
    rows = []
    for i, num_solved in enumerate(solved, 1):
        for step, success in ((2 * i - 1, None), (2 * i, num_solved / NUM_PROMPTS)):
            row = {"step": step, "eval_success": success, "cpu_s": 1.5, "response_length": 10.0}
            rows.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(rows))
    stages = {"start": games(start), "after RL": games(solved[-1])}
    scores = {env: stages | {name: games(count) for name, count in players.items()}}
    (folder / "scores.json").write_text(json.dumps(scores))
    return str(folder)


@pytest.fixture
def two_arms(tmp_path, monkeypatch):
    """Three runs of GRPO and three of RLOO. After RL, the GRPO runs solve none of the 8 prompts.
    The RLOO runs solve 2 (seed 0), 4 (seed 1) and 6 prompts (seed 2)."""
    monkeypatch.chdir(tmp_path)
    grpo = [write_run(f"grpo_s{s}", [2, 0], seed=s, estimator="grpo") for s in range(3)]
    rloo = []
    for s, solved in enumerate(([1, 2], [4, 4], [7, 6])):
        rloo.append(write_run(f"rloo_s{s}", solved, seed=s, estimator="rloo"))
    return grpo, rloo


def lines_with(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


# ---------- settings that changed during a run


def change_settings(folder, until, **before):
    """Record in config.json that some settings had the values `before` up to iteration `until`."""
    config = load_saved(folder)
    save_config(config, {}, folder, [(until, replace(config, **before))])


def test_settings_that_changed_on_the_way_are_shown(two_arms, capsys):
    grpo, rloo = two_arms
    for folder in rloo:
        change_settings(folder, 3, clip_high=0.4)
    compare.main([*grpo, "vs", *rloo])
    (line,) = lines_with(capsys.readouterr().out, "| changed on the way")
    sentence = r"until iteration 3: clip\_high was 0.4 and is now 0.28"
    assert line == f"| changed on the way | none | {sentence} |"
    change_settings(rloo[0], 2, clip_high=0.4)
    with pytest.raises(UserError, match="differ in the settings before a restart changed them"):
        compare.main([*grpo, "vs", *rloo])


def test_evaluations_of_other_prompts_are_left_out(two_arms):
    _, rloo = two_arms
    assert list(make_arms([[Path(rloo[1])]])[0].runs[0].evaluations) == [0, 2, 4]
    change_settings(rloo[1], 3, eval_env="sokoban")
    assert list(make_arms([[Path(rloo[1])]])[0].runs[0].evaluations) == [0, 4]


# ---------- the numbers


def test_the_answer_is_that_of_a_calculation_by_hand(two_arms, capsys):
    grpo, rloo = two_arms
    compare.main([*grpo, "vs", *rloo])
    text = capsys.readouterr().out
    # RLOO is better than GRPO by 2/8 (seed 0), 4/8 (seed 1) and 6/8 (seed 2). These differences
    # have mean 0.5 and std 0.25. Student's t quantile for three seeds is 4.3027.
    seeds_part = 4.3027 * 0.25 / math.sqrt(3)  # 0.62104
    # On the eight prompts, the differences averaged over seeds are 1, 1, 2/3, 2/3, 1/3, 1/3, 0, 0.
    # `difference_interval` appends -1 and 1 to these eight values. The ten values have mean 0.4 and
    # mean square (2 + 8/9 + 2/9 + 2) / 10, so their variance is 0.35111.
    prompts_part = 1.959964 * math.sqrt(0.351111 / 10)  # 0.36725
    half_width = math.hypot(seeds_part, prompts_part)  # 0.72150
    assert 0.5 - half_width == pytest.approx(-0.2215, abs=1e-4)
    (line,) = lines_with(text, "- rloo - grpo")
    assert line == (
        "- rloo - grpo: 50.0 [-22.2, 100.0] (25.0, 50.0, 75.0) points. "
        "It is not certain which is better: the interval contains 0."
    )
    grpo_line, rloo_line = (
        lines_with(text, "| grpo | 0, 1, 2")[0],
        lines_with(text, "| rloo | 0")[0],
    )
    # The last column is for the best evaluation of each run. There all GRPO runs solve 2 of 8
    # prompts, which is 25 %.
    assert "| 0.0 [0.0, " in grpo_line and grpo_line.endswith("| 25.0 |")
    # At their best evaluations, the RLOO runs solve 2, 4 and 7 of 8 prompts, on average 54.2 %.
    assert "| 50.0 [" in rloo_line and rloo_line.endswith("(25.0, 50.0, 75.0) | 54.2 |")


def test_a_certain_difference(two_arms, capsys):
    grpo, _ = two_arms
    best = [write_run(f"best_s{s}", [6, 6], seed=s, estimator="dr_grpo") for s in range(3)]
    compare.main([*grpo, "vs", *best, "--out=result"])
    # All seeds have equal results, so only the choice of prompts widens the interval. The
    # difference is 1 for six of the eight prompts and 0 for two. `difference_interval` appends -1
    # and 1 to these eight values. The ten values have mean 0.6 and variance 0.44. The half-width is
    # 1.959964 * sqrt(0.44 / 10) = 0.41112.
    (line,) = lines_with(capsys.readouterr().out, "- best - grpo")
    sentence = "The arm named first is better: the interval is above 0."
    assert line == f"- best - grpo: 75.0 [33.9, 100.0] points. {sentence}"
    assert {path.name for path in Path().glob("result.*")} == {
        "result.md",
        "result.csv",
        "result.png",
        "result.pdf",
    }
    compare.main([*best, "vs", *grpo])
    (line,) = lines_with(capsys.readouterr().out, "- grpo - best")
    assert line.endswith(
        "[-100.0, -33.9] points. The arm named first is worse: the interval is below 0."
    )


def test_one_seed_says_nothing_about_others(two_arms, capsys):
    grpo, rloo = two_arms
    compare.main([grpo[2], "vs", rloo[2]])
    (line,) = lines_with(capsys.readouterr().out, "- rloo - grpo")
    better = "The arm named first is better: the interval is above 0."
    caveat = "With one seed, this holds for these two runs only. Other seeds may differ."
    assert f"points. {better} {caveat}" in line


def test_costs_up_to_a_success_rate(two_arms, capsys):
    """Each iteration costs 1.5 CPU seconds and 320 tokens (2 * 16 games of 10 tokens)."""
    grpo, rloo = two_arms
    compare.main([*grpo, "vs", *rloo, "--threshold=50"])
    text = capsys.readouterr().out
    assert "## Cost of 50 % success" in text
    assert "| grpo | 0 of 3 | not reached | not reached |" in text
    assert "| rloo | 2 of 3 | 3 | 640 |" in text  # seeds 1 and 2 reach 50 % after two iterations
    compare.main([*grpo, "vs", *rloo])
    text = capsys.readouterr().out
    # Without --threshold, compare.py shows the costs of one success rate: the highest multiple of
    # 5 % that every run reaches. This rate is 25 % here, because every run starts at 25 %, and no
    # GRPO run exceeds 25 %.
    assert "## Cost of 25 % success" in text
    assert "| rloo | 3 of 3 | reached before RL | reached before RL |" in text


def test_dynamic_sampling_costs_the_tokens_of_all_sampled_groups():
    config = Config(num_groups=2, group_size=16, filter_keep=1.0)
    step = {"response_length": 10.0}
    assert sampled_tokens(step, config) == 2 * 16 * 10
    assert sampled_tokens(step | {"sampled_groups": 5}, config) == 5 * 16 * 10


def test_a_start_that_reaches_the_success_of_some_seeds_is_named(two_arms, capsys):
    """The run that starts at 50 % success reaches 50 % at no cost. The other run needs 3 CPU
    seconds and 640 tokens. The mean costs are 1.5 CPU seconds, shown as 2, and 320 tokens."""
    late = write_run("mixed_s0", [4, 4], seed=0, estimator="dr_grpo")
    early = write_run("mixed_s1", [4, 4], start=4, seed=1, estimator="dr_grpo")
    compare.main([late, early, "--threshold=50"])
    note = "(1 of 2 reach it before RL)"
    assert f"| mixed | 2 of 2 | 2 {note} | 320 {note} |" in capsys.readouterr().out


def test_settings_that_differ_are_listed(two_arms, capsys):
    grpo, _ = two_arms
    other = [write_run("slow", [3, 3], estimator="rloo", learning_rate=1e-7)]
    compare.main([*grpo, "vs", *other])
    text = capsys.readouterr().out
    table = text[text.index("## Settings that differ") :].splitlines()
    assert table[2] == "| setting | grpo | slow |"
    assert table[4:6] == ["| estimator | grpo | rloo |", "| learning\\_rate | 1e-06 | 1e-07 |"]
    assert table[6].startswith("| commit of the code |")
    assert "Left out are the seeds that only one of the two arms has: 1, 2." in text


DIFF = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1,2 +1,2 @@\n x\n"


def test_code_that_differs_is_named(two_arms, capsys):
    grpo, rloo = two_arms
    both = DIFF.format("starpo.py") + "-y\n+z\n"
    for folder in (*grpo, *rloo):
        Path(folder, "code.diff").write_text(both)
    Path(rloo[0], "code.diff").write_text(both + DIFF.format("train.py") + "+y\n")
    Path(rloo[1], "code.diff").write_text(both + DIFF.format("train.py") + "+y\n")
    Path(rloo[2], "code.diff").write_text(both + DIFF.format("train.py") + "+y\n+z\ncut: long\n")
    compare.main([*grpo, "vs", *rloo])
    text = capsys.readouterr().out
    part = text[text.index("## Code that differs") :].splitlines()
    assert part[2] == "| file, lines added and removed | grpo | rloo |"
    assert part[4] == "| train.py | unchanged | +1 -0, +2 -0 |"
    assert part[6] == r"- out/grpo\_s0/code.diff"
    assert part[11] == r"- out/rloo\_s2/code.diff, cut because it is long"


def test_the_same_changes_and_lost_changes_are_said(two_arms, capsys):
    grpo, rloo = two_arms
    for folder in (grpo[0], rloo[0]):
        Path(folder, "code.diff").write_text(DIFF.format("train.py") + "+y\n")
    compare.main([grpo[0], "vs", rloo[0]])
    assert "The saved changes to the commits are the same." in capsys.readouterr().out
    path = Path(grpo[0], "config.json")
    record = json.loads(path.read_text()) | {"git_commit": "0" * 40 + "-dirty"}
    path.write_text(json.dumps(record))
    Path(grpo[0], "code.diff").unlink()
    compare.main([grpo[0], "vs", rloo[0]])
    text = capsys.readouterr().out
    assert r"- out/grpo\_s0: its changes to the commit were not saved." in text


def test_more_than_two_arms_are_compared_with_the_first(two_arms, capsys):
    grpo, rloo = two_arms
    third = write_run("third", [3, 3], seed=7, estimator="dr_grpo")
    compare.main([*grpo, "vs", *rloo, "vs", third])
    text = capsys.readouterr().out
    assert len(lines_with(text, "- rloo - grpo")) == 1
    assert "- third - grpo: the arms share no seed, so they are not paired." in text


def files_of_runs():
    paths = [*Path("out").glob("grpo_s*/*"), *Path("out").glob("rloo_s*/*")]
    return {path: path.stat().st_mtime_ns for path in paths}


def test_files(two_arms):
    grpo, rloo = two_arms
    before = files_of_runs()
    compare.main([*grpo, "vs", *rloo])
    assert before == files_of_runs()
    assert [path.name for path in Path().iterdir()] == ["out"]
    folder = Path("out/comparisons")
    assert Image.open(folder / "grpo_vs_rloo.png").size == (288, 192)  # 7.2 x 4.8 inches at 40 DPI
    assert (folder / "grpo_vs_rloo.pdf").read_bytes().startswith(b"%PDF")
    page = (folder / "grpo_vs_rloo.md").read_text()
    assert page.startswith("# grpo vs rloo\n\n![Success over iterations](grpo_vs_rloo.png)\n")
    assert "| greedy, closed loop | 50.0 [" in page
    rows = list(csv.DictReader((folder / "grpo_vs_rloo.csv").read_text().splitlines()))
    assert len(rows) == 2 * 3 * 3  # methods, seeds, evaluations
    assert rows[-1] == {
        "arm": "rloo",
        "run": "out/rloo_s2",
        "seed": "2",
        "iteration": "4",
        "success": "0.75",
        "cpu_s": "6.0",
        "tokens": "1280.0",
    }


def test_the_interval_over_seeds_holds_the_true_mean_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    for num_seeds in (2, 3, 5):
        rates = rng.normal(0.5, 0.02, size=(num_seeds, 20_000))
        low, high = seed_interval(rates)
        assert np.mean((low < 0.5) & (high > 0.5)) == pytest.approx(0.95, abs=0.006)


def test_the_interval_of_the_verdict_errs_at_most_5_times_of_100():
    """Two simulated methods are equally good, and success varies with seed and prompt."""
    rng = np.random.default_rng(0)
    prompts = rng.normal(size=(500, 1, 64))
    wins = []
    for _ in range(2):
        seeds = rng.normal(0.0, 0.3, size=(500, 3, 1))
        chance = 1 / (1 + np.exp(-prompts - seeds))
        wins.append(rng.random((500, 3, 64)) < chance)
    low, high = difference_interval(*wins)
    assert np.mean((low > 0) | (high < 0)) <= 0.05


# ---------- what is refused


def refused(*arguments):
    with pytest.raises(UserError) as caught:
        compare.main(list(arguments))
    return str(caught.value)


def test_other_settings_are_not_pooled_as_seeds(two_arms):
    grpo, rloo = two_arms
    assert refused(*grpo, rloo[0], "vs", *rloo[1:]) == (
        "the runs of an arm must differ in the seed alone: "
        "out/rloo_s0 is not another seed of out/grpo_s0: they differ in estimator"
    )
    twin = write_run("twin", [3], estimator="grpo")
    sentence = refused(*grpo, twin, "vs", *rloo)
    assert sentence.endswith("settings and seed are those of out/grpo_s0")
    assert not Path("out/comparisons").exists()


def test_one_arm_has_a_page_without_differences(two_arms, capsys):
    grpo, _ = two_arms
    compare.main([*grpo, "--out=alone"])
    text = Path("alone.md").read_text()
    assert "points." not in text and text.count("\n| grpo |") == 2
    assert text in capsys.readouterr().out
    assert Path("alone.png").is_file()


def test_mistakes_are_answered(two_arms):
    grpo, rloo = two_arms
    two = [*grpo, "vs", *rloo]
    assert refused(*grpo, *rloo).endswith("they differ in estimator")
    assert refused().endswith("got nothing")
    assert "with 'vs' between arms" in refused(*grpo, "vs")
    assert refused(*grpo, "vs", "out/rlo*") == (
        "out/rlo* does not exist; expected folders of runs, and 'vs' between arms"
    )
    assert refused(*two, grpo[0]).endswith("they differ in estimator")
    assert refused(*grpo, "vs", grpo[0]) == "out/grpo_s0 is given twice; give each arm its own runs"
    assert refused(*two, "--threshold=101").endswith("at most 100 per cent, got 101.0")
    assert refused(*two, "--threshold=nan").startswith("threshold must be float, got 'nan'")
    assert refused(*two, "--treshold=5").startswith("unknown key 'treshold' from command line")
    assert "--threshold has no value" in refused(*two, "--threshold")
    assert refused(*two, "--out=nowhere/x") == (
        "nowhere/x.md cannot be written: there is no folder nowhere"
    )


def test_a_file_that_the_glob_matches_is_left_out(two_arms, capsys):
    grpo, rloo = two_arms
    Path("out/grpo.log").write_text("")
    compare.main(["out/grpo.log", *grpo, "vs", *rloo])
    said = capsys.readouterr().out
    note = "out/grpo.log is a file, not the folder of a run, so it is left out"
    assert said.startswith(f"{note}\n# grpo vs rloo")


def test_runs_that_cannot_be_compared(two_arms):
    grpo, _ = two_arms
    other = write_run("other", [3], env="frozenlake:size=8")
    assert refused(*grpo, "vs", other).startswith(
        "out/other and out/grpo_s0 were scored on different prompts"
    )
    heldout = write_run("heldout", [3], eval_split="heldout")
    assert "different prompts" in refused(*grpo, "vs", heldout)
    unfinished = write_run("unfinished", [3])
    Path(unfinished, "scores.json").unlink()
    assert refused(*grpo, "vs", unfinished) == (
        "out/unfinished is not finished: it has no scores.json yet"
    )
    Path("out/empty").mkdir()
    assert refused(*grpo, "vs", "out/empty").startswith("out/empty/config.json does not exist")


@pytest.mark.parametrize(
    "scores",
    [
        {LAKE: {"start": [1, 0]}},
        {LAKE: {"start": [1, 0], "after RL": [1]}},
        {LAKE: {"start": [], "after RL": []}},
        {LAKE: {"start": [2, 0], "after RL": [1, 0]}},
        {LAKE: {"start": [1, 0], "after RL": [0, 1], "greedy": [1]}},
    ],
)
def test_wrong_scores_are_refused(two_arms, scores):
    grpo, _ = two_arms
    wrong = write_run("wrong", [3])
    Path(wrong, "scores.json").write_text(json.dumps(scores))
    assert "must hold for each environment the successes (0 or 1)" in refused(*grpo, "vs", wrong)


# ---------- names


def test_hostile_names_are_text(two_arms, capsys):
    grpo, _ = two_arms
    name = "<img src=x>|*b* \x1b[31m\u202e$x$"
    hostile = write_run(name, [3], estimator="rloo")
    compare.main([*grpo, "vs", hostile, "--out=result"])
    text = capsys.readouterr().out
    assert "&lt;img src=x&gt;\\|\\*b\\* " in text
    assert not {"\x1b", "\u202e"} & set(text) and "<img" not in text
    assert Path("result.pdf").is_file()


def test_arms_with_the_same_name_show_their_folders(two_arms):
    write_run("a/grpo", [1])
    write_run("b/grpo_s1", [1], seed=1)
    arms = make_arms([[Path("out/a/grpo")], [Path("out/b/grpo_s1")]])
    assert [arm.name for arm in arms] == ["a/grpo", "b/grpo"]
