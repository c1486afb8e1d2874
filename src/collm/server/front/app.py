"""The front's HTTP application."""

import math

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from collm.clock import MonotonicClock
from collm.server.config import ServerConfig
from collm.server.dashboard import routes as dashboard
from collm.server.dashboard.dashboard import Dashboard
from collm.server.dashboard.own_api import OwnApi
from collm.server.errors import install_error_handlers, reply_to
from collm.server.front import adapters, admin, generating, learning
from collm.server.front.backends import FrontBackends
from collm.server.front.errors import TurnedAwayError
from collm.server.front.figures import ReplicaFigures
from collm.server.front.front import Front


def make_front_app(
    backends: FrontBackends, config: ServerConfig, *, admin_key: str | None = None
) -> FastAPI:
    """Return the application that serves a cluster.

    Args:
        backends: The cluster.
        config: Of the front's listener.
        admin_key: What changing versions takes; ``None`` lets everyone.
    """
    # The interactive pages load scripts from elsewhere; /openapi.json needs nothing.
    app = FastAPI(title="collm", docs_url=None, redoc_url=None)
    app.state.front = front = Front(backends=backends, config=config)
    app.state.admin_key = admin_key
    app.state.dashboard = Dashboard(
        ReplicaFigures(front), OwnApi(app), MonotonicClock(), needs_key=admin_key is not None
    )
    install_error_handlers(app)
    app.add_exception_handler(TurnedAwayError, _on_turned_away)
    for routes in (generating, learning, adapters, admin, dashboard):
        app.include_router(routes.router)
    return app


async def _on_turned_away(_: Request, error: Exception) -> Response:
    assert isinstance(error, TurnedAwayError)
    reply = reply_to(error)
    seconds = str(math.ceil(error.retry_after_s))
    return JSONResponse(reply.body(), status_code=reply.status, headers={"retry-after": seconds})
