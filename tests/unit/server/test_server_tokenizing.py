import asyncio
import threading

from collm.server.tokenizing import chat_size, run_by_size


def thread_of(size):
    return asyncio.run(run_by_size(size, threading.get_ident))


def test_short_chat_is_encoded_at_once():
    assert thread_of(chat_size(["hello", "there"])) == threading.get_ident()


def test_long_chat_does_not_hold_up_the_loop_even_if_its_messages_are_empty():
    assert thread_of(chat_size(["x" * 10_000])) != threading.get_ident()
    assert thread_of(chat_size([""] * 1_000)) != threading.get_ident()
