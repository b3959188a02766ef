"""Delta files and the transcripts they must become.

A Delta file holds one reply, one Delta per line. A dialect's transcript of it is what a client
reads: `<scenario>.sse` byte for byte, and `<scenario>.json`, the body of the unstreamed answer.

After a wanted change, `python -m tests.unit.dialects.transcripts <dialect>` writes them anew; the
diff is then what a reviewer reads.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import orjson

from ingress.dialects.base import Dialect, JobContext, Stamp
from ingress.dialects.registry import DIALECTS
from schemas.delta import Delta, Failed, Finished, Interrupted, TextDelta
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport
from schemas.reply import ReplyChecker

DATA = Path(__file__).parents[2] / "data"
DELTA_FILES = sorted((DATA / "deltas").glob("*.deltas.jsonl"))

CARD = ModelCard(
    id="GLM-5.3",
    context_length=131_072,
    vocab_size=151_552,
    capabilities=Capabilities(
        tools=True, reasoning=ReasoningSupport(efforts=("none", "low", "high"), default="low")
    ),
)
CONTEXT = JobContext(
    job_id="job-1", request_id="req_a1b2c3d4e5f6", now=1.0, deadline=61.0, queue_deadline=31.0
)
STAMP = Stamp(
    response_id="c3a7ac6de84a4e9eade77ab63a27a1ca",
    created=1790793243,
    model="GLM-5.3",
    request_id="req_a1b2c3d4e5f6",
)

_delta = msgspec.json.Decoder(Delta)


def scenario(path: Path) -> str:
    return path.name.removesuffix(".deltas.jsonl")


def read_deltas(path: Path) -> list[Delta]:
    """The reply in a Delta file; fails if it is not grammatical."""
    deltas = [_delta.decode(line) for line in path.read_bytes().split(b"\n") if line]
    checker = ReplyChecker(count_choices(deltas))
    for delta in deltas:
        checker.feed(delta)
        if isinstance(delta, Interrupted):
            checker.state = "idle"
    assert checker.state == "ended", f"{path.name} has no end"
    return deltas


def count_choices(deltas: Sequence[Delta]) -> int:
    return sum(isinstance(delta, Finished) for delta in deltas) or 1


def request_body(dialect: str, deltas: Sequence[Delta]) -> dict[str, object]:
    """A request whose reply could be these Deltas."""
    if dialect == "messages":
        return messages_body(deltas)
    if dialect == "responses":
        return responses_body(deltas)
    if dialect != "chat":
        raise NotImplementedError(dialect)
    tokens = [t for delta in deltas if isinstance(delta, TextDelta) for t in delta.logprobs]
    body: dict[str, object] = {
        "model": "glm-5.3",
        "messages": [{"role": "user", "content": "Go."}],
        "n": count_choices(deltas),
    }
    if tokens:
        body |= {"logprobs": True, "top_logprobs": max(len(token.top) for token in tokens)}
    return body


def messages_body(deltas: Sequence[Delta]) -> dict[str, object]:
    stops = [delta.matched for delta in deltas if isinstance(delta, Finished)]
    return {
        "model": "glm-5.3",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Go."}],
        "thinking": {"type": "enabled"},
        "stop_sequences": [stop for stop in stops if isinstance(stop, str)],
    }


def responses_body(deltas: Sequence[Delta]) -> dict[str, object]:
    tokens = [t for delta in deltas if isinstance(delta, TextDelta) for t in delta.logprobs]
    body: dict[str, object] = {"model": "glm-5.3", "input": "Go."}
    if tokens:
        body["include"] = ["message.output_text.logprobs"]
        body["top_logprobs"] = max(len(token.top) for token in tokens)
    return body


def play(dialect: Dialect, deltas: Sequence[Delta]) -> tuple[bytes, bytes]:
    """The whole stream, and the body of the unstreamed answer or of the error."""
    request = dialect.parse(request_body(dialect.name, deltas))
    job = dialect.normalise(request, CARD, CONTEXT).job
    encoder = dialect.encoder(request, job, STAMP)
    frames = [*encoder.open()]
    for delta in deltas:
        frames += encoder.feed(delta)
    last = deltas[-1]
    if isinstance(last, Failed):
        return b"".join(frames), dialect.error_body(last.error, STAMP.request_id)
    return b"".join(frames), encoder.body()


def transcript(dialect: str, path: Path, suffix: str) -> Path:
    return DATA / "transcripts" / dialect / f"{scenario(path)}{suffix}"


def delta_files(dialect: str) -> Sequence[Path]:
    """Those that can be a reply in this dialect: only some have several choices."""
    if dialect == "chat":
        return DELTA_FILES
    return [path for path in DELTA_FILES if count_choices(read_deltas(path)) == 1]


def record(dialect: str) -> None:
    for path in delta_files(dialect):
        stream, body = play(DIALECTS[dialect], read_deltas(path))
        transcript(dialect, path, ".sse").write_bytes(stream)
        pretty = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
        transcript(dialect, path, ".json").write_bytes(pretty + b"\n")


if __name__ == "__main__":
    record(sys.argv[1])
