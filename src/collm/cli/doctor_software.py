"""Checks of what is installed: Python, torch, the compiled kernels, extras."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import torch

from collm.cli.cores import num_cores
from collm.cli.doctor_report import Finding, Status
from collm.config import CollmConfig
from collm.ops.native import library as native

_OLDEST_PYTHON = (3, 11)
_SPINNING = "ACTIVE"


def check_software(config: CollmConfig, *, wants_ray: bool) -> Iterator[Finding]:
    """Look at everything that is installed, or should be."""
    yield check_python(sys.version_info[:2])
    yield _torch(config)
    wanted = config.replica.kernels
    if wanted == "auto":
        yield check_kernels(native.path(), native.obstacle(), config.model.dtype)
    else:
        yield check_kernels(wanted, "replica.kernels says so", config.model.dtype)
    yield _threads(config)
    if config.traces.endpoint is not None:
        yield check_extra("traces", "opentelemetry", "otel")
    if wants_ray:
        yield _ray()


def check_python(version: tuple[int, ...]) -> Finding:
    """Judge Python's version."""
    found = f"{'.'.join(map(str, version))} on {platform.machine()} {platform.system()}"
    if version < _OLDEST_PYTHON:
        advice = "install Python 3.11 or newer, and collm in a new environment of it"
        return Finding(check="Python", status=Status.FIX, found=found, advice=advice)
    return Finding(check="Python", status=Status.OK, found=found)


def check_kernels(path: native.KernelPath, obstacle: str | None, dtype: str) -> Finding:
    """Say which way steps are computed on the CPU, and why not on a faster one."""
    check = "CPU path"
    if path == "torch":
        return Finding(
            check=check,
            status=Status.NOTE,
            found=f"torch, because {obstacle}",
            advice="several times slower at few rows; decisions/native-kernels.md says what the "
            "compiled kernels need",
        )
    if dtype != "bfloat16":
        advice = "set model.dtype=bfloat16, unless the last digits matter more than speed"
        found = f"torch, because model.dtype is {dtype} and the compiled kernels take bfloat16"
        return Finding(check=check, status=Status.NOTE, found=found, advice=advice)
    found = f"compiled kernels for {path.upper()}, bfloat16"
    if obstacle is not None:
        advice = "decisions/native-kernels.md says what the fastest ones need"
        found = f"{found}, because {obstacle}"
        return Finding(check=check, status=Status.NOTE, found=found, advice=advice)
    return Finding(check=check, status=Status.OK, found=found)


def check_extra(check: str, module: str, extra: str) -> Finding:
    """Say whether what an optional part needs is installed."""
    if find_spec(module) is None:
        advice = f"pip install 'collm[{extra}]'"
        found = f"{module} is not installed"
        return Finding(check=check, status=Status.FIX, found=found, advice=advice)
    return Finding(check=check, status=Status.OK, found=f"{module} is installed")


def _ray() -> Finding:
    found = "installed" if find_spec("ray") is not None else "not installed"
    advice = "nothing: collm starts its replicas by itself, on this machine, and does not use Ray"
    return Finding(check="Ray", status=Status.NOTE, found=found, advice=advice)


def _torch(config: CollmConfig) -> Finding:
    build = torch.version.cuda
    found = f"{torch.__version__}, {'CPU' if build is None else f'CUDA {build}'} build"
    return Finding(check="torch", status=Status.OK, found=found)


def _threads(config: CollmConfig) -> Finding:
    wanted = config.replica.threads
    policy = os.environ.get("OMP_WAIT_POLICY", "").upper()
    found = f"{num_cores()} cores, {'all' if wanted is None else wanted} for computing"
    if wanted is not None and wanted > num_cores():
        advice = f"set replica.threads to at most {num_cores()}: more threads wait for each other"
        return Finding(check="cores", status=Status.NOTE, found=found, advice=advice)
    if policy == _SPINNING:
        advice = "unset OMP_WAIT_POLICY: spinning threads suffer from any other load"
        return Finding(check="cores", status=Status.NOTE, found=found, advice=advice)
    return Finding(check="cores", status=Status.OK, found=found)
