from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from collm.cli.config_file import load_config, read_config
from collm.cli.config_reference import config_reference, resolved_config
from collm.config import CollmConfig
from collm.errors import ConfigError

DEFAULTS = Path(__file__).parents[3] / "configs" / "default.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    """What it is called."""
    rate: float = 0.5
    path: Path | None = None
    kinds: tuple[str, ...] = ()
    mode: Literal["a", "b"] = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    jobs: tuple[Job, ...] = ()
    spare: Job | None = None
    main: Job = field(default_factory=lambda: Job(name="main"))


def write(folder, text):
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_no_file_gives_the_defaults():
    assert load_config() == CollmConfig()


def test_file_and_overrides_lie_on_top_of_defaults(tmp_path):
    path = write(tmp_path, "server:\n  port: 9000\n  host: 0.0.0.0\npacing: {ttft_s: 1e-1}\n")
    config = load_config(path, ["server.port=9001", "scheduler.max_running=7"])
    assert (config.server.port, config.server.host) == (9001, "0.0.0.0")
    assert config.pacing.ttft_s == 0.1
    assert config.scheduler.max_running == 7
    assert config.lora == CollmConfig().lora


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("server.prot=1", "server.prot is not a setting; did you mean port?"),
        ("sevrer.port=1", "sevrer is not a setting; did you mean server?"),
        ("server.zzz=1", "allowed: host, port"),
        ("server.port=abc", "server.port is 'abc'; input should be a valid integer"),
        ("server.port=true", "server.port is True"),
        ("server.port=1.5", "server.port is 1.5"),
        ("server.port=99999", "server.port is 99999; allowed: 0 to 65535"),
        ("replica.threads=99999", "replica.threads is 99999; allowed is 1 to 1024, or null"),
        ("replica.min_promotion_interval_s=.nan", "nan; allowed is 0 or more"),
        ("server=3", "server is 3; it must be a mapping with keys of: host"),
        ("server.host=[1]", "server.host is [1]"),
        ("server.port.x=1", "server.port is {'x': 1}"),
        (
            "pacing.budget=fast",
            "pacing.budget is 'fast'; input should be 'latency', 'objective' or 'uncontrolled'",
        ),
        ("pacing.ttft_s=-1", "pacing.ttft_s"),
        ("scheduler.max_running=0", "scheduler.max_running is 0"),
        ("port", "must be a.b=value"),
        (".port=1", "must be a.b=value"),
        ("server.host=[", "not valid YAML"),
    ],
)
def test_wrong_override_names_the_full_path_and_what_is_allowed(override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {port: 1, port: 2}", "'port' comes twice"),
        ("server: [", "not valid YAML"),
        ("server: {[1]: 2}", "not valid YAML: a key must be a plain text"),
        ("server: 2024-13-45", "not valid YAML: month must be in 1..12"),
        ("server: " + "[" * 3000, "not valid YAML"),
        ("- a", "must hold a mapping"),
        ("a: {b", "not valid YAML"),
    ],
)
def test_wrong_file_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match="config.yaml") as caught:
        load_config(write(tmp_path, text))
    assert words in str(caught.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="none.yaml"):
        load_config(tmp_path / "none.yaml")


def test_empty_file_is_all_defaults(tmp_path):
    assert load_config(write(tmp_path, "# nothing\n")) == CollmConfig()


def test_lists_optionals_and_paths_are_read():
    data = {
        "jobs": [{"name": "x", "path": "a/b", "kinds": ["k"]}, {"name": "y", "rate": 1}],
        "spare": None,
    }
    plan = read_config(Plan, data)
    assert plan.jobs[0] == Job(name="x", path=Path("a/b"), kinds=("k",))
    assert plan.jobs[1].rate == 1.0
    assert read_config(Plan, {"spare": {"name": "z"}}).spare == Job(name="z")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"jobs": [{"name": "x"}, {"nam": "y"}]}, "jobs[1].nam is not a setting"),
        ({"jobs": [{}]}, "jobs[0].name is required"),
        ({"jobs": {"name": "x"}}, "it must be a list"),
        ({"jobs": ["x"]}, "jobs[0] is 'x'; it must be a mapping"),
        ({"main": None}, "main is None; it must be a mapping"),
        ({"jobs": [{"name": "x", "mode": "c"}]}, "jobs[0].mode is 'c'"),
    ],
)
def test_wrong_entry_is_named_by_its_place(data, words):
    with pytest.raises(ConfigError) as caught:
        read_config(Plan, data)
    assert words in str(caught.value)


def test_overrides_reach_into_lists(tmp_path):
    path = write(tmp_path, "server: [1]\n")
    with pytest.raises(ConfigError, match="below 1"):
        load_config(path, ["server.1.x=2"])


def test_reference_is_a_config_of_all_defaults(tmp_path):
    assert load_config(write(tmp_path, config_reference())) == CollmConfig()


def test_reference_explains_every_setting():
    lines = config_reference().splitlines()
    for number, line in enumerate(lines):
        if line and not line.strip().startswith("#"):
            assert lines[number - 1].strip().startswith("#"), line


def test_default_yaml_in_the_repository_is_the_reference():
    assert DEFAULTS.read_text() == config_reference(), (
        "run: collm serve --print-config > configs/default.yaml"
    )


def test_resolved_config_reads_back_as_itself(tmp_path):
    config = load_config(None, ["server.port=0", "pacing.ttft_s=0.5"])
    assert load_config(write(tmp_path, resolved_config(config))) == config
