"""The arithmetic of the torch engine: quantised weights, and every op that a decoder needs.

`ops` has the ops, `planes` the weights, `pages` the KV of a layer. Nothing heavy is imported here: `blocks` and
`kv_kinds` work without torch.
"""
