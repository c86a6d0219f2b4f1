"""Benchmark of the language-model head: log-probs in chunks of the vocabulary or with full logits.

bench.py runs this file in a new process for every measurement. The argument is the number of
vocabulary columns in a chunk, or 0 for full logits:

    python -m studies.speed.bench_head 1024
"""

from configurator import Config, UserError

import json
import resource
import subprocess
import sys
import time
from functools import partial

from studies.speed.bench_measure import Rows, compare
from support.terminal import run_main

NUM_POSITIONS = 2048
WIDTH = 896  # of Qwen2.5-0.5B
VOCABULARY = 151_936  # of Qwen2.5


def head(config: Config, repeats: int) -> Rows:
    """Compute log-probs and gradients for 2,048 tokens. Measure CPU seconds and peak memory (MiB).

    Every measurement has its own process, because a process's recorded peak memory never falls.
    """
    variants = {
        "full logits": partial(measure_in_process, 0),
        "1,024 columns at a time": partial(measure_in_process, 1024),
    }
    return compare(variants, repeats)


def measure_in_process(chunk: int) -> dict[str, float]:
    command = [sys.executable, "-m", "studies.speed.bench_head", str(chunk)]
    return json.loads(subprocess.check_output(command))


def measure_head(
    chunk: int, rows: int = NUM_POSITIONS, vocabulary: int = VOCABULARY
) -> dict[str, float]:
    """Measure one computation of the log-probs and their gradients.

    Args: chunk: number of vocabulary columns in a chunk, or 0 for full logits.
    Returns: CPU seconds, and peak memory in MiB, not counting the inputs and `weight.grad`.
    """
    import torch

    from model import chunked_logprobs

    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight = (torch.randn(vocabulary, WIDTH) * 0.02).requires_grad_()
    weight.grad = torch.zeros_like(weight).fill_(0)  # allocated before the measurement
    targets = torch.randint(vocabulary, (rows, 1))
    memory_before = peak_kib()
    cpu_start = time.process_time()
    if chunk:
        logprobs, *_ = chunked_logprobs(hidden, weight, targets[:, 0], chunk_size=chunk)
    else:
        logprobs = (hidden @ weight.T).log_softmax(-1).gather(1, targets)
    logprobs.sum().backward()
    peak = peak_kib() - memory_before
    return {"cpu_s": time.process_time() - cpu_start, "peak_mib": peak / 1024}


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux


def main(argv: list[str]) -> None:
    if len(argv) != 1 or not argv[0].isdecimal():
        given = " ".join(argv) or "nothing"
        raise UserError(
            f"give the number of vocabulary columns per chunk, or 0 for full logits; got {given}"
        )
    # This import is slow, so it waits until argv has been checked.
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(measure_head(int(argv[0]))))


if __name__ == "__main__":
    run_main(main, kind=None)
