"""Where blobs lie, as an operator writes it; and that no answer holds what may be secret."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ingress.batcher import batcher
from ingress.commands import ingress
from schemas.blobs.location import BucketLocation, open_blobs, parse_location
from workers.__main__ import worker


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/var/lib/headrace/blobs", "/var/lib/headrace/blobs"),
        ("blobs", "blobs"),
        ("a:b/c", "a:b/c"),
        ("file:///var/lib/headrace/blobs", "/var/lib/headrace/blobs"),
        ("FILE://localhost/a%20b", "/a b"),
    ],
)
def test_directories(location: str, path: str) -> None:
    assert parse_location(location) == Path(path)


@pytest.mark.parametrize(
    ("location", "bucket"),
    [
        ("s3://bucket", BucketLocation(bucket="bucket")),
        ("s3://bucket/", BucketLocation(bucket="bucket")),
        ("S3://my.bucket-1/a/b_c/", BucketLocation(bucket="my.bucket-1", prefix="a/b_c")),
        (
            "s3://bucket/p?endpoint=https://minio.example:9000/&region=eu-central-1",
            BucketLocation(
                bucket="bucket",
                prefix="p",
                endpoint="https://minio.example:9000",
                region="eu-central-1",
            ),
        ),
        (
            "s3://bucket?endpoint=http%3A%2F%2F127.0.0.1%3A9000&allow_http=true",
            BucketLocation(bucket="bucket", endpoint="http://127.0.0.1:9000", allow_http=True),
        ),
        ("s3://bucket?allow_http=true", BucketLocation(bucket="bucket", allow_http=True)),
    ],
)
def test_buckets(location: str, bucket: BucketLocation) -> None:
    assert parse_location(location) == bucket


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("", "must be named"),
        ("gs://bucket", "neither a directory nor a URL such as s3://"),
        ("http://bucket", "neither a directory nor a URL such as s3://"),
        ("file://server/share", "written file:///"),
        ("file://", "written file:///"),
        ("file:///a?b", "written file:///"),
        ("s3://", "a bucket is written s3://"),
        ("s3:///prefix", "a bucket is written s3://"),
        ("s3://Bucket", "a bucket is written s3://"),
        ("s3://bucket:9000", "a bucket is written s3://"),
        ("s3://bucket/a#b", "a bucket is written s3://"),
        ("s3://KEY:SECRET@bucket", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/a//b", "a prefix has"),
        ("s3://bucket/a/../b", "a prefix has"),
        ("s3://bucket/%2e%2e/b", "a prefix has"),
        ("s3://bucket/a b", "a prefix has"),
        ("s3://bucket?endpoint", "a bucket's options are written as in s3://"),
        ("s3://bucket?secret_access_key=SECRET", "the options endpoint, region and allow_http"),
        ("s3://bucket?region=a&region=b", "each option of a bucket's URL is given once"),
        ("s3://bucket?region=SECRET!", "like eu-central-1"),
        ("s3://bucket?allow_http=yes", "allow_http is true or false"),
        ("s3://bucket?endpoint=", "https://HOST:PORT"),
        ("s3://bucket?endpoint=minio:9000", "https://HOST:PORT"),
        ("s3://bucket?endpoint=https://KEY:SECRET@minio", "https://HOST:PORT"),
        ("s3://bucket?endpoint=https://minio:port", "https://HOST:PORT"),
        ("s3://bucket?endpoint=https://[minio", "https://HOST:PORT"),
        ("s3://bucket?endpoint=https://minio/?a=b", "https://HOST:PORT"),
        ("s3://bucket?endpoint=http://minio:9000", "add &allow_http=true"),
        ("s3://bucket?endpoint=http://minio:9000&allow_http=false", "add &allow_http=true"),
    ],
)
def test_what_is_no_location(location: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_location(location)
    assert reason in str(caught.value)
    assert "SECRET" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")
    with pytest.raises(ValueError):
        open_blobs(location)


def test_a_directory_is_opened_by_its_url(tmp_path: Path) -> None:
    open_blobs((tmp_path / "a b").as_uri())
    assert (tmp_path / "a b").is_dir()


@pytest.mark.parametrize("command", [ingress, batcher, worker], ids=lambda command: command.name)
def test_every_command_says_what_is_wrong_with_a_location(command: click.Command) -> None:
    others = {
        "HEADRACE_AMQP_URL": "amqp://u:p@one",
        "HEADRACE_DATABASE": "postgresql://one/headrace",
        "HEADRACE_MODEL": "m",
    }
    for arguments, env in (
        (["--blobs", "s3://KEY:SECRET@bucket"], {}),
        ([], {"HEADRACE_BLOBS": "s3://KEY:SECRET@bucket"}),
    ):
        result = CliRunner().invoke(command, arguments, env=others | env)
        assert result.exit_code == click.UsageError.exit_code
        assert "Invalid value for '--blobs'" in result.output
        assert "credentials do not belong into the URL" in " ".join(result.output.split())
        assert "SECRET@" not in result.output
