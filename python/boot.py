"""The start of a worker process: creates modules from the sources that the server has sent.

The server writes this file, followed by a call of boot(), to an anonymous file in memory, and has
the interpreter run that. So nothing of the server is read from the disk or written to it.
"""


def boot(modules, settings):
    """Creates `modules` (sources by name) and runs tensorserve_worker with `settings`."""
    import linecache
    import sys
    import types

    for name, source in modules.items():
        module = types.ModuleType(name)
        file = f"<{name}>"
        # Tracebacks show the source from here.
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        sys.modules[name] = module
        exec(compile(source, file, "exec"), module.__dict__)
    sys.modules["tensorserve_worker"].run(settings)
