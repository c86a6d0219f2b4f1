"""Run the experiments of this repository and of two papers (arXiv 2504.20073; from `quest` on 2510.01132), and draw
them. An interrupted run continues, a finished one is not repeated, one that several figures share is run once: a run is
known by its settings.

    python reproduce.py learning                                 # every run of the learning table, two at a time
    python reproduce.py fig5 --seeds=0 --only=frozenlake --jobs=1
    python reproduce.py fig5 fig7 fig9 --dry_run=True            # commands and estimated hours
    python reproduce.py learning --draw=True                     # no run: tables and pictures of those that are there
    python reproduce.py fig9 --scale=full                        # Qwen2.5-0.5B-Instruct on a GPU: no config/tiny.py

Runs are JSON under docs/results/runs/; docs/results/NAME.csv, .png and .md are made from them. Runs that started from
other weights in base/ than the present ones do not count.
"""

from configurator import FIELD_TYPES, Config, UserError, load_config, run_main

import csv
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import product, takewhile
from pathlib import Path

import numpy as np
import torch

from eval import paired_bootstrap, wilson_interval
from support.run_folder import load_saved, read_rows, write_atomically


def knobs(**settings) -> tuple[str, ...]:
    """The settings as overrides, without those that are defaults: the same run has the same name in every figure."""
    return tuple(
        f"--{key}={value}" for key, value in settings.items() if value != getattr(Config, key)
    )


def grid(
    envs: tuple[str, ...], kinds: tuple[str, ...], variants: dict[str, tuple]
) -> dict[str, tuple[str, ...]]:
    """Label of a curve, its environment first -> config files and overrides; matched in all that a variant leaves."""
    return {
        f"{env} {kind.upper()} {name}": (
            f"{env}_{kind}",
            *(word.replace("ENV", env) for word in words),
        )
        for env in envs
        for kind in kinds
        for name, words in variants.items()
    }


def split(share: float) -> tuple[str, ...]:
    """Settings of both stages: `share` of BUDGET rollouts buys demonstrations, of ten rollouts each. Steps of SFT are
    those of other figures, however often they go through the demonstrations."""
    stage = (*COPIES, f"--sft_demos={share * BUDGET / 10:.0f}", ">") if share else COPIES[:2]
    return *stage, *knobs(
        group_size=8, filter_keep=0.5, num_iterations=round((1 - share) * BUDGET / 64)
    )


SOKOBAN, GRIDS, ENVS = ("sokoban",), ("frozenlake", "sokoban"), ("bandit", "frozenlake", "sokoban")
PPO, BOTH = ("ppo",), ("ppo", "grpo")
VANILLA, TRANSFER = ("starpo_vanilla",), ("ENV_transfer",)
EVAL, TRAINED, THOUGHTS = ("eval_success",), ("success",), ("response_length", "thought_true_frac")
SIGNS = ("reward", "in_group_reward_std", "entropy", "grad_norm")
# a group of one has no variance to filter by: all 128 are kept, for one optimizer step an iteration as in other rows
ALONE = knobs(num_groups=128, group_size=1, filter_keep=1.0, batch_size=128)
TEXTS, BUDGET, SFT = ("quest", "repair"), 6400, (*knobs(sft_steps=400, sft_batch_size=8), ">")
COPIES = ("quest_ppo", "single_turn", *knobs(sft_steps=1000, sft_batch_size=8))
QUEST = (
    *COPIES,
    *knobs(sft_noise=0.6, sft_clean=0.75),
    ">",
)  # SFT ends on players of whom half succeed; then RL
ESTIMATORS = {"PPO": ()} | {
    f"{name.upper()}{where}": knobs(estimator=name, turn_level=bool(where))
    for name in ("rloo", "grpo")
    for where in ("", " by turn")
}
FIGURES = {  # name -> what it shows, metrics that are drawn, curves
    "learning": (
        "what the configs of this repository learn",
        EVAL,
        {
            "frozenlake_ppo": ("frozenlake_ppo",),
            "frozenlake_grpo": ("frozenlake_grpo",),
            "frozenlake_det_ppo": ("frozenlake_ppo", "frozenlake_det"),
            "bandit_ppo": ("bandit_ppo",),
            "sokoban_ppo": ("sokoban_ppo", *knobs(num_iterations=130)),  # of 200: ten CPU minutes
            "sokoban_large_ppo": ("sokoban_ppo", "sokoban_to_large", *knobs(num_iterations=95)),
        },
    ),
    "fig5": ("vanilla StarPO", EVAL, grid(ENVS, BOTH, {"StarPO": VANILLA})),
    "fig6": (
        "early warnings of collapse in the runs of fig5",
        SIGNS,
        grid(ENVS, BOTH, {"StarPO": VANILLA}),
    ),
    "fig7": (
        "uncertainty filter, by the share of groups that it keeps",
        EVAL,
        grid(
            GRIDS,
            PPO,
            {f"keep {keep:.0%}": knobs(filter_keep=keep) for keep in (0.25, 0.5, 0.75, 1.0)},
        ),
    ),
    "fig8": (
        "StarPO-S without each of its parts",
        EVAL,
        grid(
            GRIDS,
            PPO,
            {
                "StarPO-S": (),
                "with KL": knobs(kl_coef=0.001),
                "symmetric clip": knobs(clip_high=0.2),
                "no filter": knobs(filter_keep=1.0),
                "StarPO": VANILLA,
            },
        ),
    ),
    "fig9": (
        "StarPO-S against StarPO",
        EVAL,
        grid(ENVS, BOTH, {"StarPO": VANILLA, "StarPO-S": ()}),
    ),
    "fig10": (
        "online-k: k passes over every rollout, 200 optimizer steps in all",
        EVAL,
        grid(
            GRIDS,
            PPO,
            {
                f"online-{k}": knobs(num_epochs=k, num_iterations=200 // k, eval_every=10 // k)
                for k in (1, 2, 5, 10)
            },
        ),
    ),
    "fig11": (
        "does reasoning fade, also where true thoughts are paid",
        (*THOUGHTS, *EVAL),
        grid(
            ENVS,
            PPO,
            {
                "StarPO": VANILLA,
                "StarPO-S": (),
                "StarPO-S + think_reward": knobs(think_reward=0.05),
            },
        ),
    ),
    "trap": (
        "vanilla StarPO trained on replies, or on all text like the paper's own code",
        (*EVAL, *SIGNS),
        grid(
            GRIDS,
            BOTH,
            {"StarPO": VANILLA, "StarPO on all text": VANILLA + knobs(mask_observations=False)},
        ),
    ),
    "table2": (
        "N responses to each of 128/N prompts (N=1: no filter)",
        EVAL,
        grid(
            SOKOBAN,
            PPO,
            {
                f"N={n}": TRANSFER + (knobs(num_groups=128 // n, group_size=n) if n > 1 else ALONE)
                for n in (32, 16, 8, 4, 2, 1)
            },
        ),
    ),
    "table3": (
        "k actions a turn, 5k a trajectory",
        EVAL,
        grid(
            SOKOBAN,
            PPO,
            {
                f"k={k}": TRANSFER + knobs(actions_per_turn=k, actions_per_traj=5 * k)
                for k in range(1, 8)
            },
        ),
    ),
    "table4": (
        "with and without thinking",
        EVAL,
        grid(
            ("bandit", "sokoban"),
            PPO,
            {"think": TRANSFER, "no-think": TRANSFER + knobs(think=False)},
        ),
    ),
    # arXiv 2510.01132
    "quest": (
        "RL on quests of w rooms, o objects, q commands, after SFT on the first kind",
        TRAINED,
        {
            f"quest PPO w{w}-o{o}-q{q}": (
                *QUEST,
                "quest_transfer",
                f"--env=quest:w={w},o={o},q={q},goal=full,show=none",
            )
            for w, o, q in ((2, 3, 4), (8, 3, 4), (2, 12, 4), (8, 12, 4), (4, 6, 8))
        },
    ),
    "turns": (
        "step budget: 1.5 to 4 times the shortest solution",
        TRAINED,
        {
            f"quest PPO {k} turns": QUEST
            + knobs(max_turns=k, actions_per_traj=k, max_context_tokens=2560)
            for k in (6, 8, 12, 16)
        },
    ),
    "density": (
        "reward density by estimator; of trajectories, or by turn from returns-to-go",
        TRAINED,
        {
            f"quest {name} {density}": (*QUEST, f"--reward_density={density}", *words)
            for name, words in ESTIMATORS.items()
            for density in ("sparse", "balanced", "dense")
        },
    ),
    "split": (
        f"{BUDGET:,} rollouts, a share of them for demonstrations at ten rollouts each",
        TRAINED,
        {f"quest PPO {share:.0%} SFT": split(share) for share in (0, 0.2, 0.4, 0.6, 0.8, 1)},
    ),
    "ratio": (
        "reward for a repair that passes all tests, or for the share that it mends",
        TRAINED,
        {
            f"repair GRPO {kind}": (
                "repair_grpo",
                "--max_response_tokens=400",
                *SFT,
                f"--env=repair:reward={kind}",
            )
            for kind in ("binary", "ratio")
        },
    ),
}
# config files, jobs at a time, seconds of (a rollout of 128 trajectories, an optimizer step on 32) and their source
SCALES = {
    "tiny": (
        ("tiny",),
        2,
        {
            "bandit": (0.4, 0.3),
            "frozenlake": (1.9, 0.9),
            "sokoban": (3.7, 1.8),
            "quest": (9, 3),
            "repair": (16, 18),
        },
        "CPU time of finished rows, else of groups of 16 (smaller take more); evaluations and SFT come on top",
    ),
    "full": (
        (),
        1,
        dict.fromkeys((*ENVS, *TEXTS), (9.3, 14.7)),
        "finished rows, else the paper's 24 s (25 % kept) to 68 s (all) per step of Sokoban on one GPU",
    ),
}
OPTIONS = {
    "scale": "tiny",
    "seeds": "0,1,2",
    "jobs": 0,
    "only": "",
    "dry_run": False,
    "draw": False,
}
RESULTS = Path("docs/results")
NAMED = str.maketrans(
    ":,", "__"
)  # in names of folders: eval.py takes a list of models, parted by commas
SERIES = ("success", *SIGNS, *THOUGHTS)  # what a row keeps of every iteration
LEGEND = """Success in % of n games; its 95 % Wilson interval counts each prompt once, for the seeds play the same.
Differences are paired, with a bootstrap interval over seeds and prompts, too narrow where fewer
than six games differ. First warning: the iteration of the first early sign of collapse
(diagnostics.py) by seed, - for none. Shaded in the picture: that Wilson interval for evaluations,
the range of the seeds for all else; a triangle is such a warning."""


# ---------- runs


def command(words: tuple[str, ...], scale: str, seed: int, script: str = "train.py") -> list[str]:
    """The command of a run. Words before ">" are also those of an SFT stage, which sft.py runs once for all curves that
    begin with them; they start from its model."""
    overrides = list(
        {word.split("=")[0]: word for word in words if word.startswith("--")}.values()
    )  # the last wins
    files = [*(word for word in words if not word.startswith(("--", ">"))), *SCALES[scale][0]]
    files += ["tiny_text"] if scale == "tiny" and files[0].startswith(TEXTS) else []
    name = "-".join([*files, *(word[2:].translate(NAMED) for word in overrides)]) + f"_s{seed}"
    name = f"sft-{name}" if script == "sft.py" else f"warm-{name}" if ">" in words else name
    if ">" in words:
        overrides.append(f"--model={out_dir_of(sft_command(words, scale, seed))}/model")
    files = [f"config/{file}.py" for file in files]
    return [script, *files, *overrides, f"--seed={seed}", f"--out_dir=out/runs/{name}"]


def sft_command(words: tuple[str, ...], scale: str, seed: int) -> list[str]:
    """The command of the SFT stage; empty without one."""
    return command(words[: words.index(">")], scale, seed, "sft.py") if ">" in words else []


def out_dir_of(arguments: list[str]) -> Path:
    return Path(arguments[-1].removeprefix("--out_dir="))


def settings_of(words: tuple[str, ...], scale: str, seed: int) -> Config:
    """What makes a run the same run: all its settings but the folder."""
    return replace(load_config(command(words, scale, seed)[1:])[0], out_dir="")


def base_of(arguments: list[str]) -> str:
    """Digest of the weights in base/ where a run starts from them, else ''."""
    if "config/tiny.py" not in arguments:
        return ""
    return hashlib.sha256(
        (Path(__file__).parent.parent / "base" / "model.safetensors").read_bytes()
    ).hexdigest()[:12]


def finished_rows() -> dict[Config, dict]:
    """Settings -> row. Settings that a row lacks had their defaults; rows with settings that are gone, or of another
    base, do not count."""
    rows = [json.loads(path.read_text()) for path in sorted((RESULTS / "runs").glob("*.json"))]
    rows = [r for r in rows if r.get("base") == base_of(r["command"].split())]
    rows = [r for r in rows if r["settings"].keys() <= FIELD_TYPES.keys()]
    return {Config(**(r["settings"] | {"out_dir": ""})): r for r in rows}


def first_warning(steps: list[dict]) -> list | None:
    """Iteration and sentence of the first warning, judged at every iteration by the metrics up to it."""
    from support.echo_trap import new_warnings

    said = ((step["step"], new_warnings(steps[:n])) for n, step in enumerate(steps, 1))
    return next(([step, sentences[0]] for step, sentences in said if sentences), None)


def launch(arguments: list[str]) -> str:
    """Run a script, its output in a log beside its folder; returns a line about a failure, else ''."""
    out_dir, base = out_dir_of(arguments), base_of(arguments)
    log, began = Path(f"{out_dir}.log"), Path(f"{out_dir}.base")
    log.parent.mkdir(parents=True, exist_ok=True)
    if base and out_dir.exists() and not (began.is_file() and began.read_text() == base):
        return f"{out_dir} is not known to have begun with the weights in base/; remove it"
    began.write_text(base)
    with log.open("a") as output:
        code = subprocess.run([sys.executable, *arguments], stdout=output, stderr=output).returncode
    return f"{out_dir.name}: failed with exit code {code}, see {log}" if code else ""


def costs_of(config: Config, first: list[str], steps: list[dict]) -> dict[str, float]:
    """What went into a run. Demonstrations and instances differ, they are shown and played several times; tokens are
    those of replies, the expert's as shown and the policy's; CPU seconds are without evaluations."""
    sft, played = {"response_tokens": 0, "cpu_s": 0.0}, config.num_groups * config.group_size
    shown = config.sft_steps * config.sft_batch_size * bool(first)
    sft = (
        json.loads((out_dir_of(first) / "curve.jsonl").read_text().splitlines()[-1])
        if first
        else sft
    )
    return {
        "demonstrations": min(shown, config.sft_demos or shown),
        "times shown": shown,
        "instances": config.num_groups * len(steps),
        "rollouts": played * len(steps),
        "tokens, expert": sft["response_tokens"],
        "tokens, policy": played * sum(s["response_length"] for s in steps),
        "CPU-s, SFT": sft["cpu_s"],
        "CPU-s, RL": sum(s["cpu_s"] for s in steps),
    }


def run(words: tuple[str, ...], scale: str, seed: int) -> tuple[bool, str]:
    """Train one seed and write its row; returns success and a line about it."""
    arguments = command(words, scale, seed)
    config, out_dir = load_config(arguments[1:])[0], out_dir_of(arguments)
    if failure := launch(arguments):
        return False, failure
    if load_saved(out_dir) != config:
        return False, f"{out_dir} holds a run of other settings; remove it"
    steps = read_rows(out_dir / "metrics.jsonl")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    row = {
        "command": shlex.join(["python", *arguments]),
        "settings": asdict(config),
        "git_commit": json.loads((out_dir / "config.json").read_text())["git_commit"],
        "base": base_of(arguments),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {gpu}, Python {platform.python_version()}",
        "iterations": len(steps),
        "cpu_s_per_iteration": sum(s["cpu_s"] for s in steps) / max(1, len(steps)),
        "wall_s_per_iteration": sum(s["rollout_s"] + s["update_s"] for s in steps)
        / max(1, len(steps)),
        "costs": costs_of(config, sft_command(words, scale, seed), steps),
        "curve": {s["step"]: s["eval_success"] for s in steps if s["eval_success"] is not None},
        "series": {
            key: [s[key] if s[key] is None else float(f"{s[key]:.5g}") for s in steps]
            for key in SERIES
        },
        "first_warning": first_warning(steps),
        "successes": json.loads((out_dir / "scores.json").read_text()),
    }
    target = RESULTS / "runs" / f"{out_dir.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, json.dumps(row) + "\n")
    return True, f"{target}: written"


def hours(config: Config, scale: str, rows: dict[Config, dict]) -> float:
    """Estimate for one run, without a stage of SFT, from other seeds of it where there are some."""
    alike = lambda c: replace(c, seed=0, model=c.model.replace(f"_s{c.seed}/", "/"))  # noqa: E731
    key = "cpu_s_per_iteration" if scale == "tiny" else "wall_s_per_iteration"
    known = [row[key] for other, row in rows.items() if alike(other) == alike(config)]
    rollout, step = SCALES[scale][2][config.env.split(":")[0]]
    played = config.num_groups * config.group_size
    guess = rollout * played / 128 + step * played * config.filter_keep * config.num_epochs / 32
    return config.num_iterations * (np.mean(known) if known else guess) / 3600


# ---------- what is shown


def series(row: dict) -> dict[str, dict[int, float]]:
    """Metric -> iteration -> value; iteration 0 is the start."""
    start = next(scored([row]))[1]["start"].mean()
    lines = {
        key: {i: x for i, x in enumerate(xs, 1) if x is not None}
        for key, xs in row["series"].items()
    }
    return {
        "eval_success": {0: float(start)} | {int(i): x for i, x in row["curve"].items()}
    } | lines


def percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def rate(wins: np.ndarray) -> str:
    n = wins.shape[-1]  # not the seeds' as well, which play the same prompts
    return percent(wins.mean(), *wilson_interval(wins.mean() * n, n))


def scored(rows: list[dict]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """For every environment that was scored, that of the run first: its name, and wins (S, n) by stage or player."""
    for env, names in rows[0]["successes"].items():
        yield env, {name: np.array([row["successes"][env][name] for row in rows]) for name in names}


def table(curves: dict[str, list[dict]]) -> str:
    """Markdown: success of all seeds of a curve, differences paired on the same instances, then the players."""
    head = [
        "curve",
        "seeds",
        "n",
        "start",
        "after RL",
        "RL - start",
        "RL - greedy",
        "RL - optimal, 1 a turn",
    ]
    head += ["first warning", "CPU-s/iteration", "commit"]
    lines, players = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], {}
    for label, rows in ((label, rows) for label, rows in curves.items() if rows):
        commits = dict.fromkeys(
            f"{commit[:7]}{commit[40:]}" for commit in (str(row["git_commit"]) for row in rows)
        )
        warned = ", ".join(str((row["first_warning"] or "-")[0]) for row in rows)
        for i, (env, wins) in enumerate(scored(rows)):
            name, end = f"{label} on {env}" if i else label, wins["after RL"]
            others = ("start", "greedy, closed loop", "optimal, 1 a turn")
            cells = [name, ", ".join(str(row["settings"]["seed"]) for row in rows), str(end.size)]
            cells += [rate(wins["start"]), rate(end)]
            cells += [percent(*paired_bootstrap(end, wins[other])) for other in others]
            cells += [warned, f"{np.mean([row['cpu_s_per_iteration'] for row in rows]):.2f}"]
            lines.append(f"| {' | '.join([*cells, ', '.join(commits)])} |")
            text = "; ".join(
                f"{k} {rate(w[0])}" for k, w in wins.items() if k not in ("start", "after RL")
            )
            players.setdefault(text, []).append(name)
    missing = [label for label, rows in curves.items() if not rows]
    costs = {label: [row["costs"] for row in rows] for label, rows in curves.items() if rows}
    costs = (
        costs if any(cost["demonstrations"] for found in costs.values() for cost in found) else {}
    )
    for i, (label, found) in enumerate(costs.items()):
        lines += (
            []
            if i
            else [
                "",
                f"| mean costs of | {' | '.join(found[0])} |",
                "|---" * (1 + len(found[0])) + "|",
            ]
        )
        lines.append(
            f"| {label} | {' | '.join(f'{np.mean([c[key] for c in found]):,.0f}' for key in found[0])} |"
        )
    lines += ["", LEGEND, *(["", f"Not run yet: {', '.join(missing)}."] if missing else [])]
    lines += ["", "Reference players on the same instances, success in %:", ""]
    return (
        "\n".join([*lines, *(f"- {', '.join(names)}: {text}" for text, names in players.items())])
        + "\n"
    )


def draw(ax, metric: str, label: str, rows: list[dict]) -> None:
    """One curve, as LEGEND says, over the passes made over trajectories: iterations times epochs."""
    scale = rows[0]["settings"]["num_epochs"]
    lines = [series(row).get(metric, {}) for row in rows]
    steps = sorted(set().union(*lines))
    if not steps:
        return
    values = np.array(
        [[line.get(step, np.nan) for step in steps] for line in lines]
    )  # (S, len(steps))
    steps, mean, low, high = (
        scale * np.array(steps),
        *(f(values, 0) for f in (np.nanmean, np.nanmin, np.nanmax)),
    )
    if metric == "eval_success":
        n = next(scored(rows))[1]["after RL"].shape[1]  # prompts
        low, high = np.array([wilson_interval(p * n, n) for p in mean]).T
    color = ax.plot(steps, mean, label=label)[0].get_color()
    ax.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
    warned = [scale * row["first_warning"][0] for row in rows if row["first_warning"]]
    ax.plot(warned, np.interp(warned, steps, mean), "v", color=color)


def plot(path: Path, title: str, metrics: tuple[str, ...], curves: dict[str, list[dict]]) -> None:
    """A column of panels per environment, a row per metric; gray: players that score the same for all curves of it."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, list[dict]]] = {}
    for label, rows in curves.items():
        env = label.replace("_", " ").split()[0]
        if rows:
            panels.setdefault(env, {})[label.removeprefix(f"{env} ")] = rows
    panels = panels or {"nothing was run": {}}
    figure = Figure(figsize=(5 * len(panels), 3.5 * len(metrics)), layout="constrained")
    figure.suptitle(title, wrap=True)
    axes = figure.subplots(len(metrics), len(panels), squeeze=False)
    for (i, metric), (column, (env, inside)) in product(
        enumerate(metrics), zip(axes.T, panels.items(), strict=True)
    ):
        ax = column[i]
        ax.set(title=env, xlabel="iterations * num_epochs", ylabel=metric)
        ax.set_yscale("log" if metric == "grad_norm" else "linear")
        for label, rows in inside.items():
            draw(ax, metric, label, rows)
        wins = [next(scored(rows))[1] for rows in inside.values() if metric == "eval_success"]
        for player, style in {"random": ":", "greedy": "-.", "optimal": "--"}.items():
            if len(rates := {w[f"{player}, closed loop"][0].mean() for w in wins}) == 1:
                ax.axhline(rates.pop(), color="gray", linestyle=style, label=player)
        if inside:
            ax.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def show(name: str, scale: str, seeds: list[int]) -> str:
    """Write the table, the points and the picture of the runs that are there; returns the table."""
    (what, metrics, curves), rows = FIGURES[name], finished_rows()
    seeds = sorted({*seeds, *(config.seed for config in rows)})
    wanted = {
        label: [settings_of(words, scale, seed) for seed in seeds]
        for label, words in curves.items()
    }
    found = {
        label: [rows[config] for config in configs if config in rows]
        for label, configs in wanted.items()
    }
    stem = f"{RESULTS}/{name}" if scale == "tiny" else f"{RESULTS}/{name}_{scale}"
    text = f"{name}, {scale}: {what}.\n\n{table(found)}"
    Path(f"{stem}.md").write_text(text, encoding="utf-8")
    with Path(f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
        rows = ((label, row) for label, rows in found.items() for row in rows)
        lines = (
            (label, row["settings"]["seed"], *line)
            for label, row in rows
            for line in series(row).items()
        )
        cells = (
            (label, seed, i, metric, x)
            for label, seed, metric, line in lines
            for i, x in line.items()
        )
        csv.writer(file, lineterminator="\n").writerows(
            [("curve", "seed", "iteration", "metric", "value"), *cells]
        )
    plot(Path(f"{stem}.png"), f"{name}, {scale}: {what}", metrics, found)
    return text


def read_options(argv: list[str]) -> tuple[list[str], dict, list[int]]:
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    if not names or set(names) - FIGURES.keys():
        raise UserError(
            f"give names among {', '.join(FIGURES)}; got {' '.join(names) or 'nothing'}"
        )
    _, options, sources = load_config(argv[len(names) :], extra=OPTIONS)
    if set(sources.values()) != {"default"}:
        raise UserError(
            f"the settings of the runs are fixed here; the options are --{', --'.join(OPTIONS)}"
        )
    if options["scale"] not in SCALES:
        raise UserError(f"scale must be one of {', '.join(SCALES)}, got {options['scale']!r}")
    seeds = options["seeds"].split(",")
    if not all(seed.isdecimal() for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(
            f"seeds must be different integers, such as 0,1,2, got {options['seeds']!r}"
        )
    return names, options, [int(seed) for seed in seeds]


def main(argv: list[str]) -> None:
    names, options, seeds = read_options(argv)
    scale, only, rows = options["scale"], options["only"], finished_rows()
    curves = [curve for name in names for curve in FIGURES[name][2].items()]
    chosen = [words for label, words in curves if only in label]
    if not chosen:
        raise UserError(f"--only={only} matches none of {', '.join(label for label, _ in curves)}")
    runs = {
        settings_of(words, scale, seed): (words, scale, seed) for seed in seeds for words in chosen
    }
    todo = {config: job for config, job in runs.items() if config not in rows}
    todo = {} if options["draw"] else todo
    print(
        f"{len(runs)} runs, {sum(config in rows for config in runs)} of them finished", flush=True
    )
    firsts = [
        first for first in dict.fromkeys(tuple(sft_command(*job)) for job in todo.values()) if first
    ]
    if options["dry_run"]:
        estimates = {job: hours(config, scale, rows) for config, job in todo.items()}
        for first in firsts:
            print(f"{shlex.join(['python', *first])}  # before those that start from it")
        for job, estimate in estimates.items():
            print(f"{shlex.join(['python', *command(*job)])}  # {estimate:.2f} h")
        print(f"about {sum(estimates.values()):.1f} hours one after the other ({SCALES[scale][3]})")
        return
    with ThreadPoolExecutor(options["jobs"] or SCALES[scale][1]) as pool:
        failures = dict(zip(firsts, pool.map(launch, firsts), strict=True))
        failed = list(filter(None, failures.values()))
        ready = [job for job in todo.values() if not failures.get(tuple(sft_command(*job)))]
        for there, line in pool.map(lambda job: run(*job), ready):
            print(line, flush=True)
            failed += [] if there else [line]
    for name in names:
        print(show(name, scale, seeds))
    if failed:
        raise UserError("; ".join(failed))


if __name__ == "__main__":
    run_main(main)
