"""Reading what the configuration names as data."""

import pytest

from collm.cli.sample_sets import load_sample_sets
from collm.errors import DataError
from collm.training.config import JobConfig, TrainingConfig

LINE = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'


def test_empty_file_is_refused_by_name(tmp_path):
    full, empty = tmp_path / "full.jsonl", tmp_path / "empty.jsonl"
    full.write_text(LINE)
    empty.write_text("\n")
    job = JobConfig(adapter="a", data=str(full), validation=str(empty))
    with pytest.raises(DataError, match="empty.jsonl holds no samples"):
        load_sample_sets(TrainingConfig(jobs=(job,), general_data=None))
    job = JobConfig(adapter="a", data=str(full))
    samples = load_sample_sets(TrainingConfig(jobs=(job,), general_data=None))
    assert len(samples.by_name[str(full)]) == 1
