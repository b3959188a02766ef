"""Upload forms, read as they come: names, parts, and everything that is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from ingress.multipart import MAX_FILENAME, MAX_FORM_BYTES, MAX_PARTS, MAX_VALUE_BYTES, FileForm
from schemas.errors import (
    RequestTooLarge,
    SchemaValidationFailed,
    ServingError,
    UnsupportedMediaType,
)
from tests.fixtures.forms import BOUNDARY, CONTENT_TYPE, PURPOSE, Part, field, file, form

Read = tuple[bytes, str | None, list[tuple[str, str]]]


def read(body: bytes, content_type: str = CONTENT_TYPE, **options: Any) -> Read:
    fields: list[tuple[str, str]] = []
    reader = FileForm(
        content_type.encode("latin-1"),
        file_field="file",
        max_file_bytes=options.pop("max_file_bytes", 1000),
        on_field=lambda name, value: fields.append((name, value)),
    )
    content = b"".join(reader.feed(body))
    reader.finish()
    return content, reader.filename, fields


def name_read(disposition: str) -> str | None:
    return read(form((f"Content-Disposition: {disposition}", b"x")))[1]


def refusal(body: bytes, content_type: str = CONTENT_TYPE, **options: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        read(body, content_type, **options)
    return caught.value


@pytest.mark.rule("files.fields-in-any-order")
@pytest.mark.parametrize("parts", [(PURPOSE, file(b"a\r\nb")), (file(b"a\r\nb"), PURPOSE)])
def test_the_fields_may_come_before_or_after_the_file(parts: tuple[Part, ...]) -> None:
    assert read(form(*parts)) == (b"a\r\nb", "input.jsonl", [("purpose", "batch")])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\r\n",
        b"\n",
        b"--",
        f"--{BOUNDARY}".encode(),
        f"\r\n--{BOUNDARY}x\r\n".encode(),
        f"\r\n--{BOUNDARY}-".encode(),
        f"\r\n-{BOUNDARY}\r\n\r\n".encode(),
        bytes(range(256)),
    ],
)
def test_a_file_may_hold_anything_but_the_boundary(content: bytes) -> None:
    assert read(form(PURPOSE, file(content)))[0] == content


@pytest.mark.rule("files.file-name")
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('"a.jsonl"', "a.jsonl"),
        ("a.jsonl", "a.jsonl"),
        ('"a;b=c.jsonl"', "a;b=c.jsonl"),
        (r'"a\"b\".jsonl"', 'a"b".jsonl'),  # as curl wrote it
        ('"a%22b%22.jsonl"', 'a"b".jsonl'),  # as browsers do
        ('"100%25.jsonl"', "100%25.jsonl"),
        ('"größe 日本 👩‍🚀.jsonl"', "größe 日本 👩‍🚀.jsonl"),
        ('"gr\udcf6\udcdfe.jsonl"', "gr��e.jsonl"),  # Latin-1, say
        ('"\udced\udca0\udc80.jsonl"', "���.jsonl"),  # half a character
        ('"/etc/passwd"', "passwd"),
        ('"../../a.jsonl"', "a.jsonl"),
        (r'"C:\data\a.jsonl"', "a.jsonl"),
        ('"a%0D%0Ax-evil: 1.jsonl"', "ax-evil: 1.jsonl"),
        ('"a\x00\x1b\x7f\u0085\u2028\u202eb.jsonl"', "ab.jsonl"),
        ('"  a.jsonl  "', "a.jsonl"),
    ],
)
def test_the_name_of_the_file(written: str, shown: str) -> None:
    assert name_read(f'form-data; name="file"; filename={written}') == shown


@pytest.mark.rule("files.file-name")
@pytest.mark.parametrize(
    ("extended", "shown"),
    [
        ("UTF-8''gr%C3%B6%C3%9Fe.jsonl", "größe.jsonl"),
        ("utf-8'de'%2e%2e%2Fa%0a.jsonl", "a.jsonl"),
        ("utf-8''%ED%A0%80.jsonl", "���.jsonl"),
        ("iso-8859-1''gr%F6.jsonl", "plain.jsonl"),  # of no charset that must be known
    ],
)
def test_the_extended_name_of_the_file_counts(extended: str, shown: str) -> None:
    names = f'filename="plain.jsonl"; filename*={extended}'
    assert name_read(f'form-data; name="file"; {names}') == shown


@pytest.mark.rule("files.file-needs-name")
@pytest.mark.parametrize("name", ["", "data/", "..", ".", "%0A", "a" * (MAX_FILENAME + 1)])
def test_a_file_needs_a_name_of_its_own(name: str) -> None:
    error = refusal(form(PURPOSE, file(b"x", name)))
    assert (type(error), error.param) == (SchemaValidationFailed, "file")


@pytest.mark.rule("files.file-needs-name")
def test_text_is_no_file() -> None:
    error = refusal(form(PURPOSE, field("file", "x")))
    assert (type(error), error.param) == (SchemaValidationFailed, "file")


@pytest.mark.rule("files.one-file")
@pytest.mark.parametrize(
    "parts",
    [
        (PURPOSE,),
        (),
        (file(b"a"), file(b"b")),
        (file(b"a"), file(b"b", name="other")),
    ],
)
def test_there_is_exactly_one_file(parts: tuple[Part, ...]) -> None:
    assert type(refusal(form(*parts))) is SchemaValidationFailed


@pytest.mark.rule("files.size-limit")
def test_a_file_may_have_as_many_bytes_as_allowed() -> None:
    assert len(read(form(file(b"x" * 1000)))[0]) == 1000
    error = refusal(form(file(b"x" * 1001)))
    assert (type(error), error.param) == (RequestTooLarge, "file")


def whole(head: str) -> bytes:
    return form((head, b"x"))


@pytest.mark.rule("files.broken-form")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"no form at all",
        b"\r\nno form --" + BOUNDARY.encode(),
        b"\r\n\r\nbefore the form" + form(file(b"x")),
        f"--{BOUNDARY}".encode(),
        f"--{BOUNDARY}--".encode(),
        f"--{BOUNDARY}x\r\n".encode() + form(file(b"x")),
        form(file(b"x"))[:-4],
        form(file(b"x"))[:40],
        form(file(b"x")).replace(b"\r\n", b"\n"),
        whole("Content-Type: text/plain"),
        whole('Content-Disposition: form-data; filename="a"'),
        whole('Content-Disposition: attachment; name="file"; filename="a"'),
        whole('Content-Disposition: form-data; name="file"; name="file"; filename="a"'),
        whole('Content-Disposition: form-data; name="file"; filename="a'),
        whole('Content-Disposition: form-data; name="file" filename="a"'),
        whole('Content-Disposition: form-data; name="file"; filename="a"\r\n' * 2 + "X: y"),
        whole("no header"),
        whole(": x"),
        whole('Content-Disposition: form-data; name="file";\r\n filename="a"'),
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    assert type(refusal(body)) is SchemaValidationFailed


@pytest.mark.rule("files.form-limits")
@pytest.mark.parametrize(
    "body",
    [
        form(file(b"x"), field("note", "n" * (MAX_VALUE_BYTES + 1))),
        form(*(field(f"n{number}", "") for number in range(MAX_PARTS)), file(b"x")),
        whole("X: " + "y" * 5000),
        whole("X" * 5000 + ": y"),
        whole("\r\n".join(f"X{number}: y" for number in range(17))),
        form(field("n", b"\xff"), file(b"x")),
        form(file(b"x")) + b"\0" * MAX_FORM_BYTES,
    ],
)
def test_besides_the_file_a_form_is_small(body: bytes) -> None:
    assert type(refusal(body)) is SchemaValidationFailed


def test_the_limits_of_a_form_can_be_reached() -> None:
    many = (field(f"n{number}", "") for number in range(MAX_PARTS - 2))
    body = form(*many, field("note", "n" * MAX_VALUE_BYTES), file(b"x", "a" * MAX_FILENAME))
    content, name, fields = read(body + b"\0" * (MAX_FORM_BYTES - len(body)))
    assert (content, name, len(fields)) == (b"x", "a" * MAX_FILENAME, MAX_PARTS - 1)


@pytest.mark.rule("files.boundary")
@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        'multipart/form-data; boundary="x ',
        f"multipart/form-data; boundary={'x' * 201}",
        "multipart/form-data; boundary=gr\xf6\xdfe",
        "multipart/form-data; boundary=a; boundary=b",
    ],
)
def test_a_form_needs_a_boundary(content_type: str) -> None:
    assert type(refusal(form(file(b"x")), content_type)) is SchemaValidationFailed


@pytest.mark.parametrize(
    "content_type",
    [
        f'Multipart/Form-Data;charset=utf-8; Boundary="{BOUNDARY}"',
        f"multipart/form-data ;boundary={BOUNDARY};",
    ],
)
def test_a_boundary_may_be_written_in_several_ways(content_type: str) -> None:
    assert read(form(file(b"x")), content_type)[0] == b"x"


@pytest.mark.rule("files.multipart-only")
@pytest.mark.parametrize(
    "content_type", ["", "application/json", "application/octet-stream", "multipart/mixed"]
)
def test_only_a_form_is_taken(content_type: str) -> None:
    assert type(refusal(form(file(b"x")), content_type)) is UnsupportedMediaType


@pytest.mark.rule("files.multipart-only")
def test_a_part_is_taken_as_it_is_and_not_decoded() -> None:
    head, content = file(b"eA==")
    error = refusal(form((f"{head}\r\nContent-Transfer-Encoding: base64", content)))
    assert type(error) is UnsupportedMediaType
    assert read(form((f"{head}\r\nContent-Transfer-Encoding: Binary", content)))[0] == b"eA=="
