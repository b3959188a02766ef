"""Where blobs lie, as an operator writes it: a directory, or a bucket of an S3-compatible store.

    /var/lib/headrace/blobs      file:///var/lib/headrace/blobs
    s3://bucket/prefix?endpoint=https://minio.example:9000&region=eu-central-1

It must not know how any store does its work. Credentials are no part of a location: locations are
shown in errors and process lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from schemas.blobs.base import BlobStore, BlobStoreUnavailable
from schemas.blobs.directory import DirectoryStore

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")
_REGION = re.compile(r"[a-z0-9-]+")
_FORM = "s3://BUCKET/PREFIX?endpoint=URL&region=NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLocation:
    """A bucket, or a part of one.

    Attributes:
        prefix: Before every key, without slashes at its ends; "" for none.
        endpoint: Of a store that is not Amazon's; None for what the environment says.
        region: None for what the environment says.
        allow_http: Prompts may cross the network to the endpoint as they are.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False

    def __str__(self) -> str:
        place = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        return place if self.endpoint is None else f"{place} at {self.endpoint}"


def parse_location(location: str) -> Path | BucketLocation:
    """Read a location.

    Raises:
        ValueError: It is none; the text says why, without what may be secret.
    """
    scheme = _SCHEME.match(location)
    match scheme and scheme[1].lower():
        case None:
            if not location:
                raise ValueError("a directory or a bucket must be named")
            return Path(location)
        case "file":
            return _directory(location)
        case "s3":
            return _bucket(location)
        case _:
            raise ValueError(f"neither a directory nor a URL such as {_FORM}")


def open_blobs(location: str) -> BlobStore:
    """The store at a location, once it is known that blobs can be kept there. Blocks.

    Raises:
        BlobStoreUnavailable: There can be no blobs there.
        ValueError: It is no location.
    """
    place = parse_location(location)
    if isinstance(place, Path):
        return DirectoryStore.open(place)
    try:
        from schemas.blobs.objects import S3Store  # its library is for those who need it
    except ImportError:
        raise BlobStoreUnavailable("buckets need the package `obstore`") from None
    return S3Store.open(place)


def _directory(location: str) -> Path:
    url = urlsplit(location)
    if url.netloc not in ("", "localhost") or not url.path or url.query or url.fragment:
        raise ValueError("a directory is written file:///var/lib/headrace/blobs, or as its path")
    return Path(unquote(url.path))


def _bucket(location: str) -> BucketLocation:
    url = urlsplit(location)
    if "@" in url.netloc:
        raise ValueError(
            "credentials do not belong into the URL: give them as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    prefix = unquote(url.path).strip("/")
    if not _BUCKET.fullmatch(url.netloc) or url.fragment:
        raise ValueError(f"a bucket is written {_FORM}")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError("a prefix has letters, digits and _ . = - between single slashes")
    options = _options(url.query)
    endpoint, region = options.get("endpoint"), options.get("region")
    allow_http = options.get("allow_http", "false")
    if allow_http not in ("true", "false"):
        raise ValueError("allow_http is true or false")
    if endpoint is not None:
        endpoint = _endpoint(endpoint, allow_http=allow_http == "true")
    if region is not None and not _REGION.fullmatch(region):
        raise ValueError("a region is named like eu-central-1")
    return BucketLocation(
        bucket=url.netloc,
        prefix=prefix,
        endpoint=endpoint,
        region=region,
        allow_http=allow_http == "true",
    )


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ValueError(f"a bucket's options are written as in {_FORM}") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ValueError("each option of a bucket's URL is given once")
    for name in options:
        if name not in ("endpoint", "region", "allow_http"):
            raise ValueError("a bucket's URL may have the options endpoint, region and allow_http")
    return options


def _endpoint(endpoint: str, *, allow_http: bool) -> str:
    try:
        url = urlsplit(endpoint)
        sound = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # no such port, or no such address
        sound = False
    if not sound or "@" in url.netloc or url.query or url.fragment:
        raise ValueError("an endpoint is written https://HOST:PORT")
    if url.scheme == "http" and not allow_http:
        raise ValueError(
            "an endpoint without TLS carries prompts for everybody to read; where that is "
            "meant, add &allow_http=true"
        )
    return endpoint.rstrip("/")
