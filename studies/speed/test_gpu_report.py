"""Tests of studies/speed/gpu_report.py, gpu_pieces.py and bench_gpu.py, on a CPU."""

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from shared_fixtures import small_config

from packing import PackedBatch
from studies.speed import bench_gpu, gpu_pieces, gpu_report
from studies.speed.bench_gpu import CPU_SIZES, GPU_SIZES, UpdateCase
from studies.speed.gpu_pieces import NotAvailable
from studies.speed.gpu_report import PIECES, Piece, Results

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
FREE = Piece("head", "Log-probs")


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


# ---------- the results


def test_the_last_line_of_a_case_is_its_result(results, tmp_path):
    results.add("head", "a", "running")
    results.add("head", "a", "done", {"s": 2.5})
    again = Results(tmp_path)
    assert again.state("head", "a") == "done" and again.rows["head", "a"]["values"] == {"s": 2.5}
    assert again.state("head", "b") == again.state("head") == ""
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_new_pieces_run_before_failed_ones_and_measured_ones_not_at_all(results):
    results.add("environment", "", "done")
    results.add("tiny", "", "failed", reason="exit code 1")
    results.add("tiny_vllm", "", "skipped", reason="vLLM is not installed")
    names = [piece.name for piece in gpu_report.in_order(list(PIECES), results)]
    assert names[0] == "tiny_vllm"  # skipped before; vLLM may be installed now
    assert names[1] == "fsdp" and names[-1] == "tiny" and "environment" not in names
    results.add("environment", "", "failed")
    assert gpu_report.in_order(list(PIECES), results)[0].name == "environment"


def test_pieces_are_chosen_by_name():
    names = [piece.name for piece in gpu_report.chosen_pieces("update,head")]
    assert names == ["update", "head"]
    with pytest.raises(ValueError, match="pieces must be among environment, tiny, .*; got 'chess'"):
        gpu_report.main(["--pieces=head,chess"])
    with pytest.raises(ValueError, match="give one of environment, .*; got chess"):
        gpu_pieces.main(["chess"])


def test_a_table_shows_values_failures_and_what_is_missing(results):
    assert gpu_report.table_of(FREE, results) == "not measured"
    results.add("head", "", "skipped", reason="vLLM is not installed")
    assert gpu_report.table_of(FREE, results) == "not measured: vLLM is not installed"
    results.add("head", "1,024 | columns", "done", {"ms": 12.345, "rate": 98765.4, "is": "same"})
    results.add("head", "all columns", "failed", reason="OutOfMemoryError")
    assert gpu_report.table_of(FREE, results).splitlines() == [
        "|  | ms | rate | is |",
        "| --- | --- | --- | --- |",
        "| 1,024 / columns | 12.3 | 98,765 | same |",
        "| all columns | failed: OutOfMemoryError |  |  |",
    ]
    text = gpu_report.write_report(results)
    assert text.count("### ") == len(PIECES)
    assert results.path.with_name("report.md").read_text() == text


def test_the_page_names_every_piece():
    page = (ROOT / "studies/speed/README.md").read_text(encoding="utf-8")
    for piece in PIECES:
        assert f"`{piece.name}`" in page


# ---------- processes


def test_a_process_ends_with_its_children_at_the_time_limit(tmp_path):
    child = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    )
    command = [sys.executable, "-c", f"{child}; time.sleep(60)"]
    ending = gpu_report.run_process(command, tmp_path / "log", 2.0)
    assert ending == "stopped after 2 s"
    pid = int((tmp_path / "log").read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child still runs")


def test_a_process_may_end_its_own_processes(tmp_path, monkeypatch):
    """The script acts like torchrun, which ends its ranks on SIGTERM. run_process cannot end the
    ranks, because they are in other process groups."""
    script = """
import signal, subprocess, sys, time
rank = subprocess.Popen(["sleep", "60"], start_new_session=True)
def end(*_):
    rank.kill()
    print("ended", rank.wait(), flush=True)
    time.sleep(60)
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""
    monkeypatch.setattr(gpu_report, "TERM_S", 1.0)
    ending = gpu_report.run_process([sys.executable, "-c", script], tmp_path / "log", 2.0)
    assert ending == "stopped after 2 s"
    assert (tmp_path / "log").read_text() == "ended -9\n"


def test_a_process_that_fails_is_described_by_the_end_of_its_log(tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('out of\\n memory')"]
    assert gpu_report.run_process(command, tmp_path / "log", 9.0) == "exit code 1: out of memory"
    command = [sys.executable, "-c", "import os; print(os.environ['TQDM_DISABLE'])"]
    assert gpu_report.run_process(command, tmp_path / "log", 9.0) == ""
    assert (tmp_path / "log").read_text().endswith("\n1\n")


def test_the_cases_after_a_crash_run_in_a_new_process(results, monkeypatch):
    def die_in_b(command, log, limit_s):
        other = Results(log.parent)
        limits.append(limit_s)
        if other.state("head", "b") == "":
            other.add("head", "a", "done", {"ms": 1})
            other.add("head", "b", "running")
            other.add("head", "c", "waiting")
            return "exit code -11: "
        other.add("head", "c", "done")
        return ""

    limits = []
    config = small_config(out_dir=str(results.path.parent))
    monkeypatch.setattr(gpu_report, "run_process", die_in_b)
    monkeypatch.setattr(gpu_report.time, "perf_counter", lambda: 100.0)
    gpu_report.run_piece(FREE, config, results, 300.0)
    states = {case: row["state"] for (_, case), row in results.rows.items()}
    assert states == {"a": "done", "b": "failed", "c": "done", "": "failed"}
    assert results.rows["head", "b"]["reason"] == "exit code -11: "
    assert limits == [200.0, 200.0]  # seconds left until the deadline 300.0


def test_a_process_that_begins_no_case_is_not_repeated_and_failed_cases_are(results, monkeypatch):
    starts = []

    def begin_nothing(command, log, limit_s):
        starts.append(Results(log.parent).state("head", "a"))
        return "exit code 1: no module named torch"

    results.add("head", "a", "failed")
    monkeypatch.setattr(gpu_report, "run_process", begin_nothing)
    config = small_config(out_dir=str(results.path.parent))
    gpu_report.run_piece(FREE, config, results, math.inf)
    assert starts == ["waiting"] * 2 and results.state("head") == "failed"
    assert results.rows["head", ""]["reason"] == "exit code 1: no module named torch"


def test_pieces_that_cannot_run_are_skipped_with_a_sentence(monkeypatch):
    needy = Piece("flagship", "", "vllm")
    kernels = Piece("kernels", "", "cuda")
    monkeypatch.setattr(gpu_report.importlib.util, "find_spec", lambda name: None)
    assert gpu_report.reason_to_skip(needy, "cuda") == "vLLM is not installed"
    assert gpu_report.reason_to_skip(kernels, "cpu") == "it is measured on GPUs only"
    assert gpu_report.reason_to_skip(kernels, "cuda") == ""
    assert gpu_report.reason_to_skip(FREE, "cpu") == ""


def test_no_piece_begins_without_time(tmp_path, monkeypatch, capsys):
    deadlines = []

    def run_piece(piece, config, results, deadline):
        deadlines.append(deadline)

    monkeypatch.setattr(gpu_report, "run_piece", run_piece)
    moments = iter([1000.0, 1000.0, 1060.0, 1270.0, 1271.0])
    monkeypatch.setattr(gpu_report.time, "perf_counter", lambda: next(moments))
    gpu_report.main([f"--out_dir={tmp_path}", "--minutes=5"])
    assert deadlines == [1300.0] * 3  # at 1271.0, only 29 s are left, less than MIN_PROCESS_S
    assert "no time is left; the next call continues" in capsys.readouterr().out


def test_the_fsdp_piece_runs_under_torchrun():
    config = small_config(out_dir="out/gpu", model="M")
    pieces = {piece.name: piece for piece in PIECES}
    command = gpu_report.command_of(pieces["fsdp"], config, 99.5)
    assert command[1:4] == ["-m", "torch.distributed.run", "--standalone"]
    assert command[-4:-1] == ["--device=cpu", "--out_dir=out/gpu", "--model=M"]
    plain = gpu_report.command_of(pieces["head"], config, 60)
    assert plain[1:4] == ["-m", "studies.speed.gpu_pieces", "head"] and plain[-1] == "--limit_s=60"


# ---------- the cases of a process


def test_a_case_that_fails_does_not_stop_the_others(results, monkeypatch):
    freed = []
    monkeypatch.setattr(gpu_pieces, "release_memory", freed.append)

    def fail():
        raise torch.OutOfMemoryError("tried to allocate\n 9 GiB")

    def skip():
        raise NotAvailable("no weights")

    order = []
    cases = {"a": fail, "b": skip, "c": lambda: order.append("c") or {"s": 1.0}}
    gpu_pieces.measure("head", cases, results, CPU)
    found = {case: (row["state"], row["reason"]) for (_, case), row in results.rows.items()}
    assert found == {
        "a": ("failed", "OutOfMemoryError: tried to allocate 9 GiB"),
        "b": ("skipped", "no weights"),
        "c": ("done", ""),
    }
    values = results.rows["head", "c"]["values"]
    assert values.keys() == {"s", "peak GiB"} and values["peak GiB"] > 0
    assert freed == [CPU] * 3
    gpu_pieces.measure("head", cases, results, CPU)
    assert order == ["c"] and len(freed) == 3  # no case is measured again


def test_a_broken_device_ends_the_process_and_the_other_cases_wait(results):
    def break_device():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    results.add("head", "a", "done")
    with pytest.raises(RuntimeError, match="CUDA error"):
        gpu_pieces.measure("head", dict.fromkeys("abc", break_device), results, CPU)
    states = [results.state("head", case) for case in "abc"]
    assert states == ["done", "failed", "waiting"]


def test_a_process_with_vllm_measures_one_case(results):
    cases = dict.fromkeys(("float32", "bfloat16"), dict)
    gpu_pieces.measure("tiny_vllm", cases, results, CPU)
    assert [results.state("tiny_vllm", case) for case in cases] == ["done", "waiting"]
    gpu_pieces.measure("tiny_vllm", cases, Results(results.path.parent), CPU)
    results.read()
    assert [results.state("tiny_vllm", case) for case in cases] == ["done", "done"]


def test_every_piece_has_cases(monkeypatch):
    config = small_config(out_dir="out/gpu")
    cases = {}
    for piece in PIECES:
        cases[piece.name] = list(gpu_pieces.cases_of(piece.name, config, CPU, 0.0))
    assert cases["update"] == ["W1, GRPO", "W1, PPO", "W2, GRPO", "W2, PPO"]
    assert cases["kernels"] == ["varlen, compiled", "SDPA, eager", "SDPA, compiled"]
    assert cases["kernels_32k"] == ["varlen, eager", *cases["kernels"]]
    assert cases["tiny"][:2] == ["float32", "bfloat16"] and "auto" not in cases["tiny"]
    assert len(cases["flagship"]) == 2 and all(cases.values())


def test_the_flagship_needs_its_weights(tmp_path):
    config = small_config(model="nobody/nothing")
    with pytest.raises(NotAvailable, match="the weights of nobody/nothing are not on this machine"):
        gpu_pieces.time_flagship(config, CPU, 0.0)


def test_metrics_that_differ_are_said_in_words():
    expected = {"entropy": 2.0, "vf_loss": 0.5, "grad_norm": 1.0, "grad_norm_critic": 4.0}
    assert gpu_pieces.differing_metrics(dict(expected), expected, 1e-3) == []
    found = {**expected, "grad_norm": 1.002, "vf_loss": float("nan")}
    assert gpu_pieces.differing_metrics(found, expected, 1e-3) == [
        "vf_loss is nan, and 0.5 on the CPU",
        "grad_norm is 1.002, and 1 on the CPU",
    ]


# ---------- the measurements


def test_flop_by_hand():
    shape = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2}
    zeros = torch.zeros(5, dtype=torch.long)
    # The packed batch has a block of 2 tokens, then a block of 3 tokens that also see the first
    # block. Let n be the number of tokens of a block, and k the number of keys that its last token
    # sees. Then flop_of counts n * (k - n/2) keys for the block. The sum over both blocks is
    # 2 * (2 - 2/2) + 3 * (5 - 3/2) = 12.5 keys.
    batch = PackedBatch(zeros, zeros, [2, 3], [(), (0,)], zeros[:1])
    attention = 12 * 2 * 4 * 12.5
    assert bench_gpu.flop_of(batch, shape, 100, 0) == 6 * 100 * 5 + attention
    assert bench_gpu.flop_of(batch, shape, 100, 40) == 6 * (100 * 5 + 40) + attention


def test_the_workloads_have_the_sizes_that_the_page_says():
    for work, later, total in (("W1", 400, 2750), ("W2", 80, 1470)):
        trajectories = bench_gpu.workload(GPU_SIZES, GPU_SIZES.later_tokens[work])
        assert len(trajectories) == 128 and len(trajectories[0].turns) == 5
        assert {len(trajectory.ids) for trajectory in trajectories} == {total}
        assert {t.num_response_tokens for t in trajectories} == {750}
        assert total == 400 + 4 * later + 5 * 150
        first = [trajectory.first_prompt_ids for trajectory in trajectories]
        assert first[0] == first[15] != first[16]  # 16 trajectories share a first prompt


def test_an_update_is_that_of_its_case():
    config = UpdateCase("W1", "gae", packs=2, compiled=True).config(torch.device("cuda"))
    assert (config.estimator, config.micro_batch_tokens, config.compile) == ("gae", 32_768, True)
    assert (config.batch_size, config.num_groups, config.group_size) == (128, 8, 16)
    assert config.device == "cuda" and config.filter_keep == 1.0


def test_the_kernel_is_chosen_for_one_case_only():
    has_varlen_kernel = bench_gpu.packing.has_varlen_kernel
    with bench_gpu.attention_kernel("SDPA"):
        assert bench_gpu.packing.has_varlen_kernel(torch.device("cuda")) is False
    with bench_gpu.attention_kernel("default"):
        assert bench_gpu.packing.has_varlen_kernel is has_varlen_kernel
    assert bench_gpu.packing.has_varlen_kernel is has_varlen_kernel


def test_an_update_counts_the_tokens_of_its_packs(one_rank, monkeypatch):
    monkeypatch.setattr(bench_gpu, "REPEATS", 1)
    monkeypatch.setattr(bench_gpu, "CPU_SIZES", CPU_SIZES._replace(pack_tokens=1000))
    seconds = iter([2.0, 4.0, 2.0, 4.0])

    def take_given_time(run, device):
        run()
        return next(seconds)

    monkeypatch.setattr(bench_gpu, "seconds_of", take_given_time)
    row = UpdateCase("W2").measure(CPU)
    # The 2 members of a group share 19 of the 20 tokens of their first prompt. The last token must
    # stand directly before the first reply (see packing.py), so each member has its own copy. Each
    # member adds 57 tokens: 1 copied token, 4 later prompts of 4 tokens, and 5 replies of 8 tokens.
    num_tokens = 2 * (19 + 2 * 57)
    assert row["s"] == 4.0 and row["tokens/s"] == num_tokens / 4.0
    assert row["MFU"] * 4.0 == pytest.approx(row["s at the peak"])
    both = UpdateCase("W2", "gae").measure(CPU)
    num_head = 4096 * 64
    head = 6 * num_head * 4 * 5 * 8 / bench_gpu.PEAK_FLOPS  # 4 trajectories, 5 turns of 8 tokens
    body = row["s at the peak"] - head
    assert both["s at the peak"] == pytest.approx(head + body * 7 / 3)


@pytest.mark.slow
def test_the_report_is_made_on_a_cpu(tmp_path, capsys, monkeypatch):
    arguments = [
        "--device=cpu",
        f"--out_dir={tmp_path}",
        "--pieces=environment,tiny,fsdp,iteration",
    ]
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    gpu_report.main(arguments)
    out = capsys.readouterr().out
    assert "| float32 | agrees with the CPU | 1 | " in out
    assert "the restarted learner has the same weights" in out
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {row["state"] for row in rows} == {"waiting", "running", "done"}
    gpu_report.main(arguments)  # measures nothing: every piece is done
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(rows)
    assert (tmp_path / "report.md").is_file()
