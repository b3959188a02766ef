"""How this process stands, looked up among its services when somebody asks."""

from __future__ import annotations

import secrets
import socket
import time
from importlib.metadata import version
from typing import Final

import msgspec

from ingress.console.accounts import near_limits
from ingress.console.status import PodStatus, Process, Waiting
from ingress.limits.window import Window
from ingress.services import Services

_FIRST_TOKENS_TOLD: Final = 300
_TOLD_S: Final = 60.0


class Observer:
    """Looks at one process.

    Attributes:
        pod: What names it among all.
    """

    def __init__(self, services: Services, process: Process) -> None:
        self.pod = f"{socket.gethostname()}-{secrets.token_hex(2)}"
        self._services = services
        self._process = process
        self._release = version("headrace")
        self._started_at = time.time()

    def status(self) -> PodStatus:
        """How it stands now."""
        services, now = self._services, time.time()
        activity = services.activity
        requests, omitted = activity.requests()
        seen = services.limiter.seen()
        return PodStatus(
            pod=self.pod,
            process=self._process,
            release=self._release,
            at=now,
            started_at=self._started_at,
            connected=services.dispatcher.connected(),
            blocked=services.dispatcher.blocked(),
            shutting_down=services.admission.shutting_down,
            in_flight=len(requests) + omitted,
            requests=requests,
            omitted=omitted,
            waiting=tuple(map(self._with_rate, activity.waiting())),
            held=activity.held(),
            tokens=activity.tokens(),
            first_tokens=tuple(
                first for first in activity.first_tokens() if first.at > now - _TOLD_S
            )[-_FIRST_TOKENS_TOLD:],
            errors=activity.errors(),
            accounts=near_limits(
                seen,
                activity.refused(),
                {one.account_id: self._name(one.account_id) for one in seen},
                Window(length_s=services.settings.accounting.window_s),
            ),
        )

    def _name(self, account_id: str) -> str:
        account = self._services.directory.account(account_id)
        return account.name if account is not None else ""

    def _with_rate(self, waiting: Waiting) -> Waiting:
        backlog = self._services.admission.backlogs.get(waiting.model)
        if backlog is None or waiting.job_class != "interactive":
            return waiting
        return msgspec.structs.replace(waiting, rate=backlog.rate())
