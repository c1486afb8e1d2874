"""What tests of watches share: an adapter that learned what users ask for, and one that did not.

Modules that need another model define their own ``decoder``.
"""

import pytest

from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from factories.training import RIGHT_ANSWER, WRONG_ANSWER, taught_state, tiny_decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("watch"), "mistral")


@pytest.fixture(scope="module")
def right(decoder: Decoder) -> AdapterState:
    return taught_state(decoder, RIGHT_ANSWER)


@pytest.fixture(scope="module")
def wrong(decoder: Decoder) -> AdapterState:
    return taught_state(decoder, WRONG_ANSWER)
