"""The model library: names, the catalogue of what can be pulled, the store on disk, and pulling into it.

Plain functions over frozen values and a folder; commands and the daemon call them alike, in their own processes.
"""
