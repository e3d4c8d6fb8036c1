"""Pictures of a graph: as text and Mermaid, with what a run made of it where one is given."""

from harness.graph.picture.drawing import Arrow, Box, Drawing, drawing_of
from harness.graph.picture.mermaid import as_mermaid
from harness.graph.picture.seen import NodeSeen, RunSeen, run_seen
from harness.graph.picture.text import as_text

__all__ = [
    "Arrow",
    "Box",
    "Drawing",
    "NodeSeen",
    "RunSeen",
    "as_mermaid",
    "as_text",
    "drawing_of",
    "run_seen",
]
