"""Adapters as PEFT folders: ``adapter_config.json`` beside ``adapter_model.safetensors``."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from collm.errors import AdapterError
from collm.lora.config import MAX_RANK
from collm.lora.layout import LoraLayout, lora_layout
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec

PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"
BASE_DIGEST = "collm.base_digest"
"""Entry of a weights file's metadata: digest of the base model that it was made for."""
_MAX_PATTERNS = 1_000
_PATTERN = re.compile(r"[\w.|^$\\*+?-]{1,200}")
_MAX_REPEATS = 2
"""A pattern of a stranger's is matched while others wait: no groups, and few repeats, or matching
could take for ever."""
_ROOT = "base_model.model."
_LAYERS = "model.layers"
_Pairs = dict[str, tuple[Tensor, Tensor]]
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_bdlora": (None, False),
    "arrow_config": (None, {}),
    "kasa_config": (None,),
    # Others (pissa, olora, corda, loftq, ...) change the base weights that the factors belong to.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
"""Values with which an adapter is plain LoRA on unchanged base weights; the first is the usual."""


def save_peft(
    state: AdapterState, folder: Path, base_model: str, base_digest: str | None = None
) -> None:
    """Write ``state`` into the existing ``folder`` for ``peft`` and other servers to load.

    The scale is folded into B, so alpha equals the rank. ``base_digest`` goes into the weights'
    own metadata, where ``load_peft`` finds it and others do not mind it.
    """
    modules = {part.module for target in state.layout.targets for part in target.parts}
    save_file(_tensors(state), folder / PEFT_WEIGHTS, metadata=_metadata(base_digest))
    (folder / PEFT_CONFIG).write_text(
        config_text(base_model, state.layout.rank, modules), encoding="utf-8"
    )


def config_text(base_model: str, rank: int, modules: Iterable[str]) -> str:
    """Return the content of ``PEFT_CONFIG`` for factors that the scale is folded into.

    Args:
        base_model: Name of the base model.
        rank: Of the factors.
        modules: Names of the adapted modules; what counts is what follows the last dot.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    return json.dumps(config, indent=2) + "\n"


def weights_file(state: AdapterState, base_digest: str | None = None) -> bytes:
    """Return the content of the weights file that ``save_peft`` writes.

    The same state may give other bytes the next time.
    """
    return save(_tensors(state), metadata=_metadata(base_digest))


def _tensors(state: AdapterState) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for factors in state.layout.views(state.flat):
        for part, a, b in factors.parts():
            name = f"{_ROOT}{_LAYERS}.{factors.layer}.{part.module}"
            tensors[f"{name}.lora_A.weight"] = a.contiguous()
            tensors[f"{name}.lora_B.weight"] = b.contiguous()
    return tensors


def _metadata(base_digest: str | None) -> dict[str, str]:
    return {"format": "pt"} | ({BASE_DIGEST: base_digest} if base_digest else {})


def load_peft(folder: Path, spec: ModelSpec, base_digest: str | None = None) -> AdapterState:
    """Read a PEFT LoRA folder made for a model of this ``spec``.

    The tensors present decide which modules are adapted; others get ΔW = 0. Ranks that differ by
    module are padded to the largest.

    Args:
        folder: Holds ``PEFT_CONFIG`` and ``PEFT_WEIGHTS``.
        spec: The model's shapes.
        base_digest: The model's digest, which files of ours must name if they name one; ``None``
            takes any.

    Raises:
        AdapterError: Names what is missing, unsupported, of the wrong shape, or of another base.
    """
    config = _Config(folder / PEFT_CONFIG)
    pairs = _read_pairs(folder / PEFT_WEIGHTS, base_digest)
    _check_pairs(pairs, lora_layout(spec, 1), config)
    layout = lora_layout(spec, max(a.shape[0] for a, _ in pairs.values()))
    flat = torch.zeros(layout.num_parameters)
    for factors in layout.views(flat):
        for part, out_a, out_b in factors.parts():
            module = f"{_LAYERS}.{factors.layer}.{part.module}"
            if module in pairs:
                a, b = pairs[module]
                out_a[: a.shape[0]].copy_(a)
                out_b[:, : a.shape[0]].copy_(b * config.scale(module))
    state = AdapterState(layout, flat)
    state.check_finite()
    return state


class _Config:
    """What an ``adapter_config.json`` says about ranks and scales."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields = _read_json(path)
        if self._fields.get("peft_type") != "LORA":
            raise AdapterError(f"{path}: peft_type must be 'LORA'")
        for key, allowed in _SUPPORTED.items():
            value = self._fields.get(key)
            if value not in allowed:
                raise AdapterError(f"{path}: {key} is {_shown(value)}; supported is {allowed[0]!r}")
        is_rslora = self._fields.get("use_rslora")
        if is_rslora not in (None, False, True):  # a text, "false" too, would count as true
            raise AdapterError(
                f"{path}: use_rslora is {_shown(is_rslora)}; true or false is needed"
            )
        self._divides_by_root = bool(is_rslora)
        self._rank = self._number("r", self._fields.get("r"))
        self._alpha = self._number("lora_alpha", self._fields.get("lora_alpha"))
        self._rank_patterns = self._patterns("rank_pattern")
        self._alpha_patterns = self._patterns("alpha_pattern")

    def rank(self, module: str) -> float:
        """Return the rank that ``module`` (``model.layers.N...``) should have."""
        return _matching(self._rank_patterns, module, self._rank)

    def scale(self, module: str) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv 2312.03732)."""
        rank = self.rank(module)
        divisor = math.sqrt(rank) if self._divides_by_root else rank
        return _matching(self._alpha_patterns, module, self._alpha) / divisor

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            shown = _shown(value)
            raise AdapterError(f"{self._path}: {key} is {shown}; allowed is above 0, below 1e9")
        return float(value)

    def _patterns(self, key: str) -> list[tuple[re.Pattern[str], float]]:
        """Compile a pattern table; as in PEFT, the first pattern that ends a module's name wins."""
        table = self._fields.get(key) or {}
        if not isinstance(table, dict) or len(table) > _MAX_PATTERNS:
            raise AdapterError(
                f"{self._path}: {key} must map at most {_MAX_PATTERNS} module names to numbers"
            )
        for pattern in table:
            if not _PATTERN.fullmatch(pattern) or _num_repeats(pattern) > _MAX_REPEATS:
                raise AdapterError(
                    f"{self._path}: {key}[{pattern[:60]!r}] is not supported; give a module's name"
                    f" or a regular expression without groups and with up to {_MAX_REPEATS} repeats"
                )
        try:
            return [
                (re.compile(rf"(.*\.)?({pattern})$"), self._number(f"{key}[{pattern!r}]", value))
                for pattern, value in table.items()
            ]
        except re.error as error:
            raise AdapterError(f"{self._path}: {key} has an invalid pattern: {error}") from error


def _shown(value: object) -> str:
    return repr(value)[:60]


def _num_repeats(pattern: str) -> int:
    return sum(pattern.count(sign) for sign in "*+?")


def _matching(patterns: list[tuple[re.Pattern[str], float]], module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{path} does not exist; expected a PEFT LoRA folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise AdapterError(f"{path} holds no JSON object")
    return value


def _read_pairs(path: Path, base_digest: str | None) -> _Pairs:
    """Return (A, B) in float32 by module name below the base model."""
    if not path.is_file():
        raise AdapterError(f"{path} does not exist; only safetensors weights are loaded")
    halves: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            _check_base((file.metadata() or {}).get(BASE_DIGEST), base_digest)
            for key in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                module, _, kind = key.removesuffix(".weight").rpartition(".")
                if kind not in ("lora_A", "lora_B"):
                    raise AdapterError(f"{path}: unexpected tensor {key!r}")
                half = halves.setdefault(module.removeprefix(_ROOT), {})
                if kind in half:
                    raise AdapterError(f"{path}: {key!r} is there twice, once by another name")
                half[kind] = _real(path, key, file.get_tensor(key))
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path} is no valid safetensors file: {error}") from error
    lonely = [module for module, pair in halves.items() if len(pair) != 2]
    if lonely:
        raise AdapterError(f"{path}: lora_A or lora_B is missing for {_some(lonely)}")
    if not halves:
        raise AdapterError(f"{path} holds no LoRA factors")
    return {module: (pair["lora_A"], pair["lora_B"]) for module, pair in halves.items()}


def _real(path: Path, key: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise AdapterError(f"{path}: {key!r} holds {kind}; LoRA factors are floating-point numbers")
    return tensor.float()


def _check_base(made_for: str | None, base_digest: str | None) -> None:
    if base_digest and made_for and made_for != base_digest:
        raise AdapterError(
            f"the adapter was made for base {made_for[:12]}; this replica serves {base_digest[:12]}"
        )


def _check_pairs(pairs: _Pairs, layout: LoraLayout, config: _Config) -> None:
    """Refuse factors of unknown modules or wrong shapes, before memory is reserved for them."""
    shapes = {
        f"{_LAYERS}.{layer}.{part.module}": (target.in_features, part.out_features)
        for layer in range(layout.num_layers)
        for target in layout.targets
        for part in target.parts
    }
    unknown = pairs.keys() - shapes.keys()
    if unknown:
        raise AdapterError(f"adapter targets modules this model does not have: {_some(unknown)}")
    for module, (a, b) in pairs.items():
        in_features, out_features = shapes[module]
        rank = a.shape[0] if a.dim() else 0
        if a.shape != (rank, in_features) or b.shape != (out_features, rank):
            raise AdapterError(
                f"{module}: lora_A is {list(a.shape)} and lora_B {list(b.shape)}; this model needs"
                f" [rank, {in_features}] and [{out_features}, rank]"
            )
        if not 1 <= rank <= MAX_RANK:
            raise AdapterError(f"{module} has rank {rank}; allowed are 1 to {MAX_RANK}")
        if rank != config.rank(module):
            raise AdapterError(
                f"{module} has rank {rank}, but its configuration says {config.rank(module):g}"
            )


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
