"""Make the GPU measurements in the table of studies/speed/README.md, and print the results.

    python -m studies.speed.gpu_report                         # one H100 or H200, about 15 minutes
    python -m studies.speed.gpu_report --minutes=9  # stop measuring after 9 minutes
    python -m studies.speed.gpu_report --pieces=update,head    # these pieces, in this order
    python -m studies.speed.gpu_report --device=cpu  # tiny models on a CPU, 1 CPU-minute

A piece is a group of measurements (cases). A piece runs in a process of its own (gpu_pieces.py),
which is stopped after 4 minutes at the latest. If a case breaks the process, the remaining cases
run in a new process. Results are appended to out/gpu/results.jsonl. The next call skips measured
pieces, and runs failed pieces after all others. But the piece `environment` keeps its place in the
order, even if it failed. --out_dir=PATH sets a folder other than out/gpu. --model=NAME sets the
model of the piece `flagship`. Without vLLM, the pieces that need vLLM are skipped.
"""

from configurator import Config, UserError, load_config

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from support.terminal import run_main

DEFAULTS = Config(device="cuda", out_dir="out/gpu")
OPTIONS = {
    "pieces": "",  # names of PIECES, separated by commas; '' = all
    "minutes": 0.0,  # time for all measurements of a call; 0 = no limit
}
MAX_PROCESS_S = 240.0
MIN_PROCESS_S = 30.0  # if less than this time is left, no process starts
TERM_S = 35.0  # time from SIGTERM to SIGKILL; torchrun needs 30 s to kill ranks that do not end
NOT_MEASURED = "not measured"


class Piece(NamedTuple):
    """A group of measurements (cases)."""

    name: str
    title: str
    needs: str = ""  # "" (nothing), "cuda" (a GPU) or "vllm" (a GPU and vLLM)


# The most useful pieces come first, because a GPU may be available only for minutes.
PIECES = (
    Piece("environment", "Versions and rates of the machine"),
    Piece("tiny", "One iteration of the tiny model with the torch engine, against the CPU"),
    Piece("tiny_vllm", "One iteration of the tiny model with vLLM, against the CPU", "vllm"),
    Piece("fsdp", "FSDP2 with one rank under torchrun: update, checkpoint, restart"),
    Piece("update", "Update of 128 trajectories, 0.5B, packs of 16,384 tokens"),
    Piece("engine", "Torch engine, 0.5B: 128 trajectories with two turns of 150 tokens"),
    Piece("flagship", "Qwen2.5-0.5B-Instruct, vLLM, up to 20 iterations", "vllm"),
    Piece("kernels", "GRPO update of W1 with other kernels, packs of 16,384 tokens", "cuda"),
    Piece("head", "Log-probs of 4,096 tokens, vocabulary of 151,936: forward and backward"),
    Piece("iteration", "Whole PPO iteration, 0.5B with random weights, torch engine"),
    Piece("iteration_vllm", "Whole PPO iteration, 0.5B with random weights, vLLM", "vllm"),
    Piece("kernels_32k", "GRPO update of W1, packs of 32,768 tokens", "cuda"),
)


def main(argv: list[str]) -> None:
    config, options, _ = load_config(argv, extra=OPTIONS, base=DEFAULTS)
    results = Results(Path(config.out_dir))
    deadline = math.inf
    if options["minutes"]:
        deadline = time.perf_counter() + 60 * options["minutes"]
    for piece in in_order(chosen_pieces(options["pieces"]), results):
        if deadline - time.perf_counter() < MIN_PROCESS_S:
            print("no time is left; the next call continues", flush=True)
            break
        run_piece(piece, config, results, deadline)
        if piece.name == "environment" and results.state(piece.name) == "failed":
            break  # the device does not work
    print(write_report(results))
    failures = [row for row in results.rows.values() if row["state"] == "failed"]
    if failures:
        names = ", ".join(f"{row['piece']} {row['case']}".strip() for row in failures)
        raise UserError(f"failed: {names}; {results.path} has the reasons")


# ---------- results


class Results:
    """The lines of results.jsonl. The last line about a case is its result.

    A line has the keys "piece", "case", "state", "values" and "reason". In a line about the whole
    piece, "case" is "". "state" is waiting, running, done, skipped or failed. "values" maps names
    to numbers or texts.
    """

    def __init__(self, out_dir: Path):
        self.path = out_dir / "results.jsonl"
        self.rows: dict[tuple[str, str], dict] = {}
        self.read()

    def read(self) -> None:
        """Read the file. run_once calls this again after each process, because a process adds lines
        to the file."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            row = json.loads(line)
            self.rows[row["piece"], row["case"]] = row

    def add(
        self, piece: str, case: str, state: str, values: dict | None = None, reason: str = ""
    ) -> None:
        row = {"piece": piece, "case": case, "state": state, "values": values or {}}
        row["reason"] = reason
        self.rows[piece, case] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def state(self, piece: str, case: str = "") -> str:
        """Return the state of a case, or of the whole piece. Return "" if it has no state yet."""
        row = self.rows.get((piece, case))
        return row["state"] if row else ""


# ---------- running


def chosen_pieces(names: str) -> list[Piece]:
    """Return the pieces named in `names`, a comma-separated list; "" means all pieces. Raises:
    UserError for an unknown name."""
    by_name = {piece.name: piece for piece in PIECES}
    chosen = names.split(",") if names else list(by_name)
    for name in chosen:
        if name not in by_name:
            raise UserError(f"pieces must be among {', '.join(by_name)}; got {name!r}")
    return [by_name[name] for name in chosen]


def in_order(pieces: list[Piece], results: Results) -> list[Piece]:
    """Return the pieces that are not done, the failed ones last.

    The piece `environment` keeps its place even if it failed, because on a broken device all later
    pieces would fail.
    """
    states = {piece: results.state(piece.name) for piece in pieces}
    open_pieces = [piece for piece in pieces if states[piece] != "done"]
    return sorted(
        open_pieces, key=lambda piece: states[piece] == "failed" and piece.name != "environment"
    )


def run_piece(piece: Piece, config: Config, results: Results, deadline: float) -> None:
    """Measure the cases of a piece, and add the state of the piece to the results.

    Args: deadline: when time.perf_counter() reaches this value, the running process is stopped.
    """
    missing = reason_to_skip(piece, config.device)
    if missing:
        results.add(piece.name, "", "skipped", reason=missing)
        print(f"{piece.name}: skipped, {missing}", flush=True)
        return
    began = time.perf_counter()
    print(f"{piece.name}: {piece.title}", flush=True)
    for case in cases_in(("failed", "skipped"), piece, results):
        results.add(piece.name, case, "waiting")
    num_waiting = math.inf
    while True:
        ending = run_once(piece, config, results, deadline)
        still_waiting = len(cases_in(("waiting",), piece, results))
        has_time = deadline - time.perf_counter() >= MIN_PROCESS_S
        # If the number of waiting cases has not changed, the last process began no case. A new
        # process would begin no case either.
        if still_waiting in (0, num_waiting) or not has_time:
            break
        num_waiting = still_waiting
    if ending or cases_in(("failed",), piece, results):
        state = "failed"
    else:
        state = "waiting" if still_waiting else "done"
    seconds = time.perf_counter() - began
    results.add(piece.name, "", state, {"s": round(seconds, 1)}, ending)
    print(f"{piece.name}: {state} after {seconds:.0f} s {ending}", flush=True)


def run_once(piece: Piece, config: Config, results: Results, deadline: float) -> str:
    """Run one process of a piece. Returns: how the process failed, in words; "" after success."""
    limit_s = min(MAX_PROCESS_S, deadline - time.perf_counter())
    log = results.path.with_name(f"{piece.name}.log")
    ending = run_process(command_of(piece, config, limit_s), log, limit_s)
    results.read()
    for (name, case), row in list(results.rows.items()):
        if name == piece.name and case and row["state"] == "running":
            results.add(name, case, "failed", row["values"], ending)
    return ending


def cases_in(states: Sequence[str], piece: Piece, results: Results) -> list[str]:
    cases = [case for name, case in results.rows if name == piece.name and case]
    return [case for case in cases if results.state(piece.name, case) in states]


def reason_to_skip(piece: Piece, device: str) -> str:
    if piece.needs and device == "cpu":
        return "it is measured on GPUs only"
    if piece.needs == "vllm" and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    return ""


def command_of(piece: Piece, config: Config, limit_s: float) -> list[str]:
    command = [sys.executable, "-m"]
    if piece.name == "fsdp":
        command += ["torch.distributed.run", "--standalone", "--nproc_per_node=1", "-m"]
    settings = {"device": config.device, "out_dir": config.out_dir, "model": config.model}
    options = [f"--{key}={value}" for key, value in settings.items()]
    return [*command, "studies.speed.gpu_pieces", piece.name, *options, f"--limit_s={limit_s:.0f}"]


def run_process(command: list[str], log: Path, limit_s: float) -> str:
    """Run a command, and append its output to the file `log`.

    After `limit_s` seconds, end the command and its children.

    Returns: how the command failed, in words; "" after success.
    """
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    try:
        code = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        end_group(process)
    if code == 0:
        return ""
    return f"exit code {code}: {last_lines(log)}"


def end_group(process: subprocess.Popen) -> None:
    """End a process and its children.

    If the process is torchrun, its ranks are in other process groups, so no signal from here
    reaches the ranks. But torchrun itself ends its ranks when it gets SIGTERM. So SIGTERM comes
    before SIGKILL.
    """
    with suppress(ProcessLookupError):  # raised if no process of the group runs
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=TERM_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return " ".join(text.split())[-300:]


# ---------- the report


def write_report(results: Results) -> str:
    parts = []
    for piece in PIECES:
        parts.append(f"### {piece.title} (`{piece.name}`)\n\n{table_of(piece, results)}\n")
    text = "\n".join(parts)
    results.path.parent.mkdir(parents=True, exist_ok=True)
    results.path.with_name("report.md").write_text(text, encoding="utf-8")
    return text


def table_of(piece: Piece, results: Results) -> str:
    rows = [row for (name, case), row in results.rows.items() if name == piece.name and case]
    if not rows:
        process = results.rows.get((piece.name, ""))
        reason = process["reason"] if process else ""
        return f"{NOT_MEASURED}: {reason}" if reason else NOT_MEASURED
    columns = list(dict.fromkeys(key for row in rows for key in row["values"])) or ["result"]
    lines = [line_of(["", *columns]), line_of(["---"] * (len(columns) + 1))]
    for row in rows:
        cells = [describe(row["values"].get(column, "")) for column in columns]
        if row["state"] != "done":
            cells = [f"{row['state']}: {row['reason']}", *cells[1:]]
        lines.append(line_of([row["case"], *cells]))
    return "\n".join(lines)


def line_of(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def describe(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    run_main(main)
