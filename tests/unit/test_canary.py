"""The search for canaries finds them however they are written, and nothing else."""

from __future__ import annotations

import base64
import itertools
import json  # noqa: TID251 - with its escapes, as other programs write
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tests.fixtures.canary import Leak, Search, canary

SECRET = canary("prompt")


@pytest.mark.parametrize(
    "written",
    [
        SECRET.encode(),
        json.dumps({"content": f'"{SECRET}"\n'}).encode(),
        SECRET.encode("utf-16-le"),
        SECRET.encode("utf-16-be"),
        SECRET.encode().hex().encode(),
        base64.b64encode(SECRET.encode()),
        base64.b64encode(b"x" + SECRET.encode() + b"y"),
        base64.b64encode(b"xy" + SECRET.encode() + b"y"),
        msgspec.json.encode(b"before it" + SECRET.encode()),
        msgspec.json.encode(tuple(SECRET.encode())),
        repr(list(SECRET.encode())).encode(),
        "".join(f"\\u{ord(letter):04x}" for letter in SECRET).encode(),
        quote(SECRET).encode(),
    ],
    ids=itertools.count(),  # it is another in each process of a run, and no name of a test may be
)
def test_it_is_found_in_every_form(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"\x00before" + written + b"after\xff")
    found = list(Search({"prompt": SECRET, "other": canary("other")}).files([tmp_path]))
    assert [(leak.secret, leak.place) for leak in found] == [
        ("prompt", str(tmp_path / "deep" / "file"))
    ]


def test_it_is_found_in_names_and_where_pieces_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fixtures.canary._PIECE", 64)
    (tmp_path / SECRET).write_bytes(b"")
    (tmp_path / "file").write_bytes(b"." * (64 - len(SECRET) // 2) + SECRET.encode())
    places = {leak.place for leak in Search({"prompt": SECRET}).files([tmp_path])}
    assert places == {f"name of {tmp_path / SECRET}", str(tmp_path / "file")}


def test_another_one_is_not_found() -> None:
    almost = SECRET[:-1].encode() + b"!"
    assert list(Search({"prompt": SECRET}).text("here", almost)) == []
    assert list(Search({"prompt": SECRET}).text("here", SECRET.encode())) == [
        Leak("prompt", "as it is", "here")
    ]
