"""The Ray cluster: its nodes, and where actors go."""

from __future__ import annotations

import datetime
import logging
import os
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tensorserve.errors import Error
from tensorserve.ray.actor import Holder

if TYPE_CHECKING:
    from tensorserve.ray.options import Options

_NAMESPACE = "tensorserve"
# The longest that a cluster may take to answer a connection.
_CONNECT_TIMEOUT = 10.0
# Ray notices within seconds that a driver was killed.
_HELD_TIMEOUT = 60.0


@dataclass(frozen=True)
class Slot:
    """A place for an actor."""

    #: Of the same actor after a restart.
    key: tuple[str, int]
    #: Batches at the same time.
    concurrency: int
    cpus: float
    gpus: float
    #: The node it is on; `None` for any.
    node: str | None

    def placement(self) -> dict[str, Any]:
        """The options of Ray that put an actor here."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.node is None:
            return {**options, "scheduling_strategy": "SPREAD"}
        strategy = NodeAffinitySchedulingStrategy(self.node, soft=False)
        return {**options, "scheduling_strategy": strategy}


@dataclass(frozen=True)
class _Node:
    id: str
    cpus: float
    gpus: float


def connect(address: str) -> None:
    """Connects this process to a cluster as its driver."""
    _check_reachable(address)
    options = {"namespace": _NAMESPACE, "log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Error(
            f"there is no Ray cluster at --address {address}: {error}\nStart one with "
            "`ray start --head`, or use --address local for this machine alone"
        ) from error


def _check_reachable(address: str) -> None:
    """Says soon what Ray says after a minute."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
    except OSError as error:
        raise Error(
            f"--address {address} is not reachable ({error}): is it the address that "
            "`ray start --head` has printed, and does the network let this machine connect?"
        ) from error


def hold(output: str) -> Any:
    """Takes an output for this driver, and returns what keeps it.

    Waits for the end of a driver that was killed. Raises :class:`Error` if another one keeps it.
    """
    place = output if "://" in output else os.path.abspath(output)
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    who = f"process {os.getpid()} on {socket.gethostname()}, since {now}"
    # Wherever there is room, and again if its node is lost.
    options = {"num_cpus": 0, "max_restarts": -1, "name": f"transform to {place}"}
    deadline = time.monotonic() + _HELD_TIMEOUT
    has_waited = False
    while True:
        try:
            # The name is taken at once, while the actor may have to wait for its process.
            return ray.remote(Holder).options(**options).remote(who)
        except ValueError as error:
            # The name is taken.
            if time.monotonic() > deadline:
                raise Error(
                    f"another driver writes to {place} ({_holder_of(options['name'])}): wait for "
                    "its end, or choose another --output"
                ) from error
        if not has_waited:
            has_waited = True
            print(f"note: waiting for {_holder_of(options['name'])} to end", file=sys.stderr)
        time.sleep(0.2)


def _holder_of(name: str) -> str:
    try:
        return ray.get(ray.get_actor(name).who.remote(), timeout=5)
    except Exception:
        return "an earlier driver"


def slots(options: Options) -> list[Slot]:
    """Where actors should be now, on the nodes that are alive."""
    nodes = _nodes()
    gpus = options.gpus_per_actor
    if gpus is None:
        gpus = 1.0 if any(node.gpus for node in nodes) else 0.0
    if options.actors is not None:
        return _anywhere(options, options.actors, gpus, nodes)
    found = []
    for node in nodes:
        count = int(node.gpus / gpus) if gpus else int(node.cpus > 0)
        cpus = options.cpus_per_actor or min(1.0, node.cpus / max(1, count))
        concurrency = options.concurrency or int(
            options.cpus_per_actor or node.cpus / max(1, count)
        )
        found += [
            Slot((node.id, index), max(1, concurrency), cpus, gpus, node.id)
            for index in range(count)
        ]
    return found


def _anywhere(options: Options, count: int, gpus: float, nodes: list[_Node]) -> list[Slot]:
    """Slots on whatever nodes have room: also on those that an autoscaler adds."""
    share = min(
        sum(node.cpus for node in nodes) / count, max((node.cpus for node in nodes), default=1)
    )
    concurrency = options.concurrency or int(options.cpus_per_actor or share)
    cpus = options.cpus_per_actor or 1.0
    return [Slot(("any", index), max(1, concurrency), cpus, gpus, None) for index in range(count)]


def _nodes() -> list[_Node]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    resources = [(node["NodeID"], node["Resources"]) for node in alive]
    return [_Node(name, has.get("CPU", 0), has.get("GPU", 0)) for name, has in resources]
