"""Adapters from outside over HTTP: what ``peft`` made comes and goes, what is hostile stays out."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from collm.lora.peft_folder import save_peft
from collm.model.checkpoint import Checkpoint
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter, random_tokens
from factories.replicas import BASE_MODEL, publish_on_disk
from factories.served_replica import CONFIG, WEIGHTS, served_replica

PROMPT = "What is the capital of France?"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def imports(tmp_path_factory):
    return tmp_path_factory.mktemp("imports")


@pytest.fixture(scope="module")
def served(checkpoint, imports, tmp_path_factory):
    """``tutor@1`` is served; nothing that is refused may change that."""
    data_dir = tmp_path_factory.mktemp("data")
    publish_on_disk(checkpoint, data_dir, 1, num_promoted=1)
    with served_replica(checkpoint, data_dir, import_root=imports) as served:
        yield served


@pytest.fixture
def folder(checkpoint, imports):
    """A good folder of a test's own below the import root."""
    path = imports / f"folder-{len(list(imports.iterdir()))}"
    path.mkdir()
    save_peft(random_adapter(Checkpoint(checkpoint).spec, seed=9), path, BASE_MODEL)
    return path


@pytest.fixture
def unchanged(served):
    """Whatever the test does, versions, names and answers are the same afterwards."""

    def state():
        rows = [row | {"num_pins": 0} for row in served.versions()]
        return rows, served.models(), served.text("tutor", PROMPT)

    before = state()
    yield
    assert state() == before


# What peft made


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("use_rslora", [False, True], ids=["LoRA", "rsLoRA"])
def test_peft_folder_comes_and_goes_with_its_scale(checkpoint, imports, served, use_rslora):
    """Alpha is not the rank, and modules differ in rank and alpha."""
    name = f"rs{use_rslora}".lower()
    config = LoraConfig(
        r=4,
        lora_alpha=10,
        use_rslora=use_rslora,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"down_proj": 2},
        alpha_pattern={"v_proj": 3},
    )
    theirs = random_peft(checkpoint, config)
    theirs.save_pretrained(imports / name)
    files = [(imports / name / file).read_bytes() for file in (CONFIG, WEIGHTS)]
    response = served.import_files(name, *files)
    assert response.status_code == 200, response.text
    client = served.replica.client
    prompt = client.tokenizer.encode(PROMPT)
    output = theirs.generate(
        input_ids=torch.tensor([prompt]),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )
    answer = served.text(name, PROMPT)
    assert answer == client.tokenizer.decode(output[0, len(prompt) :].tolist())
    assert answer != served.text(BASE_MODEL, PROMPT)

    content = served.http.get("/adapters/export", params={"version": f"{name}@1"}).content
    zipfile.ZipFile(io.BytesIO(content)).extractall(imports / f"{name}-back")
    back = PeftModel.from_pretrained(base(checkpoint), imports / f"{name}-back").eval()
    tokens = torch.tensor([random_tokens(20, 1)])
    with torch.no_grad():
        torch.testing.assert_close(
            back(input_ids=tokens).logits, theirs(input_ids=tokens).logits, rtol=1e-4, atol=1e-4
        )


def base(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def random_peft(checkpoint, config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = get_peft_model(base(checkpoint), config).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0.0, 0.1)
    return model


# What is hostile


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def weights_are(change):
    """Spoil the tensors; ``change`` takes and returns them."""

    def spoil(folder):
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)

    return spoil


def config_has(**fields):
    def spoil(folder):
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | fields))

    return spoil


def with_value(value):
    def change(tensors):
        tensors[next(iter(tensors))][0, 0] = value
        return tensors

    return change


def pickled(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Bomb(folder / "exploded")))


def made_for_another_base(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors, folder / WEIGHTS, metadata={"collm.base_digest": "another"})


def huge(folder):
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(20 << 20)  # a tiny model's adapters have some 100 KiB


def with_a_header_that_lies(folder):
    (folder / WEIGHTS).write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


def deeply_nested_config(folder):
    (folder / CONFIG).write_text("[" * 100_000)


HOSTILE = {
    "pickle": (pickled, "no valid safetensors"),
    "lying header": (with_a_header_that_lies, "no valid safetensors"),
    "huge": (huge, "too large|at most"),
    "another base": (made_for_another_base, "made for base another"),
    "NaN": (weights_are(with_value(float("nan"))), "non-finite"),
    "infinity": (weights_are(with_value(float("inf"))), "non-finite"),
    "wrong shapes": (
        weights_are(lambda t: {k: v[:, :1].contiguous() for k, v in t.items()}),
        "this model needs",
    ),
    "no module": (
        weights_are(lambda t: {k.replace("layers", "blocks"): v for k, v in t.items()}),
        "does not have",
    ),
    "one stray module": (
        weights_are(
            lambda t: (
                t
                | {
                    "base_model.model.lm_head.lora_A.weight": torch.ones(4, 64),
                    "base_model.model.lm_head.lora_B.weight": torch.ones(512, 4),
                }
            )
        ),
        "does not have: lm_head",
    ),
    "nothing": (weights_are(lambda t: {}), "no LoRA factors"),
    "half": (weights_are(lambda t: {k: v for k, v in t.items() if "_A" in k}), "missing for"),
    "whole weights": (
        weights_are(lambda t: t | {"base_model.model.model.norm.weight": torch.ones(64)}),
        "unexpected tensor",
    ),
    "another rank": (config_has(r=3), "its configuration says 3"),
    "endless scale": (config_has(lora_alpha=1e300), "lora_alpha"),
    "endless pattern": (config_has(alpha_pattern={"(a+)+b": 1}), "not supported"),
    "DoRA": (config_has(use_dora=True), "use_dora"),
    "changed base": (config_has(init_lora_weights="pissa"), "init_lora_weights"),
    "nested config": (deeply_nested_config, "cannot be read"),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_folder_is_refused_by_both_ways_in_and_changes_nothing(served, folder, kind):
    spoil, reason = HOSTILE[kind]
    spoil(folder)
    files = [(folder / file).read_bytes() for file in (CONFIG, WEIGHTS)]
    for name in ("tutor", "new"):
        for response in (
            served.load(name, folder, load_inplace=True),
            served.import_files(name, *files),
        ):
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert any(words in error["message"] for words in reason.split("|")), error
            assert str(folder.parent) not in error["message"]
            assert "/tmp" not in error["message"]
    assert not (folder / "exploded").exists()


@pytest.mark.usefixtures("unchanged")
def test_folder_with_pickled_weights_alone_is_refused(served, folder):
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(folder / "exploded")))
    response = served.load("new", folder)
    assert response.status_code == 400
    assert "adapter_model.safetensors is missing" in response.json()["error"]["message"]
    assert not (folder / "exploded").exists()


@pytest.mark.usefixtures("unchanged")
def test_paths_that_lead_out_of_the_import_root_are_refused(served, folder, tmp_path):
    """A good adapter lies outside; neither dots nor links lead there."""
    outside = tmp_path / "outside"
    folder.rename(outside)
    (folder.parent / f"{folder.name}-link").symlink_to(outside)
    linked = folder.parent / f"{folder.name}-files"
    linked.mkdir()
    for name in (CONFIG, WEIGHTS):
        (linked / name).symlink_to(outside / name)
    up = "/".join([".."] * 20)
    for path, status in {
        str(outside): 400,
        f"{up}{outside}": 400,
        f"{folder.name}-link": 400,
        f"{folder.name}-link/../../outside": 404,
        f"{folder.name}-files": 400,
        "/proc/self/cwd": 400,
        "..": 400,
        "no\0name": 400,
        "x" * 5_000: 400,
    }.items():
        response = served.load("new", path)
        assert response.status_code == status, (path, response.text)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["../x", "a/b", "a@1", BASE_MODEL, ".", "x" * 65, "a\nb", "ä"])
def test_names_that_could_mean_something_else_are_refused(served, folder, name):
    files = [(folder / file).read_bytes() for file in (CONFIG, WEIGHTS)]
    assert served.load(name, folder).status_code == 400
    assert served.import_files(name, *files).status_code == 400
