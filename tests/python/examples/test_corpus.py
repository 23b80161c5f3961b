"""The text: the same every time, split by contents, cut into windows, compared between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ringdp.examples import corpus
from ringdp.examples.corpus import Windows, check_equal, read


def test_reading_twice_gives_the_same_text(text_folder):
    first, second = read(text_folder), read(text_folder)
    assert first.digest == second.digest
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.validation, second.validation)


def test_every_file_is_on_one_side(text_folder):
    text = read(text_folder)
    files = list(text_folder.rglob("*.py"))
    newlines_between = text.files - 2
    assert text.files == len(files)
    assert len(text.train) + len(text.validation) == sum(f.stat().st_size for f in files) + newlines_between
    assert len(text.train) > len(text.validation) > 0


@pytest.mark.parametrize("change", ["contents", "name"])
def test_the_digest_sees_changes(text_folder, change):
    before = read(text_folder).digest
    file = text_folder / "file_01.py"
    if change == "contents":
        file.write_text(file.read_text().replace("x", "y", 1))
    else:
        file.rename(text_folder / "renamed.py")
    assert read(text_folder).digest != before


def test_copies_of_a_file_are_on_the_same_side(text_folder):
    before = read(text_folder)
    for file in sorted(text_folder.glob("*.py")):
        (text_folder / f"copy_of_{file.name}").write_bytes(file.read_bytes())
    after = read(text_folder)
    copied = sum(f.stat().st_size + 1 for f in text_folder.glob("copy_of_*"))
    assert len(after.train) + len(after.validation) == len(before.train) + len(before.validation) + copied
    assert set(_lines(after.train)).isdisjoint(_lines(after.validation))


def test_site_packages_are_left_out_and_a_limit_ends_the_reading(text_folder):
    whole = read(text_folder)
    (text_folder / "site-packages").mkdir()
    (text_folder / "site-packages" / "other.py").write_text("x = 1\n")
    assert read(text_folder).digest == whole.digest
    assert read(text_folder, limit=1000).files < whole.files


def test_windows_cover_the_text_and_overlap_by_the_byte_to_predict():
    windows = Windows(torch.arange(11, dtype=torch.uint8), 5, "training")
    assert [windows[i].tolist() for i in range(len(windows))] == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 10]]


def test_too_little_text_is_refused_by_size():
    with pytest.raises(ValueError, match="training text has 5 bytes, too few for --seq 5"):
        Windows(torch.zeros(5, dtype=torch.uint8), 5, "training")


@pytest.mark.parametrize("equal", [True, False])
def test_ranks_that_read_another_text_are_named(text_folder, monkeypatch, equal):
    text = read(text_folder)
    other = ("0" * 64, 12345, "host-b")

    def gather(into, mine):
        into[:] = [mine, mine if equal else other]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    if equal:
        check_equal(text)
    else:
        with pytest.raises(RuntimeError, match="rank 1 on host-b: 12345 bytes"):
            check_equal(text)


def test_the_default_text_is_tens_of_megabytes_of_python():
    from ringdp.examples.options import parse

    found = corpus._python_files(parse([]).corpus)
    assert sum(f.stat().st_size for f in found) > 5_000_000


def _lines(text: torch.Tensor) -> list[str]:
    return [line for line in bytes(text.tolist()).decode().splitlines() if line.startswith("def")]
