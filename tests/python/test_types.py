# SPDX-License-Identifier: Apache-2.0
"""The type stub says what the package has, and the package says what it does."""

import ast
import enum
import inspect
import pathlib

import pytest

import hotset

PACKAGE = pathlib.Path(hotset.__file__).parent
STUB = ast.parse((PACKAGE / "__init__.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
INSTANCE_ATTRIBUTES = {"NodeArg", "ModelMetadata", "Generator", "OptionInfo"}  # set in __init__, or fields


def parameters(node):
    arguments = node.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    names += [arguments.vararg.arg] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += [arguments.kwarg.arg] if arguments.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def real_parameters(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def test_marker():
    assert (PACKAGE / "py.typed").is_file()


def test_names():
    stubbed = {*CLASSES, *FUNCTIONS, "OrtValue"}
    assert stubbed == set(hotset.__all__) == {name for name in hotset.__all__ if hasattr(hotset, name)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    assert parameters(FUNCTIONS[name]) == real_parameters(getattr(hotset, name))


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name):
    stub, real = CLASSES[name], getattr(hotset, name)
    methods = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    fields = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    fields |= {target.id for node in stub.body if isinstance(node, ast.Assign) for target in node.targets}
    for method, node in methods.items():
        found = inspect.getattr_static(real, method)
        if not isinstance(found, property):
            assert parameters(node) == real_parameters(getattr(real, method)), method
    if issubclass(real, (Exception, enum.Enum)):
        return
    public = {attribute for attribute in dir(real) if not attribute.startswith("_")} - set(dir(tuple))
    assert public <= methods.keys() | fields
    if name not in INSTANCE_ATTRIBUTES:
        assert fields <= public | set(getattr(real, "__annotations__", ()))


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS])
def test_public_things_are_explained(name):
    real = getattr(hotset, name)
    assert inspect.getdoc(real)
    if inspect.isclass(real) and not issubclass(real, (Exception, enum.Enum, tuple)):
        for attribute in {*dir(real)} - {*dir(object)}:
            if not attribute.startswith("_") and callable(getattr(real, attribute)):
                assert inspect.getdoc(getattr(real, attribute)), attribute


def test_stub_with_mypy(tmp_path):
    pytest.importorskip("mypy")
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text("import hotset\nsession = hotset.InferenceSession('a')\nreveal_type(session.run(None, {}))\n")
    text, errors, status = api.run([str(program)])
    assert status == 0 and "list[" in text, text + errors
