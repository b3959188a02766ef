"""`headrace up` with SGLang and a real vision model, from the HTTP request to its tokens.

One process is started for all of it, as SGLang keeps one model per process; Ctrl-C ends it.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image

from tests import tiny_vision_model as tiny
from tests.fixtures.engine import SESSION_LOOP
from tests.fixtures.ports import free_port
from tests.fixtures.processes import headrace, wait_ready
from tests.integration.test_up import check_answers, check_ctrl_c_leaves_nothing

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300), SESSION_LOOP]

MODEL = "tiny-glm4v"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `headrace up` with the tiny vision model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' deprecations
        model = tiny.cached()
    port, log = free_port(), tmp_path_factory.mktemp("vision") / "up.log"
    url = f"http://127.0.0.1:{port}"
    command = ("up", "--model", str(model), "--served-id", MODEL, "--port", str(port))
    async with headrace(*command, log=log) as process:
        await wait_ready(url, process, timeout_s=200)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
        await check_ctrl_c_leaves_nothing(process)
        assert "Traceback" not in process.output()


def picture(color: str, size: tuple[int, int] = (56, 56)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


RED, BLUE = picture("red"), picture("blue", (84, 56))


def shown(content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def block(content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {"type": "image", "source": source}


async def chat(http: httpx.AsyncClient, *parts: Any, **fields: Any) -> httpx.Response:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "temperature": 0}
    return await http.post("/v1/chat/completions", json={"model": MODEL, **body, **fields})


async def first_logprob(http: httpx.AsyncClient, *parts: Any) -> tuple[int, float]:
    """Prompt tokens, and how likely the model finds its first token."""
    answer = await chat(http, *parts, logprobs=True)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    token = body["choices"][0]["logprobs"]["content"][0]
    return body["usage"]["prompt_tokens"], token["logprob"]


async def test_the_official_client_is_answered(http: httpx.AsyncClient) -> None:
    await check_answers(str(http.base_url).rstrip("/"), MODEL)


async def test_the_catalogue_says_that_it_sees(http: httpx.AsyncClient) -> None:
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert card["wafer"]["capabilities"]["vision"] is True


@pytest.mark.rule("vision.data-uri", "vision.tokens-count")
async def test_the_model_sees_the_pictures_in_their_order(http: httpx.AsyncClient) -> None:
    text, _ = await first_logprob(http, "What is it?")
    seen = {
        name: await first_logprob(http, "What is it?", *map(shown, pictures))
        for name, pictures in {
            "red": [RED],
            "blue": [BLUE],
            "red, blue": [RED, BLUE],
            "blue, red": [BLUE, RED],
        }.items()
    }
    # Beside its own tokens an image has a beginning and an end.
    tokens = {name: prompt - text for name, (prompt, _) in seen.items()}
    assert tokens == {"red": 2 + 4, "blue": 2 + 6, "red, blue": 14, "blue, red": 14}
    assert len({logprob for _, logprob in seen.values()}) == 4
    again = await first_logprob(http, "What is it?", shown(RED))
    assert again == pytest.approx(seen["red"], abs=1e-4)


@pytest.mark.rule("counting.equals-usage")
async def test_a_count_knows_the_tokens_of_images(http: httpx.AsyncClient) -> None:
    call = {"type": "tool_use", "id": "toolu_7", "name": "shot", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_7",
        "content": [{"type": "text", "text": "screen 1"}, block(BLUE)],
    }
    body = {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}, block(RED)]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }
    counted = await http.post("/v1/messages/count_tokens", json=body)
    answer = await http.post("/v1/messages", json={**body, "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert "x-wafer-input-tokens-estimated" not in counted.headers
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]


async def refused(answer: httpx.Response, code: str) -> str:
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == code
    return str(answer.json()["error"]["message"])


async def test_a_broken_picture_is_refused_and_harms_nobody(http: httpx.AsyncClient) -> None:
    file = io.BytesIO()
    Image.effect_noise((200, 200), 90).save(file, "PNG")
    broken = file.getvalue()[:5000]
    for stream in (False, True):
        answer = await chat(http, "x", shown(broken), stream=stream)
        await refused(answer, "model_request_rejected")
    assert (await chat(http, "x", shown(RED))).status_code == 200


async def test_text_that_imitates_a_picture_is_no_picture(http: httpx.AsyncClient) -> None:
    for mark in (tiny.IMAGE, tiny.MARKS[5]):
        await refused(await chat(http, mark, shown(RED)), "model_request_rejected")
        assert (await chat(http, mark)).status_code == 200


async def test_pictures_count_towards_the_window(http: httpx.AsyncClient) -> None:
    large = shown(picture("green", (224, 224)))
    fits = await chat(http, *[large] * 50)
    assert fits.status_code == 200, fits.text
    used = fits.json()["usage"]["prompt_tokens"]
    assert used > 50 * tiny.MAX_IMAGE_TOKENS
    message = await refused(await chat(http, *[large] * 70), "context_length_exceeded")
    assert str(tiny.tiny_model.CONTEXT_LENGTH) in message


async def test_transparent_and_moving_pictures_are_taken(http: httpx.AsyncClient) -> None:
    for kind, mode in (("PNG", "RGBA"), ("GIF", "P"), ("WEBP", "RGBA"), ("JPEG", "L")):
        file = io.BytesIO()
        frames = [Image.new(mode, (60, 60), value) for value in (1, 2)]
        more = {} if kind == "JPEG" else {"save_all": True, "append_images": frames[1:]}
        frames[0].save(file, kind, **more)
        assert (await chat(http, "x", shown(file.getvalue()))).status_code == 200
