"""The chat app for the terminal. It talks to the daemon through `edgellm.client` and keeps its own history.

main.py            the entry point
app.py             the application: screens, themes, global keys
session.py         the conversation being held; knows no widget
bridge.py          what the app asks of the daemon and the library, without blocking the screen
history.py         conversations on disk
messages.py        what parts of the app tell each other
commands.py        what begins with a slash; pulls.py: models that are being fetched
markdown/          an answer as blocks that grow
screens/ widgets/  one file each, with its stylesheet beside it
"""
