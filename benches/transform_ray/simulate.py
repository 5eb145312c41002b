"""Simulates a transform of a billion records on a thousand machines, and says what saturates first.

    python benches/transform_ray/simulate.py
    python benches/transform_ray/simulate.py --machines 100 1000 10000 --object-kib 64 262144

A discrete-event simulation: machines take entries from the driver, read them from the store, run them
and publish them. The driver and the request rates of the store are queues that all machines share;
networks and models are those of each machine. Constants that were measured are options; their defaults
say where they come from.
"""

import argparse
import heapq
from dataclasses import dataclass

# The limits of crates/transform/src/plan.rs: small objects are grouped.
GROUP_BYTES, GROUP_OBJECTS = 4 << 20, 64
# state.rs: the most bytes of a plan.
MOST_PLAN = 4 << 30
# An estimate of the bytes of a plan for each object: its key, size and ETag.
PLAN_BYTES = 110
KEYS_IN_A_LIST = 1000


class Queue:
    """A resource that does a number of things in a second, one after the other."""

    def __init__(self, rate):
        self.rate, self.free, self.busy = rate, 0.0, 0.0

    def finish(self, now, count):
        """When `count` things that arrive now are done."""
        took = count / self.rate
        self.free = max(now, self.free) + took
        self.busy += took
        return self.free


@dataclass
class Shape:
    """How the plan divides the data. All entries are equal."""

    entries: int
    #: Objects, or the range of one, in an entry.
    objects: int
    bytes: float
    records: float
    #: Requests for objects that are divided: their parts are copied and removed.
    joins: int
    plan_bytes: int
    listed: int


def shape_of(options, object_bytes):
    """The plan for objects of this size."""
    total = options.records * options.record_bytes
    count = max(1, round(total / object_bytes))
    range_bytes = options.range_mb << 20
    joins, objects = 0, 1
    if object_bytes > range_bytes:
        parts = -(-object_bytes // range_bytes)
        entries, joins = count * parts, 2 * count * parts
    else:
        objects = max(1, min(GROUP_OBJECTS, GROUP_BYTES // object_bytes))
        entries = -(-count // objects)
    lines = max(count, entries)
    return Shape(
        entries=entries,
        objects=objects,
        bytes=total / entries,
        records=options.records / entries,
        joins=joins,
        plan_bytes=lines * PLAN_BYTES,
        listed=-(-count // KEYS_IN_A_LIST),
    )


@dataclass
class Outcome:
    seconds: float
    planned: float
    started: float
    #: The share of the time, after the start, that each resource is busy.
    load: dict


def simulate(options, machines, shape):
    """Runs one job."""
    planned = shape.listed * options.list_seconds
    driver = Queue(1 / options.driver_seconds)
    gets, puts = Queue(options.gets * options.prefixes), Queue(options.puts * options.prefixes)
    nic = options.nic_gbit * 1e9 / 8
    compute = shape.records / options.records_per_second
    # Actors start one after the other in the driver, then all at once: their plan, and the model.
    load = shape.plan_bytes / nic + shape.plan_bytes / options.plan_parse + options.actor_seconds
    first = [
        (planned + index / options.actors_per_second + load, index) for index in range(machines)
    ]
    events = [(gets.finish(at, 2), index) for at, index in first]
    heapq.heapify(events)
    started = max(events)[0]
    left, end = shape.entries, 0.0
    reads = writes = 0.0
    # A machine reads and publishes entries while its model runs others: each is a queue of its own.
    model_free = [0.0] * machines
    nic_free = [0.0] * machines
    while left:
        now, machine = heapq.heappop(events)
        left -= 1
        now = driver.finish(now, 1)
        now = gets.finish(now, shape.objects) + options.latency
        nic_free[machine] = max(now, nic_free[machine]) + shape.bytes / nic
        model_free[machine] = max(nic_free[machine], model_free[machine]) + compute
        # Each object, and the marker.
        done = puts.finish(model_free[machine], shape.objects + 1) + options.latency
        reads, writes = reads + shape.bytes / nic, writes + compute
        end = max(end, done)
        # It has asked for the next entry while the model runs this one.
        heapq.heappush(events, (max(now, model_free[machine] - compute), machine))
    end = puts.finish(end, shape.joins)
    span = max(end - planned, 1e-9)
    busy = {
        "driver": driver.busy / span,
        "GETs": gets.busy / span,
        "PUTs": puts.busy / span,
        "network": reads / span / machines,
        "model": writes / span / machines,
    }
    return Outcome(end, planned, started - planned, busy)


def main():
    options = arguments()
    print(
        f"{options.records:,} records of {options.record_bytes} bytes, "
        f"{options.records_per_second:,.0f} records/s on each machine, {options.prefixes} prefix(es)\n"
    )
    header = ("object", "machines", "entries", "entry", "plan", "start", "total", "ideal")
    print(("{:>9} " * len(header)).format(*header), " busy, of the time after the plan")
    for kib in options.object_kib:
        shape = shape_of(options, kib << 10)
        if shape.plan_bytes > MOST_PLAN:
            print(
                f"{size(kib << 10):>9}  the plan would have {size(shape.plan_bytes)}, more than 4 GiB"
            )
            continue
        for machines in options.machines:
            outcome = simulate(options, machines, shape)
            ideal = options.records / options.records_per_second / machines
            load = sorted(outcome.load.items(), key=lambda item: -item[1])
            row = [
                size(kib << 10),
                f"{machines:,}",
                f"{shape.entries:,}",
                size(shape.bytes),
                *(f"{seconds:,.0f} s" for seconds in (outcome.planned, outcome.started)),
                *(f"{seconds:,.0f} s" for seconds in (outcome.seconds, ideal)),
            ]
            text = ", ".join(f"{name} {share:.0%}" for name, share in load[:3])
            print(("{:>9} " * len(row)).format(*row), f" {text}")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--records", type=int, default=10**9)
    add("--record-bytes", type=int, default=1000)
    add("--machines", type=int, nargs="+", default=[10, 100, 1000, 3000])
    add("--object-kib", type=int, nargs="+", default=[64, 1024, 16 << 10, 256 << 10, 10 << 20])
    add("--range-mb", type=int, default=256, help="that of tensorserve transform")
    # An assumption: a small model on 16 cores, or a large one on a GPU with 5000.
    add("--records-per-second", type=float, default=100_000)
    # The driver's time for an answer and the next entries with 1,000 calls under way and many answers
    # at the same time, measured on 2 cores with Ray 2.60. overhead.py measures it with few calls.
    add("--driver-seconds", type=float, default=0.0009)
    # An estimate: tests/clients/ray_transform sees the first entry after 8 s, on 2 cores, with Ray itself.
    add("--actor-seconds", type=float, default=5.0)
    # Assumptions: Ray publishes hundreds in its release tests.
    add("--actors-per-second", type=float, default=100.0)
    # Plan::of_lines, in bytes a second; an assumption, below what serde_json does.
    add("--plan-parse", type=float, default=100e6)
    # Amazon's published figures, for each prefix.
    add("--puts", type=float, default=3500)
    add("--gets", type=float, default=5500)
    add("--prefixes", type=int, default=1, help="prefixes of keys that the store has divided")
    # Assumptions: time to the first byte, of a page of a listing, and 10 Gbit/s.
    add("--latency", type=float, default=0.03)
    add("--list-seconds", type=float, default=0.1)
    add("--nic-gbit", type=float, default=10)
    return parser.parse_args()


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


if __name__ == "__main__":
    main()
