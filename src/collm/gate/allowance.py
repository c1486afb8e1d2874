"""How much comparing is allowed beside how much learning."""

_UNITS_PER_LEARNED_ROW = 3
"""Forward, and a backward of about twice that; an evaluated row is a forward alone."""


class Allowance:
    """Keeps what comparing costs below a share of what learning cost.

    A row is one token's pass through the model. Callers ask before they evaluate; who spends more
    than was affordable has it taken from what is earned next.

    Args:
        share: Most units evaluated per unit learned.
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

    @property
    def affordable_rows(self) -> int:
        """Rows that may be evaluated now."""
        earned = self._initial_rows + self._share * _UNITS_PER_LEARNED_ROW * self._num_learned
        return max(0, int(earned) - self._num_evaluated)

    def earn(self, rows_learned: int) -> None:
        """Note rows that went forward and backward; raises ``ValueError`` below 0."""
        self._num_learned += _checked(rows_learned)

    def spend(self, rows_evaluated: int) -> None:
        """Note rows that went forward alone; raises ``ValueError`` below 0."""
        self._num_evaluated += _checked(rows_evaluated)


def _checked(num_rows: int) -> int:
    if num_rows < 0:
        raise ValueError(f"{num_rows} rows, must be 0 or more")
    return num_rows
