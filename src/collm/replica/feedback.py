"""What users say about answers, and the samples that it makes.

A better answer is learned with weight 1. A rating of r weighs the served answer by max(0, 2r - 1):
a perfect one like a better answer, a middling one or worse not at all. Earlier answers in the
prompt are read and not learned. Another rating of the same choice takes the place of the one
before, and its sample that one's.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from collm.errors import RequestError, StateError
from collm.replica.archive import Archive
from collm.replica.inbox import AddSamples, Inbox, RemoveSample
from collm.replica.job_builder import JobBuilder
from collm.store.data_folder import DataFolder
from collm.store.feedback import Feedback
from collm.store.pages import Page
from collm.store.responses import StoredResponse

_log = logging.getLogger(__name__)
Turns = list[Mapping[str, Any]]
_MAX_PENDING = 1_000
"""Answers that may wait for the disk."""


class Opinion(Protocol):
    """What a user says about one choice of an answer."""

    @property
    def response_id(self) -> str:
        """The id that the answer came with."""
        ...

    @property
    def choice(self) -> int:
        """The choice's index."""
        ...

    @property
    def answer(self) -> str | None:
        """What would have been the better answer."""
        ...

    @property
    def rating(self) -> float | None:
        """How good the served answer was, in [0, 1]."""
        ...


class FeedbackDesk:
    """Remembers answers and turns what users say about them into samples; for asyncio.

    Args:
        data: Where answers and feedback are.
        archive: Writes them.
        inbox: Takes new samples, and those that are no more.
        builder: Makes samples of text.
        max_chars: Longest prompt and answer together.
    """

    def __init__(
        self,
        data: DataFolder,
        archive: Archive,
        inbox: Inbox,
        builder: JobBuilder,
        max_chars: int,
    ) -> None:
        self._data = data
        self._archive = archive
        self._inbox = inbox
        self._builder = builder
        self._max_chars = max_chars
        self._pending: deque[StoredResponse] = deque()

    def record(self, response: StoredResponse) -> None:
        """Take a complete answer for later feedback, unless too many wait for the disk already.

        Writes are done in order, so feedback on it finds it from now on.
        """
        if len(self._pending) >= _MAX_PENDING:
            _log.warning("%s is not kept for feedback: the disk is behind", response.response_id)
            return
        self._pending.append(response)
        self._archive.write(self._write_pending)

    async def add(self, request: Opinion) -> Feedback:
        """Keep feedback durably, then hand its sample to the adapter's running job.

        Raises:
            UnknownObjectError: No such response.
            RequestError: No such choice, or a text that is too long.
            StateError: The adapter has been given the same sample or rating before, or the answer
                was wiped, because feedback on it was deleted.
        """
        return await asyncio.wrap_future(
            self._archive.submit(lambda data: self._add(data, request))
        )

    async def get(self, feedback_id: str) -> Feedback:
        """Return one; raises ``UnknownObjectError``."""
        return await asyncio.to_thread(self._data.feedback.get, feedback_id)

    async def delete(self, feedback_id: str) -> Feedback:
        """Wipe the text, and the answer that it is about, and exclude it from training and replay.

        Raises:
            UnknownObjectError: There is no such feedback.
        """

        def action(data: DataFolder) -> Feedback:
            deleted = data.feedback.delete(feedback_id)
            self._inbox.put(RemoveSample(deleted.adapter, feedback_id))
            return deleted

        return await asyncio.wrap_future(self._archive.submit(action))

    async def list(
        self, *, adapter: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Feedback]:
        """Return some of an adapter's feedback, or of all, newest first."""
        return await asyncio.to_thread(self._data.feedback.list, adapter, after, limit)

    def _write_pending(self, data: DataFolder) -> None:
        """Write all that wait, in one transaction: the next ones find nothing left."""
        responses = [self._pending.popleft() for _ in range(len(self._pending))]
        if responses:
            data.responses.add_many(responses)

    def _add(self, data: DataFolder, request: Opinion) -> Feedback:
        """Check, write and pass on; in the writing thread, behind the answer that it is about."""
        response = data.responses.get(request.response_id)
        if response.is_wiped:
            raise StateError(
                f"the text of response {response.response_id!r} was deleted with feedback on it; "
                "nothing can be learned from it any more",
                code="deleted",
            )
        messages, weight = self._sample(response, request)
        job = self._builder.find(response.adapter)
        if job is not None and weight > 0:
            self._builder.check_text(job, messages)
        feedback = self._keep(data, response, request, messages, weight)
        if weight > 0:  # what no job learns may still say how the served version does
            samples = self._builder.encode_feedback(job, [feedback])
            self._inbox.put(AddSamples(response.adapter, samples))
        return feedback

    def _keep(
        self,
        data: DataFolder,
        response: StoredResponse,
        request: Opinion,
        messages: Turns,
        weight: float,
    ) -> Feedback:
        """Write feedback, and let training forget the rating that it replaces."""
        if request.answer is not None or request.rating is None:
            return data.feedback.add(
                response_id=response.response_id,
                choice=request.choice,
                adapter=response.adapter,
                version=response.version,
                rating=request.rating,
                messages=messages,
                weight=weight,
            )
        rated = data.feedback.rate(
            response_id=response.response_id,
            choice=request.choice,
            adapter=response.adapter,
            version=response.version,
            rating=request.rating,
            served=messages,
            weight=weight,
        )
        if rated.replaced_id is not None:
            self._inbox.put(RemoveSample(response.adapter, rated.replaced_id))
        return rated.feedback

    def _sample(self, response: StoredResponse, request: Opinion) -> tuple[Turns, float]:
        """Return the conversation that the feedback is about, and its weight in training."""
        if not 0 <= request.choice < len(response.answers):
            raise RequestError(
                f"'choice' is {request.choice}; the answer has {len(response.answers)}, from 0",
                param="choice",
                code="invalid_value",
            )
        answer, weight = request.answer, 1.0
        if answer is None:
            assert request.rating is not None
            answer, weight = response.answers[request.choice], max(0.0, 2 * request.rating - 1)
        messages = [*response.messages, {"role": "assistant", "content": answer}]
        if weight == 0.0 or not answer.strip():
            return messages, 0.0
        num_chars = sum(len(str(message.get("content") or "")) for message in messages)
        if num_chars > self._max_chars:
            raise RequestError(
                f"prompt and answer have {num_chars} characters; feedback may teach up to "
                f"{self._max_chars}",
                param="answer",
                code="too_long",
            )
        return messages, weight
