"""From a request to events: the scheduler and worker process on one side, their supervision by the daemon on the other.

protocol     messages between the two            template, prompt   conversation -> token ids
worker       the process: threads and pipes      text               token ids -> safe text, stop strings
core         one step: schedule, run, emit       process            one worker process, its pipes and its death
scheduler    which tokens go into a step         supervisor         one model: load, restart, fail honestly
job, ledger, costs   what the scheduler counts   pool               many models in bounded memory

docs/architecture.md follows a request through them, and says where the rest is.
"""
