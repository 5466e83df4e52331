"""A conversation in the terminal: what is typed, what is remembered, what is sent."""
