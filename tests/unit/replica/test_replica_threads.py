import threading
from pathlib import Path

import pytest
import torch

from collm.replica.threads import alone, on_passing_thread
from factories.waiting import wait_until

TASKS = Path("/proc/self/task")


def test_a_thread_that_computes_alone_leaves_the_others_theirs() -> None:
    before = torch.get_num_threads()
    assert on_passing_thread(lambda: alone(torch.get_num_threads)) == 1
    assert torch.get_num_threads() == before


def test_work_on_a_passing_thread_returns_and_raises_as_if_called() -> None:
    def fail() -> None:
        raise ValueError("inside")

    assert on_passing_thread(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ValueError, match="inside"):
        on_passing_thread(fail)


@pytest.mark.skipif(not TASKS.exists(), reason="threads are counted as Linux shows them")
def test_a_passing_thread_takes_its_workers_with_it() -> None:
    def num_now() -> int:
        return len(list(TASKS.iterdir()))

    def compute() -> int:
        torch.rand(2_000_000).exp_()
        return num_now()

    num_threads = torch.get_num_threads()
    torch.set_num_threads(3)  # Makes threads of its own, once.
    try:
        before = num_now()
        assert on_passing_thread(compute) > before
        wait_until(lambda: num_now() <= before)
    finally:
        torch.set_num_threads(num_threads)
