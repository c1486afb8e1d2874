"""A candidate under comparison, frozen, so that it can wait for what comparing may cost."""

from dataclasses import dataclass, field

from collm.gate.trial import Trial, TrialReport, Verdict
from collm.lora.state import AdapterState
from collm.training.events import HeldOutReport
from collm.training.measuring import Measured, paired
from collm.training.passes import Operand
from collm.training.samples import TokenSample


@dataclass(slots=True)
class OpenTrial:
    """What is known of one candidate, and where its trial reads on."""

    candidate: AdapterState
    step: int
    """Optimizer steps that it took."""
    trial: Trial
    order: list[str]
    """Ids of held-out samples as the trial reads them."""
    num_read: int = 0
    """Of these, how many it has read."""
    measured: dict[str, Measured] = field(default_factory=dict)
    """The candidate on each sample read, by its id."""
    operand: Operand | None = None
    """The candidate as it is measured; staged when first asked for."""
    served: Operand | None = None
    """The same of what is served."""

    @property
    def remaining_ids(self) -> list[str]:
        """Samples that were not read yet."""
        return self.order[self.num_read :]

    def add(self, sample: TokenSample, active: Measured) -> None:
        """Count one sample, on which the candidate was measured before."""
        self.num_read = self.order.index(sample.sample_id, self.num_read) + 1
        self.trial.add(paired(sample, active, self.measured[sample.sample_id]))


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A candidate and what was found about it."""

    candidate: AdapterState
    step: int
    """Optimizer steps that it took."""
    report: TrialReport

    def told(self, adapter: str) -> HeldOutReport:
        """Return what is told of it; the candidate goes along if it is proven better."""
        is_better = self.report.verdict is Verdict.BETTER
        return HeldOutReport(
            adapter=adapter,
            step=self.step,
            report=self.report,
            candidate=self.candidate if is_better else None,
        )
