"""The llama.cpp engine: GGUF models through llama-cpp-python's low-level C API.

plugin     what the app finds by entry point; imports nothing heavy
costs      memory needs from a file's header
native     the library: its log, its models, its contexts, each freed once
mapping    pages of a mapped file, let go of once they are not needed
repacking  which weights are rearranged for this CPU, and whether the build has our own kernels
builds     what was found out about this build by running it; canary: the process that runs it
amx        whether this build's AMX code can be trusted, and how to do without
exactness  whether a row's logits depend on its company, by tensor type
batch      the token batch of a step, in memory that C reads directly
runner     TokenRunner: steps, KV sequences
neighbours how many threads decode steps use, beside programs that keep the CPUs busy
parking    copies of sequences outside the KV pool
sampling   from a row of logits to a token, in numpy; its parts: penalties, ordering
embedding  EmbeddingRunner: whole texts in, one vector for each out
tokenizer  text to ids and back
"""
