"""The Dockerfiles have nothing that a linter of such would say, and name what they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))


def test_a_linter_has_nothing_to_say() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [linter, "--no-color", *FILES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0
    assert len(FILES) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_says_what_it_is_and_its_base_can_be_pinned(path: Path) -> None:
    text = path.read_text()
    name = path.name.removesuffix(".Dockerfile")
    assert f'image.title="headrace-{name}"' in text
    bases = re.findall(r"^FROM (\S+)", text, re.M)
    arguments = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", text, re.M))
    assert {base.strip("${}") for base in bases} == set(arguments)
    for image in arguments.values():
        assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", image), "a version, never latest"


def test_bills_of_materials_are_made_of_what_the_images_install() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nsbom:")[1].split("\nclean:")[0]
    for path in FILES:
        name = path.name.removesuffix(".Dockerfile")
        (line,) = (line for line in recipe.splitlines() if f"headrace-{name}.cdx.json" in line)
        locks = re.findall(r"(?:requirements|deploy)/[\w/.]+\.txt", line)
        assert locks
        for lock in locks:
            assert (ROOT / lock).exists()
    assert "requirements/core.txt" in recipe
