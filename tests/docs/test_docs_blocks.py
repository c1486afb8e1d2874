"""Every code block of every page runs, against a tiny replica under the names that it uses."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.store.data_folder import DataFolder
from factories.docs_pages import PAGES, ROOT, Block, blocks_of
from factories.docs_runner import Runner, kind_of
from factories.docs_server import DocsServer, docs_server

LANGUAGES = {"bash", "python", "yaml", "json", "jsonl", "text", "promql"}
CASES = [(page, blocks) for page in PAGES if (blocks := blocks_of(page))]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocsServer]:
    with docs_server(tmp_path_factory.mktemp("docs")) as server:
        yield server


@pytest.mark.parametrize(("page", "blocks"), CASES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_run(page: Path, blocks: list[Block]):
    fences = re.findall(r"^\s*```\w", page.read_text("utf-8"), re.MULTILINE)
    assert len(blocks) == len(fences)
    for block in blocks:
        assert block.language in LANGUAGES, f"line {block.line}"
        if block.mark != "not run" and block.language == "bash":
            kinds = {kind_of(command) for command in block.commands}
            assert len(kinds) == 1, f"line {block.line} mixes what is run with what is started"


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize(("page", "blocks"), CASES, ids=name_of)
def test_blocks_of_a_page_run(page: Path, blocks: list[Block], server: DocsServer, tmp_path: Path):
    runner = Runner(page, server, tmp_path)
    for block in blocks:
        runner.take(block)
    server.restore()


def test_a_backup_made_by_the_operating_guide_is_whole(server: DocsServer, tmp_path: Path):
    page = ROOT / "docs" / "operating.md"
    runner = Runner(page, server, tmp_path)
    (block,) = [
        one for one in blocks_of(page) if one.language == "python" and "sqlite3" in one.text
    ]
    runner.take(block)
    (copy,) = tmp_path.glob("backup*")
    with DataFolder(copy, max_versions=20, now_s=lambda: 0.0) as data:
        versions = data.versions.published()
        assert {"support@1", "support@3"} <= {one.version for one in versions}
        assert all(any(one.folder.iterdir()) for one in versions)
