"""`diskgnn`, and `python -m diskgnn`, which is the same."""

import signal


def main() -> None:
    """Runs the command line.

    Until a command begins, while modules are imported, Ctrl-C ends the process as it ends programs that know nothing
    of it: with status 130 for a shell, and without a traceback through imports.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from diskgnn.cli import main as run

    run()


if __name__ == "__main__":
    main()
