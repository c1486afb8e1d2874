"""The path that chat and completions share: prompts in, a plain answer or a stream out."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from collm.errors import RequestError
from collm.server.answers import Answer, AnswerGroup
from collm.server.choices import ChoiceText, TokenReport
from collm.server.dialects import Dialect
from collm.server.disconnects import until_disconnect
from collm.server.schemas import GenerationBody
from collm.server.service import Service
from collm.server.stops import StopMatcher
from collm.server.streaming import ChunkWriter, EventStreamResponse
from collm.server.transcripts import Transcript
from collm.store.responses import StoredResponse
from collm.types import BASE, FinishReason, Request, RequestId, SamplingParams, VersionId


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise ``RequestError`` when an id is not one of the model's tokens."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"'{param}': token id {token_id} does not exist; allowed: 0 to {vocab_size - 1}.",
                param=param,
                code="invalid_value",
            )


class Generation:
    """One HTTP call for generated text.

    Args:
        service: The server it belongs to.
        body: The checked request body.
        dialect: The API it came by.
        arrived_at_s: Arrival on the replica's clock.
        num_logprobs: Alternatives reported per token; ``None`` reports nothing.
        turns: The prompt as a conversation, kept with the answer for feedback; ``None`` keeps
            nothing, for prompts that are none.
    """

    def __init__(
        self,
        service: Service,
        body: GenerationBody,
        dialect: Dialect,
        *,
        arrived_at_s: float,
        num_logprobs: int | None,
        turns: Sequence[Mapping[str, str]] | None,
    ) -> None:
        self._service = service
        self._body = body
        self._dialect = dialect
        self._arrived_at_s = arrived_at_s
        self._num_logprobs = num_logprobs
        self._turns = turns
        self._id = dialect.id_prefix + service.new_id()
        self._created = int(service.wall_time_s())

    async def respond(
        self, http: HttpRequest, prompts: Sequence[Sequence[int]], limits: Sequence[int]
    ) -> Response:
        """Submit the prompts, wait for their first events, then answer.

        Failures before the first token are raised and so become proper statuses.

        Args:
            http: The call, watched for the client's leaving.
            prompts: Token ids of each prompt.
            limits: Most tokens generated for each.
        """
        self._service.require_alive()
        requests = self._requests(prompts, limits, http.headers.get("traceparent"))
        group = self._submit(requests)
        try:
            await until_disconnect(http.receive, group.start())
            if not self._body.stream:
                content = await until_disconnect(http.receive, self._collect(group))
                return JSONResponse(content, headers=self._headers(group))
        except BaseException:
            await group.aclose()
            raise
        return self._stream(group)

    def _requests(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        traceparent: str | None,
    ) -> list[Request]:
        many = len(prompts) > 1
        return [
            Request(
                request_id=RequestId(f"{self._id}-{number}" if many else self._id),
                model=self._body.model,
                prompt=tuple(prompt),
                sampling=self._sampling(limit),
                n=self._body.n,
                arrived_at_s=self._arrived_at_s,
                traceparent=traceparent,
            )
            for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        ]

    def _sampling(self, max_tokens: int) -> SamplingParams:
        if self._body.min_tokens > max_tokens:
            raise RequestError(
                f"'min_tokens': {self._body.min_tokens} is more than can be generated; "
                f"allowed: at most {max_tokens}.",
                param="min_tokens",
                code="invalid_value",
            )
        vocab_size = self._service.replica.tokenizer.vocab_size
        check_token_ids(self._body.stop_token_ids, vocab_size, "stop_token_ids")
        return self._body.sampling(max_tokens, self._num_logprobs)

    def _submit(self, requests: Sequence[Request]) -> AnswerGroup:
        streams = self._service.replica.submit(*requests)
        answers = [
            Answer(stream, request, self._choices(number * self._body.n))
            for number, (stream, request) in enumerate(zip(streams, requests, strict=True))
        ]
        return AnswerGroup(answers, self._service.open_ids)

    def _choices(self, first_index: int) -> list[ChoiceText]:
        body = self._body
        tokenizer = self._service.replica.tokenizer
        return [
            ChoiceText(
                first_index + choice,
                tokenizer.detokenizer(),
                StopMatcher(tuple(body.stop), include=body.include_stop_str_in_output)
                if body.stop
                else None,
                body.min_tokens,
            )
            for choice in range(body.n)
        ]

    def _adapter(self, version: str) -> str | None:
        """Return the adapter that feedback on an answer by ``version`` teaches.

        One without a version yet is answered for by the base model.
        """
        named, base_model = self._body.model, self._service.replica.base_model
        if version == BASE:
            return None if named == base_model else named
        return version.partition("@")[0]

    def _common(self, object_name: str, group: AnswerGroup) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self._body.model,
            "system_fingerprint": group.version,
        }

    def _headers(self, group: AnswerGroup) -> dict[str, str]:
        return {"x-collm-version": group.version, "x-request-id": self._id}

    def _stream(self, group: AnswerGroup) -> Response:
        includes_usage = self._body.includes_usage
        writer = ChunkWriter(
            self._common(self._dialect.chunk_object_name, group),
            self._dialect,
            includes_usage=includes_usage,
            reports_logprobs=self._num_logprobs is not None,
        )
        return EventStreamResponse(
            group,
            writer,
            self._transcript(group),
            includes_usage=includes_usage,
            headers=self._headers(group),
        )

    def _transcript(self, group: AnswerGroup) -> Transcript:
        return Transcript(group.num_choices, partial(self._record, group.version))

    def _record(self, version: VersionId, answers: tuple[str, ...]) -> None:
        """Keep a complete answer, so that users can say later what they think of it.

        Not one by the base model, which learns nothing from that.
        """
        adapter = self._adapter(version)
        if self._turns is None or adapter is None:
            return
        self._service.feedback.record(
            StoredResponse(
                response_id=self._id,
                model=self._body.model,
                adapter=adapter,
                version=version,
                messages=tuple(self._turns),
                answers=answers,
                created_at_s=self._created,
            )
        )

    async def _collect(self, group: AnswerGroup) -> dict[str, Any]:
        transcript = self._transcript(group)
        tokens: list[list[TokenReport]] = [[] for _ in range(group.num_choices)]
        reasons: list[FinishReason | None] = [None] * group.num_choices
        async with aclosing(group.deltas()) as deltas:
            async for delta in deltas:
                transcript.add(delta)
                tokens[delta.index] += delta.tokens
                reasons[delta.index] = delta.finish_reason or reasons[delta.index]
        await group.aclose()
        choices = [
            self._choice(index, *parts)
            for index, parts in enumerate(zip(transcript.texts(), tokens, reasons, strict=True))
        ]
        common = self._common(self._dialect.object_name, group)
        return common | {"choices": choices, "usage": group.usage()}

    def _choice(
        self, index: int, text: str, tokens: list[TokenReport], reason: FinishReason | None
    ) -> dict[str, Any]:
        reports = self._num_logprobs is not None
        return {
            "index": index,
            **self._dialect.choice(text),
            "logprobs": self._dialect.logprobs(tokens) if reports else None,
            "finish_reason": None if reason is None else reason.value,
        }
