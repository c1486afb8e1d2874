"""The page at ``/``, its files, its stream and its history."""

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from collm.server.dashboard.assets import CONTENT_SECURITY_POLICY, PAGE, Asset, load_assets
from collm.server.dashboard.dashboard import Dashboard

# A page and its private wire format; the API's own routes say the same to programs.
router = APIRouter(include_in_schema=False)

_SAFETY = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def dashboard_of(request: Request) -> Dashboard:
    """Return the dashboard that the request's app was made with."""
    dashboard = request.app.state.dashboard
    assert isinstance(dashboard, Dashboard)
    return dashboard


@router.get("/")
async def show_page(request: Request) -> Response:
    """Return the page."""
    return _respond(request, load_assets()[PAGE])


@router.get("/dashboard/assets/{path:path}")
async def show_asset(request: Request, path: str) -> Response:
    """Return one of the page's files."""
    asset = load_assets().get(path)
    if asset is None:
        raise HTTPException(404)
    return _respond(request, asset)


@router.get("/dashboard/stream")
async def stream(request: Request) -> Response:
    """Send facts, history and then frames as server-sent events."""
    return dashboard_of(request).stream()


@router.get("/dashboard/history")
async def show_history(request: Request) -> Response:
    """Return the frames that are kept."""
    content = dashboard_of(request).history.encoded()
    return Response(content, media_type="application/json", headers={"cache-control": "no-store"})


def _respond(request: Request, asset: Asset) -> Response:
    # To be asked for again each time: after an upgrade, old and new files must not mix.
    headers = {**_SAFETY, "etag": asset.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
