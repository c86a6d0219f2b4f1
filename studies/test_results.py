"""Tests of the numbers in README, docs/ and studies/."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from studies import reproduce, runs, tables
from studies.experiments import sft_command, train_command
from studies.imitation import comparison
from support.run_folder import with_present_names
from support.statistics import rate_text

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "studies"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(STUDIES.glob("**/*.md")),
]
FILES = {}  # maps the name of an experiment to the file of its table
for name, experiment in reproduce.EXPERIMENTS.items():
    FILES[name] = STUDIES / reproduce.STUDY_OF[name] / f"{experiment.files or name}.md"
EXPERIMENTS = [name for name in FILES if FILES[name].is_file()]

NUMBER = r"-?\d+\.?\d*"
INTERVAL = rf"({NUMBER})(?: %)?(?:\*\*)? \[({NUMBER}),\s+({NUMBER})\]"
SEEDS = rf"(?:\*\*)? \(({NUMBER}(?:, {NUMBER})+)\)"


def find_exclusions(text):
    """Return the wrong intervals in a text. An interval is wrong if its own mean or the result of a
    seed lies outside the interval."""
    bad = []
    for found in re.finditer(f"{INTERVAL}(?:{SEEDS})?", text):
        mean, low, high, seeds = found.groups()
        values = [mean, *(seeds.split(", ") if seeds else [])]
        if not all(float(low) <= float(value) <= float(high) for value in values):
            bad.append(found.group())
    return bad


def test_exclusions_are_found():
    assert find_exclusions("a 5.0 [4.0, 6.0] (4.5, 5.5) and **82.0 % [77.2,\n86.1]**") == []
    assert find_exclusions("5.0 [4.0, 6.0] (3.9, 6.1)") == ["5.0 [4.0, 6.0] (3.9, 6.1)"]
    assert find_exclusions("**28.0 [7.4, 53.1]** (54, 7, 23)") == ["28.0 [7.4, 53.1]** (54, 7, 23)"]
    assert find_exclusions("-8.1 [-8.0, -1.3]") == ["-8.1 [-8.0, -1.3]"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_interval_excludes_its_own_seeds(path):
    text = path.read_text()
    assert find_exclusions(text) == []
    assert "bootstrap" not in text.lower()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_are_those_of_the_runs(name):
    found = runs.rows_of(reproduce.EXPERIMENTS[name].curves, "tiny")
    text = FILES[name].read_text()
    assert tables.table(found, "").split("\n\n")[0] in text
    for label, rows in found.items():
        if rows:
            assert f"| {label} |" in text


def test_the_comparison_page_is_that_of_its_rows():
    text = (STUDIES / "imitation/table.md").read_text()
    assert text == comparison.page(list(comparison.WORLDS))


# The test below does not compare these settings, because two runs of one method can differ in them.
PLACES = {"out_dir", "model", "seed"}


@pytest.mark.parametrize("name", comparison.WORLDS)
def test_rows_of_the_comparison_have_the_settings_of_their_method(name):
    """`read_row` checks no settings, so a row could have older settings than those in config/."""
    for row, method in comparison.WORLDS[name].methods.items():
        make_command = train_command if method.has_rl else sft_command
        for seed in (0, 1, 2):
            recorded = comparison.read_row(name, row, seed)
            if not recorded:
                continue
            now = asdict(make_command(method.curve, "tiny", seed).config())
            settings = recorded["settings"]
            saved = with_present_names(settings.get("config", settings))
            known = (saved.keys() & now.keys()) - PLACES
            assert {key: saved[key] for key in known} == {key: now[key] for key in known}


def test_rates_in_readme_are_those_of_the_comparison():
    readme = (ROOT / "README.md").read_text()
    lines = readme.split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    for column, world in ((2, "sokoban"), (3, "frozenlake")):
        rates = comparison.rates_of(world).values()
        known = [rate_text(wins).split(" (")[0] for wins, _ in rates]
        shown = [line.split("|")[column].strip(" *") for line in lines]
        assert len(shown) == 4 and set(shown) <= set(known)
