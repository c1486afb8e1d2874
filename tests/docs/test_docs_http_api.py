"""The page about the HTTP API names every route, and none that is not there."""

import re
from pathlib import Path

from collm.server.app import make_app
from collm.server.config import ServerConfig
from factories.fake_backends import fake_backends

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
METHOD = r"GET|POST|PUT|PATCH|DELETE"


def routes_of_the_page():
    routes, last = set(), ("", "")
    for method, path in re.findall(rf"`(?:({METHOD}) )?((?:/|…/)[^`\s]+)`", _table()):
        if path.startswith("…"):  # the last route, but for its last part
            method, path = last[0], last[1].rpartition("/")[0] + path[1:]
        last = (method, path)
        routes.add(last)
    return routes


def _table():
    lines = PAGE.read_text("utf-8").partition("\n## ")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith("| `"))


def test_every_route_is_in_the_table_and_nothing_else():
    paths = make_app(fake_backends(), ServerConfig()).openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert routes_of_the_page() == routes
