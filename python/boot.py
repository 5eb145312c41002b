"""The start of a worker process: makes modules of the texts that the server has sent.

The server writes this file, and behind it a call of boot(), to a file in memory, and has the
interpreter run that. Nothing of ours is read from the disk, and nothing is written to it.
"""


def boot(modules, settings):
    import linecache
    import sys
    import types

    # The current folder is first on the path, and has nothing to do with this.
    if sys.path[:1] == [""]:
        del sys.path[0]
    for name, text in modules.items():
        module = types.ModuleType(name)
        file = f"<{name}>"
        # For tracebacks.
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        sys.modules[name] = module
        exec(compile(text, file, "exec"), module.__dict__)
    sys.modules["tensorserve_worker"].run(settings)
