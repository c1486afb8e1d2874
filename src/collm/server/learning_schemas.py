"""Bodies and URL parameters of the routes for training files and fine-tuning jobs.

Fields as in ``schemas``; what OpenAI has and this server does not is refused by name.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from collm.server import fields
from collm.server.adapter_schemas import AdapterName
from collm.server.fields import only, wrong
from collm.server.schemas import Body


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


# "auto", as OpenAI has it, leaves the choice to the server, as leaving the field out does.
AutoInt = Annotated[
    Annotated[int, Field(ge=1, le=4_096)] | None,
    BeforeValidator(_auto_is_none, json_schema_input_type=int | Literal["auto"]),
]
AutoFloat = Annotated[
    Annotated[float, Field(gt=0, le=1_000)] | None,
    BeforeValidator(_auto_is_none, json_schema_input_type=float | Literal["auto"]),
]

MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


class Hyperparameters(Body):
    """How a job learns: OpenAI's fields, and the settings that a configured job has."""

    n_epochs: AutoInt = None
    batch_size: AutoInt = None
    """Samples per optimizer step; the replica turns them into tokens."""
    learning_rate_multiplier: AutoFloat = None
    """Times the replica's default learning rate."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    tokens_per_step: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    rank: Annotated[int, Field(ge=1, le=1_024)] | None = None
    alpha: Annotated[float, Field(gt=0, le=100_000)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] | None = None
    replay_share: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _say_each_once(self) -> Self:
        if self.batch_size is not None and self.tokens_per_step is not None:
            raise wrong("not allowed together with 'tokens_per_step'", param="batch_size")
        if self.learning_rate_multiplier is not None and self.learning_rate is not None:
            raise wrong("not allowed together with 'learning_rate'", param="learning_rate")
        return self

    def chosen(self) -> dict[str, int | float]:
        """Return the fields that the client set, ``"auto"`` not counted."""
        return self.model_dump(exclude_none=True)


class Supervised(Body):
    """Part of ``Method``."""

    hyperparameters: Hyperparameters = Hyperparameters()


class Method(Body):
    """How to learn, in OpenAI's newer form."""

    type: Annotated[Any, only("supervised", hint='allowed: "supervised"')]
    supervised: Supervised = Supervised()
    dpo: Annotated[Any, only(None, hint="leave it out")] = None
    reinforcement: Annotated[Any, only(None, hint="leave it out")] = None


class CreateJobBody(Body):
    """Body of ``POST /v1/fine_tuning/jobs``."""

    model: fields.Name
    training_file: fields.Name | None = None
    """May be left out of a continuous job, which then learns from feedback alone."""
    validation_file: fields.Name | None = None
    suffix: AdapterName | None = None
    """Name of the adapter; made up when neither this nor ``adapter`` is given."""
    hyperparameters: Hyperparameters | None = None
    method: Method | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata = Field(default_factory=dict)
    integrations: Annotated[Any, only(None, [], hint="leave it out")] = None

    adapter: AdapterName | None = None
    """Extension: the same as ``suffix``, under the name that this server's other routes use."""
    continuous: bool = False
    """Extension: the job goes on, following its data, until it is cancelled."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.training_file is None and not self.continuous:
            raise wrong('is required, unless "continuous" is true', param="training_file")
        if self.training_file is None and self.validation_file is not None:
            raise wrong("needs a 'training_file'", param="validation_file")
        if self.training_file is not None and self.training_file == self.validation_file:
            raise wrong("must be another file than 'training_file'", param="validation_file")
        if self.suffix is not None and self.adapter not in (None, self.suffix):
            raise wrong("differs from 'adapter'; send one", param="suffix")
        if self.hyperparameters is not None and self.method is not None:
            raise wrong("not allowed together with 'method'", param="hyperparameters")
        if self.continuous and self.chosen.n_epochs is not None:
            raise wrong("a continuous job has no last epoch; leave it out", param="n_epochs")
        return self

    @property
    def chosen(self) -> Hyperparameters:
        """The hyperparameters, wherever the client put them."""
        if self.method is not None:
            return self.method.supervised.hyperparameters
        return self.hyperparameters or Hyperparameters()


class PageQuery(Body):
    """URL parameters of a list: ``after`` is the id of the last object of the page before."""

    after: fields.Name | None = None


class FilesQuery(PageQuery):
    """URL parameters of ``GET /v1/files``."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    purpose: fields.Name | None = None
    order: Literal["asc", "desc"] = "desc"


class JobsQuery(PageQuery):
    """URL parameters of ``GET /v1/fine_tuning/jobs``."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    metadata: Metadata | None = None
    """Written ``metadata[KEY]=VALUE``; only jobs that have all of them are listed."""


class EventsQuery(PageQuery):
    """URL parameters of ``GET /v1/fine_tuning/jobs/{job_id}/events``."""

    limit: Annotated[int, Field(ge=1, le=1_000)] = 20


class CheckpointsQuery(PageQuery):
    """URL parameters of ``GET /v1/fine_tuning/jobs/{job_id}/checkpoints``."""

    limit: Annotated[int, Field(ge=1, le=100)] = 10
