"""What this machine has, and how much of it a model gets.

cgroups   quotas and limits of Linux control groups
machine   usable cores and memory: affinity, control groups, hyper-threads, efficiency cores
plan      a model file, its cost and the settings -> Placement
"""
