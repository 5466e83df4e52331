"""Markdown as models write it, on a terminal: nothing in it acts, nothing vanishes, and it grows without stutter."""
