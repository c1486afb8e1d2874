import gzip
import json

import pytest

from collm.chats import Message, Sample
from collm.errors import DataError
from collm.workload.samples import by_group, group_split, load_samples

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def make_sample(number: int, group: str) -> Sample:
    turns = (Message("user", f"question {number}"), Message("assistant", f"answer {number}"))
    return Sample(messages=turns, group=group)


@pytest.mark.parametrize(
    ("name", "split", "num_samples", "num_groups"),
    [
        ("clinc150", "train", 9_850, 11),
        ("clinc150", "test", 1_000, 11),
        ("snips", "test", 690, 7),
        ("medquad", "test", 544, 9),
    ],
)
def test_shipped_set_has_the_size_its_source_states(name, split, num_samples, num_groups):
    samples = load_samples(name, split)
    assert len(samples) == num_samples
    assert len(by_group(samples)) == num_groups
    assert all(sample.answer and sample.prompt for sample in samples)


def test_fields_of_the_sets_own_are_kept():
    sample = load_samples("clinc150", "train")[0]
    assert sample.answer == str(sample.extra["label"]).replace("_", " ")


@pytest.mark.parametrize("packed", [False, True])
def test_own_set_is_read_from_a_path_and_blank_lines_are_skipped(tmp_path, packed):
    lines = (json.dumps({"messages": TURNS, "group": "g"}) + "\n\n").encode() * 2
    path = tmp_path / ("s.jsonl.gz" if packed else "s.jsonl")
    path.write_bytes(gzip.compress(lines) if packed else lines)
    samples = load_samples(path)
    assert [(s.answer, s.group) for s in samples] == [("hello", "g")] * 2


def test_malformed_file_names_file_and_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"messages": TURNS}) + "\nnope\n")
    with pytest.raises(DataError, match=r"bad.jsonl, line 2: not JSON"):
        load_samples(path)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{}\n" * 99, mtime=0)[:12]])
def test_packed_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad.jsonl.gz cannot be read: "):
        load_samples(path)


def test_unknown_set_lists_what_is_shipped():
    with pytest.raises(DataError, match="clinc150"):
        load_samples("clinc")


SAMPLES = tuple(make_sample(number, f"g{number % 4}") for number in range(400))


def test_groups_are_dealt_whole_and_evenly_but_for_those_that_are_everywhere():
    first, second = group_split(SAMPLES, 2, everywhere=("g3",))
    assert {sample.group for sample in first} == {"g0", "g1", "g3"}
    assert {sample.group for sample in second} == {"g2", "g3"}
    assert len(by_group(first)["g3"]) == len(by_group(second)["g3"]) == 50
    assert sorted(map(repr, first + second)) == sorted(map(repr, SAMPLES))


@pytest.mark.parametrize("num_sites", [0, 5])
def test_groups_cannot_be_dealt_to_more_sites_than_there_are(num_sites):
    with pytest.raises(ValueError, match="cannot be dealt"):
        group_split(SAMPLES, num_sites)
