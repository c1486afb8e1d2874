"""Which kernels run, and what is said about it."""

import pytest
import torch

from collm.errors import ConfigError
from collm.ops.linear import NativeLinear, freeze_linear
from collm.ops.native import library
from factories.kernels import needs_kernels

WEIGHT = torch.ones(32, 32, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def usual_path():
    usual = library.path()
    yield
    library.choose(usual)


def test_the_fastest_path_is_used_and_torch_is_always_there():
    assert library.path() == library.paths()[0]
    assert library.paths()[-1] == "torch"
    assert library.is_available() == (library.path() != "torch")


@pytest.mark.parametrize("path", library.paths())
def test_a_chosen_path_computes(path):
    library.choose(path)
    assert library.path() == path
    assert library.can_take(WEIGHT) == (path != "torch")
    linear = freeze_linear(WEIGHT)
    assert isinstance(linear, NativeLinear) == (path != "torch")
    assert torch.equal(linear.forward(WEIGHT), torch.full((32, 32), 32.0).bfloat16())


@pytest.mark.parametrize(
    ("level", "paths"),
    [
        (3, ("amx", "avx512", "avx2", "torch")),
        (2, ("avx512", "avx2", "torch")),
        (1, ("avx2", "torch")),
        (0, ("torch",)),
    ],
)
def test_a_cpu_is_offered_what_it_can_run(level, paths, monkeypatch):
    monkeypatch.setattr(library, "_library", lambda: _Library(level))
    assert library.paths() == paths


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (lambda: None, "were not compiled"),
        (lambda: _Library(0), "AVX2 or FMA"),
        (lambda: _Library(1), "AVX512-BF16"),
    ],
)
def test_a_path_that_cannot_run_is_refused_with_the_reason(found, reason, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(library, "_library", found)
        assert reason in library.explain()
        with pytest.raises(ConfigError, match=f"'avx512', which cannot run here: .*{reason}"):
            library.choose("avx512")


def test_a_cpu_without_tiles_lacks_nothing_unless_they_are_asked_for(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(library, "_library", lambda: _Library(2))
        assert library.obstacle() is None
        with pytest.raises(ConfigError, match="'amx', which cannot run here: .*AMX-BF16"):
            library.choose("amx")


def test_a_library_of_other_sources_is_as_good_as_none(monkeypatch):
    monkeypatch.setitem(library._ARGUMENTS, "of_the_next_version", [])
    assert library._library.__wrapped__() is None


def test_a_library_whose_functions_take_other_things_is_as_good_as_none(monkeypatch):
    monkeypatch.setattr(library, "_INTERFACE", library._INTERFACE + 1)
    assert library._library.__wrapped__() is None


@needs_kernels
def test_the_library_of_these_sources_is_found():
    assert library._library.__wrapped__() is not None


class _Library:
    """What the compiled library says of a CPU."""

    def __init__(self, level: int) -> None:
        self._level = level

    def collm_cpu(self) -> int:
        return self._level
