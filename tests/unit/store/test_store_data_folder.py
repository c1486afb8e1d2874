import subprocess
import sys
from pathlib import Path

import pytest

from collm.errors import ConfigError
from collm.store.data_folder import DataFolder


def open_folder(path: Path) -> DataFolder:
    return DataFolder(path, max_versions=2, now_s=lambda: 0.0)


def test_second_replica_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = open_folder(tmp_path / "data")
    with pytest.raises(ConfigError, match="data is in use by another process"):
        open_folder(tmp_path / "data")
    first.close()
    open_folder(tmp_path / "data").close()


def test_failed_opening_lets_go_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_versions is 0"):
        DataFolder(tmp_path, max_versions=0, now_s=lambda: 0.0)
    open_folder(tmp_path).close()


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/data cannot be used"):
        open_folder(tmp_path / "file" / "data")


def test_store_never_imports_torch() -> None:
    code = "import sys, collm.store.data_folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
