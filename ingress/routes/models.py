"""The model catalogue.

Source: model catalogue, "OpenAI dialect". Public: answered without a key, but a key that is sent
must be valid.
"""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.generate import Services
from schemas.errors import MissingApiKey, ModelNotFound
from schemas.model_card import ModelCard


def model_routes(services: Services) -> APIRouter:
    """`/v1/models` and `/v1/models/{id}`; ids may contain slashes."""
    router = APIRouter(tags=["models"])

    def authenticate(request: Request) -> None:
        try:
            services.authenticator.authenticate(request.scope["headers"])
        except MissingApiKey:
            return

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        authenticate(request)
        return _json({"object": "list", "data": [_card(c) for c in services.catalog.models()]})

    @router.get("/v1/models/{model:path}")
    async def retrieve_model(request: Request, model: str) -> Response:
        authenticate(request)
        wanted = model.casefold()
        for card in services.catalog.models():
            if wanted in (name.casefold() for name in (card.id, *card.aliases)):
                return _json(_card(card))
        raise ModelNotFound("The requested model does not exist.", param="model")

    return router


def _card(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.context_length,
    }


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
