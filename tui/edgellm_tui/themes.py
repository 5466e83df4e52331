"""Light, dark, and the terminal's own colours."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.theme import Theme

DARK = Theme(
    name="edgellm-dark",
    primary="#7AA2C8",
    secondary="#8FB8A8",
    accent="#D7A65F",
    warning="#D7A65F",
    error="#E07A78",
    success="#8FB573",
    foreground="#D8DBE0",
    background="#14161A",
    surface="#1B1E24",
    panel="#22262E",
    dark=True,
)
LIGHT = Theme(
    name="edgellm-light",
    primary="#2F6690",
    secondary="#3B7A63",
    accent="#9A6700",
    warning="#9A6700",
    error="#B3261E",
    success="#3F7D20",
    foreground="#22262B",
    background="#FBFBF9",
    surface="#F1F1EE",
    panel="#E6E6E2",
    dark=False,
)
THEMES = (DARK, LIGHT)
CHOICES = (DARK.name, LIGHT.name, "ansi-dark", "ansi-light")


def suggested(environment: Mapping[str, str] = os.environ) -> str:
    """Light where the terminal says that its background is (COLORFGBG, its last part), dark otherwise."""
    background = environment.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT.name if background in ("7", "15") else DARK.name
