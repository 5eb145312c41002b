"""Counts how often cache lines move between threads for a request: what cores share costs little on two of them, and
more than the request on many. See docs/decisions/0034-cores-share-what-they-must.md.

    python3 benches/cores/count.py target/release/tensorserve models/half_plus_two [OPTION OF serve ...]

Needs qemu-user (7.2 or later), gcc, and addr2line for names. The program must not be stripped for these.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

CONNECTIONS = 2
REQUESTS = 1000
BODY = json.dumps({"instances": [1.0, 2.0, 5.0]})
# Lines that move this often for a request are listed.
LISTED = 0.25


def main():
    program, model, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "lines"
        plugin = Path(folder) / "lines.so"
        source = Path(__file__).with_name("lines.c")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
        emulator = ["qemu-x86_64", "-cpu", "max", "-plugin", f"file={plugin},at={prefix}"]
        # The emulator cannot fork a process with threads, and makes runs long.
        serve = ["serve", "--http-port", "0", "--grpc-port", "off", "--load-probe", "false"]
        inline = ["--inline-budget-micros", "1000000000"]
        server = subprocess.Popen(
            [*emulator, program, *serve, *inline, *options, model],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            count(server, program, Path(model).resolve().name, prefix)
        finally:
            server.kill()
            server.wait()


def count(server, program, model, prefix):
    port = port_of(server)
    path = f"/v1/models/{model}:predict"
    load(port, path, 300)
    (on, dump) = (prefix.with_suffix(".on"), prefix.with_suffix(".dump"))
    on.touch()
    time.sleep(0.2)
    load(port, path, REQUESTS)
    dump.touch()
    while dump.exists():
        time.sleep(0.05)
    places = mapped(server.pid)
    lines = [row.split("\t") for row in prefix.with_suffix(".tsv").read_text().splitlines()]
    by_code = Counter()
    for line in lines:
        for instruction, moves in instructions(line):
            by_code[place_of(instruction, places)[0]] += moves
    print("moves of cache lines for a request, by the code that moves them")
    for name, moves in by_code.most_common():
        if moves >= REQUESTS / 100:
            print(f"{moves / REQUESTS:8.2f}  {name}")
    show_own(lines, places, Path(program).resolve())


def show_own(lines, places, program):
    """The lines that the program itself moves, with the source of the code that moves each most."""
    rows = []
    for line in lines:
        own = [
            (moves, instruction)
            for instruction, moves in instructions(line)
            if place_of(instruction, places)[0] == program.name
        ]
        total = sum(moves for moves, _ in own)
        if total >= LISTED * REQUESTS:
            rows.append((total, line[1], max(own)[1]))
    print(f"lines of {program.name} itself that move {LISTED} times or more for a request")
    for total, writers, instruction in sorted(rows, reverse=True):
        (_, offset) = place_of(instruction, places)
        print(f"{total / REQUESTS:8.2f}  written by {writers}: {source_of(program, offset)}")


def port_of(server):
    """The port of the server, once it is ready."""
    port = None
    for line in server.stdout:
        if "http://" in line:
            port = int(line.split("http://")[1].split("/")[0].split(":")[1].split()[0])
        if line.startswith("ready"):
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return port
    raise SystemExit("the server did not start")


def load(port, path, requests):
    def send():
        client = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(requests // CONNECTIONS):
            client.request("POST", path, BODY, {"content-type": "application/json"})
            response = client.getresponse()
            if response.status != 200:
                raise SystemExit(response.read())
            response.read()

    threads = [threading.Thread(target=send) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def instructions(line):
    for field in line[5:]:
        (instruction, moves) = field.split(":")
        yield int(instruction, 16), int(moves)


def mapped(process):
    """The files that are mapped: first and last address, path, and the address of the file's beginning."""
    bases = {}
    places = []
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) < 6:
            continue
        (first, last) = (int(part, 16) for part in fields[0].split("-"))
        base = bases.setdefault(fields[5], first - int(fields[2], 16))
        places.append((first, last, fields[5], base))
    return places


def place_of(address, places):
    """The name of the file at an address, and the offset in it."""
    for first, last, path, base in places:
        if first <= address < last:
            return os.path.basename(path), address - base
    return "?", 0


def source_of(program, offset):
    """The functions at an offset, innermost first, those of the standard library left out."""
    command = ["addr2line", "-e", program, "-i", "-f", "-C", hex(offset)]
    text = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = text.stdout.splitlines()
    found = []
    for name, place in zip(lines[::2], lines[1::2], strict=False):
        if "/rustc/" not in place and "??" not in place:
            function = name.rsplit("::", 1)[-1].split("<")[0]
            found.append(f"{function} ({'/'.join(place.split(' ')[0].split('/')[-3:])})")
    return " < ".join(found[:3]) or "unknown (stripped?)"


if __name__ == "__main__":
    main()
