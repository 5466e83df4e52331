"""The torch engine: GGUF files on PyTorch.

plugin        what the app sees of it; imports nothing heavy
header        reads a file's header for the architectures
config        what a header says of a model: sizes, kinds of layers, ropes
architectures one short file for each family: which tensors a layer has and how they are put together
costs         memory needs from the header alone
devices       the CPU, or the GPUs here, and which layers go where
load          puts a runner together, in the room of a placement
allocator     large tensors give their memory back
room          how much KV room it gets, after its largest step has run once; gauge: what that took
reporting     torch's failures in the app's words, and lines for the log
loader        tensors of the file as weights of the engine
model         the decoder: tokens in, logits of the wanted rows out; its layers: attention, feed_forward
pool          which blocks of the KV memory belong to which sequence; plain Python
kv            the tensors behind them
runner        TokenRunner: steps, drafts, results
encoder       whole texts in, a state for each of their tokens out; both_ways: the same of a decoder's layers
embedding     EmbeddingRunner: states of an encoder or a decoder, pooled; its parts: load_embedder, pooling …
sampling/     the sampler chain, for all rows of a step at once
tokenizer     text to ids and back; its parts: splitting, sentencepiece, wordpiece, words, special_tokens
"""
