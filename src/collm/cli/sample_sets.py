"""The samples that the configuration names."""

from collm.replica.settings import SampleSets
from collm.training.config import TrainingConfig
from collm.workload.samples import load_samples


def load_sample_sets(config: TrainingConfig) -> SampleSets:
    """Return the samples of every configured job, and general text.

    Raises:
        DataError: A set is unknown, or a line is no sample; it names the line and the field.
    """
    named = [name for job in config.jobs for name in (job.data, job.validation) if name]
    general = config.general_data
    return SampleSets(
        by_name={name: load_samples(name) for name in dict.fromkeys(named)},
        general=() if general is None else load_samples(general),
    )
