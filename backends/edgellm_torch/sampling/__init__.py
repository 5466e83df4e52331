"""The sampler chain on the device, for all rows of a step at once. The order is in docs/sampling.md.

penalties   bias, penalties and DRY: what changes logits before any are dropped
ordering    tokens by their logits, from large to small, ties by id
chain       what is dropped, temperature, the draw; mirostat
logprobs    log probabilities in the raw logits
drawing     a step's draws: begun when it is submitted, told when it is collected
"""
