"""Markdown tables and short commit hashes."""

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [line_of(headings), "|---" * len(headings) + "|"]
    for cells in rows:
        lines.append(line_of(cells))
    return lines


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def short_commit(commit: str | None) -> str:
    """Return the first seven digits of a commit hash, and the ending "-dirty" if there is one."""
    text = str(commit)
    return text[:7] + text[40:]
