"""Plain data and protocols shared by every floor. No I/O, nothing imported but msgspec, the standard library and
`edgellm.errors`; numpy for types alone.

request     what is asked: GenerateRequest and its parts
events      what is answered: the stream of one request
engine      EnginePlugin, Tokenizer: what an engine implements, and what it is asked with
runner      TokenRunner: what an engine makes of a loaded model; the rows and results of a step
checks      what a runner may be called with
embedding   the same for embeddings: EmbedRequest, EmbeddingPlugin, EmbeddingRunner
kernels     what computes an engine's operations
simple      engines that are one function: tokens in, next token out
draws       the counter-based random numbers behind every sampled token
chain       what the sampler chains of all engines share: penalties as numbers
ranges      how much of anything may be asked for
status      what is told of models in memory
"""
