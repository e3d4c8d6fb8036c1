"""Graphs: nodes joined by the names of their parameters.

An edge is a parameter that bears another node's name: the node waits for the other and receives
what it returned. Every other parameter is an input of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar, overload

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.check import check_graph
from harness.graph.node import Combine, Node
from harness.graph.policies import Cache, Concurrency, OnError, Policies, Retry, Timeout
from harness.graph.read_node import read_node

P = ParamSpec("P")
R = TypeVar("R")


class Graph:
    """A set of nodes, checked as each is added.

    Args:
        name: What runs of it are called.
        retry: Of nodes that do not say; so are those below.
        timeout: How long a call may take.
        cache: Whether outputs of earlier runs will do.
        concurrency: How many calls of one node at once.
        on_error: What becomes of a node whose last attempt raised: `"fail"`, `"skip"`, or
            `Default(value)`.
        fail_fast: Whether the first failure ends the run, and not only what depends on it. What
            fails inside of a node (`run.call`, `run.map`) counts when the node fails by it.
        result: The node whose output is the result of a run; the last one when None.

    Attributes:
        nodes: By name, in the order of definition.

    Raises:
        PipelineInvalid: What is given for a policy is none.
    """

    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        timeout: Timeout | None = None,
        cache: Cache | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError | None = None,
        fail_fast: bool = False,
        result: str | None = None,
    ) -> None:
        self.name = name
        self.result = result
        self.nodes: dict[str, Node] = {}
        self.fail_fast = fail_fast
        self.policies = Policies(
            retry=retry,
            timeout=timeout,
            cache=cache,
            concurrency=concurrency,
            on_error=on_error,
        )
        if (mistake := self.policies.mistake()) is not None:
            raise PipelineInvalid(f"pipeline '{name}': {mistake}", code="pipeline.option-invalid")
        # By source: who takes it. Keeps the adding of a node from looking at all others.
        self._takers: dict[str, list[str]] = {}

    @overload
    def node(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def node(
        self,
        /,
        *,
        name: str | None = ...,
        each: Mapping[str, str] | None = ...,
        combine: Combine = ...,
        takes: Mapping[str, str] | None = ...,
        when: Callable[..., object] | None = ...,
        retry: Retry | None = ...,
        timeout: Timeout | None = ...,
        cache: Cache | None = ...,
        concurrency: Concurrency | None = ...,
        on_error: OnError | None = ...,
        models: Sequence[str] | None = ...,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def node(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        each: Mapping[str, str] | None = None,
        combine: Combine = "zip",
        takes: Mapping[str, str] | None = None,
        when: Callable[..., object] | None = None,
        retry: Retry | None = None,
        timeout: Timeout | None = None,
        cache: Cache | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError | None = None,
        models: Sequence[str] | None = None,
    ) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
        """Makes a function a node; the function itself stays as it was.

        A plain function runs in a thread. An async generator gives its items one by one: a node
        that maps over it takes each as it comes, any other node the list of all.

        What a node is given, others are given too: where it would change a list, it changes a copy.

        Constants, helpers and lists outside that the function refers to count as its code, as they
        are when the run, or its next part, begins: where they have changed, it is called again. So
        it returns what it finds, and puts it into no list outside, which a resumed run would lack.

        Args:
            function: When used without parentheses.
            name: What the node is called; as the function when left out.
            each: Maps a parameter to the node or input whose items it receives, one call per
                item, in parallel. Who consumes the node receives the list, in order. Over a mapped
                or generating node, a call begins as soon as its own items are there.
            combine: Several mapped parameters are walked side by side (`zip`), and must have the
                same number of items, or each is taken with each (`product`), the last one of the
                signature changing fastest.
            takes: Maps a parameter to the node or input that it receives, where that is not called
                as the parameter is.
            when: A plain function, of nodes and inputs by name: the node is skipped, item by item
                if it is mapped, where it returns nothing true.
            retry: Whether what raised is called again.
            timeout: How long a call may take.
            cache: Whether outputs of earlier runs will do.
            concurrency: How many of its items at once.
            on_error: What becomes of it when its last attempt raised: `"fail"`, `"skip"`, or
                `Default(value)`.
            models: The roles whose models it will use; a run does not begin where one has none.

        Raises:
            PipelineInvalid: The name is taken, the signature cannot be a node's, what is given for
                a policy is none, or the node closes a cycle.
        """
        # One role's name is a sequence too, of its letters.
        roles = (models,) if isinstance(models, str) else models or ()

        def add(function: Callable[P, R]) -> Callable[P, R]:
            self.add(
                read_node(
                    function,
                    name=name,
                    each=each,
                    combine=combine,
                    takes=takes,
                    when=when,
                    policies=Policies(
                        retry=retry,
                        timeout=timeout,
                        cache=cache,
                        concurrency=concurrency,
                        on_error=on_error,
                        models=None if models is None else tuple(roles),
                    ),
                )
            )
            return function

        return add if function is None else add(function)

    def include(self, other: Graph, *, prefix: str, takes: Mapping[str, str] | None = None) -> None:
        """Adds another graph's nodes, as they are now, each under its name with a prefix.

        Its node `text` becomes `left_text` under the prefix `left`. Its inputs stay inputs by
        their own names.

        Args:
            other: Stays as it is.
            prefix: Goes before its nodes' names, and an underscore.
            takes: Maps an input of the other graph to a node or input of this one.

        Raises:
            PipelineInvalid: The prefix is no name, a name is taken, `takes` names no input of the
                other graph, or a cycle is closed.
        """
        if not prefix.isidentifier():
            raise PipelineInvalid(
                f"prefix={prefix!r} would give nodes names that no parameter can bear; write "
                "it as a variable's name",
                code="pipeline.prefix-invalid",
            )
        inputs = {s for node in other.nodes.values() for s in node.sources} - other.nodes.keys()
        for name in takes or {}:
            if name not in inputs:
                raise PipelineInvalid(
                    f"takes= names '{name}', which is not an input of pipeline '{other.name}'; "
                    + did_you_mean(name, inputs),
                    code="pipeline.unknown-input",
                )
        sources = {name: f"{prefix}_{name}" for name in other.nodes} | dict(takes or {})
        added: list[Node] = []
        try:
            for node in list(other.nodes.values()):
                policies = node.policies.over(other.policies)
                moved = node.moved(sources[node.name], sources, policies)
                self.add(moved)
                added.append(moved)
        except PipelineInvalid:
            for node in added:
                self._remove(node)
            raise

    @property
    def result_node(self) -> str:
        """The name of the node whose output is the result; empty as long as there is none."""
        return self.result or next(reversed(self.nodes), "")

    def dependencies(self, node: Node) -> tuple[str, ...]:
        """The nodes that must be done before this one starts."""
        return tuple(source for source in node.sources if source in self.nodes)

    def check(self) -> None:
        """Looks at what can only be seen of the whole: done before every run.

        Raises:
            PipelineInvalid: What a node returns is not what another takes, or cannot be written to
                a journal; or a policy contradicts the node.
        """
        check_graph(self)

    def code_parts(self) -> tuple[object, ...]:
        """What its outputs depend on, of all that is written in it; see `code_digest`."""
        return self.result, *(
            (
                node.name,
                node.function,
                [(one.name, one.source, one.is_mapped) for one in node.parameters],
                node.combine,
                node.when and node.when.function,
            )
            for node in self.nodes.values()
        )

    def add(self, node: Node) -> None:
        """Adds a node as `read_node` made it.

        Raises:
            PipelineInvalid: Its name is taken, or it closes a cycle.
        """
        earlier = self.nodes.get(node.name)
        if earlier is not None:
            raise PipelineInvalid(
                f"pipeline '{self.name}' has two nodes called '{node.name}'; the first is on line "
                f"{earlier.line}",
                code="pipeline.duplicate-node",
                path=node.path,
                line=node.line,
            )
        self.nodes[node.name] = node
        for source in node.sources:
            self._takers.setdefault(source, []).append(node.name)
        cycle = self._cycle_through(node)
        if cycle:
            self._remove(node)
            raise PipelineInvalid(
                f"node '{node.name}' closes a cycle: {' → '.join(cycle)}; a parameter that bears a "
                "node's name waits for that node, so rename one of them",
                code="pipeline.cycle",
                path=node.path,
                line=node.line,
            )

    def _remove(self, node: Node) -> None:
        del self.nodes[node.name]
        for source in node.sources:
            self._takers[source].remove(node.name)

    def _cycle_through(self, node: Node) -> list[str]:
        """The cycle that a new node closes, from the node back to itself; empty if none."""
        if not self._takers.get(node.name) or not self.dependencies(node):
            return []  # nobody waits for it, or it for nobody, so nothing can lead back to it
        # Here rather than at the top: networkx takes 70 ms to import, and few graphs get here.
        import networkx as nx  # noqa: PLC0415

        waits_for = nx.DiGraph(
            (name, source)
            for name, other in self.nodes.items()
            for source in self.dependencies(other)
        )
        try:
            edges = nx.find_cycle(waits_for, node.name)
        except nx.NetworkXNoCycle:
            return []
        return [edges[0][0], *(target for _, target in edges)]
