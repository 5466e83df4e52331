"""A Jinja environment for chat templates from model files: what real ones use, and nothing that could hurt.

Built on Jinja's ImmutableSandboxedEnvironment, with allow-lists where that has deny-lists:

- syntax: `_NODES`. No includes, imports, inheritance: there is nothing to load.
- names: range, dict, namespace, raise_exception, strftime_now. Attributes and methods: `_METHODS`, loop, namespaces.
- every loop turn, call, filter and operator passes through the `Meter` (template_limits.py says why). Where Jinja has
  no hook the syntax tree is rewritten before it is compiled: see `_Checks`.

`Sandbox.meter` belongs to the rendering in progress; the owner lets in one at a time.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2.filters
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgellm.engine import template_filters as tf
from edgellm.engine.template_limits import Meter, TemplateLimit, TemplateRefusal

_CODE_LIMIT = 4 << 20  # characters of generated Python
_TOKEN_LIMIT = 50_000  # of the source; large real templates have a tenth of it
_HIDDEN_ARGUMENTS = ("_loop_vars", "_block_vars")  # added to calls by Jinja's compiler
_TICK, _MADE, _CONCAT = " tick", " made", " concat"  # filters no template can name

_NODES = """
    Template Output TemplateData For If Macro CallBlock FilterBlock With Scope ExprStmt Assign AssignBlock Break
    Continue Name NSRef Const Tuple List Dict Pair Keyword CondExpr Filter Test Call Getitem Getattr Slice Concat
    Compare Operand Add Sub Mul Div FloorDiv Mod Pow And Or Not Neg Pos
    """
_STR = """
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex
    rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
    """
_LOOP = "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed"
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(_STR.split())),
    (dict, frozenset({"get", "items", "keys", "values"})),
    (list, frozenset({"count", "index"})),
    (tuple, frozenset({"count", "index", "grouper", "list"})),  # the last two: what `groupby` gives
    (LoopContext, frozenset(_LOOP.split())),
)
_DATE_FORMAT = re.compile(r"(?:[^%]|%[-#]?[A-Za-z%]){0,200}")


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. `now` is the clock behind `strftime_now`."""

    intercepted_binops = tf.OPERATORS

    def __init__(self, meter: Meter, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            finalize=_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.meter = meter
        self.code_generator_class = _Generator
        self.globals = {
            "range": tf.safe_range,
            "dict": dict,
            "namespace": _Namespace,
            "raise_exception": self._raise_exception,
            "strftime_now": lambda pattern: _date(now(), pattern),
        }
        self._callables = frozenset(map(id, self.globals.values()))
        chosen = {name: jinja2.filters.FILTERS[name] for name in tf.PLAIN_FILTERS.split()} | tf.OWN_FILTERS
        self.filters = {name: self._checked(function) for name, function in chosen.items()}
        self.filters |= {
            _TICK: lambda _: self.meter.tick(),
            _MADE: lambda value: self.meter.made(value),
            _CONCAT: lambda parts: self.meter.joined(map(self.meter.text, parts)),
        }

    def concat(self, parts: Iterable[str]) -> str:
        """Jinja joins what a block or macro wrote through this."""
        return self.meter.joined(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002 - Jinja's
        return tf.operate(self.meter, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_") or not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, allowed in _METHODS:
            if isinstance(obj, kind):
                return attr in allowed
        return isinstance(obj, _Namespace)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise TemplateLimit(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if isinstance(value, types.BuiltinMethodType) and value.__name__ == "format" and type(value.__self__) is str:
            call = tf.formatted(self, self.meter, value.__self__)
            call.checked = True  # type: ignore[attr-defined]
            return call
        return None

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - Jinja's
        meter = __self.meter
        meter.tick()
        for value in args:
            meter.weight(value)
        for name, value in kwargs.items():
            if name not in _HIDDEN_ARGUMENTS:
                meter.weight(value)
        if isinstance(__obj, types.BuiltinMethodType):
            tf.check_method(meter, __obj.__self__, __obj.__name__, args)
        elif not __self._callable(__obj):
            raise TemplateLimit(f"calling a {type(__obj).__name__} is not allowed")
        return meter.made(super().call(__context, __obj, *args, **kwargs))

    def _callable(self, obj: Any) -> bool:
        if id(obj) in self._callables or isinstance(obj, (Macro, LoopContext, Undefined)):
            return True
        if isinstance(obj, types.MethodType):  # loop.cycle, loop.changed
            return isinstance(obj.__self__, LoopContext)
        return getattr(obj, "checked", False) is True and isinstance(obj, types.FunctionType)

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)  # carries Jinja's mark for what to pass first
        def call(*args: Any, **kwargs: Any) -> Any:
            self.meter.tick()
            return self.meter.made(function(*args, **kwargs))

        return call

    def _raise_exception(self, message: object = "no reason given") -> None:
        raise TemplateRefusal(self.meter.text(message))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        checked: nodes.Template = _Checks(self.meter).visit(tree)
        return checked.set_environment(self)  # type: ignore[return-value]

    def _compile(self, source: str, filename: str) -> types.CodeType:
        if len(source) > _CODE_LIMIT:
            raise TemplateLimit("it is too long once compiled")
        return super()._compile(source, filename)


@pass_context  # asking for the context also keeps Jinja from evaluating outputs while it compiles
def _output(context: Context, value: object) -> str:
    environment = context.environment
    assert isinstance(environment, Sandbox)
    return environment.meter.text(value)


def _date(now: datetime, pattern: str) -> str:
    if not _DATE_FORMAT.fullmatch(pattern):
        raise TemplateLimit("a date format that is not one")
    return now.strftime(pattern)


class _Namespace(Namespace):
    """Can be written to, so its content is not part of any weight, and must not be part of any text."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Generation(Extension):
    """`{% generation %}`, which marks what training learns, renders as its content. Also times the parsing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        assert isinstance(self.environment, Sandbox)
        for count, token in enumerate(stream):
            self.environment.meter.tick()
            if count > _TOKEN_LIMIT:
                raise TemplateLimit(f"it has more than {_TOKEN_LIMIT:,} parts")
            yield token


class _Generator(CodeGenerator):
    """Jinja's compiler, timed."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.environment, Sandbox)
        self.environment.meter.tick()
        return super().visit(node, *args, **kwargs)


class _Checks(NodeTransformer):
    """Refuses syntax outside `_NODES` and adds the checks Jinja has no hook for.

    loop bodies                      tick (a loop's condition alone cannot take long: what it runs over is bounded)
    [a, b]  (a, b)  {k: v}  x[i:j]   account for the new value (not where all parts are constants)
    a ~ b                            join through the meter
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._allowed = frozenset(_NODES.split())

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self._meter.tick()
        if type(node).__name__ not in self._allowed:
            raise TemplateLimit(f"line {node.lineno} uses {type(node).__name__.lower()}, which is not allowed")
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's naming
        node = self.generic_visit(node)  # type: ignore[assignment]
        tick = _filter(nodes.Const(True, lineno=node.lineno), _TICK)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items) if node.ctx == "load" else self.generic_visit(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        node = self.generic_visit(node)  # type: ignore[assignment]
        return _filter(node, _MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def _literal(self, node: nodes.Expr, parts: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(part, nodes.Const) for part in parts)
        self.generic_visit(node)
        return node if constant else _filter(node, _MADE)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
