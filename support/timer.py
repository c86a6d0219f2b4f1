"""Wall time and CPU time."""

import time


class Timer:
    """Wall time and CPU time of a part of an iteration, seconds."""

    def __init__(self):
        self.wall_start = time.perf_counter()
        self.cpu_start = time.process_time()

    def stop(self) -> None:
        self.wall_s = time.perf_counter() - self.wall_start
        self.cpu_s = time.process_time() - self.cpu_start
