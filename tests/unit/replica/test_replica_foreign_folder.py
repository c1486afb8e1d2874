"""Folders from outside: where they may lie, and what a copy takes of them."""

import os

import pytest

from collm.errors import AdapterError, RequestError, UnknownAdapterError
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS
from collm.replica.foreign_folder import check_size, copy_folder, find_folder

LIMIT = 1_000


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def folder(root):
    folder = root / "adapter"
    folder.mkdir()
    (folder / PEFT_CONFIG).write_text("{}")
    (folder / PEFT_WEIGHTS).write_bytes(b"weights")
    return folder


@pytest.fixture
def target(tmp_path):
    (tmp_path / "copy").mkdir()
    return tmp_path / "copy"


def test_folder_is_found_by_its_name_or_its_whole_path(root, folder):
    for path in ("adapter", "./adapter", "adapter/../adapter", str(folder)):
        assert find_folder(str(root), path) == folder


def test_without_a_root_no_folder_may_be_read(folder):
    with pytest.raises(RequestError, match=r"set replica.import_root") as raised:
        find_folder(None, str(folder))
    assert raised.value.param == "lora_path"


@pytest.mark.parametrize("path", ["..", "../outside", "/etc", "adapter/../../outside", "link"])
def test_path_that_leads_out_is_refused(root, folder, path):
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(RequestError, match="not below replica.import_root"):
        find_folder(str(root), path)


@pytest.mark.parametrize("path", ["nothing", "", "file", "\0", "a" * 5_000, "loop"])
def test_path_to_no_folder_is_unknown(root, path):
    (root / "file").touch()
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(UnknownAdapterError, match="there is no adapter folder"):
        find_folder(str(root), path or "file/x")


def test_copy_has_the_two_files_and_nothing_else(folder, target):
    (folder / "adapter_model.bin").write_bytes(b"a pickle")
    copy_folder(folder, target, LIMIT)
    assert {path.name for path in target.iterdir()} == {PEFT_CONFIG, PEFT_WEIGHTS}
    assert (target / PEFT_WEIGHTS).read_bytes() == b"weights"


@pytest.mark.parametrize("name", [PEFT_CONFIG, PEFT_WEIGHTS])
def test_missing_file_is_named(folder, target, name):
    (folder / name).unlink()
    with pytest.raises(AdapterError, match=f"{name} is missing"):
        copy_folder(folder, target, LIMIT)


@pytest.mark.parametrize("name", [PEFT_CONFIG, PEFT_WEIGHTS])
def test_link_to_a_file_is_not_followed(folder, target, name):
    secret = folder.parent / "secret"
    secret.write_text("secret")
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    with pytest.raises(AdapterError, match=f"{name} cannot be read"):
        copy_folder(folder, target, LIMIT)


def test_folder_swapped_for_a_link_is_not_followed(root, folder, target):
    (root / "link").symlink_to(folder)
    with pytest.raises(AdapterError, match="the folder cannot be read"):
        copy_folder(root / "link", target, LIMIT)


def test_pipe_is_refused_without_waiting_for_a_writer(folder, target):
    (folder / PEFT_WEIGHTS).unlink()
    os.mkfifo(folder / PEFT_WEIGHTS)
    with pytest.raises(AdapterError, match="is not a plain file"):
        copy_folder(folder, target, LIMIT)


def test_folder_in_a_files_place_is_refused(folder, target):
    (folder / PEFT_CONFIG).unlink()
    (folder / PEFT_CONFIG).mkdir()
    with pytest.raises(AdapterError, match="is not a plain file"):
        copy_folder(folder, target, LIMIT)


def test_file_beyond_the_limit_is_refused(folder, target):
    (folder / PEFT_WEIGHTS).write_bytes(b"x" * LIMIT)
    copy_folder(folder, target, LIMIT)
    with (folder / PEFT_WEIGHTS).open("ab") as file:
        file.write(b"x")
    with pytest.raises(AdapterError, match=f"too large; allowed are {LIMIT} bytes"):
        copy_folder(folder, target, LIMIT)
    with pytest.raises(AdapterError, match="at most 1000 can be right"):
        check_size(folder / PEFT_WEIGHTS, LIMIT)
