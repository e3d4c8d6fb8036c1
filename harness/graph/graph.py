"""Graphs: nodes joined by the names of their parameters, checked before anything runs.

A parameter with another node's name is an edge: the node waits for the other and receives its
output. Every other parameter is an input of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Generic, NewType, ParamSpec, Unpack, get_args, overload

from pydantic import (
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.annotations import cached_by_annotation, described, fits, is_mapping, item_of
from harness.graph.fingerprint import variables_of
from harness.graph.node import (
    EMPTY,
    Node,
    NodeOptions,
    Parameter,
    PolicyOptions,
    check_options,
    read_node,
)
from harness.graph.policies import Default, Policies
from harness.graph.values import value_form

if TYPE_CHECKING:
    import networkx
    from typing_extensions import TypeVar

    # With a default, so that plain `Pipeline` needs no parameter; Python has defaults since 3.13.
    ResultT = TypeVar("ResultT", default=Any)
else:
    from typing import TypeVar

    ResultT = TypeVar("ResultT")

P = ParamSpec("P")
R = TypeVar("R")


class Graph(Generic[ResultT]):
    """A set of nodes, checked as each is added.

    Policies are as for `node`, as defaults for its nodes. With `fail_fast`, the first failure ends
    the run, not only the nodes that depend on it; a failure inside a node (`run.call`, `run.map`)
    counts only if the node fails too. `result` names the node whose output is the result; None for
    the last node.

    Attributes:
        nodes: By name, in the order of definition.

    Raises:
        PipelineInvalid: A policy is of the wrong type.
    """

    def __init__(
        self,
        name: str,
        *,
        fail_fast: bool = False,
        result: str | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> None:
        self.name = name
        self.result = result
        self.nodes: dict[str, Node] = {}
        self.fail_fast = fail_fast
        # `limits` and `max_parallel`, which only `Pipeline` takes, may be misspelled too.
        known = ("fail_fast", "limits", "max_parallel", "result", *PolicyOptions.__optional_keys__)
        check_options(policies, known)
        self.policies = Policies(**policies)
        if (mistake := self.policies.mistake()) is not None:
            raise PipelineInvalid(f"pipeline '{name}': {mistake}", code="pipeline.option-invalid")
        # What the nodes take: a node that no other takes can be added without a look for cycles.
        self._sources: set[str] = set()

    @overload
    def node(
        self, function: Callable[P, R], /, **options: Unpack[NodeOptions]
    ) -> Callable[P, R]: ...
    @overload
    def node(
        self, /, **options: Unpack[NodeOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def node(
        self, function: Callable[P, R] | None = None, /, **options: Unpack[NodeOptions]
    ) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
        """Makes a function a node, without changing the function.

        A plain function runs in a thread. An async generator yields its items one by one: a node
        that maps over it takes each as it comes, any other node the list of all.

        Other nodes may receive the same objects, so a node must change only copies.

        The constants, helpers and lists that the function refers to count as its code, as they are
        when the run, or its next part, begins; if they change, it is called again. Return results
        rather than adding them to a list outside: a resumed run would not have that list.

        Args:
            function: When used without parentheses.
            name: The function's by default.
            each: Maps a parameter to the node or input whose items it receives, one call per item,
                in parallel. Consumers of the node receive the list, in order. Over a mapped or
                generating node, a call begins as soon as its own items are there.
            combine: `zip`, the default, pairs the items of several mapped parameters, which must
                be equally many; `product` takes all combinations, the last parameter of the
                signature changing fastest.
            takes: Maps a parameter to the node or input that it receives, if the names differ.
            when: A plain function of nodes and inputs, by name; the node, or its item, is skipped
                unless the function returns a true value.
            retry: Repeats a failed call.
            timeout: How long a call may take.
            cache: Reuses outputs of other runs.
            concurrency: How many of its items at once.
            on_error: What follows when its last attempt raised: `"fail"`, `"skip"`, or
                `Default(value)`.
            models: The roles that it will use, and no others, in the order of their first calls;
                loads are planned from them. A run does not begin if one of them has no model,
                except the evaluator beside the producer: without it, only code checks.
            on: Runs the node on a worker with these resources if there are workers, as with
                `--on ray`; in this process otherwise.

        Raises:
            PipelineInvalid: The name is taken, the signature cannot be a node's, a policy is of the
                wrong type, or the node closes a cycle.
        """

        def add(function: Callable[P, R]) -> Callable[P, R]:
            self.add(read_node(function, **options))
            return function

        return add if function is None else add(function)

    def include(self, other: Graph, *, prefix: str, takes: Mapping[str, str] | None = None) -> None:
        """Adds another graph's nodes, as they are now, each under its name with a prefix.

        Under the prefix `left`, its node `text` becomes `left_text`. Its inputs keep their names.

        Args:
            other: Does not change.
            prefix: Goes before its nodes' names, with an underscore.
            takes: Maps an input of the other graph to a node or input of this one.

        Raises:
            PipelineInvalid: The prefix is not an identifier, a name is taken, `takes` names an
                input that the other graph does not have, or a cycle is closed.
        """
        if not prefix.isidentifier():
            raise PipelineInvalid(
                f"prefix={prefix!r} would give nodes names that no parameter can have; write "
                "it as a variable's name",
                code="pipeline.prefix-invalid",
            )
        sources_of_all = {source for node in other.nodes.values() for source in node.sources}
        inputs = sources_of_all - other.nodes.keys()
        for name in takes or {}:
            if name not in inputs:
                raise PipelineInvalid(
                    f"takes= names '{name}', which is not an input of pipeline '{other.name}'; "
                    + did_you_mean(name, inputs),
                    code="pipeline.unknown-input",
                )
        sources = {name: f"{prefix}_{name}" for name in other.nodes} | dict(takes or {})
        nodes_before = dict(self.nodes)
        try:
            # A list, since a graph may include itself.
            for node in list(other.nodes.values()):
                policies = node.policies.over(other.policies)
                self.add(node.moved(sources[node.name], sources, policies))
        except PipelineInvalid:
            # `_sources` stays as it is: a name too many only costs a look for cycles.
            self.nodes = nodes_before
            raise

    @property
    def result_node(self) -> str:
        """The name of the node whose output is the result; empty if there are no nodes."""
        return self.result or next(reversed(self.nodes), "")

    def dependencies(self, node: Node) -> tuple[str, ...]:
        """The nodes that must end before this one starts."""
        return tuple(source for source in node.sources if source in self.nodes)

    def graph(self) -> networkx.DiGraph:
        """Its nodes by name, in the order of definition, each with an edge to its dependents."""
        import networkx  # noqa: PLC0415 - slow

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.nodes)
        for node in self.nodes.values():
            graph.add_edges_from((source, node.name) for source in self.dependencies(node))
        return graph

    def check(self) -> None:
        """Checks the graph as a whole, before every run.

        Raises:
            PipelineInvalid: The output of a node is not what another takes, or cannot be written to
                a journal; or a policy contradicts the node.
        """
        if self.result is not None and self.result not in self.nodes:
            raise PipelineInvalid(
                f"result='{self.result}' of pipeline '{self.name}' is not one of its nodes; "
                + did_you_mean(self.result, self.nodes),
                code="pipeline.result-unknown",
            )
        # `Pipeline[Answer](…)` sets `__orig_class__` only after `__init__`, so it is read here.
        if (types := get_args(getattr(self, "__orig_class__", None))) and self.nodes:
            _check_result(self.nodes[self.result_node], types[0])
        for node in self.nodes.values():
            _check_output(node, self)
            for parameter in node.everything_taken:
                if parameter.source in self.nodes:
                    _check_edge(self.nodes[parameter.source], node, parameter)

    def code_parts(self) -> tuple[object, ...]:
        """The parts of the graph that its outputs depend on; see `fingerprint`."""
        parts: list[object] = [self.result]
        for node in self.nodes.values():
            parameters = [(p.name, p.source, p.is_mapped) for p in node.parameters]
            when = None if node.when is None else node.when.function
            on_error = node.policies.over(self.policies).on_error
            # Left out if it stands for no failure, which keeps the digests of earlier versions.
            policy = () if on_error in (None, "fail") else (on_error,)
            parts.append((node.name, node.function, parameters, node.combine, when, *policy))
        return tuple(parts)

    def add(self, node: Node) -> None:
        """Adds a node as `read_node` made it.

        In a notebook, where a cell is run again after a change, it takes the place of an earlier
        one with its name.

        Raises:
            PipelineInvalid: Its name is taken, or it closes a cycle.
        """
        earlier = self.nodes.get(node.name)
        if earlier is not None and not (earlier.is_interactive and node.is_interactive):
            raise node.mistake(
                f"pipeline '{self.name}' has two nodes called '{node.name}'; the first is on line "
                f"{earlier.line}",
                code="pipeline.duplicate-node",
            )
        self.nodes[node.name] = node
        self._sources.update(node.sources)
        if node.name not in self._sources:
            return  # no node waits for it, so nothing leads back to it
        try:
            TopologicalSorter({name: taker.sources for name, taker in self.nodes.items()}).prepare()
        except CycleError as error:
            if earlier is None:
                del self.nodes[node.name]
            else:
                self.nodes[node.name] = earlier
            # graphlib lists the cycle with its first node at both ends, each node before those
            # that take it; the message lists it from the new node on, the other way round.
            ring = error.args[1][:0:-1]
            start = ring.index(node.name)
            cycle = [*ring[start:], *ring[:start], node.name]
            raise node.mistake(
                f"node '{node.name}' closes a cycle: {' → '.join(cycle)}; a parameter with a "
                "node's name waits for that node, so rename one of them",
                code="pipeline.cycle",
            ) from None


def returned(node: Node) -> object:
    """The type of the output of one call; for a generating node, the list of all items."""
    annotation = node.annotation("return")
    if not node.is_generator:
        return annotation
    item: Any = item_of(annotation)
    return list[item]


def _check_output(node: Node, graph: Graph) -> None:
    annotation = returned(node)
    try:
        form = value_form(annotation)
    except TypeError as error:
        raise node.mistake(
            f"the output of node '{node.name}' has to be in the run's journal: {error}",
            code="pipeline.output-not-recordable",
        ) from error
    on_error = node.policies.over(graph.policies).on_error
    if isinstance(on_error, Default):
        try:
            # Before the run, since it is first used when the node has failed.
            form.encode(on_error.value)
        except TypeError as error:
            raise node.mistake(
                f"node '{node.name}' has on_error=Default({on_error.value!r}): {error}",
                code="pipeline.default-does-not-fit",
            ) from error


def _produced(node: Node) -> Any:  # noqa: ANN401 - whatever the pipeline's author wrote
    """The type of a node's output as others receive it; for a mapped node, the list of all."""
    annotation: Any = returned(node)
    return list[annotation] if node.is_mapped else annotation


def _check_result(node: Node, stated: object) -> None:
    if not fits(_produced(node), stated):
        raise node.mistake(
            f"the pipeline states a result of {described(stated)}, and its node '{node.name}' "
            f"returns {described(_produced(node))}; make the two agree",
            code="pipeline.result-type-differs",
        )


def _check_edge(source: Node, node: Node, parameter: Parameter) -> None:
    annotation = node.annotation(parameter.name)
    produced = _produced(source)
    if parameter.is_mapped:
        item = item_of(produced)
        if item is None:
            remedy = "; return list(d.items()) of the mapping" if is_mapping(produced) else ""
            raise node.mistake(
                f"each= of node '{node.name}' maps over '{source.name}', which returns "
                f"{described(produced)} and not a list{remedy}",
                code="pipeline.maps-no-list",
            )
        produced = item
    if not fits(produced, annotation):
        verb = "gives items that are" if parameter.is_mapped else "returns"
        raise node.mistake(
            f"node '{node.name}' takes '{parameter.name}' as {described(annotation)}, and "
            f"'{source.name}' {verb} {described(produced)}; make the annotations agree",
            code="pipeline.types-disagree",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """A value that a graph takes from outside."""

    name: str
    node: Node
    """The node whose annotation and default count: the first that takes the input, unless only a
    later one has a default or a type."""
    parameter: Parameter

    @property
    def annotation(self) -> Any:  # noqa: ANN401 - whatever the pipeline's author wrote
        """Its type; for a mapped parameter, a list of the parameter's type."""
        annotation: Any = self.node.annotation(self.parameter.name)
        return list[annotation] if self.parameter.is_mapped else annotation

    @property
    def has_default(self) -> bool:
        """Whether it may be left out; a mapped parameter's default is one item, not the list."""
        return self.parameter.default is not EMPTY and not self.parameter.is_mapped


_ANY = (object, list[object])  # the types of an input without annotation


def graph_inputs(graph: Graph) -> dict[str, GraphInput]:
    """The inputs of a graph: every parameter that no node provides, by name.

    Raises:
        PipelineInvalid: Two nodes take one input with different types or defaults.
    """
    inputs: dict[str, GraphInput] = {}
    for node in graph.nodes.values():
        for parameter in node.everything_taken:
            name = parameter.source
            if name not in graph.nodes:
                candidate = GraphInput(name=name, node=node, parameter=parameter)
                inputs[name] = _chosen(inputs[name], candidate) if name in inputs else candidate
    return inputs


def _chosen(first: GraphInput, second: GraphInput) -> GraphInput:
    """Of two nodes' views of one input, the view with a default, or else the view with a type."""
    # `sorted` keeps the order of equals, also in reverse, so the first of them is chosen.
    chosen, rejected = sorted(
        (first, second),
        key=lambda view: (view.has_default, view.annotation not in _ANY),
        reverse=True,
    )
    default, other = chosen.parameter.default, rejected.parameter.default
    differs = rejected.annotation not in (chosen.annotation, *_ANY)
    if not differs and rejected.has_default and other is not default:
        try:
            differs = bool(other != default)
        except Exception:  # noqa: BLE001 - an array's, for one, has no truth
            differs = True
    if differs:
        raise second.node.mistake(
            f"nodes '{first.node.name}' and '{second.node.name}' take the input '{first.name}' "
            "with different types or defaults; give both the same, or rename one",
            code="pipeline.inputs-disagree",
        )
    return chosen


def bind_inputs(graph: Graph, values: Mapping[str, object]) -> dict[str, object]:
    """The value of every input: the given one, or its default.

    Raises:
        PipelineInvalid: An input is missing, unknown, of the wrong type, or of a type that pydantic
            refuses.
    """
    inputs = graph_inputs(graph)
    for name in values:
        if name not in inputs:
            what = "is a node, not an input" if name in graph.nodes else "is not an input"
            raise PipelineInvalid(
                f"'{name}' {what} of pipeline '{graph.name}'; {did_you_mean(name, inputs)}",
                code="pipeline.unknown-input",
            )
    return {
        name: _checked(graph_input, values[name])
        if name in values
        else _default(graph, graph_input)
        for name, graph_input in inputs.items()
    }


def _default(graph: Graph, graph_input: GraphInput) -> object:
    if graph_input.has_default:
        return graph_input.parameter.default
    node = graph_input.node
    remedy = "give it"
    # A parameter with the misspelled name of a node looks like a missing input.
    other_nodes = graph.nodes.keys() - {node.name}
    if other_nodes:
        remedy += f", or name a node; {did_you_mean(graph_input.name, other_nodes)}"
    raise node.mistake(
        f"node '{node.name}' needs '{graph_input.name}', which is neither given nor the name of a "
        f"node; {remedy}",
        code="pipeline.input-missing",
    )


def _checked(graph_input: GraphInput, value: object) -> object:
    """A value as the type of an input, from a Python value or from the text of a command line."""
    try:
        adapter = _adapter(graph_input.annotation)
    except PydanticUserError as error:
        raise graph_input.node.mistake(
            f"input '{graph_input.name}': {described(graph_input.annotation)} cannot be checked: "
            f"{error.message}",
            code="pipeline.input-unreadable",
        ) from error
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
        rejected = first["input"]
        excerpt = repr(rejected[:80]) if isinstance(rejected, str) else repr(rejected)[:80]
        place = "".join(f"[{key!r}]" for key in first["loc"])
        raise PipelineInvalid(
            f"input '{graph_input.name}{place}' does not fit node '{graph_input.node.name}': "
            f"{first['msg']} (given: {excerpt})",
            code="pipeline.input-invalid",
        ) from error


@cached_by_annotation
def _adapter(annotation: Any) -> TypeAdapter[object]:  # noqa: ANN401 - as above
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        # A class that pydantic does not know: the value must be an instance. As a new type, since
        # pydantic takes no configuration for a dataclass itself, but passes it on to its fields.
        declared: Callable[[str, Any], Any] = NewType
        return TypeAdapter(
            declared("Input", annotation), config=ConfigDict(arbitrary_types_allowed=True)
        )


def asks_for_workers(graph: Graph) -> bool:
    """Whether a node has `on=`, in this graph or in one that a node's function refers to."""
    graphs = [graph]
    for inner in graphs:  # `graphs` grows meanwhile
        for node in inner.nodes.values():
            if node.policies.on is not None:
                return True
            for value in variables_of(node.function).values():
                if isinstance(value, Graph) and value not in graphs:
                    graphs.append(value)
    return False
