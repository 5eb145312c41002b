"""tensorserve transform on a Dask cluster: python transform.py SCHEDULER MODEL --input=… --output=…

The processes die with their workers, and Dask runs the entries of lost workers again.
"""

import sys

from dask.distributed import Client, as_completed
from distributed import get_worker

from tensorserve.transform import EntryProcess, make_plan


def run(number, arguments):
    worker = get_worker()
    if not hasattr(worker, "tensorserve"):
        worker.tensorserve = EntryProcess(arguments)
    return worker.tensorserve.run(number)


def main(scheduler, *arguments):
    client, plan = Client(scheduler), make_plan(arguments)
    numbers = [entry.number for entry in plan.pending]
    for _, marker in as_completed(client.map(run, numbers, arguments=arguments), with_results=True):
        print(marker["entry"], [each.get("error") for each in marker["objects"]])
    if plan.ranges:  # Parts of large objects that no process has joined.
        EntryProcess(arguments).finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
