"""Where tokens begin in a text, however both are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ingress.dialects.text_offsets import TextOffsets


def offsets(*steps: str | list[bytes]) -> list[int]:
    """Offsets of the tokens; a string is text that comes before them."""
    follower, found = TextOffsets(), []
    for step in steps:
        if isinstance(step, str):
            follower.text(step)
        else:
            found += [follower.token(token) for token in step]
    return found


def test_plain_tokens() -> None:
    assert offsets("Hello", [b"Hello"], " world", [b" wor", b"ld"], "!", [b"!"]) == [0, 5, 9, 11]


def test_characters_are_counted_and_not_bytes() -> None:
    assert offsets("é🧪", ["é".encode(), "🧪".encode()], "x", [b"x"]) == [0, 1, 2]


def test_a_token_inside_a_character_is_at_that_character() -> None:
    first, second = "🧪".encode()[:2], "🧪".encode()[2:]
    assert offsets("a🧪b", [b"a", first, second, b"b"]) == [0, 1, 1, 2]
    assert offsets("a🧪", [b"a" + first, second + b"b"], "b", [b"c"]) == [0, 1, 3]


def test_text_that_comes_after_its_token() -> None:
    # "</" is held back and comes with what follows.
    assert offsets("foo", [b"foo", b"</"], "</x", [b"x", b"y"], "y") == [0, 3, 5, 6]
    assert offsets("fo", [b"foo"], "ox", [b"x"]) == [0, 3]
    assert offsets([b"ab", b"cd"], "abc", [b"e"], "de") == [0, 2, 4]


def test_tokens_without_text() -> None:
    # A special token that is skipped, and a stop string that is cut off.
    assert offsets("a", [b"a", b"<|end|>"], "b", [b"b"]) == [0, 1, 1]
    assert offsets("ab", [b"<s>", b"a", b"<sep>", b"b"]) == [0, 0, 1, 1]
    assert offsets("a", [b"a", b""], "b", [b"b"]) == [0, 1, 1]


def test_text_without_tokens() -> None:
    assert offsets("ab  cd", [b"ab", b"cd"], "e", [b"e"]) == [0, 4, 6]


def test_a_first_space_that_the_tokenizer_dropped() -> None:
    assert offsets("Hello world", [b" Hello", b" world"]) == [0, 5]


def test_after_settling_all_begins_anew() -> None:
    follower = TextOffsets()
    follower.text("prompt\ufffd")
    assert follower.token(b"prompt") == 0
    follower.token(b"\xf0\x9f")
    follower.settle()
    follower.text("answer")
    assert follower.token(b"answer") == 7


@given(st.data())
def test_every_cut_of_the_same_text_gives_the_same_offsets(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from("aé🧪 \n"), max_size=12)))
    whole = text.encode()
    edges = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=6)))
    edges = [0, *(edge for edge in edges if edge < len(whole)), len(whole)]
    tokens = [whole[a:b] for a, b in pairwise(edges) if a < b]
    starts = [sum(len(token) for token in tokens[:i]) for i in range(len(tokens))]
    expected = [len(whole[:start].decode(errors="ignore")) for start in starts]

    follower, found, sent = TextOffsets(), [], 0
    for start, token in zip(starts, tokens, strict=True):
        # The text of a token is there when the token comes, or a little later.
        complete = len(whole[: start + len(token)].decode(errors="ignore"))
        upto = data.draw(st.integers(sent, max(sent, complete)))
        follower.text(text[sent:upto])
        sent = max(sent, upto)
        found.append(follower.token(token))
    assert found == expected
