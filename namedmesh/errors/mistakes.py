"""Everyday mistakes: arguments and attributes of other libraries, with what to write instead."""

import difflib
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean, name_all
from namedmesh.errors.source import find_user_line, is_of_jax, is_ours

# Keywords of numpy, jax and PyTorch that are positions of dimensions here.
_POSITIONS = ("axis", "axes", "dim", "dims")
_EXAMPLES = {"mesh": "mesh=nm.Mesh(data=8)", "layout": "layout='batch:data'"}
# Calls that other libraries write in another way.
_CALLS = {
    "nm.einsum": "nm.einsum([x, w], [B, H])",
    "nm.evaluate": "nm.evaluate(function, x=([M], array))",
    "nm.Mesh": "nm.Mesh(data=2, tensor=4)",
}
# Keywords of other libraries, and ours: no spelling is close to these.
_KEYWORDS = {
    "lr": "learning_rate", "betas": "beta1", "b1": "beta1", "b2": "beta2", "eps": "epsilon",
    "max_to_keep": "keep", "save_total_limit": "keep", "directory": "folder", "type": "dtype",
    "mean": "over", "devices": "mesh", "in_shardings": "layout", "out_shardings": "layout",
    "rules": "layout", "shape": "dims", "initializer": "init", "rng": "key", "out_features": "to",
}  # fmt: skip
# Attributes of arrays, and what to write for a tensor x.
_ATTRIBUTES = {
    "ndim": "write len(x.shape)",
    "size": "write x.shape.elements",
    "astype": "write x.cast('bfloat16')",
    "to": "write x.cast('bfloat16'), or nm.reshard for another placement",
    "numpy": "return it from the traced function and run the step",
    "item": "return it from the traced function and run the step",
    "tolist": "return it from the traced function and run the step",
}


# What Python does with objects by methods that a class may lack; `in` and loops use an index too.
_SIGNS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or")
_SIGNS += ("xor", "lshift", "rshift")
_ALONE = ("neg", "pos", "abs", "invert", "round", "float", "int", "index")
_USES = {
    "called": ["call"],
    "indexed": ["getitem"],
    "changed in place": ["setitem", "delitem"],
    "used in a with statement": ["enter", "exit"],
    "counted by len()": ["len"],
    "ordered": ["lt", "le", "gt", "ge"],
    "computed with": [*_SIGNS, *(f"r{sign}" for sign in _SIGNS), *_ALONE],
}  # fmt: skip
# What to do instead, by class and use.
_NEW_LAYOUT = "make a new one, e.g. nm.Layout({**layout.rules, 'batch': 'data'})"
_NEW_STATE = "make a new state: state = step.place({**state, 'w': array})"
_INSTEAD = {
    ("Mesh", "indexed"): "write mesh.axes['data'] for the size of an axis",
    ("Mesh", "used in a with statement"): "leave it out; give the mesh to nm.compile or nm.plan",
    ("Mesh", "counted by len()"): "write mesh.devices, or len(mesh.axes)",
    ("Layout", "indexed"): "write layout.axes('batch')",
    ("Layout", "changed in place"): _NEW_LAYOUT,
    ("Layout", "computed with"): _NEW_LAYOUT,
    ("Shape", "changed in place"): "write x.shape.replace('batch', C), or [*x.shape, B]",
    ("Shape", "computed with"): "write [*x.shape, B], or x.shape.without('batch')",
    ("Plan", "computed with"): "compare two plans: nm.diff(a, b)",
    ("Optimizer", "called"): "write optimizer.apply(nm.grad(loss))",
    ("State", "changed in place"): _NEW_STATE,
    ("State", "computed with"): _NEW_STATE,
    ("State", "called"): "index it by name: state['w']",
    ("At", "changed in place"): "tensors do not change: write y = x.at[H, 3].set(value)",
    ("At", "called"): "write x.at[H, 3].set(value)",
    ("Mesh", "shape"): "write mesh.axes",
    ("Mesh", "axis_names"): "write tuple(mesh.axes)",
    ("Shape", "ndim"): "write len(x.shape)",
    ("Shape", "rank"): "write len(x.shape)",
    ("Search", "indexed"): "its entries are found.front, the fastest of them is found.best",
    ("Search", "counted by len()"): "its entries are found.front: write len(found.front)",
    ("Step", "state"): "keep it yourself: state = step.init(seed), then state, y = step(state, x)",
    ("Dtype", "itemsize"): "write x.itemsize",
    ("Dtype", "name"): "it is the name itself: write x.dtype",
    ("Dtype", "attributes"): "it is a text, e.g. 'float32'; a tensor has x.floating and x.itemsize",
    ("Place", "computed with"): "write x.at[H, 3].add(value), or x[H, 3] to read it",
}


# What makes dimensions of their names in the arguments of a call; entered by `ir`.
RESOLVERS: list[Callable[..., Any]] = []


def explain_calls(function: FunctionType, name: str) -> FunctionType:
    """Return a function that raises a NamedMeshError where Python would refuse its arguments.

    Where it takes dimensions, their names will do.
    """
    explain, resolve = _wrong_call, _resolve
    describe, is_about_arguments = _wrong_kinds, _is_about_arguments
    types = map(str, function.__annotations__.values())
    takes_dims = any(re.search(r"\b(Dimension|Over|Dims)\b", text) for text in types)

    def call(*arguments: Any, **named: Any) -> Any:
        if takes_dims:
            arguments, named = resolve(function, name, arguments, named)
        try:
            return function(*arguments, **named)
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
            # Python refused the arguments itself if no frame of the function was ever entered.
            trace = error.__traceback__ and error.__traceback__.tb_next
            if trace is None and type(error) is TypeError:
                raise explain(function, name, str(error), named) from None
            if not is_about_arguments(error, trace):
                raise
            raise describe(function, name, arguments, named) from error

    # With the globals of the function's own module, where doctest looks for its examples.
    wrapper = FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    functools.update_wrapper(wrapper, function)
    return wrapper


def _resolve(
    function: FunctionType, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Make dimensions of the names among the arguments, if there are any."""
    for value in (*arguments, *named.values()):
        several = value if type(value) in (list, tuple, dict) else ()
        if type(value) is str or any(type(one) is str for one in several):
            for resolve in RESOLVERS:
                arguments, named = resolve(function, name, arguments, named)
            break
    return arguments, named


def explain_methods(owner: type, kinds: tuple[type, ...] = (FunctionType, classmethod)) -> None:
    """Explain wrong calls of the public methods of a class that are of some kinds."""
    for name, method in list(vars(owner).items()):
        kind = type(method)
        function = getattr(method, "__func__", method)
        if kind in kinds and isinstance(function, FunctionType) and not name.startswith("_"):
            explained = explain_calls(function, f"{owner.__name__}.{name}")
            setattr(owner, name, explained if kind is FunctionType else kind(explained))


def explain_uses(owner: type) -> None:
    """Explain what an object of a class cannot be used for, where Python would raise."""
    own = {name for base in owner.__mro__[:-1] for name in vars(base)}
    own |= {"__radd__"} if issubclass(owner, str) else set()  # "in " + dtype
    if "__len__" not in own and "__bool__" not in own:
        setattr(owner, "__bool__", lambda self: True)  # noqa: B010  # and not by its length
    for use, methods in _USES.items():
        for name in (f"__{method}__" for method in methods):
            if name not in own:
                setattr(owner, name, _refusal(use))


@functools.cache
def _refusal(use: str) -> Callable[..., Any]:
    """Make the method that raises for a use of an object."""

    def refuse(self: Any, *given: Any, **named: Any) -> Any:
        if hasattr(type(self), "_refuse"):
            self._refuse()
        kinds = [base.__name__ for base in type(self).__mro__]
        fixes = [_INSTEAD[kind, use] for kind in kinds if (kind, use) in _INSTEAD]
        if use == "called":
            fixes.append("leave the parentheses out")
        fixes.append(f"use its attributes: {', '.join(_list_attributes(self))}")
        raise NamedMeshError(f"{kinds[0]} cannot be {use}", fix=fixes[0])

    return refuse


def is_function(value: Any) -> bool:
    """Return whether a value can be called, and does more then than explain why not."""
    method = getattr(type(value), "__call__", None)  # noqa: B004 (every class is callable)
    return callable(value) and method is not _refusal("called")


def explain_public(value: Any, name: str) -> Any:
    """Return a public function with its wrong calls explained; explain those of a class in it."""
    if isinstance(value, FunctionType):
        return explain_calls(value, name)
    # Tensors and ops are made by the thousand, and by us; a protocol is never made.
    if not isinstance(value, type) or name in ("nm.Tensor", "nm.Op"):
        return value
    if getattr(value, "_is_protocol", False) or issubclass(value, BaseException):
        return value
    made = vars(value).get("__init__")
    if isinstance(made, FunctionType) and not hasattr(made, "__wrapped__"):
        setattr(value, "__init__", explain_calls(made, name))  # noqa: B010
    options = vars(value).get("__dataclass_params__")
    changes = {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
    methods = changes if options is not None and options.frozen else {}
    if not issubclass(value, Explained):
        explain_uses(value)
        if not hasattr(value, "__getattr__"):
            methods = {**methods, "__getattr__": _explain_attribute}
    for method, function in methods.items():
        setattr(value, method, function)
    return value


def _refuse_change(self: Any, name: str, *unused: Any) -> Any:
    kind = type(self).__name__
    raise MissingAttribute(
        f"{name} of {kind} cannot be changed",
        fix=f"make a new {kind}, e.g. dataclasses.replace(old, {name}=value)",
    )


def _list_attributes(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def _wrong_call(
    function: Callable[..., Any], name: str, message: str, named: Iterable[str]
) -> NamedMeshError:
    """Explain Python's message about the arguments of a call."""
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    signature = _CALLS.get(name) or f"{name}({_list_arguments(function)})"
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", message)
    if unexpected:
        keyword = unexpected[1]
        return NamedMeshError(
            f"{name} has no argument {keyword}",
            signature,
            fix=_replace_keyword(keyword, parameters),
        )
    missing = re.search(r"missing \d+ required .*arguments?: (.*)", message)
    if missing:
        absent = re.findall(r"'(\w+)'", missing[1])
        for keyword in named:
            if keyword not in parameters and difflib.get_close_matches(keyword, absent):
                fix = did_you_mean(keyword, absent)
                return NamedMeshError(f"{name} has no argument {keyword}", signature, fix=fix)
        examples = [_EXAMPLES[one] for one in absent if one in _EXAMPLES]
        advice = ", ".join(examples) or signature
        needed = f"{name} needs {name_all('argument', absent)}"
        return NamedMeshError(needed, fix=f"write {advice}")
    # What is left is Python's "takes 1 positional argument but 2 were given".
    reason = re.sub(r"^[\w.]+(\(\))? ", "", message)
    return NamedMeshError(f"{name} {reason}", signature, fix=f"write {signature}")


def _is_about_arguments(error: Exception, trace: TracebackType | None) -> bool:
    """Return whether Python raised an error in our own code, with none of a user's in between."""
    if trace is None or isinstance(error, NamedMeshError):
        return False
    if re.search(r"\(\) (takes|missing|got)", str(error)):
        return False  # a user's function was called, which others explain
    frames = traceback.extract_tb(trace)  # deeper down a mistake would be our own
    return len(frames) <= 4 and all(is_ours(one.filename) for one in frames)


def _wrong_kinds(
    function: Callable[..., Any], name: str, values: Sequence[Any], named: Mapping[str, Any]
) -> NamedMeshError:
    """Say what a function that could not go on was called with."""
    kinds = [type(one).__name__ for one in values]
    if kinds[:1] == [name.split(".")[-1]]:  # the object that is being made
        del kinds[0]
    kinds += [f"{key}={type(value).__name__}" for key, value in named.items()]
    signature = f"{name}({_list_arguments(function)})"
    given = f"given: {', '.join(kinds)}"
    return NamedMeshError(
        f"{name} cannot work with these arguments", signature, given, fix=f"see help({name})"
    )


def _list_arguments(function: Callable[..., Any]) -> str:
    """Return the arguments of a function as a definition has them, without types and defaults."""
    words = []
    for one in inspect.signature(function).parameters.values():
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        if one.kind is one.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        if one.name not in ("self", "cls"):
            words.append(stars + one.name)
    return ", ".join(words)


def check_keywords(
    name: str, named: Iterable[str], function: Callable[..., Any], options: Sequence[str]
) -> None:
    """Raise for a keyword that the function lacks and that looks like an option of its caller."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in named:
        close = difflib.get_close_matches(keyword, options, n=1)
        if close and keyword not in parameters:
            raise NamedMeshError(
                f"{name} has no argument {keyword}, nor has the function",
                fix=f"did you mean {close[0]}=?",
            )


def _replace_keyword(keyword: str, parameters: list[str]) -> str:
    """Suggest the argument to write in place of an unknown keyword."""
    if keyword in ("keepdim", "keepdims"):
        return "leave it out: x - nm.mean(x, over=H) broadcasts by name"
    for role in ("over", "dim", "dims", "along"):
        if keyword in _POSITIONS and role in parameters:
            example = "[H, W]" if role == "dims" else "H"
            verb = "reduces over" if role == "over" else "takes"
            return f"namedmesh {verb} names, not positions: write {role}={example}"
    if keyword in _POSITIONS:
        return "leave it out: dimensions are matched by name"
    if _KEYWORDS.get(keyword) in parameters:
        return f"did you mean {_KEYWORDS[keyword]!r}?"
    return did_you_mean(keyword, parameters)


class MissingAttribute(NamedMeshError, AttributeError):
    """An attribute that is not there; hasattr() and getattr() see an AttributeError."""


class MissingKey(NamedMeshError, KeyError, IndexError):
    """A key or position that is not there; `in`, `get` and loops are as ever."""

    __str__ = NamedMeshError.__str__


class Explained:
    """The base of public classes: explains attributes they lack, and wrong calls of methods."""

    __slots__ = ()

    def __init_subclass__(cls, methods: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        explain_methods(cls, (FunctionType, classmethod) if methods else (classmethod,))
        explain_uses(cls)

    if not TYPE_CHECKING:  # editors are to see which attributes there are

        def __getattr__(self, name: str) -> Any:
            return _explain_attribute(self, name)


def _explain_attribute(self: Any, name: str) -> Any:
    """Raise for an attribute that an object lacks."""
    kind = type(self)
    if hasattr(kind, name):  # a property raised an AttributeError: raise it again
        return object.__getattribute__(self, name)
    if name.startswith("_"):  # Python and notebooks probe for methods
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    advice = [_INSTEAD.get((kind.__name__, one)) for one in (name, "attributes")]
    fix = advice[0] or advice[1] or did_you_mean(name, _list_attributes(self))
    for holder, values in getattr(self, "__dict__", {}).items():
        if isinstance(values, Mapping) and name in values:
            fix = f"write {kind.__name__.lower()}.{holder.strip('_')}[{name!r}]"
    if isinstance(self, Mapping) and name in self:
        fix = f"index it by name: [{name!r}]"
    elif hasattr(kind, "names") and name in self.names:
        fix = f"write shape.named({name!r}), or shape.size_of({name!r})"
    raise MissingAttribute(f"{kind.__name__} has no attribute {name}", fix=fix)


class ByName(Explained, dict[Any, Any]):
    """Values by name; a name that is not among them is explained."""

    def __missing__(self, name: object) -> Any:
        names = [one for one in self if isinstance(one, str)]
        by_tensor = "index it by a tensor, e.g. program.outputs[0]"
        fix = did_you_mean(name, names) if names or not self else by_tensor
        raise MissingKey(f"there is no {name!r} here", fix=fix)


def missing_attribute(
    label: str, text: str, dims: Sequence[str], methods: Sequence[str], name: str
) -> MissingAttribute:
    """Describe an attribute that a tensor does not have."""
    fix = _ATTRIBUTES.get(name)
    if name in ("T", "mT"):
        order = ", ".join(reversed(dims))
        fix = f"dimensions match by name; to reorder them write nm.transpose(x, [{order}])"
    elif fix is None:
        fix = f"write nm.{name}(x, ...)" if _is_public(name) else did_you_mean(name, methods)
    return MissingAttribute(f"{label} has no attribute {name}", text, fix=fix)


def foreign_call(library: str, function: str | None, label: str, text: str) -> NamedMeshError:
    """Describe a call of a function of numpy or jax with a tensor."""
    if is_of_jax(sys._getframe(2).f_code.co_filename):  # jax asks numpy for shapes, and the like
        library, function = "jax", None
    subject = f"{library}'s {function} takes" if function else f"{library}'s functions take"
    fix = "use the functions of nm, e.g. nm.sum"
    if function and _is_public(function):
        fix = f"use nm.{function}"
    if library == "jax":
        fix += "; nm.call_jax runs jax code on tensors"
    return NamedMeshError(
        f"{subject} arrays, and {label} has no value while tracing", text, fix=fix
    )


def explain_refusal(error: TypeError, trace: TracebackType | None) -> None:
    """Raise for a TypeError about a tensor or the arguments of a user's function, at their line."""
    if "namedmesh.ir.tensor.Tensor" in str(error) and "JAX" in str(error):
        raise NamedMeshError(
            "jax's functions take arrays, and a tensor has no value while tracing",
            fix="use the functions of nm, e.g. nm.relu; nm.call_jax runs jax code on tensors",
            source=find_user_line(trace),
        ) from None
    last = traceback.extract_tb(trace)[-1]
    # Python refused our call of a function that the user gave.
    refused = re.match(r"\S+\(\) (takes|missing|got an unexpected) .*argument", str(error))
    if refused and is_ours(last.filename):
        raise NamedMeshError(
            f"a function that nm calls does not take what it is called with: {error}",
            fix="give a function of that many arguments; functools.partial and lambda bind others",
            source=find_user_line(trace),
        ) from None


def _is_public(name: str) -> bool:
    """Return whether nm has a name."""
    return name in dir(sys.modules["namedmesh"])
