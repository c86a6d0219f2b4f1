"""Show replies of a run at its start, at its best iteration and at its end, as Markdown."""

import json
from collections.abc import Sequence
from pathlib import Path

from utils.files import read_rows, read_text
from utils.text import printable

SHOWN = 4  # number of replies shown for each iteration
MOMENTS = ("start", "best", "end")


def replies_page(runs: dict[str, Path]) -> str:
    """Args: runs: maps the name of a method to the folder of its run."""
    lines = ["# Replies", ""]
    for name, folder in runs.items():
        lines += [f"## {name}", "", *reply_lines(folder), ""]
    return "\n".join(lines)


def reply_lines(folder: Path) -> list[str]:
    rows = {row["step"]: row for row in read_rows(folder / "metrics.jsonl")}
    records = records_by_step(folder)
    recorded = sorted(records.keys() & rows.keys())
    lines = []
    for moment, step in zip(MOMENTS, moments(recorded, rows), strict=True):
        row = rows[step]
        success = f"{100 * row['success']:.0f} % success"
        length = f"{row['response_length']:.0f} tokens a reply"
        lines.append(f"{moment}, iteration {step}: {success}, {length}")
        lines.append("```")
        for record in spread_out(records[step], SHOWN):
            lines.append(first_reply(record))
        lines += ["```", ""]
    return lines


def records_by_step(folder: Path) -> dict[int, list[dict]]:
    records: dict[int, list[dict]] = {}
    for line in read_text(folder / "trajectories.jsonl").splitlines():
        record = json.loads(line)
        records.setdefault(record["step"], []).append(record)
    return records


def moments(recorded: Sequence[int], rows: dict[int, dict]) -> tuple[int, int, int]:
    """Return the first, the best and the last recorded iteration. The best iteration has the
    highest success. If several iterations have this success, the earliest is the best."""
    best = max(recorded, key=lambda step: rows[step]["success"])
    return recorded[0], best, recorded[-1]


def spread_out(records: Sequence[dict], count: int) -> list[dict]:
    """Return up to `count` evenly spaced records. Neighbouring records often belong to one group,
    so spaced records show more groups."""
    distance = max(1, len(records) // count)
    return list(records[::distance][:count])


def first_reply(record: dict) -> str:
    return printable(" ".join(record["turns"][0]["response"].split()), limit=240)
