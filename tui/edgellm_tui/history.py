"""Conversations on disk: one SQLite file, written as things happen.

In WAL mode what was written outlives the process that wrote it, however that ends; an answer that was being written
then keeps the state "writing". Methods may be called from any thread and block for as long as the disk does.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from edgellm import platform
from edgellm.errors import UNREADABLE, LibraryError
from edgellm_tui.records import Conversation, Figures, State, Turn, title_of

VERSION: Final = 1
_BUSY_S: Final = 5.0  # another window may be writing
_SCHEMA: Final = """
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL, model TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL
);
CREATE INDEX conversation_updated ON conversation (updated);
CREATE TABLE turn (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    created REAL NOT NULL,
    thought TEXT NOT NULL DEFAULT '',
    thought_s REAL NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'done',
    model TEXT NOT NULL DEFAULT '',
    figures TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX turn_conversation ON turn (conversation, id);
CREATE TABLE preference (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_TURN: Final = "id, role, text, created, thought, thought_s, state, model, figures, error"
P = ParamSpec("P")
R = TypeVar("R")


def _guarded(method: Callable[Concatenate[History, P], R]) -> Callable[Concatenate[History, P], R]:
    """One thread at a time, in one transaction; SQLite's errors become ours."""

    def call(self: History, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock, _translated(self.path), self._db:
            return method(self, *args, **kwargs)

    return update_wrapper(call, method)


class History:
    """Raises LibraryError where the file cannot be read or written, from every method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        with _translated(path):
            platform.make_private_folder(path.parent)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise LibraryError(
                f"{self.path} was written by a newer edgellm (version {version}; known is {VERSION})",
                hint="update edgellm, or move the file away to begin anew",
            )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA secure_delete = ON")  # a deleted conversation is overwritten
        if version == 0:
            with self._db:
                self._create()

    def _create(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        if self._db.execute("PRAGMA user_version").fetchone() == (0,):  # no other window was faster
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # -- writing ---------------------------------------------------------------------------------------

    @_guarded
    def ask(self, conversation: int | None, text: str, model: str) -> tuple[Conversation, Turn]:
        """Keep a question, in a new conversation if there is none yet."""
        now = time.time()
        if conversation is None:
            added = self._db.execute(
                "INSERT INTO conversation (title, model, created, updated) VALUES (?, ?, ?, ?)",
                (title_of(text), model, now, now),
            )
            conversation = _row_id(added)
        turn = self._db.execute(
            "INSERT INTO turn (conversation, role, text, created) VALUES (?, 'user', ?, ?)", (conversation, text, now)
        )
        self._touch(conversation, model, now)
        return self._conversation(conversation), self._turn(_row_id(turn))

    @_guarded
    def begin_answer(self, conversation: int, model: str) -> Turn:
        """Keep that an answer is coming."""
        now = time.time()
        turn = self._db.execute(
            "INSERT INTO turn (conversation, role, text, created, state, model)"
            " VALUES (?, 'assistant', '', ?, 'writing', ?)",
            (conversation, now, model),
        )
        self._touch(conversation, model, now)
        return self._turn(_row_id(turn))

    @_guarded
    def extend_answer(self, turn: int, text: str, thought: str = "") -> None:
        """Keep what has come of an answer since the last call."""
        self._db.execute("UPDATE turn SET text = text || ?, thought = thought || ? WHERE id = ?", (text, thought, turn))

    @_guarded
    def end_answer(
        self, turn: int, state: State, *, figures: Figures | None = None, error: str = "", thought_s: float = 0.0
    ) -> Turn:
        """Keep how an answer ended."""
        told = msgspec.json.encode(figures).decode() if figures is not None else ""
        self._db.execute(
            "UPDATE turn SET state = ?, figures = ?, error = ?, thought_s = ? WHERE id = ?",
            (state, told, error, thought_s, turn),
        )
        return self._turn(turn)

    @_guarded
    def remove(self, conversation: int) -> None:
        """Delete a conversation and all that was said in it."""
        self._db.execute("DELETE FROM conversation WHERE id = ?", (conversation,))

    def prefer(self, name: str, value: str) -> None:
        """Keep a preference of the app's own, such as its theme. One that cannot be kept lasts until the app ends."""
        with suppress(LibraryError):
            self._set_preference(name, value)

    # -- reading ---------------------------------------------------------------------------------------

    def preference(self, name: str) -> str | None:
        """None where there is none, or none can be read."""
        with suppress(LibraryError):
            return self._get_preference(name)
        return None

    @_guarded
    def conversations(self, limit: int, words: str = "") -> list[Conversation]:
        """The latest first; with `words`, those in whose title or text all of them stand."""
        tests, values = [], []
        for word in words.split():
            like = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
            tests.append(
                "(title LIKE ? ESCAPE '\\' OR EXISTS (SELECT 1 FROM turn"
                " WHERE turn.conversation = conversation.id AND turn.text LIKE ? ESCAPE '\\'))"
            )
            values += [like, like]
        where = f"WHERE {' AND '.join(tests)}" if tests else ""
        query = f"SELECT id, title, model, updated FROM conversation {where} ORDER BY updated DESC, id DESC LIMIT ?"
        return [Conversation(*row) for row in self._db.execute(query, (*values, limit))]

    @_guarded
    def turns(self, conversation: int, *, before: int | None = None, limit: int | None = None) -> list[Turn]:
        """In order; the last `limit` of them, or of those before turn `before`."""
        rows = self._db.execute(
            f"SELECT {_TURN} FROM turn WHERE conversation = ? AND id < ? ORDER BY id DESC LIMIT ?",
            (conversation, before if before is not None else 1 << 62, limit if limit is not None else -1),
        ).fetchall()
        return [_read(row) for row in reversed(rows)]

    @_guarded
    def conversation(self, conversation: int) -> Conversation:
        return self._conversation(conversation)

    # -- parts -----------------------------------------------------------------------------------------

    @_guarded
    def _set_preference(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO preference VALUES (?, ?)", (name, value))

    @_guarded
    def _get_preference(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM preference WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def _conversation(self, conversation: int) -> Conversation:
        row = self._db.execute(
            "SELECT id, title, model, updated FROM conversation WHERE id = ?", (conversation,)
        ).fetchone()
        if row is None:
            raise LibraryError("this conversation has been deleted", hint="begin a new one")
        return Conversation(*row)

    def _turn(self, turn: int) -> Turn:
        row = self._db.execute(f"SELECT {_TURN} FROM turn WHERE id = ?", (turn,)).fetchone()
        if row is None:
            raise LibraryError("this conversation has been deleted", hint="begin a new one")
        return _read(row)

    def _touch(self, conversation: int, model: str, now: float) -> None:
        self._db.execute("UPDATE conversation SET updated = ?, model = ? WHERE id = ?", (now, model, conversation))


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _read(row: tuple[Any, ...]) -> Turn:
    number, role, text, created, thought, thought_s, state, model, figures, error = row
    return Turn(
        id=number,
        role=role,
        text=text,
        created=created,
        thought=thought,
        thought_s=thought_s,
        state=state,
        model=model,
        figures=msgspec.json.decode(figures, type=Figures) if figures else None,
        error=error,
    )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LibraryError(
            f"the history of conversations cannot be used ({path}: {why})",
            hint="free some disk space or check the file's permissions; if it is damaged, move it away to begin anew",
        ) from error
