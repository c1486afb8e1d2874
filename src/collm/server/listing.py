"""Pages of lists, as the OpenAI API shapes them."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, Response

from collm.store.pages import Page

T = TypeVar("T")


def list_response(page: Page[T], show: Callable[[T], dict[str, Any]]) -> Response:
    """Return a page of objects, each shown with its ``id``, which ``after`` goes on from."""
    data = [show(item) for item in page.items]
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": page.has_more,
        }
    )
