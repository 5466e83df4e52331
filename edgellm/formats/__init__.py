"""Readers of model file headers, with the standard library and msgspec alone. They trust no byte of the file."""
