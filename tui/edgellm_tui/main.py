"""The entry point: `edgellm chat` and plain `edgellm` find it by name and call it."""

from __future__ import annotations

from edgellm.config import Settings, load_settings
from edgellm.errors import EdgeError, NotFound
from edgellm.library.catalogue import STARTER
from edgellm.library.latest import latest
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths
from edgellm_tui.bridge import Model, listed, offered
from edgellm_tui.history import History
from edgellm_tui.trouble import log_of, record


def launch(name: str | None) -> None:
    """Chat in this terminal until the user leaves. `name`: the model to ask, the one talked to last by default.

    Raises EdgeError: what stands in the way before the screen is taken, and what ended the app.
    """
    paths = default_paths()
    settings = load_settings(paths, {}).settings
    history = History(paths.history)
    try:
        _chat(paths, settings, history, name)
    finally:
        history.close()


def _chat(paths: Paths, settings: Settings, history: History, name: str | None) -> None:
    model, offer = first(paths, name)
    from edgellm_tui.app import ChatApp
    from edgellm_tui.calm import settle

    app = ChatApp(paths, settings, history, model, offer)
    settle()
    app.run()
    if app.failure is not None:
        record(paths, app.failure)
        raise EdgeError(
            f"the chat ended with an internal error: {type(app.failure).__name__}: {app.failure}",
            hint=f"your conversations are kept; `edgellm chat` goes on. What happened is in {log_of(paths)}",
        ) from app.failure


def first(paths: Paths, name: str | None) -> tuple[Model | None, Model | None]:
    """Whom to ask, or else what to offer. Raises InvalidName, NotFound, … for a name that is neither."""
    here = [model for model in listed(paths, set()) if model.here]
    if name is None:
        # The latest used comes first among those here; what only continues text is chosen by name, or where all do.
        usual = next((model for model in here if model.chats), here[0] if here else None)
        kept = latest(paths)
        chosen = next((model for model in here if model.name == kept), usual)
        return (chosen, None) if chosen is not None else (None, offered(paths, STARTER))
    try:
        wanted = str(Store(paths).require(name).full_name)
    except NotFound:
        offer = offered(paths, name)
        if offer is None:
            raise
        return None, offer
    return next((model for model in here if model.name == wanted), None), None
