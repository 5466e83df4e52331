"""Getting one remote file onto this disk, byte for byte, over connections that cut, stall, lie and slow down.

Our own, although huggingface-hub downloads too: its transfers resume whole files but keep no account of which bytes
are here, fetch one range at a time over HTTP (or none at all through its native client), and hash after the fact or not
at all. What a pull promises here (resume at the byte after a kill, several ranges at once, only bad ones again, the
digest known when the last byte is) needs that account. Listings, sign-in and the meaning of the hub's errors come from
huggingface-hub (`sources/hub.py`).

    ranges.py    which bytes are here: a table on disk beside the file
    leases.py    who fetches what: gaps, spans, taking over half of somebody's rest
    target.py    where the bytes go
    link.py      HTTP: redirects, tokens, ranges, what a response must look like
    faults.py    what went wrong, as an error with the way out, or as trouble that passes
    download.py  the workers, the hash that follows them, and the repair
"""
