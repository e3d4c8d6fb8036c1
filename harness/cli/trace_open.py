"""A trace, shown in the browser."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path

import click

from harness.trace.timelines.viewer import TraceViewer


def show(trace: Path, *, open_browser: bool = True, port: int = 0) -> None:
    """Shows a trace in Perfetto until its tab is closed; Ctrl-C comes out as it is.

    Standard error has the address.

    Args:
        trace: The file.
        open_browser: Whether to start the browser, or leave the address to the person.
        port: Where to serve; 0 for any free port.

    Raises:
        InvalidInput: There is no such file, the port is taken, or the UI is not installed.
    """
    with TraceViewer(trace, port=port) as viewer:
        # As it is: without its token, the address opens nothing.
        click.echo(f"Perfetto at {viewer.url} (close the tab or press Ctrl-C to stop)", err=True)
        if open_browser:
            # Some browsers, those in a terminal above all, keep their caller until they are left.
            threading.Thread(target=webbrowser.open, args=[viewer.url], daemon=True).start()
        viewer.serve_until_closed()
