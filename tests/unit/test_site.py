"""The site of the documentation builds, hangs together, and needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.pages import (
    DOCS,
    README,
    ROOT,
    anchors,
    blocks,
    links,
    name_of,
    navigation,
    pages,
)


def test_every_page_is_in_the_navigation_once() -> None:
    there = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(navigation()) == there


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        # The site has nothing but its own directory.
        assert page == README or target.is_relative_to(DOCS), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """So that none escapes the tests that run what it is."""
    known = {"sh", "python", "json", "yaml", "text", "sse", "http"}
    assert not [str(block) for block in blocks(page) if block.language not in known]


def test_it_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    for name in navigation():
        page = (tmp_path / "site" / name).with_suffix(".html").read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"?([^\">\s]+)", page)
        loaded += re.findall(r"<link\b[^>]*?\bhref=\"?([^\">\s]+)", page)
        assert len(loaded) > 2
        assert not [url for url in loaded if re.match(r"(?:\w+:)?//", url)], name
    styles = [*(tmp_path / "site").rglob("*.css")]
    assert styles
    for style in styles:
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style
