"""Families of models: each file declares its tensors and keys; `known` lists them."""
