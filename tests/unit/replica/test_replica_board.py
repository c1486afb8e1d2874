import pytest

from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, random_adapter
from factories.replicas import build_rig, greedy
from factories.snapshots import make_snapshot


@pytest.fixture
def rig(tmp_path):
    return build_rig(build_engine(tiny_checkpoint(tmp_path, "llama")))


def test_view_is_replaced_when_it_has_grown_old(rig):
    rig.board.refresh()
    before = rig.board.view
    rig.engine.add(greedy("r", [5, 6, 7]))
    rig.clock.advance(0.24)
    rig.board.refresh_if_due()
    assert rig.board.view is before
    rig.clock.advance(0.02)
    rig.board.refresh_if_due()
    assert before.numbers["waiting"] == 0
    assert rig.board.view.numbers["waiting"] == 1


def test_view_shows_names_versions_and_added_figures(rig):
    rig.engine.publish("tutor", "1", random_adapter(rig.engine.spec))
    rig.board.show("answer", lambda: 42)
    rig.board.refresh()
    assert rig.board.view.names == ("base", "tutor", "tutor@1")
    assert [info.version for info in rig.board.view.versions] == ["tutor@1"]
    assert rig.board.view.numbers["answer"] == 42


def test_view_shows_blocks_in_use(rig):
    rig.submit(greedy("r", list(range(3, 12)), max_tokens=50))
    rig.step()
    rig.board.refresh()
    numbers = rig.board.view.numbers
    assert (numbers["running"], numbers["waiting"]) == (1, 0)
    assert 0 < numbers["used_blocks"] < numbers["num_blocks"]


def test_metrics_show_adapters_asked_for_and_no_other_names(rig):
    rig.engine.publish("tutor", "1", random_adapter(rig.engine.spec))
    rig.submit(greedy("r", [5, 6, 7], model="tutor@1", max_tokens=50))
    rig.step()
    rig.engine.add(greedy("q", [5, 6, 7], model="whatever a client says"))
    rig.board.refresh()
    text = rig.metrics.render().decode()
    assert 'running_lora_adapters="tutor",waiting_lora_adapters=""' in text
    assert "whatever" not in text


def test_state_says_how_long_ago_the_loop_looked(rig):
    rig.board.describe_by(make_snapshot)
    rig.clock.advance(12.0)
    assert rig.board.state.age_s == pytest.approx(12.0)
    rig.board.refresh_if_due()
    assert rig.board.state.age_s == 0.0
