"""The pages agree with the project that they are about."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    text = page.read_text("utf-8")
    for link in re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=href=\")[^\"]+|(?<=src=\")[^\"]+", text):
        if link.startswith("https://"):
            continue  # Not reached from a test.
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def anchors_of(page: Path) -> set[str]:
    """Return what a link into a page may name: its headings, as the site writes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_command_beside_a_figure_can_be_run(page: str):
    commands = re.findall(r"\| `([^`|]+)` \|$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert commands
    for program, what, *_ in map(shlex.split, commands):
        assert what in targets if program == "make" else (ROOT / what).is_file(), what


def test_every_figure_of_the_readme_is_a_result():
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    rows = re.findall(
        r"^\| .+ \| (.+) \| (`.+`) \|$", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    assert rows
    for figure, command in rows:
        assert re.search(rf"\| {re.escape(figure)}.* \| {re.escape(command)} \|", results), figure


def test_every_decision_is_in_their_list():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text("utf-8"))
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)


def test_every_dimension_in_a_docstring_is_in_the_notation():
    notation = (ROOT / "docs" / "notation.md").read_text("utf-8")
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in shape_names(node.value):
                    assert f"`{name}`" in notation, f"{name} in {file.relative_to(ROOT)}"


def shape_names(text: str) -> set[str]:
    """Dimension names in bracketed shapes, told from other lists by their form."""
    shapes = re.findall(r"\[([a-z0-9_ ,*+/\n…]+)\]", text)
    names = {name for shape in shapes for name in re.findall(r"[a-z_]+", shape)}
    return {name for name in names if re.match(r"(num|max)_|rank$|\w+_(size|dim|features)$", name)}


def test_every_room_is_in_the_architecture_and_has_an_import_contract():
    rooms = {page.parent.name for page in (ROOT / "src" / "collm").glob("*/__init__.py")}
    architecture = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    protected = {name for contract in contracts for name in contract.get("protected_modules", ())}
    for room in rooms:
        assert f"| `{room}` |" in architecture
        assert f"collm.{room}" in protected


def test_every_requirement_is_pinned_within_its_range():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): pin for name, pin in pins.items()}
    groups = PROJECT["dependency-groups"]
    wanted = PROJECT["project"]["dependencies"] + groups["docs"]
    wanted += [one for one in groups["dev"] if isinstance(one, str)]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    assert not any("+" in pin for pin in pins.values())
