"""What SGLang's scheduler remembers of grammars stays within bounds."""

from __future__ import annotations

import pytest

from workers.engines.sglang_scheduler import MOST_GRAMMARS, forget_grammars


class Backend:
    """As SGLang's: a cache of its own, and a compiler that has one."""

    def __init__(self, grammars: int) -> None:
        import xgrammar

        tokenizer = xgrammar.TokenizerInfo([bytes([value]) for value in range(256)])
        self.cache = dict.fromkeys(range(grammars))
        self.grammar_compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1)


class ReasoningBackend:
    """As SGLang's that stands around another one."""

    def __init__(self, inner: Backend) -> None:
        self.cache = dict.fromkeys(range(3))
        self.grammar_backend = inner


def test_the_oldest_grammars_are_forgotten() -> None:
    backend = Backend(MOST_GRAMMARS + 2)
    forget_grammars(None, backend)
    assert list(backend.cache) == list(range(2, MOST_GRAMMARS + 2))


def test_a_compiler_that_holds_too_much_starts_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Backend(1)
    inner.grammar_compiler.compile_regex("[a-z]{1,50}")
    held = inner.grammar_compiler.get_cache_size_bytes()
    forget_grammars(None, ReasoningBackend(inner))
    assert inner.grammar_compiler.get_cache_size_bytes() == held > 0
    monkeypatch.setattr("workers.engines.sglang_scheduler.MOST_GRAMMAR_BYTES", held - 1)
    forget_grammars(None, ReasoningBackend(inner))
    assert inner.grammar_compiler.get_cache_size_bytes() < held
