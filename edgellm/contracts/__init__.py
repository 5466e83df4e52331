"""Plain data and protocols shared by every floor. No I/O, nothing imported but msgspec, the standard library and
`edgellm.errors`.

request   what is asked: GenerateRequest and its parts
events    what is answered: the stream of one request
backend   ChatBackend: anything that turns a request into events
engine    TokenRunner, Tokenizer, EnginePlugin: what an engine implements
simple    engines that are one function: tokens in, next token out
draws     the counter-based random numbers behind every sampled token
chain     what the sampler chains of all engines share: penalties as numbers
"""
