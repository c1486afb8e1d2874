"""Tracing is loaded when it is asked for, and says what it needs."""

import subprocess
import sys

import pytest

from collm.cli import traces
from collm.cli.traces import open_traces
from collm.errors import ConfigError
from collm.metrics.config import TracesConfig
from collm.metrics.traces import NoTraces


def test_without_an_endpoint_nothing_is_loaded():
    code = (
        "import sys\n"
        "from collm.cli.traces import open_traces\n"
        "from collm.metrics.config import TracesConfig\n"
        "import collm.server.app, collm.server.front.app\n"
        "open_traces(TracesConfig(), 'r0')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert isinstance(open_traces(TracesConfig(), "r0"), NoTraces)


def test_a_missing_extra_is_a_wrong_setting(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("no", name="opentelemetry")

    monkeypatch.setattr(traces, "import_module", missing)
    with pytest.raises(ConfigError, match=r"opentelemetry is not installed: pip install 'collm\["):
        open_traces(TracesConfig(endpoint="http://127.0.0.1:4318/v1/traces"), "r0")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"endpoint": "127.0.0.1:4318"}, "endpoint is '127.0.0.1:4318'; it must begin with http"),
        ({"sample_share": 1.5}, "sample_share is 1.5; allowed: 0 to 1"),
    ],
)
def test_wrong_settings_are_named(fields, words):
    with pytest.raises(ConfigError, match=words):
        TracesConfig(**fields)
