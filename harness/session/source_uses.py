"""Functions read for what they ask of models: by their source, for the calls on their run.

Calls count in the order of the source, those of arguments before the call that takes them. What is
in a loop, a comprehension or a function inside the function comes unknown often: its roles are one
`Turn`. A function that the run is handed to is read as well, if its name is bound to it in the
module; so is what `run.call` and `run.map` name. A role that is no constant, and a run that goes
where nothing can be read, leave the rest unknown.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Sequence
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import Final

from harness.graph import Graph, Node
from harness.graph.node import RUN_PARAMETER
from harness.session.node_uses import MEMORY, Loop, NodeUses, Turn, roles_of
from harness.session.roles import EVALUATOR
from harness.session.source_names import Bound, Names, argument

ASKS_A_ROLE: Final = frozenset({"chat", "embed", "count_tokens"})
"""What of a run asks in the role that it is given first."""
ASKS_MEMORY: Final = frozenset({"remember", "recall", "novelty"})
"""What of a run may need vectors of passages."""
ASKS_NOTHING: Final = frozenset({"ask", "beat", "counter", "id", "invitation", "span"})
"""What of a run has to do with no model."""

_NOTHING_KNOWN: Final = NodeUses(is_all=False)

_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """Reads functions, each of a graph's once."""

    def __init__(self) -> None:
        self._known: dict[Callable[..., object], NodeUses] = {}
        # What is being read: a function, or a pipeline, may lead back to itself.
        self._open: list[CodeType | Graph] = []

    def of_graph(self, graph: Graph) -> dict[str, NodeUses]:
        """What one call of each node asks, by the node's name."""
        self._open.append(graph)
        try:
            return {name: self._of_node(node, graph) for name, node in graph.nodes.items()}
        finally:
            self._open.pop()

    def is_open(self, what: CodeType | Graph) -> bool:
        """Whether it is being read just now."""
        return any(one is what for one in self._open)

    def of_function(self, function: Callable[..., object], bound: Bound) -> NodeUses:
        """What a function asks of the run that it is handed.

        Args:
            function: Any.
            bound: What its parameters are.
        """
        function = inspect.unwrap(function)
        if not isinstance(function, FunctionType) or self.is_open(function.__code__):
            return _NOTHING_KNOWN
        definition = _definition(function)
        if definition is None:
            return _NOTHING_KNOWN
        self._open.append(function.__code__)
        try:
            reading = _Reading(function, bound, self)
            for statement in definition.body:
                reading.read(statement)
        finally:
            self._open.pop()
        return NodeUses(uses=tuple(reading.uses), is_all=reading.is_all)

    def _of_node(self, node: Node, graph: Graph) -> NodeUses:
        if not node.takes_run:
            return NodeUses()
        read = self._known.get(node.function)
        if read is None:
            read = self._known[node.function] = self.of_function(node.function, _of_node(node))
        declared = node.policies.over(graph.policies).models
        if declared is None:
            return read
        if read.is_all and set(read.roles) - {MEMORY} == set(declared):
            return read
        # Who remembers is in no role, and is not declared.
        roles = dict.fromkeys((*declared, MEMORY) if MEMORY in read.roles else declared)
        return NodeUses(uses=(Turn(roles=tuple(roles)),) if roles else ())


def _of_node(node: Node) -> Bound:
    defaults = {one.name: one.default for one in node.parameters if not one.is_required}
    return Bound(runs=frozenset({RUN_PARAMETER}), constants=defaults, inputs=frozenset(defaults))


def _definition(function: FunctionType) -> _Definition | None:
    """A function as its source has it; None where there is no source, or it is a lambda."""
    try:
        source = inspect.getsource(function)
        # Not dedented: a text over several lines would be another.
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError, TokenError):
        return None
    name = function.__code__.co_name
    found = (n for n in ast.walk(tree) if isinstance(n, _Definition) and n.name == name)
    return next(found, None)


class _Reading:
    """A walk through one function's source.

    Attributes:
        uses: What it asks, as far as it was read.
        is_all: Whether all was understood that was read.
    """

    def __init__(self, function: FunctionType, bound: Bound, sources: Sources) -> None:
        self.uses: list[Turn | Loop] = []
        self.is_all = True
        self._names = Names(function, bound)
        self._sources = sources
        # Functions inside it: they are read where they are named, and not where they are defined.
        self._inside: dict[str, _Definition] = {}

    def read(self, part: ast.AST) -> None:
        """Takes in a part of the function, such as a statement."""
        match part:
            case ast.Call():
                self._read_call(part)
            case ast.Attribute(value=of) if self._names.is_run(of):
                # A method that is not called here may be called anywhere.
                self.is_all &= part.attr in ASKS_NOTHING
            case ast.Name():
                self._read_name(part)
            case ast.For() | ast.AsyncFor():
                self._read_for(part)
            case ast.While():
                self._read_while(part)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._read_comprehension(part)
            case ast.Lambda():
                self._read_again_and_again([part.body])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._inside[part.name] = part
            case ast.ClassDef():
                # It may do anything with the run, if it names it.
                self.is_all &= not any(self._names.is_run(one) for one in ast.walk(part))
            case _:
                for child in _as_run(part):
                    self.read(child)

    # --- calls ------------------------------------------------------------------------------------

    def _read_call(self, call: ast.Call) -> None:
        """What a call asks, after what its arguments ask."""
        of_run = isinstance(call.func, ast.Attribute) and self._names.is_run(call.func.value)
        if not of_run:
            self.read(call.func)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        for one in arguments:
            if not self._names.is_run(one):
                self.read(one)
        if isinstance(call.func, ast.Attribute) and of_run:
            self._asked(call.func.attr, call)
        elif any(self._names.is_run(one) for one in arguments):
            self._follow(call)

    def _asked(self, method: str, call: ast.Call) -> None:
        if method in ASKS_A_ROLE:
            self._add_roles(argument(call, "role", place=0))
        elif method in ASKS_MEMORY:
            self.uses.append(Turn(roles=(MEMORY,)))
        elif method == "evaluate":
            self.uses.append(Turn(roles=(EVALUATOR,)))
        elif method == "wiggum":
            self.uses.append(self._loop(call))
        elif method == "call":
            self._add_graph(argument(call, "pipeline", place=0))
        elif method == "map":
            self._add_mapped(argument(call, "function", place=0))
        elif method not in ASKS_NOTHING:
            self.is_all = False

    def _add_roles(self, given: ast.expr | None) -> None:
        if isinstance(given, ast.IfExp):
            self._add_roles(given.body)
            self._add_roles(given.orelse)
            return
        role = self._names.constant(given)
        if isinstance(role, str):
            self.uses.append(Turn(roles=(role,)))
        self.is_all &= isinstance(role, str) and not self._names.is_input(given)

    def _loop(self, call: ast.Call) -> Loop:
        draft = argument(call, "draft")
        rounds = self._names.constant(argument(call, "max_rounds"))
        rubric = self._names.constant(argument(call, "rubric"))
        return Loop(
            max_rounds=rounds if isinstance(rounds, int) else Loop().max_rounds,
            has_draft=draft is not None and self._names.constant(draft) is not None,
            rubric=rubric if isinstance(rubric, str) else None,
        )

    def _add_graph(self, named: ast.expr | None) -> None:
        graph = self._names.value(named)
        if not isinstance(graph, Graph) or self._sources.is_open(graph):
            self.is_all = False
            return
        for name, found in self._sources.of_graph(graph).items():
            self._add(found, comes_again=graph.nodes[name].is_mapped)

    def _add_mapped(self, named: ast.expr | None) -> None:
        if isinstance(named, ast.Lambda) or self._is_inside(named):
            return  # it was read where it is named
        function = self._names.value(named)
        if not isinstance(function, FunctionType):
            self.is_all = False
        elif RUN_PARAMETER in inspect.signature(function).parameters:
            bound = Bound(runs=frozenset({RUN_PARAMETER}))
            self._add(self._sources.of_function(function, bound), comes_again=True)

    def _follow(self, call: ast.Call) -> None:
        """Reads a function that the run is handed to."""
        if isinstance(call.func, ast.Name) and call.func.id in self._inside:
            # It was read where it is named, for calls on what is called as the run is here.
            self.is_all &= self._names.takes_run(self._inside[call.func.id])
            return
        function = self._names.value(call.func)
        bound = self._names.bound_by(call, function) if isinstance(function, FunctionType) else None
        if bound is None or not isinstance(function, FunctionType):
            self.is_all = False
            return
        self._add(self._sources.of_function(function, bound), comes_again=False)

    def _add(self, found: NodeUses, *, comes_again: bool) -> None:
        self.is_all &= found.is_all
        self.uses += _by_turns(found.uses) if comes_again else found.uses

    # --- what comes unknown often ---------------------------------------------------------------

    def _read_for(self, loop: ast.For | ast.AsyncFor) -> None:
        self.read(loop.iter)
        self._read_again_and_again(loop.body)
        for statement in loop.orelse:
            self.read(statement)

    def _read_while(self, loop: ast.While) -> None:
        self._read_again_and_again([loop.test, *loop.body])
        for statement in loop.orelse:
            self.read(statement)

    def _read_comprehension(
        self, made: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        first, *others = made.generators
        self.read(first.iter)
        each = [made.key, made.value] if isinstance(made, ast.DictComp) else [made.elt]
        self._read_again_and_again([*first.ifs, *others, *each])

    def _read_again_and_again(self, parts: Sequence[ast.AST]) -> None:
        before, self.uses = self.uses, []
        for part in parts:
            self.read(part)
        self.uses = [*before, *_by_turns(self.uses)]

    # --- names ------------------------------------------------------------------------------------

    def _read_name(self, name: ast.Name) -> None:
        if self._names.is_run(name):
            self.is_all = False  # it goes who knows where
        definition = self._inside.pop(name.id, None)
        if definition is not None and isinstance(name.ctx, ast.Load):
            self._read_again_and_again(definition.body)
            self._inside[name.id] = definition

    def _is_inside(self, named: ast.expr | None) -> bool:
        return isinstance(named, ast.Name) and named.id in self._inside


def _as_run(part: ast.AST) -> Iterable[ast.AST]:
    """The parts of a part, in the order in which they are run."""
    if isinstance(part, ast.Assign):  # a function's result may be given the function's name
        return (part.value, *part.targets)
    return ast.iter_child_nodes(part)


def _by_turns(uses: Iterable[Turn | Loop]) -> list[Turn | Loop]:
    roles = roles_of(uses)
    return [Turn(roles=roles)] if roles else []
