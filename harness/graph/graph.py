"""Graphs: nodes joined by the names of their parameters.

An edge is a parameter that bears another node's name: the node waits for the other and receives
what it returned. Every other parameter is an input of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.annotations import described, fits, item_of
from harness.graph.node import Combine, Node, Parameter, read_node
from harness.graph.policies import Cache, Concurrency, Default, OnError, Policies, Retry, Timeout
from harness.graph.values import value_form

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


def check_graph(graph: Graph) -> None:
    """Raises for the first mistake; see `Graph.check`."""
    if graph.result is not None and graph.result not in graph.nodes:
        raise PipelineInvalid(
            f"result='{graph.result}' of pipeline '{graph.name}' is none of its nodes; "
            + did_you_mean(graph.result, graph.nodes),
            code="pipeline.result-unknown",
        )
    for node in graph.nodes.values():
        _check_output(node, graph)
        for parameter in node.everything_taken:
            if parameter.source in graph.nodes:
                _check_edge(graph.nodes[parameter.source], node, parameter)


def returned(node: Node) -> object:
    """The annotation of what one call of a node gives: of a generating node, the list of all."""
    annotation = node.annotation("return")
    if not node.is_streaming:
        return annotation
    item: Any = item_of(annotation)
    return list[item]


def output_annotation(node: Node) -> object:
    """The annotation of a node's whole output: of a mapped node, the list of all."""
    one: Any = returned(node)
    return list[one] if node.is_mapped else one


def _check_output(node: Node, graph: Graph) -> None:
    annotation = returned(node)
    try:
        form = value_form(annotation)
    except TypeError as error:
        raise PipelineInvalid(
            f"what node '{node.name}' returns has to be in the run's journal: {error}",
            code="pipeline.output-not-recordable",
            path=node.path,
            line=node.line,
        ) from error
    on_error = node.policies.over(graph.policies).on_error
    if isinstance(on_error, Default):
        try:
            form.encode(form.check(on_error.value))
        except TypeError as error:
            raise PipelineInvalid(
                f"node '{node.name}' has on_error=Default({on_error.value!r}): {error}",
                code="pipeline.default-does-not-fit",
                path=node.path,
                line=node.line,
            ) from error


def _check_edge(source: Node, node: Node, parameter: Parameter) -> None:
    wanted, produced = node.annotation(parameter.name), output_annotation(source)
    if parameter.is_mapped:
        item = item_of(produced)
        if item is None:
            raise PipelineInvalid(
                f"each= of node '{node.name}' maps over '{source.name}', which returns "
                f"{described(produced)} and not a list",
                code="pipeline.maps-no-list",
                path=node.path,
                line=node.line,
            )
        produced = item
    if not fits(produced, wanted):
        what = "gives items that are" if parameter.is_mapped else "returns"
        raise PipelineInvalid(
            f"node '{node.name}' takes '{parameter.name}' as {described(wanted)}, and "
            f"'{source.name}' {what} {described(produced)}; make the annotations agree",
            code="pipeline.types-disagree",
            path=node.path,
            line=node.line,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A value that comes from outside."""

    name: str
    node: Node
    """The node whose annotation and default count: the first that takes it, unless a later one
    has a default, or a type, and the first has none."""
    parameter: Parameter

    @property
    def annotation(self) -> Any:  # noqa: ANN401 - whatever the pipeline's author wrote
        """The type it must have; a mapped parameter's input is a list of that type."""
        one: Any = self.node.annotation(self.parameter.name)
        return list[one] if self.parameter.is_mapped else one

    @property
    def has_default(self) -> bool:
        """Whether it need not be given; a mapped parameter's default is one item, not the list."""
        return not (self.parameter.is_required or self.parameter.is_mapped)


_ANY = (object, list[object])
"""What the type of an input is that nobody has annotated."""


def graph_inputs(graph: Graph) -> dict[str, Input]:
    """Every parameter that no node provides, by name.

    Raises:
        PipelineInvalid: Two nodes take one input with different types or defaults.
    """
    inputs: dict[str, Input] = {}
    for node in graph.nodes.values():
        for parameter in node.everything_taken:
            if parameter.source not in graph.nodes:
                name = parameter.source
                found = Input(name=name, node=node, parameter=parameter)
                inputs[name] = _agreed(inputs[name], found) if name in inputs else found
    return inputs


def _agreed(first: Input, second: Input) -> Input:
    """The one of two that speaks for both: the one with a default, or else with a type."""
    chosen, other = sorted(
        (first, second), key=lambda one: (one.has_default, one.annotation not in _ANY), reverse=True
    )
    if other.annotation not in (chosen.annotation, *_ANY) or (
        other.has_default and other.parameter.default != chosen.parameter.default
    ):
        raise PipelineInvalid(
            f"nodes '{first.node.name}' and '{second.node.name}' take the input '{first.name}' "
            "with different types or defaults; give both the same, or rename one",
            code="pipeline.inputs-disagree",
            path=second.node.path,
            line=second.node.line,
        )
    return chosen


def bind_inputs(graph: Graph, given: Mapping[str, object]) -> dict[str, object]:
    """The value of every input: given, or its default.

    Raises:
        PipelineInvalid: An input is missing, unknown, or of the wrong type.
    """
    inputs = graph_inputs(graph)
    for name in given:
        if name not in inputs:
            what = "is a node, not an input" if name in graph.nodes else "is not an input"
            raise PipelineInvalid(
                f"'{name}' {what} of pipeline '{graph.name}'; {did_you_mean(name, inputs)}",
                code="pipeline.unknown-input",
            )
    return {
        name: _checked(item, given[name]) if name in given else _default(graph, item)
        for name, item in inputs.items()
    }


def _default(graph: Graph, item: Input) -> object:
    if item.has_default:
        return item.parameter.default
    node = item.node
    # A misspelt edge looks like an input that nobody gives.
    others = graph.nodes.keys() - {node.name}
    raise PipelineInvalid(
        f"node '{node.name}' needs '{item.name}', which is neither given nor the name of a node; "
        "give it" + (f", or name a node; {did_you_mean(item.name, others)}" if others else ""),
        code="pipeline.input-missing",
        path=node.path,
        line=node.line,
    )


def _checked(item: Input, value: object) -> object:
    adapter = _adapter(item.annotation)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        # A command line gives texts: '3', 'true', '["a", "b"]'.
        if isinstance(value, str):
            try:
                return adapter.validate_json(value)
            except ValidationError:
                pass
        first = error.errors()[0]
        given = first["input"]
        said = repr(given[:80]) if isinstance(given, str) else repr(given)[:80]
        where = "".join(f"[{key!r}]" for key in first["loc"])
        raise PipelineInvalid(
            f"input '{item.name}{where}' does not fit node '{item.node.name}': {first['msg']} "
            f"(given: {said})",
            code="pipeline.input-invalid",
        ) from error


def _adapter(annotation: Any) -> TypeAdapter[object]:  # noqa: ANN401 - as above
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        # A class that pydantic knows nothing of: what is given must be an instance.
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
