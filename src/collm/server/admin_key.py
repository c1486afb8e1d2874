"""The key that changing what is served takes, where the operator has set one."""

import secrets
from http import HTTPStatus

from fastapi import Depends, HTTPException, Request


def require_admin(request: Request) -> None:
    """Raise unless no key is set, or the caller has it."""
    key = request.app.state.admin_key
    if key is None:
        return
    given = request.headers.get("authorization", "").encode()
    if not secrets.compare_digest(given, f"Bearer {key}".encode()):
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "The admin key is needed, as a bearer token.",
            headers={"www-authenticate": "Bearer"},
        )


ADMIN = (Depends(require_admin),)
"""``dependencies`` of a route that changes what is served."""
