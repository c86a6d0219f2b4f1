"""Show what an agent did: a page of trajectories, a GIF of one trajectory, or plots of runs.

    python -m tools.view out/frozenlake_ppo                      # the page: view.html
    python -m tools.view out/frozenlake_ppo --follow             # updated while the run goes on
    python -m tools.view out/frozenlake_ppo --against=out/frozenlake_grpo     # two runs, one page
    python -m tools.view out/games.jsonl                         # a file that eval.py --jsonl wrote
    python -m tools.view out/frozenlake_ppo --gif=12             # trajectory 12 as a GIF
    python -m tools.view out/frozenlake_ppo out/frozenlake_grpo  # learning curves of two runs
    python -m tools.view out/frozenlake_ppo --panel              # metrics that warn of a collapse

The page, GIF or plot (PNG and PDF) is written into the folder of the first run. For a file of
trajectories, the page is written beside that file. The page is one HTML file and needs no network.
Its address in the browser names the trajectory, the turn and the filters. A copy of this address
opens the same view.
"""

from configurator import UserError

from dataclasses import dataclass
from pathlib import Path

from support.terminal import run_main


@dataclass(frozen=True)
class Command:
    """A parsed command line."""

    runs: list[Path]
    gif: int | None = None  # number of the trajectory to animate
    panel: bool = False
    follow: bool = False
    against: Path | None = None  # the run or file to show at the right of the page

    @property
    def shown(self) -> list[Path]:
        return [self.runs[0], self.against] if self.against else [self.runs[0]]


def parse_command(argv: list[str]) -> Command:
    """Read the command line.

    Raises: UserError for a missing path, or for arguments that cannot be combined."""
    runs = []
    options = {}
    for argument in argv:
        name, _, value = argument.partition("=")
        if not argument.startswith("--"):
            runs.append(existing_source(argument))
        elif name in options:
            raise UserError(f"{name} is given twice")
        else:
            options[name] = value
    given = options.keys()
    unknown = given - {"--gif", "--follow", "--against", "--panel"}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UserError(f"unknown option {names}; expected --against, --follow, --gif or --panel")
    shows_page = len(runs) == 1 and given <= {"--against"}
    if not shows_page:
        check_folders(runs)
    if runs and not given:
        return Command(runs)
    if runs and options == {"--panel": ""}:
        return Command(runs, panel=True)
    if len(runs) == 1 and given == {"--gif"} and options["--gif"].isdecimal():
        return Command(runs, gif=int(options["--gif"]))
    if len(runs) == 1 and given <= {"--follow", "--against"} and not options.get("--follow"):
        against = existing_source(options["--against"]) if "--against" in options else None
        return Command(runs, follow="--follow" in options, against=against)
    raise UserError(
        "expected run folders or a file of trajectories, in one of these forms: RUN ... [--panel] "
        "or RUN --gif=NUMBER or RUN [--follow] [--against=RUN] or FILE [--against=FILE]; "
        f"got {' '.join(argv)!r}"
    )


def existing_source(argument: str) -> Path:
    """Return the path of a run or file.

    Raises: UserError unless the path leads to a folder or plain file."""
    source = Path(argument)
    if not argument or not source.exists():
        raise UserError(
            f"{argument} does not exist; expected the folder of a run, or a file of trajectories"
        )
    if not source.is_dir() and not source.is_file():
        raise UserError(f"{source} is neither a folder nor a plain file")
    return source


def check_folders(runs: list[Path]) -> None:
    """Raises: UserError if one of the runs is a file."""
    for run in runs:
        if not run.is_dir():
            raise UserError(
                f"{run} is a file; a plot, a GIF and --follow need run folders, but a page can "
                "show one file, or two files with --against"
            )


if __name__ == "__main__":
    run_main(parse_command, kind=None)  # reports wrong arguments before the slow imports

import json
import time

from tools.viewer.curves import draw_curves, draw_warning_panel
from tools.viewer.data import STAGES, load_runs
from tools.viewer.gif import draw_gif
from utils.files import write_atomically

PAGE = Path(__file__).parent / "viewer" / "page"
TEMPLATE = PAGE / "page.html"
STYLE = "{{style}}"  # placeholders in the template
DATA = "{{data}}"
SCRIPTS = "{{scripts}}"
# scripts of the page, in the order of execution
SCRIPT_NAMES = ("data", "elements", "boards", "marks", "list", "pane", "strip", "link", "start")
REFRESH_S = 5  # seconds between two reloads of the page
POLL_S = 2.0  # seconds between two looks for new records


def main(argv: list[str]) -> None:
    command = parse_command(argv)
    run = command.runs[0]
    others = []  # the same picture in other formats
    if command.gif is not None:
        path = run / f"trajectory_{command.gif}.gif"
        draw_gif(load_runs([run]), command.gif, path)
    elif command.panel:
        path = run / "panel.png"
        others = [path.with_suffix(".pdf")]
        draw_warning_panel(command.runs, path, *others)
    elif len(command.runs) > 1:
        path = run / "curves.png"
        others = [path.with_suffix(".pdf")]
        draw_curves(command.runs, path, *others)
    else:
        path = page_path(run, bool(command.against))
        if command.follow:
            follow(command.shown, path)
            return
        write_page(command.shown, path)
    announce(path, *others)


def announce(path: Path, *others: Path) -> None:
    names = " and ".join(str(written) for written in (path, *others))
    print(f"wrote {names}; open {path.resolve().as_uri()}", flush=True)


def page_path(source: Path, compares: bool) -> Path:
    """Return the path of the page, in the folder of a run or beside a file."""
    name = "view_against.html" if compares else "view.html"
    return source / name if source.is_dir() else source.with_name(f"{source.stem}_{name}")


# ---------- the page


def write_page(runs: list[Path], path: Path, refresh_s: int = 0) -> None:
    """Write the page of one or two runs or files.

    Args: refresh_s: seconds between two reloads in the browser; 0 = never."""
    data = load_runs(runs)
    data["refresh_s"] = refresh_s
    data["written"] = time.strftime("%H:%M:%S")
    write_atomically(path, fill_template(data))


def fill_template(data: dict) -> str:
    """Return the HTML page with its style, its scripts and `data`.

    `data` becomes JSON. A text in `data` may contain HTML, such as a </script> that would end the
    <script> element of `data`. So each "<" is written as \\u003c.
    """
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    scripts = [read_part(f"{name}.js") for name in SCRIPT_NAMES]
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace(STYLE, read_part("page.css"), 1)
    page = page.replace(SCRIPTS, "\n".join(scripts), 1)
    return page.replace(DATA, encoded, 1)  # last, because the data may contain a placeholder


def read_part(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def follow(runs: list[Path], path: Path) -> None:
    """Write the page again when a run has new records.

    Stop at Ctrl-C, or when all runs are finished. A finished run has scores.md."""
    seen = None
    try:
        while True:
            finished = all((run / "scores.md").is_file() for run in runs)
            state = state_of(runs)
            if not finished and not all(state.values()):
                if seen is None:
                    print("waiting for the first trajectories; Ctrl-C ends", flush=True)
                seen = {}
            elif state != seen or finished:
                write_page(runs, path, refresh_s=0 if finished else REFRESH_S)
                if not seen:
                    announce(path)
                seen = state
            if finished:
                print("finished", flush=True)
                return
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        if seen:
            write_page(runs, path)


def state_of(runs: list[Path]) -> dict[Path, list]:
    """Map each run to a list with the size and modification time of each of its files.

    The files are those of trajectories, metrics and scores. The list of a run is empty until the
    run has both trajectories and config.json. `follow` waits while any list is empty, unless all
    runs are finished. New records change the result, so `follow` writes the page again.
    """
    states = {}
    for run in runs:
        files = [run / name for name in (*STAGES, "metrics.jsonl", "scores.json")]
        stats = {file.name: file.stat() for file in files if file.is_file()}
        has_records = any(name in STAGES and stat.st_size for name, stat in stats.items())
        ready = has_records and (run / "config.json").is_file()
        states[run] = [(s.st_size, s.st_mtime_ns) for s in stats.values()] if ready else []
    return states


if __name__ == "__main__":
    run_main(main)
