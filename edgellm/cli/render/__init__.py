"""How an answer looks on a terminal: markdown to lines, and lines to a screen that only ever grows."""
