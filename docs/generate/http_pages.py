"""The routes of a replica and of a front, from the schemas that they serve themselves."""

import json
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from collm.clock import MonotonicClock
from collm.cluster.registry import Registry, SnapshotSource
from collm.cluster.router import Router
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.server.app import make_app
from collm.server.backend import Backends
from collm.server.config import ServerConfig
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends, NoRounds
from pieces import code, page, prose, table

Schema = Mapping[str, Any]

_REPLICA = """\
A running server gives the same as `/openapi.json`. What the routes are for, with examples: [HTTP
API](../http-api.md). `null` stands for a field's default, and unknown fields are refused by
name."""
_FRONT = """\
The front of a cluster has a [replica's routes](replica-api.md) and passes bodies on, so their
fields are described there. Files, jobs, feedback, imports and changes of adapters take
`replica=NAME`, in the query or the form, to mean one replica. Lists are merged over replicas;
`x-collm-missing` names those whose part is missing."""
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("maxLength", "length ≤"))
_UNBOUNDED = 2**31 - 1
_IGNORED = "Accepted and ignored"
_REFUSED = "Not supported yet; "


def replica_page() -> str:
    """Return the page of a replica's routes and their fields."""
    # Only the routes are read; of the server behind them an empty chat's length is asked for.
    tokenizer = SimpleNamespace(encode_chat=lambda chat: ())
    backends = SimpleNamespace(replica=SimpleNamespace(tokenizer=tokenizer))
    app = make_app(cast(Backends, backends), ServerConfig())
    return page("Replica API", "`/openapi.json` of a replica", _REPLICA, *_routes(app.openapi()))


def front_page() -> str:
    """Return the page of a front's routes."""
    clock, sent = MonotonicClock(), Sent()
    backends = FrontBackends(
        registry=Registry(cast(SnapshotSource, None), sent, clock, RegistryConfig()),
        router=Router(RouterConfig(), Random(0)),
        sent=sent,
        clock=clock,
        rounds=NoRounds(),
    )
    app = make_front_app(backends, ServerConfig())
    rows = [
        (code(f"{method.upper()} {path}"), _summary(route))
        for path, methods in sorted(app.openapi()["paths"].items())
        for method, route in sorted(methods.items())
    ]
    routes = table(("route", "what it does"), rows)
    return page("Front API", "`/openapi.json` of a front", _FRONT, routes)


def _routes(document: Schema) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield f"## {method.upper()} {path}"
            yield prose(route["description"])
            yield table(_HEADER, _parameters(route))
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                yield from _body(kind, content["schema"])


def _body(kind: str, schema: Schema) -> Iterator[str]:
    rows = list(_fields(schema))
    yield f"Body, `{kind}`:"
    yield table(_HEADER, [row for row in rows if not row[3].startswith((_IGNORED, _REFUSED))])
    yield _listed("Accepted and ignored", (row[0] for row in rows if row[3].startswith(_IGNORED)))
    refused = (
        f"{row[0]} ({row[3].removeprefix(_REFUSED).rstrip('.')})"
        for row in rows
        if row[3].startswith(_REFUSED)
    )
    yield _listed("Not supported yet, so only what changes nothing is taken", refused)


def _listed(what: str, names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"{what}: {text}." if text else ""


_HEADER = ("field", "type", "default", "what")


def _summary(route: Schema) -> str:
    return prose(route["description"].partition("\n\n")[0])


def _parameters(route: Schema) -> Iterator[tuple[str, str, str, str]]:
    for parameter in route.get("parameters", ()):
        if parameter["in"] == "query":
            schema = parameter["schema"]
            yield _field(parameter["name"], schema, parameter["required"])


def _fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, member in schema.get("properties", {}).items():
        yield _field(prefix + name, member, name in required)
        inner, mark = _object_in(member)
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}{mark}.")


def _field(name: str, schema: Schema, is_required: bool) -> tuple[str, str, str, str]:
    default = "required" if is_required else code(_literal(schema.get("default")))
    own = "" if _object_in(schema)[0] else schema.get("description", "")
    return code(name), _type(schema), default, prose(own)


def _object_in(schema: Schema) -> tuple[Schema | None, str]:
    """Return the object that a field holds or lists, and how its path says so."""
    for option in (schema, *schema.get("anyOf", ())):
        if "properties" in option:
            return option, ""
        if "properties" in option.get("items", {}):
            return option["items"], "[]"
    return None, ""


def _type(schema: Schema) -> str:
    options = schema.get("anyOf")
    if options:
        return " or ".join(_type(one) for one in options if one.get("type") != "null")
    if "enum" in schema:
        return "one of " + ", ".join(code(_literal(one)) for one in schema["enum"])
    if "const" in schema:
        return code(_literal(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    limits = [
        f"{sign} {_number(schema[name])}"
        for name, sign in _BOUNDS
        if name in schema and abs(schema[name]) < _UNBOUNDED
    ]
    return ", ".join([schema.get("type", ""), *limits])


def _literal(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return _number(value) if _is_number(value) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float) -> str:
    return f"{value:g}" if value != int(value) else f"{int(value)}"
