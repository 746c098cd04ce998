"""The mutants of a module: its code with one change, such as ``<`` made ``<=``, or a statement removed."""

import ast
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

# What each operator is replaced by, as classes of `ast`.
_COMPARISONS = "Lt:LtE,GtE LtE:Lt,Gt Gt:GtE,LtE GtE:Gt,Lt Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In"
_ARITHMETIC = "Add:Sub Sub:Add Mult:FloorDiv Div:Mult FloorDiv:Mult Mod:FloorDiv Pow:Mult"
_BITS = "LShift:RShift RShift:LShift BitAnd:BitOr BitOr:BitAnd BitXor:BitOr"
_OPERATORS = dict(each.split(":") for each in f"{_COMPARISONS} {_ARITHMETIC} {_BITS}".split())
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COMMUTATIVE = (*_FUNCTIONS, "np.add", "np.multiply", "np.maximum", "np.minimum", "np.bitwise_xor")
_BOOLS = (ast.Constant(True), ast.Constant(False))
# Types have no effect, and decorators are mostly caches, which have none on results.
_LEFT_OUT = ("annotation", "returns", "decorator_list", "type_params")


class Mutant(NamedTuple):
    """A module with one node replaced; the node is ``getattr(owner, field)``, or an item of this list."""

    tree: ast.Module
    owner: Any
    field: str
    index: int | None
    node: Any
    replacement: Any
    first: int  # of the lines that run where the node does, from 1

    @property
    def lines(self) -> range:
        """The lines from the beginning of the statement to the end of the node."""
        return range(self.first, self.node.end_lineno + 1 if isinstance(self.node, ast.expr) else self.first + 1)

    @property
    def line(self) -> int:
        """The line of the node."""
        return self.node.lineno

    def __str__(self) -> str:
        before, after = (ast.unparse(each).splitlines()[0] for each in (self.node, self.replacement))
        return f"{before}  ->  {after}"

    def code(self, filename: str) -> CodeType:
        """Return the mutant's code."""
        self._put(self.replacement)
        try:
            return compile(ast.fix_missing_locations(self.tree), filename, "exec")
        finally:
            self._put(self.node)

    def _put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


def mutants_of(source: str) -> list[Mutant]:
    """Return the mutants of a module, in order. Texts with a space are messages, which are left as they are."""
    tree = ast.parse(source)

    def of_children(owner: ast.AST, first: int, in_raise: bool) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(owner):
            if field in _LEFT_OUT:
                continue
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST) and not _is_text_or_type(node, owner, in_raise):
                    start = node.lineno if isinstance(node, ast.stmt) else first
                    for new in _replacements(node):
                        yield Mutant(tree, owner, field, index, node, ast.copy_location(new, node), start)
                    yield from of_children(node, start, in_raise or isinstance(node, ast.Raise))

    return list(of_children(tree, 1, in_raise=False))


def _is_text_or_type(node: ast.AST, owner: ast.AST, in_raise: bool) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return in_raise or isinstance(owner, (ast.Expr, ast.JoinedStr)) or " " in node.value
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return node.value.id == "Literal"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _replacements(node: ast.AST) -> Iterator[Any]:
    """Yield what a node is replaced by, one at a time."""
    match node:
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                for other in _others(op):
                    yield ast.Compare(left, [*ops[:i], other, *ops[i + 1 :]], comparators)
        case ast.BinOp(left, op, right):
            for other in _others(op):
                yield ast.BinOp(left, other, right)
        case ast.BoolOp(op, values):
            for left_out in values:
                rest = [value for value in values if value is not left_out]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(str() as text):
            yield ast.Constant(f"{text}XX")
        case ast.Name(name) if name in _FUNCTIONS:
            yield ast.Name(_FUNCTIONS[name], ast.Load())
        case ast.Call(func, args, keywords):
            if len(args) > 1 and not isinstance(args[1], ast.Starred) and ast.unparse(func) not in _COMMUTATIVE:
                yield ast.Call(func, [args[1], args[0], *args[2:]], keywords)
            for keyword in keywords:
                yield ast.Call(func, args, [each for each in keywords if each is not keyword])
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.If(_, body, orelse):
            for value in _BOOLS:
                yield ast.If(value, body, orelse)
        case ast.While(_, body, orelse):
            yield ast.While(_BOOLS[1], body, orelse)
        case ast.With([ast.withitem(_, None)], body):
            yield ast.If(_BOOLS[0], body, [])
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield ast.Return(None)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _others(op: ast.AST) -> list[Any]:
    names = _OPERATORS.get(type(op).__name__, "")
    return [getattr(ast, name)() for name in names.split(",") if name]
