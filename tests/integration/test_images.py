"""Images of a request: data URIs and public https URLs become files; nothing else is fetched."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from aiohttp import web

from schemas.job import ChatPrompt, Job
from schemas.message import ImagePart, TextPart
from schemas.model_card import Capabilities
from tests.fixtures.image_host import (
    HOST,
    PUBLIC,
    PUBLIC_6,
    ImageHost,
    image_file,
    image_host,
)
from tests.fixtures.stack import Stack, memory_stack, until
from workers.engines.scripted import ScriptedEngine, script_from_markers

MODEL = "demo-vision-model"
PNG = image_file()


@pytest.fixture
async def host() -> AsyncIterator[ImageHost]:
    async with image_host() as host:
        yield host


class Seeing(ScriptedEngine):
    """Remembers the Jobs it got."""

    def __init__(self, *, vision: bool = True) -> None:
        super().__init__(
            served_id=MODEL,
            capabilities=Capabilities(vision=vision, tools=True),
            script=self.remember,  # type: ignore[arg-type]
        )
        self.jobs: list[Job] = []

    def remember(self, request: Any) -> Any:
        self.jobs.append(request.job)
        return script_from_markers(request)

    def images(self) -> list[ImagePart]:
        (job,) = self.jobs
        assert isinstance(job.prompt, ChatPrompt)
        return [
            part
            for message in job.prompt.messages
            for part in message.parts
            if isinstance(part, ImagePart)
        ]


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def chat_body(*urls: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


async def chat(stack: Stack, *urls: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, timeout=20, verify=False) as http:
        return await http.post("/v1/chat/completions", json=chat_body(*urls, **more))


def messages_body(url: str) -> dict[str, Any]:
    source = {"type": "url", "url": url}
    content = [{"type": "image", "source": source}]
    return {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": content}]}


async def refused(stack: Stack, url: str, code: str, **more: Any) -> str:
    """The error's message, once everything else about it is checked."""
    answer = await chat(stack, url, **more)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == code, error
    assert error["param"] == "messages[0].content[1].image_url.url"
    return str(error["message"])


# --- data URIs ---


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.rule("vision.data-uri", "vision.formats")
async def test_a_data_uri_reaches_the_model_as_the_file_it_holds(kind: str) -> None:
    content, engine = image_file(kind), Seeing()
    async with memory_stack(engine) as stack:
        answer = await chat(stack, data_uri(content, "image/jpeg"))
        assert answer.status_code == 200, answer.text
        media_type = f"image/{kind.lower()}"  # what it is, not what it is said to be
        assert engine.images() == [ImagePart(media_type=media_type, data=content)]
        (job,) = engine.jobs
        assert isinstance(job.prompt, ChatPrompt)
        assert job.prompt.messages[0].parts[0] == TextPart(text="What is this?")


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(base64.encodebytes(PNG).decode(), id="lines"),
        pytest.param(base64.b64encode(PNG).decode().rstrip("="), id="no padding"),
        pytest.param(quote(base64.b64encode(PNG).decode(), safe=""), id="escaped"),
        pytest.param(f" {base64.b64encode(PNG).decode()}\r\n", id="around it"),
    ],
)
@pytest.mark.rule("vision.data-uri")
async def test_base64_is_read_as_browsers_read_it(written: str) -> None:
    engine = Seeing()
    async with memory_stack(engine) as stack:
        answer = await chat(stack, f"data:image/png;charset=utf-8;base64,{written}")
        assert answer.status_code == 200, answer.text
        assert engine.images() == [ImagePart(media_type="image/png", data=PNG)]


@pytest.mark.parametrize(
    "uri",
    [
        "data:image/png;base64,",
        "data:image/png;base64,####",
        "data:image/png;base64,QUJD\nREVG",
        "data:image/png;base64,iVBORw0KGgo",
        data_uri(b"BM" + bytes(60), "image/bmp"),
        data_uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        data_uri(PNG, "application/pdf"),
        data_uri(PNG[:20]),
        data_uri(b"secret text"),
        "data:image/png,%89PNG",
        "data:,",
        "data:",
        "DATA:image/png;base64,AAAA",
    ],
)
async def test_a_data_uri_that_holds_no_image_is_refused(uri: str) -> None:
    async with memory_stack(Seeing()) as stack:
        message = await refused(stack, uri, "model_request_rejected")
        assert "secret" not in message
        assert uri[10:] not in message or len(uri) < 12


async def test_images_have_limits_of_bytes_and_pixels(host: ImageHost) -> None:
    limits = {"image_bytes": 2_000, "image_pixels": 10_000, "request_bytes": 3_000}
    wide = image_file("PNG", (101, 100))
    async with memory_stack(Seeing(), media=limits, network=host.network) as stack:
        assert "pixels" in await refused(stack, data_uri(wide), "model_request_rejected")
        large = data_uri(PNG + bytes(2_001 - len(PNG)))
        assert "2000 bytes" in await refused(stack, large, "model_request_rejected")
        fits = data_uri(PNG + bytes(2_000 - len(PNG)))
        assert (await chat(stack, fits)).status_code == 200
        urls = [host.gives(f"/{n}.png", PNG + bytes(1_900 - len(PNG))) for n in range(2)]
        together = await chat(stack, *urls)
        assert together.json()["error"]["code"] == "model_request_rejected"
        assert "together" in together.json()["error"]["message"]


# --- fetching ---


@pytest.mark.rule("vision.fetches-https")
async def test_a_public_url_is_fetched_once_and_judged_by_its_content(host: ImageHost) -> None:
    engine = Seeing()
    url = host.gives("/cat", PNG, **{"content-type": "text/html", "set-cookie": "a=b"})
    async with memory_stack(engine, network=host.network) as stack:
        answer = await chat(stack, url, url)
        assert answer.status_code == 200, answer.text
        assert engine.images() == [ImagePart(media_type="image/png", data=PNG)] * 2
        assert host.seen == [(HOST, "/cat")]
        (headers,) = host.headers
        assert not {"cookie", "authorization", "referer"} & set(headers)
        assert headers["accept-encoding"] == "identity"


@pytest.mark.rule("vision.messages-url")
async def test_messages_fetches_urls_too(host: ImageHost) -> None:
    engine = Seeing()
    url = host.gives("/cat.png", PNG)
    async with memory_stack(engine, network=host.network) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=20) as http:
            answer = await http.post("/v1/messages", json=messages_body(url))
            assert answer.status_code == 200, answer.text
            assert engine.images() == [ImagePart(media_type="image/png", data=PNG)]
            missing = await http.post("/v1/messages", json=messages_body(f"https://{HOST}/no"))
            private = await http.post("/v1/messages", json=messages_body("https://10.0.0.1/"))
        assert missing.json()["error"]["code"] == "model_request_rejected"
        assert private.json()["error"]["code"] == "unsupported_value"
        for answer in (missing, private):
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages[0].content[0].source.url"


async def test_a_redirect_is_followed_to_a_public_place(host: ImageHost) -> None:
    engine = Seeing()
    host.gives("/cat.png", PNG)
    host.redirects("/once", "https://cdn.example/twice", 301)
    host.redirects("/twice", "cat.png", 307)
    async with memory_stack(engine, network=host.network) as stack:
        answer = await chat(stack, f"https://{HOST}./once")
        assert answer.status_code == 200, answer.text
    assert [path for _, path in host.seen] == ["/once", "/twice", "/cat.png"]
    assert host.network.asked == [HOST, "cdn.example", "cdn.example"]


PRIVATE = [
    "http://[::ffff:10.0.0.1]/a.png",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://[::1]/",
    "http://[64:ff9b::10.0.0.1]/",
    "http://100.64.0.1/",
    "http://localhost./",
    "http://user@10.1.2.3/",
    "http://169.254.169.254/latest/meta-data/",
    "https://[::ffff:10.0.0.1]/a.png",
    "https://[::ffff:a00:1]/a.png",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://[::1]/",
    "https://[::]/",
    "https://[64:ff9b::10.0.0.1]/",
    "https://[fe80::1]/",
    "https://[2002:a00:1::]/",
    "https://100.64.0.1/",
    "https://0/",
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST/",
    "https://user@10.1.2.3/",
    "https://10.0.0.1:8443/",
    "https://①②⑦.⓪.⓪.①/",
    "https://mapped.example/",
    "https://mixed.example/",
    "https://metadata.example/",
]
NO_URLS = [
    "",
    " ",
    "cat.png",
    "/etc/passwd",
    "file:///etc/passwd",
    "ftp://pics.example/cat.png",
    "http://pics.example/cat.png",
    "gopher://pics.example/",
    "//pics.example/cat.png",
    "https://",
    "https:///cat.png",
    "https://[::1/",
    "https://pics.example:99999/",
    "https://user:password@pics.example/cat.png",
    "https://@:@/",
    "javascript:alert(1)",
]


def with_private_names(host: ImageHost) -> None:
    host.network.names |= {
        "mapped.example": [PUBLIC, "::ffff:192.168.0.9"],
        "mixed.example": [PUBLIC, "10.0.0.5"],
        "metadata.example": ["169.254.169.254"],
    }


@pytest.mark.rule("vision.private-urls")
async def test_private_and_local_places_are_never_asked(host: ImageHost) -> None:
    with_private_names(host)
    async with memory_stack(Seeing(), network=host.network) as stack:
        for url in (*PRIVATE, *NO_URLS):
            message = await refused(stack, url, "unsupported_value")
            assert len(url) < 2 or url not in message
    assert host.seen == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.rule("vision.private-urls")
async def test_a_redirect_is_checked_like_the_first_url(host: ImageHost, status: int) -> None:
    with_private_names(host)
    targets = [PRIVATE[9], "file:///etc/passwd", f"http://{HOST}/cat.png", "//localhost/"]
    async with memory_stack(Seeing(), network=host.network) as stack:
        for target in (*targets, *(PRIVATE if status == 302 else ())):
            url = host.redirects("/cat.png", target, status)
            message = await refused(stack, url, "unsupported_value")
            assert "secret" not in message
            assert {path for _, path in host.seen} == {"/cat.png"}


@pytest.mark.rule("vision.fetch-failure")
async def test_what_cannot_be_fetched_is_refused(host: ImageHost) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text="a secret of the server")

    async def packed(_: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(PNG), headers={"content-encoding": "gzip"})

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(PNG)
        assert request.transport is not None
        request.transport.abort()
        return response

    for hop in range(11):
        host.redirects(f"/hop{hop}", f"/hop{hop + 1}")
    host.redirects("/loop", "/loop")
    host.network.names["nowhere.example"] = []
    host.gives("/cat.png", PNG)
    urls = [
        host.answers("/forbidden", fail),
        host.answers("/packed", packed),
        host.answers("/cut", cut),
        host.gives("/page", b"<html>a secret of the server</html>"),
        host.gives("/empty", b""),
        host.redirects("/port", f"https://{HOST}:8443/cat.png"),
        f"https://{HOST}:8443/cat.png",
        f"https://{HOST}/hop0",
        f"https://{HOST}/loop",
        "https://unknown.example/cat.png",
        "https://nowhere.example/cat.png",
        "https://stranger.example/cat.png",
    ]
    async with memory_stack(Seeing(), network=host.network) as stack:
        for url in urls:
            for stream in (False, True):
                message = await refused(stack, url, "model_request_rejected", stream=stream)
                assert "secret" not in message
                assert url not in message
    assert len([path for _, path in host.seen if path.startswith("/hop")]) == 2 * 6
    assert "stranger.example" not in {name for name, _ in host.seen}


@pytest.mark.parametrize("declared", [True, False])
async def test_a_fetch_ends_at_the_size_limit(host: ImageHost, declared: bool) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        headers = {"content-length": "300000000"} if declared else {}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while sent < 300_000_000:
            await response.write(bytes(1 << 16))
            await asyncio.sleep(0)  # lets the server see that the client has left
            sent += 1 << 16
        return response

    url = host.answers("/endless", endless)
    limits = {"image_bytes": 1_000_000}
    async with memory_stack(Seeing(), network=host.network, media=limits) as stack:
        assert "1000000 bytes" in await refused(stack, url, "model_request_rejected")
    async with asyncio.timeout(5):
        await until(lambda: host.left.is_set() or sent < 300_000_000)
    assert sent < 100_000_000


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fetch_ends_at_the_time_limit(host: ImageHost, stream: bool) -> None:
    """With a status, although a stream would otherwise have begun by then."""
    url = host.answers("/trickle", trickle)
    settings = {"media": {"fetch_s": 0.3}, "limits": {"commit_s": 0.05}}
    async with memory_stack(Seeing(), network=host.network, **settings) as stack:
        assert "in time" in await refused(stack, url, "model_request_rejected", stream=stream)
        assert stack.services.admission.in_flight == 0
        async with asyncio.timeout(5):
            await host.left.wait()


async def test_a_client_that_leaves_ends_the_fetch(host: ImageHost) -> None:
    url = host.answers("/trickle", trickle)
    async with memory_stack(Seeing(), network=host.network) as stack:
        asking = asyncio.create_task(chat(stack, url))
        await until(lambda: host.seen)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(5):
            await host.left.wait()
        await until(lambda: stack.services.admission.in_flight == 0)


async def test_one_bad_image_ends_the_others_fetches(host: ImageHost) -> None:
    slow = host.answers("/trickle", trickle)
    async with memory_stack(Seeing(), network=host.network) as stack:
        answer = await chat(stack, slow, "https://localhost/")
        error = answer.json()["error"]
        assert error["code"] == "unsupported_value"
        assert error["param"] == "messages[0].content[2].image_url.url"


async def test_fetches_are_bounded_in_number_and_at_once(host: ImageHost) -> None:
    running = most = 0
    gate = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return web.Response(body=PNG)

    urls = [host.answers(f"/{n}.png", slow) for n in range(6)]
    limits = {"fetches": 5, "concurrent_fetches": 2}
    async with memory_stack(Seeing(), network=host.network, media=limits) as stack:
        too_many = await chat(stack, *urls)
        assert too_many.json()["error"]["code"] == "model_request_rejected"
        assert host.seen == []
        asking = asyncio.create_task(chat(stack, *urls[:5]))
        await until(lambda: running == 2)
        gate.set()
        assert (await asking).status_code == 200
        assert most == 2


async def test_every_checked_address_may_be_connected_to_and_no_other(host: ImageHost) -> None:
    """A host that is an address already is connected to as it was checked."""
    host.gives("/cat.png", PNG)
    async with memory_stack(Seeing(), network=host.network) as stack:
        assert (await chat(stack, "https://cdn.example/cat.png")).status_code == 200
        # Nothing but the test's own port may be reached, so the literal address is not.
        for literal in (PUBLIC, f"[{PUBLIC_6}]", "1572394766"):
            await refused(stack, f"https://{literal}/cat.png", "model_request_rejected")


@pytest.mark.rule("vision.data-uri", "messages.tool-result")
async def test_a_picture_in_the_result_of_a_call_is_seen_as_one() -> None:
    data = base64.b64encode(PNG).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    call = {"type": "tool_use", "id": "toolu_7", "name": "shot", "input": {}}
    seen = [{"type": "text", "text": "screen 1"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "toolu_7", "content": seen}
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 5,
        "tools": [{"name": "shot", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "What is it?"}]},
        ],
    }
    for vision in (True, False):
        engine = Seeing(vision=vision)
        async with (
            memory_stack(engine) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
        ):
            answer = await http.post("/v1/messages", json=body)
            plain = await http.post("/v1/messages", json={**body, "messages": body["messages"][:1]})
            assert plain.status_code == 200, plain.text
        if not vision:
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "model_request_rejected"
            assert data not in answer.text
            continue
        assert answer.status_code == 200, answer.text
        prompt = engine.jobs[0].prompt
        assert isinstance(prompt, ChatPrompt)
        roles = [message.role for message in prompt.messages]
        assert roles == ["user", "assistant", "tool", "user"]
        told = prompt.messages[2]
        assert told.tool_call_id == "toolu_7"
        assert told.parts == (
            TextPart(text="screen 1"),
            ImagePart(media_type="image/png", data=PNG),
        )


# --- models without vision, counting ---


@pytest.mark.rule("vision.text-models")
async def test_models_without_vision_never_have_images_fetched(host: ImageHost) -> None:
    url, engine = host.gives("/cat.png", PNG), Seeing(vision=False)
    async with memory_stack(engine, network=host.network) as stack:
        answer = await chat(stack, url)
        assert answer.status_code == 200, answer.text
        assert engine.images() == []
        async with httpx.AsyncClient(base_url=stack.url, timeout=20) as http:
            refusal = await http.post("/v1/messages", json=messages_body(url))
        assert refusal.status_code == 400
        assert refusal.json()["error"]["code"] == "model_request_rejected"
    assert host.seen == []


@pytest.mark.rule("vision.tokens-count", "counting.equals-usage")
async def test_images_count_as_in_the_real_request(host: ImageHost) -> None:
    url = host.gives("/cat.png", PNG)
    async with (
        memory_stack(Seeing(), network=host.network) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=20) as http,
    ):
        body = messages_body(url)
        text = {**body, "messages": [{"role": "user", "content": "x"}]}
        counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
        usage = (await http.post("/v1/messages", json=body)).json()["usage"]
        alone = (await http.post("/v1/messages/count_tokens", json=text)).json()
        assert counted["input_tokens"] == usage["input_tokens"] > alone["input_tokens"]
        broken = await http.post(
            "/v1/messages/count_tokens", json=messages_body("https://localhost/")
        )
        assert broken.json()["error"]["code"] == "unsupported_value"
