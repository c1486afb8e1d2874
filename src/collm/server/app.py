"""The replica's HTTP application."""

from fastapi import FastAPI

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
from collm.server.errors import install_error_handlers
from collm.server.service import Membership, Service


def make_app(
    backends: Backends, config: ServerConfig, membership: Membership | None = None
) -> FastAPI:
    """Return the application that serves one replica, alone or in a cluster."""
    if membership is None:
        return make_service_app(Service(backends=backends, config=config))
    return make_service_app(
        Service(
            backends=backends,
            config=config,
            new_id=membership.new_id,
            control_secret=membership.control_secret,
        )
    )


def make_service_app(service: Service) -> FastAPI:
    """Return the application around a service whose clock and ids the caller chose."""
    # The interactive pages load scripts from elsewhere; /openapi.json needs nothing.
    app = FastAPI(title="collm", docs_url=None, redoc_url=None)
    app.state.service = service
    install_error_handlers(app)
    generating, learning = (chat, completions), (feedback, uploads, fine_tuning)
    for routes in (*generating, *learning, adapters, adapter_files, admin):
        app.include_router(routes.router)
    app.include_router(control.public)
    # Between a cluster's own processes, and no surface for others.
    app.include_router(control.router, include_in_schema=False)
    return app
