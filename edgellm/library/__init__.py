"""The model library: names, the catalogue of what can be pulled, the store on disk, and pulling into it.

Plain functions over frozen values and a folder; commands and the daemon call them alike, in their own processes.

references  what may be named              pull      the whole way, whatever was named
catalogue   models.toml and the user's     resolve   which file of several: the best that fits; choose: what is one
names       what a model may be called     remote    hubs and addresses: look, fetch, publish; fetch: one file of them
store       what is here, on disk          jobs      unfinished pulls; staging: bytes onto the disk
sources/    hub, web, packages, Ollama     transfer/ bytes over HTTP, by ranges; joining: parts into one file
convert/    published folders into GGUF    fitting   whether it fits this machine
"""
