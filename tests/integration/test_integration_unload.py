"""Adapters that go and come back under the same name while requests run."""

from dataclasses import replace

import pytest

from collm.errors import UnknownAdapterError
from collm.replica.inbox import Abort
from collm.types import FinishReason
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, random_adapter, random_tokens
from factories.replicas import build_rig, greedy
from factories.versions import answer_alone, ask_for, load, unload


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def rig(checkpoint):
    return build_rig(build_engine(checkpoint, num_blocks=300))


def test_unload_in_the_midst_of_requests_with_several_choices_lets_them_end(checkpoint, rig):
    load(rig, "1", seed=1)
    prompt = random_tokens(9, 3)
    rig.submit(replace(greedy("r", prompt, "a", max_tokens=30), n=3))
    for _ in range(5):
        rig.step()
    unload(rig)
    rig.submit(greedy("late", prompt, "a"))
    rig.run_until(lambda: rig.has_ended("late"))
    assert isinstance(rig.events["late"][-1].error, UnknownAdapterError)
    rig.run_until(lambda: sum(event.finish_reason is not None for event in rig.events["r"]) == 3)
    expected = answer_alone(checkpoint, 1, prompt, 30)
    for choice in range(3):
        tokens = [e.token_id for e in rig.events["r"] if e.choice == choice and e.token_id]
        assert tokens == [token for token in expected if token]
    assert rig.store.infos() == ()
    assert rig.store.num_free_slots == rig.engine.bank.num_slots
    rig.engine.assert_idle()


def test_name_that_is_loaded_again_with_other_content_answers_by_that(checkpoint, rig):
    """Keys and values that the old content left in the prefix cache are not used."""
    prompt = random_tokens(20, 4)
    for number in range(4):
        load(rig, "same-label", seed=number)
        name = f"r{number}"
        rig.submit(greedy(name, prompt, "a", max_tokens=10))
        rig.run_until(lambda name=name: rig.has_ended(name))
        assert rig.tokens(name) == answer_alone(checkpoint, number, prompt, 10)
        unload(rig)


def test_load_for_which_there_is_no_room_evicts_no_version_in_use(checkpoint):
    rig = build_rig(build_engine(checkpoint, num_blocks=300, num_slots=2))
    prompt = random_tokens(9, 5)
    for label, seed in (("1", 1), ("2", 2)):
        load(rig, label, seed)
        rig.submit(greedy(label, prompt, "a", max_tokens=100))
        rig.step()
    reply = ask_for(rig, "b", "1", random_adapter(rig.engine.spec, seed=3))
    rig.run_until(lambda: rig.has_ended("1", "2"))
    assert rig.tokens("1") == answer_alone(checkpoint, 1, prompt, 100)
    assert rig.tokens("2") == answer_alone(checkpoint, 2, prompt, 100)
    rig.clock.advance(20.0)
    rig.step()
    assert "no adapter slot is free" in str(reply.exception(0))


def test_aborted_stream_of_an_adapter_gives_everything_back(rig):
    load(rig, "1", seed=1)
    rig.submit(greedy("r", random_tokens(9, 6), "a", max_tokens=100))
    for _ in range(4):
        rig.step()
    rig.inbox.put(Abort("r"))
    rig.run_until(lambda: rig.has_ended("r"))
    assert rig.events["r"][-1].finish_reason is FinishReason.ABORT
    unload(rig)
    assert rig.store.num_free_slots == rig.engine.bank.num_slots
    rig.engine.assert_idle()
