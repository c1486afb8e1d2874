"""The replica's HTTP application."""

from fastapi import FastAPI

from collm.clock import MonotonicClock
from collm.server import (
    adapter_files,
    adapters,
    admin,
    chat,
    completions,
    control,
    feedback,
    fine_tuning,
    uploads,
)
from collm.server.backend import Backends
from collm.server.config import ServerConfig
from collm.server.dashboard import routes as dashboard
from collm.server.dashboard.board_source import BoardSource
from collm.server.dashboard.dashboard import Dashboard
from collm.server.dashboard.own_api import OwnApi
from collm.server.errors import install_error_handlers
from collm.server.service import Membership, Service


def make_app(
    backends: Backends,
    config: ServerConfig,
    membership: Membership | None = None,
    *,
    admin_key: str | None = None,
) -> FastAPI:
    """Return the application that serves one replica.

    Args:
        backends: The replica.
        config: Of its listener.
        membership: Its place in a cluster, whose front then has the dashboard; ``None`` is alone.
        admin_key: What changing versions takes; ``None`` lets everyone.
    """
    if membership is None:
        app = make_service_app(Service(backends=backends, config=config), admin_key)
        app.state.dashboard = Dashboard(
            BoardSource(backends.replica),
            OwnApi(app),
            MonotonicClock(),
            needs_key=admin_key is not None,
        )
        app.include_router(dashboard.router)
        return app
    return make_service_app(
        Service(
            backends=backends,
            config=config,
            new_id=membership.new_id,
            control_secret=membership.control_secret,
        ),
        admin_key,
    )


def make_service_app(service: Service, admin_key: str | None = None) -> FastAPI:
    """Return the application around a service whose clock and ids the caller chose."""
    # The interactive pages load scripts from elsewhere; /openapi.json needs nothing.
    app = FastAPI(title="collm", docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.admin_key = admin_key
    app.state.dashboard = None
    install_error_handlers(app)
    generating, learning = (chat, completions), (feedback, uploads, fine_tuning)
    for routes in (*generating, *learning, adapters, adapter_files, admin):
        app.include_router(routes.router)
    app.include_router(control.public)
    # Between a cluster's own processes, and no surface for others.
    app.include_router(control.router, include_in_schema=False)
    return app
