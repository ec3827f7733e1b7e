"""Reload what was replaced on the disk: bundles, keys and certificate."""

import asyncio
from collections.abc import Callable, Sequence

from whiten_runtime.errors import WhitenError
from whiten_serving.batching.lanes import Lanes
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.http.state import State
from whiten_serving.server.gauges import DriftGauges
from whiten_serving.server.log import Log
from whiten_serving.server.opening import Opened, open_model, replaced, served
from whiten_serving.settings.models import ModelChoice
from whiten_serving.settings.table import Settings


class Reloader:
    """Opens bundles that were replaced, and puts each in the place of the old one when it is proven.

    Args:
        settings: the settings.
        choices: the models.
        models: what is served.
        lanes: their lanes.
        state: state of the server.
        gauges: gauges of their drift.
        log: where it says what was reloaded.
        others: functions that read other files anew.
    """

    def __init__(
        self,
        settings: Settings,
        choices: Sequence[ModelChoice],
        models: Models,
        lanes: Lanes,
        state: State,
        gauges: DriftGauges,
        log: Log,
        others: Sequence[Callable[[], object]],
    ) -> None:
        self._settings = settings
        self._choices = choices
        self._models = models
        self._lanes = lanes
        self._state = state
        self._gauges = gauges
        self._log = log
        self._others = others
        self._lock = asyncio.Lock()

    async def reload(self) -> None:
        """Reload everything that was replaced. What cannot be opened or proven stays as it was, and the log says so."""
        async with self._lock:
            for other in self._others:
                try:
                    other()
                except WhitenError as error:
                    self._log.error(f"not reloaded: {error}")
            for choice in self._choices:
                await self._reload(choice)

    async def _reload(self, choice: ModelChoice) -> None:
        old = self._models.named(choice.name)
        try:
            opened = await asyncio.to_thread(self._opened, choice, old.digest)
        except Exception as error:  # whatever is wrong with a file, the old bundle goes on
            text = str(error) if isinstance(error, WhitenError) else f"{type(error).__name__}: {error}"
            self._log.error(f"{choice.name}: not reloaded, the old bundle goes on: {' '.join(text.split())}")
            return
        if opened is None:
            self._log.info(f"{choice.name}: unchanged", model=choice.name)
        else:
            self.put(served(opened, self._lanes), opened)
            self._log.info(f"{choice.name}: reloaded", model=choice.name)

    def _opened(self, choice: ModelChoice, digest: str) -> Opened | None:
        return open_model(choice, self._settings) if replaced(choice, digest) else None

    def put(self, model: ServedModel, opened: Opened) -> None:
        """Put a model in the place of that of its name; later requests get it."""
        self._models.replace(model)
        note(opened, self._state, self._gauges)


def note(opened: Opened, state: State, gauges: DriftGauges) -> None:
    """Note what was measured of a bundle when it was opened, and measure its drift from now on."""
    if opened.agreement is not None:
        state.parity[opened.name] = opened.agreement.min_cosine
    if opened.drift is not None:
        gauges.watches[opened.name] = opened.drift
