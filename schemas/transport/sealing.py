"""Jobs and replies that nobody between ingress and worker can read, and nobody later.

A broker may write to its disk what it was told not to keep: RabbitMQ 4 does so with all but the
first messages of a classic queue. So what requires zero data retention crosses it encrypted, to
keys that exist only in the memory of running processes. Each worker has a key pair and tells the
public half with its presence; each dispatcher has a key for the bodies of Jobs, sealed once to
every worker it hears of; each Job has a key for its replies. None of them is stored or configured,
so when the processes have ended nothing that was left behind can be read again.

This keeps data from disks. It is no protection from somebody who may use the broker: whoever can
announce a worker is sent Jobs.

Source: RFC 9180 (HPKE, base mode) for the dispatcher's key; AES-GCM with random nonces for bodies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from schemas.codec import CodecError, decode_blob, encode_packed
from schemas.job import SCHEMA_VERSION, Job

_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_INFO: Final = b"headrace job key"
_KEY_BITS: Final = 256
_NONCE_BYTES: Final = 12
_KEYS_REMEMBERED: Final = 10_000
"""Dispatchers, or workers, whose keys are at hand; far more than there are at once."""


class NotForUs(Exception):
    """The Job was sealed before its dispatcher knew of this worker."""


class _SealedJob(msgspec.Struct, frozen=True, array_like=True):
    """The message of a sealed Job.

    Attributes:
        keys: Per worker its public key, and the dispatcher's key sealed to it.
        box: The Job and the key for its replies, encrypted with the dispatcher's key.
    """

    version: int
    keys: tuple[tuple[bytes, bytes], ...]
    box: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_SealedJob)


class Box:
    """Encrypts and decrypts with one key."""

    __slots__ = ("_aead", "key")

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key or AESGCM.generate_key(_KEY_BITS)
        self._aead = AESGCM(self.key)

    def close(self, data: bytes, purpose: bytes = b"") -> bytes:
        """Encrypt; `purpose` must be given again to decrypt."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, data, purpose)

    def open(self, closed: bytes, purpose: bytes = b"") -> bytes:
        """Decrypt.

        Raises:
            CodecError: It was encrypted otherwise, or changed.
        """
        try:
            return self._aead.decrypt(closed[:_NONCE_BYTES], closed[_NONCE_BYTES:], purpose)
        except (InvalidTag, ValueError):
            raise CodecError("undecodable: sealed with another key") from None


class Sealer:
    """A dispatcher's side."""

    def __init__(self) -> None:
        self._box = Box()
        self._sealed: dict[bytes, bytes] = {}

    def seal(self, job: Job, replies: Box, workers: Iterable[bytes]) -> bytes:
        """The message of a Job.

        Args:
            job: Travels whole.
            replies: What the replies will be closed with.
            workers: The public keys of those who may read it.
        """
        keys = tuple((worker, self._key_for(worker)) for worker in workers)
        box = self._box.close(replies.key + encode_packed(job))
        return _encoder.encode(_SealedJob(SCHEMA_VERSION, keys, box))

    def _key_for(self, worker: bytes) -> bytes:
        sealed = self._sealed.get(worker)
        if sealed is None:
            if len(self._sealed) >= _KEYS_REMEMBERED:
                self._sealed.clear()
            public = X25519PublicKey.from_public_bytes(worker)
            sealed = self._sealed[worker] = _SUITE.encrypt(self._box.key, public, _INFO)
        return sealed


class Opener:
    """A worker's side.

    Attributes:
        public_key: What it tells with its presence.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public_key = self._private.public_key().public_bytes_raw()
        self._boxes: dict[bytes, Box] = {}

    def open(self, body: bytes) -> tuple[Job, Box]:
        """The Job of a message, and what its replies are closed with.

        Raises:
            CodecError: The message cannot be understood.
            NotForUs: Only others can read it.
        """
        try:
            sealed = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CodecError("undecodable: no sealed Job") from None
        if sealed.version != SCHEMA_VERSION:
            raise CodecError(
                f"unknown schema version {sealed.version}; this side speaks {SCHEMA_VERSION}"
            )
        key = next((key for worker, key in sealed.keys if worker == self.public_key), None)
        if key is None:
            raise NotForUs
        opened = self._box(key).open(sealed.box)
        size = _KEY_BITS // 8
        return decode_blob(opened[size:]), Box(opened[:size])

    def _box(self, key: bytes) -> Box:
        box = self._boxes.get(key)
        if box is None:
            if len(self._boxes) >= _KEYS_REMEMBERED:
                self._boxes.clear()
            try:
                box = Box(_SUITE.decrypt(key, self._private, _INFO))
            except (InvalidTag, ValueError):
                raise CodecError("undecodable: sealed with another key") from None
            self._boxes[key] = box
        return box
