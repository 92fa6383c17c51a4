"""Live or replayed: experiments, the records of what they measured, and the predictions in them.

``python -m utils.record`` (``utils.record.recorder``) runs notebooks and writes records.
"""

from utils.record.experiment import Experiment, experiment
from utils.record.file import FIELDS, PROVENANCE, load_record, recorded, save_record, where
from utils.record.missing import ExperimentError, NotRecorded, never_recorded
from utils.record.paths import BOOK, RECORDS, ROOT, SCRIPTS, TRACES
from utils.record.predictions import (
    all_predictions,
    compare,
    counted_predictions,
    experiment_sections,
)

__all__ = ["BOOK", "FIELDS", "PROVENANCE", "RECORDS", "ROOT", "SCRIPTS", "TRACES"]
__all__ += ["Experiment", "ExperimentError", "NotRecorded", "experiment", "never_recorded"]
__all__ += ["load_record", "recorded", "save_record", "where"]
__all__ += ["all_predictions", "compare", "counted_predictions", "experiment_sections"]
