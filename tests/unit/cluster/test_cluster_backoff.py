from collm.cluster.backoff import Backoff


def test_waits_double_up_to_half_a_minute():
    backoff = Backoff()
    assert [backoff.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_waits_begin_again_after_a_minute_of_life():
    backoff = Backoff()
    for _ in range(4):
        backoff.after(59.9)
    assert backoff.after(60.0) == 1
    assert backoff.after(1.0) == 2
