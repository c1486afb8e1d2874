"""What a replica on some device takes for its work, and how its adapter learns."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from collm.errors import ConfigError, DataError
from collm.pacing.quanta import QuantumKind
from collm.sim.curve import Curve
from collm.types import StepCoefficients
from collm.workload.own_files import blaming

_EVEN = (1.0,)
"""Residual quantiles of a device that always takes the predicted time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantumTime:
    """Time of a quantum of one kind: ``fixed_s + per_unit_s · size``, times a residual."""

    fixed_s: float
    per_unit_s: float
    """Above 0."""
    ratios: tuple[float, ...] = _EVEN
    """Quantiles of measured over predicted times, at evenly spaced shares from 0 to 1."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.fixed_s < 0.0 or self.per_unit_s <= 0.0 or not self.ratios or min(self.ratios) <= 0:
            raise ConfigError(f"{self}: needs fixed_s >= 0, per_unit_s > 0 and ratios above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """How training is cut into quanta on the device."""

    num_layers: int
    layer_parameters: int
    """Adapter parameters of one layer."""
    micro_batch_tokens: int
    """Packed tokens of a typical micro-batch, which are the rows that its quanta compute."""
    supervised_share: float
    """Share of its tokens that have a loss."""
    max_loss_rows: int
    """Most positions of one loss quantum."""
    max_optimizer_parameters: int
    """Most parameters of one optimizer quantum of several layers."""
    tokens_per_step: int
    """Tokens of an optimizer step when ``loss`` was fitted."""
    noise_scale_tokens: float
    """Gradient noise scale: what a token of a larger step than ``tokens_per_step`` is worth."""
    tokens_per_row: float = 1.0
    """Sample tokens for each packed one: what samples begin with alike is computed once."""
    evaluate_every: int = 10
    """Optimizer steps between evaluations."""
    evaluation_tokens: int = 4000
    """Tokens of one evaluation of a candidate."""
    evaluation_samples: int = 128
    """Held-out samples in them."""
    alone_tokens_per_s: float | None = None
    """What a replica that served nobody trained on; says how well the quanta's times add up, and is
    not simulated by."""
    loss_spread: float = 1.0
    """Standard deviation over samples of a candidate's loss less the served one's, in nats. Also
    taken for that of a loss itself where it says how sure a quality is; it is not measured."""

    @property
    def micro_batch_sample_tokens(self) -> int:
        """Sample tokens that a typical micro-batch trains on."""
        return max(1, round(self.micro_batch_tokens * self.tokens_per_row))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device with a model on it: measured on a real replica, or stated.

    A stated profile is somebody's reckoning; what is simulated with it says how policies compare
    on such a device, not what the device does.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=False)

    name: str
    origin: Literal["measured", "stated"]
    note: str
    """On what it was measured, or how it was reckoned."""
    step: StepCoefficients
    step_ratios: tuple[float, ...] = _EVEN
    """Quantiles of measured over predicted step times, at evenly spaced shares from 0 to 1."""
    quanta: Mapping[QuantumKind, QuantumTime]
    loop_s: float = 0.0
    """From the end of one iteration's work to the start of the next step."""
    request_s: float = 0.0
    """From a request's arrival to the step loop, and from its tokens to the client."""
    num_blocks: int
    block_size: int
    max_model_len: int
    bytes_per_token: float = 4.0
    training: TrainingShape
    loss: Curve
    """Held-out cross-entropy by training tokens, in nats per token."""
    miss: Curve | None = None
    """Share of scored answers that are wrong, by training tokens; ``None`` where no task is."""
    reload_s: float = 30.0
    """To stop a trainer and start a server or the other way round, as separate systems do."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        missing = [kind.value for kind in QuantumKind if kind not in self.quanta]
        if missing:
            raise ConfigError(f"profile {self.name}: quanta lacks {', '.join(missing)}")
        if not self.step_ratios or min(self.step_ratios) <= 0.0:
            raise ConfigError(f"profile {self.name}: step_ratios must be above 0")

    def slowed(self, factor: float) -> "Profile":
        """Return a device alike that takes ``factor`` times as long for steps and quanta."""
        step = {name: factor * seconds for name, seconds in asdict(self.step).items()}
        quanta = {
            kind: replace(time, fixed_s=factor * time.fixed_s, per_unit_s=factor * time.per_unit_s)
            for kind, time in self.quanta.items()
        }
        return replace(self, step=StepCoefficients(**step), quanta=quanta)

    def to_json(self) -> str:
        """Return the text of a profile file."""
        return json.dumps(asdict(self), indent=1) + "\n"


_READER = TypeAdapter(Profile)


def parse_profile(text: str, where: str) -> Profile:
    """Read a profile's JSON.

    Raises:
        DataError: It is malformed; names the place and the field.
    """
    try:
        return _READER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise DataError(f"{where}: {field_name}: {first['msg']}") from error
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from error


def stated_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package."""
    folder = files(__package__).joinpath("profiles")
    return tuple(sorted(one.name[:-5] for one in folder.iterdir() if one.name.endswith(".json")))


def load_profile(name_or_path: str) -> Profile:
    """Return a profile that comes with the package, by name, or one from a JSON file.

    Raises:
        DataError: There is none, it cannot be read, or it is malformed.
    """
    if name_or_path in stated_profiles():
        place = files(__package__).joinpath(f"profiles/{name_or_path}.json")
        return parse_profile(place.read_text(encoding="utf-8"), name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(stated_profiles())
        raise DataError(f"no profile {name_or_path!r}: give a JSON file or one of {known}")
    with blaming(name_or_path):
        return parse_profile(path.read_text(encoding="utf-8"), name_or_path)
