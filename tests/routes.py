"""Every route there is, from the application's own table."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of each."""
    found: list[tuple[str, str]] = []

    def walk(routes: Any) -> None:
        for route in routes:
            inner = getattr(getattr(route, "original_router", route), "routes", None)
            if inner is not None:
                walk(inner)
            else:
                found.extend((method, route.path) for method in route.methods)

    walk(app.routes)
    return found
