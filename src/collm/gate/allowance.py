"""How much comparing is allowed beside how much learning."""

_PRIOR_PRICE = 3.0
"""Evaluated rows that take as long as a learned one, till both are measured: a learned row goes
forward, and backward for about twice as long; an evaluated one goes forward alone."""
_MEASURED_ROWS = 1_000
"""Rows of each kind after which their times are believed."""


class Allowance:
    """Keeps the time of comparing below a share of the time of learning.

    A row is one token's pass through the model. Callers know rows beforehand and seconds only
    afterwards, so this keeps both: what a row takes, on average so far, prices the next ones.
    Callers ask before they evaluate; who spends more than was affordable has it taken from what is
    earned next.

    Args:
        share: Most seconds of comparing per second of learning.
        initial_rows: Rows that may be evaluated before anything was learned, so that the served
            version can be measured at the start.

    Raises:
        ValueError: ``share`` or ``initial_rows`` is negative.
    """

    def __init__(self, share: float, initial_rows: int = 0) -> None:
        if share < 0.0 or initial_rows < 0:
            raise ValueError(f"share {share} and initial_rows {initial_rows} must be 0 or more")
        self._share = share
        self._initial_rows = initial_rows
        self._num_learned = 0
        self._num_evaluated = 0
        self._learned_s = 0.0
        self._evaluated_s = 0.0

    @property
    def affordable_rows(self) -> int:
        """Rows that may be evaluated now."""
        earned = self._initial_rows + self._share * self._price * self._num_learned
        return max(0, int(earned) - self._num_evaluated)

    def earn(self, rows_learned: int) -> None:
        """Note rows that went forward and backward; raises ``ValueError`` below 0."""
        self._num_learned += _checked(rows_learned)

    def spend(self, rows_evaluated: int) -> None:
        """Note rows that went forward alone; raises ``ValueError`` below 0."""
        self._num_evaluated += _checked(rows_evaluated)

    def took(self, *, learned_s: float = 0.0, evaluated_s: float = 0.0) -> None:
        """Note seconds that learning and comparing took."""
        self._learned_s += learned_s
        self._evaluated_s += evaluated_s

    @property
    def _price(self) -> float:
        """Evaluated rows that take as long as one learned row."""
        is_measured = min(self._num_learned, self._num_evaluated) >= _MEASURED_ROWS
        if not (is_measured and self._learned_s > 0.0 and self._evaluated_s > 0.0):
            return _PRIOR_PRICE
        return self._learned_s / self._num_learned * self._num_evaluated / self._evaluated_s


def _checked(num_rows: int) -> int:
    if num_rows < 0:
        raise ValueError(f"{num_rows} rows, must be 0 or more")
    return num_rows
