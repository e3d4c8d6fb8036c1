"""A run's spans over OTLP, to a collector that somebody named.

Imported only where something is sent: it brings an HTTP client.
"""

from harness.trace.otlp.send import send_otlp

__all__ = ["send_otlp"]
