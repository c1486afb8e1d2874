"""Adapters as PEFT folders: ``adapter_config.json`` beside ``adapter_model.safetensors``."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from collm.errors import AdapterError
from collm.lora.layout import Part, lora_layout
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model.model.layers"
_UNSUPPORTED = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (False, None),
    "use_qalora": (False, None),
}


def save_peft(state: AdapterState, folder: Path, base_model: str) -> None:
    """Write ``state`` into the existing ``folder`` for ``peft`` and other servers to load.

    The scale is folded into B, so alpha equals the rank.
    """
    tensors: dict[str, Tensor] = {}
    modules = []
    for factors in state.layout.views(state.flat):
        for part, a, b in factors.parts():
            name = f"{_PREFIX}.{factors.layer}.{part.module}"
            tensors[f"{name}.lora_A.weight"] = a.contiguous()
            tensors[f"{name}.lora_B.weight"] = b.contiguous()
            modules.append(part.module.rpartition(".")[2])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": state.layout.rank,
        "lora_alpha": state.layout.rank,
        "target_modules": sorted(set(modules)),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load_peft(folder: Path, spec: ModelSpec) -> AdapterState:
    """Read a PEFT LoRA folder made for a model of this ``spec``.

    Modules absent from the folder get ΔW = 0. Ranks that differ by module are padded to the largest.

    Raises:
        AdapterError: Names what is missing, unsupported, or of the wrong shape.
    """
    config = _read_config(folder)
    pairs = _read_pairs(folder)
    if not pairs:
        raise AdapterError(f"{folder / _WEIGHTS} holds no LoRA factors")
    layout = lora_layout(spec, max(a.shape[0] for a, _ in pairs.values()))
    flat = torch.zeros(layout.num_parameters)
    for factors in layout.views(flat):
        for part, out_a, out_b in factors.parts():
            name = f"{_PREFIX}.{factors.layer}.{part.module}"
            if name in pairs:
                a, b = pairs.pop(name)
                _check_shapes(name, a, b, factors.target.in_features, part)
                out_a[: a.shape[0]].copy_(a)
                out_b[:, : a.shape[0]].copy_(b * _scale(config, name, a.shape[0]))
    if pairs:
        raise AdapterError(f"adapter targets modules this model does not have: {_some(pairs)}")
    state = AdapterState(layout, flat)
    state.check_finite()
    return state


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise AdapterError(f"{path} does not exist; expected a PEFT LoRA folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AdapterError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: peft_type must be 'LORA'")
    for key, allowed in _UNSUPPORTED.items():
        if key in config and config[key] not in allowed:
            raise AdapterError(f"{path}: {key} is {config[key]!r}; supported is {allowed[0]!r}")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise AdapterError(f"{path}: {key} is {value!r}; a positive number is needed")
    return config


def _read_pairs(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (A, B) by module name, in float32."""
    path = folder / _WEIGHTS
    if not path.is_file():
        raise AdapterError(f"{path} does not exist; only safetensors weights are loaded")
    halves: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                module, _, kind = key.removesuffix(".weight").rpartition(".")
                if kind not in ("lora_A", "lora_B"):
                    raise AdapterError(f"{path}: unexpected tensor {key!r}")
                halves.setdefault(module, {})[kind] = file.get_tensor(key).float()
    except SafetensorError as error:
        raise AdapterError(f"{path} is no valid safetensors file: {error}") from error
    lonely = [module for module, pair in halves.items() if len(pair) != 2]
    if lonely:
        raise AdapterError(f"{path}: lora_A or lora_B is missing for {_some(lonely)}")
    return {module: (pair["lora_A"], pair["lora_B"]) for module, pair in halves.items()}


def _check_shapes(name: str, a: Tensor, b: Tensor, in_features: int, part: Part) -> None:
    rank = a.shape[0]
    if a.shape != (rank, in_features) or b.shape != (part.out_features, rank) or rank < 1:
        raise AdapterError(
            f"{name}: lora_A is {list(a.shape)} and lora_B {list(b.shape)}; this model needs "
            f"[rank, {in_features}] and [{part.out_features}, rank]"
        )


def _scale(config: dict[str, Any], name: str, rank: int) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv 2312.03732)."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if name.endswith(pattern):
            alpha = float(value)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


