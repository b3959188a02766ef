"""What XGrammar lets through for an enforceable schema obeys that schema."""

from __future__ import annotations

import json  # noqa: TID251  # the only one here that reads numbers of any size
import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.errors import RequestError
from schemas.json_schema import enforceable
from tests.fixtures.grammars import END, Allowed, byte_tokenizer, grammar_matcher
from tests.property.test_json_schema import documents
from workers.constraint import in_json

ENDS = {*b'"}]', END}
MOST_BYTES = 300


def walk(matcher: Any, chance: random.Random) -> bytes | None:
    """A text that a grammar lets through, byte by byte; None if it goes on for too long."""
    text = bytearray()
    allowing = Allowed()
    while len(text) < MOST_BYTES:
        allowed = allowing.by(matcher)
        assert allowed, text
        # Of bytes beyond ASCII it allows some sequences that are no characters.
        allowed = [token for token in allowed if token < 0x80 or token == END] or allowed
        # Ends are likelier than they would be by chance, or most texts would have none.
        ends = [token for token in allowed if token in ENDS]
        token = chance.choice(ends if ends and chance.random() < 0.4 else allowed)
        assert matcher.accept_token(token)
        if token == END:
            return bytes(text)
        text.append(token)
    return None


@settings(max_examples=40)
@given(documents(), st.integers(0, 2**32))
def test_a_text_that_decoding_lets_through_obeys_the_schema(
    document: dict[str, object], seed: int
) -> None:
    try:
        schema = enforceable(document, param="schema")
    except RequestError:
        return
    import xgrammar

    compiler = xgrammar.GrammarCompiler(byte_tokenizer(), max_threads=1, cache_enabled=False)
    grammar = compiler.compile_json_schema(
        msgspec.json.encode(in_json(schema)).decode(), any_whitespace=False
    )
    for attempt in range(4):
        text = walk(grammar_matcher(grammar), random.Random(seed + attempt))
        if text is not None:
            value = json.loads(text)
            assert Draft202012Validator(schema).is_valid(value), (schema, text)
