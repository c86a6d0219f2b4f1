"""Turn the results of finished experiments into Markdown tables and a CSV file."""

from configurator import UserError

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support.statistics import difference_text, rate_text
from tools.plotting.arms import POLICIES, Wins
from tools.plotting.tables import markdown, short_commit
from utils.files import replace_file

Rows = list[dict]  # results of one method, a dict ("row") for each seed; see studies/runs.py
Curves = dict[str, Rows]  # maps the label of a method to its rows ([] if no run is finished)

HEADINGS = (
    "curve",
    "seeds",
    "n",
    "start",
    "after RL",
    "RL - start",
    "RL - greedy",
    "RL - optimal, 1 a turn",
    "first warning",
    "CPU-s/iteration",
    "commit",
)
COMPARED = ("start", "greedy, closed loop", "optimal, 1 a turn")  # subtracted from "after RL"
LEGEND = """\
Success is in % of n games, with a 95 % interval in brackets. If the results of the seeds differ,
parentheses hold them. Differences are paired by seed and prompt. Intervals account for the choice
of prompts and, with two or more seeds, for the choice of seeds (support/statistics.py). With two or
three seeds, differences between the seeds make an interval much wider. Even a narrow interval over
few seeds does not exclude that another seed collapses. The column "first warning" has, for each
seed, the iteration of the first sign of collapse (support/collapse_signs.py), or "-" if there is
none. A player with a "closed loop" has one action a turn and enough turns for all actions, so it
sees the result of each action before it chooses the next one. A player with "k a turn" (k is 1, 2
or 5) has the policy's limit on turns and chooses at most k actions a turn."""


# ---------- what rows hold


def wins_by_env(rows: Rows) -> dict[str, Wins]:
    """Map each environment in which the runs were scored to the wins in this environment."""
    return {env: wins_in(env, rows) for env in rows[0]["successes"]}


def wins_in(env: str, rows: Rows) -> Wins:
    wins = {}
    for name in rows[0]["successes"][env]:
        seeds = [row["successes"][env][name] for row in rows]
        wins[name] = np.array(seeds)  # (S, n)
    return wins


def wins_of_run(rows: Rows) -> Wins:
    """Return the wins in the first environment in which the runs were scored.
    row["curve"] holds the success in this environment at each evaluation."""
    env = next(iter(rows[0]["successes"]))
    return wins_in(env, rows)


def series(row: dict) -> dict[str, dict[int, float]]:
    """Map each metric to its values by iteration. "eval_success" also has a value at iteration 0,
    before RL."""
    start = wins_of_run([row])["start"]
    success = {0: float(start.mean())}
    for iteration, value in row["curve"].items():
        success[int(iteration)] = value
    found = {"eval_success": success}
    for metric, values in row["series"].items():
        found[metric] = {i: value for i, value in enumerate(values, 1) if value is not None}
    return found


# ---------- CSV


def write_points(path: Path, curves: Curves) -> None:
    """Write the values of all metrics of all runs into a CSV file, one value per row."""
    with replace_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("curve", "seed", "iteration", "metric", "value"))
        for label, rows in curves.items():
            for row in rows:
                writer.writerows(points_of(label, row))


def points_of(label: str, row: dict) -> Iterator[tuple]:
    seed = row["settings"]["seed"]
    for metric, values in series(row).items():
        for iteration, value in values.items():
            yield label, seed, iteration, metric, value


# ---------- Markdown


def table(curves: Curves, caption: str) -> str:
    """Return Markdown: tables of success and costs, a legend, and a table of reference players.

    The tables hold only curves with a finished run. A sentence names the other curves.

    Args: caption: what the picture beside the table shows.
    """
    finished = {label: rows for label, rows in curves.items() if rows}
    missing = [label for label, rows in curves.items() if not rows]
    lines = success_lines(finished)
    lines += cost_lines(finished)
    lines += ["", LEGEND, caption]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    lines += ["", "Reference players on the same fixed prompts, success in %:", ""]
    lines += player_lines(finished)
    return "\n".join(lines) + "\n"


def fill(page: str, contents: dict[str, str]) -> str:
    """Replace tables of a page. A table is between the marks "<!-- table: NAME -->" and
    "<!-- end of table -->".

    Args: contents: the Markdown of each table, by NAME.
    Raises: UserError if a mark is missing."""
    for name, content in contents.items():
        begin, end = f"<!-- table: {name} -->", "<!-- end of table -->"
        before, begin_mark, rest = page.partition(begin)
        _, end_mark, after = rest.partition(end)
        if not begin_mark or not end_mark:
            raise UserError(f"the page must hold {begin} and, after it, {end}")
        page = f"{before}{begin}\n{content}\n{end}{after}"
    return page


def names_of_envs(label: str, rows: Rows) -> dict[str, Wins]:
    """Map the name of each table row to the wins in this row. The row of the first environment is
    named LABEL. The row of another environment is named "LABEL on ENV"."""
    named = {}
    for env, wins in wins_by_env(rows).items():
        named[f"{label} on {env}" if named else label] = wins
    return named


def success_lines(curves: Curves) -> list[str]:
    """Return a table with a row for each curve in each scored environment."""
    lines = []
    for label, rows in curves.items():
        seeds = ", ".join(str(row["settings"]["seed"]) for row in rows)
        warnings = ", ".join(str((row["first_warning"] or "-")[0]) for row in rows)
        cpu_s = np.mean([row["cpu_s_per_iteration"] for row in rows])
        commits = dict.fromkeys(short_commit(row["git_commit"]) for row in rows)
        for name, wins in names_of_envs(label, rows).items():
            end = wins["after RL"]  # (S, n)
            cells = [name, seeds, str(end.size)]
            cells += [rate_text(wins["start"]), rate_text(end)]
            for other in COMPARED:
                cells.append(difference_text(end, wins[other]))
            cells += [warnings, f"{cpu_s:.2f}", ", ".join(commits)]
            lines.append(cells)
    return markdown(HEADINGS, lines)


def cost_lines(curves: Curves) -> list[str]:
    """Return a table of the mean costs of every curve, or [] if no curve uses demonstrations."""
    all_rows = [row for rows in curves.values() for row in rows]
    if not any(row["costs"]["demonstrations"] for row in all_rows):
        return []
    keys = list(all_rows[0]["costs"])
    lines = []
    for label, rows in curves.items():
        cells = [label]
        for key in keys:
            mean = np.mean([row["costs"][key] for row in rows])
            cells.append(f"{mean:,.0f}")
        lines.append(cells)
    return ["", *markdown(["mean costs of", *keys], lines)]


def player_lines(curves: Curves) -> list[str]:
    """Return a table with a column for each reference player. Curves whose players have the same
    success share a row."""
    # Maps a name from `names_of_envs` to the success rate of each player, as text.
    rates: dict[str, dict[str, str]] = {}
    for label, rows in curves.items():
        for name, wins in names_of_envs(label, rows).items():
            players = [player for player in wins if player not in POLICIES]
            rates[name] = {player: rate_text(wins[player]) for player in players}
    headings = list(dict.fromkeys(player for found in rates.values() for player in found))
    # Maps the cells of a row to the names that share this row.
    names_of: dict[tuple[str, ...], list[str]] = {}
    for name, found in rates.items():
        cells = tuple(found.get(player, "-") for player in headings)
        names_of.setdefault(cells, []).append(name)
    lines = [[", ".join(names), *cells] for cells, names in names_of.items()]
    return markdown(["curve", *headings], lines)
