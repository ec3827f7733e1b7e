"""Test which tasks a cluster of Ray gets, and when lost ones end a job, with a cluster that is made up."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from whiten import WhitenError
from whiten_scale import ray as whiten_ray


class LostError(Exception):
    """Stands for an error of a lost process, node, or memory."""


class TaskError(Exception):
    """Stands for an error of Ray that has another one as its cause."""

    def __init__(self, message: str, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class Task:
    def __init__(self, item: int) -> None:
        self.item = item


class Cluster:
    """Does tasks in the order in which they are asked for."""

    def __init__(self, cpus: int, do: Callable[[int], object]) -> None:
        self.exceptions = SimpleNamespace(
            WorkerCrashedError=LostError, NodeDiedError=LostError, OutOfMemoryError=LostError, RayError=TaskError
        )
        self.cpus, self.do, self.most, self.waiting = cpus, do, 0, list[Task]()
        self.options: dict[str, Any] = {}
        self.begun: tuple[str, dict[str, Any]] | None = None

    def init(self, address: str, **options: Any) -> Any:
        if address == "nowhere":
            raise ConnectionError("Could not find any\nrunning Ray instance.")
        self.begun = address, options
        return nullcontext()

    def put(self, content: bytes) -> bytes:
        return content

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: SimpleNamespace(remote=self._submit)

    def _submit(self, content: bytes, item: int) -> Task:
        self.waiting.append(task := Task(item))
        self.most = max(self.most, len(self.waiting))
        return task

    def wait(self, tasks: list[Any]) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> None:
        self.waiting.remove(task)
        self.do(task.item)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Cluster, Iterator[int]]]:
    def begin(do: Callable[[int], object], items: int, workers: int | None = None, address: str = "auto") -> Any:
        cluster = Cluster(4, do)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        monkeypatch.setattr(whiten_ray.msgspec.json, "encode", lambda work: b"")
        return cluster, whiten_ray.run_on_ray(None, range(items), address, workers)  # type: ignore[arg-type]

    return begin


@pytest.mark.parametrize(("workers", "most"), [(None, 8), (3, 3), (100, 20)])
def test_tasks_wait_so_that_a_cluster_sees_what_is_wanted(run: Any, workers: int | None, most: int) -> None:
    cluster, items = run(lambda item: None, 20, workers)
    assert list(items) == list(range(20))
    assert cluster.most == most


def test_variables_are_those_of_tasks_and_not_of_the_job(run: Any) -> None:
    cluster, items = run(lambda item: None, 1)
    assert list(items) == [0]
    assert cluster.begun == ("auto", {"log_to_driver": False, "logging_level": "ERROR"})
    assert cluster.options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "1"


def test_a_lost_task_begins_anew_as_long_as_others_are_done(run: Any) -> None:
    lost = dict.fromkeys(range(20), 0)

    def do(item: int) -> None:
        lost[item] += 1
        if item % 2 and lost[item] <= 3:
            raise LostError

    cluster, items = run(do, 20)
    assert sorted(items) == list(range(20))
    assert lost == {item: 4 if item % 2 else 1 for item in range(20)}
    assert cluster.options["max_retries"] == 0


def test_an_item_that_is_lost_without_progress_ends_the_job(run: Any) -> None:
    def do(item: int) -> None:
        if item > 2:
            raise LostError("The worker\ndied")

    _, items = run(do, 6, 1)
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(WhitenError, match="item 3 was lost 4 times"):
        next(items)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TaskError("x", WhitenError("a.txt: row 2 is wrong")), "a.txt: row 2 is wrong"),
        (TaskError("x", ModuleNotFoundError("No module named 'whiten_scale'")), "package"),
        (TaskError("ModuleNotFoundError: No module named 'pyarrow'"), "package"),
        (TaskError("The object store\nis full"), "The object store is full"),
        (ConnectionError("gone"), "gone"),
    ],
)
def test_errors_are_one_line(run: Any, error: Exception, words: str) -> None:
    def do(item: int) -> None:
        raise error

    _, items = run(do, 1)
    with pytest.raises(WhitenError) as caught:
        list(items)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cluster_that_is_not_there(run: Any) -> None:
    _, items = run(lambda item: None, 1, None, "nowhere")
    with pytest.raises(WhitenError, match="'nowhere'"):
        list(items)
