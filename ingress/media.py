"""The images of a Job: links become checked files before the Job leaves the ingress.

A link is a `data:` URI or an `https:` URL that a stranger wrote. What is fetched is decided by the
address that is connected to, and every hop of a redirect is checked like the first. What a file is,
is read from its first bytes and never from what its server says. Errors name the field and quote
neither the URL nor the server.

* Only `https`, only port 443, no user name in the URL.
* Every address of the host must be public; the connection goes to one of those checked.
* PNG, JPEG, WebP, GIF (of which models see the first frame).

Source: Chat Completions, "Vision"; Messages, "Vision"; time-limit table, "Image fetch".
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import socket
import ssl
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final
from urllib.parse import unquote

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from PIL import Image, WebPImagePlugin
from yarl import URL

from ingress.addresses import is_public
from ingress.settings import MediaLimits
from schemas.errors import ModelRequestRejected, UnsupportedValue
from schemas.job import ChatPrompt, Job
from schemas.message import ImageLink, ImagePart, Part

# Pillow knows three of them from the start; it would load its dozens of formats to find the fourth.
_FORMATS: Final = ("PNG", "JPEG", "GIF", WebPImagePlugin.WebPImageFile.format)
_MEDIA_TYPES: Final = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",  # a JPEG file with more pictures behind the first
    "WEBP": "image/webp",
    "GIF": "image/gif",
}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_CHUNK_BYTES: Final = 1 << 16
_THREAD_DECODE_CHARS: Final = 1 << 18
"""Longer `data:` URIs are decoded off the event loop."""


def has_links(job: Job) -> bool:
    """Whether there is anything to load."""
    return bool(_links(job))


def _links(job: Job) -> Sequence[ImageLink]:
    if not isinstance(job.prompt, ChatPrompt):
        return ()
    return [
        part
        for message in job.prompt.messages
        for part in message.parts
        if isinstance(part, ImageLink)
    ]


class Network:
    """Names, addresses and trust on the way to an image.

    Attributes:
        tls: What certificates are checked against.
    """

    def __init__(self) -> None:
        self.tls = ssl.create_default_context()

    async def resolve(self, host: str) -> Sequence[str]:
        """All addresses of a host in canonical spelling, also of one that is an address already.

        Raises:
            OSError: There are none.
        """
        found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]

    def endpoint(self, address: str) -> tuple[str, int]:
        """Where to connect to for an address."""
        return address, 443


class Media:
    """Loads the images of Jobs."""

    def __init__(self, limits: MediaLimits, network: Network | None = None) -> None:
        self._limits = limits
        self._network = network or Network()
        self._fetches = asyncio.Semaphore(limits.concurrent_fetches)

    async def load(self, job: Job) -> Job:
        """The Job with an `ImagePart` in the place of every link. Each link is read once.

        Raises:
            UnsupportedValue: A URL that is not to be fetched.
            ModelRequestRejected: It cannot be fetched, or is no image that models take.
        """
        links: dict[str, ImageLink] = {}
        for link in _links(job):
            links.setdefault(link.url, link)
        if not links:
            return job
        images = await self._read_all(tuple(links.values()))
        assert isinstance(job.prompt, ChatPrompt), "only conversations have links"
        messages = tuple(
            msgspec.structs.replace(
                message, parts=tuple(_image_for(part, images) for part in message.parts)
            )
            for message in job.prompt.messages
        )
        return msgspec.structs.replace(
            job, prompt=msgspec.structs.replace(job.prompt, messages=messages)
        )

    async def _read_all(self, links: Sequence[ImageLink]) -> Mapping[str, ImagePart]:
        images: dict[str, ImagePart] = {}
        remote = []
        for link in links:
            if _is_data(link.url):
                images[link.url] = await self._decode(link)
            else:
                remote.append(link)
        if len(remote) > self._limits.fetches:
            raise _rejected(f"At most {self._limits.fetches} images can be fetched.", remote[-1])
        room = _Room(self._limits.request_bytes)
        fetches = [asyncio.create_task(self._fetch(link, room)) for link in remote]
        try:
            async with asyncio.timeout(self._limits.fetch_s):
                for link, image in zip(remote, await asyncio.gather(*fetches), strict=True):
                    images[link.url] = image
        except TimeoutError:
            late = next(
                link for link, task in zip(remote, fetches, strict=True) if not _succeeded(task)
            )
            raise ModelRequestRejected(
                "The image could not be fetched in time.", param=late.param
            ) from None
        finally:
            for task in fetches:
                task.cancel()
            await asyncio.gather(*fetches, return_exceptions=True)
        return images

    # --- data URIs ---

    async def _decode(self, link: ImageLink) -> ImagePart:
        header, comma, data = link.url.partition(",")
        media_type, *parameters = header[len("data:") :].lower().split(";")
        if not (comma and parameters and parameters[-1] == "base64"):
            raise _rejected("An image in a data URI must be encoded as base64.", link)
        if not media_type.startswith("image/"):
            raise _rejected("The data URI does not hold an image.", link)
        if len(data) // 4 * 3 - 2 > self._limits.image_bytes:  # padding leaves two bytes open
            raise self._too_large(link)
        if len(data) < _THREAD_DECODE_CHARS:
            content = _from_base64(data)
        else:
            content = await asyncio.to_thread(_from_base64, data)
        if content is None:
            raise _rejected("The image is not valid base64.", link)
        if len(content) > self._limits.image_bytes:
            raise self._too_large(link)
        return self._image(content, link)

    def _image(self, content: bytes, link: ImageLink) -> ImagePart:
        """What the first bytes say the file is.

        Pillow reads no more than the header here: no pixel is decoded.
        """
        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                media_type, (width, height) = _MEDIA_TYPES[str(image.format)], image.size
        except Exception:  # its parsers raise whatever they stumble over
            raise _rejected("The image is not a PNG, JPEG, WebP or GIF file.", link) from None
        if width * height > self._limits.image_pixels:
            raise _rejected(f"The image has more than {self._limits.image_pixels} pixels.", link)
        return ImagePart(media_type=media_type, data=content)

    def _too_large(self, link: ImageLink) -> ModelRequestRejected:
        return _rejected(f"The image is larger than {self._limits.image_bytes} bytes.", link)

    # --- https URLs ---

    async def _fetch(self, link: ImageLink, room: _Room) -> ImagePart:
        async with self._fetches:
            url = _parse(link.url, link)
            for _ in range(self._limits.redirects + 1):
                endpoints = await self._check(url, link)
                try:
                    answer = await self._get(url, endpoints, link, room)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    raise ModelRequestRejected(
                        "The image could not be fetched.",
                        param=link.param,
                        diagnostic=type(error).__name__,
                    ) from None
                if isinstance(answer, bytes):
                    return self._image(answer, link)
                url = _parse(answer, link, base=url)
        raise _rejected("The image could not be fetched: too many redirects.", link)

    async def _check(self, url: URL, link: ImageLink) -> Mapping[str, int]:
        """The addresses to connect to, and their ports.

        Raises:
            UnsupportedValue: The URL is not to be fetched, whatever is behind it.
            ModelRequestRejected: It leads nowhere.
        """
        if url.scheme != "https" or not url.raw_host:
            raise UnsupportedValue(
                "An image must be sent inline as base64 or as a public https URL.", param=link.param
            )
        if url.raw_user is not None or url.raw_password is not None:
            raise UnsupportedValue(
                "An image URL must not hold a user name or password.", param=link.param
            )
        try:
            # Some resolvers do not know a local name with the root's dot.
            addresses = await self._network.resolve(url.raw_host.rstrip("."))
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            raise _rejected("The image could not be fetched: its host is not known.", link)
        if not all(map(is_public, addresses)):
            raise UnsupportedValue(
                "An image URL must not point to a private network.", param=link.param
            )
        if url.port != 443:
            raise _rejected("The image could not be fetched: only port 443 is allowed.", link)
        return dict(map(self._network.endpoint, addresses))

    async def _get(
        self, url: URL, endpoints: Mapping[str, int], link: ImageLink, room: _Room
    ) -> bytes | str:
        """The body, or where it is said to be instead."""
        connector = aiohttp.TCPConnector(
            resolver=_Checked(endpoints),
            socket_factory=lambda info: _checked_socket(info, endpoints),
            ssl=self._network.tls,
            use_dns_cache=False,
            force_close=True,
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),  # the caller's holds for all hops
                headers={
                    "accept": "image/*",
                    "accept-encoding": "identity",
                    "user-agent": f"headrace/{version('headrace')}",
                },
            ) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status in _REDIRECTS and "location" in response.headers:
                return response.headers["location"]
            if response.status != 200:
                raise _rejected("The image could not be fetched: its server did not give it.", link)
            size = 0
            chunks = []
            if (response.content_length or 0) > self._limits.image_bytes:
                raise self._too_large(link)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                size += len(chunk)
                if size > self._limits.image_bytes:
                    raise self._too_large(link)
                room.take(len(chunk), link)
                chunks.append(chunk)
            return b"".join(chunks)


class _Room:
    """What all images of one request may take together."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def take(self, size: int, link: ImageLink) -> None:
        self._left -= size
        if self._left < 0:
            raise _rejected(f"The images are larger than {self._size} bytes together.", link)


class _Checked(AbstractResolver):
    """Answers with the addresses that were checked: nothing is resolved a second time."""

    def __init__(self, endpoints: Mapping[str, int]) -> None:
        self._endpoints = endpoints

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address, port in self._endpoints.items()
        ]

    async def close(self) -> None: ...


def _checked_socket(info: aiohttp.AddrInfoType, endpoints: Mapping[str, int]) -> socket.socket:
    """A socket for an address that was checked.

    A host that is an address already never comes past the resolver.
    """
    family, kind, proto, _, (address, port, *_) = info
    if endpoints.get(str(address)) != port:
        raise PermissionError("an address that was not checked")
    return socket.socket(family, kind, proto)


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _parse(text: str, link: ImageLink, base: URL | None = None) -> URL:
    try:
        url = URL(text)
        return base.join(url) if base is not None else url
    except (ValueError, TypeError):
        raise UnsupportedValue("The image URL is not valid.", param=link.param) from None


def _from_base64(data: str) -> bytes | None:
    """Also what browsers read: wrapped lines, padding left out, and characters escaped for URLs."""
    compact = "".join(unquote(data).split()).rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _image_for(part: Part, images: Mapping[str, ImagePart]) -> Part:
    return images[part.url] if isinstance(part, ImageLink) else part


def _succeeded(task: asyncio.Task[ImagePart]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _rejected(message: str, link: ImageLink) -> ModelRequestRejected:
    return ModelRequestRejected(message, param=link.param)
