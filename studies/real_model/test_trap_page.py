"""Tests of page.py, replies.py, guess.py, and echo_trap.py (`make echo-trap`)."""

from configurator import UserError, load_config

import json

import numpy as np
import pytest

from studies.experiments import settings_of
from studies.real_model import echo_trap, guess, page, replies
from studies.real_model.experiments import EXPERIMENTS
from support.arguments import read_train
from support.statistics import t_quantile
from tools.sft import read_sft


def row_of(successes, lengths, seed=0):
    """Return the record of a run.

    Args:
        successes: success at each evaluation. The first evaluation is before RL (always 0.5). Then
            an evaluation follows every 5 iterations.
        lengths: mean length of the replies in each iteration."""
    flat = [0.4] * len(lengths)
    series = {
        "success": flat,
        "reward": flat,
        "in_group_reward_std": flat,
        "entropy": flat,
        "grad_norm": flat,
        "response_length": lengths,
    }
    curve = {}
    for number, success in enumerate(successes):
        if number > 0:  # "curve" lacks the evaluation before RL
            curve[str(5 * number)] = success
    return {
        "settings": {"seed": seed},
        "iterations": len(lengths),
        "cpu_s_per_iteration": 41.4,
        "curve": curve,
        "successes": {"bandit": {"start": [1, 0]}},
        "series": series,
    }


# The best success is 1.0, at iteration 5. Success is 0.3 at iteration 15 and 0.2 at iteration 20,
# so the run collapses at 15.
LENGTHS = [20] * 7 + [40] * 13
COLLAPSED = row_of([0.5, 1.0, 0.9, 0.3, 0.2], LENGTHS)


def test_a_run_in_one_line():
    *_, line = page.run_lines({"bandit StarPO": [COLLAPSED]})
    assert line == "| StarPO | 0 | 50 | 100 at 5 | 15 | not recorded | 20 at 20 | 41 |"


def test_a_run_loses_the_form_of_replies():
    valid = [1.0] * 10
    # The share at iteration 13 is 0.5, not below page.LOST. So the run loses the form at 14.
    valid += [0.25, 0.25, 0.5]
    valid += [0.25] * 7
    row = row_of([0.5, 1.0, 1.0, 1.0, 1.0], [20] * 10 + [60] * 10)
    row["series"]["valid_frac"] = valid
    *_, line = page.run_lines({"bandit StarPO": [row]})
    assert line == "| StarPO | 0 | 50 | 100 at 5 | no | 14 | 100 at 20 | 41 |"
    # The sign begins at iteration 12: the median reply length of iterations 10 to 12 is 60, three
    # times the median of iterations 1 to 5. The run loses the form at iteration 14.
    assert page.sign_cell(row, page.SIGNS["replies grow by half"]) == "12: 2 before"
    # A run loses the form only if the share of valid replies is below page.LOST in each of its
    # last five iterations (page.LAST).
    row["series"]["valid_frac"] = [1.0] * 16 + [0.25] * 4
    assert page.form_loss(row) is None


def test_a_sign_is_early_late_or_false():
    longer = page.SIGNS["replies grow by half"]
    # The sign begins at iteration 9: the median reply length of iterations 7 to 9 is 40, twice the
    # median of iterations 1 to 5.
    assert page.sign_cell(COLLAPSED, longer) == "9: 6 before"
    # The next run collapses at 15, and its last evaluation before the collapse is at 10. The sign
    # begins at 13, too late to predict the collapse.
    late = row_of([0.5, 1.0, 0.9, 0.3, 0.2], [20] * 11 + [40] * 9)
    assert page.sign_cell(late, longer) == "13: late"
    healthy = row_of([0.5, 1.0, 0.9, 1.0, 1.0], LENGTHS)
    assert page.sign_cell(healthy, longer) == "9: false"
    assert page.sign_cell(healthy, page.SIGNS["entropy doubles"]) == "never"


def test_success_before_and_after_rl():
    successes = {
        "bandit:pair=jobs": {
            "random, closed loop": [0, 0, 0, 1],
            "start": [1, 0, 1, 0],
            "after RL": [1, 1, 1, 0],
        },
        "bandit:pair=trader": {
            "random, closed loop": [0, 0, 0, 0],
            "start": [0, 1, 0, 1],
            "after RL": [0, 0, 0, 0],
        },
    }
    rows = []
    for seed in (0, 1):
        row = row_of([0.5, 0.5], [20] * 5, seed)
        row["successes"] = successes
        rows.append(row)
    *_, trained, reverse = page.gain_lines({"bandit with thoughts": rows})
    assert trained.startswith("| with thoughts | the twelve pairs | 0, 1 | 25.0 [")
    assert "| 50.0 [" in trained
    assert "| 75.0 [" in trained
    assert "| 25.0 [" in trained
    assert reverse.startswith("| with thoughts | Trader, Librarian | 0, 1 | 0.0 [0.0, ")
    assert "| 50.0 [" in reverse
    assert "| -50.0 [" in reverse


def test_moments_of_a_run():
    rows = {1: {"success": 0.5}, 5: {"success": 0.9}, 10: {"success": 0.9}, 15: {"success": 0.0}}
    assert replies.moments([1, 5, 10, 15], rows) == (1, 5, 15)


def test_replies_come_from_different_groups():
    assert replies.spread_out(list("abcdefgh"), 4) == ["a", "c", "e", "g"]
    assert replies.spread_out(["a", "b"], 4) == ["a", "b"]


def write_lines(path, rows):
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def differing_settings(config, other):
    found = set()
    for key, value in vars(config).items():
        if value != getattr(other, key):
            found.add(key)
    return found


def test_replies_of_a_run(tmp_path):
    metrics = []
    records = []
    for step in (1, 2):
        metrics.append({"step": step, "success": step / 2, "response_length": 9.6})
        records.append({"step": step, "turns": [{"response": f"<think>\n{step}"}]})
    write_lines(tmp_path / "metrics.jsonl", metrics)
    write_lines(tmp_path / "trajectories.jsonl", records)
    text = replies.replies_page({"StarPO": tmp_path})
    assert "start, iteration 1: 50 % success, 10 tokens a reply\n```\n<think> 1\n```" in text
    assert "best, iteration 2: 100 % success, 10 tokens a reply\n```\n<think> 2\n```" in text


def test_the_steps_are_commands_that_fit_into_45_minutes():
    fetch, cold_start, starpo, starpo_s = echo_trap.steps()
    assert sum(step.minutes for step in echo_trap.steps()) <= 45
    assert fetch.words == ("-m", "tools.smollm2")
    config, _, _ = load_config(list(starpo.words[1:]))
    experiment = settings_of(EXPERIMENTS["echo_trap"].curves["bandit StarPO"], "smollm2", 0)
    assert differing_settings(config, experiment) == {"model", "out_dir"}
    other, _, _ = load_config(list(starpo_s.words[1:]))
    filtered = {"filter_keep", "clip_high", "batch_size", "out_dir"}
    assert differing_settings(config, other) == filtered
    assert cold_start.words[:2] == ("-m", "tools.sft")


def test_a_missing_model_is_one_sentence():
    for read, words in ((read_sft, ["--sft_steps=15"]), (read_train, [])):
        with pytest.raises(UserError, match="out/smollm2"):
            read([*echo_trap.CONFIGS, *words, "--out_dir=out/a_run"])


# ---------- the guessing game


def test_a_player_that_guesses_what_is_possible():
    assert guess.chance_of_possible(1, 1) == 1.0
    assert guess.chance_of_possible(2, 1) == 0.5
    # After a wrong guess the game says "lower" or "higher". With three numbers and two turns, a
    # player whose first guess is 2 wins all games. A player whose first guess is 1 or 3 wins 2/3
    # of the games.
    assert guess.chance_of_possible(3, 2) == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)
    assert guess.chance_of_possible(15, 4) == pytest.approx(0.604, abs=5e-4)  # as in README.md
    assert guess.chance_of_possible(15, 15) == pytest.approx(1.0)


def test_the_table_of_the_game(monkeypatch):
    run = {"method": "StarPO", "seed": 4, "eval_size": 128, "curve": {"0": 0.25, "10": 0.5}}
    run["curve"]["20"] = 0.75
    monkeypatch.setattr(guess, "read_runs", lambda: [run])
    monkeypatch.setattr(guess, "METHODS", ("StarPO",))
    # These are Wilson intervals for 32, 64 and 96 wins in 128 games. With one seed, the mean has
    # the same intervals as the run.
    cells = "25.0 [18.3, 33.2] | 50.0 [41.5, 58.5] | 75.0 [66.8, 81.7] | - | -"
    of_run, of_method = guess.lines()[2:]
    assert of_run == f"| StarPO, seed 4 | {cells} |"
    assert of_method == f"| **StarPO, mean of the seeds** | {cells} |"


def test_the_differences_that_the_page_names():
    """README.md names the differences between runs with and without a reward for thoughts."""
    shares = {}
    for method, runs in guess.rewarded_runs().items():
        shares[method] = 100 * np.array([guess.shares_of(run) for run in runs])  # (S, 5)
    plain, low, high = shares.values()
    statements, success = 1, 4  # columns
    assert points(low - plain, statements) == [16.7, 98.3, 21.5]
    assert points(high - plain, statements) == [64.5, 100.0, 94.9]
    assert points(low - plain, success) == [8.6, -20.3, -19.5]
    assert points(high - plain, success) == [14.1, -27.3, -19.5]
    assert t_interval((low - plain)[:, statements]) == [-68.3, 159.3]
    assert t_interval((high - plain)[:, statements]) == [38.8, 134.1]
    assert t_interval((low - plain)[:, success]) == [-51.3, 30.5]
    assert t_interval((high - plain)[:, success]) == [-65.6, 43.7]
    gains = []
    for run in guess.runs_of(["StarPO-S"])["StarPO-S"]:
        gains.append(100 * (run["curve"]["30"] - run["curve"]["0"]))
    assert t_interval(np.array(gains)) == [44.8, 67.0]
    ends = [100 * run["curve"]["30"] for run in guess.runs_of(["StarPO-S"])["StarPO-S"]]
    assert t_interval(np.array(ends)) == [65.5, 89.0]


def points(differences, column):
    return differences[:, column].round(1).tolist()


def t_interval(values):
    """Return the ends of the 95 % t interval of the mean."""
    half_width = t_quantile(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return [
        round(float(end), 1) for end in (values.mean() - half_width, values.mean() + half_width)
    ]


def test_the_mean_needs_all_seeds(monkeypatch):
    method = {"method": "StarPO-S", "eval_size": 128}
    both = [{**method, "seed": seed, "curve": {"0": 0.5}} for seed in (0, 1)]
    both[1]["curve"] = {"0": 0.25, "10": 0.75}
    monkeypatch.setattr(guess, "read_runs", lambda: both)
    monkeypatch.setattr(guess, "METHODS", ("StarPO-S",))
    cells = guess.lines()[-1].split(" | ")
    assert cells[1].startswith("37.5 [")
    assert cells[2] == "-"
