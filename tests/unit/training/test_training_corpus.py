from dataclasses import replace
from random import Random

import pytest

from collm.errors import DataError
from collm.gate.config import GENERAL
from collm.training.corpus import Corpus, open_corpus
from collm.training.samples import TokenSample
from factories.training import general_samples, job_config, make_corpus, make_samples

SAMPLES = make_samples([10 + i % 7 for i in range(300)])


def split(samples: tuple[TokenSample, ...], share: float = 0.2, most: int = 1_000) -> Corpus:
    return Corpus(samples, held_out_share=share, max_held_out=most)


def held_out(corpus: Corpus) -> set[str]:
    return {sample_id for ids in corpus.held_out_ids().values() for sample_id in ids}


def texts(corpus: Corpus) -> tuple[set[str], set[str]]:
    """Digests of what is trained on and of what is held out."""
    trained = {s.text_digest for s in corpus.training.samples.values()}
    judged = {corpus.held_out(sample_id).text_digest for sample_id in held_out(corpus)}
    return trained, judged


def test_split_is_disjoint_complete_and_near_its_share() -> None:
    corpus = split(SAMPLES)
    assert not held_out(corpus) & set(corpus.training.samples)
    assert held_out(corpus) | set(corpus.training.samples) == {s.sample_id for s in SAMPLES}
    assert 0.1 < corpus.num_held_out / len(SAMPLES) < 0.3


def test_split_stays_when_samples_are_added_and_reordered() -> None:
    before = split(SAMPLES[:200])
    trained, judged = set(before.training.samples), held_out(before)
    shuffled = list(SAMPLES)
    Random(0).shuffle(shuffled)
    before.add(shuffled)
    for after in (before, split(tuple(shuffled))):
        assert trained <= set(after.training.samples)
        assert judged <= held_out(after)


def test_what_the_cap_cuts_off_is_never_trained_on() -> None:
    whole, capped = split(SAMPLES), split(SAMPLES, most=5)
    assert set(capped.training.samples) == set(whole.training.samples)
    assert capped.num_held_out == 5
    assert held_out(capped) < held_out(whole)
    assert held_out(split(tuple(reversed(SAMPLES)), most=5)) == held_out(capped)


def test_a_text_is_held_out_once_and_trained_on_as_often_as_it_comes() -> None:
    twice = (*SAMPLES, *(replace(s, sample_id=f"{s.sample_id}.2") for s in SAMPLES))
    corpus = split(twice)
    assert corpus.num_training == 2 * split(SAMPLES).num_training
    assert held_out(corpus) == held_out(split(SAMPLES))


def test_a_removed_held_out_text_is_still_not_trained_on() -> None:
    corpus = split(SAMPLES)
    removed = corpus.held_out(min(held_out(corpus)))
    assert removed is not None
    assert corpus.remove(removed.sample_id)
    assert not corpus.remove(removed.sample_id)
    corpus.add([replace(removed, sample_id="again")])
    assert removed.text_digest not in texts(corpus)[0] | texts(corpus)[1]


def test_a_removed_sample_never_comes_back() -> None:
    corpus = make_corpus()
    sample = next(iter(corpus.training.samples.values()))
    assert corpus.remove(sample.sample_id)
    corpus.add([sample])
    assert sample.sample_id not in corpus.training.samples
    assert not corpus.fresh
    corpus.remove("early")  # before it came
    corpus.add([replace(sample, sample_id="early")])
    assert "early" not in corpus.training.samples


def test_what_comes_later_is_split_and_fresh() -> None:
    corpus = split(SAMPLES[:100])
    corpus.add(SAMPLES[100:])
    assert not corpus.held_out_ids().keys() - {""}
    trained, judged = texts(corpus)
    assert not trained & judged
    assert set(corpus.fresh) == set(corpus.training.samples) - {s.sample_id for s in SAMPLES[:100]}


def test_with_a_validation_set_everything_else_is_trained_on() -> None:
    validation = (*make_samples([12, 13], seed=9), replace(SAMPLES[3], sample_id="v"))
    corpus = make_corpus(SAMPLES, validation)
    assert corpus.num_held_out == 3
    assert corpus.num_training == len(SAMPLES) - 1
    corpus.add([replace(SAMPLES[3], sample_id="again")])
    assert corpus.num_training == len(SAMPLES) - 1


def test_held_out_samples_are_listed_by_slice() -> None:
    validation = [
        replace(s, slice=name) for s, name in zip(make_samples([9] * 5), "aabbb", strict=True)
    ]
    ids = make_corpus(None, validation, general_samples([20] * 40)).held_out_ids()
    assert {name: len(found) for name, found in ids.items() if name != GENERAL} == {"a": 2, "b": 3}
    assert 0 < len(ids[GENERAL]) < 15


def test_general_text_is_neither_trained_on_nor_judged_by_on_both_sides() -> None:
    general = general_samples([20] * 60)
    own = [replace(s, slice="", sample_id=f"own {i}") for i, s in enumerate(general[:30])]
    general = tuple(replace(s, sample_id=s.text_digest) for s in general)
    corpus = make_corpus(own, make_samples([9]), general)
    judged = {s.text_digest for s in map(corpus.held_out, corpus.held_out_ids()[GENERAL]) if s}
    replayed = {s.text_digest for s in corpus.general.samples.values()}
    assert not judged & replayed
    assert not (judged | replayed) & {s.text_digest for s in own}
    assert judged | replayed == {s.text_digest for s in general[30:]}
    (again,) = [s for s in general if s.text_digest == min(judged)]
    corpus.add([replace(again, sample_id="feedback", slice="")])
    assert "feedback" not in corpus.training.samples


def test_a_job_without_samples_waits_for_them() -> None:
    corpus = open_corpus(job_config(), ())
    assert (corpus.num_training, corpus.num_held_out) == (0, 0)
    corpus.add(SAMPLES)
    assert corpus.num_training > 200
    assert corpus.num_held_out


def test_an_empty_side_of_the_split_is_named() -> None:
    few = SAMPLES[:2]
    with pytest.raises(DataError, match="1 usable samples with one and the same text leave none"):
        open_corpus(job_config(), few[:1])
    twice = (few[0], replace(few[0], sample_id="again"))
    with pytest.raises(DataError, match="2 usable samples with one and the same text leave none"):
        open_corpus(job_config(), twice)
    with pytest.raises(DataError, match="2 for validation leave none to train on"):
        open_corpus(job_config(), few, validation=few)
    with pytest.raises(DataError, match="0 for validation leave none to evaluate on"):
        open_corpus(job_config(), few, validation=())


@pytest.mark.parametrize("num_samples", [2, 3, 5, 9])
def test_few_samples_leave_one_to_judge_by_whatever_their_hashes(num_samples: int) -> None:
    for first in range(0, len(SAMPLES) - num_samples, num_samples):
        few = SAMPLES[first : first + num_samples]
        corpus = open_corpus(job_config(held_out_share=0.0001), few)
        assert (corpus.num_training, corpus.num_held_out) == (num_samples - 1, 1)
        assert held_out(open_corpus(job_config(held_out_share=0.0001), few[::-1])) == held_out(
            corpus
        )


@pytest.mark.parametrize("num_samples", [2, 3, 5])
def test_few_samples_leave_one_to_train_on_whatever_their_hashes(num_samples: int) -> None:
    config = job_config(held_out_share=0.9999)
    for first in range(0, len(SAMPLES) - num_samples, num_samples):
        few = SAMPLES[first : first + num_samples]
        corpus = open_corpus(config, few)
        assert (corpus.num_training, corpus.num_held_out) == (1, num_samples - 1)
        corpus.add(replace(sample, sample_id=f"{sample.sample_id}.2") for sample in SAMPLES)
        restarted = open_corpus(
            config, few[::-1], feedback=[replace(s, sample_id=f"{s.sample_id}.2") for s in SAMPLES]
        )
        assert texts(corpus) == texts(restarted)
        assert not texts(corpus)[0] & texts(corpus)[1]


def test_at_least_the_share_is_held_out() -> None:
    for first in range(0, 280, 20):
        twenty = SAMPLES[first : first + 20]
        assert open_corpus(job_config(held_out_share=0.25), twenty).num_held_out >= 5


def test_feedback_moves_no_sample_of_a_small_file_to_the_other_side() -> None:
    few, feedback = SAMPLES[:4], SAMPLES[100:]
    before = open_corpus(job_config(held_out_share=0.1), few)
    trained, judged = texts(before)
    before.add(feedback)
    restarted = open_corpus(job_config(held_out_share=0.1), few, feedback=feedback)
    for after in (before, restarted):
        assert trained <= texts(after)[0]
        assert judged <= texts(after)[1]
        assert not texts(after)[0] & texts(after)[1]
    assert texts(before) == texts(restarted)


def test_general_text_is_cut_to_what_fits_a_micro_batch() -> None:
    corpus = open_corpus(job_config(), SAMPLES, general=general_samples([100] * 30))
    general = corpus.general.samples.values()
    assert general
    assert all(len(sample.token_ids) <= job_config().micro_batch_tokens for sample in general)
