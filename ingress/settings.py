"""The ingress's settings, parsed once and passed down.

Times are durations in seconds, sizes are bytes. Limits follow the public API's time-limit table.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ingress.config import Config
from ingress.dialects.profile import ProfileName
from ingress.idempotency.settings import IdempotencySettings


class TimeLimits(BaseModel):
    """How long each phase of a request may last.

    Attributes:
        queue_wait_s: Until a worker takes the Job.
        first_token_s: From when a worker took the Job to the first token, plus one second per 2,000
            prompt tokens.
        stall_s: Between tokens; a worker that has none for longer counts as lost.
        silence_s: Between signs of life of a worker; they come every second.
        last_words_s: How long a worker that seems lost has to show that it is not.
        retry_s: How long a request is given to one worker after another without any progress.
        total_s: The whole request.
        last_figure_s: How long the worker of a cancelled request has to say what it has generated;
            nobody waits for that but the record of it.
        commit_after_accept_s: A stream's status line leaves this long after a worker accepted the
            Job, or with the first token, whichever comes first.
        commit_s: A stream's status line leaves this long after arrival in any case.
        keep_alive_s: Silence after which a stream gets a sign of life.
        write_s: How long a reader may take nothing before the stream is given up.
        body_s: Silence while the request body is uploaded.
        upload_s: The whole upload.
        file_upload_s: The upload of a whole file.
        count_s: How long a worker may take to count a prompt before it is estimated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue_wait_s: float = Field(default=60.0, gt=0)
    first_token_s: float = Field(default=120.0, gt=0)
    stall_s: float = Field(default=60.0, gt=0)
    silence_s: float = Field(default=10.0, gt=0)
    last_words_s: float = Field(default=0.3, gt=0)
    retry_s: float = Field(default=120.0, gt=0)
    total_s: float = Field(default=3600.0, gt=0)
    last_figure_s: float = Field(default=1.0, ge=0)
    commit_after_accept_s: float = Field(default=1.0, ge=0)
    commit_s: float = Field(default=10.0, ge=0)
    keep_alive_s: float = Field(default=15.0, gt=0)
    write_s: float = Field(default=60.0, gt=0)
    body_s: float = Field(default=60.0, gt=0)
    upload_s: float = Field(default=600.0, gt=0)
    file_upload_s: float = Field(default=3600.0, gt=0)
    count_s: float = Field(default=2.0, gt=0)


class LimitSettings(BaseModel):
    """How the limits of accounts are held, over all processes.

    Attributes:
        hold_s: After so long what a killed process had reserved is free again.
        wait_s: How long a request waits for the ledger before this process decides by itself.
        retry_s: Pause between attempts to reach a ledger that is away.
        gather_s: The least time between two exchanges with a ledger in a database.
        tell_within_s: How long what was used may wait to be told to it, if nobody waits for that.
        pocket_s: How long a process keeps what it has reserved in advance before it tells what
            became of it; 0 to reserve nothing in advance.
        window_s: What limits by the minute are about.
        output_tokens: Reserved for each answer of a request that sets no limit of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hold_s: float = Field(default=10.0, gt=0)
    wait_s: float = Field(default=1.0, gt=0)
    retry_s: float = Field(default=1.0, gt=0)
    gather_s: float = Field(default=0.02, ge=0)
    tell_within_s: float = Field(default=0.2, ge=0)
    pocket_s: float = Field(default=1.0, ge=0)
    window_s: float = Field(default=60.0, gt=0)
    output_tokens: int = Field(default=1024, gt=0)


class MediaLimits(BaseModel):
    """What the images of a request may cost.

    Attributes:
        image_bytes: Of one image.
        image_pixels: Of one image; what it takes once it is decoded.
        request_bytes: Of all fetched images of a request.
        fetches: How many different images a request may have fetched.
        fetch_s: How long fetching all of them may take.
        redirects: How many a fetch follows.
        concurrent_fetches: At once in this process; further ones wait.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_bytes: int = Field(default=20_000_000, gt=0)
    image_pixels: int = Field(default=50_000_000, gt=0)
    request_bytes: int = Field(default=50_000_000, gt=0)
    fetches: int = Field(default=50, ge=0)
    fetch_s: float = Field(default=10.0, gt=0)
    redirects: int = Field(default=5, ge=0)
    concurrent_fetches: int = Field(default=32, gt=0)


class IngressSettings(BaseModel):
    """Everything an ingress needs to know.

    Attributes:
        model: Public id that is served even while no worker has been heard of.
        config: What the configuration file says.
        api_keys: Accepted keys beside those of the file.
        admin_key: Of those who change accounts; None for nobody.
        console_key: Of those who may look at the console; None: only who is on this machine.
        max_body_bytes: Bodies of this size and above are refused.
        max_file_bytes: Files may have this size.
        max_batch_body_bytes: Bodies of message batches of this size and above are refused.
        max_unfinished_batches: Of one account, of both shapes together.
        public_url: Where clients reach this service, for links to it; None leaves it to what their
            requests tell.
        max_concurrent: Requests in flight in this process.
        max_queued: Requests of one model that wait for a worker, in this process.
        max_queued_tokens: Tokens of the prompts of those that wait, about.
        grace_s: How long running streams may go on after SIGTERM.
        usage_log: File that records of usage are appended to.
        usage_days: How long they are kept in the database of a process that runs batches too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    model: str | None = None
    config: Config = Config()
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    admin_key: str | None = Field(default=None, repr=False)
    console_key: str | None = Field(default=None, repr=False)
    profile: ProfileName = "wafer"
    max_body_bytes: int = Field(default=50_000_000, gt=0)
    max_file_bytes: int = Field(default=512_000_000, gt=0)
    max_batch_body_bytes: int = Field(default=256_000_000, gt=0)
    max_unfinished_batches: int = Field(default=100, gt=0)
    public_url: str | None = None
    max_concurrent: int = Field(default=4096, gt=0)
    max_queued: int = Field(default=1000, gt=0)
    max_queued_tokens: int = Field(default=8_000_000, gt=0)
    grace_s: float = Field(default=120.0, ge=0)
    usage_log: Path | None = None
    usage_days: int = Field(default=400, gt=0)
    limits: TimeLimits = TimeLimits()
    accounting: LimitSettings = LimitSettings()
    media: MediaLimits = MediaLimits()
    idempotency: IdempotencySettings = IdempotencySettings()


def data_dir() -> Path:
    """Where a user's own service keeps files and batches."""
    base = os.environ.get("XDG_DATA_HOME")  # noqa: TID251 - this is settings.py
    return (Path(base) if base else Path.home() / ".local" / "share") / "headrace"
