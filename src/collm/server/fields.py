"""Field types that several request bodies share: what is allowed, and words for what is not."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

UNSUPPORTED = "unsupported_parameter"
"""Error code of a known field whose value would need something that is not built yet."""

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_PROMPTS = 64

Prompt = str | list[int]
"""One prompt of a completion: text, or token ids."""


def wrong(message: str, *, param: str | None = None) -> PydanticCustomError:
    """Return the error of a bad value; ``param`` names the field where pydantic cannot."""
    return PydanticCustomError("invalid_value", "{reason}", {"reason": message, "param": param})


def only(*allowed: Any, hint: str) -> PlainValidator:
    """Return the check of a known field of which only some values are supported.

    Args:
        *allowed: Values that change nothing, the default first.
        hint: What a client can do instead, to finish the error message.
    """

    def check(value: Any) -> Any:
        if any(value == choice and type(value) is type(choice) for choice in allowed):
            return value
        raise PydanticCustomError(UNSUPPORTED, "this is not supported yet; {hint}", {"hint": hint})

    described = WithJsonSchema({"description": f"Not supported yet; {hint}."})
    return PlainValidator(check, json_schema_input_type=Annotated[Any, described])


def _as_stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARS for stop in stops)
    ):
        raise wrong(
            f"must be a string or a list of at most {MAX_STOPS} strings, "
            f"each of 1 to {MAX_STOP_CHARS} characters"
        )
    return stops


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _as_prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str) or _is_ids(value):
        return [value]
    is_batch = isinstance(value, list) and 1 <= len(value) <= MAX_PROMPTS
    if is_batch and (all(isinstance(item, str) for item in value) or all(map(_is_ids, value))):
        return list(value)
    raise wrong(
        "must be a string, a list of strings, a list of token ids or a list of such lists; "
        f"at least one and at most {MAX_PROMPTS} prompts, none of them an empty list"
    )


def _as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list) or not value:
        raise wrong("must be a string or a list of at least one text part")
    return value


def _as_part_text(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            UNSUPPORTED,
            "parts of type '{kind}' are not supported yet; allowed: text",
            {"kind": kind[:40]},
        )
    if kind != "text" or value.keys() != {"type", "text"} or not isinstance(value["text"], str):
        raise wrong('must be {"type": "text", "text": "..."} and nothing else')
    return str(value["text"])


_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}

PartText = Annotated[str, PlainValidator(_as_part_text), WithJsonSchema(_PART_SCHEMA)]
Content = Annotated[
    list[PartText],
    BeforeValidator(_as_parts, json_schema_input_type=str | list[PartText]),
]
"""A message's content: a string or text parts, read as the list of their texts."""

Stops = Annotated[list[str], BeforeValidator(_as_stops, json_schema_input_type=str | list[str])]
Prompts = Annotated[
    list[Prompt],
    PlainValidator(
        _as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]

Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(ge=0.1, le=10)]
TopK = Annotated[int, Field(ge=-1, le=1_000_000)]
NumChoices = Annotated[int, Field(ge=1, le=16)]
NumLogprobs = Annotated[int, Field(ge=0, le=20)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
MaxTokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
MinTokens = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
