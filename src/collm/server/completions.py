"""``POST /v1/completions``."""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from collm.errors import RequestError
from collm.server.backend import Tokenizer
from collm.server.dialects import CompletionDialect
from collm.server.fields import Prompt
from collm.server.generation import Generation, check_token_ids
from collm.server.limits import fit_max_tokens
from collm.server.openapi import body_schema
from collm.server.parsing import read_as
from collm.server.schemas import CompletionBody
from collm.server.service import service_of
from collm.server.tokenizing import run_by_size

router = APIRouter()


async def _encode(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        ids = await run_by_size(len(prompt), partial(tokenizer.encode, prompt))
    else:
        ids = prompt
        check_token_ids(ids, tokenizer.vocab_size, "prompt")
    if not ids:
        raise RequestError(
            "'prompt': is empty; at least one token is needed.",
            param="prompt",
            code="invalid_value",
        )
    return ids


def _as_turns(prompts: Sequence[Prompt]) -> list[dict[str, str]] | None:
    """Return the one prompt as the one turn of a conversation, if it is one and a text."""
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return [{"role": "user", "content": prompts[0]}]
    return None


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
async def create_completion(http: HttpRequest) -> Response:
    """Continue a text, or several."""
    service = service_of(http)
    replica = service.replica
    arrived_at_s = replica.now_s()
    body = await read_as(CompletionBody, http, service.config.max_body_bytes)
    prompts = [await _encode(replica.tokenizer, prompt) for prompt in body.prompt]
    limits = [
        fit_max_tokens(body.token_limit, len(prompt), replica.max_model_len) for prompt in prompts
    ]
    generation = Generation(
        service,
        body,
        CompletionDialect(replica.tokenizer),
        arrived_at_s=arrived_at_s,
        num_logprobs=body.logprobs,
        turns=_as_turns(body.prompt),
    )
    return await generation.respond(http, prompts, limits)
