"""What this machine has, and how much of it a model gets.

cgroups   quotas and limits of Linux control groups
machine   usable cores and memory: affinity, control groups, hyper-threads, efficiency cores
plan      a model file, its cost and the settings -> Placement; embedding: the same for models that make embeddings
pace      how fast a model will about be
disk      models larger than memory: how fast this disk gives up their weights
"""
