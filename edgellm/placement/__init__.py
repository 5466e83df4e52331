"""What this machine has, and how much of it a model gets.

machine   usable cores and memory: affinity, cgroups, hyper-threads, efficiency cores
plan      a model file, its cost and the settings -> Placement
"""
