"""Bodies and parameters of the routes about adapters and feedback."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from collm.errors import AdapterError
from collm.server import fields
from collm.server.fields import only
from collm.server.schemas import Body, Ignored
from collm.store.names import check_name


def _as_adapter_name(name: str) -> str:
    try:
        check_name("adapter name", name)
    except AdapterError as error:
        raise fields.wrong(str(error)) from error
    return name


def _as_path(path: str) -> str:
    if "\0" in path:
        raise fields.wrong("must not contain a null character")
    return path


AdapterName = Annotated[str, AfterValidator(_as_adapter_name)]


class VersionBody(Body):
    """Body of ``POST /adapters/promote``, ``/adapters/pin`` and ``/adapters/unpin``."""

    version: fields.Name
    """``NAME@LABEL``."""


class RollbackBody(Body):
    """Body of ``POST /adapters/rollback``."""

    adapter: fields.Name


class HistoryQuery(Body):
    """Parameters of ``GET /adapters/{name}/history``."""

    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class ExportQuery(Body):
    """Parameters of ``GET /adapters/export``."""

    version: fields.Name


class ImportFields(Body):
    """The short fields of the form of ``POST /adapters/import``."""

    name: AdapterName
    promote: bool = False


class LoadBody(Body):
    """Body of ``POST /v1/load_lora_adapter``, as vLLM has it."""

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_as_path)]
    load_inplace: bool = False
    base_model_name: Ignored = None
    is_3d_lora_weight: Annotated[Any, only(None, False, hint="allowed: false")] = None


class UnloadBody(Body):
    """Body of ``POST /v1/unload_lora_adapter``, as vLLM has it."""

    lora_name: fields.Name
    lora_int_id: Ignored = None


class FeedbackBody(Body):
    """Body of ``POST /v1/feedback``; at least one of answer and rating."""

    response_id: fields.Name
    choice: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    answer: Annotated[str, Field(min_length=1)] | None = None
    rating: fields.Share | None = None


class FeedbackQuery(Body):
    """Parameters of ``GET /v1/feedback``."""

    adapter: fields.Name | None = None
    after: fields.Name | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
