"""Show in tables and a picture how accurate the credit of each estimator is.

The credit of a turn is the mean advantage of its tokens. A case (dict) holds what measure.py
measured at one checkpoint of a run. The tables show means over seeds. The 95 % intervals account
for the choice of boards and, if there are several seeds, for the choice of seeds.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from studies.credit.accuracy import (
    Truth,
    is_decided,
    measure,
    measure_critic,
)
from support.statistics import mean_over_seeds
from tools.plotting.style import GRAY, draw_legend, look_of, picture
from tools.plotting.tables import markdown
from utils.files import write_atomically

OPTIMAL = "optimal play"
REFERENCE = "GRPO"  # "gain" is an estimator's rank correlation minus GRPO's
HEADINGS = {  # maps each measure to the heading of its column in the tables
    "rank": "rank correlation",
    "gain": "less GRPO's",
    "rank_raw": "not corrected",
    "within": "between turns of a game",
    "right_signs": "right signs, %",
    "signal": "signal, %",
    "bias": "bias, %",
    "luck": "luck, %",
}
CRITIC_HEADINGS = {
    "correlation": "correlation",
    "explained": "variance explained, %",
    "bias": "mean error",
    "error": "root mean square error",
}
PANELS = {
    "rank": "rank correlation with the true advantage",
    "within": "correlation between the turns of a game",
}
Numbers = dict[str, list[float]]  # maps a measure to [value, half-width of its 95 % interval]


@dataclass
class Summary:
    """The report's numbers on one checkpoint, averaged over runs that differ only in the seed.

    `facts` describe the games, the true advantages and the CPU time of the measurement.
    `estimators` and `critic` hold the measures of accuracy, with their 95 % intervals."""

    env: str
    method: str  # the estimator that trained the policy
    label: str  # names the checkpoint: "start", "end" or an iteration such as "20"
    seeds: list[int]
    facts: dict[str, float]  # from `measure_case`
    estimators: dict[str, Numbers]
    critic: Numbers | None

    @property
    def title(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"{self.env}, trained with {self.method}, {self.label} (seeds {seeds})"


def write_report(out: Path, cases: Sequence[dict]) -> str:
    """Write credit.json, credit.md and credit.png into `out`. Returns: the text of credit.md."""
    summaries = summarize_cases(cases)
    records = [without_nan(vars(summary)) for summary in summaries]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "credit.json", json.dumps(records, indent=1) + "\n")
    text = "\n\n".join(section(summary) for summary in summaries) + "\n"
    write_atomically(out / "credit.md", text)
    draw(out / "credit.png", summaries)
    return text


def without_nan(value):
    """Replace NaN and infinity, which JSON lacks, by None in nested dicts and lists."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---------- numbers


def summarize_cases(cases: Sequence[dict]) -> list[Summary]:
    """Compute facts and measures of each case, and average cases that differ only in the seed."""
    pools: dict[tuple, list[dict]] = {}
    for case in cases:
        key = (case["env"], case["estimator"], case["label"])
        pools.setdefault(key, []).append(case)
    summaries = []
    for (env, method, label), pool in pools.items():
        measured = [measure_case(case) for case in pool]
        critics = [critic for _, _, critic in measured if critic]
        summary = Summary(
            env=env,
            method=method,
            label=label,
            seeds=[case["seed"] for case in pool],
            facts=mean_facts([facts for facts, _, _ in measured]),
            estimators=pool_seeds([estimators for _, estimators, _ in measured]),
            critic=pool_numbers(critics) if critics else None,
        )
        summaries.append(summary)
    return summaries


def measure_case(case: dict) -> tuple[dict[str, float], dict[str, Numbers], Numbers | None]:
    """Return the facts about a case, each estimator's measures, and the critic's measures.

    The critic's measures are None if the run has no critic."""
    turns = case["turns"]
    truth = Truth(np.array(turns["before"]), np.array(turns["reply"]))
    games = np.array(turns["game"])
    groups = np.array(turns["group"])
    reference = np.array(case["credits"][REFERENCE][0])
    estimators = {}
    for name, (assigned, otherwise) in case["credits"].items():
        credits = np.array(assigned)
        estimators[name] = measure(credits, np.array(otherwise), reference, truth, games, groups)
    optimal = np.array(turns["optimal"])
    estimators[OPTIMAL] = measure(optimal, optimal, reference, truth, games, groups)
    critic = None
    if turns["critic"] is not None:
        critic = measure_critic(np.array(turns["critic"]), truth, groups)
    facts = {
        "turns": len(games),
        "games": int(games.max()) + 1,
        "success": case["success"],
        "draws": truth.before.shape[1],
        "spread": math.sqrt(max(truth.spread(), 0.0)),
        "noise": math.sqrt(truth.noise.mean()),
        "ceiling": truth.ceiling(),
        "draws_for_0.95": truth.draws_for(0.95),
        "decided": float(is_decided(truth).mean()),
        "cpu_s": case["cpu_s"],
    }
    return facts, estimators, critic


def mean_facts(facts: Sequence[dict[str, float]]) -> dict[str, float]:
    means = {}
    for name in facts[0]:
        means[name] = float(np.mean([fact[name] for fact in facts]))
    return means


def pool_seeds(estimators: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
    pooled = {}
    for name in estimators[0]:
        pooled[name] = pool_numbers([seed[name] for seed in estimators])
    return pooled


def pool_numbers(seeds: Sequence[Numbers]) -> Numbers:
    """Map each measure to [mean over seeds, half-width of the mean's 95 % interval].

    The interval accounts for the choice of boards and, if there are several seeds, for the choice
    of seeds."""
    pooled = {}
    for name in seeds[0]:
        values = np.array([seed[name][0] for seed in seeds])
        half_widths = np.array([seed[name][1] for seed in seeds])
        mean, half_width = mean_over_seeds(values, half_widths)
        pooled[name] = [float(mean), float(half_width)]
    return pooled


# ---------- Markdown


def section(summary: Summary) -> str:
    lines = [f"## {summary.title}", "", describe_truth(summary.facts), ""]
    rows = []
    ranked = sorted(summary.estimators.items(), key=lambda item: -sort_value(item[1]["rank"][0]))
    for name, numbers in ranked:
        rows.append([name, *cells_of(numbers, HEADINGS)])
    lines += markdown(["credit", *HEADINGS.values()], rows)
    if summary.critic:
        headings = ["the critic against the truth", *CRITIC_HEADINGS.values()]
        cells = ["value before each turn", *cells_of(summary.critic, CRITIC_HEADINGS)]
        lines += ["", *markdown(headings, [cells])]
    return "\n".join(lines)


def cells_of(numbers: Numbers, headings: dict[str, str]) -> list[str]:
    return [cell(*numbers[key], in_percent="%" in words) for key, words in headings.items()]


def describe_truth(facts: dict[str, float]) -> str:
    text = (
        f"On average, the policy of a seed plays {facts['games']:.0f} games with "
        f"{facts['turns']:.0f} turns in total, and wins {100 * facts['success']:.0f} % of the "
        "games. Each game is continued from the state before each of its turns, in two sets of "
        f"{facts['draws']:.0f} continuations. The first set starts with new replies, and the "
        "second set first repeats the reply of the turn. The measurement takes "
        f"{facts['cpu_s']:.0f} CPU-seconds a seed.\n"
        "The estimate of a turn's true advantage is the mean return of the second set minus the "
        "mean return of the first set. The standard error of the estimates is "
        f"{facts['noise']:.3f}. The true advantages have a standard deviation of "
        f"{facts['spread']:.3f}. {100 * facts['decided']:.0f} % of the estimates are more than two "
        "standard errors from 0. "
    )
    if not math.isfinite(facts["ceiling"] + facts["draws_for_0.95"]):
        return f"{text}The advantages differ by no more than the noise: take more continuations."
    return (
        f"{text}Exact advantages would have a rank correlation of about {facts['ceiling']:.2f} "
        f"with the estimates. With {facts['draws_for_0.95']:.0f} continuations in each set, the "
        "Pearson correlation of exact advantages and estimates would be about 0.95."
    )


def sort_value(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def cell(value: float, half_width: float, *, in_percent: bool) -> str:
    """Format a value with its 95 % interval.

    >>> cell(0.5, 0.1, in_percent=False), cell(0.5, 0.1, in_percent=True)
    ('0.50 [0.40, 0.60]', '50 [40, 60]')
    """
    if math.isnan(value):
        return "not known"
    scale = 100 if in_percent else 1
    form = ".0f" if in_percent else ".2f"
    mean = format(scale * value, form)
    if math.isnan(half_width):
        return f"{mean} [not known]"
    low = format(scale * (value - half_width), form)
    high = format(scale * (value + half_width), form)
    return f"{mean} [{low}, {high}]"


# ---------- picture


def draw(path: Path, summaries: Sequence[Summary]) -> None:
    columns: dict[tuple[str, str], list[Summary]] = {}
    for summary in summaries:
        columns.setdefault((summary.env, summary.method), []).append(summary)
    labels = dict.fromkeys(summary.label for summary in summaries)
    looks = {}
    for i, label in enumerate(labels):
        looks[label] = {"color": look_of(i)["color"], "marker": "o", "linestyle": "none"}
    with picture(path, width=6.5 * len(columns), height=0.5 + 4.5 * len(PANELS)) as figure:
        grid = figure.subplots(len(PANELS), len(columns), squeeze=False, sharex=True)
        for axes_of_column, ((env, method), members) in zip(grid.T, columns.items(), strict=True):
            for axes, (key, words) in zip(axes_of_column, PANELS.items(), strict=True):
                draw_panel(axes, key, members, looks)
                axes.set(title=f"{env.split(':')[0]}, policy of {method}", xlabel=words)
        draw_legend(figure, looks, "iteration of the checkpoint")


def draw_panel(axes: Axes, key: str, members: Sequence[Summary], looks: dict[str, dict]) -> None:
    """Draw the measure `key` of all estimators. `looks` maps each checkpoint's label to a style."""
    names = list(members[0].estimators)[::-1]
    for number, summary in enumerate(members):
        shift = 0.15 * (number - (len(members) - 1) / 2)
        numbers = [summary.estimators[name][key] for name in names]
        axes.errorbar(
            [value for value, _ in numbers],
            np.arange(len(names)) - shift,
            xerr=[half_width for _, half_width in numbers],
            fmt="o",
            markersize=4,
            linewidth=1,
            color=looks[summary.label]["color"],
        )
    axes.axvline(0, color=GRAY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(-0.6, 1.2)
    axes.grid(visible=True, axis="x")
