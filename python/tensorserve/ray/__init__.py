"""``tensorserve-ray transform``: one job of ``tensorserve transform`` on all machines of a Ray cluster.

The driver makes the plan, and actors on the nodes run its entries, each with one process that keeps
the model loaded. Ray carries the numbers of entries and counters; the processes read and write the
stores themselves. ``docs/transform-ray.md`` describes it.
"""
