"""Write the pages of docs/reference: commands, and the API from its docstrings.

`python docs/make_reference.py` writes them; with `--check` it compares them with the files and exits with 1 if one
differs. The text depends on the source alone: on no terminal, no installed version and no order of a set.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Literal, get_args, get_origin

import click

import whiten
from whiten_evaluation.commands.drift import EXIT_CODES
from whiten_runtime.commands.help import Command, Group, grouped
from whiten_runtime.commands.main import whiten as whiten_command

REFERENCE = Path(__file__).parent / "reference"

_MADE = "<!-- Written by docs/make_reference.py: change the source, then run it again. -->"

_COMMANDS = f"""# Commands

{_MADE}

`whiten-export` is the same command as `whiten export`. Progress, warnings and errors go to stderr; vectors, tables and
`--json` go to stdout. `--help` shows the options of a command that most people need, in a sentence each; `--help-all`
shows all that is on this page. Colours, progress, completion by shells: [the command line](../guides/commands.md).

| exit code | when |
|---|---|
| 0 | it worked |
| 1 | something failed; of `whiten verify`: the gate is not kept; of `whiten doctor`: a provider does not work |
| 2 | the command line cannot be used as given |
| {EXIT_CODES["drifting"]} | of `whiten drift`: texts are unlike the corpus, but the whitening still fits them |
| {EXIT_CODES["hurts"]} | of `whiten drift`: the whitening harms texts; fit it again |
| 143 | ended by SIGTERM; temporary files are removed first |
"""

_API = f"""# Python API

{_MADE}

All public names of `import whiten`. Everything else is private. Each name is imported when it is first used, so that
`import whiten` loads neither torch nor onnxruntime.
"""

_SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields", "Warns")
_LISTS = ("Args", "Attributes", "Raises")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def commands() -> str:
    """Return the text of commands.md."""
    return "\n".join([_COMMANDS, *_walk("whiten", whiten_command, None)])


def _walk(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """Yield a section for a command, then those of its subcommands, by name."""
    with click.Context(command, parent, name, **command.context_settings) as context:
        yield f"## {context.command_path}\n\n{_described(command, context)}"
        if isinstance(command, click.Group):
            for child_name in sorted(command.list_commands(context)):
                child = command.get_command(context, child_name)
                assert child is not None
                yield from _walk(child_name, child, context)


def _described(command: click.Command, context: click.Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = ["```text", usage, "```", "", inspect.cleandoc(command.help or ""), ""]
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    lines += [f"- `{argument.make_metavar(context)}`: {_needed(argument)}" for argument in arguments]
    for name, options in grouped(command.get_params(context)).items():
        lines += ["", f"{name}:", ""]
        for option in options:
            if record := option.get_help_record(context):
                lines.append(f"- `{record[0]}`: {' '.join(record[1].split())}")
    if isinstance(command, Command | Group):
        lines += ["", "```bash", *command.examples, "```"]
    return "\n".join([*lines, ""])


def _needed(argument: click.Argument) -> str:
    several = ", several are possible" if argument.nargs == -1 else ""
    return f"{'required' if argument.required else 'optional'} argument{several}."


def api() -> str:
    """Return the text of api.md."""
    names = sorted(whiten.__all__)
    index = ", ".join(f"[{name}](#{name.lower()})" for name in names if not name.startswith("_"))
    return "\n".join([_API, f"{index}.\n", *map(_section, names), "## Types\n", *_types(names)])


def _section(name: str) -> str:
    if name.startswith("_"):
        return f"## `{name}`\n\nstr: the version of the installed package.\n"
    node = _node(name)
    return "\n".join(_class(node) if isinstance(node, ast.ClassDef) else _function(node, "##", "", name))


def _node(name: str) -> ast.ClassDef | Function:
    tree = ast.parse(inspect.getsource(import_module(getattr(whiten, name).__module__)))
    node = next(node for node in tree.body if getattr(node, "name", None) == name)
    assert isinstance(node, ast.ClassDef | Function)
    return node


def _types(names: Sequence[str]) -> Iterator[str]:
    """Yield the values that the types in signatures allow, where those are a few strings."""
    found: dict[str, object] = {}
    for name in names:
        if not name.startswith("_"):
            module = import_module(getattr(whiten, name).__module__)
            used = {node.id for node in ast.walk(_node(name)) if isinstance(node, ast.Name)}
            found |= {alias: value for alias in used if get_origin(value := getattr(module, alias, None)) is Literal}
    yield "Names in the signatures above that stand for a few strings.\n"
    for alias in sorted(found):
        yield f"- `{alias}`: {', '.join(f'`{value}`' for value in get_args(found[alias]))}"


def _class(node: ast.ClassDef) -> Iterator[str]:
    """Yield the lines of a class: its constructor or fields, its docstring, its public methods."""
    methods = [item for item in node.body if isinstance(item, Function) and not _is_overload(item)]
    made = next((method for method in methods if method.name == "__init__"), None)
    fields = list(_fields(node))
    keyword_only = ["*"] if any(keyword.arg == "kw_only" for keyword in node.keywords) else []
    arguments = _arguments(made) if made else [*keyword_only, *(line for line, _ in fields)]
    arguments = arguments or [ast.unparse(base) for base in node.bases]
    yield f"## {node.name}\n"
    yield f"{_code(f'class {node.name}', arguments, '')}\n"
    yield from _docstring(ast.get_docstring(node) or "")
    described = [f"- `{line}`: {text}" for line, text in fields if text]
    yield from [*described, ""] if described else ()
    listed: dict[str, Function] = {}
    for method in (*methods, *_inherited(node.name)):
        listed.setdefault(method.name, method)
    for method in listed.values():
        if not method.name.startswith("_"):
            yield from _function(method, "###", f"{node.name}.", method.name)


def _is_overload(node: Function) -> bool:
    """Return whether a function only states types of one way to call the function that follows it."""
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def _inherited(name: str) -> Iterator[Function]:
    """Yield the methods of a class's bases that are ours and have no section of their own."""
    for base in getattr(whiten, name).__mro__[1:]:
        if base.__module__.startswith("whiten") and base.__name__ not in whiten.__all__:
            tree = ast.parse(inspect.getsource(base))
            bodies = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
            yield from (item for body in bodies for item in body if isinstance(item, Function))


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass or struct, each with the string that follows it."""
    for item, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            default = f" = {ast.unparse(item.value)}" if item.value else ""
            yield f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}{default}", _string(following)


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _function(node: Function, level: str, owner: str, name: str) -> Iterator[str]:
    """Yield the lines of a function, method or property."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = f" -> {_annotation(node.returns)}" if node.returns else ""
    yield f"{level} {owner}{name}\n"
    if "property" in decorators:
        yield f"```text\n{owner}{name}: {returns.removeprefix(' -> ')}\n```\n"
    else:
        yield f"{_code(owner + name, _arguments(node), returns)}\n"
    yield from _docstring(ast.get_docstring(node) or "")


def _arguments(node: Function) -> list[str]:
    """Return the parameters as they are written, without self and cls."""
    given = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [*[None] * (len(given) - len(node.args.defaults)), *node.args.defaults]
    positional = [_argument(one, default) for one, default in zip(given, defaults, strict=True)]
    positional = positional[1:] if given and given[0].arg in ("self", "cls") else positional
    keywords = [
        _argument(one, default) for one, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    star = [f"*{_argument(node.args.vararg, None)}"] if node.args.vararg else ["*"] if keywords else []
    rest = [f"**{_argument(node.args.kwarg, None)}"] if node.args.kwarg else []
    return [*positional, *star, *keywords, *rest]


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {_annotation(node.annotation)}" if node.annotation else ""
    equals = " = " if annotation else "="
    return f"{node.arg}{annotation}{equals}{ast.unparse(default)}" if default else f"{node.arg}{annotation}"


def _annotation(node: ast.expr) -> str:
    """Return a type as it is written, without the quotes of a name that is defined later."""
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _code(name: str, arguments: Sequence[str], returns: str) -> str:
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"
    return f"```text\n{line}\n```"


def _docstring(text: str) -> Iterator[str]:
    """Yield a docstring as Markdown: its sections become lists, whose entries are joined into one line each."""
    paragraphs = re.split(rf"^({'|'.join(_SECTIONS)}):\n", text, flags=re.MULTILINE)
    yield f"{paragraphs[0].strip()}\n"
    for title, body in zip(paragraphs[1::2], paragraphs[2::2], strict=True):
        inside, outside = _split(body)
        yield f"**{title}**\n"
        entries = re.split(r"\n(?! )", dedent(inside))
        if title in _LISTS:
            yield "\n".join(_entry(entry) for entry in entries) + "\n"
        else:
            yield " ".join(inside.split()) + "\n"
        if outside:
            yield f"{outside}\n"


def _split(body: str) -> tuple[str, str]:
    """Split what follows the title of a section into its indented lines and the rest."""
    lines = body.splitlines()
    end = next((index for index, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return "\n".join(lines[:end]).rstrip(), "\n".join(lines[end:]).strip()


def _entry(text: str) -> str:
    name, _, meaning = " ".join(text.split()).partition(": ")
    return f"- `{name}`: {meaning}"


def main(arguments: Sequence[str]) -> int:
    """Write all files; with --check, compare them instead.

    Returns:
        The exit code.
    """
    pages = {"commands.md": commands(), "api.md": api()}
    for name, text in pages.items():
        file, content = REFERENCE / name, f"{text.rstrip()}\n"
        if "--check" not in arguments:
            file.parent.mkdir(exist_ok=True)
            file.write_text(content, "utf-8")
        elif not file.is_file() or file.read_text("utf-8") != content:
            print(f"docs/reference/{name} is out of date; run python docs/make_reference.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
