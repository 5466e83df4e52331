"""HTTP: one file per API dialect, and what they share.

app        the ASGI application: routes, guard, error pages
openai     /v1/…: chat completions, completions, models
native     /edgellm/v1/…: the daemon's own API, spoken by `edgellm.client`
security   who may call: host, origin, keys, content type, header limits
answer     events to HTTP: status, server-sent events, keep-alives, hang-ups
front      what every dialect goes through: draining, activity, metrics
daemon     the process: lock, socket, signals, idle exit
"""
