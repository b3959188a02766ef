"""Images as a model gets them: as people see them."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import ExifTags, Image

from schemas.message import ImagePart
from workers.engines.sglang_vision import Vision

RED, WHITE = (255, 0, 0), (255, 255, 255)
RGBA = Image.frombytes("RGBA", (2, 1), bytes((*RED, 255, 0, 0, 0, 0)))


def part(image: Image.Image, kind: str = "PNG", **options: Any) -> ImagePart:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return ImagePart(media_type=f"image/{kind.lower()}", data=file.getvalue())


def turned(kind: str, orientation: int) -> ImagePart:
    """Wide, and red on the left, with a note about how to show it."""
    image = Image.new("RGB", (64, 32), "white")
    image.paste("red", (0, 0, 32, 32))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return part(image, kind, exif=exif)


def seen(image: ImagePart) -> Image.Image:
    (found,) = Vision(None, None).open([image])
    assert found.mode == "RGB"
    return found


def palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, 0, 0, 0])
    image.putdata([0, 1])
    return image


@pytest.mark.parametrize(
    "image",
    [
        part(RGBA),
        part(
            Image.frombytes("RGBA", (2, 1), bytes((*RED, 255, 0, 0, 0, 0))), "WEBP", lossless=True
        ),
        part(Image.frombytes("RGB", (2, 1), bytes((*RED, 0, 0, 0))), transparency=(0, 0, 0)),
        part(palette(), transparency=1),
        part(palette(), transparency=bytes((255, 0))),
        part(palette(), "GIF", transparency=1),
    ],
)
def test_what_is_transparent_is_white(image: ImagePart) -> None:
    found = seen(image)
    assert [found.getpixel((x, 0)) for x in range(2)] == [RED, WHITE]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "size", "red"),
    [
        (1, (64, 32), (4, 16)),
        (3, (64, 32), (60, 16)),
        (6, (32, 64), (16, 4)),
        (8, (32, 64), (16, 60)),
    ],
)
def test_an_image_is_turned_as_it_is_to_be_shown(
    kind: str, orientation: int, size: tuple[int, int], red: tuple[int, int]
) -> None:
    found = seen(turned(kind, orientation))
    assert found.size == size
    pixel = found.getpixel(red)
    assert isinstance(pixel, tuple)
    assert pixel[0] > 200
    assert pixel[1] < 80


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_its_tokens_are_counted_as_it_is_shown(kind: str) -> None:
    sizes: list[tuple[int, int, tuple[int, int]]] = []

    def count(images: Any) -> list[int]:
        sizes.extend((image.height, image.width, image.size) for image in images)
        return [5]

    processor = SimpleNamespace(
        mm_tokens=SimpleNamespace(image_token_id=7), resolve_image_token_counts=count
    )
    assert Vision(processor, None).prompt_tokens([1, 7, 2], [turned(kind, 6)]) == 7
    assert sizes == [(64, 32, (32, 64))]
