"""``collm profile``, as far as it comes without a model."""

from typer.testing import CliRunner

from collm.cli.main import app


def test_place_that_cannot_be_written_is_told_before_minutes_of_measuring(tmp_path):
    out = tmp_path / "missing" / "here.json"
    result = CliRunner().invoke(app, ["profile", "--out", str(out)])
    assert result.exit_code == 2
    assert f"there is no folder {out.parent}" in result.stderr
