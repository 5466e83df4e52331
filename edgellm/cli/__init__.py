"""The command line. `main` holds the commands' signatures; each body imports its own module when it is called.

main       the app, and where every error becomes a message and an exit code
output     the one sink: data to stdout, the rest to stderr; human, JSON and quiet
terminal   what is possible on this terminal: colour, width, encoding
render/    how an answer looks on a terminal
talk/      a conversation at the prompt of `edgellm run`
"""
