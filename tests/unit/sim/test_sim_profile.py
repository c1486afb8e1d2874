import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collm.errors import ConfigError, DataError
from collm.pacing.quanta import Quantum, QuantumKind
from collm.sim.curve import Curve, fit_curve
from collm.sim.device import Device, quantile_of
from collm.sim.noise import Residuals
from collm.sim.profile import load_profile, parse_profile, stated_profiles
from collm.types import StepLoad
from factories.simulations import PROFILE, profile


def test_shipped_profiles_are_labelled_as_stated() -> None:
    assert PROFILE in stated_profiles()
    for name in stated_profiles():
        found = load_profile(name)
        assert (found.name, found.origin) == (name, "stated")
        assert found.note


def test_profile_survives_its_file() -> None:
    assert parse_profile(profile().to_json(), "here") == profile()


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ({"num_blocks": "many"}, "num_blocks"),
        ({"surprise": 1}, "surprise"),
        ({"origin": "guessed"}, "origin"),
        ({"step_ratios": [0.0, 1.0]}, "step_ratios"),
    ],
)
def test_malformed_profile_is_refused_with_the_field_that_is_wrong(change, blamed) -> None:
    value = json.loads(profile().to_json()) | change
    with pytest.raises(DataError, match=blamed):
        parse_profile(json.dumps(value), "here")


def test_profile_that_lacks_a_kind_of_quantum_is_refused() -> None:
    value = json.loads(profile().to_json())
    del value["quanta"]["backward"]
    with pytest.raises(DataError, match="backward"):
        parse_profile(json.dumps(value), "here")


def test_profile_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match="p.json cannot be read: "):
        load_profile(str(tmp_path / "p.json"))


def test_unknown_profile_is_refused_with_those_that_exist() -> None:
    with pytest.raises(DataError, match=PROFILE):
        load_profile("abacus")


def test_residuals_follow_their_quantile_function() -> None:
    residuals = Residuals((0.5, 1.0, 3.0), "0")
    draws = sorted(residuals.draw() for _ in range(20_000))
    assert draws[0] >= 0.5
    assert draws[-1] <= 3.0
    assert draws[10_000] == pytest.approx(1.0, abs=0.02)
    assert draws[15_000] == pytest.approx(2.0, abs=0.05)
    assert quantile_of((0.5, 1.0, 3.0), 0.75) == pytest.approx(2.0)


def test_step_times_do_not_depend_on_how_much_is_trained_between_them() -> None:
    load = StepLoad(num_decode_tokens=2, num_prefill_tokens=30, num_context_tokens=100)
    alone, trained = Device(profile(), "seed"), Device(profile(), "seed")
    expected = [alone.step_s(load) for _ in range(5)]
    found = []
    for _ in range(5):
        trained.quantum_s(Quantum(QuantumKind.FORWARD, 500))
        found.append(trained.step_s(load))
    assert found == expected


def test_device_takes_the_profiles_time_and_more_when_it_is_slow() -> None:
    device = Device(profile(step_ratios=(1.0,)), "seed")
    step = profile().step
    load = StepLoad(num_decode_tokens=3, num_context_tokens=90, num_adapters=1)
    expected = step.constant_s + 3 * step.decode_s + 90 * step.context_s + step.adapter_s
    assert device.step_s(load) == pytest.approx(expected)
    assert device.decode_s(3, 90, 1) == device.step_s(load)
    device.slow_down(2.0)
    assert device.step_s(load) == pytest.approx(2.0 * expected)


def test_curve_falls_to_its_floor_and_refuses_what_is_no_such_curve() -> None:
    curve = Curve(a=10.0, n0=100.0, b=0.5, c=0.2)
    assert curve.at(0) == pytest.approx(1.2)
    assert curve.at(9_900) == pytest.approx(0.3)
    with pytest.raises(ConfigError):
        replace(curve, b=1.5)


def test_fitted_curve_goes_through_the_points_of_a_known_one() -> None:
    truth = Curve(a=30.0, n0=1_000.0, b=0.4, c=0.5)
    sizes = [0, 500, 1_000, 3_000, 8_000, 20_000, 60_000]
    fitted = fit_curve([(n, truth.at(n)) for n in sizes])
    assert all(fitted.at(n) == pytest.approx(truth.at(n), rel=0.01) for n in sizes)
    flat = fit_curve([(n, 2.0) for n in sizes])
    assert flat.at(1_000_000) == pytest.approx(2.0, rel=0.01)
    with pytest.raises(ConfigError, match="three"):
        fit_curve([(0, 1.0), (1, 0.9)])


def test_simulator_needs_no_torch() -> None:
    code = "import sys, collm.sim.simulation, collm.sim.report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
