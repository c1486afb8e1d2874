"""The engine on a tiny model, float32: a request's tokens are its own business."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from collm.engine.config import SchedulerConfig
from collm.engine.runner import ModelRunner
from collm.errors import UnknownAdapterError
from collm.types import FinishReason, Request
from factories.checkpoints import FAMILIES, SLIDING_WINDOW, tiny_checkpoint
from factories.engine import request
from factories.engines import (
    Engine,
    build_engine,
    generate,
    random_adapter,
    random_tokens,
    teacher_forced_logits,
)

NUM_OUTPUT = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("engine")
    return {family: tiny_checkpoint(root, family) for family in FAMILIES}


def requests(
    num: int, models: tuple[str, ...] = ("base",), **sampling: object
) -> tuple[Request, ...]:
    """Greedy requests of 3 to 30 tokens, arriving one after another."""
    sampling = {"temperature": 0.0, "max_tokens": NUM_OUTPUT, **sampling}
    return tuple(
        request(
            f"r{index:02}",
            random_tokens(3 + 5 * index % 28, seed=index),
            model=models[index % len(models)],
            arrived_at_s=float(index),
            **sampling,
        )
        for index in range(num)
    )


def with_adapters(engine: Engine) -> Engine:
    for index, rank in enumerate((1, 4, 8)):
        engine.publish(f"a{rank}", "1", random_adapter(engine.spec, rank, seed=index))
    return engine


ADAPTERS = ("a4", "base", "a8", "a1", "base", "a4")


@pytest.fixture(scope="module", params=["mistral", "qwen3"])
def alone(request, folders) -> tuple[Path, dict[str, list[int]]]:
    """What each request says when it runs alone, without chunks, preemption or prefix cache."""
    folder = folders[request.param]
    engine = with_adapters(build_engine(folder, config=SchedulerConfig(enable_prefix_cache=False)))
    answers: dict[str, list[int]] = {}
    for one in requests(10, ADAPTERS):
        answers |= generate(engine, [one])
    return folder, answers


def test_greedy_tokens_do_not_depend_on_batch_mates(alone):
    """A batch that mixes adapters of different ranks and the bare base equals one run each."""
    folder, answers = alone
    engine = with_adapters(build_engine(folder))
    assert generate(engine, requests(10, ADAPTERS)) == answers
    assert len({tuple(tokens) for tokens in answers.values()}) == 10


@pytest.mark.parametrize("max_prefill", [1, 7])
def test_greedy_tokens_do_not_depend_on_chunking(alone, max_prefill):
    folder, answers = alone
    engine = with_adapters(build_engine(folder, max_prefill=max_prefill))
    assert generate(engine, requests(10, ADAPTERS)) == answers


def test_greedy_tokens_do_not_depend_on_preemption(alone):
    folder, answers = alone
    engine = with_adapters(build_engine(folder, num_blocks=20))
    engine.add(*requests(10, ADAPTERS))
    num_preemptions = 0
    while engine.scheduler.has_work:
        num_running = engine.scheduler.num_running
        num_finished = sum(event.finish_reason is not None for event in engine.step())
        num_preemptions += engine.scheduler.num_running < num_running - num_finished
    engine.assert_idle()
    assert num_preemptions > 0
    assert {name: engine.tokens(name) for name in answers} == answers


def test_greedy_tokens_do_not_depend_on_prefix_cache_hits(alone):
    folder, answers = alone
    engine = with_adapters(build_engine(folder, num_blocks=256))
    generate(engine, requests(10, ADAPTERS))
    engine.events.clear()
    assert generate(engine, requests(10, ADAPTERS)) == answers
    for one in requests(10, ADAPTERS):
        num_full_blocks = (len(one.prompt) - 1) // engine.memory.block_size
        num_cached = engine.last(one.request_id).num_cached_tokens
        assert num_cached == num_full_blocks * engine.memory.block_size


def test_prefix_cache_hits_never_cross_versions(folders):
    """The same prompt under the base, two adapters and two versions of one."""
    engine = build_engine(folders["llama"], num_blocks=256)
    prompt = random_tokens(21, seed=1)

    def ask(name: str, model: str) -> list[int]:
        one = request(name, prompt, model=model, temperature=0.0, max_tokens=NUM_OUTPUT)
        return generate(engine, [one])[name]

    engine.publish("a", "1", random_adapter(engine.spec, 4, 1))
    engine.publish("b", "1", random_adapter(engine.spec, 4, 2))
    first = [ask(f"first {model}", model) for model in ("base", "a", "b")]
    engine.publish("a", "2", random_adapter(engine.spec, 4, 3))
    second = ask("second a", "a")
    assert engine.last("second a").num_cached_tokens == 0
    assert ask("first again", "a@1") == first[1]
    assert engine.last("first again").num_cached_tokens == 20
    assert len({tuple(tokens) for tokens in [*first, second]}) == 4


def test_reused_version_name_does_not_hit_blocks_of_what_it_named_before(folders):
    engine = build_engine(folders["llama"])
    prompt = random_tokens(21, seed=1)
    answers = []
    for seed in (1, 2):
        engine.publish("a", "1", random_adapter(engine.spec, 4, seed))
        one = request(str(seed), prompt, model="a", temperature=0.0, max_tokens=NUM_OUTPUT)
        answers.append(generate(engine, [one])[str(seed)])
        assert engine.last(str(seed)).num_cached_tokens == 0
        engine.store.unload("a")
    assert answers[0] != answers[1]


def test_base_only_rows_are_bit_identical_beside_adapters(folders):
    """Same rows, same order: with adapters in the batch or without, base rows do not change."""
    for family in FAMILIES:
        engine = with_adapters(build_engine(folders[family]))
        prompts = [random_tokens(n, seed=n) for n in (9, 14, 5, 11)]
        plain = teacher_forced_logits(engine, prompts, chunk=4)
        mixed = teacher_forced_logits(engine, prompts, chunk=4, models=["base", "base", "a4", "a8"])
        assert torch.equal(mixed[0], plain[0])
        assert torch.equal(mixed[1], plain[1])
        for index in (2, 3):
            assert float((mixed[index] - plain[index]).abs().max()) > 0.1


@pytest.mark.parametrize("chunk", [1, SLIDING_WINDOW, 100])
def test_adapters_in_one_batch_have_the_logits_of_each_alone(folders, chunk):
    engine = with_adapters(build_engine(folders["mistral"]))
    prompts = [random_tokens(n, seed=n) for n in (9, 14, 5, 11)]
    models = ["a8", "base", "a1", "a4"]
    mixed = teacher_forced_logits(engine, prompts, chunk=chunk, models=models)
    for prompt, model, logits in zip(prompts, models, mixed, strict=True):
        (single,) = teacher_forced_logits(engine, [prompt], models=[model])
        assert_close(logits, single, atol=1e-4, rtol=1e-4)


def test_sampled_tokens_do_not_depend_on_batch_mates_chunking_or_preemption(folders):
    """Draws are pure functions of logits, seed and position; logits differ by rounding only."""
    sampling = {"temperature": 0.9, "top_p": 0.9, "seed": 5, "repetition_penalty": 1.1}
    alone: dict[str, list[int]] = {}
    for one in requests(8, **sampling):
        alone |= generate(build_engine(folders["llama"]), [one])
    crowded = build_engine(folders["llama"], num_blocks=20, max_prefill=5)
    assert generate(crowded, requests(8, **sampling)) == alone


def test_choices_of_one_request_differ_and_repeat_by_seed(folders):
    one = request("r", random_tokens(9, 1), n=3, temperature=1.0, max_tokens=NUM_OUTPUT, seed=3)
    runs = []
    for _ in range(2):
        engine = build_engine(folders["llama"])
        generate(engine, [one])
        runs.append([engine.tokens("r", choice) for choice in range(3)])
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3


def test_minimum_length_holds_back_the_models_end(folders):
    engine = build_engine(folders["qwen2"])
    prompt = random_tokens(8, seed=2)
    free = request("free", prompt, temperature=0.0, max_tokens=30)
    tokens = generate(engine, [free])["free"]
    stop = tokens[3]
    ending = {"temperature": 0.0, "max_tokens": 30, "stop_token_ids": (stop,)}
    ended = generate(engine, [request("ended", prompt, **ending)])["ended"]
    assert ended == tokens[: tokens.index(stop) + 1]
    held = generate(engine, [request("held", prompt, min_tokens=10, **ending)])["held"]
    assert len(held) >= 10
    assert stop not in held[:10]


def test_minimum_length_holds_back_an_end_that_is_ignored(folders):
    engine = build_engine(folders["qwen2"])
    prompt = random_tokens(8, seed=2)
    tokens = generate(engine, [request("free", prompt, temperature=0.0, max_tokens=30)])["free"]
    ends = frozenset(tokens[3:4])
    engine.runner = ModelRunner(engine.decoder, engine.caches, engine.bank, ends)
    ending = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, "min_tokens": 20}
    held = generate(engine, [request("held", prompt, **ending)])["held"]
    assert len(held) == 30
    assert not ends & set(held[:20])


def test_request_for_a_version_that_is_gone_fails_alone(folders):
    engine = with_adapters(build_engine(folders["llama"]))
    engine.add(request("bad", [5, 6], model="a4@7"), *requests(2, ("a4",)))
    engine.drain()
    last = engine.last("bad")
    assert last.finish_reason == FinishReason.ERROR
    assert isinstance(last.error, UnknownAdapterError)
    assert "a4@1" in str(last.error)
    assert len(engine.tokens("r00")) == NUM_OUTPUT


def test_an_adapter_that_diverges_harms_no_other_request(folders):
    """Its keys and values overflow; whoever gets its blocks next must not be poisoned."""
    mates = requests(6, max_tokens=20)
    clean = generate(build_engine(folders["llama"], num_blocks=40), mates)
    engine = build_engine(folders["llama"], num_blocks=40)
    engine.publish("bad", "1", random_adapter(engine.spec, 4, scale=1e30))
    bad = [request(f"bad{n}", random_tokens(30, n), model="bad") for n in range(4)]
    engine.add(*bad)
    engine.drain()
    assert generate(engine, mates) == clean
    engine.events.clear()
    engine.add(*bad)
    assert generate(engine, mates) == clean


def test_bfloat16_engine_runs_steps_that_sample_nothing(folders):
    engine = build_engine(folders["llama"], dtype=torch.bfloat16, max_prefill=4)
    answers = generate(engine, requests(3))
    assert all(len(tokens) == NUM_OUTPUT for tokens in answers.values())
