"""The page about output parsers says what the parsers do."""

from tests import parsers_page
from tests.unit.parsing.recorded import RECORDED
from workers.parsing.tools import TOOL_FORMATS


def test_the_page_is_up_to_date() -> None:
    assert parsers_page.PAGE.read_text(encoding="utf-8") == parsers_page.page(), (
        "run `python -m tests.parsers_page`"
    )


def test_every_native_format_is_held_to_the_law() -> None:
    tried = {id(TOOL_FORMATS[name]) for name in RECORDED}
    assert {id(format) for format in TOOL_FORMATS.values()} == tried
