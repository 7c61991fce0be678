"""The OpenAPI document, with the models of the bodies that routes parse themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"
_BODIES: list[type[BaseModel]] = []


def describes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that `body_of` reads."""
    _BODIES.append(model)
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document; it is made by the first request for it."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_REF)
        made["components"]["schemas"] = bodies["$defs"] | made["components"]["schemas"]
        app.openapi_schema = made
    return app.openapi_schema
