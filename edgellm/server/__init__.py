"""HTTP: the API dialects, and what they share.

app        the ASGI application: routes, guard, error pages
openai     /v1/…: chat completions, completions, models; openai_bodies, _requests, _replies, _logprobs know fields
embeddings /v1/embeddings
sampling_fields   how tokens are chosen: names and ranges, the same for both dialects; template_options: for templates
native     /edgellm/v1/…: the daemon's own API, spoken by `edgellm.client`
security   who may call: host, origin, keys, content type, header limits
keys       API keys, and the file that holds their hashes
body       requests: read within limits, decoded, refused by the name of the field
answer     events to HTTP: status, hang-ups; sse: the wire formats and keep-alives
errors     errors as HTTP answers
openapi    the description of all routes; openapi_schemas: the shapes of answers in it
front      what every dialect goes through: draining, activity
metrics    what Prometheus is told
daemon     the process: lock, signals, idle exit
binding    its socket; web, protocol: uvicorn as the daemon needs it, with deadlines
"""
