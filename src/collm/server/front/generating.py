"""The routes that generate, as FastAPI finds and documents them; ``proxy`` does the work."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from collm.server.front.front import Front, front_of
from collm.server.front.proxy import GenerationProxy
from collm.server.openapi import body_schema
from collm.server.schemas import ChatBody, CompletionBody

router = APIRouter()


class _Proxied(Response):
    """Leaves the call to the proxy, from reading its body on."""

    def __init__(self, front: Front) -> None:
        self.background = None
        self._proxy = GenerationProxy(front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the call (ASGI)."""
        await self._proxy(scope, receive, send)


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
async def create_chat_completion(http: Request) -> Response:
    """Continue a conversation."""
    return _Proxied(front_of(http))


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
async def create_completion(http: Request) -> Response:
    """Continue a text, or several."""
    return _Proxied(front_of(http))
