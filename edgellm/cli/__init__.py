"""The command line. `main` holds the commands' signatures; each body imports its own module when it is called.

main       the app, and where every error becomes a message and an exit code
output     the one sink: data to stdout, the rest to stderr; human, JSON and quiet
terminal   what is safe and possible on this terminal: inert text, colour, width
"""
