"""Graphs that pictures are tested with."""

import random
from pathlib import Path

from harness.graph import Graph

BRIEF = Path(__file__).with_name("recorded") / "brief.jsonl"

UGLY = "\"`<b>&#;%%{init}|]]>)}--> \\ \n\x00\x7f\u2028 end 概要 🐣 #quot; ' :::"
"""A text that means something to Mermaid, HTML, XML and YAML."""


def brief() -> Graph:
    """Joined as `examples/brief.py` is, of which there is a recorded run."""
    graph = Graph("brief")

    @graph.node
    async def parts(task: str, document: str) -> list[str]: ...

    @graph.node(models=["planner"])
    async def topics(parts: list[str], task: str) -> list[str]: ...

    @graph.node(each={"topic": "topics"})
    async def sources(topic: str) -> str: ...

    @graph.node(each={"topic": "topics", "source": "sources"}, models=["producer"])
    async def sections(topic: str, source: str) -> str: ...

    @graph.node
    async def text(sections: list[str], sources: list[str], task: str) -> str: ...

    return graph


def with_names(*names: str, graph: Graph | None = None) -> Graph:
    """A chain of nodes of these names."""
    graph = graph or Graph("chain")
    for number, name in enumerate(names):
        _add(graph, name, names[number - 1 : number])
    return graph


def random_graph(nodes: int, *, seed: int, degree: int = 3, window: int = 12) -> Graph:
    """Nodes that take some of those just before them."""
    randomness = random.Random(seed)
    graph = Graph(f"random {seed}")
    names: list[str] = []
    for number in range(nodes):
        name = f"{randomness.choice(['plan', 'draft', 'findings', 'review'])}_{number}"
        near = names[-window:]
        _add(graph, name, randomness.sample(near, min(len(near), randomness.randint(0, degree))))
        names.append(name)
    return graph


def _add(graph: Graph, name: str, takes) -> None:
    namespace: dict[str, object] = {}
    exec(f"async def {name}({', '.join(takes)}): ...", namespace)
    graph.node(namespace[name])
