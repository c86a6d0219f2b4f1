"""Rows of finished runs as a Markdown table and as points for a spreadsheet (CSV)."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from support.statistics import paired_bootstrap, wilson_interval

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
POLICIES = ("start", "after RL")
COMPARED = ("start", "greedy, closed loop", "optimal, 1 a turn")  # what RL is compared with
LEGEND = """Success in % of n games; its 95 % Wilson interval counts each prompt once, for the seeds play the same.
Differences are paired, with a bootstrap interval over seeds and prompts, too narrow where fewer
than six games differ. First warning: the iteration of the first early sign of collapse
(diagnostics.py) by seed, - for none. Shaded in the picture: that Wilson interval for evaluations,
the range of the seeds for all else; a triangle is such a warning."""


# ---------- what rows hold


def wins_by_env(rows: Sequence[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Successes in every environment that was scored; the environment of the run comes first.

    Args:
        rows: One row for each of S seeds.

    Returns:
        Environment -> "start", "after RL" or name of a reference player -> (S, n) of 0 and 1.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for env, names in rows[0]["successes"].items():
        found[env] = {}
        for name in names:
            found[env][name] = np.array([row["successes"][env][name] for row in rows])  # (S, n)
    return found


def wins_at_home(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """`wins_by_env` in the environment of the run."""
    return next(iter(wins_by_env(rows).values()))


def series(row: dict) -> dict[str, dict[int, float]]:
    """Metric -> iteration -> value, without iterations that lack a value; 0 is the start."""
    success = {0: float(wins_at_home([row])["start"].mean())}
    for iteration, value in row["curve"].items():
        success[int(iteration)] = value
    found = {"eval_success": success}
    for metric, values in row["series"].items():
        found[metric] = {i: value for i, value in enumerate(values, 1) if value is not None}
    return found


# ---------- CSV


def write_points(path: Path, curves: dict[str, list[dict]]) -> None:
    """Write a line for every value of every metric, seed and curve."""
    with path.open("w", newline="", encoding="utf-8") as file:
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


def table(curves: dict[str, list[dict]]) -> str:
    """Success of every curve, its costs if it has demonstrations, a legend and reference players.

    Args:
        curves: Label -> one row for each seed; a curve that was not run has none.
    """
    finished = {label: rows for label, rows in curves.items() if rows}
    missing = [label for label, rows in curves.items() if not rows]
    lines = success_lines(finished)
    lines += cost_lines(finished)
    lines += ["", LEGEND]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    lines += ["", "Reference players on the same instances, success in %:", ""]
    lines += player_lines(finished)
    return "\n".join(lines) + "\n"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    return lines + [f"| {' | '.join(cells)} |" for cells in rows]


def names_of_envs(label: str, rows: Sequence[dict]) -> dict[str, dict[str, np.ndarray]]:
    """`wins_by_env` under the names of table rows: the label, then "label on ENV"."""
    named = {}
    for env, wins in wins_by_env(rows).items():
        named[f"{label} on {env}" if named else label] = wins
    return named


def success_lines(curves: dict[str, list[dict]]) -> list[str]:
    """One line per curve and scored environment: all seeds together, differences paired."""
    lines = []
    for label, rows in curves.items():
        seeds = ", ".join(str(row["settings"]["seed"]) for row in rows)
        warnings = ", ".join(str((row["first_warning"] or "-")[0]) for row in rows)
        cpu_s = np.mean([row["cpu_s_per_iteration"] for row in rows])
        commits = dict.fromkeys(short_commit(row["git_commit"]) for row in rows)
        for name, wins in names_of_envs(label, rows).items():
            end = wins["after RL"]  # (S, n)
            cells = [name, seeds, str(end.size), rate(wins["start"]), rate(end)]
            cells += [percent(*paired_bootstrap(end, wins[other])) for other in COMPARED]
            cells += [warnings, f"{cpu_s:.2f}", ", ".join(commits)]
            lines.append(cells)
    return markdown(HEADINGS, lines)


def cost_lines(curves: dict[str, list[dict]]) -> list[str]:
    """Mean costs of every curve; nothing unless a curve has demonstrations."""
    costs = {label: [row["costs"] for row in rows] for label, rows in curves.items()}
    runs = [cost for found in costs.values() for cost in found]
    if not any(cost["demonstrations"] for cost in runs):
        return []
    keys = list(runs[0])
    lines = []
    for label, found in costs.items():
        means = [np.mean([cost[key] for cost in found]) for key in keys]
        lines.append([label, *(f"{mean:,.0f}" for mean in means)])
    return ["", *markdown(["mean costs of", *keys], lines)]


def player_lines(curves: dict[str, list[dict]]) -> list[str]:
    """One line for every set of reference players, after the curves which play its instances."""
    labels: dict[str, list[str]] = {}
    for label, rows in curves.items():
        for name, wins in names_of_envs(label, rows).items():
            players = [player for player in wins if player not in POLICIES]
            text = "; ".join(f"{player} {rate(wins[player][0])}" for player in players)
            labels.setdefault(text, []).append(name)
    return [f"- {', '.join(names)}: {text}" for text, names in labels.items()]


def percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def rate(wins: np.ndarray) -> str:
    """Success rate with its Wilson interval; n is the number of prompts, which all seeds share."""
    n = wins.shape[-1]
    return percent(wins.mean(), *wilson_interval(wins.mean() * n, n))


def short_commit(commit: str | None) -> str:
    """Seven digits of a commit, and "-dirty" if it is marked so."""
    return f"{str(commit)[:7]}{str(commit)[40:]}"
