from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path

import pytest

from schemas.blobs.base import BlobStoreUnavailable
from schemas.blobs.directory import DirectoryStore
from tests.contract.blob_suite import BlobSuite, Harness, a_key, in_pieces


class DirectoryHarness:
    part_bytes = 1 << 20
    env: Mapping[str, str] = {}

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = root.as_uri()

    def store(self) -> DirectoryStore:
        return DirectoryStore.open(self.root)

    def leave_unfinished(self, key: str) -> None:
        """As the kernel leaves it."""
        (self.root / f"{key}.0123abcd.part").write_bytes(b"half of it")

    def unfinished(self) -> int:
        return len(list(self.root.rglob("*.part")))

    def held(self) -> int:
        inside = str(self.root)
        return sum(1 for name in open_files() if name.startswith(inside))

    async def take_away(self) -> None:
        shutil.rmtree(self.root)


def open_files() -> Iterator[str]:
    """Of this process."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            yield str(descriptor.readlink())


class TestDirectoryStore(BlobSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return DirectoryHarness(tmp_path / "deep" / "blobs")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process that would let everybody read what it writes."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes_below(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")
    }


@pytest.mark.usefixtures("open_umask")
async def test_nobody_else_can_read_blobs(tmp_path: Path) -> None:
    store, key = DirectoryStore.open(tmp_path / "blobs"), a_key()
    await store.put(key, b"a prompt")
    assert modes_below(tmp_path) == {"blobs": 0o700, "blobs/jobs": 0o700, f"blobs/{key}": 0o600}


def test_opening_leaves_nothing_behind(tmp_path: Path) -> None:
    DirectoryStore.open(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("place", ["file", "file/below", "missing-mount"])
def test_a_place_that_cannot_keep_blobs_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "missing-mount").symlink_to(tmp_path / "nowhere" / "at-all")
    with pytest.raises(BlobStoreUnavailable, match=f"no blobs can be kept in .*{place}: [A-Z]"):
        DirectoryStore.open(tmp_path / place)


async def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    store = DirectoryStore.open(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(BlobStoreUnavailable):
            await store.put(a_key(), b"x" * (2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(await store.list("jobs")) == []


async def test_what_is_written_to_last_is_on_the_disk_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, synced, to_disk = DirectoryStore.open(tmp_path / "blobs"), list[int](), os.fsync

    def fsync(file: FileIO | int) -> None:
        synced.append(os.fstat(file if isinstance(file, int) else file.fileno()).st_ino)
        to_disk(file)

    monkeypatch.setattr(os, "fsync", fsync)
    await store.put("files/of-a-request", b"data")
    assert synced == []
    await store.write("files/of-a-batch", in_pieces(b"data"))
    places = ("blobs/files/of-a-batch", "blobs/files", "blobs")
    assert synced == [(tmp_path / place).stat().st_ino for place in places]
