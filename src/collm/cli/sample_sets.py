"""The samples that the configuration names."""

from collm.errors import DataError
from collm.replica.settings import SampleSets
from collm.training.config import TrainingConfig
from collm.workload.samples import load_samples


def load_sample_sets(config: TrainingConfig) -> SampleSets:
    """Return the samples of every configured job, and general text.

    Raises:
        DataError: A set is unknown, a line is no sample, naming the line and the field, or a job
            would have nothing to learn from or to be judged by.
    """
    named = [name for job in config.jobs for name in (job.data, job.validation) if name]
    general = config.general_data
    by_name = {name: load_samples(name) for name in dict.fromkeys(named)}
    for name, samples in by_name.items():
        if not samples:
            raise DataError(f"{name} holds no samples")
    return SampleSets(
        by_name=by_name,
        general=() if general is None else load_samples(general),
    )
