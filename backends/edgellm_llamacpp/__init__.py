"""The llama.cpp engine: GGUF models through llama-cpp-python's low-level C API.

plugin     what the app finds by entry point; imports nothing heavy
costs      memory needs from a file's header
native     the library: its log, its models, its contexts, each freed once
amx        whether this build's AMX code can be trusted, and how to do without
canary     the process that finds out
batch      the token batch of a step, in memory that C reads directly
runner     TokenRunner: steps, KV sequences
parking    copies of sequences outside the KV pool
sampling   from a row of logits to a token, in numpy
tokenizer  text to ids and back
"""
