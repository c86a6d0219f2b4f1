"""Speedrun: CPU-seconds until a policy wins 80 % on slippery FrozenLake, or 70 % in Sokoban.

    python -m tools.speedrun docs/speedrun/paper.py --track=frozenlake     # an hour
    python -m tools.speedrun docs/speedrun/paper.py --track=sokoban --seeds=0,1
    python -m tools.speedrun docs/speedrun/paper.py --track=sokoban --seeds=0 --split=heldout
    python -m tools.speedrun --draw=True        # only write the tables in docs/speedrun.md

docs/speedrun.md has the rules. The command checks them, trains each seed in a process of its own,
scores the saved policies, and writes docs/results/speedrun/ENTRY-TRACK.json and the tables. An
interrupted call continues, and a finished seed is not repeated. With --split=heldout the policies
play the held-out prompts, and no result is written: use it to choose settings.
"""

from configurator import UserError, load_config, printable, run_main

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from support.run_folder import (
    append_to,
    git_commit,
    read_json,
    read_rows,
    read_text,
    write_atomically,
)
from tools import tables
from tools.runs import describe_machine
from tools.speedrun_rules import (
    GAMES_PER_PROMPT,
    SCORING,
    SEEDS,
    TRACKS,
    Entry,
    Finish,
    base_hash,
    differing_key,
    finish_of,
    read_entry,
    seed_folder,
)

ENTRIES = Path("docs/speedrun")
RESULTS = Path("docs/results/speedrun")
PAGE = Path("docs/speedrun.md")
TABLE_HEAD = (
    "CPU-s, median",
    "CPU-s by seed",
    "sampled tokens, median",
    "imitated tokens, median",
    "entry",
    "machine",
)
OPTIONS = {
    "track": "",  # a key of TRACKS
    "seeds": ",".join(map(str, SEEDS)),
    "split": "eval",  # heldout: score the held-out prompts, and write no result
    "draw": False,  # only write the tables
}
# Exit codes of a seed that a signal interrupted, see support/process.py. Python's own are negative.
INTERRUPTED = (75, 130)
STARTED = {"base": str, "checks": [int], "settings": [{}], "commits": [str]}
RESULT = {  # what the tables read of a result file, see support/shapes.py
    "entry": str,
    "title": str,
    "track": str,
    "base": str,
    "checks": [int],
    "settings": [{}],
    "seeds": {
        str: {
            "commits": [str],
            "machine": str,
            "failure": str,
            "checks": [
                {
                    "iteration": int,
                    "cpu_s": float,
                    "sampled": int,
                    "imitated": int,
                    "wins": (int, None),
                    "games": int,
                }
            ],
        }
    },
}


# ---------- the command


def main(argv: list[str]) -> None:
    path, options, seeds = read_arguments(argv)
    if path:
        entry = read_entry(path, options["track"])
        run_entry(entry, seeds, options["split"])
    if options["split"] == "eval":
        write_page()


def read_arguments(argv: Sequence[str]) -> tuple[Path | None, dict, list[int]]:
    """Read the command line. Returns: the entry, None with --draw=True; options; seeds."""
    paths = [word for word in argv if not word.startswith("-")]
    words = [word for word in argv if word.startswith("-")]
    _, options, sources = load_config(words, extra=OPTIONS)
    if set(sources.values()) != {"default"}:
        raise UserError(f"an entry holds its settings; the options are --{', --'.join(OPTIONS)}")
    if options["draw"] and not paths:
        return None, options, []
    if len(paths) != 1 or options["draw"]:
        given = " ".join(argv) or "nothing"
        raise UserError(
            f"give one entry, such as docs/speedrun/paper.py, or --draw=True; got {given}"
        )
    if options["track"] not in TRACKS:
        raise UserError(f"track must be one of {', '.join(TRACKS)}, got {options['track']!r}")
    if options["split"] not in ("eval", "heldout"):
        raise UserError(f"split must be eval or heldout, got {options['split']!r}")
    legal = [str(seed) for seed in SEEDS]
    seeds = options["seeds"].split(",")
    if len(set(seeds)) < len(seeds) or set(seeds) - set(legal):
        raise UserError(
            f"seeds must be different numbers among {', '.join(legal)}, got {options['seeds']!r}"
        )
    return Path(paths[0]), options, [int(seed) for seed in seeds]


def run_entry(entry: Entry, seeds: Sequence[int], split: str) -> None:
    """Train and score the seeds that have no result yet."""
    read_result(entry)  # raises for a result of another base before the work begins
    if split == "eval" and commit_of(entry).endswith("-dirty"):
        print("files are not committed: the board will not list these seeds", flush=True)
    for seed in seeds:
        known = read_result(entry)["seeds"].get(str(seed))
        is_known = known and not known["failure"] and finish_in(entry.track, known)
        if split == "eval" and is_known:
            row = known
        else:
            row = run_seed(entry, seed, split)
        print(f"{entry.name}, seed {seed}: {describe_seed(entry, row)}", flush=True)
        if split == "eval":
            result = read_result(entry)  # again: another process may have added a seed
            result["seeds"][str(seed)] = row
            write_result(entry, result)


def describe_seed(entry: Entry, row: dict) -> str:
    """The scores of a seed and its time, in one line."""
    if row["failure"]:
        return f"never crosses: {row['failure']}"
    scores = []
    for check in row["checks"]:
        if check["wins"] is not None:
            scores.append(f"{check['iteration']}: {100 * check['wins'] / check['games']:.1f}")
    finish = finish_in(entry.track, row)
    time = "never crosses"
    if math.isfinite(finish.cpu_s):
        time = f"crosses after {finish.cpu_s:.1f} CPU-s and {finish.sampled:,} sampled tokens"
    return f"{time}; success in % by iteration: {', '.join(scores)}"


def finish_in(track: str, row: dict) -> Finish | None:
    return finish_of(row, TRACKS[track].threshold)


# ---------- one seed


def run_seed(entry: Entry, seed: int, split: str) -> dict:
    """Train a seed and score it, each in a process of its own. Returns: its row of the result.

    Raises: UserError if a signal interrupted it, or if it cannot be scored."""
    folder = seed_folder(entry, seed)
    commits = begin(entry, folder)
    words = [str(entry.path), entry.track, str(seed)]
    failure = launch(["train", *words], folder)
    wins: dict[str, int] = {}
    if not failure:
        problem = launch(["score", *words, split], folder)
        if problem:
            raise UserError(problem)
        wins = read_json(folder / f"scores-{split}.json", {str: int})
    return {
        "commits": commits,
        "machine": describe_cpu(),
        "failure": failure,
        "checks": [] if failure else rows_of_checks(entry, folder, wins),
    }


def begin(entry: Entry, folder: Path) -> list[str]:
    """Check that a seed can begin or continue in its folder. Returns: the commits that it ran on.

    Raises: UserError if the folder holds a run of other settings or of another base."""
    now = entry.description()
    path = folder / "started.json"
    commits: list[str] = []
    if path.is_file():
        before = read_json(path, STARTED)
        commits = before["commits"]
        key = differing_key(before, now)
        if key:
            raise UserError(f"{folder} holds a run that differs in its {key}; remove it")
    commit = commit_of(entry)
    if commit not in commits:
        commits.append(commit)
    folder.mkdir(parents=True, exist_ok=True)
    started = {key: now[key] for key in ("base", "checks", "settings")}
    write_atomically(path, json.dumps({**started, "commits": commits}) + "\n")
    return commits


def launch(words: Sequence[str], folder: Path) -> str:
    """Run a part of tools/speedrun_seed.py and wait for its end. Its output goes to log.txt.

    Returns: a sentence about the failure, or "" after success.
    Raises: UserError if a signal interrupted it."""
    log = folder / "log.txt"
    action = words[0]
    print(f"{folder.name}: {action}, see {log}", flush=True)
    with append_to(log) as output:
        command = [sys.executable, "-m", "tools.speedrun_seed", *words]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        code = wait_for(process)
    if code == 0:
        return ""
    if code < 0 or code in INTERRUPTED:
        raise UserError(f"{folder.name} was interrupted; start again to continue on its clock")
    last_line = read_text(log).strip().rpartition("\n")[2]
    return printable(f"{action} failed with exit code {code}: {last_line}")


def wait_for(process: subprocess.Popen) -> int:
    """Wait for a process. Ctrl-C reaches it as well, and it then needs time to save."""
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()


def rows_of_checks(entry: Entry, folder: Path, wins: dict[str, int]) -> list[dict]:
    """What the clock showed at each check, and the games won there (None: not scored)."""
    last_stage = len(entry.steps) - 1
    on_clock = {}
    for row in read_rows(folder / "clock.jsonl"):
        if row["stage"] == last_stage:
            on_clock[row["iteration"]] = row  # a repeated iteration has a later row
    checks = []
    for iteration in entry.checks:
        row = {
            key: on_clock[iteration][key] for key in ("iteration", "cpu_s", "sampled", "imitated")
        }
        row["wins"] = wins.get(str(iteration))
        row["games"] = SCORING.eval_size * GAMES_PER_PROMPT
        checks.append(row)
    return checks


def describe_cpu() -> str:
    """The machine with the name of its processor. Linux names it in /proc/cpuinfo."""
    names = []
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                names.append(line.partition(":")[2].strip())
    return ", ".join([*names[:1], describe_machine()])


# ---------- results


def result_path(entry: Entry) -> Path:
    return RESULTS / f"{entry.name}.json"


def read_result(entry: Entry) -> dict:
    """The result file of an entry, or one without seeds if there is no file.

    Raises: UserError if the file is of another base, or of other settings."""
    now = {**entry.description(), "seeds": {}}
    path = result_path(entry)
    if not path.is_file():
        return now
    before = read_json(path, RESULT)
    key = differing_key(before, now)
    if key:
        raise UserError(
            f"{path} differs in its {key}, so times do not compare; remove it, or give the entry "
            "another name"
        )
    return {**now, "seeds": before["seeds"]}


def write_result(entry: Entry, result: dict) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    result["seeds"] = dict(sorted(result["seeds"].items()))
    write_atomically(result_path(entry), json.dumps(result, indent=1) + "\n")


def why_not_listed(result: dict) -> str:
    """Why the board does not list a result; "" if it does."""
    if Path(result["entry"]).parent != ENTRIES:
        return f"its entry is not in {ENTRIES}/"
    base = base_hash()
    if result["base"] != base:
        return f"it started from base {result['base']}, and base/ is {base}"
    missing = [str(seed) for seed in SEEDS if str(seed) not in result["seeds"]]
    if missing:
        return f"seeds {', '.join(missing)} are missing"
    for seed, row in result["seeds"].items():
        if any(commit.endswith("-dirty") for commit in row["commits"]):
            return f"seed {seed} ran with files that its commit does not have"
        if finish_in(result["track"], row) is None:
            return f"seed {seed} has checks that are not scored"
    return ""


def commit_of(entry: Entry) -> str:
    """The commit of the code, with "-dirty" if it lacks the entry or if a file has changed."""
    commit = git_commit()
    if commit is None:
        return "unknown-dirty"
    folder = Path(__file__).resolve().parent
    git = ["git", "-C", str(folder), "ls-files", "--error-unmatch"]
    listed = subprocess.run([*git, str(Path(entry.path).resolve())], capture_output=True)
    if listed.returncode == 0 or commit.endswith("-dirty"):
        return commit
    return f"{commit}-dirty"


# ---------- the tables


def write_page() -> None:
    """Write the tables of all tracks into docs/speedrun.md, and say what they leave out."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        result = read_json(path, RESULT)
        reason = why_not_listed(result)
        if reason:
            print(f"{path} is not listed: {reason}")
        else:
            results.append(result)
    filled = {}
    for track in TRACKS:
        filled[track] = table([result for result in results if result["track"] == track])
    write_atomically(PAGE, tables.fill(read_text(PAGE), filled))
    print(f"wrote the tables in {PAGE}")


def table(results: Sequence[dict]) -> str:
    """The Markdown table of a track, the fastest entry first."""
    if not results:
        return "No entry for this base."
    by_time = sorted(results, key=lambda result: (median(times_of(result)), result["title"]))
    lines = [TABLE_HEAD, ("---",) * len(TABLE_HEAD)]
    lines += [table_row(result) for result in by_time]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_row(result: dict) -> tuple[str, ...]:
    """The cells of an entry. Links lead from docs/ to the entry and to its result file."""
    finishes = finishes_of(result)
    source = Path(result["entry"]).relative_to("docs").as_posix()
    name = f"{Path(result['entry']).stem}-{result['track']}"
    title = printable(result["title"]).replace("|", "\\|")
    machines = {row["machine"] for row in result["seeds"].values()}
    return (
        in_words(median(times_of(result))),
        ", ".join(in_words(cpu_s) for cpu_s in times_of(result)),
        in_words(median(finish.sampled for finish in finishes)),
        in_words(median(finish.imitated for finish in finishes)),
        f"[{title}]({source}) ([result](results/speedrun/{name}.json))",
        printable("; ".join(sorted(machines))).replace("|", "\\|"),
    )


def finishes_of(result: dict) -> list[Finish]:
    return [finish_in(result["track"], result["seeds"][str(seed)]) for seed in SEEDS]


def times_of(result: dict) -> list[float]:
    """CPU seconds of the seeds in their order; infinite for a seed that never crosses."""
    return [finish.cpu_s for finish in finishes_of(result)]


def in_words(value: float) -> str:
    """A rounded number.

    >>> in_words(1234.5), in_words(math.inf)
    ('1,234', 'never')
    """
    return f"{value:,.0f}" if math.isfinite(value) else "never"


if __name__ == "__main__":
    run_main(main)
