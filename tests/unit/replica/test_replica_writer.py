"""The writing thread: order, failures, upkeep, and the end."""

import logging
import threading

from collm.replica.writer import Writer


def test_writes_are_done_in_order_and_the_last_before_it_ends():
    done = []
    writer = Writer(lambda: None, 1_000.0)
    for number in range(20):
        writer.put(lambda number=number: done.append(number), lambda _: None)
    writer.start()
    writer.close()
    assert done == list(range(20))


def test_write_that_fails_is_told_and_the_next_one_is_done():
    told, done = [], []

    def fail():
        raise OSError("disk full")

    writer = Writer(lambda: None, 1_000.0)
    writer.start()
    writer.put(fail, told.append)
    writer.put(lambda: done.append(1), told.append)
    writer.close()
    assert [str(error) for error in told] == ["disk full"]
    assert done == [1]


def test_whoever_cannot_be_told_of_a_failure_does_not_stop_the_writing(caplog):
    caplog.set_level(logging.CRITICAL)
    done = []

    def fail(*_):
        raise OSError("disk full")

    writer = Writer(lambda: None, 1_000.0)
    writer.start()
    writer.put(fail, fail)
    writer.put(lambda: done.append(1), fail)
    writer.close()
    assert done == [1]


def test_upkeep_comes_again_and_again_also_after_a_failure(caplog):
    caplog.set_level(logging.CRITICAL)
    swept, enough = [], threading.Event()

    def sweep():
        swept.append(threading.current_thread().name)
        if len(swept) == 3:
            enough.set()
        raise OSError("disk full")

    writer = Writer(sweep, 0.001)
    writer.start()
    assert enough.wait(60)
    writer.close()
    assert set(swept) == {"collm-writer"}
