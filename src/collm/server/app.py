"""The replica's HTTP application."""

from fastapi import FastAPI

from collm.server import admin, chat, completions
from collm.server.backend import Replica
from collm.server.config import ServerConfig
from collm.server.errors import install_error_handlers
from collm.server.service import Service


def make_app(replica: Replica, config: ServerConfig) -> FastAPI:
    """Return the application that serves one replica."""
    return make_service_app(Service(replica=replica, config=config))


def make_service_app(service: Service) -> FastAPI:
    """Return the application around a service whose clock and ids the caller chose."""
    # The interactive pages load scripts from elsewhere; /openapi.json needs nothing.
    app = FastAPI(title="collm", docs_url=None, redoc_url=None)
    app.state.service = service
    install_error_handlers(app)
    for room in (chat, completions, admin):
        app.include_router(room.router)
    return app
