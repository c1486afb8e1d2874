"""``POST /v1/chat/completions``."""

from functools import partial

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from collm.server.dialects import ChatDialect
from collm.server.generation import Generation
from collm.server.limits import check_num_messages, fit_max_tokens
from collm.server.openapi import body_schema
from collm.server.parsing import read_as
from collm.server.schemas import ChatBody, Message
from collm.server.service import service_of
from collm.server.tokenizing import chat_size, run_by_size

router = APIRouter()


def as_template_message(message: Message) -> dict[str, str]:
    """Return a message as chat templates read it.

    Text parts are joined by line breaks. The developer role is today's name of the system role,
    which is the one that open models were trained with.
    """
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": "\n".join(message.content)}


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
async def create_chat_completion(http: HttpRequest) -> Response:
    """Continue a conversation."""
    service = service_of(http)
    replica = service.replica
    arrived_at_s = replica.now_s()
    body = await read_as(ChatBody, http, service.config.max_body_bytes)
    check_num_messages(len(body.messages), replica.max_model_len)
    messages = [as_template_message(message) for message in body.messages]
    encode = partial(
        replica.tokenizer.encode_chat, messages, add_generation_prompt=body.add_generation_prompt
    )
    contents = [message["content"] for message in messages]
    prompt = await run_by_size(chat_size(contents), encode)
    num_bytes = sum(len(content.encode()) for content in contents)
    service.prompt_ratio.observe(num_bytes, len(prompt))
    limit = fit_max_tokens(body.token_limit, len(prompt), replica.max_model_len)
    generation = Generation(
        service,
        body,
        ChatDialect(replica.tokenizer),
        arrived_at_s=arrived_at_s,
        num_logprobs=body.num_logprobs,
        # Without a turn for it, the answer goes on with the prompt's last one.
        turns=messages if body.add_generation_prompt else None,
    )
    return await generation.respond(http, [prompt], [limit])
