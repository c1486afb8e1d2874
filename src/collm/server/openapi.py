"""Schemas of bodies and URL parameters that routes read by themselves, for ``/openapi.json``."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

FILE_PART = {"type": "string", "format": "binary"}
"""Schema of a form's part that is a file."""


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI members that describe a JSON body of this kind."""
    return _body("application/json", _inlined(kind.model_json_schema(mode="validation")))


def form_schema(parts: dict[str, dict[str, Any]], required: Sequence[str]) -> dict[str, Any]:
    """Return the OpenAPI members that describe a form of these parts, and no others, by name."""
    schema = {
        "type": "object",
        "properties": parts,
        "required": list(required),
        "additionalProperties": False,
    }
    return _body("multipart/form-data", schema)


def query_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI members that describe URL parameters of this kind."""
    schema = _inlined(kind.model_json_schema(mode="validation"))
    required = schema.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": member}
        for name, member in schema["properties"].items()
    ]
    return {"parameters": parameters}


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def _inlined(schema: dict[str, Any]) -> Any:
    """Replace references by what they name: OpenAPI would look for them elsewhere."""
    definitions = schema.pop("$defs", {})

    def expand(node: Any) -> Any:
        if isinstance(node, list):
            return [expand(item) for item in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str):
            return expand(definitions[reference.rsplit("/", 1)[-1]])
        return {key: expand(value) for key, value in node.items()}

    return expand(schema)
