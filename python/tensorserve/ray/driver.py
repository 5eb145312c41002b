"""The driver: it gives entries to actors, and runs those that are lost again."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from tensorserve.errors import Error
from tensorserve.ray import cluster
from tensorserve.ray.actor import Actor, Ended, EntryResult, Work, end_quietly, passed_environment
from tensorserve.ray.options import CANNOT_GO_ON, INTERRUPTED, SOME_FAILED, WRONG_OPTIONS, Options
from tensorserve.ray.progress import Progress, counted
from tensorserve.transform import Plan, TransformError, make_plan

# How often the nodes are looked at, in seconds, and answers are waited for.
_LOOK_EVERY = 2.0
_WAIT = 0.5
# How often a process may end before it has done anything, until its slot is given up.
_FRUITLESS_STARTS = 3
# Entries that wait in a process at least: small ones take less time than an answer of the driver.
_SPARE = 8
# How long processes may take for the batches that they run when the job ends.
_STOP_TIMEOUT = 30.0


def run(options: Options) -> int:
    """Runs a job on the cluster, and returns the exit status."""
    # Ray prints its remarks: stdout is for the progress alone.
    with contextlib.redirect_stdout(sys.stderr):
        return _run(options)


def _run(options: Options) -> int:
    cluster.connect(options.address)
    # Ray sets a handler of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # Until the end of this function.
        holder = cluster.hold(options.output)
        plan = make_plan(options.plan)
        status = _Driver(options, plan).run()
        end_quietly(holder)
        return status
    finally:
        ray.shutdown()


@dataclass
class _Member:
    """An actor, and what it has to do."""

    slot: cluster.Slot
    handle: Any
    #: Once its process is started.
    node: str = ""
    in_flight: set[int] = field(default_factory=set)
    #: Its process has done an entry.
    is_fruitful: bool = False

    @property
    def entry_threads(self) -> int:
        """The entries that its process has under way at the same time."""
        return self.slot.concurrency + 1


class _Driver:
    def __init__(self, options: Options, plan: Plan) -> None:
        self._options, self._plan = options, plan
        self._planned = {entry.number: entry for entry in plan.pending}
        self._todo = collections.deque(entry.number for entry in plan.pending)
        # Entries that were lost: one of them may have killed its process, so each runs alone.
        self._suspects: collections.deque[int] = collections.deque()
        self._losses: collections.Counter[int] = collections.Counter()
        self._members: dict[tuple[str, int], _Member] = {}
        self._calls: dict[Any, _Member] = {}
        # By slot: starts in vain, and when the next one may be.
        self._fruitless: collections.Counter[tuple[str, int]] = collections.Counter()
        self._not_before: dict[tuple[str, int], float] = {}
        self._reason = Ended(CANNOT_GO_ON, "no actor could be started")
        self._looked = 0.0
        self._progress = Progress.of(plan, options.progress)
        self._work = (options.entries, passed_environment(), options.files, os.getcwd())

    def run(self) -> int:
        """Runs all entries, and joins the parts of large objects."""
        try:
            while self._todo or self._suspects or any(m.in_flight for m in self._members.values()):
                self._step()
            if self._plan.ranges:
                self._join()
        except KeyboardInterrupt:
            self._end("interrupted")
            return INTERRUPTED
        except BaseException as error:
            self._end(f"ended: {error}")
            raise
        failed = self._progress.failed
        self._end(f"{counted(failed, 'object')} failed" if failed else "done")
        return SOME_FAILED if self._progress.failed else 0

    def _step(self) -> None:
        """Waits for answers, and gives out new entries."""
        self._look_at_nodes()
        if not self._calls:
            time.sleep(_WAIT)
        else:
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=_WAIT)
            if ready:
                # All others that are there: looking through many calls for each would be slow.
                ready, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for call in ready:
                self._answer(self._calls.pop(call), call)
        if self._progress.is_bad_limit_exceeded(self._options.max_bad_records):
            bad, records = self._progress.bad, self._progress.records
            raise Error(f"{bad} of {records} records are bad, more than --max-bad-records allows")
        self._progress.actors = sum(bool(member.node) for member in self._members.values())
        self._progress.show()

    def _look_at_nodes(self) -> None:
        """Starts actors in the slots that have none."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        slots = cluster.slots(self._options)
        usable = [slot for slot in slots if self._fruitless[slot.key] < _FRUITLESS_STARTS]
        if slots and not usable and not self._members:
            raise TransformError(self._reason.reason, self._status_of(self._reason))
        for slot in usable:
            if slot.key not in self._members and self._not_before.get(slot.key, 0) <= now:
                self._start(slot)

    @staticmethod
    def _status_of(ended: Ended) -> int:
        return WRONG_OPTIONS if ended.status == WRONG_OPTIONS else CANNOT_GO_ON

    def _start(self, slot: cluster.Slot) -> None:
        # One call runs entries, and another one may stop them.
        remote = ray.remote(Actor).options(max_concurrency=2, **slot.placement())
        member = _Member(slot, remote.remote())
        arguments, env, files, directory = self._work
        work = Work(arguments, slot.concurrency, env, files, directory)
        self._members[slot.key] = member
        self._calls[member.handle.start.remote(work)] = member

    def _answer(self, member: _Member, call: Any) -> None:
        """Takes the answer of an actor."""
        try:
            answer = ray.get(call)
        except RayActorError as error:
            self._lost(member, Ended(CANNOT_GO_ON, _reason_of(error)))
            return
        except RayError as error:
            raise Error(f"an actor has failed: {error}") from error
        if isinstance(answer, Ended):
            self._lost(member, answer)
            return
        if isinstance(answer, str):
            member.node = answer
        else:
            for result in answer:
                self._done(member, EntryResult(*result))
        self._give(member)

    def _done(self, member: _Member, result: EntryResult) -> None:
        member.in_flight.discard(result.entry)
        member.is_fruitful = True
        self._fruitless[member.slot.key] = 0
        self._progress.count(self._planned[result.entry], result)

    def _give(self, member: _Member) -> None:
        """Gives entries to an actor, and waits for what it has done."""
        entries = self._next_entries(member)
        member.in_flight.update(entries)
        if member.in_flight:
            self._calls[member.handle.run.remote(entries)] = member

    def _next_entries(self, member: _Member) -> list[int]:
        if any(self._losses[number] for number in member.in_flight):
            return []
        if self._suspects:
            # It finishes the others first.
            return [] if member.in_flight else [self._suspects.popleft()]
        # More wait in the pipe of the process, so that it never waits for the driver. Near the end no
        # actor has entries waiting that another one could run.
        spare = max(member.entry_threads, _SPARE)
        is_long = len(self._todo) > 2 * (member.entry_threads + spare) * max(1, len(self._members))
        room = member.entry_threads + (spare if is_long else 0) - len(member.in_flight)
        return [self._todo.popleft() for _ in range(min(max(0, room), len(self._todo)))]

    def _lost(self, member: _Member, ended: Ended) -> None:
        """Gives up an actor. What it had under way runs again, unless it was done after all."""
        key = member.slot.key
        self._members.pop(key, None)
        end_quietly(member.handle)
        self._reason = ended
        if not member.is_fruitful:
            self._fruitless[key] += 1
            # A process that does not understand its options will not do so the next time.
            if ended.status == WRONG_OPTIONS:
                self._fruitless[key] = _FRUITLESS_STARTS
        self._not_before[key] = time.monotonic() + self._fruitless[key]
        where = member.node or "a node"
        print(f"note: an actor on {where} was lost: {ended.reason}", file=sys.stderr)
        if member.in_flight:
            self._run_again(member.in_flight, ended.reason)
        self._looked = 0.0
        # Others may have nothing to do, and the entries are theirs now.
        for other in self._members.values():
            if other.node and not other.in_flight:
                self._give(other)

    def _run_again(self, numbers: set[int], reason: str) -> None:
        done: frozenset[int] = frozenset()
        with contextlib.suppress(TransformError):
            done = make_plan(self._options.entries, is_frozen=True).done
        for number in sorted(numbers):
            if number in done:
                self._progress.count(self._planned[number], None)
                continue
            self._losses[number] += 1
            if self._losses[number] > self._options.entry_retries:
                times = self._losses[number]
                self._progress.give_up(
                    self._planned[number], f"its process was lost {times} times; the last: {reason}"
                )
                continue
            self._progress.retried += 1
            self._suspects.append(number)

    def _join(self) -> None:
        """Lets one process join what is left of the parts of large objects, and end."""
        for _ in range(_FRUITLESS_STARTS):
            while not any(member.node for member in self._members.values()):
                self._step()
            member = next(member for member in self._members.values() if member.node)
            try:
                ended = ray.get(member.handle.finish.remote())
            except RayActorError as error:
                ended = Ended(CANNOT_GO_ON, _reason_of(error))
            if ended.status in (0, SOME_FAILED):
                return
            self._lost(member, ended)
        raise TransformError(f"parts could not be joined: {ended.reason}", CANNOT_GO_ON)

    def _end(self, how: str) -> None:
        """Stops all actors, and prints the summary."""
        with contextlib.suppress(KeyboardInterrupt):
            started = [member for member in self._members.values() if member.node]
            stops = [member.handle.stop.remote() for member in started]
            if stops:
                ray.wait(stops, num_returns=len(stops), timeout=_STOP_TIMEOUT)
        for member in self._members.values():
            end_quietly(member.handle)
        self._progress.show(is_last=True)
        print(self._progress.summary(how), file=sys.stderr)


def _reason_of(error: RayActorError) -> str:
    text = str(error)
    if "No module named 'tensorserve'" in text:
        return "tensorserve is not installed there: install its wheel, with the extra ray, on every node"
    # The first lines say why; the others are identifiers.
    return " ".join(text.split("\n", maxsplit=1)[0].split())
