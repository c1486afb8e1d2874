"""Questions to the step loop, from asyncio."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from collm.errors import CollmError
from collm.replica.inbox import Inbox, Rollback, tell
from collm.replica.post import Post
from factories.waiting import WAIT_S


class Thread:
    def __init__(self, is_alive):
        self._is_alive = is_alive

    def is_alive(self):
        return self._is_alive


def ask(post):
    reply = Future()
    return asyncio.run(asyncio.wait_for(post.ask(Rollback("a", reply), reply), WAIT_S))


def test_answer_of_another_thread_is_returned():
    inbox = Inbox()

    def answer():
        inbox.wait(WAIT_S)
        inbox.drain(lambda message: tell(message.reply, "yes"))

    thread = threading.Thread(target=answer)
    thread.start()
    assert ask(Post(inbox, Thread(is_alive=True))) == "yes"
    thread.join()


def test_question_does_not_wait_for_a_loop_that_has_ended():
    with pytest.raises(CollmError, match="step loop has ended"):
        ask(Post(Inbox(), Thread(is_alive=False)))
