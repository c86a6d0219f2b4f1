"""Tests that a run reports the reason and a remedy if its filter keeps no group."""

import json
import re

import pytest
from runs import rows_of, run

from support.budget_warnings import idle_summary, idle_warning

IDLE = dict(kept_groups=0, valid_frac=0.25, success=0.0)
BUSY = dict(kept_groups=2, valid_frac=0.75, success=0.5)
NONE_OF_TEN = (
    "0 of 10 iterations updated the policy; in the other 10 the filter kept no group, because all "
    "scores in each group were equal (replies valid in 25%, success in 0%); teach the reply format "
    "with tools.sft first"
)


def test_the_tenth_idle_iteration_in_a_row_is_told_once():
    told = [idle_warning([IDLE] * n) for n in range(31)]
    assert [n for n in range(31) if told[n]] == [10]
    assert told[10] == NONE_OF_TEN
    history = [BUSY] * 3 + [IDLE] * 9 + [BUSY] + [IDLE] * 12
    told = [n for n in range(len(history) + 1) if idle_warning(history[:n])]
    # The last 12 idle iterations begin at iteration 14. The tenth of these 12 is iteration 23.
    assert told == [23]


def test_the_numbers_are_those_of_idle_iterations():
    sentence = idle_warning([BUSY] * 5 + [IDLE] * 5 + [IDLE | dict(valid_frac=0.95)] * 5)
    assert sentence == (
        "5 of 15 iterations updated the policy; in the other 10 the filter kept no group, because "
        "all scores in each group were equal (replies valid in 60%, success in 0%); give another "
        "--temperature, a larger --group_size or an easier --env, or train with tools.sft first"
    )


def test_a_solved_task_needs_no_training():
    sentence = idle_warning([dict(kept_groups=0, valid_frac=1.0, success=0.95)] * 10)
    assert sentence.endswith("; the task is solved, so stop or give a harder --env")


@pytest.mark.parametrize(
    "num_idle, num_busy, told",
    [(0, 0, False), (1, 0, True), (0, 5, False), (9, 1, False), (10, 1, True), (10, 200, True)],
)
def test_the_end_of_a_run(num_idle, num_busy, told):
    history = [IDLE] * num_idle + [BUSY] * num_busy
    sentence = idle_summary(history)
    assert (sentence is not None) == told
    if told:
        assert sentence.startswith(f"{num_busy} of {num_busy + num_idle} iterations updated")


@pytest.mark.slow
def test_a_run_says_it_also_after_a_continuation(random_model, tokenizer, tmp_path, capsys):
    start = tmp_path / "random"
    random_model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    # No reply has the required form, and the format penalty is 0, so all scores are 0.
    settings = dict(format_penalty=0.0, num_groups=2, group_size=2, batch_size=2, eval_size=1)
    settings |= dict(max_turns=1, sample_every=0, eval_every=0)
    run(tmp_path / "out", start, **settings, num_iterations=9)
    # The model hardly ever samples the end-of-turn token, so nearly all replies are cut off.
    sentence = (
        "0 of {n} iterations updated the policy; in the other {n} the filter kept no group, "
        "because all scores in each group were equal (replies valid in 0%, success in 0%); "
    )
    advice = r"\d+% of the replies were cut off at max_response_tokens: raise it, or teach shorter "
    out = capsys.readouterr().out
    assert out.count(sentence.format(n=9)) == 1 and "iteration 9: 0 of 9" not in out
    assert re.search(re.escape(sentence.format(n=9)) + advice, out)
    assert len(re.findall("iteration 1: " + advice, out)) == 1
    run(tmp_path / "out", start, **settings, num_iterations=12)
    out = capsys.readouterr().out
    assert out.count("iteration 10: " + sentence.format(n=10)) == 1
    assert out.count(sentence.format(n=12)) == 1 and out.count("iterations updated") == 2
    run(tmp_path / "out", start, **settings, num_iterations=12)
    assert capsys.readouterr().out.count(sentence.format(n=12)) == 1
    assert json.dumps([row["kept_groups"] for row in rows_of(tmp_path / "out")]) == str([0] * 12)
