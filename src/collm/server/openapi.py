"""Schemas of bodies and URL parameters that routes read by themselves, for ``/openapi.json``."""

from typing import Any

from pydantic import BaseModel


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI members that describe a JSON body of this kind."""
    schema = _inlined(kind.model_json_schema(mode="validation"))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def query_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI members that describe URL parameters of this kind."""
    schema = _inlined(kind.model_json_schema(mode="validation"))
    required = schema.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": member}
        for name, member in schema["properties"].items()
    ]
    return {"parameters": parameters}


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
