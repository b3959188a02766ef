"""The images of a prompt in SGLang's terms.

SGLang takes token ids with one marker per image, and puts as many tokens in a marker's place as the
image has. It finds the markers in the ids' text: what a caller writes must not look like one. What
it would fail over is found here first, as its errors quote what they failed over.

Source: `sglang.srt.multimodal.processors.base_processor`, version 0.5.23.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from PIL import ExifTags, Image, ImageOps

from schemas.errors import ModelRequestRejected
from schemas.message import ImagePart

_SIDEWAYS: Final = (5, 6, 7, 8)
"""Orientations, as Exif numbers them, for which an image is shown with its sides exchanged."""


class _Size(NamedTuple):
    """As much of an image as SGLang looks at to count its tokens."""

    width: int
    height: int

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height


class Vision:
    """How a model's prompts hold images.

    Args:
        processor: SGLang's own for this model.
        tokenizer: The model's.

    Attributes:
        marker: What the chat template writes in an image's place; None if unknown.
    """

    def __init__(self, processor: Any, tokenizer: Any) -> None:
        self._processor = processor
        self._tokenizer = tokenizer
        self._tokens: Any = getattr(processor, "mm_tokens", None)
        marker = getattr(self._tokens, "image_token", None)
        self.marker: str | None = marker if isinstance(marker, str) else None

    def open(self, images: Sequence[ImagePart]) -> list[Image.Image]:
        """Decode images, of each its first frame, as people see them: upright, and on white.

        CPU work: milliseconds per megapixel.

        Raises:
            ModelRequestRejected: One is broken.
        """
        return [_decoded(image) for image in images]

    def prompt_tokens(self, prompt_ids: Sequence[int], images: Sequence[ImagePart]) -> int | None:
        """How long the prompt is with its images; None if only SGLang can tell.

        Raises:
            ModelRequestRejected: One is no image, or the prompt has not one marker for each.
        """
        self._check_markers(prompt_ids, len(images))
        sizes = [_size(image) for image in images]
        marker_id = getattr(self._tokens, "image_token_id", None)
        counts: Sequence[int]
        if marker_id is None or prompt_ids.count(marker_id) != len(images):
            return None
        try:
            counts = self._processor.resolve_image_token_counts(sizes)
        except Exception:  # not every model's processor can tell, and none says so in the same way
            return None
        return len(prompt_ids) - len(images) + sum(counts)

    def _check_markers(self, prompt_ids: Sequence[int], images: int) -> None:
        if self._tokens is None or self.marker is None:
            return
        text = self._tokenizer.decode(list(prompt_ids))
        pieces = re.split(self._tokens.get_combined_regex(), text)
        kinds = [kind for kind in map(self._tokens.get_modality_of_token, pieces) if kind]
        if len(kinds) != images or any(kind.name != "IMAGE" for kind in kinds):
            raise ModelRequestRejected(
                "The text of this conversation holds the model's own mark for an image.",
                param="messages",
            )


def _opened(image: ImagePart) -> Image.Image:
    try:
        return Image.open(io.BytesIO(image.data))
    except Exception:  # its parsers raise whatever they stumble over, and may quote it
        raise _broken() from None


def _size(image: ImagePart) -> _Size:
    """No pixel is decoded for it."""
    try:
        with _opened(image) as opened:
            width, height = opened.size
            # Of a PNG file the rest may hold the orientation, too; all of it would be decoded.
            if (opened.format != "PNG" or "exif" in opened.info) and (
                opened.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
            ):
                return _Size(height, width)
            return _Size(width, height)
    except Exception:
        raise _broken() from None


def _decoded(image: ImagePart) -> Image.Image:
    try:
        with _opened(image) as opened:
            upright = ImageOps.exif_transpose(opened)
            if not upright.has_transparency_data:
                return upright.convert("RGB")
            layer = upright.convert("RGBA")
            flat = Image.new("RGB", layer.size, "white")
            flat.paste(layer, mask=layer)
            return flat
    except Exception:
        raise _broken() from None


def _broken() -> ModelRequestRejected:
    return ModelRequestRejected("An image of this request cannot be decoded.", param="messages")
