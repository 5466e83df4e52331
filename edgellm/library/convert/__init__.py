"""A model as its authors publish it (config.json, safetensors, tokenizer files) becomes one GGUF file.

    convert    the whole way: `plan_conversion` reads and checks, `Conversion.chunks` streams the file
    folder     the folder: what is in it, and what is refused
    rules      what a tensor is called, shaped and turned into; architectures/ declare theirs with it
    weights    views into the mapped files, and their bytes in another type, a few megabytes at a time
    gguf_file  the GGUF format, written
    rope       position scaling
    tokenizers/  vocabularies, special tokens, chat templates

Nothing that could run is read: no pickle, no code that comes with a model. No torch is needed.
"""
