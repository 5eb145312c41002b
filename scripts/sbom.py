#!/usr/bin/env python3
"""Writes the list of everything in an image, or in the program alone (SBOM), as CycloneDX JSON.

It names each component with its version, package URL and licence:

    --cargo FILE    the crates in the binary: the output of `cargo metadata --format-version 1
                    --filter-platform TRIPLE`
    --root DIR      the files of the image: Debian's packages (dpkg's database), the libraries that
                    scripts/fetch_*.py have unpacked (/opt/tensorserve/*/FETCHED.json), and the
                    packages that pip has installed (/usr/local); without it, the crates alone

The Dockerfiles call it in a stage of the build, and scripts/release_check.sh for the program. Requires
Python 3.8 or later and nothing else.
"""

import argparse
import glob
import json
import os
import re
import sys
import uuid
from email.parser import HeaderParser
from urllib.parse import quote

SPEC_VERSION = "1.6"
PROGRAM = "tensorserve"

# The names that copyright files refer to, in the terms of SPDX.
COMMON_LICENCES = {
    "Apache-2.0": "Apache-2.0",
    "Artistic": "Artistic-1.0-Perl",
    "BSD": "BSD-3-Clause",
    "CC0-1.0": "CC0-1.0",
    "GFDL-1.3": "GFDL-1.3-only",
    "GPL": "GPL-1.0-or-later",
    "GPL-1": "GPL-1.0-only",
    "GPL-2": "GPL-2.0-only",
    "GPL-3": "GPL-3.0-only",
    "LGPL": "LGPL-2.0-or-later",
    "LGPL-2": "LGPL-2.0-only",
    "LGPL-2.1": "LGPL-2.1-only",
    "LGPL-3": "LGPL-3.0-only",
    "MPL-1.1": "MPL-1.1",
    "MPL-2.0": "MPL-2.0",
}
# An expression of SPDX, as far as crates and wheels use it.
EXPRESSION = re.compile(r"\(?[\w.+-]+( (AND|OR|WITH) \(?[\w.+-]+\)?)*\)?")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cargo", metavar="FILE", required=True)
    parser.add_argument("--root", metavar="DIR")
    parser.add_argument("--output", metavar="FILE", required=True)
    args = parser.parse_args()
    with open(args.cargo, encoding="utf-8") as file:
        program, components = crates(json.load(file))
    if args.root:
        components += image_components(args.root)
    document = bom(program, components)
    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    print(f"{args.output}: {len(document['components'])} components")


def image_components(root):
    found = debian_packages(root)
    for stamp in glob.glob(os.path.join(root, "opt/tensorserve/*/FETCHED.json")):
        found += fetched_libraries(os.path.dirname(stamp))
    for folder in glob.glob(os.path.join(root, "usr/local/lib/python3*/dist-packages")):
        found += python_packages(folder)
    return found


def bom(program, components):
    """The document. The same components give the same document, byte for byte."""
    unique = {component["purl"]: component for component in components}
    components = [unique[purl] for purl in sorted(unique)]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([program, components]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": program},
        "components": components,
    }


def component(kind, name, version, purl, licence, is_expression=True):
    licence = " ".join(licence.split())
    found = {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if is_expression and EXPRESSION.fullmatch(licence):
        found["licenses"] = [{"expression": licence}]
    else:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


# --- crates --------------------------------------------------------------------------------------


def crates(metadata):
    """The program, and the crates that are compiled into it."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    roots = [key for key, package in packages.items() if package["name"] == PROGRAM]
    if len(roots) != 1:
        sys.exit(f"error: the metadata has {len(roots)} packages named {PROGRAM}")
    inside, waiting = set(), roots[:]
    while waiting:
        key = waiting.pop()
        if key in inside:
            continue
        inside.add(key)
        waiting += [dep["pkg"] for dep in nodes[key]["deps"] if is_compiled_in(dep)]
    inside.remove(roots[0])
    program = crate(packages[roots[0]])
    program["type"] = "application"
    return program, [crate(packages[key]) for key in inside]


def is_compiled_in(dependency):
    """Whether it is neither for tests nor for build scripts alone."""
    return any(kind["kind"] is None for kind in dependency["dep_kinds"])


def crate(package):
    name, version = package["name"], package["version"]
    # Some crates have the older form MIT/Apache-2.0.
    licence = (package["license"] or "").replace("/", " OR ") or f"file {package['license_file']}"
    return component("library", name, version, f"pkg:cargo/{name}@{version}", licence)


# --- Debian --------------------------------------------------------------------------------------


def debian_packages(root):
    """The packages in dpkg's database: its status file, or one file for each package (status.d)."""
    database = os.path.join(root, "var/lib/dpkg")
    files = [os.path.join(database, "status"), *sorted(glob.glob(f"{database}/status.d/*"))]
    files = [file for file in files if os.path.isfile(file)]
    if not files:
        sys.exit(f"error: {database} has no list of packages")
    found = []
    for file in files:
        with open(file, encoding="utf-8") as status:
            paragraphs = status.read().split("\n\n")
        for paragraph in filter(str.strip, paragraphs):
            fields = HeaderParser().parsestr(paragraph)
            if "installed" in fields.get("Status", "install ok installed").split():
                found.append(debian_package(root, fields))
    return found


def debian_package(root, fields):
    name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
    purl = f"pkg:deb/debian/{name}@{quote(version, safe='.+~-')}?arch={machine}"
    text = read(os.path.join(root, "usr/share/doc", name, "copyright"))
    # Debian's names are not those of SPDX.
    declared = re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)
    if declared:
        licences = ", ".join(sorted({licence.strip() for licence in declared}))
        return component("library", name, version, purl, licences, is_expression=False)
    return component("library", name, version, purl, licences_referred_to(text, name))


def licences_referred_to(copyright_text, name):
    """The licences whose texts a copyright file without declarations refers to."""
    referred = re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", copyright_text)
    known = sorted({COMMON_LICENCES[name] for name in referred if name in COMMON_LICENCES})
    return " AND ".join(known) or f"see /usr/share/doc/{name}/copyright"


# --- wheels --------------------------------------------------------------------------------------


def fetched_libraries(folder):
    """The wheels of which FETCHED.json says that libraries were taken."""
    with open(os.path.join(folder, "FETCHED.json"), encoding="utf-8") as file:
        wheels = json.load(file)["wheels"]
    found = []
    for wheel, sha256 in wheels.items():
        name, version = wheel.split("-")[:2]
        text = "".join(read(path) for path in licence_files(folder, name))
        licence = licence_of_text(text) or f"see licenses/{name}"
        purl = f"pkg:pypi/{name.replace('_', '-').lower()}@{version}"
        library = component("library", name.replace("_", "-"), version, purl, licence)
        library["hashes"] = [{"alg": "SHA-256", "content": sha256}]
        found.append(library)
    return found


def licence_files(folder, name):
    # wheels.py names the directory as the wheel does.
    return sorted(glob.glob(os.path.join(folder, "licenses", name, "LICENSE*")))


def licence_of_text(text):
    start = " ".join(text[:2000].split())
    for mark, licence in (
        ("Apache License Version 2.0", "Apache-2.0"),
        ("MIT License", "MIT"),
        ("NVIDIA", "LicenseRef-NVIDIA-CUDA"),
    ):
        if mark in start:
            return licence
    return ""


def python_packages(folder):
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "*.dist-info", "METADATA"))):
        fields = HeaderParser().parsestr(read(path))
        name, version = fields["Name"], fields["Version"]
        purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
        found.append(component("library", name, version, purl, python_licence(fields)))
    return found


def python_licence(fields):
    """The licence expression; else what the older fields say."""
    if fields["License-Expression"]:
        return fields["License-Expression"]
    classifiers = fields.get_all("Classifier", [])
    named = [text.split(" :: ")[-1] for text in classifiers if text.startswith("License ::")]
    # Some packages have the whole text there.
    line = (fields["License"] or "").strip().split("\n")[0]
    return line or " AND ".join(named) or "unknown"


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main()
