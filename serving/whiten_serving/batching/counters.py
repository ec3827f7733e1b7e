"""Count what lanes compute, refuse and drop."""

from dataclasses import dataclass, field

from whiten_serving.batching.batch import Batch


@dataclass(frozen=True)
class BatchRun:
    """Describes a batch that was computed, for whoever watches.

    Attributes:
        texts: number of texts.
        tokens: number of tokens without padding.
        padding: number of tokens of padding.
        seconds: time that it took.
    """

    texts: int
    tokens: int
    padding: int
    seconds: float

    @classmethod
    def of(cls, batch: Batch, seconds: float) -> "BatchRun":
        """Describe a batch."""
        return cls(len(batch.items), batch.tokens, batch.padding, seconds)


@dataclass
class Counters:
    """Counts since the lanes were made. Their lock guards it.

    Attributes:
        texts: texts that were computed.
        tokens: their tokens, without padding.
        padding: tokens of padding that were computed.
        batches: batches that were computed.
        failed: batches that onnxruntime failed on, whose texts were then computed one by one.
        rejected: requests that were refused because too much waited.
        departed: requests that were cancelled before they were computed.
        late: requests whose deadline passed before they were computed.
    """

    texts: int = 0
    tokens: int = 0
    padding: int = 0
    batches: int = 0
    failed: int = 0
    rejected: int = 0
    departed: int = 0
    late: int = 0

    def add(self, batch: Batch) -> None:
        """Count a batch that was computed."""
        self.texts += len(batch.items)
        self.tokens += batch.tokens
        self.padding += batch.padding
        self.batches += 1


@dataclass(frozen=True)
class Stats:
    """Describes lanes at one moment.

    Attributes:
        lanes: number of batches that can run at once.
        lanes_busy: number of batches that run.
        queue_requests: number of requests of which texts wait.
        queue_tokens: number of tokens that wait.
        queue_seconds: time that the waiting work takes at the rate of the last batches; 0 before the first one.
        tokens_per_second: that rate, of all lanes; 0 before the first batch.
        counted: what was computed, refused and dropped so far.
    """

    lanes: int
    lanes_busy: int
    queue_requests: int
    queue_tokens: int
    queue_seconds: float
    tokens_per_second: float
    counted: Counters = field(default_factory=Counters)
