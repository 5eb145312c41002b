"""`tensorserve-ray transform` on three nodes: losses, resuming, failures, and what is said about them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from fleet import MODEL, VARIABLES, Fleet, processes, rows
from running import wait_until

OBJECTS = 500
# Of 1,000 bytes. The first object has 40 % of them.
ROWS = 40_000
OPTIONS = [
    "--content-type=text/csv",
    "--accept=text/csv",
    "--input-filter=$[0]",
    "--batch-rows=256",
    "--range-mb=1",
]
# A driver that does not wait long for another one.
IMPATIENT = """
import sys, tensorserve.ray.cluster as cluster
from tensorserve.ray.__main__ import main
cluster._HELD_TIMEOUT = 0.5
sys.exit(main())
"""


def arguments(source, output):
    return [MODEL, f"--input=s3://bucket/{source}", f"--output=s3://bucket/{output}", *OPTIONS]


class RayTransform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet()
        cls.addClassCleanup(cls.fleet.close)
        large, small = ROWS * 2 // 5, ROWS * 3 // 5 // (OBJECTS - 1)
        cls.fleet.store.put("in/large.csv", rows(0, large))
        for index in range(OBJECTS - 1):
            cls.fleet.store.put(f"in/small/{index:03}.csv", rows(index, small))
        for index in range(6):
            cls.fleet.store.put(f"few/{index}.csv", rows(index, 2000))
        pairs = [("in/", "alone/"), ("few/", "few-alone/")]
        alone = [cls.fleet.start_alone(arguments(*pair)) for pair in pairs]
        # Meanwhile.
        cls.fleet.start_nodes(3)
        cls.addClassCleanup(cls.fleet.stop_nodes)
        assert [process.wait(timeout=300) for process in alone] == [0, 0]

    def assert_equal_to(self, alone, output):
        expected, found = self.fleet.store.outputs(alone), self.fleet.store.outputs(output)
        self.assertEqual(sorted(found), sorted(expected))
        for key, content in expected.items():
            self.assertTrue(found[key] == content, f"{key} differs")

    def plan(self, output):
        store = self.fleet.store.client
        found = store.list_objects_v2(Bucket="bucket", Prefix=f"{output}_transform/plan-")
        (key,) = [item["Key"] for item in found["Contents"]]
        text = store.get_object(Bucket="bucket", Key=key)["Body"].read()
        return [json.loads(line) for line in text.splitlines()]

    def test_a_node_and_the_driver_are_killed(self):
        fleet, output, location = self.fleet, "killed/", "s3://bucket/killed/"
        command = arguments("in/", output)
        driver = fleet.start([*command, "--progress=json"])
        self.addCleanup(driver.kill)
        wait_until(lambda: fleet.done(output) or driver.poll() is not None, "the first entry")
        entries = len(self.plan(output))
        self.assertGreater(entries, 20)

        done = [wait_until(lambda: self.when_done(output, entries * 0.3, driver), "30 %")]
        fleet.kill_node()
        # So that the job does not end while a node joins, however long that takes.
        with stopped(location) as before:
            fleet.add_node()
            wait_until(
                lambda: set(processes(location)) - before, "a process on the node that has joined"
            )
        done.append(wait_until(lambda: self.when_done(output, entries * 0.6, driver), "60 %"))
        self.assertTrue(processes(location))
        driver.kill()
        _, said = driver.communicate()
        self.assertEqual(driver.returncode, -signal.SIGKILL, said)
        self.assertIn("was lost", said)
        wait_until(lambda: not processes(location), "the end of the processes")
        self.assertLess(len(fleet.done(output)), entries)

        status, printed, said = fleet.run([*command, "--progress=json"])
        self.assertEqual(status, 0, said)
        self.assert_equal_to("alone/", output)
        last = json.loads(printed.splitlines()[-1])
        self.assertEqual(last["entries"], last["total_entries"])
        self.assertLess(last["entries"], entries * 0.5)
        self.assert_published_once(output, done)
        # Nothing is left to do.
        status, printed, said = fleet.run([*command, "--progress=json"])
        self.assertEqual((status, json.loads(printed.splitlines()[-1])["entries"]), (0, 0), said)

    def when_done(self, output, count, driver):
        self.assertIsNone(driver.poll(), "the driver has ended")
        done = self.fleet.done(output)
        return done if len(done) >= count else None

    def assert_published_once(self, output, done):
        """What was done before a loss is not done again; what was under way is, once for each loss."""
        versions = self.fleet.versions(output)
        again = {}
        for entry in self.plan(output):
            number = entry["entry"]
            self.assertEqual(versions[f"_transform/done/{number:09}.json"], 1, entry)
            keys = [f"{each['key']}.out" for each in entry["objects"]]
            if entry.get("range"):
                keys = [f"_transform/parts/{number:09}"]
            most = 3 - sum(number in seen for seen in done)
            for key in keys:
                self.assertLessEqual(versions[key], most, f"{key}: {versions[key]} times")
                again.update({number: key} if versions[key] > 1 else {})
        # Two entry threads, each with one entry, of the node and of three at the end of the driver.
        self.assertLessEqual(len(again), 2 + 3 * 2, again)

    def kill_one_process(self, driver, location):
        """Kills a process without grace once it has entries, which another one is to take over."""

        def at_work():
            self.assertIsNone(driver.poll(), "the driver has ended")
            # It has loaded its model: its threads of the pool are there.
            return [pid for pid in processes(location) if threads(pid) > 4]

        os.kill(wait_until(at_work, "a process")[0], signal.SIGKILL)

    def test_processes_are_killed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
            json.dump({"BatchStrategy": "MultiRecord"}, job)
            job.flush()
            options = [f"--job-file={job.name}"]
            command = [*arguments("few/", "given-up/"), *options, "--entry-retries=0"]
            driver = self.fleet.start(command)
            self.kill_one_process(driver, "s3://bucket/given-up/")
            _, said = driver.communicate(timeout=300)
            self.assertEqual(driver.returncode, 1, said)
            self.assertIn("the process ended with signal SIGKILL", said)
            self.assertIn("its process was lost 1 times", said)

            # Not the rest of that job: there may be fewer entries than processes.
            driver = self.fleet.start([*arguments("few/", "taken-over/"), *options])
            self.kill_one_process(driver, "s3://bucket/taken-over/")
            _, said = driver.communicate(timeout=300)
            self.assertEqual(driver.returncode, 0, said)
            self.assertRegex(said, "entries were run again|1 entry was run again")

            status, _, said = self.fleet.run([*arguments("few/", "given-up/"), *options])
            self.assertEqual(status, 0, said)
        for output in ("given-up/", "taken-over/"):
            self.assert_equal_to("few-alone/", output)

    def test_processes_that_always_end_end_the_job(self):
        ended = threading.Event()

        def kill_all():
            while not ended.wait(0.01):
                send(processes("s3://bucket/never/"), signal.SIGKILL)

        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            status, _, said = self.fleet.run([*arguments("few/", "never/"), "--actors=1"])
        finally:
            ended.set()
            killer.join()
        self.assertEqual(status, 3, said)
        self.assertIn("error: the process ended with signal SIGKILL", said)

    def test_bad_records(self):
        put = self.fleet.store.put
        for index in range(3):
            put(f"bad/{index}.csv", rows(0, 1500) + b"x,y\n" * 4 + rows(0, 3000))
        put("bad/good.csv", rows(0, 10))
        command = [*arguments("bad/", "bad-out/"), "--progress=json"]
        status, printed, said = self.fleet.run(command)
        self.assertEqual(status, 1, said)
        self.assertEqual(sorted(self.fleet.store.outputs("bad-out/")), ["good.csv.out"])
        last = json.loads(printed.splitlines()[-1])
        self.assertEqual((last["objects"], last["failed_objects"]), (1, 3))
        # Of the second range: lines are counted from its start, bytes from that of the object.
        self.assertRegex(said, "  0.csv: line [0-9]+, byte 1510810: ")
        self.assertIn("3 objects failed", said)

        # No process sees more than the limit; all of them together do.
        command = [*arguments("bad/", "bad-skip/"), "--on-bad-record=skip", "--max-bad-records=11"]
        status, _, said = self.fleet.run(command)
        self.assertEqual(status, 3, said)
        self.assertIn("12 of ", said)
        self.assertIn("records are bad, more than --max-bad-records allows", said)

    def test_one_driver_at_a_time_and_ctrl_c(self):
        command, location = arguments("in/", "held/"), "s3://bucket/held/"
        driver = self.fleet.start(command)
        self.addCleanup(driver.kill)
        # As soon as there is one: what processes have begun is finished, and a job that is done was not interrupted.
        wait_until(lambda: processes(location), "a process")
        with stopped(location):
            other = self.fleet.start(command, program=("-c", IMPATIENT))
            _, said = other.communicate(timeout=300)
            self.assertEqual(other.returncode, 3, said)
            held = f"another driver writes to {location[:-1]} (process {driver.pid} on"
            self.assertIn(held, said)
            driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=300)
        self.assertEqual(driver.returncode, 130, said)
        self.assertIn("interrupted: ", said)
        wait_until(lambda: not processes(location), "the end of the processes")

    def test_wrong_options_and_missing_things(self):
        few = arguments("few/", "wrong/")
        cases = [
            ([*few, "--split=lines"], 2, "lines"),
            ([*few, "--no-such-option"], 2, "unexpected argument '--no-such-option'"),
            (["/no/such/model", *few[1:]], 2, "/no/such/model"),
            ([*few, "--shard=0/2"], 2, "--shard is not for tensorserve-ray"),
            ([MODEL, "--input=s3://bucket/few/"], 2, "no output"),
            ([*few, "--job-file=/no/such/file"], 2, "/no/such/file"),
            ([*few, "--actors=0"], 2, "--actors"),
        ]
        drivers = [self.fleet.start(command) for command, _, _ in cases]
        for driver, (command, status, text) in zip(drivers, cases, strict=True):
            _, said = driver.communicate(timeout=300)
            with self.subTest(command):
                self.assertEqual(driver.returncode, status, said)
                self.assertIn(text, said)
                self.assertNotIn("Traceback", said)

    def test_without_a_cluster_without_ray_and_without_the_program(self):
        few = ["transform", *arguments("few/", "wrong/")]
        python = os.path.join(sys.base_prefix, "bin/python3")
        cases = [
            (
                sys.executable,
                ["--address=127.0.0.1:1"],
                {},
                "--address 127.0.0.1:1 is not reachable",
            ),
            (sys.executable, ["--dry-run"], {"TENSORSERVE_BINARY": "/x"}, "/x is not a program"),
            (python, [], {}, "Ray is not installed: pip install 'tensorserve[ray]'"),
        ]
        for interpreter, more, env, text in cases:
            with self.subTest(text):
                command = [interpreter, "-m", "tensorserve.ray", *few, *more]
                ended = subprocess.run(
                    command, env=VARIABLES | env, check=False, capture_output=True, text=True
                )
                self.assertNotEqual(ended.returncode, 0)
                self.assertIn(text, ended.stderr)
                self.assertNotIn("Traceback", ended.stderr)


@contextlib.contextmanager
def stopped(location):
    """Stops the processes of a job, those that start meanwhile too, and lets them go on."""
    before = set(processes(location))
    found = set(before)
    send(found, signal.SIGSTOP)
    ended = threading.Event()

    def stop_others():
        while not ended.wait(0.01):
            started = set(processes(location)) - found
            send(started, signal.SIGSTOP)
            found.update(started)

    stopper = threading.Thread(target=stop_others)
    stopper.start()
    try:
        yield before
    finally:
        ended.set()
        stopper.join()
        send(found, signal.SIGCONT)


def send(found, number):
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def threads(pid):
    """The number of threads of a process; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    unittest.main()
