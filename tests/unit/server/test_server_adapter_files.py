import io
import zipfile

import httpx
import pytest

from collm.errors import AdapterError, RequestError, UnknownAdapterError
from factories.fake_backends import fake_backends
from factories.fake_desks import FakeAdapterDesk
from factories.fake_replica import VERSION, FakeReplica
from factories.server_thread import running_server
from factories.waiting import WAIT_S

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_BYTES = 100_000


@pytest.fixture
def desk():
    return FakeAdapterDesk()


@pytest.fixture
def http(desk):
    backends = fake_backends(adapters=desk)
    with (
        running_server(backends, max_adapter_bytes=MAX_BYTES) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


def form(*, weights=b"weights", config=b"{}", **extra):
    return {CONFIG: ("c", config), WEIGHTS: ("w", weights), **extra}


def post_import(http, files, **fields):
    return http.post("/adapters/import", data={"name": "guest", **fields}, files=files)


def error_of(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_export_is_a_zip_archive_named_after_the_version(http):
    response = http.get("/adapters/export", params={"version": VERSION})
    assert response.headers["content-type"] == "application/zip"
    assert f'filename="{VERSION}.zip"' in response.headers["content-disposition"]
    names = zipfile.ZipFile(io.BytesIO(response.content)).namelist()
    assert names == [CONFIG, WEIGHTS]


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"version": "helper@9"}, 404, None),
        ({}, 400, "version"),
        ({"versions": "x"}, 400, "version"),
    ],
)
def test_export_of_what_does_not_exist_is_refused(http, query, status, param):
    assert error_of(http.get("/adapters/export", params=query), status)["param"] == param


@pytest.mark.parametrize(
    ("fields", "is_promoted"), [({}, False), ({"promote": "true"}, True), ({"promote": "0"}, False)]
)
def test_imported_files_reach_the_desk_whole(http, desk, fields, is_promoted):
    weights = bytes(range(256)) * 300
    response = post_import(http, form(weights=weights, config=b'{"r": 8}'), **fields)
    assert response.json()["version"] == "guest@1"
    assert desk.imported == [("guest", b'{"r": 8}', weights, is_promoted)]


def test_file_names_of_the_client_are_never_used(http, desk, tmp_path):
    target = tmp_path / "owned"
    files = {CONFIG: (str(target), b"{}"), WEIGHTS: (f"../../../..{target}", b"weights")}
    assert post_import(http, files).status_code == 200
    (path,) = desk.import_paths
    assert path.name == WEIGHTS
    assert not target.exists()


def test_uploaded_file_is_gone_afterwards(http, desk):
    assert post_import(http, form()).status_code == 200
    desk.refusal = RequestError("bad", param=CONFIG)
    assert post_import(http, form()).status_code == 400
    assert len(desk.import_paths) == 2
    assert not any(path.parent.exists() for path in desk.import_paths)


def test_surplus_part_is_refused_by_name(http, desk):
    extra = {"adapter_model.bin": ("adapter_model.bin", b"pickle")}
    error = error_of(post_import(http, form(**extra)), 400)
    assert error["param"] == "adapter_model.bin"
    assert WEIGHTS in error["message"]
    error = error_of(post_import(http, form(), rank="8"), 400)
    assert error["param"] == "rank"
    assert desk.import_paths == []


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_missing_part_is_refused_by_name(http, name):
    files = form()
    del files[name]
    assert error_of(post_import(http, files), 400)["param"] == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": "../guest"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "guest@1"}, "name"),
        ({"promote": "perhaps"}, "promote"),
    ],
)
def test_bad_field_of_an_import_is_refused_by_name(http, desk, fields, param):
    assert error_of(post_import(http, form(), **fields), 400)["param"] == param
    assert desk.import_paths == []


def test_import_without_a_form_is_refused(http):
    error_of(http.post("/adapters/import", json={"name": "guest"}), 400)


def test_file_over_its_limit_is_413_that_names_it(http, desk):
    assert post_import(http, form(weights=bytes(MAX_BYTES))).status_code == 200
    error = error_of(post_import(http, form(weights=bytes(MAX_BYTES + 1))), 413)
    assert (error["param"], str(MAX_BYTES) in error["message"]) == (WEIGHTS, True)
    assert len(desk.import_paths) == 1


def test_adapter_that_does_not_fit_is_400_with_the_reason(http, desk):
    desk.refusal = AdapterError("made for another base")
    error = error_of(post_import(http, form()), 400)
    assert (error["param"], error["message"]) == (WEIGHTS, "made for another base")


def test_base_models_name_is_refused_by_the_field_that_has_it(http, desk, monkeypatch):
    monkeypatch.setattr(FakeReplica, "base_model", "tiny")
    assert error_of(post_import(http, form(), name="tiny"), 400)["param"] == "name"
    body = {"lora_name": "tiny", "lora_path": "x"}
    assert error_of(http.post("/v1/load_lora_adapter", json=body), 400)["param"] == "lora_name"
    assert desk.import_paths == []
    assert desk.loaded == {}


def test_mistake_in_the_configuration_blames_that_part(http, desk):
    desk.refusal = AdapterError(f"{CONFIG}: use_dora is True; supported is False")
    assert error_of(post_import(http, form()), 400)["param"] == CONFIG


def test_load_and_unload_answer_as_vllm_does(http, desk):
    body = {"lora_name": "guest", "lora_path": "/adapters/guest"}
    response = http.post("/v1/load_lora_adapter", json=body)
    assert response.status_code == 200
    assert response.text == "Success: LoRA adapter 'guest' added successfully."
    assert desk.loaded == {"guest": ("/adapters/guest", False)}
    http.post("/v1/load_lora_adapter", json={**body, "load_inplace": True}).raise_for_status()
    assert desk.loaded == {"guest": ("/adapters/guest", True)}
    body = {"lora_name": "guest", "lora_int_id": 1}
    response = http.post("/v1/unload_lora_adapter", json=body)
    assert response.status_code == 200
    assert response.text == "Success: LoRA adapter 'guest' removed successfully."
    assert desk.loaded == {}


def test_unload_of_an_unknown_name_is_404(http):
    error_of(http.post("/v1/unload_lora_adapter", json={"lora_name": "nobody"}), 404)


@pytest.mark.parametrize(
    ("refusal", "status", "param"),
    [
        (RequestError("has already been loaded", param="lora_name"), 400, "lora_name"),
        (AdapterError("keys match no module"), 400, "lora_path"),
        (UnknownAdapterError("no folder there"), 404, None),
    ],
)
def test_load_that_fails_has_the_status_of_vllm(http, desk, refusal, status, param):
    desk.refusal = refusal
    body = {"lora_name": "guest", "lora_path": "guest"}
    error = error_of(http.post("/v1/load_lora_adapter", json=body), status)
    assert (error["param"], error["message"]) == (param, str(refusal))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "x"}, "lora_name"),
        ({"lora_name": "guest"}, "lora_path"),
        ({"lora_name": "a/b", "lora_path": "x"}, "lora_name"),
        ({"lora_name": "guest", "lora_path": "a\0b"}, "lora_path"),
        ({"lora_name": "guest", "lora_path": "x", "load_inplace": "yes"}, "load_inplace"),
        ({"lora_name": "guest", "lora_path": "x", "rank": 8}, "rank"),
    ],
)
def test_bad_load_is_refused_by_name(http, desk, body, param):
    assert error_of(http.post("/v1/load_lora_adapter", json=body), 400)["param"] == param
    assert desk.loaded == {}
