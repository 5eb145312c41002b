"""How far a job is, over all actors."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorserve.ray.actor import EntryResult
    from tensorserve.transform import Plan, PlannedEntry

# How often a line is printed, in seconds: those of `tensorserve transform`.
_LINE, _JSON = 10.0, 5.0
_NAMED = 100
# A part of bad records is a limit once there are this many records.
_ENOUGH_RECORDS = 1000


@dataclass
class Progress:
    """The counters of this run of a job."""

    how: str
    total_entries: int
    total_objects: int
    total_bytes: int
    entries: int = 0
    objects: int = 0
    bytes: int = 0
    records: int = 0
    bad: int = 0
    failed: int = 0
    out_bytes: int = 0
    #: Entries that were run again because their process or node was lost.
    retried: int = 0
    actors: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    #: Ray writes remarks to whatever `sys.stdout` is later.
    stdout: Any = field(default_factory=lambda: sys.__stdout__)
    started: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, plan: Plan, how: str) -> Progress:
        """For what is to be done of a plan."""
        return cls(
            how=how,
            total_entries=len(plan.pending),
            total_objects=sum(entry.objects for entry in plan.pending),
            total_bytes=sum(entry.bytes for entry in plan.pending),
        )

    def count(self, entry: PlannedEntry, result: EntryResult | None) -> None:
        """Counts an entry that has ended; without a result, one whose process did not report it."""
        self.entries += 1
        self.bytes += entry.bytes
        if result is None:
            self.objects += entry.objects
            return
        # A later range that fails is the failure of an object that its first range has counted.
        self.objects += entry.objects - result.failed
        self.records += result.records
        self.bad += result.bad
        self.out_bytes += result.out_bytes
        self.failed += result.failed
        self.failures += result.failures[: max(0, _NAMED - len(self.failures))]

    def give_up(self, entry: PlannedEntry, reason: str) -> None:
        """Counts an entry that was lost too often."""
        self.entries += 1
        # A later range counts, too: its object has no output.
        self.failed += max(1, entry.objects)
        self.failures.append((f"entry {entry.number}", reason))

    def is_bad_limit_exceeded(self, limit: str | None) -> bool:
        """Whether there are more bad records than `--max-bad-records` allows."""
        if limit is None:
            return False
        if not limit.endswith("%"):
            return self.bad > int(limit)
        most = float(limit[:-1]) / 100
        return self.records >= _ENOUGH_RECORDS and self.bad > most * self.records

    def show(self, is_last: bool = False) -> None:
        """Prints a line if it is time."""
        interval = _JSON if self.how == "json" else _LINE
        now = time.monotonic()
        if self.how == "none" or (now - self.shown < interval and not is_last):
            return
        self.shown = now
        if self.how == "json":
            print(json.dumps(self.snapshot()), file=self.stdout, flush=True)
        elif not is_last:
            print(self._line(), file=sys.stderr, flush=True)

    def snapshot(self) -> dict[str, Any]:
        """All counters, with the names of `tensorserve transform --progress json`."""
        seconds = time.monotonic() - self.started
        found = {
            "seconds": seconds,
            "objects": self.objects,
            "total_objects": self.total_objects,
            "failed_objects": self.failed,
            "bytes": self.bytes,
            "total_bytes": self.total_bytes,
            "records": self.records,
            "bad_records": self.bad,
            "output_bytes": self.out_bytes,
            "records_per_second": self.records / max(seconds, 1e-9),
            "entries": self.entries,
            "total_entries": self.total_entries,
            "retried_entries": self.retried,
            "actors": self.actors,
            "driver_cpu_seconds": time.process_time(),
        }
        if self.bytes and seconds > 1:
            found["seconds_left"] = seconds * (self.total_bytes - self.bytes) / self.bytes
        return found

    def summary(self, ended: str) -> str:
        """The lines at the end of a run."""
        now = self.snapshot()
        speed = f"{now['seconds']:.1f} s ({now['records_per_second']:.0f} records/s)"
        sizes = f"{_size(self.bytes)} read, {_size(self.out_bytes)} written"
        done = f"{counted(self.objects, 'object')}, {counted(self.records, 'record')}"
        lines = [f"{ended}: {done} in {speed}, {sizes}"]
        if self.retried == 1:
            lines.append("1 entry was run again: its process or node was lost")
        elif self.retried:
            lines.append(f"{self.retried} entries were run again: their process or node was lost")
        if self.failed or self.bad:
            failed = f"{counted(self.failed, 'object')} failed" if self.failed else ""
            bad = counted(self.bad, "bad record") if self.bad else ""
            lines.append(", ".join(filter(None, (failed, bad))))
            lines += [f"  {key}: {reason}" for key, reason in self.failures[:10]]
        return "\n".join(lines)

    def _line(self) -> str:
        now = self.snapshot()
        text = (
            f"{self.objects} of {counted(self.total_objects, 'object')}, {_size(self.bytes)} of "
            f"{_size(self.total_bytes)}, {counted(self.records, 'record')}, "
            f"{now['records_per_second']:.0f} records/s, {counted(self.actors, 'actor')}"
        )
        if "seconds_left" in now:
            text += f", {now['seconds_left']:.0f} s left"
        if self.failed:
            text += f", {self.failed} failed"
        return text


def counted(count: int, one: str) -> str:
    """A number of things in words: `1 object`, `2 objects`."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
