"""Readers of model file headers, with the standard library alone. They trust no byte of the file."""
