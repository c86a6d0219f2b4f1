"""Compare methods: one curve per method, paired differences with intervals, costs, and a verdict.

    python -m tools.compare out/A out/A_s[0-9]* vs out/B out/B_s[0-9]*  # two arms with their seeds
    python -m tools.compare A vs B vs C            # compares B with A, and C with A
    python -m tools.compare A                      # one arm: its curve and its costs
    python -m tools.compare A vs B --threshold=80  # costs of reaching 80 % success
    python -m tools.compare A vs B --out=out/a_b   # writes out/a_b.md, .csv, .png and .pdf

An arm consists of the finished runs of one method. These runs train alike, except for the seed. The
first command lists the folders of both arms. In the other commands, A, B and C each stand for the
folders of one arm. All arms must be scored on the same prompts. Without --out, the command writes
the files A_vs_B.md, .csv, .png and .pdf in out/comparisons/. Success rates and differences between
arms have 95 % intervals over prompts and seeds (support/statistics.py).
"""

from configurator import UserError, read_option

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.terminal import run_main
from utils.text import printable

OPTIONS = {"threshold": float, "out": str}


class Command(NamedTuple):
    """A parsed command line."""

    groups: list[list[Path]]  # the runs of each arm
    threshold: float | None  # success in %; None: the highest multiple of 5 that all runs reach
    out: str  # path of the files to write, without .md etc.; "" means out/comparisons/A_vs_B
    left_out: list[str]  # arguments that are files, not folders of runs


def read_command(argv: Sequence[str]) -> Command:
    """Parse a command line: folders of runs, "vs" between arms, and options. Raises: UserError."""
    options = {"threshold": None, "out": ""}
    groups: list[list[Path]] = [[]]
    left_out = []
    for argument in argv:
        if argument.startswith("--"):
            if "=" not in argument:
                raise UserError(f"{argument} has no value; expected --threshold=80 or --out=PATH")
            key, value = read_option(argument, OPTIONS)
            options[key] = value
        elif argument == "vs":
            groups.append([])
        elif Path(argument).is_file():  # out/grpo* may also match out/grpo.log
            left_out.append(argument)
        elif not Path(argument).is_dir():
            raise UserError(
                f"{argument} does not exist; expected folders of runs, and 'vs' between arms"
            )
        else:
            groups[-1].append(Path(argument))
    if not all(groups):
        given = " ".join(argv) or "nothing"
        raise UserError(
            f"give the runs of each arm, with 'vs' between arms, such as out/grpo* vs out/rloo*; "
            f"got {given}"
        )
    threshold = options["threshold"]
    if threshold is not None and not 0 < threshold <= 100:
        raise UserError(f"threshold must be more than 0 and at most 100 per cent, got {threshold}")
    return Command(groups, threshold, options["out"], left_out)


if __name__ == "__main__":
    run_main(read_command, kind=None)  # reports wrong arguments before the slow imports

import csv
import html

import numpy as np

from support.settings_history import describe_earlier
from support.statistics import difference_interval, difference_text, rate_text
from tools.plotting.arms import POLICIES, Arm, TrainedRun, changed_settings, make_arms
from tools.plotting.tables import markdown, short_commit
from tools.viewer.curves import draw_arms, shared_players
from utils.code_version import NAME, Change, changes_in, is_cut
from utils.files import COMPARISONS, check_writable, replace_file, write_atomically

ENDINGS = (".md", ".csv", ".png", ".pdf")
LONGEST_STEM = 120  # largest number of characters in the file name A_vs_B
LEVEL_STEP = 5  # per cent; the default threshold is a multiple of 5
LEGEND = """\
Success is in % of the fixed prompts. Brackets are 95 % intervals over prompts and seeds.
Parentheses hold the results of the seeds if these differ. With few seeds, even a narrow
interval does not exclude that other seeds collapse. "Best" is the mean over seeds of the best
evaluation. It is too high, because the best of several evaluations was chosen. Differences are
those of the final policies, paired by prompt and seed."""
COSTS = """\
Means over seeds of what a run used until its first evaluation with at least this success. CPU time
is that of rollouts and updates. Tokens are those sampled in rollouts. Evaluations do not count."""


class Cost(NamedTuple):
    """CPU time and tokens that the seeds of an arm used until they reached a success rate."""

    cpu_s: list[float]  # one value for each seed that reaches the rate
    tokens: list[float]  # sampled tokens, for the same seeds


def main(argv: list[str]) -> None:
    command = read_command(argv)
    for path in command.left_out:
        print(f"{printable(path)} is a file, not the folder of a run, so it is left out")
    arms = make_arms(command.groups)
    check_comparable(arms)
    stem = command.out
    if not stem:
        name = "_vs_".join(arm.name.replace("/", "_") for arm in arms)
        stem = COMPARISONS / name[:LONGEST_STEM]
    paths = [Path(f"{stem}{ending}") for ending in ENDINGS]
    for path in paths:
        check_writable(path)
    page, points, *pictures = paths
    threshold = command.threshold
    if threshold is None:
        threshold = highest_shared_level(arms)
    text = report(arms, threshold, pictures[0].name)
    write_atomically(page, text)
    write_points(points, arms)
    draw_arms(pictures, arms)
    print(text)
    print(f"wrote {', '.join(str(path) for path in paths)}")


def check_comparable(arms: Sequence[Arm]) -> None:
    """Check that no run is given twice, that all runs are finished, and that all were scored on the
    same prompts. Raises: UserError."""
    runs = [run for arm in arms for run in arm.runs]
    folders = [run.folder.resolve() for run in runs]
    for i, run in enumerate(runs):
        if folders[i] in folders[:i]:
            raise UserError(f"{run.folder} is given twice; give each arm its own runs")
        if not run.is_finished():
            raise UserError(f"{run.folder} is not finished: it has no scores.json yet")
    first = runs[0]
    for run in runs[1:]:
        if prompts_of(run) != prompts_of(first):
            raise UserError(
                f"{run.folder} and {first.folder} were scored on different prompts (eval_env or "
                "env, eval_split, eval_size), so they cannot be compared"
            )


def prompts_of(run: TrainedRun) -> tuple:
    """Return the run's `eval_split`, and each scored environment with its number of prompts."""
    sizes = [(env, len(wins["start"])) for env, wins in run.wins.items()]
    return run.config.eval_split, sizes


# ---------- costs


def highest_shared_level(arms: Sequence[Arm]) -> float:
    """Return the highest success in % that every run reaches, rounded down to a multiple of 5."""
    best = min(best_success(run) for arm in arms for run in arm.runs)
    return float(int(100 * best / LEVEL_STEP + 1e-9) * LEVEL_STEP)


def best_success(run: TrainedRun) -> float:
    return max(evaluation.success for evaluation in run.evaluations.values())


def cost_to(arm: Arm, threshold: float) -> Cost:
    """Return the costs of reaching `threshold` % success, for the seeds that reach it."""
    cost = Cost([], [])
    for run in arm.runs:
        for evaluation in run.evaluations.values():
            if 100 * evaluation.success >= threshold - 1e-9:
                cost.cpu_s.append(evaluation.cpu_s)
                cost.tokens.append(evaluation.tokens)
                break
    return cost


# ---------- the page


def report(arms: Sequence[Arm], threshold: float, picture: str) -> str:
    """Return the page in Markdown.

    Args:
        threshold: success in per cent. The page shows the costs of reaching this success.
        picture: name of the file with the curves.
    """
    title = " vs ".join(cell(arm.name) for arm in arms)
    lines = [f"# {title}", "", f"![Success over iterations]({picture})", ""]
    for env in arms[0].runs[0].wins:
        num_prompts = len(arms[0].runs[0].wins[env]["start"])
        split = arms[0].runs[0].config.eval_split
        lines += [f"## {cell(env)}, {num_prompts} prompts ({split})", ""]
        lines += [*success_lines(env, arms), "", *difference_lines(env, arms), ""]
        lines += [*player_lines(env, arms), ""]
    lines += [LEGEND, "", *cost_lines(arms, threshold), "", *setting_lines(arms)]
    lines += code_lines(arms)
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """Return a value as text, with Markdown and HTML escaped."""
    text = html.escape(printable(str(value), limit=200), quote=False)
    for mark in "\\|*_`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def success_lines(env: str, arms: Sequence[Arm]) -> list[str]:
    is_first = env == arms[0].runs[0].scored_env()
    lines = []
    for arm in arms:
        cells = [cell(arm.name), ", ".join(str(seed) for seed in arm.seeds())]
        cells += [rate_text(arm.wins(env, stage)) for stage in POLICIES]
        best = "not measured"  # `TrainedRun.evaluations` covers only the first environment
        if is_first:
            best = f"{100 * np.mean([best_success(run) for run in arm.runs]):.1f}"
        lines.append([*cells, best])
    return markdown(("arm", "seeds", "before RL", "final", "best"), lines)


def difference_lines(env: str, arms: Sequence[Arm]) -> list[str]:
    """Return lines that compare each later arm with the first arm."""
    first, *others = arms
    lines = []
    for arm in others:
        name = f"{cell(arm.name)} - {cell(first.name)}"
        seeds = [seed for seed in arm.seeds() if seed in first.seeds()]
        if not seeds:
            lines.append(f"- {name}: the arms share no seed, so they are not paired.")
            continue
        ends = wins_of_seeds(arm, env, seeds)  # (S, n)
        first_ends = wins_of_seeds(first, env, seeds)  # (S, n)
        lines.append(
            f"- {name}: {difference_text(ends, first_ends)} points. {verdict(ends, first_ends)}"
        )
        unpaired = sorted(set(arm.seeds()) ^ set(first.seeds()))
        if unpaired:
            left_out = ", ".join(str(seed) for seed in unpaired)
            lines.append(f"  Left out are the seeds that only one of the two arms has: {left_out}.")
    return lines


def wins_of_seeds(arm: Arm, env: str, seeds: Sequence[int]) -> np.ndarray:
    """Return the success of the final policies of S seeds on n prompts, as an array (S, n)."""
    runs = {run.config.seed: run for run in arm.runs}
    return np.stack([runs[seed].wins[env]["after RL"] for seed in seeds])


def verdict(a: np.ndarray, b: np.ndarray) -> str:
    """Say in words whether arm `a` is better than arm `b`.

    Args: a, b: arrays (S, n), the success of each arm's final policies on n prompts. S is the
        number of seeds that both arms have."""
    low, high = difference_interval(a, b)
    if low > 0:
        sentence = "The arm named first is better: the interval is above 0."
    elif high < 0:
        sentence = "The arm named first is worse: the interval is below 0."
    else:
        sentence = "It is not certain which is better: the interval contains 0."
    if len(a) == 1:
        sentence += " With one seed, this holds for these two runs only. Other seeds may differ."
    return sentence


def player_lines(env: str, arms: Sequence[Arm]) -> list[str]:
    players = shared_players(arms, env)
    names = [name for name in players if name not in POLICIES]
    if not names:
        return ["No reference player has the same result in all arms."]
    lines = [[cell(name), rate_text(players[name][None])] for name in names]
    return markdown(("reference player", "success"), lines)


def cost_lines(arms: Sequence[Arm], threshold: float) -> list[str]:
    lines = []
    for arm in arms:
        cost = cost_to(arm, threshold)
        num_seeds = len(arm.runs)
        cells = [cell(arm.name), f"{len(cost.cpu_s)} of {num_seeds}"]
        at_start = cost.cpu_s.count(0.0)
        if not cost.cpu_s:
            cells += ["not reached", "not reached"]
        elif at_start == len(cost.cpu_s):
            cells += ["reached before RL", "reached before RL"]
        else:
            note = f" ({at_start} of {num_seeds} reach it before RL)" if at_start else ""
            cells += [f"{np.mean(cost.cpu_s):,.0f}{note}", f"{np.mean(cost.tokens):,.0f}{note}"]
        lines.append(cells)
    headings = ("arm", "seeds that reach it", "CPU seconds", "sampled tokens")
    return [f"## Cost of {threshold:g} % success", "", *markdown(headings, lines), "", COSTS]


def setting_lines(arms: Sequence[Arm]) -> list[str]:
    lines = []
    for key, values in changed_settings(arms).items():
        lines.append([cell(key), *(cell(value) for value in values)])
    if any(run.earlier for arm in arms for run in arm.runs):
        changes = []
        for arm in arms:
            run = arm.runs[0]  # restarts changed the same settings in all runs of an arm
            changes.append(cell("; ".join(describe_earlier(run.earlier, run.config)) or "none"))
        lines.append(["changed on the way", *changes])
    commits = []
    for arm in arms:
        names = dict.fromkeys(short_commit(run.commit) for run in arm.runs)
        commits.append(cell(", ".join(names)))
    lines.append(["commit of the code", *commits])
    headings = ("setting", *(cell(arm.name) for arm in arms))
    title = "## Settings that differ" if len(arms) > 1 else "## Code"
    return [title, "", *markdown(headings, lines)]


def code_lines(arms: Sequence[Arm]) -> list[str]:
    """Return a section on the uncommitted changes to the code of the runs; [] if there are none.

    A table shows the files whose changes differ between runs. Below the table, a list names the
    diff file of each run that has changes. If a run did not save its changes, the list says so."""
    runs = [run for arm in arms for run in arm.runs]
    if all(run.code_diff == "" for run in runs):
        return []
    changes = {run.folder: changes_in(run.code_diff or "") for run in runs}
    names = sorted({name for changed in changes.values() for name in changed})
    rows = []
    for name in names:
        parts = [changes[run.folder].get(name) for run in runs]
        if any(part != parts[0] for part in parts):
            cells = []
            for arm in arms:
                counts = [count_lines(changes[run.folder].get(name)) for run in arm.runs]
                cells.append(", ".join(dict.fromkeys(counts)))
            rows.append([cell(name), *cells])
    lines = ["", "## Code that differs", ""]
    if rows:
        headings = ("file, lines added and removed", *(cell(arm.name) for arm in arms))
        lines += [*markdown(headings, rows), ""]
    else:
        lines += ["The saved changes to the commits are the same.", ""]
    for run in runs:
        if run.code_diff is None:
            lines.append(f"- {cell(run.folder)}: its changes to the commit were not saved.")
        elif run.code_diff:
            end = ", cut because it is long" if is_cut(run.code_diff) else ""
            lines.append(f"- {cell(run.folder / NAME)}{end}")
    return lines


def count_lines(change: Change | None) -> str:
    """Return how many lines a change adds and removes, such as "+2 -1", or "unchanged" for None."""
    return f"+{change.added} -{change.removed}" if change else "unchanged"


# ---------- points


def write_points(path: Path, arms: Sequence[Arm]) -> None:
    """Write a CSV file with a row for each evaluation of each run."""
    with replace_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("arm", "run", "seed", "iteration", "success", "cpu_s", "tokens"))
        for arm in arms:
            for run in arm.runs:
                for iteration, evaluation in run.evaluations.items():
                    head = (arm.name, run.folder, run.config.seed, iteration)
                    writer.writerow((*head, *evaluation))


if __name__ == "__main__":
    run_main(main)
