"""Children of a benchmark that was killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT_S = 60.0

PARENT = """
import multiprocessing, os, time
from child_life import end_with_parent

def work():
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""


def is_running(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status  # an orphan may stay in the table after its end


def test_child_of_a_killed_benchmark_ends_though_it_is_busy(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    benchmarks = Path(__file__).parents[3] / "benchmarks"
    environment = {**os.environ, "PYTHONPATH": str(benchmarks)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(signal.SIGKILL)
        deadline_s = time.monotonic() + TIMEOUT_S
        while is_running(child):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
