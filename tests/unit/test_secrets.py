"""What a search of logs takes for a secret, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import secrets

SECRETS = {
    "a key of this service": "created hr_a1B2c3D4_0123456789abcdefABCDEF0123456789",
    "a key as other services have them": '{"event":"x","key":"sk-proj-abcdef123"}',
    "a key of Amazon's": "using AKIAIOSFODNN7EXAMPLE here",
    "a bearer token": "header Authorization: Bearer abc.def",
    "a token of three parts": "t=eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig",
    "a private key": "-----BEGIN EC PRIVATE KEY-----",
    "a URL with a password": "cannot reach amqp://guest:guest@127.0.0.1:5672/",
    "a named secret": 'api_key="abcdef0123"',
    "an image or another file": "data:image/png;base64,AAAA",
    "a body": '{"event":"x","body":"{\\"messages\\":[]}"}',
    "what the scripted engine is told": "answer [[say:fine]]",
}


def test_every_shape_is_found_where_it_is(tmp_path: Path) -> None:
    assert SECRETS.keys() == secrets.SHAPES.keys()
    for what, line in SECRETS.items():
        log = tmp_path / "deep" / "some.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"a line\n{line}\n")
        found = list(secrets.search([tmp_path]))
        assert [(f.what, f.path, f.line) for f in found] == [(what, log, 2)]
        assert line not in str(found[0])


def test_what_the_service_says_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '{"request_id":"wafer_5f0c","job_id":"' + "0f" * 16 + '","input_tokens":12,"stream":true}\n'
        '{"connection":"ingress","reason":"amqp://127.0.0.1:5672/: refused"}\n'
        '{"frames":["ingress/app.py:12 build"],"event":"request.crashed"}\n'
        "  curl -sS http://127.0.0.1:8000/v1/chat/completions -d '{\"messages\": []}'\n"
    )
    assert list(secrets.search([log])) == []


@pytest.mark.rule("zdr.log-search")
def test_as_a_command_it_fails_where_it_finds_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("all is well\n")
    assert secrets.main([str(tmp_path)]) == 0
    log.write_text("password=hunter22\n")
    assert secrets.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{log}:1: a named secret\n"
