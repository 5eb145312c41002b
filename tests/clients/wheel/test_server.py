"""tensorserve.Server: it starts, says why it does not, and never outlives its owner."""

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path

import tensorserve
from support import IRIS, MODELS, XGBOOST

FAST = {"grpc_port": None, "load_probe": False}


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid, seconds=300):
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} still ran after {seconds} s")
        time.sleep(0.05)


class ServerTest(unittest.TestCase):
    def test_it_serves_for_the_length_of_a_with_block(self):
        with tensorserve.Server(Path(MODELS) / "half_plus_two") as server:
            pid = server.pid
            self.assertTrue(server.is_running)
            self.assertRegex(server.url, r"^http://127\.0\.0\.1:\d+$")
            self.assertRegex(server.grpc_address, r"^127\.0\.0\.1:\d+$")
            self.assertEqual(server.client().models(), ["half_plus_two"])
            self.assertIn("ready after", server.log)
            self.assertIn(server.url, repr(server))
        self.assertFalse(is_alive(pid))
        self.assertFalse(server.is_running)
        self.assertIn("SIGTERM: shutting down", server.log)
        with self.assertRaisesRegex(tensorserve.Error, "does not run"):
            _ = server.url
        server.stop()

    def test_it_can_be_started_again(self):
        server = tensorserve.Server(XGBOOST, **FAST)
        for _ in range(2):
            self.assertIs(server.start(), server)
            self.assertIsNone(server.grpc_address)
            self.assertTrue(server.client().is_ready())
            with self.assertRaisesRegex(tensorserve.Error, "is running already"):
                server.start()
            server.stop()

    def test_models_may_have_names_and_settings(self):
        odd = 'a "quoted" Ünï\\code'
        with tempfile.TemporaryDirectory() as folder:
            link = os.path.join(folder, odd)
            os.symlink(XGBOOST, link + ".json")
            models = {"iris": os.path.relpath(XGBOOST), "odd": link + ".json"}
            settings = {"max_batch_size": 7, "allowed_batch_sizes": [1, 7], "console": False}
            with tensorserve.Server(models, **FAST, **settings) as server:
                client = server.client()
                self.assertEqual(client.models(), ["iris", "odd"])
                self.assertEqual(client.predict("iris", IRIS), client.predict("odd", IRIS))
        paths = [os.path.join(MODELS, "half_plus_two"), XGBOOST]
        with tensorserve.Server(paths, **FAST) as server:
            self.assertEqual(server.client().models(), ["half_plus_two", "iris_softprob"])

    def test_a_configuration_file_works_with_and_without_models(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "tensorserve.toml")
            Path(config).write_text(f'[[models]]\nname = "a"\npath = "{XGBOOST}"\n')
            with tensorserve.Server(config=config, **FAST) as server:
                self.assertEqual(server.client().models(), ["a"])
        with self.assertRaisesRegex(ValueError, "nothing to serve"):
            tensorserve.Server()
        with self.assertRaisesRegex(ValueError, "configuration file"):
            tensorserve.Server({"a": "b"}, config=config)

    def test_a_server_that_cannot_start_says_why(self):
        mistakes = {
            "there is no such file or directory": ("/no/such/models", {}),
            "did you mean --max-batch-size": (MODELS, {"max_batch_siez": 3}),
            "status 1": (MODELS, {"batching": "maybe"}),
        }
        for message, (models, settings) in mistakes.items():
            with self.assertRaises(tensorserve.StartError) as caught:
                tensorserve.Server(models, **FAST, **settings).start()
            self.assertIn(message, str(caught.exception))
            self.assertIn("the server ended with status", str(caught.exception))
            self.assertTrue(caught.exception.log)

    def test_a_port_that_is_taken_is_an_error(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with self.assertRaisesRegex(tensorserve.StartError, str(port)):
                tensorserve.Server(XGBOOST, port=port, **FAST).start()

    def test_a_model_that_cannot_be_loaded_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = os.path.join(folder, "broken.json")
            Path(broken).write_text("{")
            server = tensorserve.Server(broken, platform="xgboost", max_load_retries=0, **FAST)
            with self.assertRaises(tensorserve.StartError) as caught:
                server.start()
        self.assertIn("not ready", str(caught.exception))
        self.assertIn("broken", str(caught.exception))
        self.assertFalse(server.is_running)

    def test_it_does_not_wait_longer_than_its_timeout(self):
        loops = os.path.join(MODELS, "../tests/data/probe/loops_in_load")
        server = tensorserve.Server(loops, timeout=2, grpc_port=None)
        with self.assertRaisesRegex(tensorserve.StartError, "not ready within 2 s"):
            server.start()
        self.assertFalse(server.is_running)

    def test_a_server_that_does_not_stop_is_killed(self):
        server = tensorserve.Server(XGBOOST, shutdown_delay="30s", **FAST).start()
        pid, start = server.pid, time.monotonic()
        server.stop(timeout=1)
        self.assertLess(time.monotonic() - start, 10)
        self.assertFalse(is_alive(pid))

    def test_requests_in_flight_are_answered_before_it_stops(self):
        slow = os.path.join(MODELS, "half_plus_two")
        results = []
        with tensorserve.Server(slow, **FAST) as server:
            client = server.client()

            def ask():
                results.append(client.predict("half_plus_two", [1.0]))

            threads = [threading.Thread(target=ask) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, [[2.5]] * 16)

    def test_a_server_that_nobody_refers_to_is_stopped(self):
        server = tensorserve.Server(XGBOOST, **FAST).start()
        pid = server.pid
        client = server.client()
        del server
        gc.collect()
        self.assertTrue(is_alive(pid))
        self.assertEqual(len(client.predict("iris_softprob", IRIS)), 1)
        del client
        gc.collect()
        self.assertFalse(is_alive(pid))


class OwnerTest(unittest.TestCase):
    """How the end of the process that has started a server ends the server."""

    def owner(self, code):
        """Starts a process with a server, and returns both: the process, and the server's id."""
        script = f"""
            import os, signal, sys, threading, time
            import tensorserve
            # A shell starts background jobs with Ctrl-C ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            server = tensorserve.Server({XGBOOST!r}, **{FAST!r}).start()
            print(server.pid, flush=True)
        """
        script = textwrap.dedent(script) + textwrap.dedent(code)
        # Tracebacks are expected.
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([sys.executable, "-c", script], text=True, **output)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, int(process.stdout.readline())

    def test_a_regular_exit_ends_it(self):
        for code in ("", "sys.exit(3)", "raise ValueError", "sys.modules.clear()"):
            process, pid = self.owner(code)
            process.wait()
            wait_for_end(pid)

    def test_an_exit_without_clean_up_ends_it(self):
        for code in ("os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"):
            process, pid = self.owner(code)
            process.wait()
            wait_for_end(pid)

    def test_it_ends_although_a_fork_of_its_owner_lives(self):
        # Lives for longer than the test waits, and inherits what its parent has open.
        process, pid = self.owner("""
            child = os.fork()
            if child == 0:
                os.close(1)
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
        child = int(process.stdout.readline())
        process.wait()
        try:
            wait_for_end(pid)
            self.assertTrue(is_alive(child))
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_fork_that_exits_does_not_end_it(self):
        process, pid = self.owner("""
            child = os.fork()
            if child == 0:
                server.stop()
                sys.exit(0)
            os.waitpid(child, 0)
            print(server.client().is_ready(), flush=True)
            time.sleep(60)
        """)
        self.assertEqual(process.stdout.readline(), "True\n")
        self.assertTrue(is_alive(pid))

    def test_the_end_of_the_thread_that_started_it_does_not_end_it(self):
        servers = []

        def start():
            servers.append(tensorserve.Server(XGBOOST, **FAST).start())

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        self.assertTrue(servers[0].client().is_ready())
        servers[0].stop()

    def test_ctrl_c_ends_the_owner_and_with_it_the_server(self):
        process, pid = self.owner("""
            try:
                print("waiting", flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                # Not in the process group that the terminal interrupts.
                print(server.client().is_ready(), flush=True)
        """)
        self.assertEqual(process.stdout.readline(), "waiting\n")
        os.kill(process.pid, signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "True\n")
        process.wait()
        wait_for_end(pid)


if __name__ == "__main__":
    unittest.main()
