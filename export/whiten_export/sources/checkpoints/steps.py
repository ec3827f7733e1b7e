"""List the modules of a folder of sentence-transformers in order; a Router is replaced by the modules of one route."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_export.sources.checkpoints.module_files import read_json, read_settings
from whiten_runtime.errors import UsageError, WhitenError

MODULES_FILE = "modules.json"

_OURS = "sentence_transformers."
_ROUTERS = ("Router", "Asym")


@dataclass(frozen=True)
class Step:
    """Describes a module of a folder."""

    kind: str  # name of its class, without its place, which moved between versions
    folder: Path  # folder of its files


@dataclass(frozen=True)
class _Router:
    types: dict[str, Any]
    structure: dict[str, Any]


def read_steps(root: Path, route: str | None) -> tuple[str | None, list[Step]]:
    """Return the route and the modules, those of the route in place of a Router."""
    path = root / MODULES_FILE
    steps = [Step(_kind(str(step["type"]), path), root / step.get("path", "")) for step in _listed(root)]
    if not steps:
        raise WhitenError(f"{path}: names no module; wanted a Transformer and what follows it")
    if route is not None and not any(step.kind in _ROUTERS for step in steps):
        raise UsageError(f"route '{route}' was asked for, but '{root}' has no Router; leave --route out")
    found: list[Step] = []
    chosen: str | None = None
    for step in steps:
        if step.kind not in _ROUTERS:
            found.append(step)
            continue
        router = _read_router(step.folder)
        if router is None:
            raise WhitenError(f"{step.folder}: the Router has no router_config.json; copy the model again")
        chosen = route if route is not None or len(router.structure) > 1 else next(iter(router.structure))
        if chosen not in router.structure:
            asked = "" if chosen is None else f"; '{chosen}' is not among them"
            raise UsageError(f"'{root}' has the routes {', '.join(router.structure)}{asked}; name one with --route")
        names = router.structure[chosen]
        found += [Step(_kind(str(router.types[name]), step.folder), step.folder / name) for name in names]
    if not found:
        raise WhitenError(f"{path}: route '{chosen}' has no module")
    return chosen, found


def _listed(root: Path) -> list[dict[str, Any]]:
    path = root / MODULES_FILE
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(step, dict) and "type" in step for step in listed):
        raise WhitenError(f"{path}: is not a list of modules with a type each")
    for step in listed:  # sentence-transformers applies modules in the order of the list, whatever their idx
        _check_inside(step.get("path", ""), path)
    return listed


def _read_router(folder: Path) -> _Router | None:
    """Return the Router's modules and routes; None without a file of it. An Asym's is named like a network's config."""
    for name in ("router_config.json", "config.json"):
        path = folder / name
        if not path.is_file() or "structure" not in (config := read_settings(path)):
            continue
        types, structure = config.get("types"), config["structure"]
        if not isinstance(types, dict) or not _are_routes(structure, types):
            raise WhitenError(f"{path}: its structure is not routes with modules of its types; copy the model again")
        for one in types:
            _check_inside(one, path)
        return _Router(types, structure)
    return None


def _are_routes(structure: Any, types: dict[str, Any]) -> bool:
    if not isinstance(structure, dict) or not structure:
        return False
    routes = list(structure.values())
    return all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in routes) and all(
        name in types for names in routes for name in names
    )


def _check_inside(folder: Any, file: Path) -> None:
    if not isinstance(folder, str):
        raise WhitenError(f"{file}: has the path {folder!r}; wanted a text")
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise WhitenError(f"{file}: the path '{folder}' leads out of the folder")


def _kind(class_path: str, file: Path) -> str:
    """Return the last part of a class path of sentence-transformers."""
    if not class_path.startswith(_OURS):
        raise WhitenError(
            f"{file}: module '{class_path}' is not one of sentence-transformers, so its vectors cannot be reproduced"
        )
    return _last_part(class_path)


def _last_part(class_path: Any) -> str:
    return str(class_path).rsplit(".", 1)[-1]
