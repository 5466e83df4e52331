"""What the app asks of the daemon and of the library. It knows no widget, and nothing in it blocks the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from edgellm.client import GLANCE_S, DaemonClient, DaemonGone
from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import EdgeError
from edgellm.library.catalogue import STARTER, Catalogue, CatalogueEntry
from edgellm.library.latest import remember
from edgellm.library.manifest import Manifest
from edgellm.library.names import parse_name
from edgellm.library.store import Store
from edgellm.paths import Paths
from edgellm_tui.threads import in_thread


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be chosen. `here`: it is in the store; otherwise the catalogue knows it."""

    name: str
    title: str
    size: int  # bytes
    quantization: str
    context: int  # tokens; 0: not known
    licence: str
    parameters: int = 0  # 0: not known
    here: bool = True
    loaded: bool = False
    chats: bool = True


class Bridge:
    """One per app. `close` it."""

    def __init__(self, paths: Paths, settings: Settings) -> None:
        self.paths = paths
        self._settings = settings
        self._client: DaemonClient | None = None
        self._connecting = asyncio.Lock()

    async def answer(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Stream an answer; the daemon is started where there is none. Whatever goes wrong comes as `Failed`.

        Closing the iterator, or cancelling the task that waits for it, cancels the request.
        """
        await in_thread(lambda: remember(self.paths, request.model))
        for last_try in (False, True):
            try:
                client, fresh = await self._connected(request.model)
            except EdgeError as error:
                yield Failed(error.info)
                return
            begun = False
            async with aclosing(client.stream(request)) as events:
                async for event in events:
                    if isinstance(event, Failed) and event.error.code == DaemonGone.code:
                        self._forget(client)
                        if not (begun or fresh or last_try):
                            break  # it has left since the last question: start another
                    begun = True
                    yield event
                else:
                    return

    async def models(self) -> list[Model]:
        """What is here, the latest used first; then what the catalogue offers, the smallest first.

        Those whose size nobody knows come last.
        """
        return await in_thread(lambda: listed(self.paths, self._loaded()))

    async def named(self, name: str) -> str:
        """The full name of the model that is meant. Raises InvalidName, NotFound with the way to get it, …"""
        manifest = await in_thread(lambda: Store(self.paths).require(name))
        return str(manifest.full_name)

    async def chats(self, name: str) -> bool:
        """Whether the model takes a conversation; one that does not only continues a text. Raises NotFound, …"""
        manifest = await in_thread(lambda: Store(self.paths).require(name))
        return manifest.summary.has_chat_template

    async def quantization(self, name: str) -> str:
        """The tensor type of a model that is here; empty for one that is not, or cannot be read."""
        try:
            return (await in_thread(lambda: Store(self.paths).require(name))).summary.quantization
        except EdgeError:
            return ""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # -- parts -----------------------------------------------------------------------------------------

    async def _connected(self, model: str) -> tuple[DaemonClient, bool]:
        """The daemon, and whether it has been asked nothing yet."""
        async with self._connecting:
            if self._client is not None:
                return self._client, False
            self._client = await in_thread(
                lambda: DaemonClient.connect_or_start(self.paths, self._settings, preload=model)
            )
            return self._client, True

    def _forget(self, client: DaemonClient) -> None:
        if self._client is client:
            self._client = None
        client.close()

    def _loaded(self) -> set[str]:
        """Names of the models in memory. No daemon, or one in trouble, is no news here."""
        try:
            client = DaemonClient.find(self.paths, patience_s=GLANCE_S)
            if client is None:
                return set()
            with client:
                return {model.name for model in client.ps() if model.state == "ready"}
        except EdgeError:
            return set()


def listed(paths: Paths, loaded: set[str]) -> list[Model]:
    """All models that can be chosen. Raises ConfigError for a broken catalogue."""
    store = Store(paths)
    manifests = [manifest for manifest in store.list() if not manifest.summary.embeds]
    used = {manifest.full_name: store.last_used(manifest.full_name) for manifest in manifests}
    manifests.sort(key=lambda manifest: used[manifest.full_name] or manifest.created, reverse=True)
    here = {manifest.full_name for manifest in manifests}
    others = [
        entry
        for entry in Catalogue.load(paths).entries()
        if entry.name not in here and tuple(entry.capabilities) != ("embeddings",)
    ]
    return [
        *(_stored(manifest, str(manifest.full_name) in loaded) for manifest in manifests),
        *(_offered(entry) for entry in sorted(others, key=lambda entry: (not entry.size, entry.size))),
    ]


def offered(paths: Paths, name: str = STARTER) -> Model | None:
    """What the catalogue has by that name or alias."""
    entry = Catalogue.load(paths).get(parse_name(name))
    return _offered(entry) if entry is not None else None


def _stored(manifest: Manifest, loaded: bool) -> Model:
    summary = manifest.summary
    return Model(
        name=str(manifest.full_name),
        title=manifest.title or summary.name,
        size=manifest.size,
        quantization=summary.quantization,
        context=summary.context,
        licence=manifest.licence,
        parameters=summary.parameters,
        loaded=loaded,
        chats=summary.has_chat_template,
    )


def _offered(entry: CatalogueEntry) -> Model:
    return Model(
        name=str(entry.name),
        title=entry.title,
        size=entry.size,
        quantization=entry.quantization,
        context=entry.context,
        licence=entry.licence,
        here=False,
    )
