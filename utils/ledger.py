"""Predictions beside measurements.

A page works out what should happen, writes it down here, measures, and checks:

    ledger = Ledger()
    ledger.predict("Pinned copy", 55, "GB/s", because="PCIe 5.0 x16 carries 63 GB/s, less headers")
    ...
    ledger.check(copies, {"Pinned copy": result["pinned"]})

The pairs are kept with the experiment's record, so that all predictions of the book can be read
together. A miss is kept like a hit: it is what there is to learn.
"""

import math

from utils.cards import format_value
from utils.experiment import Experiment, load_record
from utils.plotting import Table


class Ledger:
    """The predictions of one experiment, and what came of them."""

    def __init__(self) -> None:
        self.predictions: dict[str, tuple[float, str, str]] = {}

    def predict(self, quantity: str, value: float, unit: str, *, because: str) -> None:
        """Write down a prediction and print it.

        Parameters
        ----------
        quantity : str
            What is predicted; names the prediction in :meth:`check`.
        value : float
            The predicted number, positive and finite, in ``unit``.
        unit : str
            ``"GB/s"``, ``"ms"``, ``"x"`` and so on.
        because : str
            The reason, in a few words: the arithmetic, or the limit it comes from.

        Raises
        ------
        ValueError
            If the value is not positive and finite, the reason is empty, or the quantity was
            predicted before.
        """
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{quantity}: predicted {value}; a ratio needs a positive number")
        if not because.strip():
            raise ValueError(f"{quantity}: a prediction without a reason is a guess")
        if quantity in self.predictions:
            raise ValueError(f"{quantity} was predicted before")
        self.predictions[quantity] = (value, unit, because)
        print(f"predicted {quantity}: {format_value(value, unit)}, because {because}")

    def check(self, experiment: Experiment, measured: dict[str, float]) -> Table:
        """Set ``measured`` beside the predictions and keep the pairs with the record.

        Parameters
        ----------
        experiment : Experiment
            Where the numbers come from; it has been called.
        measured : dict
            A number for every quantity predicted, in the predicted unit.

        Returns
        -------
        Table
            Quantity, predicted, measured, ratio; and the reference machine's number where the
            experiment ran live beside an existing record.

        Raises
        ------
        ValueError
            If a prediction has no measurement, or a measurement no prediction.
        ExperimentError
            See :meth:`utils.experiment.Experiment.keep`.
        """
        unmeasured, unpredicted = (
            self.predictions.keys() - measured,
            measured.keys() - (self.predictions.keys()),
        )
        if unmeasured or unpredicted:
            raise ValueError(
                f"predicted but not measured: {sorted(unmeasured)}; "
                f"measured but not predicted: {sorted(unpredicted)}"
            )
        entries = [
            {
                "quantity": quantity,
                "unit": unit,
                "predicted": float(value),
                "measured": float(measured[quantity]),
                "because": because,
            }
            for quantity, (value, unit, because) in self.predictions.items()
        ]
        experiment.keep(entries)
        return ledger_table(entries, _reference(experiment))


def _reference(experiment: Experiment) -> dict[str, float]:
    """The reference machine's measurements by quantity, beside a live result."""
    if experiment.reference is None:
        return {}
    kept = load_record(experiment.path)["ledger"]
    return {entry["quantity"]: entry["measured"] for entry in kept}


def ledger_table(entries: list[dict], reference: dict[str, float] | None = None) -> Table:
    """Return ledger ``entries`` as a table, with a column of ``reference`` numbers if given."""
    headers = ["Quantity", "Predicted", "Measured", "Measured / predicted"]
    if reference:
        headers.append("Reference machine")
    rows = []
    for entry in entries:
        unit = entry["unit"]
        row = [
            entry["quantity"],
            format_value(entry["predicted"], unit),
            format_value(entry["measured"], unit),
            f"{entry['measured'] / entry['predicted']:.2f}",
        ]
        if reference:
            known = reference.get(entry["quantity"])
            row.append("" if known is None else format_value(known, unit))
        rows.append(row)
    return Table(headers, rows)
