"""Markdown tables and short commits."""

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [line_of(headings), "|---" * len(headings) + "|"]
    for cells in rows:
        lines.append(line_of(cells))
    return lines


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def short_commit(commit: str | None) -> str:
    """Return the first seven digits of a commit, with its ending "-dirty" if present."""
    text = str(commit)
    return text[:7] + text[40:]
