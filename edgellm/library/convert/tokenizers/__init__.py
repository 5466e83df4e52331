"""Tokenizers in every form that models carry them, into GGUF's; `read` tells which a folder has."""
