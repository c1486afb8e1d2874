import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collm.cli.cache import cache_dir
from collm.cli.models import app
from collm.model.config import DEFAULT_MODEL


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLM_HOME", str(tmp_path))
    return tmp_path


def test_list_as_json_says_what_a_script_needs(home: Path) -> None:
    result = CliRunner().invoke(app, ["list", "--json"])
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["name"] == DEFAULT_MODEL
    assert row["is_present"] is False
    assert row["path"] == str(home / "models" / DEFAULT_MODEL)


def test_list_shows_a_table(home: Path) -> None:
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    assert "Apache-2.0" in result.stdout


def test_pull_prints_the_folder_of_a_model_that_is_there(home: Path) -> None:
    folder = home / "models" / DEFAULT_MODEL
    folder.mkdir(parents=True)
    result = CliRunner().invoke(app, ["pull"])
    assert result.exit_code == 0
    assert result.stdout.strip() == str(folder)


def test_cache_is_in_the_users_cache_folder_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COLLM_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "collm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir() == tmp_path / ".cache" / "collm"
