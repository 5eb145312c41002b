#!/usr/bin/env python3
"""What a release is called, and what is new in it: for scripts/release_check.sh and the workflow of releases.

    scripts/release_notes.py version                    the version in Cargo.toml
    scripts/release_notes.py check [--tag vX.Y.Z]       whether all places name the same version
    scripts/release_notes.py notes [--links URL]        the section of CHANGELOG.md, for the page of the release

`check` compares Cargo.toml, the Helm chart, the first section of CHANGELOG.md, and the tag if it is given.
--unreleased, for a rehearsal, takes the section `Unreleased` in place of the version's. --links is what
the notes' relative links begin with. Requires Python 3.8 or later and nothing else.
"""

import argparse
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHART = "deploy/helm/tensorserve/Chart.yaml"
UNRELEASED = "Unreleased"
# GitHub refuses longer texts for the page of a release.
MAX_NOTES = 125_000


class ReleaseError(Exception):
    """An error for the user, printed without a traceback."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["version", "check", "notes"])
    parser.add_argument("--tag", help="the tag of the release")
    parser.add_argument("--links", metavar="URL", help="what relative links begin with")
    parser.add_argument("--unreleased", action="store_true", help="rehearse with that section")
    args = parser.parse_args()
    try:
        print(run(args))
    except ReleaseError as error:
        sys.exit(f"error: {error}")


def run(args):
    version = cargo_version(read("Cargo.toml"))
    if args.command == "version":
        return version
    title, notes = first_section(read("CHANGELOG.md"))
    check_title(title, version, args.unreleased)
    if args.command == "notes":
        return with_links(notes, args.links) if args.links else notes
    if not notes:
        raise ReleaseError(f"the section {title} of CHANGELOG.md is empty")
    if len(notes) > MAX_NOTES:
        raise ReleaseError(f"the section {title} has {len(notes)} of {MAX_NOTES} characters")
    for key, found in chart_versions(read(CHART)).items():
        if found != version:
            raise ReleaseError(f"{CHART} has {key} {found}, Cargo.toml has {version}")
    if args.tag and args.tag != f"v{version}":
        raise ReleaseError(f"the tag is {args.tag}, Cargo.toml has {version}: expected v{version}")
    return f"version {version}: Cargo.toml, the Helm chart{', the tag' if args.tag else ''} and the section {title} agree"


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def cargo_version(manifest):
    """The version of the workspace.

    >>> cargo_version('[workspace]\\n[workspace.package]\\nedition = "2024"\\nversion = "1.2.0-rc.1"\\n[lib]\\n')
    '1.2.0-rc.1'
    >>> cargo_version('[workspace.package]\\n[dependencies]\\nversion = "3.0.0"\\n')
    Traceback (most recent call last):
    release_notes.ReleaseError: Cargo.toml has no version in [workspace.package]
    """
    table = re.search(r"^\[workspace\.package\]\n((?:[^\[].*\n|\n)*)", manifest, re.MULTILINE)
    found = table and re.search(r'^version\s*=\s*"([^"]+)"', table[1], re.MULTILINE)
    if not found:
        raise ReleaseError("Cargo.toml has no version in [workspace.package]")
    return found[1]


def chart_versions(chart):
    """The versions of a Helm chart, and of the program that it starts.

    >>> chart_versions('name: a\\nversion: 0.1.0\\nappVersion: "0.2.0"\\nkubeVersion: ">=1.27.0-0"\\n')
    {'version': '0.1.0', 'appVersion': '0.2.0'}
    """
    return dict(re.findall(r'^(version|appVersion): "?([^"\s]+)', chart, re.MULTILINE))


def first_section(changelog):
    """The title of the first section, and its text.

    >>> first_section('# Changelog\\n\\n## 0.2.0 (2027-01-02)\\n\\n### Fixed\\n\\n* This.\\n\\n## 0.1.0\\n\\n* That.\\n')
    ('0.2.0 (2027-01-02)', '### Fixed\\n\\n* This.')
    >>> first_section('# Changelog\\n')
    Traceback (most recent call last):
    release_notes.ReleaseError: CHANGELOG.md has no section
    """
    sections = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    if len(sections) < 3:
        raise ReleaseError("CHANGELOG.md has no section")
    return sections[1].strip(), sections[2].strip()


def check_title(title, version, is_rehearsal):
    """Whether the first section is the one of this release: its version, perhaps with a date in parentheses.

    >>> check_title("0.1.0", "0.1.0", False)
    >>> check_title("0.1.0 (2027-01-02)", "0.1.0", False)
    >>> check_title("Unreleased", "0.1.0", True)
    >>> check_title("0.1.0-rc.1", "0.1.0", False)
    Traceback (most recent call last):
    release_notes.ReleaseError: CHANGELOG.md begins with the section 0.1.0-rc.1, expected 0.1.0
    >>> check_title("Unreleased", "0.1.0", False)
    Traceback (most recent call last):
    release_notes.ReleaseError: CHANGELOG.md begins with the section Unreleased, expected 0.1.0; --unreleased rehearses with it
    """
    expected = UNRELEASED if is_rehearsal else version
    if not re.fullmatch(re.escape(expected) + r"( \(\d{4}-\d{2}-\d{2}\))?", title):
        hint = "; --unreleased rehearses with it" if title == UNRELEASED else ""
        raise ReleaseError(
            f"CHANGELOG.md begins with the section {title}, expected {expected}{hint}"
        )


def with_links(notes, base):
    """The notes with absolute links: the page of a release is not in the folder of CHANGELOG.md.

    >>> with_links("[a](docs/a.md#b), [c](https://c.example), [d](#d)", "https://e.example/v1")
    '[a](https://e.example/v1/docs/a.md#b), [c](https://c.example), [d](#d)'
    """
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({base.rstrip('/')}/", notes)


if __name__ == "__main__":
    main()
