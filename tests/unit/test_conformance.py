"""Every documented rule has a test that names it, and the page in docs says so."""

from tests.conformance import PAGE, page, proofs, rule_ids


def test_every_rule_has_a_test() -> None:
    assert not sorted(rule_ids() - set(proofs()))


def test_tests_name_only_rules_that_exist() -> None:
    assert not sorted(set(proofs()) - rule_ids())


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.conformance"
