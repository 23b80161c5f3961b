"""Translates a module of plain arithmetic to JavaScript, so that a page computes with the planner's own formulas.

Understood: functions of positional parameters that are a docstring and one `return`; numbers, None, True, False, names,
+ - * / **, unary minus, comparisons, and, or, not, conditional expressions, and calls of min, max, ceil, log2 and
of the module's functions. Anything else is refused by name and line: nothing is translated almost.
"""

from __future__ import annotations

import ast

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "===", ast.NotEq: "!=="}
_LIBRARY = {"min": "Math.min", "max": "Math.max", "ceil": "Math.ceil", "log2": "Math.log2"}
_CONSTANTS = {None: "null", True: "true", False: "false"}


class Untranslatable(ValueError):
    """What has no meaning here, with its line."""


def functions(source: str) -> dict[str, str]:
    """JavaScript of every function of a module, by name."""
    definitions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    known = {node.name for node in definitions}
    return {node.name: _function(node, known) for node in definitions}


def module(source: str) -> str:
    """One JavaScript object of all functions: `const formulas = (() => { ... })();`."""
    translated = functions(source)
    names = ", ".join(translated)
    return "const formulas = (() => {\n" + "\n".join(translated.values()) + f"\nreturn {{{names}}};\n}})();\n"


def _refuse(node: ast.AST, what: str) -> Untranslatable:
    return Untranslatable(f"line {getattr(node, 'lineno', '?')}: {what} cannot be translated to JavaScript")


def _function(node: ast.FunctionDef, known: set[str]) -> str:
    given = node.args
    if given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults or node.decorator_list:
        raise _refuse(node, f"the signature of {node.name}")
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        raise _refuse(node, f"the body of {node.name}, which is more than one return,")
    parameters = [argument.arg for argument in given.args]
    value = _Expression(known, set(parameters)).text(body[0].value)
    return f"function {node.name}({', '.join(parameters)}) {{ return {value}; }}"


class _Expression:
    """Expressions of one function; every operation in parentheses, so precedence needs no table."""

    def __init__(self, functions: set[str], parameters: set[str]) -> None:
        self._functions, self._parameters = functions, parameters

    def text(self, node: ast.expr) -> str:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _refuse(node, type(node).__name__)
        return method(node)

    def _constant(self, node: ast.Constant) -> str:
        if node.value is None or isinstance(node.value, bool):
            return _CONSTANTS[node.value]
        if isinstance(node.value, (int, float)):
            return repr(node.value)
        raise _refuse(node, repr(node.value))

    def _name(self, node: ast.Name) -> str:
        if node.id not in self._parameters:
            raise _refuse(node, f"the name {node.id}")
        return node.id

    def _binop(self, node: ast.BinOp) -> str:
        if type(node.op) not in _BINARY:
            raise _refuse(node, type(node.op).__name__)
        return f"({self.text(node.left)} {_BINARY[type(node.op)]} {self.text(node.right)})"

    def _unaryop(self, node: ast.UnaryOp) -> str:
        signs = {ast.USub: "-", ast.Not: "!"}
        if type(node.op) not in signs:
            raise _refuse(node, type(node.op).__name__)
        return f"({signs[type(node.op)]}{self.text(node.operand)})"

    def _compare(self, node: ast.Compare) -> str:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARE:
            raise _refuse(node, "this comparison")
        return f"({self.text(node.left)} {_COMPARE[type(node.ops[0])]} {self.text(node.comparators[0])})"

    def _boolop(self, node: ast.BoolOp) -> str:
        return "(" + (" && " if isinstance(node.op, ast.And) else " || ").join(map(self.text, node.values)) + ")"

    def _ifexp(self, node: ast.IfExp) -> str:
        return f"({self.text(node.test)} ? {self.text(node.body)} : {self.text(node.orelse)})"

    def _call(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise _refuse(node, "this call")
        name = node.func.id
        called = name if name in self._functions else _LIBRARY.get(name)
        if called is None:
            raise _refuse(node, f"a call of {name}")
        return f"{called}({', '.join(map(self.text, node.args))})"
