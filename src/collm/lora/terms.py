"""What an adapter must be like to be served here."""

from dataclasses import dataclass

from collm.errors import AdapterError
from collm.lora.layout import LoraLayout
from collm.lora.state import AdapterState


@dataclass(frozen=True, slots=True)
class Terms:
    """The shapes and names that one replica serves; any thread may ask."""

    layout: LoraLayout
    """Of the slots; its rank is the largest allowed."""
    base_model: str
    """Name of the bare base model, which no adapter can have."""

    def check(self, adapter: str, state: AdapterState) -> None:
        """Raise ``AdapterError`` unless ``state`` can be served under the name ``adapter``."""
        self.check_name(adapter)
        here = self.layout
        if (state.layout.targets, state.layout.num_layers) != (here.targets, here.num_layers):
            raise AdapterError(f"adapter {adapter!r} was made for a model of other shapes")
        self.check_rank(adapter, state.layout.rank)
        state.check_finite()

    def check_rank(self, adapter: str, rank: int) -> None:
        """Raise ``AdapterError`` when the slots are too small for ``rank``."""
        if rank > self.layout.rank:
            raise AdapterError(
                f"adapter {adapter!r} has rank {rank}; lora.max_rank allows up to "
                f"{self.layout.rank}"
            )

    def check_name(self, adapter: str) -> None:
        """Raise ``AdapterError`` when requests could not tell ``adapter`` from something else."""
        check_adapter_name(adapter, self.base_model)


def check_adapter_name(adapter: str, base_model: str) -> None:
    """Raise ``AdapterError`` when requests to ``base_model`` could not name ``adapter``."""
    if not adapter or "@" in adapter or adapter == base_model:
        raise AdapterError(
            f"adapter name {adapter!r} is not allowed: it must not be empty, contain '@', "
            f"or equal the base model's name {base_model!r}"
        )
