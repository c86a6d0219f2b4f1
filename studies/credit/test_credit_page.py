"""Tests of studies/credit/page.py. The script asks whether policies learn faster if the estimator
of advantages assigns credit to turns more accurately.

Run with:  python -m pytest -q studies/credit/test_credit_page.py
"""

from configurator import UserError

import doctest
import json

import numpy as np
import pytest

from studies.credit import page as credit_page
from studies.credit.page import correlations, results_of, speed_of


def make_row(*successes, seed=0):
    """Return the record of a run. Its success rate is 0.4 before RL. `successes` are its success
    rates after 10, 20, ... iterations."""
    curve = {str(10 * (i + 1)): success for i, success in enumerate(successes)}
    return {
        "settings": {"seed": seed},
        "iterations": 10 * len(successes),
        "curve": curve,
        "series": {},
        "successes": {"lake": {"start": [0.4]}},
        "costs": {"CPU-s, RL": 100.0},
    }


def make_summary(label="start", env="frozenlake:size=4", **ranks):
    estimators = {}
    for name, rank in ranks.items():
        estimators[name] = {"rank": [rank, 0.1], "gain": [0.5, 0.1], "within": [0.0, None]}
    return {"env": env, "label": label, "seeds": [0, 1, 2], "estimators": estimators}


CURVES = {
    "frozenlake GAE": [make_row(0.5, 0.6, 0.7), make_row(0.5, 0.5, 0.5, seed=1)],
    "frozenlake GRPO": [make_row(0.4, 0.5, 0.6), make_row(0.6, 0.7, 0.8, seed=1)],
    "frozenlake RLOO": [make_row(0.3, 0.3, 0.3), make_row(0.7, 0.8, 0.9, seed=1)],
    "sokoban GAE": [],
    "sokoban GRPO": [],
}
SUMMARIES = [make_summary(GAE=0.9, GRPO=0.5, RLOO=0.2), make_summary("end", GAE=0, GRPO=0, RLOO=1)]


def test_doctests():
    assert doctest.testmod(credit_page).failed == 0


def test_speed_is_the_mean_of_the_evaluations_after_the_start():
    assert speed_of(make_row(0.5, 0.6, 0.7)) == pytest.approx(0.6)


def test_accuracy_and_speed_are_correlated_for_each_seed():
    """The numbers below are in the order GAE, GRPO, RLOO.

    The accuracies of their credit at checkpoint "start" are 0.9, 0.5 and 0.2. The accuracies at
    checkpoint "end" are 0, 0 and 1. Their speeds of learning with seed 0 are 0.6, 0.5 and 0.3.
    The speeds with seed 1 are 0.5, 0.7 and 0.8.
    """
    results = results_of("frozenlake", CURVES, SUMMARIES)
    assert [result.name for result in results] == ["GAE", "GRPO", "RLOO"]
    assert results[0].last.tolist() == [0.7, 0.5]
    np.testing.assert_allclose(correlations(results, "start"), [1.0, -1.0])
    half = np.sqrt(3) / 2
    np.testing.assert_allclose(correlations(results, "end"), [-half, half])


def test_a_missing_run_or_credit_is_an_error():
    message = "sokoban GAE has too few seeds; run studies.reproduce credit"
    with pytest.raises(UserError, match=message):
        results_of("sokoban", CURVES, SUMMARIES)
    with pytest.raises(UserError, match="has no accuracy of frozenlake RLOO"):
        results_of("frozenlake", CURVES, [make_summary(GAE=0.9, GRPO=0.5)])
    with pytest.raises(UserError, match="has no accuracy of frozenlake GAE"):
        results_of("frozenlake", CURVES, [])
    with pytest.raises(UserError, match="has no accuracy of frozenlake GRPO"):
        results_of("frozenlake", CURVES, [make_summary(GAE=0.9, GRPO=None, RLOO=0.2)])
    one_seed = {label: rows[:1] for label, rows in CURVES.items()}
    with pytest.raises(UserError, match="intervals over seeds need two seeds"):
        results_of("frozenlake", one_seed, SUMMARIES)
    with pytest.raises(UserError, match="expected no arguments, got --draw"):
        credit_page.main(["--draw"])


def test_two_policies_of_one_checkpoint_are_an_error(tmp_path, monkeypatch):
    path = tmp_path / "credit.json"
    path.write_text(json.dumps([SUMMARIES[0], SUMMARIES[0]]))
    monkeypatch.setattr(credit_page, "CREDIT", path)
    with pytest.raises(UserError, match="two policies of frozenlake at one checkpoint"):
        credit_page.main([])


def test_the_page_is_filled(tmp_path, monkeypatch):
    curves = {}
    for label, rows in CURVES.items():
        curves[label] = rows or [make_row(0.5), make_row(0.6, seed=1)]
    path = tmp_path / "credit.json"
    path.write_text(json.dumps([*SUMMARIES, make_summary(env="sokoban:size=6", GAE=0.7, GRPO=0.7)]))
    page = tmp_path / "credit.md"
    marks = [
        f"<!-- table: {table} {world} -->\n<!-- end of table -->"
        for table in ("credit", "speed", "correlation")
        for world in ("frozenlake", "sokoban")
    ]
    page.write_text("\n".join(marks))
    monkeypatch.setattr(credit_page, "PAGE", page)
    monkeypatch.setattr(credit_page, "CREDIT", path)
    monkeypatch.setattr(credit_page, "rows_of", lambda _, scale: curves)
    credit_page.main([])
    text = page.read_text()
    # With two seeds, the half-width of a 95 % interval is 12.7062 standard errors (Student's t).
    # Intervals of success rates are cut off at 0 and 100 %. Intervals of differences from GRPO's
    # success rate are not cut off.
    assert (
        "| RLOO | 55.0 [0.0, 100.0] (30.0, 80.0) | -5.0 [-195.6, 185.6] (-20.0, 10.0) | 60.0 | 100"
        in text
    )
    assert "| RLOO | 0.20 [0.10, 0.30] | 0.50 [0.40, 0.60] | 0.00 [not known] | 1.00 [0.90" in text
    assert "| start | 0.00 [-1.00, 1.00] (1.00, -1.00) |" in text
    assert (
        "| GAE | 55.0 [0.0, 100.0] (50.0, 60.0) | 0.0 [0.0, 0.0] (0.0, 0.0) | 55.0 | 100 | 0.70 |"
        in text
    )  # Sokoban


def test_the_marks_of_the_page_are_there():
    page = credit_page.PAGE.read_text()
    for table in ("credit", "speed", "correlation"):
        for world in ("frozenlake", "sokoban"):
            assert f"<!-- table: {table} {world} -->" in page
