# The public names of `whiten`, and where each is defined, for type checkers; `__init__.py` says the same to Python.

from whiten_export.bundle_files import Export as Export
from whiten_export.export import export_bundle as export_bundle
from whiten_export.recipe import Recipe as Recipe
from whiten_export.refit import export_vectors as export_vectors
from whiten_export.refit import fit_bundle as fit_bundle
from whiten_export.refit import refit_bundle as refit_bundle
from whiten_runtime.bundle.manifest import AlignmentRecord as AlignmentRecord
from whiten_runtime.bundle.manifest import CandidateRecord as CandidateRecord
from whiten_runtime.bundle.manifest import ChoiceRecord as ChoiceRecord
from whiten_runtime.bundle.manifest import CorpusRecord as CorpusRecord
from whiten_runtime.bundle.manifest import FileRecord as FileRecord
from whiten_runtime.bundle.manifest import IsotropyRecord as IsotropyRecord
from whiten_runtime.bundle.manifest import Manifest as Manifest
from whiten_runtime.bundle.manifest import ParityRecord as ParityRecord
from whiten_runtime.bundle.manifest import QuantizationRecord as QuantizationRecord
from whiten_runtime.bundle.manifest import Source as Source
from whiten_runtime.bundle.manifest import TextMemory as TextMemory
from whiten_runtime.bundle.manifest import WhiteningRecord as WhiteningRecord
from whiten_runtime.bundle.parity import Agreement as Agreement
from whiten_runtime.encoder import Encoder as Encoder
from whiten_runtime.errors import BundleError as BundleError
from whiten_runtime.errors import ClosedError as ClosedError
from whiten_runtime.errors import DataError as DataError
from whiten_runtime.errors import IntegrityError as IntegrityError
from whiten_runtime.errors import MissingPackageError as MissingPackageError
from whiten_runtime.errors import NoVectorError as NoVectorError
from whiten_runtime.errors import ParityError as ParityError
from whiten_runtime.errors import ProviderError as ProviderError
from whiten_runtime.errors import TextError as TextError
from whiten_runtime.errors import TooLongError as TooLongError
from whiten_runtime.errors import UnsafeModelError as UnsafeModelError
from whiten_runtime.errors import UsageError as UsageError
from whiten_runtime.errors import WhitenError as WhitenError
from whiten_runtime.files.corpus import Corpus as Corpus
from whiten_runtime.inference.options import EncodeArguments as EncodeArguments
from whiten_runtime.inference.options import QueuedArguments as QueuedArguments
from whiten_runtime.inference.vectors import Nearest as Nearest
from whiten_runtime.reporter import Reporter as Reporter
from whiten_runtime.vector_whitener import VectorWhitener as VectorWhitener
from whiten_serving.batcher import AsyncEncoder as AsyncEncoder
from whiten_serving.batcher import Batcher as Batcher
from whiten_serving.requests import BatcherCounters as BatcherCounters
from whiten_serving.requests import BatcherStats as BatcherStats
from whiten_serving.requests import DeadlineExceededError as DeadlineExceededError
from whiten_serving.requests import OverloadedError as OverloadedError
from whiten_serving.requests import TooManyTokensError as TooManyTokensError
from whiten_whitening.codes import Coder as Coder
from whiten_whitening.codes import Codes as Codes
from whiten_whitening.drift import Drift as Drift
from whiten_whitening.drift import DriftMonitor as DriftMonitor
from whiten_whitening.estimator import Whitening as Whitening
from whiten_whitening.maps import WhiteningSpec as WhiteningSpec

__all__: list[str]
__version__: str
