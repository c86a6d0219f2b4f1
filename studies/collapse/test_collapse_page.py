"""Tests of survival.py and of studies/signs.py.

Run with:  python -m pytest -q studies/collapse/test_collapse_page.py
"""

from configurator import UserError

import pytest

from studies.collapse import survival as collapse
from studies.collapse.survival import (
    Sign,
    beginnings,
    collapse_iteration,
    fit,
    is_alive,
    judge,
    num_updates,
)


def make_row(successes, seed=0, start=0.5, first_warning=None, **series):
    """Return the record of a run.

    The success is `start` before RL, and then `successes` at iterations 5, 10, 15 and so on."""
    count = 5 * len(successes)
    metrics = dict.fromkeys(collapse.SIGNS, [1.0] * count)
    known = {**metrics, **series}
    wins = {"start": [start], "after RL": [successes[-1]]}
    return {
        "settings": {"seed": seed},
        "iterations": count,
        "curve": {5 * (i + 1): success for i, success in enumerate(successes)},
        "series": known,
        "successes": {"lake": wins},
        "first_warning": first_warning,
    }


@pytest.mark.parametrize(
    "successes, expected",
    [
        ([0.7, 0.9, 0.69, 0.5, 0.3], 15),  # 0.69 is the first value below 0.9 - 0.2
        ([0.7, 0.9, 0.71, 0.5, 0.3], 20),
        ([0.7, 0.9, 0.3, 0.8, 0.9], None),  # the run recovers
        ([0.9, 0.3, 0.8, 0.6, 0.6], 20),  # a recovery, then a fall until the end
        ([0.7, 0.8, 0.9, 0.3], None),  # one low evaluation is not enough
        ([0.29, 0.2, 0.1], 5),  # success is 0.5 before RL
        ([0.5, 0.6, 0.7], None),
        ([0.7, 0.5, 0.5], 10),  # counts as a fall of 20 points, although 0.7 - 0.5 < 0.2 in floats
    ],
)
def test_a_collapse_is_a_fall_until_the_end(successes, expected):
    assert collapse_iteration(make_row(successes)) == expected


def test_a_run_is_alive_if_it_updates_and_ends_near_the_best_of_starpo():
    starpo = make_row([0.8, 0.9, 0.4, 0.4], grad_norm=[1.0] * 15 + [None] * 5)
    assert num_updates(starpo) == 15
    assert is_alive(make_row([0.8, 0.85]), starpo) is False  # 10 updates, fewer than StarPO's 15
    assert is_alive(make_row([0.8, 0.85, 0.86]), starpo)
    assert not is_alive(make_row([0.8, 0.8, 0.84]), starpo)  # 6 points below 0.9
    assert not is_alive(starpo, starpo)


def test_an_update_without_differing_rewards_does_not_count():
    norms = [1.0] * 10 + [None] * 5
    assert num_updates(make_row([0.5] * 3, grad_norm=norms)) == 10
    spreads = [0.4] * 8 + [0.0] * 7
    assert num_updates(make_row([0.5] * 3, grad_norm=norms, in_group_reward_std=spreads)) == 8


def test_a_sign_begins_when_the_level_has_left_the_first_one():
    """At iterations 17 to 21, the median of the latest 3 values is 5. Before, it is 1."""
    values = [1.0] * 15 + [5.0] * 5 + [1.0] * 5 + [None] * 5
    row = make_row([0.5] * 6, entropy=values)
    assert beginnings(row, Sign("entropy", True, 2.0)) == [17]
    assert beginnings(row, Sign("entropy", True, 5.0)) == []
    assert beginnings(row, Sign("entropy", False, 1.25)) == []
    # A sign begins only if the median of the first five values is above 0.
    negative = make_row([0.5] * 6, entropy=[-1.0] * 30)
    assert beginnings(negative, Sign("entropy", False, 2.0)) == []
    falling = make_row([0.5] * 6, entropy=[1 / value if value else None for value in values])
    assert beginnings(falling, Sign("entropy", False, 2.0)) == [17]


def test_a_sign_is_judged_by_what_follows_it():
    rises = [1.0] * 15 + [3.0] * 15
    flat = [1.0] * 30
    late = [1.0] * 27 + [3.0] * 3
    fall = [0.9, 0.9, 0.9, 0.9, 0.3, 0.3]  # collapses at iteration 25
    rows = [
        make_row(fall, entropy=rises),  # the sign begins at 17
        make_row(fall, entropy=flat),  # no sign
        make_row(fall, entropy=late),  # the sign comes after the collapse
        make_row([0.9] * 6, entropy=rises),  # a false alarm
        make_row([0.9] * 6, entropy=flat),
    ]
    # the last evaluation before the collapse is at 20, so a sign that begins at 21 is too late
    barely = [1.0] * 19 + [3.0] * 11
    assert judge(Sign("entropy", True, 2.0), [make_row(fall, entropy=barely)]).num_predicted == 0
    verdict = judge(Sign("entropy", True, 2.0), rows)
    assert (verdict.num_collapsed, verdict.num_predicted, verdict.num_alarmed) == (3, 1, 2)
    assert verdict.num_late == 1
    assert (verdict.precision, verdict.recall, verdict.f1) == (1 / 2, 1 / 3, pytest.approx(0.4))
    assert verdict.leads == (8,)
    assert verdict.false_per_1000 == pytest.approx(1000 / 60)


def test_the_warnings_of_the_run_are_judged_too():
    fall = [0.9, 0.9, 0.9, 0.9, 0.3, 0.3]
    rows = [
        make_row(fall, first_warning=[12, "low"]),
        make_row(fall),
        make_row([0.9] * 6, first_warning=[7, "low"]),
    ]
    verdict = judge(None, rows)
    assert (verdict.num_collapsed, verdict.num_predicted, verdict.num_alarmed) == (2, 1, 2)
    assert verdict.leads == (13,) and verdict.num_false == 1


def test_the_factor_with_the_best_f1_is_chosen():
    fall = [0.9, 0.9, 0.9, 0.9, 0.3, 0.3]
    rows = [
        make_row(fall, entropy=[1.0] * 15 + [3.5] * 15),
        make_row([0.9] * 6, entropy=[1.0] * 15 + [1.8] * 15),
    ]
    # With a factor of 1.5 the sign is a false alarm in the second run. With a factor of 4 the sign
    # misses the collapse of the first run.
    assert fit("entropy", True, rows) == Sign("entropy", True, 3.0)


def test_a_run_may_go_on_after_a_spike_of_the_gradient():
    """A norm of 4 after norms of 1 is a spike for a factor of 3, but not for a factor of 10."""
    fall = [0.9, 0.9, 0.3, 0.3]  # collapses at iteration 15 of 20

    def spike_at(iteration):
        return [1.0] * (iteration - 1) + [4.0] + [1.0] * (20 - iteration)

    rows = [
        make_row(fall, grad_norm=spike_at(14)),
        make_row(fall, grad_norm=spike_at(16)),  # after the collapse
        make_row(fall),
        make_row([0.9] * 4, grad_norm=spike_at(6)),
        make_row([0.9] * 4, grad_norm=spike_at(5)),  # iterations 1 to 5 cannot have a spike
        make_row([0.9] * 4, grad_norm=[1.0] * 10 + [None] * 10),
    ]
    unknown = make_row(fall, grad_norm=[None] * 5 + [4.0] * 15)  # no norm in iterations 1 to 5
    assert collapse.first_spike(unknown, 3.0) is None
    assert [collapse.first_spike(row, 3.0) for row in rows] == [14, 16, None, 6, None, None]
    quiet = [make_row([0.9] * 4, grad_norm=spike_at(7)), make_row([0.9] * 4)]
    assert collapse.spike_lines([rows, quiet])[2:] == [
        "| 3 times | some run | 1 | 1 | 1 | 1 of 3 |",
        "| 3 times | no run | 0 | 1 | 0 | 0 of 1 |",
        "| 10 times | some run | 0 | 0 | 0 | 3 of 6 |",
        "| 10 times | no run | 0 | 0 | 0 | 0 of 2 |",
    ]


def test_the_page_counts_collapses_and_survivors():
    fall = [0.9, 0.9, 0.3, 0.3]
    curves = {
        "frozenlake StarPO at 2e-3": [make_row(fall, seed) for seed in (0, 1)],
        "frozenlake KL at 2e-3": [
            make_row([0.9] * 4, 0),
            make_row(fall, 1),
            make_row([0.9] * 4, 2),
        ],
    }
    text = collapse.page_tables(curves)["methods"]
    assert "| StarPO at 2e-3 | 0, 1 | 15, 15 | 0 of 2 | 90, 90 | 30, 30 | 20, 20 |" in text
    # "1 of 2" counts alive runs of KL. It leaves out seed 2, as StarPO has no run with seed 2.
    assert "| KL at 2e-3 | 0, 1, 2 | -, 15, - | 1 of 2 | 90, 90, 90 | 90, 30, 90 |" in text


def test_the_page_shows_how_thoughts_fade():
    shares = [0.1, None, 0.9, 0.8, 0.7, 0.5, 0.0, 0.2, 0.3, 0.4]
    row = make_row([0.9, 0.9], thought_true_frac=shares)
    # The median of the first five known shares is 70 %. The median of the last five is 30 %.
    assert collapse.true_thoughts(row) == "70 to 30"


def test_without_runs_the_page_stays(monkeypatch):
    monkeypatch.setattr(collapse, "rows_of", lambda curves, scale: dict.fromkeys(curves, []))
    monkeypatch.setattr(collapse, "write_atomically", None)  # a call would raise TypeError
    with pytest.raises(UserError, match="no run is finished; start them with"):
        collapse.main([])


def test_survival_by_hand():
    fall = [0.9, 0.9, 0.3, 0.3]  # collapses at iteration 15 of 20
    shares = collapse.survival([make_row(fall), make_row([0.9] * 4), make_row([0.9, 0.3, 0.3])])
    assert shares[:10] == pytest.approx([1.0] * 10)
    assert shares[10:15] == pytest.approx([2 / 3] * 5)
    assert shares[15:] == pytest.approx([1 / 3] * 6)


def test_families_hold_the_runs_at_one_rate(tmp_path):
    fall = [0.9, 0.9, 0.3, 0.3]
    curves = {
        "frozenlake StarPO at 2e-3": [make_row(fall, 0)],
        "frozenlake StarPO with a KL of 0.001 at 2e-3": [make_row(fall, 1)],
        "frozenlake StarPO at 1e-3": [make_row(fall, 2)],
        "frozenlake StarPO-S with one step at 2e-3": [make_row(fall, 3)],
        "frozenlake GSPO at 2e-3": [make_row(fall, 4)],
        "frozenlake StarPO with a KL of 0.3 at 2e-3": [make_row(fall, 5)],
        "frozenlake StarPO with one step at 2e-3": [make_row(fall, 6)],
    }
    found = collapse.families(curves)
    seeds = {name: [row["settings"]["seed"] for row in rows] for name, rows in found.items()}
    assert seeds == {
        "StarPO": [0],
        "StarPO with a KL term": [1, 5],
        "StarPO with another change": [6],
        "StarPO-S and its variants": [3],
        "methods since RAGEN": [4],
    }
    collapse.draw_survival(tmp_path / "survival.png", curves)
    assert (tmp_path / "survival.png").stat().st_size > 10_000
